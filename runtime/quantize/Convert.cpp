//===- Convert.cpp - reads, converts and writes every tensor --------------===//
//
// Part of mla. Files are read with pread and not mapped: a disk that fails is
// then an error like any other, and no signal.
//
//===----------------------------------------------------------------------===//
#include "runtime/quantize/Convert.h"
#include "mla/Quant/Matrix.h"
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fcntl.h>
#include <mutex>
#include <unistd.h>

namespace mla::quantize {
namespace {
using quant::ConstMatrixParts;
using quant::MatrixParts;
using Bytes = std::vector<std::byte>;

constexpr int64_t stripeRows = 128; ///< fp8_block's blocks are not cut
constexpr uint64_t copyBytes = uint64_t(8) << 20;
/// Groups are converted in batches of about this size: what the first pass over
/// an nvfp4 matrix has read is still in the system's cache at the second.
constexpr uint64_t batchBytes = uint64_t(512) << 20;

class InputFiles {
public:
  InputFiles() = default;
  InputFiles(const InputFiles &) = delete;
  ~InputFiles() {
    for (int fd : fds)
      ::close(fd);
  }

  Status open(const Checkpoint &checkpoint) {
    for (const CheckpointFile &file : checkpoint.files()) {
      paths.push_back((checkpoint.folder() / file.name).string());
      int fd = ::open(paths.back().c_str(), O_RDONLY | O_CLOEXEC);
      if (fd < 0)
        return ioError(paths.back() +
                       ": cannot be opened: " + std::strerror(errno));
      fds.push_back(fd);
    }
    return {};
  }

  /// Reads out.size() bytes at `offset` of `tensor`.
  Status read(const TensorInfo &tensor, uint64_t offset,
              std::span<std::byte> out) const {
    offset += tensor.offset;
    while (!out.empty()) {
      ssize_t got = ::pread(fds[tensor.file], out.data(), out.size(),
                            static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR)
        continue;
      if (got <= 0)
        return ioError(paths[tensor.file] + ": cannot read tensor " +
                       tensor.name + ": " +
                       (got == 0 ? "the file ends" : std::strerror(errno)));
      out = out.subspan(static_cast<size_t>(got));
      offset += static_cast<uint64_t>(got);
    }
    return {};
  }

private:
  std::vector<int> fds;
  std::vector<std::string> paths;
};

/// Rows [first, first + rows) of a matrix. Their parts are a piece of each of
/// the matrix' parts, but for the one global scale; `first` is a multiple of
/// stripeRows.
struct Stripe {
  int64_t first, rows;
};

struct Piece {
  uint64_t offset, bytes;
};

std::vector<Piece> pieces(Format format, Stripe stripe, int64_t columns) {
  std::vector<StoragePart> before = storageParts(format, stripe.first, columns);
  std::vector<Piece> out;
  for (const StoragePart &part : storageParts(format, stripe.rows, columns)) {
    bool global = out.size() == 2;
    out.push_back({global ? 0 : before[out.size()].bytes(), part.bytes()});
  }
  return out;
}

/// The buffers of one thread.
struct Scratch {
  Bytes in[3], out[3];
  std::vector<float> values;
};

template <typename Parts>
Parts view(Format format, int64_t rows, int64_t columns, Bytes *buffers) {
  return {format, rows, columns, buffers[0], buffers[1], buffers[2]};
}

/// A part of the work that one thread does at once.
struct Job {
  size_t item;           ///< conversion or copy
  uint64_t begin, count; ///< rows or bytes
};

class Converter {
public:
  Converter(const Layout &layout, SafetensorsWriter &writer,
            runtime::ThreadPool &pool, runtime::Progress &progress,
            const ConvertOptions &options)
      : layout(layout), writer(writer), pool(pool), progress(progress),
        options(options), globals(layout.conversions.size()) {}

