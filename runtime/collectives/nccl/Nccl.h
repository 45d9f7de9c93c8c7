//===- Nccl.h - the few calls of NCCL that are used -------------*- C++ -*-===//
//
// Part of mla. libnccl is loaded when it is asked for, so that one program runs
// with and without it and is built without its header. What is declared here has
// the layout and the numbers of nccl.h; the functions carry the names that the
// library exports.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_COLLECTIVES_NCCL_NCCL_H
#define MLA_RUNTIME_COLLECTIVES_NCCL_NCCL_H

#include "mla/Support/Status.h"
#include "runtime/hal/cuda/Driver.h"
#include <cstddef>
#include <memory>
#include <string>

namespace mla::nccl {

using Code = int; ///< ncclResult_t
using Comm = struct CommTag *;

/// Codes that are told apart here.
enum : Code { Success = 0, RemoteError = 6, InProgress = 7 };

/// ncclDataType_t
enum DataType : int { Float16 = 6, Float32 = 7, BFloat16 = 9 };
/// ncclRedOp_t
enum Operation : int { Sum = 0 };

/// ncclUniqueId
struct UniqueId {
  char bytes[128] = {};
};
static_assert(sizeof(UniqueId) == 128);

/// The functions: name in this program, exported name, parameters. All return a
/// Code.
#define MLA_NCCL_FUNCTIONS(X)                                                  \
  X(getVersion, ncclGetVersion, (int *version))                                \
  X(getUniqueId, ncclGetUniqueId, (UniqueId * id))                             \
  X(commInitRank, ncclCommInitRank,                                            \
    (Comm * comm, int ranks, UniqueId id, int rank))                           \
  X(commDestroy, ncclCommDestroy, (Comm comm))                                 \
  X(commAbort, ncclCommAbort, (Comm comm))                                     \
  X(commGetAsyncError, ncclCommGetAsyncError, (Comm comm, Code * error))       \
  X(allReduce, ncclAllReduce,                                                  \
    (const void *from, void *to, size_t count, int type, int operation,        \
     Comm comm, hal::cuda::Stream stream))                                     \
  X(allGather, ncclAllGather,                                                  \
    (const void *from, void *to, size_t count, int type, Comm comm,            \
     hal::cuda::Stream stream))                                                \
  X(reduceScatter, ncclReduceScatter,                                          \
    (const void *from, void *to, size_t count, int type, int operation,        \
     Comm comm, hal::cuda::Stream stream))                                     \
  X(send, ncclSend,                                                            \
    (const void *from, size_t count, int type, int peer, Comm comm,            \
     hal::cuda::Stream stream))                                                \
  X(receive, ncclRecv,                                                         \
    (void *to, size_t count, int type, int peer, Comm comm,                    \
     hal::cuda::Stream stream))                                                \
  X(groupStart, ncclGroupStart, ())                                            \
  X(groupEnd, ncclGroupEnd, ())

/// The loaded library. It stays loaded: it has threads of its own.
class Library {
public:
  static constexpr const char *defaultFile = "libnccl.so.2";

  /// Unsupported, saying why, if the file cannot be loaded or lacks a function.
  static Result<std::unique_ptr<Library>>
  load(const std::string &file = defaultFile);
  Library(const Library &) = delete;
  Library &operator=(const Library &) = delete;

#define MLA_NCCL_DECLARE(name, symbol, parameters)                             \
  Code(*name) parameters = nullptr;
  MLA_NCCL_FUNCTIONS(MLA_NCCL_DECLARE)
#undef MLA_NCCL_DECLARE
  const char *(*getErrorString)(Code code) = nullptr;

  /// "2.28.9"
  std::string version() const;
  /// An error with `call` and what was attempted, unless Success.
  Status check(Code code, const char *call, const std::string &attempt) const;

private:
  Library() = default;
};

} // namespace mla::nccl

#endif // MLA_RUNTIME_COLLECTIVES_NCCL_NCCL_H
