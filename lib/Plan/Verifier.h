//===- Verifier.h - the checks of a plan ------------------------*- C++ -*-===//
//
// Part of mla. One object a verification: it collects messages, each with the
// place that the mistake has in plan.json, so that a plan in memory and a plan
// in a file are complained about in the same words.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_PLAN_VERIFIER_H
#define MLA_LIB_PLAN_VERIFIER_H

#include "Internal.h"
#include <array>
#include <unordered_set>

namespace mla::plan::detail {

class Verifier {
public:
  Verifier(const Plan &plan, const std::string &file)
      : plan(plan), file(file) {}
  Status run();

private:
  // Verify.cpp: everything that stands outside programs.
  void target();
  void model();
  void ranks();
  void checkpoint();
  void files();
  void weights();
  void weight(size_t index);
  void layout(const Weight &weight, const std::string &at);
  void shard(const Weight &weight, const std::string &at);
  void slice(const Weight &weight, const std::string &at);
  void source(const Weight &weight, const TensorSource &source,
              uint64_t bytes, const std::string &at);
  void caches();
  void kernels();
  void collective(const Kernel &kernel, const std::string &at);

  // VerifyProgram.cpp
  struct Point {
    const char *where;
    SymbolValues symbols;
  };
  /// How the launches of a program use one workspace.
  struct Usage {
    uint64_t bytes = 0; ///< at the bounds; 0 if it is wrong already
    bool touched = false;
    bool written = false;
    size_t first = 0, last = 0; ///< launches
  };
  struct ProgramState {
    const Program &program;
    std::string at;
    bool sampling; ///< It is Plan::sampling.
    std::array<Point, 3> points;
    std::vector<Usage> usage;
    bool resultWritten = false; ///< logits, or the ids sampled
  };
  void programs();
  void program(const Program &program, const std::string &at, bool sampling);
  void sampling();
  void workspace(ProgramState &state, size_t index);
  void launch(ProgramState &state, size_t index);
  void argument(ProgramState &state, const Launch &launch, size_t launchIndex,
                size_t index, std::vector<uint32_t> &written);
  void overlaps(const ProgramState &state);
  /// Evaluates at every point; the smallest value of them, or nothing.
  std::optional<int64_t> evaluate(const ProgramState &state, const Expr &expr,
                                  const std::string &at);

  // Helpers.
  void fail(const std::string &at, const std::string &message);
  /// A name that is well formed and was not in `seen` before.
  void uniqueName(const std::string &name, const std::string &at,
                  std::unordered_set<std::string_view> &seen);
  void text(const std::string &value, const std::string &at);
  void range(int64_t value, int64_t low, int64_t high, const std::string &at);

  const Plan &plan;
  const std::string &file;
  std::string messages;
  size_t count = 0;
};

} // namespace mla::plan::detail

#endif // MLA_LIB_PLAN_VERIFIER_H
