//===- Optimize.cpp - LLVM's passes over kernels --------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "Optimize.h"
#include "llvm/Passes/PassBuilder.h"

void mla::optimizeKernels(llvm::Module &module, llvm::TargetMachine &machine,
                          llvm::OptimizationLevel level, bool unrollLoops) {
  llvm::LoopAnalysisManager loops;
  llvm::FunctionAnalysisManager functions;
  llvm::CGSCCAnalysisManager sccs;
  llvm::ModuleAnalysisManager modules;
  llvm::PipelineTuningOptions tuning;
  tuning.LoopVectorization = false;
  tuning.SLPVectorization = false;
  tuning.LoopUnrolling = unrollLoops;
  llvm::PassBuilder builder(&machine, tuning);
  builder.registerModuleAnalyses(modules);
  builder.registerCGSCCAnalyses(sccs);
  builder.registerFunctionAnalyses(functions);
  builder.registerLoopAnalyses(loops);
  builder.crossRegisterProxies(loops, functions, sccs, modules);
  builder.buildPerModuleDefaultPipeline(level).run(module, modules);
}
