//===- PackFile.h - arranged weights in a file ------------------*- C++ -*-===//
//
// Part of mla. The block of arranged weights as it is in device memory, so that
// the next start only maps and uploads it. Little endian:
//
//   0     "mla pack"
//   8     u64 version, 1
//   16    u64 fingerprint (arrangementFingerprint)
//   24    u64 bytes of the block
//   4096  the block
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_WEIGHTS_PACKFILE_H
#define MLA_RUNTIME_WEIGHTS_PACKFILE_H

#include "mla/Support/Status.h"
#include "runtime/base/Memory.h"
#include <filesystem>
#include <memory>
#include <span>

namespace mla::runtime {

class PackFile {
public:
  /// Invalid if it is no such file, is cut off, or was made of another
  /// checkpoint or for another arrangement.
  static Result<PackFile> open(const std::filesystem::path &path,
                               uint64_t fingerprint, uint64_t bytes);
  std::span<const std::byte> block() const;

private:
  explicit PackFile(MappedFile file) : file(std::move(file)) {}
  MappedFile file;
};

/// Writes one beside its place, where finish() puts it. Without finish() nothing
/// is left.
class PackWriter {
public:
  static Result<std::unique_ptr<PackWriter>>
  create(const std::filesystem::path &path, uint64_t fingerprint,
         uint64_t bytes);
  ~PackWriter();
  PackWriter(const PackWriter &) = delete;
  PackWriter &operator=(const PackWriter &) = delete;

  /// At `offset` of the block.
  Status write(uint64_t offset, std::span<const std::byte> bytes);
  Status finish();

private:
  PackWriter(std::filesystem::path path, std::filesystem::path draft, int fd)
      : path(std::move(path)), draft(std::move(draft)), fd(fd) {}
  Status writeAt(uint64_t place, std::span<const std::byte> bytes);
  Status failed(const char *what) const;

  const std::filesystem::path path, draft;
  int fd;
};

} // namespace mla::runtime

#endif // MLA_RUNTIME_WEIGHTS_PACKFILE_H
