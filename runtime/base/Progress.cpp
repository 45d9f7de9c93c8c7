//===- Progress.cpp - a bar for what takes long ---------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/base/Progress.h"
#include "runtime/base/Memory.h"
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <unistd.h>

namespace mla::runtime {

static int64_t now() {
  using namespace std::chrono;
  return duration_cast<milliseconds>(steady_clock::now().time_since_epoch())
      .count();
}

Progress::Progress(std::string title, uint64_t totalBytes, bool wanted)
    : title(std::move(title)), total(std::max<uint64_t>(totalBytes, 1)),
      visible(wanted && isatty(STDERR_FILENO)) {
  if (visible)
    nextDraw = now() + 300; // What is over by then needs no bar.
}

Progress::~Progress() {
  if (visible)
    std::fputs("\r\033[K", stderr);
}

void Progress::add(uint64_t bytes) {
  if (!visible)
    return;
  uint64_t sum = done.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  int64_t time = now();
  int64_t due = nextDraw.load(std::memory_order_relaxed);
  if (time >= due && nextDraw.compare_exchange_strong(due, time + 100))
    draw(sum);
}

void Progress::draw(uint64_t sum) {
  constexpr int width = 32;
  int filled = static_cast<int>(std::min<double>(
      width, static_cast<double>(sum) / static_cast<double>(total) * width));
  std::string bar(static_cast<size_t>(filled), '=');
  bar.resize(width, ' ');
  std::fprintf(stderr, "\r%s [%s] %s of %s\033[K", title.c_str(), bar.c_str(),
               formatBytes(sum).c_str(), formatBytes(total).c_str());
}

} // namespace mla::runtime
