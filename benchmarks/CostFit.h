//===- CostFit.h - measurements, and constants that explain them -*- C++ -*-===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_BENCHMARKS_COSTFIT_H
#define MLA_BENCHMARKS_COSTFIT_H

#include "CostNames.h"
#include "mla/Support/Json.h"

namespace mla::cost {

struct MeasuredKernel {
  std::string name;
  int64_t launches = 0; ///< in the step
  int64_t measured = 0; ///< of these, one behind the other in a graph
  double seconds = 0;   ///< of one
  double bytes = 0;     ///< weights and cache that one reads
};
/// Whether a kernel was measured as the model sees it: several launches a step, so
/// that they follow each other, and what they read not in the L2 cache (or too
/// little to matter).
bool comparable(const MeasuredKernel &kernel, const Machine &machine);


struct MeasuredStep {
  std::string name; ///< "linear_2112x7168, 8 x 1 at 64"
  bool isModel = false;
  Step step;
  double seconds = 0; ///< on the device
  std::vector<MeasuredKernel> kernels;
};

/// Adds the steps of a file, or of every .json file in a folder that is one of
/// mla-run bench's.
Status readResults(const std::string &path, std::vector<MeasuredStep> &steps);

struct Fitted {
  Calibration calibration;
  int measurements = 0;
  double error = 0; ///< root of the mean squared logarithm
};
/// The constants nearest to `from` that make the squared logarithms of predicted
/// over measured least. Constants that no measurement depends on stay.
Fitted fit(const Machine &machine, const Calibration &from,
           const std::vector<MeasuredStep> &steps);

} // namespace mla::cost

#endif // MLA_BENCHMARKS_COSTFIT_H