  Status run(const Checkpoint &checkpoint) {
    MLA_RETURN_IF_ERROR(files.open(checkpoint));
    for (const Literal &literal : layout.literals)
      MLA_RETURN_IF_ERROR(writer.write(literal.output, 0, literal.bytes));
    MLA_RETURN_IF_ERROR(copyAll());
    std::span<const std::vector<size_t>> groups = layout.groups;
    while (!groups.empty()) {
      size_t count = 0;
      for (uint64_t bytes = 0; count < groups.size() && bytes < batchBytes;
           ++count)
        for (size_t c : groups[count])
          bytes += layout.conversions[c].bytesBefore();
      MLA_RETURN_IF_ERROR(convertBatch(groups.first(count)));
      groups = groups.subspan(count);
    }
    return {};
  }

private:
  /// Calls body(job, scratch) for all jobs, until one fails.
  template <typename Body>
  Status forEach(const std::vector<Job> &jobs, const Body &body) {
    std::mutex mutex;
    Status first;
    std::atomic<bool> stop = false;
    auto fail = [&](Status status) {
      std::lock_guard lock(mutex);
      if (!stop.exchange(true))
        first = std::move(status);
    };
    pool.parallelFor(
        static_cast<int64_t>(jobs.size()), [&](int64_t begin, int64_t end) {
          try {
            Scratch scratch;
            for (int64_t i = begin; i < end && !stop; ++i) {
              if (options.interrupted && *options.interrupted)
                return fail(ioError("interrupted"));
              Status status = body(jobs[static_cast<size_t>(i)], scratch);
              if (!status.ok())
                return fail(std::move(status));
            }
          } catch (const std::exception &e) { // std::bad_alloc
            fail(exhausted(std::string("out of memory: ") + e.what()));
          }
        });
    return first;
  }

  Status copyAll() {
    std::vector<Job> jobs;
    for (size_t i = 0; i < layout.copies.size(); ++i) {
      uint64_t bytes = layout.copies[i].tensor->bytes;
      for (uint64_t at = 0; at < bytes; at += copyBytes)
        jobs.push_back({i, at, std::min(copyBytes, bytes - at)});
    }
    return forEach(jobs, [&](const Job &job, Scratch &scratch) -> Status {
      const Copy &copy = layout.copies[job.item];
      scratch.in[0].resize(job.count);
      MLA_RETURN_IF_ERROR(files.read(*copy.tensor, job.begin, scratch.in[0]));
      progress.add(job.count);
      return writer.write(copy.output, job.begin, scratch.in[0]);
    });
  }

  Status convertBatch(std::span<const std::vector<size_t>> groups) {
    std::vector<Job> all, measured;
    for (const std::vector<size_t> &group : groups)
      for (size_t i : group) {
        const Conversion &c = layout.conversions[i];
        for (int64_t row = 0; row < c.rows; row += stripeRows) {
          int64_t count = std::min(stripeRows, c.rows - row);
          all.push_back(
              {i, static_cast<uint64_t>(row), static_cast<uint64_t>(count)});
          if (c.to == Format::NVFP4)
            measured.push_back(all.back());
        }
      }

    // The global scale of a group comes from the largest magnitude of all its
    // members, before any of them is quantized.
    std::mutex mutex;
    MLA_RETURN_IF_ERROR(
        forEach(measured, [&](const Job &job, Scratch &scratch) -> Status {
          float amax = 0;
          MLA_RETURN_IF_ERROR(readStripe(job, scratch, amax));
          std::lock_guard lock(mutex);
          globals[job.item] = std::max(globals[job.item], amax);
          return {};
        }));
    for (const std::vector<size_t> &group : groups) {
      float amax = 0;
      for (size_t c : group)
        amax = std::max(amax, globals[c]);
      for (size_t c : group)
        globals[c] = quant::nvfp4GlobalScale(amax);
    }

    return forEach(all, [&](const Job &job, Scratch &scratch) -> Status {
      float ignored = 0;
      MLA_RETURN_IF_ERROR(readStripe(job, scratch, ignored));
      return writeStripe(job, scratch);
    });
  }

