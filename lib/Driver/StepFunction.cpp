//===- StepFunction.cpp - a step function instead of a model --------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "StepFunction.h"
#include "mla/Dialect/MLA.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Parser/Parser.h"

using namespace mlir;
using namespace mla;

llvm::Expected<OwningOpRef<ModuleOp>>
mla::readStepFunction(MLIRContext &context, const std::filesystem::path &file,
                      ModelConfig &config) {
  context.loadDialect<MLADialect, func::FuncDialect>();
  OwningOpRef<ModuleOp> module =
      parseSourceFile<ModuleOp>(file.string(), &context);
  auto refuse = [&](const llvm::Twine &what) {
    return llvm::createStringError(file.string() + ": " + what.str());
  };
  if (!module)
    return refuse("cannot be parsed");
  auto step = module->lookupSymbol<func::FuncOp>("step");
  if (!step || step.isExternal())
    return refuse("expected a function @step");
  EmbeddingOp embedding;
  LMHeadOp head;
  step.walk([&](Operation *op) {
    if (auto found = dyn_cast<EmbeddingOp>(op))
      embedding = found;
    if (auto found = dyn_cast<LMHeadOp>(op))
      head = found;
  });
  if (!embedding || !head)
    return refuse("expected a mla.embedding and a mla.lm_head in @step");
  int64_t ids = cast<WeightType>(embedding.getTable().getType()).getDim(0);
  config.file = file;
  config.architectureName = "step function";
  config.vocabSize = cast<WeightType>(head.getWeight().getType()).getDim(0);
  if (ids < config.vocabSize)
    return refuse("expected an embedding of at least " +
                  llvm::Twine(config.vocabSize) + " rows, found " +
                  llvm::Twine(ids));
  config.hiddenSize = rowWidth(embedding.getResult());
  config.layers = 0;
  for (auto cache : module->getOps<CacheOp>())
    config.layers +=
        cast<CacheType>(cache.getType()).getKind() == CacheKind::Latent;
  config.layers = std::max<int64_t>(config.layers, 1);
  config.maxPositions = stepFunctionContext;
  return module;
}
