//===- Memory.cpp - what a plan takes of a device's memory ----------------===//
//
// Part of mla. The runtime allocates by these functions, and the compiler's
// reports print them, so that what is announced is what is taken.
//
//===----------------------------------------------------------------------===//
#include "Internal.h"
#include "mla/Plan/Plan.h"
#include <algorithm>

namespace mla::plan {

Result<uint64_t> portBytes(const Plan &plan, Port port) {
  uint64_t largest = 0;
  if (!plan.sampling && !portAccess(port, /*sampling=*/false))
    return largest; // Nobody reads it.
  for (const Program &program : plan.programs) {
    std::vector<Expr> shape;
    switch (port) {
    case Port::Ids:
    case Port::Positions:
    case Port::Sequence:
    case Port::Saturated:
      shape = {program.maxTokens};
      break;
    case Port::PageTable:
      shape = {program.maxSequences, plan.maxPages};
      break;
    case Port::Outputs:
    case Port::TopK:
    case Port::Sampled:
      shape = {program.maxOutputs};
      break;
    case Port::Logits:
      shape = {program.maxOutputs, plan.model.vocabSize};
      break;
    case Port::Sampling:
      shape = {program.maxOutputs, int64_t(4)};
      break;
    }
    MLA_ASSIGN_OR_RETURN(uint64_t bytes,
                         bufferBytes(portFormat(port), shape,
                                     bounds(plan, program)));
    largest = std::max(largest, bytes);
  }
  return largest;
}

Result<MemoryBytes> memoryBytes(const Plan &plan) {
  MemoryBytes all;
  for (const Weight &weight : plan.weights) {
    MLA_ASSIGN_OR_RETURN(uint64_t bytes, weight.deviceBytes());
    if (weight.layout != Layout::Checkpoint)
      bytes = (bytes + weightAlignment - 1) / weightAlignment * weightAlignment;
    all.weights += bytes;
    if (bytes > detail::maxInteger || all.weights > detail::maxInteger)
      return invalid("the weights of the plan overflow 2^53 bytes");
  }
  for (const Cache &cache : plan.caches)
    all.cachePerToken += elementBytes(cache.format).value_or(0) *
                         static_cast<uint64_t>(cache.width);
  for (const Program &program : plan.programs)
    all.workspace = std::max(all.workspace, program.workspaceBytes);
  for (size_t p = 0; p < portCount; ++p) {
    MLA_ASSIGN_OR_RETURN(uint64_t bytes, portBytes(plan, static_cast<Port>(p)));
    all.ports += bytes;
  }
  return all;
}

} // namespace mla::plan
