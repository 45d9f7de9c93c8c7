//===- Collectives.h - sums and moves over all ranks ------------*- C++ -*-===//
//
// Part of mla. What the ranks of a group do together with values in the host's
// memory, over any Transport. Every rank makes the same call with the same
// counts and the same `what`, the name of the value and the step
// ("layers.3.o_proj, step 12"); errors put the collective before it.
//
// Sums are taken in f32 in the order of ranks, ((x0 + x1) + x2) + ..., by
// whatever method: they have the same bits on every rank, for every size and
// every transport.
//
// Errors: those of Transport::exchange(), and Exhausted. After one the group is
// over, and outputs hold anything.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_COLLECTIVES_COLLECTIVES_H
#define MLA_RUNTIME_COLLECTIVES_COLLECTIVES_H

#include "runtime/collectives/Transport.h"
#include <type_traits>

namespace mla::collectives {

/// Sums are made in one shot, every rank gets every value and adds it up, while
/// what a rank receives, (N - 1) times the bytes of a vector, is no more than
/// this: 256 KB for two ranks, 37 KB for eight. Beyond, in two: each rank adds
/// up its share, then all get all shares, 2 (N - 1) / N times the bytes in two
/// exchanges. Measured: docs/collectives.md.
constexpr int64_t oneShotBytes = 256 << 10;

class Collectives {
public:
  /// `transport` outlives this, and is used by nothing else during a call.
  explicit Collectives(Transport &transport) : transport(transport) {}

  int rank() const { return transport.rank(); }
  int size() const { return transport.size(); }

  /// y[i] = sum of all ranks' x[i], 0 <= i < count. x and y are one array, or
  /// do not overlap.
  Status allReduce(const float *x, float *y, int64_t count,
                   std::string_view what);

  /// x: rows of `columns` values, y: rows of size() * columns:
  /// y[row] = [x[row] of rank 0 | x[row] of rank 1 | ...]. No overlap.
  Status allGather(const float *x, float *y, int64_t rows, int64_t columns,
                   std::string_view what);

  /// x: rows of size() * columns values, y: rows of `columns`: the sum over
  /// ranks of the columns [rank * columns, (rank + 1) * columns). No overlap.
  Status reduceScatter(const float *x, float *y, int64_t rows, int64_t columns,
                       std::string_view what);

  /// x: rows of size() * columns values, y: size() * rows rows of `columns`:
  /// the columns of this rank, as in reduceScatter(), of rank 0's rows, then of
  /// rank 1's, ... No overlap.
  Status allToAll(const float *x, float *y, int64_t rows, int64_t columns,
                  std::string_view what);

  /// Makes `bytes`, of one size everywhere, those of rank `root`.
  Status broadcast(Bytes bytes, int root, std::string_view what);

  /// Fills `all`, size() times as large, with the ranks' `mine`. No overlap.
  Status allGatherBytes(ConstBytes mine, Bytes all, std::string_view what);

  /// The same of one thing that is its bytes: that of each rank.
  template <typename T>
  Result<std::vector<T>> gatherEach(const T &mine, std::string_view what) {
    static_assert(std::is_trivially_copyable_v<T>);
    std::vector<T> all(static_cast<size_t>(size()));
    MLA_RETURN_IF_ERROR(
        allGatherBytes(std::as_bytes(std::span(&mine, 1)),
                       std::as_writable_bytes(std::span(all)), what));
    return all;
  }

  /// Returns when all ranks have called it.
  Status barrier(std::string_view what);

  /// Transport::look() and timeout(), for what ranks do without this.
  Status look(std::string_view what) { return transport.look(what); }
  std::chrono::milliseconds timeout() const { return transport.timeout(); }

  /// Instead of oneShotBytes; the same on all ranks.
  void setOneShotBytes(int64_t bytes) { oneShot = bytes; }

private:
  Status allReduceInTwo(const float *x, float *y, int64_t count,
                        std::string_view what);
  /// The columns of rank 0 of all rows, then those of rank 1, ...
  float *pack(float *to, const float *x, int64_t rows, int64_t columns) const;
  /// Part i of `from`, `count` values, goes to rank i; what it sends is part i of
  /// `to`.
  Status exchangeParts(const float *from, float *to, int64_t count,
                       std::string_view text);
  /// Memory for `count` values that stays until the next call.
  Result<float *> scratchFor(int64_t count, std::string_view what);

  Transport &transport;
  int64_t oneShot = oneShotBytes;
  runtime::HostMemory scratch;
};

} // namespace mla::collectives

#endif // MLA_RUNTIME_COLLECTIVES_COLLECTIVES_H
