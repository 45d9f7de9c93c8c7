//===- HostExchange.h - a plan's collectives on the host --------*- C++ -*-===//
//
// Part of mla. What plan::Collective says, by the runtime's collectives, which
// know whole parts alone: what is cut off or filled up with zeros goes through
// memory of its own.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_HAL_HOST_HOSTEXCHANGE_H
#define MLA_RUNTIME_HAL_HOST_HOSTEXCHANGE_H

#include "mla/Plan/Plan.h"
#include "runtime/base/Memory.h"
#include "runtime/collectives/Collectives.h"
#include <span>
#include <string_view>

namespace mla::hal {

class HostExchange {
public:
  /// `collectives` must outlive this.
  explicit HostExchange(collectives::Collectives &collectives)
      : collectives(collectives) {}

  /// Does `collective` with the arguments of a launch (plan::Collective has them).
  /// Blocks until this rank's y is complete and nobody reads its x any more.
  /// `what` is the launch's origin. Invalid if the columns do not fit, else the
  /// errors of collectives::Collectives.
  Status run(plan::Collective collective, std::span<const uint64_t> arguments,
             std::string_view what);

private:
  /// Memory for `rows` rows of `columns` values, until the next call.
  Result<float *> scratchFor(int64_t rows, int64_t columns,
                             std::string_view what);

  collectives::Collectives &collectives;
  runtime::HostMemory scratch;
};

} // namespace mla::hal

#endif // MLA_RUNTIME_HAL_HOST_HOSTEXCHANGE_H
