//===- PackFile.cpp - arranged weights in a file --------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/weights/PackFile.h"
#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

namespace mla::runtime {
namespace {
constexpr uint64_t blockOffset = 4096, version = 1;

struct Header {
  std::array<char, 8> magic = {'m', 'l', 'a', ' ', 'p', 'a', 'c', 'k'};
  uint64_t formatVersion = version;
  uint64_t fingerprint = 0;
  uint64_t bytes = 0;
};
static_assert(sizeof(Header) == 32);
} // namespace

Result<PackFile> PackFile::open(const std::filesystem::path &path,
                                uint64_t fingerprint, uint64_t bytes) {
  MLA_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path));
  Header header;
  std::span<const std::byte> all = file.bytes();
  if (all.size() >= sizeof header)
    std::memcpy(&header, all.data(), sizeof header);
  if (all.size() < blockOffset || header.magic != Header().magic)
    return invalid(path.string() + ": expected a file of packed weights, found "
                                   "another");
  if (header.formatVersion != version)
    return unsupported(path.string() + ": expected packed weights of version " +
                       std::to_string(version) + ", found " +
                       std::to_string(header.formatVersion) +
                       "; remove the file");
  if (header.fingerprint != fingerprint || header.bytes != bytes)
    return invalid(path.string() +
                   ": expected the packed weights of this plan and its "
                   "checkpoint, found those of another; remove the file");
  if (all.size() != blockOffset + bytes)
    return invalid(path.string() + ": expected " +
                   std::to_string(blockOffset + bytes) + " bytes, found " +
                   std::to_string(all.size()) + "; remove the file");
  return PackFile(std::move(file));
}

std::span<const std::byte> PackFile::block() const {
  return file.bytes().subspan(blockOffset);
}

Result<std::unique_ptr<PackWriter>>
PackWriter::create(const std::filesystem::path &path, uint64_t fingerprint,
                   uint64_t bytes) {
  std::filesystem::path draft = path;
  draft += ".part";
  int fd = ::open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0)
    return ioError(draft.string() + ": cannot be made: " +
                   std::strerror(errno));
  std::unique_ptr<PackWriter> writer(new PackWriter(path, draft, fd));
  // The size at once: a disk that is too small says so before the work.
  if (int error = posix_fallocate(
          fd, 0, static_cast<off_t>(blockOffset + bytes)))
    return ioError(path.string() + ": cannot be made " +
                   formatBytes(blockOffset + bytes) +
                   " long: " + std::strerror(error));
  Header header;
  header.fingerprint = fingerprint;
  header.bytes = bytes;
  MLA_RETURN_IF_ERROR(
      writer->writeAt(0, std::as_bytes(std::span(&header, 1))));
  return writer;
}

PackWriter::~PackWriter() {
  if (fd < 0)
    return;
  ::close(fd);
  ::unlink(draft.c_str());
}

Status PackWriter::failed(const char *what) const {
  return ioError(path.string() + ": cannot be " + what + ": " +
                 std::strerror(errno));
}

Status PackWriter::writeAt(uint64_t place, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    ssize_t n = ::pwrite(fd, bytes.data(), bytes.size(),
                         static_cast<off_t>(place));
    if (n < 0 && errno == EINTR)
      continue;
    if (n <= 0)
      return failed("written");
    place += static_cast<uint64_t>(n);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return {};
}

Status PackWriter::write(uint64_t offset, std::span<const std::byte> bytes) {
  return writeAt(blockOffset + offset, bytes);
}

Status PackWriter::finish() {
  int closing = fd;
  fd = -1;
  Status status;
  if (::close(closing) != 0)
    status = failed("written");
  else if (::rename(draft.c_str(), path.c_str()) != 0)
    status = failed("put in its place");
  if (!status.ok())
    ::unlink(draft.c_str());
  return status;
}

} // namespace mla::runtime
