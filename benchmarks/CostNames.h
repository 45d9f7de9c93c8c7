//===- CostNames.h - what a kernel's name says ------------------*- C++ -*-===//
//
// Part of mla. Kernels are named by family, formats and shapes (kernelName() in
// lib/CodeGen/NVVM); with the step in which a kernel was measured that is all that
// the cost model asks for.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_BENCHMARKS_COSTNAMES_H
#define MLA_BENCHMARKS_COSTNAMES_H

#include "mla/CostModel/CostModel.h"
#include <optional>
#include <string>

namespace mla::cost {

struct Prediction {
  std::string family; ///< "linear_stream"
  /// The op whose kernels are judged together: "attention", "linear", "experts";
  /// the family for others.
  std::string op;
  double seconds = 0;
};

/// What the model predicts for a launch of the kernel called `name` in `step`;
/// nothing for names that it does not know.
std::optional<Prediction> predict(const Model &model, std::string_view name,
                                  const Step &step);

} // namespace mla::cost

#endif // MLA_BENCHMARKS_COSTNAMES_H
