//===- Pause.h - a thread that spins ----------------------------*- C++ -*-===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_BASE_PAUSE_H
#define MLA_RUNTIME_BASE_PAUSE_H

namespace mla::runtime {

/// Leaves the core to its other thread for 40 to 140 cycles.
inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

} // namespace mla::runtime

#endif // MLA_RUNTIME_BASE_PAUSE_H
