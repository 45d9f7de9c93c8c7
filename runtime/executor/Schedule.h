//===- Schedule.h - cutting a step into what a program takes ----*- C++ -*-===//
//
// Part of mla. A caller may ask for any number of tokens, sequences and logits
// in one step; a program of the plan takes so many of each at most. The step is
// cut into runs of programs: sequences in their order, as many tokens as still
// fit, each run by the smallest program that takes it. How a step is cut does
// not change its results.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_EXECUTOR_SCHEDULE_H
#define MLA_RUNTIME_EXECUTOR_SCHEDULE_H

#include "mla/Plan/Plan.h"
#include <span>
#include <vector>

namespace mla::runtime {

/// Which tokens of a sequence are followed by logits.
enum class LogitsFor { None, Last, All };

struct SequenceTokens {
  int64_t tokens = 0;
  LogitsFor logits = LogitsFor::Last;
};

/// Tokens begin <= i < begin + tokens of a sequence's new ones; the last
/// `outputs` of them are followed by logits.
struct Piece {
  size_t sequence = 0;
  int64_t begin = 0;
  int64_t tokens = 0;
  int64_t outputs = 0;
};

/// One run of a program. No sequence appears twice.
struct ProgramRun {
  size_t program = 0;
  std::vector<Piece> pieces;
  int64_t tokens = 0;
  int64_t outputs = 0;
};

/// Invalid if not even one token fits any program.
Result<std::vector<ProgramRun>>
schedule(std::span<const SequenceTokens> sequences,
         std::span<const plan::Program> programs);

} // namespace mla::runtime

#endif // MLA_RUNTIME_EXECUTOR_SCHEDULE_H
