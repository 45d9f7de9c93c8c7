//===- FakeNccl.h - an NCCL for tests without GPUs --------------*- C++ -*-===//
//
// Part of mla. FakeNccl.cpp is a library with the functions that the runtime takes
// from libnccl, over FakeCuda.h's memory, which is the host's: ranks are threads, and
// a call does everything before it returns. f32 alone.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_UNITTESTS_RUNTIME_FAKENCCL_H
#define MLA_UNITTESTS_RUNTIME_FAKENCCL_H

#include <atomic>

/// What tests set and look at; `fakeNccl` in the library.
struct FakeNccl {
  // Set by tests.
  std::atomic<int> idError{0};     ///< Code of ncclGetUniqueId.
  std::atomic<int> refused{-1};    ///< A rank whose ncclCommInitRank fails.
  std::atomic<int> missing{-1};    ///< One that never gets that far.
  std::atomic<int> asyncError{0};  ///< What ncclCommGetAsyncError finds.
  std::atomic<bool> release{false}; ///< Calls that wait end with an error.
  std::atomic<const int *> graphs{nullptr}; ///< How many there are, if not null.
  // Counted.
  std::atomic<int> comms{0};   ///< Alive.
  std::atomic<int> aborted{0};
  std::atomic<int> inside{0};  ///< Calls that have not returned.
  /// Communicators that ended while there were graphs: NCCL would wait for these.
  std::atomic<int> endedBeforeGraphs{0};
};

#endif // MLA_UNITTESTS_RUNTIME_FAKENCCL_H
