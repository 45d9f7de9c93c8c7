//===- Schedule.cpp - cutting a step into what a program takes ------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/executor/Schedule.h"
#include <algorithm>

namespace mla::runtime {
namespace {

/// How many of `left` tokens of one more sequence `program` takes beside `run`.
int64_t room(const plan::Program &program, const ProgramRun &run, int64_t left,
             LogitsFor logits) {
  if (static_cast<int64_t>(run.pieces.size()) >= program.maxSequences)
    return 0;
  int64_t count = std::min(left, program.maxTokens - run.tokens);
  int64_t outputs = program.maxOutputs - run.outputs;
  if (logits == LogitsFor::All)
    count = std::min(count, outputs);
  else if (logits == LogitsFor::Last && count == left && outputs < 1)
    --count; // All but the one that needs logits.
  return std::max<int64_t>(count, 0);
}

int64_t outputsOf(int64_t tokens, int64_t left, LogitsFor logits) {
  if (logits == LogitsFor::All)
    return tokens;
  return logits == LogitsFor::Last && tokens == left ? 1 : 0;
}

/// The smallest program for `run`. One exists: room() let everything in.
size_t smallest(const ProgramRun &run,
                std::span<const plan::Program> programs) {
  size_t p = 0;
  while (p + 1 < programs.size() &&
         (programs[p].maxTokens < run.tokens ||
          programs[p].maxSequences < static_cast<int64_t>(run.pieces.size()) ||
          programs[p].maxOutputs < run.outputs))
    ++p;
  return p;
}

} // namespace

Result<std::vector<ProgramRun>>
schedule(std::span<const SequenceTokens> sequences,
         std::span<const plan::Program> programs) {
  std::vector<ProgramRun> runs;
  ProgramRun run;
  auto finish = [&] {
    run.program = smallest(run, programs);
    runs.push_back(std::move(run));
    run = {};
  };
  for (size_t s = 0; s < sequences.size(); ++s) {
    const SequenceTokens &sequence = sequences[s];
    int64_t done = 0;
    while (done < sequence.tokens) {
      int64_t left = sequence.tokens - done;
      int64_t count = 0;
      for (const plan::Program &program : programs) {
        // A program that does not hold what is there already cannot grow.
        if (program.maxTokens < run.tokens || program.maxOutputs < run.outputs)
          continue;
        count = std::max(count, room(program, run, left, sequence.logits));
      }
      if (count == 0) {
        if (run.pieces.empty())
          return invalid("no program of the plan takes a step of one token" +
                         std::string(sequence.logits == LogitsFor::None
                                         ? ""
                                         : " with logits"));
        finish();
        continue;
      }
      int64_t outputs = outputsOf(count, left, sequence.logits);
      run.pieces.push_back({s, done, count, outputs});
      run.tokens += count;
      run.outputs += outputs;
      done += count;
      if (done < sequence.tokens)
        finish(); // The rest of this sequence needs what was just written.
    }
  }
  if (!run.pieces.empty())
    finish();
  return runs;
}

} // namespace mla::runtime
