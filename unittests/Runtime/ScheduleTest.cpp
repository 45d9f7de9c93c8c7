//===- ScheduleTest.cpp - cutting a step into what a program takes --------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/executor/Schedule.h"
#include <gtest/gtest.h>

using namespace mla;
using namespace mla::runtime;

namespace {

plan::Program bucket(int64_t tokens, int64_t sequences, int64_t outputs) {
  plan::Program program;
  program.maxTokens = tokens;
  program.maxSequences = sequences;
  program.maxOutputs = outputs;
  return program;
}

/// Checks that every token is run once and in order, within the bounds of the
/// program chosen, and followed by logits exactly as asked.
void check(const std::vector<SequenceTokens> &sequences,
           const std::vector<plan::Program> &programs) {
  auto runs = schedule(sequences, programs);
  ASSERT_TRUE(runs.ok()) << runs.status().message();
  std::vector<int64_t> done(sequences.size(), 0);
  std::vector<int64_t> outputs(sequences.size(), 0);
  size_t last = 0;
  for (const ProgramRun &run : *runs) {
    int64_t tokens = 0, wanted = 0;
    std::vector<bool> seen(sequences.size(), false);
    for (const Piece &piece : run.pieces) {
      EXPECT_GE(piece.sequence, last);
      last = piece.sequence;
      EXPECT_FALSE(seen[piece.sequence]);
      seen[piece.sequence] = true;
      EXPECT_EQ(piece.begin, done[piece.sequence]);
      EXPECT_GT(piece.tokens, 0);
      done[piece.sequence] += piece.tokens;
      outputs[piece.sequence] += piece.outputs;
      const SequenceTokens &s = sequences[piece.sequence];
      if (s.logits == LogitsFor::All)
        EXPECT_EQ(piece.outputs, piece.tokens);
      else if (s.logits == LogitsFor::Last)
        EXPECT_EQ(piece.outputs, done[piece.sequence] == s.tokens ? 1 : 0);
      else
        EXPECT_EQ(piece.outputs, 0);
      tokens += piece.tokens;
      wanted += piece.outputs;
    }
    EXPECT_EQ(run.tokens, tokens);
    EXPECT_EQ(run.outputs, wanted);
    auto fits = [&](const plan::Program &p) {
      return tokens <= p.maxTokens && wanted <= p.maxOutputs &&
             static_cast<int64_t>(run.pieces.size()) <= p.maxSequences;
    };
    ASSERT_LT(run.program, programs.size());
    EXPECT_TRUE(fits(programs[run.program]));
    for (size_t p = 0; p < run.program; ++p)
      EXPECT_FALSE(fits(programs[p]));
  }
  for (size_t s = 0; s < sequences.size(); ++s)
    EXPECT_EQ(done[s], sequences[s].tokens);
}

TEST(Schedule, CutsToPrograms) {
  std::vector<plan::Program> programs = {bucket(1, 1, 1), bucket(8, 8, 8),
                                         bucket(64, 2, 1)};
  check({{1, LogitsFor::Last}}, programs);
  check({{64, LogitsFor::Last}}, programs);
  check({{65, LogitsFor::Last}}, programs);
  check({{200, LogitsFor::All}}, programs);
  check({{200, LogitsFor::None}}, programs);
  check({{60, LogitsFor::Last}, {4, LogitsFor::Last}, {1, LogitsFor::Last}},
        programs);
  check(std::vector<SequenceTokens>(30, {1, LogitsFor::Last}), programs);
}

// Tests every small combination, also with programs none of which contains
// another.
TEST(Schedule, Exhaustively) {
  std::vector<std::vector<plan::Program>> plans = {
      {bucket(1, 1, 1)},
      {bucket(2, 2, 1)},
      {bucket(3, 3, 3), bucket(5, 1, 1)},
      {bucket(2, 2, 2), bucket(4, 1, 4), bucket(6, 3, 2)}};
  const LogitsFor kinds[] = {LogitsFor::None, LogitsFor::Last, LogitsFor::All};
  for (const auto &programs : plans)
    for (int64_t a = 1; a < 9; ++a)
      for (int64_t b = 1; b < 6; ++b)
        for (LogitsFor ka : kinds)
          for (LogitsFor kb : kinds)
            check({{a, ka}, {b, kb}, {1, LogitsFor::Last}}, programs);
}

TEST(Schedule, OneRunWhenItFits) {
  std::vector<plan::Program> programs = {bucket(4, 4, 4), bucket(16, 4, 4)};
  std::vector<SequenceTokens> batch(4, {1, LogitsFor::Last});
  auto runs = schedule(batch, programs);
  ASSERT_TRUE(runs.ok());
  ASSERT_EQ(runs->size(), 1U);
  EXPECT_EQ((*runs)[0].program, 0U);
}

TEST(Schedule, RefusesWithoutPrograms) {
  std::vector<SequenceTokens> one = {{1, LogitsFor::Last}};
  auto runs = schedule(one, {});
  ASSERT_FALSE(runs.ok());
  EXPECT_EQ(runs.status().code(), StatusCode::Invalid);
}

} // namespace
