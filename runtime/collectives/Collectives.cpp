//===- Collectives.cpp - sums and moves over all ranks --------------------===//
//
// Part of mla. Where ranks share an address space they read each other's arrays
// in place; else what a rank needs is packed and exchanged.
//
//===----------------------------------------------------------------------===//
#include "runtime/collectives/Collectives.h"
#include <algorithm>
#include <cstring>

namespace mla::collectives {
namespace {

ConstBytes bytesOf(const float *x, int64_t count) {
  return std::as_bytes(std::span(x, static_cast<size_t>(count)));
}
Bytes bytesOf(float *x, int64_t count) {
  return std::as_writable_bytes(std::span(x, static_cast<size_t>(count)));
}
const float *floatsOf(ConstBytes bytes) {
  return reinterpret_cast<const float *>(bytes.data());
}

void copy(float *to, const float *from, int64_t count) {
  if (count > 0 && to != from)
    std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
}

void add(float *__restrict to, const float *__restrict from, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    to[i] += from[i];
}

/// to = the sum of `of` in its order. Goes over blocks that stay in the cache
/// between two summands.
template <typename Of>
void sum(float *to, int64_t count, int ranks, const Of &of) {
  constexpr int64_t block = 2048;
  for (int64_t begin = 0; begin < count; begin += block) {
    int64_t length = std::min(block, count - begin);
    copy(to + begin, of(0) + begin, length);
    for (int rank = 1; rank < ranks; ++rank)
      add(to + begin, of(rank) + begin, length);
  }
}

/// The values of `count` that a rank adds up: the first rest / N of them have
/// one more.
struct Share {
  int64_t begin, count;
};
Share shareOf(int rank, int ranks, int64_t count) {
  int64_t each = count / ranks, rest = count % ranks;
  return {rank * each + std::min<int64_t>(rank, rest),
          each + (rank < rest ? 1 : 0)};
}

std::string named(const char *collective, std::string_view what) {
  std::string text(collective);
  return text.append(" ").append(what);
}

} // namespace

Result<float *> Collectives::scratchFor(int64_t count, std::string_view what) {
  auto bytes = static_cast<uint64_t>(count) * sizeof(float);
  if (scratch.bytes().size() < bytes) {
    auto memory = runtime::HostMemory::allocate(bytes, std::string(what));
    if (!memory.ok()) {
      transport.abort(memory.status());
      return transport.status();
    }
    scratch = *std::move(memory);
  }
  return reinterpret_cast<float *>(scratch.bytes().data());
}

Status Collectives::allReduce(const float *x, float *y, int64_t count,
                              std::string_view what) {
  std::string text = named("all-reduce", what);
  if (size() == 1) {
    copy(y, x, count);
    return transport.status();
  }
  int64_t received = (size() - 1) * count * static_cast<int64_t>(sizeof(float));
  if (received > oneShot)
    return allReduceInTwo(x, y, count, text);
  // Other ranks may read x while this one adds up.
  MLA_ASSIGN_OR_RETURN(float *sums,
                       x == y ? scratchFor(count, text) : Result<float *>(y));
  MLA_RETURN_IF_ERROR(transport.share(
      bytesOf(x, count),
      [&](std::span<const ConstBytes> all) {
        sum(sums, count, size(),
            [&](int rank) { return floatsOf(all[static_cast<size_t>(rank)]); });
      },
      text));
  if (x == y)
    copy(y, sums, count);
  return {};
}

Status Collectives::allReduceInTwo(const float *x, float *y, int64_t count,
                                   std::string_view text) {
  auto ranks = static_cast<size_t>(size());
  Share own = shareOf(rank(), size(), count);
  std::vector<ConstBytes> send(ranks);
  std::vector<Bytes> receive(ranks);

  if (transport.sharesMemory()) {
    MLA_ASSIGN_OR_RETURN(float *sums, x == y ? scratchFor(own.count, text)
                                             : Result<float *>(y + own.begin));
    MLA_RETURN_IF_ERROR(transport.share(
        bytesOf(x, count),
        [&](std::span<const ConstBytes> all) {
          sum(sums, own.count, size(), [&](int rank) {
            return floatsOf(all[static_cast<size_t>(rank)]) + own.begin;
          });
        },
        text));
    if (x == y)
      copy(y + own.begin, sums, own.count);
  } else {
    MLA_ASSIGN_OR_RETURN(float *parts,
                         scratchFor(own.count * (size() - 1), text));
    std::vector<const float *> summands(ranks);
    for (int i = 0, place = 0; i < size(); ++i) {
      auto at = static_cast<size_t>(i);
      if (i == rank()) {
        summands[at] = x + own.begin;
        continue;
      }
      Share share = shareOf(i, size(), count);
      send[at] = bytesOf(x + share.begin, share.count);
      float *part = parts + own.count * place++;
      receive[at] = bytesOf(part, own.count);
      summands[at] = part;
    }
    MLA_RETURN_IF_ERROR(transport.exchange(send, receive, text));
    // In place the own values would be overwritten before their turn; those of
    // rank 0 are what a sum begins with.
    float *sums = x == y && rank() != 0 ? parts : y + own.begin;
    sum(sums, own.count, size(),
        [&](int rank) { return summands[static_cast<size_t>(rank)]; });
    if (sums != y + own.begin)
      copy(y + own.begin, sums, own.count);
  }

  for (int i = 0; i < size(); ++i) {
    auto at = static_cast<size_t>(i);
    Share share = shareOf(i, size(), count);
    send[at] = i == rank() ? ConstBytes() : bytesOf(y + own.begin, own.count);
    receive[at] = i == rank() ? Bytes() : bytesOf(y + share.begin, share.count);
  }
  return transport.exchange(send, receive, text);
}

Status Collectives::allGather(const float *x, float *y, int64_t rows,
                              int64_t columns, std::string_view what) {
  int64_t width = columns * size();
  return transport.share(
      bytesOf(x, rows * columns),
      [&](std::span<const ConstBytes> all) {
        for (int rank = 0; rank < size(); ++rank)
          for (int64_t row = 0; row < rows; ++row)
            copy(y + row * width + rank * columns,
                 floatsOf(all[static_cast<size_t>(rank)]) + row * columns,
                 columns);
      },
      named("all-gather", what));
}

float *Collectives::pack(float *to, const float *x, int64_t rows,
                         int64_t columns) const {
  int64_t width = columns * size();
  for (int rank = 0; rank < size(); ++rank)
    for (int64_t row = 0; row < rows; ++row)
      copy(to + (rank * rows + row) * columns, x + row * width + rank * columns,
           columns);
  return to;
}

Status Collectives::exchangeParts(const float *from, float *to, int64_t count,
                                  std::string_view text) {
  auto ranks = static_cast<size_t>(size());
  std::vector<ConstBytes> send(ranks);
  std::vector<Bytes> receive(ranks);
  for (size_t i = 0; i < ranks; ++i) {
    auto place = static_cast<int64_t>(i) * count;
    send[i] = bytesOf(from + place, count);
    receive[i] = bytesOf(to + place, count);
  }
  return transport.exchange(send, receive, text);
}

Status Collectives::reduceScatter(const float *x, float *y, int64_t rows,
                                  int64_t columns, std::string_view what) {
  std::string text = named("reduce-scatter", what);
  int64_t width = columns * size(), count = rows * columns;
  if (transport.sharesMemory())
    return transport.share(
        bytesOf(x, rows * width),
        [&](std::span<const ConstBytes> all) {
          for (int64_t row = 0; row < rows; ++row)
            sum(y + row * columns, columns, size(), [&](int of) {
              return floatsOf(all[static_cast<size_t>(of)]) + row * width +
                     rank() * columns;
            });
        },
        text);
  // What is sent, then what is received.
  MLA_ASSIGN_OR_RETURN(float *packed, scratchFor(2 * rows * width, text));
  float *parts = pack(packed, x, rows, columns) + rows * width;
  MLA_RETURN_IF_ERROR(exchangeParts(packed, parts, count, text));
  sum(y, count, size(), [&](int of) { return parts + of * count; });
  return {};
}

Status Collectives::allToAll(const float *x, float *y, int64_t rows,
                             int64_t columns, std::string_view what) {
  std::string text = named("all-to-all", what);
  int64_t width = columns * size(), count = rows * columns;
  if (transport.sharesMemory())
    return transport.share(
        bytesOf(x, rows * width),
        [&](std::span<const ConstBytes> all) {
          for (int of = 0; of < size(); ++of)
            for (int64_t row = 0; row < rows; ++row)
              copy(y + of * count + row * columns,
                   floatsOf(all[static_cast<size_t>(of)]) + row * width +
                       rank() * columns,
                   columns);
        },
        text);
  MLA_ASSIGN_OR_RETURN(float *packed, scratchFor(rows * width, text));
  pack(packed, x, rows, columns);
  return exchangeParts(packed, y, count, text);
}

Status Collectives::broadcast(Bytes bytes, int root, std::string_view what) {
  std::string text = named("broadcast", what);
  if (root < 0 || root >= size()) {
    transport.abort(invalid("there is no rank " + std::to_string(root) +
                            " of " + std::to_string(size()) + " for " + text));
    return transport.status();
  }
  std::vector<ConstBytes> send(static_cast<size_t>(size()));
  std::vector<Bytes> receive(send.size());
  auto from = static_cast<size_t>(root), own = static_cast<size_t>(rank());
  if (root == rank())
    std::fill(send.begin(), send.end(), bytes);
  else
    receive[from] = bytes;
  send[own] = {};
  return transport.exchange(send, receive, text);
}

Status Collectives::allGatherBytes(ConstBytes mine, Bytes all,
                                   std::string_view what) {
  std::string text = named("all-gather", what);
  std::vector<ConstBytes> send(static_cast<size_t>(size()), mine);
  std::vector<Bytes> receive(send.size());
  if (all.size() != mine.size() * send.size()) {
    transport.abort(invalid("bytes of " + std::to_string(size()) +
                            " ranks with " + std::to_string(mine.size()) +
                            " each do not fit into " +
                            std::to_string(all.size()) + ", for " + text));
    return transport.status();
  }
  for (size_t i = 0; i < receive.size(); ++i)
    receive[i] = all.subspan(i * mine.size(), mine.size());
  return transport.exchange(send, receive, text);
}

Status Collectives::barrier(std::string_view what) {
  std::vector<ConstBytes> send(static_cast<size_t>(size()));
  std::vector<Bytes> receive(send.size());
  return transport.exchange(send, receive, named("barrier", what));
}

} // namespace mla::collectives
