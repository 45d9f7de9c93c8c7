//===- Stripes.h - arranged weights on their way ----------------*- C++ -*-===//
//
// Part of mla. The block of arranged weights is made in stripes of some 64 MB:
// while one is on its way to the device or to a file, all threads make the next.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_WEIGHTS_STRIPES_H
#define MLA_RUNTIME_WEIGHTS_STRIPES_H

#include "runtime/base/Progress.h"
#include "runtime/base/ThreadPool.h"
#include "runtime/weights/Arrange.h"
#include <array>
#include <functional>

namespace mla::runtime {

/// Bytes that each of two stagings must have: of the longest stripe.
uint64_t stripeBytes(const Arrangement &arrangement);

/// Makes the whole block, in order, in `stagings`, which are used in turn, and
/// gives it to `write`, which is called from one other thread at a time and may
/// block. From `packed`, the block as it was made before, if that is not empty,
/// else by `arranger`. Ends at the first error.
Status
makeStripes(const Arrangement &arrangement, const Arranger &arranger,
            std::span<const std::byte> packed, ThreadPool &pool,
            Progress &progress,
            const std::array<std::span<std::byte>, 2> &stagings,
            const std::function<Status(uint64_t offset,
                                       std::span<const std::byte> bytes)> &write);

} // namespace mla::runtime

#endif // MLA_RUNTIME_WEIGHTS_STRIPES_H
