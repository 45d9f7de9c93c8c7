//===- BoundProgram.h - a program of the plan with its addresses -*- C++
//-*-===//
//
// Part of mla. When a plan is loaded, every argument that is an address is
// resolved for good. What is left for a step are the expressions: each distinct
// one is evaluated once, and only when a symbol has changed since the step
// before. Decoding hardly ever evaluates anything.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_EXECUTOR_BOUNDPROGRAM_H
#define MLA_RUNTIME_EXECUTOR_BOUNDPROGRAM_H

#include "mla/Plan/Plan.h"
#include "runtime/hal/Device.h"
#include <array>
#include <optional>
#include <span>
#include <vector>

namespace mla::runtime {

/// Where the buffers of a plan lie on the device.
struct Addresses {
  std::vector<uint64_t> weights; ///< Address, or table of addresses.
  std::vector<uint64_t> caches;
  std::array<uint64_t, plan::portCount> ports{};
  uint64_t workspace = 0;
  uint64_t peers = 0; ///< The table of mla/Plan/Peers.h; 0 if there is none.
};

class BoundProgram {
public:
  /// `plan` must have passed plan::verify() and outlive the program.
  BoundProgram(const plan::Plan &plan, const plan::Program &program,
               const Addresses &addresses);

  BoundProgram(BoundProgram &&) = default; ///< Moving keeps the views valid.
  BoundProgram(const BoundProgram &) = delete;

  /// The dispatches of a step, valid until the next call.
  Result<std::span<const hal::Dispatch>>
  prepare(const plan::SymbolValues &symbols);

private:
  /// Where the value of an expression goes.
  struct Use {
    size_t expression;
    size_t target; ///< Index into `arguments`, or into `dispatches`.
  };

  size_t intern(const plan::Expr &expr);

  const plan::Program &program;
  std::vector<uint64_t> arguments; ///< Of all launches, one after another.
  std::vector<hal::Dispatch> dispatches;
  std::vector<plan::Expr> expressions; ///< Distinct.
  std::vector<Use> scalars;
  std::vector<Use> grids;
  std::optional<plan::SymbolValues> current; ///< Values now in place.
};

} // namespace mla::runtime

#endif // MLA_RUNTIME_EXECUTOR_BOUNDPROGRAM_H
