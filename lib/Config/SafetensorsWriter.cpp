//===- SafetensorsWriter.cpp - writes tensors in bounded memory -----------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "mla/Config/SafetensorsWriter.h"
#include "mla/Config/Checkpoint.h"
#include "mla/Support/OutputFolder.h"
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>
#include <unistd.h>
#include <unordered_set>

namespace mla {
namespace fs = std::filesystem;
using nlohmann::ordered_json;

static Status cannotWrite(const fs::path &path) {
  return ioError("cannot write " + path.string() + ": " +
                 std::strerror(errno ? errno : EIO));
}

/// Names are valid UTF-8 in any file that was read; another byte is replaced
/// rather than thrown about.
static std::string print(const ordered_json &json, int indent = -1) {
  return json.dump(indent, ' ', false, ordered_json::error_handler_t::replace);
}

uint64_t TensorSpec::bytes() const {
  uint64_t out = safetensorsElementBytes(dtype);
  for (int64_t dim : shape)
    out *= static_cast<uint64_t>(dim);
  return out;
}

//===----------------------------------------------------------------------===//
// One file
//===----------------------------------------------------------------------===//

struct SafetensorsFile::State {
  std::mutex opening;
  std::atomic<int> fd{-1};
  std::atomic<uint64_t> left{0}; ///< bytes of tensors not yet written
};

SafetensorsFile::SafetensorsFile(fs::path path,
                                 std::span<const TensorSpec> tensors)
    : path(std::move(path)), starts(tensors.size()), sizes(tensors.size()),
      state(std::make_unique<State>()) {
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t(0));
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return safetensorsElementBytes(tensors[a].dtype) >
           safetensorsElementBytes(tensors[b].dtype);
  });

  // "format" is what loaders of the transformers library insist on.
  ordered_json json = {{"__metadata__", {{"format", "pt"}}}};
  uint64_t offset = 0;
  for (size_t i : order) {
    const TensorSpec &tensor = tensors[i];
    starts[i] = offset;
    sizes[i] = tensor.bytes();
    json[tensor.name] = {{"dtype", tensor.dtype},
                         {"shape", tensor.shape},
                         {"data_offsets", {offset, offset + sizes[i]}}};
    offset += sizes[i];
  }
  state->left = offset;
  std::string text = print(json);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  for (int i = 0; i < 8; ++i) // The length, little-endian.
    header += static_cast<char>(text.size() >> (8 * i) & 0xFF);
  header += text;
  for (uint64_t &start : starts)
    start += header.size();
  end = header.size() + offset;
}

SafetensorsFile::~SafetensorsFile() {
  if (int fd = state->fd.exchange(-1); fd >= 0)
    ::close(fd);
}

static Status writeAt(int fd, std::span<const std::byte> bytes, uint64_t offset,
                      const fs::path &path) {
  while (!bytes.empty()) {
    ssize_t wrote =
        ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (wrote < 0 && errno == EINTR)
      continue;
    if (wrote <= 0)
      return cannotWrite(path);
    bytes = bytes.subspan(static_cast<size_t>(wrote));
    offset += static_cast<uint64_t>(wrote);
  }
  return {};
}

Status SafetensorsFile::open() {
  std::lock_guard lock(state->opening);
  if (state->fd >= 0)
    return {};
  errno = 0;
  int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0)
    return cannotWrite(path);
  // A full disk is found here and not after hours. File systems that cannot
  // reserve space find it later.
  Status status;
  if (::fallocate(fd, 0, 0, static_cast<off_t>(end)) != 0 &&
      (errno == ENOSPC || errno == EFBIG))
    status = cannotWrite(path);
  else
    status = writeAt(fd, std::as_bytes(std::span(header)), 0, path);
  if (status.ok())
    state->fd = fd;
  else
    ::close(fd);
  return status;
}

