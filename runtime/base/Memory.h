//===- Memory.h - pages from the operating system ---------------*- C++ -*-===//
//
// Part of mla. Two owners of address space: a file mapped read-only, and
// anonymous memory. Both release what they hold in the destructor.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_BASE_MEMORY_H
#define MLA_RUNTIME_BASE_MEMORY_H

#include "mla/Support/Status.h"
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace mla::runtime {

/// A whole file, read-only. Pages are read when they are first touched. The
/// file must not be truncated while it is mapped: the system answers a read
/// beyond its end with SIGBUS.
class MappedFile {
public:
  /// NotFound or Io, naming `path`.
  static Result<MappedFile> open(const std::filesystem::path &path);
  MappedFile(MappedFile &&other) noexcept
      : view(std::exchange(other.view, {})) {}
  MappedFile &operator=(MappedFile &&other) noexcept {
    std::swap(view, other.view);
    return *this;
  }
  ~MappedFile();

  std::span<const std::byte> bytes() const { return view; }
  std::string_view text() const {
    return {reinterpret_cast<const char *>(view.data()), view.size()};
  }

private:
  explicit MappedFile(std::span<const std::byte> view) : view(view) {}
  std::span<const std::byte> view;
};

/// Zero-filled memory, aligned to a page at least; pages exist once touched.
/// Large blocks ask for huge pages.
class HostMemory {
public:
  HostMemory() = default;
  /// Exhausted, with `what` and the number of bytes.
  static Result<HostMemory> allocate(uint64_t bytes, const std::string &what);
  HostMemory(HostMemory &&other) noexcept
      : view(std::exchange(other.view, {})) {}
  HostMemory &operator=(HostMemory &&other) noexcept {
    std::swap(view, other.view);
    return *this;
  }
  ~HostMemory();

  std::span<std::byte> bytes() const { return view; }

private:
  explicit HostMemory(std::span<std::byte> view) : view(view) {}
  std::span<std::byte> view;
};

/// Bytes of the machine's physical memory.
uint64_t physicalMemory();
/// Bytes of it that nothing uses.
uint64_t availableMemory();

/// "1.5 GiB", "640 B": for messages.
std::string formatBytes(uint64_t bytes);

} // namespace mla::runtime

#endif // MLA_RUNTIME_BASE_MEMORY_H
