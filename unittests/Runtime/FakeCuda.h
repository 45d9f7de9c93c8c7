//===- FakeCuda.h - a CUDA driver for tests without a GPU -------*- C++ -*-===//
//
// Part of mla. FakeCuda.cpp is a library with the functions that the runtime
// takes from libcuda. Its memory is the host's, its stream does everything at
// once, its modules hold three kernels:
//
//   add(address, value)     adds value * grid to the integer at address
//   large()                 needs 200 kB of shared memory, in 64 threads
//   exchange(peers, value)  adds value * grid to the integer at `peers`
//
// Several threads may call it, of which one at a time records.
//
// and those of mla-run probe, as lib/CodeGen/NVVM/ProbeKernels.h has them.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_UNITTESTS_RUNTIME_FAKECUDA_H
#define MLA_UNITTESTS_RUNTIME_FAKECUDA_H

#include <cstdint>

/// What tests set and look at; `fakeCuda` in the library.
struct FakeCuda {
  // Set by tests.
  int devices = 1, major = 9, minor = 0, sharedLimit = 232448;
  uint64_t totalMemory = uint64_t(1) << 30;
  int failNextLaunch = 0;      ///< Code of the next cuLaunchKernelEx.
  int failNextSynchronize = 0; ///< Of the next cuStreamSynchronize.
  // Links: what is reported, and what is so.
  bool peerReported = true, peerWorks = true, peerAtomics = false;
  bool stuck = false; ///< No event is ever reached.
  bool ipc = false;   ///< Memory has handles that the same process can open.
  /// A stream's kernels run until this word in the host's memory is not 0.
  const uint32_t *waitFor = nullptr;
  // Counted.
  int contexts = 0, buffers = 0, mirrors = 0, streams = 0, modules = 0;
  int graphs = 0, execs = 0, events = 0; ///< Alive.
  int launches = 0; ///< Outside of recordings.
  int recordings = 0, replays = 0;
  int registered = 0, opened = 0; ///< Alive: memory of the host, of handles.
  int earlyLaunches = 0; ///< Launched or recorded with early start.
  int sharedBytes = 0;   ///< Of the last cuFuncSetAttribute.
};

#endif // MLA_UNITTESTS_RUNTIME_FAKECUDA_H
