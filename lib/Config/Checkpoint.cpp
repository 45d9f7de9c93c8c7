//===- Checkpoint.cpp - the shards of a model folder ----------------------===//
//
// Part of mla. Faults of all shards are collected, so that a user who has to
// download files again learns of all of them at once.
//
//===----------------------------------------------------------------------===//
#include "mla/Config/Checkpoint.h"
#include "mla/Support/Json.h"
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fcntl.h>
#include <set>
#include <sys/stat.h>
#include <unistd.h>

namespace mla {
namespace fs = std::filesystem;

/// Collects messages, one a line, up to a number that fits a terminal.
class Checkpoint::Faults {
public:
  void add(std::string message) { list.push_back(std::move(message)); }
  void add(const Faults &other) {
    list.insert(list.end(), other.list.begin(), other.list.end());
  }
  bool any() const { return !list.empty(); }
  Status status() const {
    if (list.empty())
      return {};
    constexpr size_t shown = 32;
    std::string text;
    for (size_t i = 0; i < std::min(shown, list.size()); ++i)
      text += (i ? "\n" : "") + list[i];
    if (list.size() > shown)
      text += "\n(and " + std::to_string(list.size() - shown) + " more)";
    return invalid(std::move(text));
  }

private:
  std::vector<std::string> list;
};

namespace {
/// The limit of the safetensors library. A length above it is garbage.
constexpr uint64_t maxHeaderBytes = 100'000'000;
constexpr const char *indexName = "model.safetensors.index.json";

class FileDescriptor {
public:
  explicit FileDescriptor(const fs::path &path)
      : fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  FileDescriptor(const FileDescriptor &) = delete;
  ~FileDescriptor() {
    if (fd >= 0)
      ::close(fd);
  }
  const int fd;
};

Status readAt(int fd, char *to, size_t bytes, uint64_t offset,
              const std::string &name) {
  while (bytes > 0) {
    ssize_t got = ::pread(fd, to, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR)
      continue;
    if (got < 0)
      return ioError(name + ": cannot be read: " + std::strerror(errno));
    if (got == 0)
      return ioError(name + ": ended while it was read");
    to += got;
    bytes -= static_cast<size_t>(got);
    offset += static_cast<uint64_t>(got);
  }
  return {};
}

/// Reads the header of one shard. `name` is the path, for messages.
Result<std::vector<TensorInfo>> readShard(const fs::path &path,
                                          CheckpointFile &shard) {
  std::string name = path.string();
  FileDescriptor file(path);
  struct stat info = {};
  if (file.fd < 0 || ::fstat(file.fd, &info) != 0)
    return ioError(name + ": cannot be opened: " + std::strerror(errno));
  if (!S_ISREG(info.st_mode))
    return invalid(name + ": expected a file, found something else");
  shard.size = static_cast<uint64_t>(info.st_size);
  if (shard.size < 8)
    return invalid(name + ": expected a safetensors file, found " +
                   std::to_string(shard.size) + " bytes");
  unsigned char prefix[8];
  MLA_RETURN_IF_ERROR(
      readAt(file.fd, reinterpret_cast<char *>(prefix), 8, 0, name));
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i)
    length = length << 8 | prefix[i];
  if (length > maxHeaderBytes)
    return invalid(name + ": expected a header of at most " +
                   std::to_string(maxHeaderBytes) + " bytes, found " +
                   std::to_string(length) + " (no safetensors file?)");
  if (length > shard.size - 8)
    return invalid(name + ": expected a header of " + std::to_string(length) +
                   " bytes, found a file of " + std::to_string(shard.size) +
                   " (cut off?)");
  shard.headerBytes = 8 + length;
  std::string header(shard.headerBytes, '\0');
  MLA_RETURN_IF_ERROR(readAt(file.fd, header.data(), header.size(), 0, name));
  shard.headerHash = fnv1a64(header);
  return parseSafetensorsHeader(std::string_view(header).substr(8),
                                shard.headerBytes, shard.size, name);
}

/// The names of all *.safetensors entries, sorted.
Result<std::vector<std::string>> listShards(const fs::path &folder) {
  std::vector<std::string> names;
  std::error_code ec;
  fs::directory_iterator it(folder, ec), end;
  for (; !ec && it != end; it.increment(ec))
    if (it->path().extension() == ".safetensors")
      names.push_back(it->path().filename().string());
  if (ec == std::errc::no_such_file_or_directory)
    return notFound(folder.string() + ": no such folder");
  if (ec)
    return ioError(folder.string() + ": " + ec.message());
  std::sort(names.begin(), names.end());
  return names;
}

/// "model-00002-of-00163.safetensors": what stands around the number.
struct SeriesName {
  std::string before, after; ///< "model-", "-of-00163.safetensors"
  size_t number = 0, total = 0, digits = 0;
};

std::optional<SeriesName> parseSeries(const std::string &name) {
  size_t of = name.rfind("-of-");
  size_t dot = name.rfind(".safetensors");
  if (of == std::string::npos || dot == std::string::npos || dot < of + 5)
    return std::nullopt;
  size_t dash = of == 0 ? std::string::npos : name.rfind('-', of - 1);
  size_t first = dash == std::string::npos ? 0 : dash + 1;
  SeriesName out;
  auto number = [&](size_t from, size_t to, size_t &value) {
    auto r = std::from_chars(name.data() + from, name.data() + to, value);
    return to > from && r.ec == std::errc() && r.ptr == name.data() + to;
  };
  if (!number(first, of, out.number) || !number(of + 4, dot, out.total) ||
      out.total > 100'000)
    return std::nullopt;
  out.before = name.substr(0, first);
  out.after = name.substr(of);
  out.digits = of - first;
  return out;
}

/// A folder without an index still says how many shards it should have.
void findGapsInSeries(const std::vector<std::string> &names,
                      std::set<std::string> &missing) {
  std::set<std::string> have(names.begin(), names.end()), done;
  for (const std::string &name : names) {
    std::optional<SeriesName> series = parseSeries(name);
    if (!series || !done.insert(series->before + series->after).second)
      continue;
    for (size_t i = 1; i <= series->total; ++i) {
      std::string digits = std::to_string(i);
      if (digits.size() < series->digits)
        digits.insert(0, series->digits - digits.size(), '0');
      std::string expected = series->before + digits + series->after;
      if (!have.count(expected))
        missing.insert(expected);
    }
  }
}

} // namespace

int64_t Checkpoint::layerOf(std::string_view name) {
  constexpr std::string_view prefix = "model.layers.";
  int64_t layer = -1;
  if (name.starts_with(prefix))
    std::from_chars(name.data() + prefix.size(), name.data() + name.size(),
                    layer);
  return layer;
}

std::string_view Checkpoint::textName(std::string_view name) {
  constexpr std::string_view prefix = "language_model.";
  if (name.starts_with(prefix))
    name.remove_prefix(prefix.size());
  return name;
}

/// Compares weight_map of the index, tensor by tensor, with what was found.
/// What it says must be true, though it need not say everything.
Status Checkpoint::checkIndex(std::set<std::string> &missing,
                              Faults &faults) const {
  fs::path path = root / indexName;
  std::error_code ec;
  if (!fs::exists(path, ec))
    return {};
  MLA_ASSIGN_OR_RETURN(std::string text, readFile(path));
  auto visit = [&](const std::string &tensor, const JsonValue &value) {
    std::string name = value.string();
    // Also keeps the loader inside the folder.
    if (value.isString() && (name.find('/') != std::string::npos ||
                             !name.ends_with(".safetensors")))
      value.fail("the name of a .safetensors file in the same folder");
    const TensorInfo *found = find(textName(tensor));
    if (found && shards[found->file].name == name)
      return;
    if (!fs::exists(root / name, ec))
      missing.insert(name);
    else
      faults.add(path.string() + ": expected tensor " + tensor + " in " + name +
                 ", found it " +
                 (found ? "in " + shards[found->file].name : "nowhere"));
  };
  MLA_ASSIGN_OR_RETURN(
      std::unique_ptr<JsonDocument> document,
      JsonDocument::parseMembers(text, path.string(), "weight_map", visit));
  document->root()["weight_map"].members(); // Records if it is no object.
  return document->status();
}

/// Reads the headers of the shards `names`.
void Checkpoint::readShards(const std::vector<std::string> &names,
                            Faults &faults) {
  for (const std::string &name : names) {
    CheckpointFile shard;
    shard.name = name;
    Result<std::vector<TensorInfo>> tensors = readShard(root / name, shard);
    if (!tensors.ok()) {
      faults.add(tensors.status().message());
      continue;
    }
    uint32_t file = static_cast<uint32_t>(shards.size());
    shards.push_back(std::move(shard));
    for (TensorInfo &tensor : *tensors) {
      tensor.file = file;
      all.push_back(std::move(tensor));
    }
  }
  byName.reserve(all.size());
  for (const TensorInfo &tensor : all) {
    auto [at, fresh] = byName.emplace(textName(tensor.name), &tensor);
    if (fresh)
      continue;
    const TensorInfo &other = *at->second;
    faults.add(root.string() + ": tensor " + tensor.name + " of " +
               shards[tensor.file].name + " is also in " +
               shards[other.file].name +
               (other.name == tensor.name ? "" : " as " + other.name));
  }
}

Result<Checkpoint> Checkpoint::open(const fs::path &folder) {
  Checkpoint out;
  out.root = folder;
  MLA_ASSIGN_OR_RETURN(std::vector<std::string> names, listShards(folder));
  Faults broken, misplaced;
  out.readShards(names, broken);
  std::set<std::string> missing;
  MLA_RETURN_IF_ERROR(out.checkIndex(missing, misplaced));
  findGapsInSeries(names, missing);

  Faults faults;
  if (!missing.empty()) {
    std::string list;
    for (const std::string &name : missing)
      list += (list.empty() ? "" : ", ") + name;
    faults.add(folder.string() + ": " + std::to_string(missing.size()) +
               (missing.size() == 1 ? " shard is missing: "
                                    : " shards are missing: ") +
               list);
  } else if (names.empty()) {
    return notFound(folder.string() + ": no *.safetensors file");
  }
  faults.add(broken);
  // If a shard could not be read, that is the fault to report.
  if (!faults.any())
    faults.add(misplaced);
  MLA_RETURN_IF_ERROR(faults.status());
  return out;
}

Result<std::string> Checkpoint::read(const TensorInfo &tensor) const {
  constexpr uint64_t most = uint64_t(1) << 20;
  fs::path path = root / shards[tensor.file].name;
  if (tensor.bytes > most)
    return invalid(path.string() + ": " + tensor.name + ": expected at most " +
                   std::to_string(most) + " bytes to read, found " +
                   std::to_string(tensor.bytes));
  FileDescriptor file(path);
  if (file.fd < 0)
    return ioError(path.string() +
                   ": cannot be opened: " + std::strerror(errno));
  std::string bytes(tensor.bytes, '\0');
  MLA_RETURN_IF_ERROR(readAt(file.fd, bytes.data(), bytes.size(), tensor.offset,
                             path.string()));
  return bytes;
}

const TensorInfo *Checkpoint::find(std::string_view name) const {
  auto at = byName.find(name);
  return at == byName.end() ? nullptr : at->second;
}

} // namespace mla
