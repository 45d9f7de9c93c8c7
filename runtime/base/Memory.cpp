//===- Memory.cpp - pages from the operating system -----------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/base/Memory.h"
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace mla::runtime {
namespace {

constexpr uint64_t hugePage = uint64_t(2) << 20;

std::string lastError() { return std::strerror(errno); }

} // namespace

Result<MappedFile> MappedFile::open(const std::filesystem::path &path) {
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    if (errno == ENOENT || errno == ENOTDIR)
      return notFound(path.string() + ": no such file");
    return ioError(path.string() + ": cannot open: " + lastError());
  }
  struct stat info = {};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(fd);
    return ioError(path.string() + ": not a regular file");
  }
  auto size = static_cast<uint64_t>(info.st_size);
  if (size == 0) {
    close(fd);
    return MappedFile({});
  }
  void *address = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  std::string why = address == MAP_FAILED ? lastError() : "";
  close(fd);
  if (address == MAP_FAILED)
    return ioError(path.string() + ": cannot map " + formatBytes(size) + ": " +
                   why);
  return MappedFile({static_cast<const std::byte *>(address), size});
}

MappedFile::~MappedFile() {
  if (!view.empty())
    munmap(const_cast<std::byte *>(view.data()), view.size());
}

Result<HostMemory> HostMemory::allocate(uint64_t bytes,
                                        const std::string &what) {
  if (bytes == 0)
    return HostMemory();
  // NORESERVE: a cache is reserved for its capacity and used as far as needed.
  void *address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED)
    return exhausted("cannot allocate " + formatBytes(bytes) + " for " + what +
                     ": " + lastError());
  if (bytes >= hugePage)
    madvise(address, bytes, MADV_HUGEPAGE); // Advice: failing is no error.
  return HostMemory({static_cast<std::byte *>(address), bytes});
}

HostMemory::~HostMemory() {
  if (!view.empty())
    munmap(view.data(), view.size());
}

uint64_t physicalMemory() {
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
         static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

uint64_t availableMemory() {
  return static_cast<uint64_t>(sysconf(_SC_AVPHYS_PAGES)) *
         static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

std::string formatBytes(uint64_t bytes) {
  static constexpr std::array units = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < units.size()) {
    value /= 1024;
    ++unit;
  }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.1f %s",
                value, units[unit]);
  return text.data();
}

} // namespace mla::runtime
