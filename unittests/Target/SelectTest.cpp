//===- SelectTest.cpp - the choice between lowerings ----------------------===//
//
// Part of mla. With a table of its own; what the real tables say is tested by
// test/Transforms/select-lowering*.mlir.
//
//===----------------------------------------------------------------------===//
#include "mla/Dialect/MLA.h"
#include "mla/Target/Lowering.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Parser/Parser.h"
#include <gtest/gtest.h>

using namespace mla;

namespace {

using Needed = std::optional<Refusal>;

/// What a popular FP8 attention kernel asks for.
Needed tooMuchForSM120(mlir::Operation *, const LoweringSite &site) {
  return needsSharedMemory(102400, *site.gpu);
}
template <int microseconds>
cost::Estimate takes(mlir::Operation *, const LoweringSite &,
                     const cost::Step &) {
  cost::Estimate e;
  e.seconds = microseconds * 1e-6;
  return e;
}

const Lowering table[] = {
    {"slow", "mla.add", needsNothing, takes<30>},
    {"big", "mla.add", tooMuchForSM120, takes<10>},
    {"small", "mla.add", needsNothing, takes<20>},
    {"same", "mla.add", needsNothing, takes<20>},
    {"other", "mla.swiglu", needsNothing, takes<1>},
};

class Select : public testing::Test {
protected:
  Select() {
    registerGpuLowerings(table);
    context.loadDialect<MLADialect, mlir::func::FuncDialect>();
    module = mlir::parseSourceString<mlir::ModuleOp>(
        "func.func @f(%x: tensor<?x8xf32>) {\n"
        "  %0 = mla.add %x, %x : tensor<?x8xf32>\n"
        "  return\n"
        "}\n",
        &context);
    module->walk([&](AddOp found) { op = found; });
  }

  Selection on(const char *machine, std::vector<Override> overrides = {}) {
    auto opened = TargetMachine::open(machine);
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    return select((*opened)->target(), op,
                  LoweringSite(**opened, {"step1", 1, 1}), overrides);
  }

  mlir::MLIRContext context;
  mlir::OwningOpRef<mlir::ModuleOp> module;
  mlir::Operation *op = nullptr;
};

TEST_F(Select, SharedMemoryBeyondSM120IsRefusedWithBothNumbers) {
  Selection selection = on("sm_120a");
  ASSERT_EQ(selection.candidates.size(), 4u);
  EXPECT_EQ(selection.chosen()->lowering->name, "small");
  const Candidate &big = selection.candidates.back();
  EXPECT_EQ(big.lowering->name, "big");
  EXPECT_EQ(big.refusal->need, Need::SharedMemory);
  EXPECT_EQ(big.refusal->full(), "needs 102400 bytes of shared memory, found "
                                 "101376 on sm_120a");
  EXPECT_FALSE(big.estimate);
  // An H200's multiprocessors have it.
  EXPECT_EQ(on("h200x1").chosen()->lowering->name, "big");
}

TEST_F(Select, CostDecidesThenTheOrderOfTheTable) {
  Selection selection = on("sm_120a");
  const Candidate &same = selection.candidates[1], &slow = selection.candidates[2];
  EXPECT_EQ(same.lowering->name, "same");
  EXPECT_EQ(same.refusal->need, Need::Cost);
  EXPECT_EQ(slow.lowering->name, "slow");
  EXPECT_EQ(slow.refusal->text, "takes 30.0 us, 1.50 times as long");
}

TEST_F(Select, WhatTheModelCannotTellApartIsDecidedByTheTable) {
  static const Lowering close[] = {
      {"first", "mla.add", needsNothing, takes<105>},
      {"second", "mla.add", needsNothing, takes<100>},
      {"far", "mla.add", needsNothing, takes<111>},
  };
  registerGpuLowerings(close);
  Selection selection = on("sm_120a");
  EXPECT_EQ(selection.chosen()->lowering->name, "first");
  EXPECT_EQ(selection.candidates[1].lowering->name, "second");
  EXPECT_EQ(selection.candidates[1].refusal->text.substr(0, 17),
            "takes 100.0 us, n");
  EXPECT_EQ(selection.candidates[2].lowering->name, "far");
}

TEST_F(Select, AnOverrideDecidesWhereItCan) {
  Selection selection = on("sm_120a", {{"add", "slow"}});
  EXPECT_EQ(selection.chosen()->lowering->name, "slow");
  EXPECT_EQ(selection.candidates[1].refusal->need, Need::Override);
  // What lacks something stays refused for that.
  selection = on("sm_120a", {{"add", "big"}});
  EXPECT_EQ(selection.chosen()->lowering->name, "small");
  EXPECT_EQ(selection.candidates.back().refusal->need, Need::SharedMemory);
  // Of other ops.
  selection = on("sm_120a", {{"swiglu", "other"}});
  EXPECT_EQ(selection.chosen()->lowering->name, "small");
}

TEST_F(Select, NoCodeIsGeneratedForSM100) {
  Selection selection = on("b200x8");
  EXPECT_EQ(selection.chosen(), nullptr);
  for (const Candidate &candidate : selection.candidates) {
    EXPECT_EQ(candidate.refusal->need, Need::Instruction);
    EXPECT_NE(candidate.refusal->text.find("sm_100a"), std::string::npos);
  }
}

TEST_F(Select, ProgramsOfAMachine) {
  auto names = [](const char *machine, std::vector<int64_t> steps) {
    auto opened = TargetMachine::open(machine);
    std::string text;
    for (const Program &program :
         programsFor((*opened)->machine(), steps, 64))
      text += program.name + ":" + std::to_string(program.maxSequences) + " ";
    return text;
  };
  EXPECT_EQ(names("host", {16, 256}), "step16:16 step256:64 ");
  EXPECT_EQ(names("sm_90a", {1, 64, 128}),
            "step1:1 step64:64 prefill128:8 step128:64 ");
  EXPECT_FALSE(TargetMachine::open("sm_999").ok());
}

} // namespace
