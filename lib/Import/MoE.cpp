//===- MoE.cpp - dense MLPs, routers and experts --------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "GraphBuilder.h"

using namespace mlir;
using namespace mla;

static ScoringKind scoringKind(Scoring scoring) {
  return scoring == Scoring::Sigmoid ? ScoringKind::Sigmoid
                                     : ScoringKind::Softmax;
}

static TopkKind topkKind(TopkMethod method) {
  switch (method) {
  case TopkMethod::NoAuxTc:
    return TopkKind::NoAuxTc;
  case TopkMethod::Greedy:
    return TopkKind::Greedy;
  case TopkMethod::GroupLimitedGreedy:
    return TopkKind::GroupLimitedGreedy;
  }
  llvm_unreachable("a TopkMethod without a TopkKind");
}

Value GraphBuilder::feedForward(int64_t layer, Value x) {
  std::string path = "layers." + std::to_string(layer) + ".mlp";
  if (!config.moeLayer[layer])
    return mlp(path, x, config.intermediateSize);

  Value result = experts(path, x);
  // The shared experts of a model are stored as one wider MLP.
  if (config.moe.sharedExperts)
    result = add(path + ".shared_experts.residual", result,
                 mlp(path + ".shared_experts", x,
                     config.moe.intermediateSize * config.moe.sharedExperts));
  return result;
}

Value GraphBuilder::mlp(const std::string &path, Value x, int64_t width) {
  Value gate = linear(path + ".gate_proj", x, width);
  Value up = linear(path + ".up_proj", x, width);
  Value hidden =
      SwiGLUOp::create(builder, at(path + ".act_fn"), gate.getType(), gate, up);
  return linear(path + ".down_proj", hidden, rowWidth(x));
}

Value GraphBuilder::experts(const std::string &path, Value x) {
  const MoeConfig &moe = config.moe;
  MLIRContext *context = builder.getContext();

  Value logits = linear(path + ".gate", x, moe.experts, WeightRole::Exempt);
  Value bias;
  if (moe.method == TopkMethod::NoAuxTc)
    bias = vector(path + ".gate", moe.experts, ".e_score_correction_bias");
  auto routing = RoutingAttr::get(context, moe.topk, moe.groups, moe.topkGroups,
                                  scoringKind(moe.scoring),
                                  topkKind(moe.method), moe.normalizeTopk,
                                  builder.getF64FloatAttr(moe.routedScale));
  auto indices = RankedTensorType::get({ShapedType::kDynamic, moe.topk},
                                       builder.getI32Type());
  auto route = RouteOp::create(builder, at(path + ".gate.route"), indices,
                               rows(moe.topk), logits, bias, routing);

  std::string stack = path + ".experts";
  int64_t hidden = rowWidth(x), width = moe.intermediateSize;
  auto matrices = [&](StringRef leaf, int64_t outputs, int64_t inputs) {
    return weight(
        weights.getStack(stack, leaf, moe.experts, {outputs, inputs}));
  };
  Value gate = matrices("gate_proj", width, hidden);
  Value up = matrices("up_proj", width, hidden);
  Value down = matrices("down_proj", hidden, width);
  return ExpertsOp::create(builder, at(stack), x.getType(), x,
                           route.getIndices(), route.getWeights(), gate, up,
                           down, IntegerAttr(), IntegerAttr());
}