Status SafetensorsFile::write(size_t tensor, uint64_t offset,
                              std::span<const std::byte> bytes) {
  if (offset > sizes[tensor] || bytes.size() > sizes[tensor] - offset)
    return invalid(
        path.string() + ": expected at most " + std::to_string(sizes[tensor]) +
        " bytes for a tensor, found " + std::to_string(offset + bytes.size()));
  if (bytes.empty())
    return {};
  if (state->fd < 0)
    MLA_RETURN_IF_ERROR(open());
  MLA_RETURN_IF_ERROR(writeAt(state->fd, bytes, starts[tensor] + offset, path));
  if (state->left.fetch_sub(bytes.size()) == bytes.size()) {
    errno = 0;
    if (::close(state->fd.exchange(-1)) != 0)
      return cannotWrite(path);
  }
  return {};
}

Status SafetensorsFile::finish() {
  if (end == header.size()) { // No tensor has a byte, so nothing was written.
    MLA_RETURN_IF_ERROR(open());
    ::close(state->fd.exchange(-1));
  }
  if (uint64_t left = state->left; left != 0)
    return internalError(path.string() + ": " + std::to_string(left) +
                         " bytes were not written");
  return {};
}

//===----------------------------------------------------------------------===//
// Shards
//===----------------------------------------------------------------------===//

static std::string shardName(size_t shard, size_t shards) {
  if (shards == 1)
    return "model.safetensors";
  char name[64];
  std::snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors",
                shard + 1, shards);
  return name;
}

Result<SafetensorsWriter>
SafetensorsWriter::create(const fs::path &folder,
                          std::vector<TensorSpec> tensors,
                          uint64_t shardBytes) {
  std::unordered_set<std::string_view> seen;
  for (const TensorSpec &tensor : tensors) {
    if (safetensorsElementBytes(tensor.dtype) == 0)
      return invalid("tensor " + tensor.name + ": unknown dtype " +
                     tensor.dtype);
    if (!seen.insert(tensor.name).second)
      return invalid("tensor " + tensor.name + " would be written twice");
  }

  SafetensorsWriter out;
  out.folder = folder;
  std::vector<size_t> firsts; // tensors that begin a shard
  uint64_t filled = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    uint64_t bytes = tensors[i].bytes();
    if (firsts.empty() || (filled != 0 && filled + bytes > shardBytes)) {
      firsts.push_back(i);
      filled = 0;
    }
    out.places.push_back({firsts.size() - 1, i - firsts.back()});
    filled += bytes;
  }
  if (firsts.empty())
    firsts.push_back(0);
  for (size_t f = 0; f < firsts.size(); ++f) {
    size_t next = f + 1 < firsts.size() ? firsts[f + 1] : tensors.size();
    out.names.push_back(shardName(f, firsts.size()));
    out.files.push_back(std::make_unique<SafetensorsFile>(
        folder / out.names.back(),
        std::span(tensors).subspan(firsts[f], next - firsts[f])));
  }
  out.specs = std::move(tensors);
  return out;
}

uint64_t SafetensorsWriter::totalBytes() const {
  uint64_t sum = 0;
  for (const auto &file : files)
    sum += file->size();
  return sum;
}

Status SafetensorsWriter::write(size_t tensor, uint64_t offset,
                                std::span<const std::byte> bytes) {
  auto [file, index] = places[tensor];
  return files[file]->write(index, offset, bytes);
}

Status SafetensorsWriter::finish() {
  for (const auto &file : files)
    MLA_RETURN_IF_ERROR(file->finish());
  uint64_t total = 0;
  auto map = ordered_json::object();
  for (size_t i = 0; i < specs.size(); ++i) {
    total += specs[i].bytes();
    map[specs[i].name] = names[places[i].file];
  }
  ordered_json index = {{"metadata", {{"total_size", total}}},
                        {"weight_map", std::move(map)}};
  return writeFileAtomically(folder / "model.safetensors.index.json",
                             print(index, 2) + "\n");
}

} // namespace mla
