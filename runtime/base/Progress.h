//===- Progress.h - a bar for what takes long -------------------*- C++ -*-===//
//
// Part of mla. One line on stderr, redrawn in place, if stderr is a terminal;
// nothing otherwise, so that logs stay clean.
//
// Threads: add() may be called from any; the drawing is done by whoever finds
// that a tenth of a second has passed.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_BASE_PROGRESS_H
#define MLA_RUNTIME_BASE_PROGRESS_H

#include <atomic>
#include <cstdint>
#include <string>

namespace mla::runtime {

class Progress {
public:
  /// Does nothing at all unless `wanted` and stderr is a terminal.
  Progress(std::string title, uint64_t totalBytes, bool wanted);
  ~Progress(); ///< Clears the line.
  Progress(const Progress &) = delete;
  Progress &operator=(const Progress &) = delete;

  void add(uint64_t bytes);

private:
  void draw(uint64_t done);
  const std::string title;
  const uint64_t total;
  const bool visible;
  std::atomic<uint64_t> done{0};
  std::atomic<int64_t> nextDraw{0}; ///< Milliseconds of the steady clock.
};

} // namespace mla::runtime

#endif // MLA_RUNTIME_BASE_PROGRESS_H
