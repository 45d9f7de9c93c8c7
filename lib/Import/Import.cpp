//===- Import.cpp - embedding, layers, head -------------------------------===//
//
// Part of mla. The decoder that all models of the family share. What differs
// between them is in Attention.cpp and MoE.cpp, and comes from the config.
//
//===----------------------------------------------------------------------===//
#include "mla/Import/Import.h"
#include "GraphBuilder.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Verifier.h"

using namespace mlir;
using namespace mla;

//===----------------------------------------------------------------------===//
// One op a module
//===----------------------------------------------------------------------===//

Location GraphBuilder::at(StringRef path) {
  return NameLoc::get(builder.getStringAttr(path));
}

RankedTensorType GraphBuilder::rows(int64_t width) {
  return RankedTensorType::get({ShapedType::kDynamic, width},
                               builder.getF32Type());
}

Value GraphBuilder::weight(WeightOp declaration) {
  return GetWeightOp::create(builder, declaration.getLoc(),
                             declaration.getType(),
                             FlatSymbolRefAttr::get(declaration));
}

Value GraphBuilder::vector(const std::string &path, int64_t size,
                           StringRef suffix) {
  return weight(weights.get(path, suffix, {size}, WeightRole::Plain));
}

Value GraphBuilder::linear(const std::string &path, Value x, int64_t outputs,
                           WeightRole role) {
  Value w = weight(weights.get(path, ".weight", {outputs, rowWidth(x)}, role));
  return LinearOp::create(builder, at(path), rows(outputs), x, w);
}

Value GraphBuilder::rmsNorm(const std::string &path, Value x, double eps) {
  return RMSNormOp::create(builder, at(path), x.getType(), x,
                           vector(path, rowWidth(x)),
                           builder.getF64FloatAttr(eps));
}

Value GraphBuilder::rope(const std::string &path, Value x, int64_t headDim,
                         int64_t offset, bool interleaved) {
  return RopeOp::create(builder, at(path), x.getType(), x, rotary,
                        builder.getI64IntegerAttr(headDim),
                        builder.getI64IntegerAttr(offset),
                        builder.getBoolAttr(interleaved));
}

Value GraphBuilder::add(const std::string &path, Value a, Value b) {
  return AddOp::create(builder, at(path), a.getType(), a, b);
}

Value GraphBuilder::writeCache(const std::string &path, CacheKind kind,
                               ValueRange parts) {
  int64_t width = 0;
  for (Value part : parts)
    width += rowWidth(part);
  // Caches are f32 here: the format is a choice of the target, made later.
  auto type = CacheType::get(builder.getContext(), kind, width, Format::F32);
  auto declaration =
      CacheOp::create(declarations, at(path), declarations.getStringAttr(path),
                      TypeAttr::get(type), FloatAttr());
  Value before = GetCacheOp::create(builder, at(path), type,
                                    FlatSymbolRefAttr::get(declaration));
  return CacheWriteOp::create(builder, at(path), type, before, batch, parts);
}

//===----------------------------------------------------------------------===//
// The step
//===----------------------------------------------------------------------===//

void GraphBuilder::buildStep() {
  MLIRContext *context = builder.getContext();
  auto idsType =
      RankedTensorType::get({ShapedType::kDynamic}, builder.getI32Type());
  auto type = builder.getFunctionType({idsType, BatchType::get(context)},
                                      {rows(config.vocabSize)});
  // The function comes last, after what it refers to.
  builder.setInsertionPointToEnd(module.getBody());
  auto step = func::FuncOp::create(builder, at("step"), "step", type);
  declarations.setInsertionPoint(step);
  weights.insertBefore(step);
  builder.setInsertionPointToStart(step.addEntryBlock());
  batch = step.getArgument(1);

  std::vector<float> frequencies =
      config.rope.inverseFrequencies(config.qkRopeHeadDim);
  rotary = RotaryEmbeddingOp::create(
      builder, at("rotary_emb"), rows(2 * frequencies.size()), batch,
      builder.getDenseF32ArrayAttr(frequencies),
      builder.getF64FloatAttr(config.rope.attentionFactor()));

  WeightOp table =
      weights.get("embed_tokens", ".weight",
                  {config.vocabSize, config.hiddenSize}, WeightRole::Plain);
  Value h =
      EmbeddingOp::create(builder, at("embed_tokens"), rows(config.hiddenSize),
                          step.getArgument(0), weight(table), IntegerAttr());

  for (int64_t layer = 0; layer < config.layers; ++layer) {
    std::string path = "layers." + std::to_string(layer);
    Value x = rmsNorm(path + ".input_layernorm", h, config.rmsNormEps);
    h = add(path + ".self_attn.residual", h, attention(layer, x));
    Value y = rmsNorm(path + ".post_attention_layernorm", h, config.rmsNormEps);
    h = add(path + ".mlp.residual", h, feedForward(layer, y));
  }

  Value n = rmsNorm("norm", h, config.rmsNormEps);
  bool tied = config.tieWordEmbeddings || !weights.holds("lm_head");
  WeightOp head = tied ? table
                       : weights.get("lm_head", ".weight",
                                     {config.vocabSize, config.hiddenSize},
                                     WeightRole::Exempt);
  Value logits = LMHeadOp::create(
      builder, at("lm_head"), rows(config.vocabSize), n, weight(head), batch);
  func::ReturnOp::create(builder, at("step"), logits);
}

llvm::Expected<OwningOpRef<ModuleOp>>
mla::importModel(MLIRContext &context, const ModelConfig &config,
                 const Checkpoint *checkpoint, const ImportOptions &options) {
  context.loadDialect<MLADialect, func::FuncDialect>();
  OwningOpRef<ModuleOp> module = ModuleOp::create(
      NameLoc::get(StringAttr::get(&context, config.architectureName)));
  WeightTable weights(*module, config, checkpoint, options);
  GraphBuilder(*module, config, weights).buildStep();
  if (llvm::Error error = weights.takeErrors())
    return error;

  if (!config.tieWordEmbeddings && !weights.holds("lm_head"))
    mlir::emitWarning(NameLoc::get(StringAttr::get(&context, "lm_head")))
        << "the checkpoint has no lm_head.weight; the embedding is used, "
           "although the config does not tie them";
  weights.report(config.tieWordEmbeddings);
  // A graph that does not verify is a mistake of ours or a config whose parts
  // contradict each other; the diagnostics say which op.
  if (failed(mlir::verify(*module)))
    return llvm::createStringError("the graph of %s does not verify",
                                   config.file.string().c_str());
  return module;
}