  /// The f32 values of a stripe, and the largest magnitude among them.
  Status readStripe(const Job &job, Scratch &scratch, float &amax) const {
    const Conversion &c = layout.conversions[job.item];
    Stripe stripe = {static_cast<int64_t>(job.begin),
                     static_cast<int64_t>(job.count)};
    std::vector<Piece> parts = pieces(c.from.format, stripe, c.columns);
    for (size_t p = 0; p < parts.size(); ++p) {
      scratch.in[p].resize(parts[p].bytes);
      MLA_RETURN_IF_ERROR(
          files.read(*c.from.parts[p].tensor, parts[p].offset, scratch.in[p]));
      if (c.from.parts[p].reciprocal) {
        float value = 0;
        std::memcpy(&value, scratch.in[p].data(), sizeof(value));
        value = 1 / value;
        std::memcpy(scratch.in[p].data(), &value, sizeof(value));
      }
    }
    scratch.values.resize(static_cast<size_t>(stripe.rows * c.columns));
    quant::dequantizeRows(view<ConstMatrixParts>(c.from.format, stripe.rows,
                                                 c.columns, scratch.in),
                          0, scratch.values);
    amax = quant::largestMagnitude(scratch.values);
    if (std::isfinite(amax))
      return {};
    return numericError("tensor " + c.tensor + " holds " +
                        (std::isnan(amax) ? "NaN" : "an infinity") +
                        " in rows " + std::to_string(stripe.first) + " to " +
                        std::to_string(stripe.first + stripe.rows - 1));
  }

  Status writeStripe(const Job &job, Scratch &scratch) {
    const Conversion &c = layout.conversions[job.item];
    Stripe stripe = {static_cast<int64_t>(job.begin),
                     static_cast<int64_t>(job.count)};
    std::vector<Piece> parts = pieces(c.to, stripe, c.columns);
    for (size_t p = 0; p < parts.size(); ++p)
      scratch.out[p].resize(parts[p].bytes);
    if (c.to == Format::NVFP4)
      std::memcpy(scratch.out[2].data(), &globals[job.item], sizeof(float));
    quant::quantizeRows(
        scratch.values, 0,
        view<MatrixParts>(c.to, stripe.rows, c.columns, scratch.out),
        options.ue8m0);
    for (size_t p = 0; p < parts.size(); ++p)
      if (p != 2 || stripe.first == 0) // The global scale is written once.
        MLA_RETURN_IF_ERROR(
            writer.write(c.firstOutput + p, parts[p].offset, scratch.out[p]));
    // In proportion, since the parts of stripes round.
    uint64_t bytes = c.bytesBefore();
    auto upTo = [&](int64_t row) {
      return bytes * static_cast<uint64_t>(row) / static_cast<uint64_t>(c.rows);
    };
    progress.add(upTo(stripe.first + stripe.rows) - upTo(stripe.first));
    return {};
  }

  const Layout &layout;
  SafetensorsWriter &writer;
  runtime::ThreadPool &pool;
  runtime::Progress &progress;
  const ConvertOptions &options;
  InputFiles files;
  std::vector<float> globals; ///< of conversions to nvfp4
};
} // namespace

uint64_t bytesToConvert(const Layout &layout) {
  uint64_t sum = 0;
  for (const Conversion &c : layout.conversions)
    sum += c.bytesBefore();
  for (const Copy &copy : layout.copies)
    sum += copy.tensor->bytes;
  return sum;
}

Status convert(const Layout &layout, const Checkpoint &checkpoint,
               SafetensorsWriter &writer, runtime::ThreadPool &pool,
               runtime::Progress &progress, const ConvertOptions &options) {
  return Converter(layout, writer, pool, progress, options).run(checkpoint);
}

} // namespace mla::quantize
