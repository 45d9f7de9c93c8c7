//===- LinearLowerings.cpp - lowerings of linears -------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "Lowerings.h"
#include "StreamCore.h"

using namespace mlir;
using namespace mla;
using namespace mla::nvvm;

static std::string tokens(int64_t n) {
  return n == 1 ? "one token" : "up to " + std::to_string(n) + " tokens";
}

static std::optional<Refusal> wrongSize(StringRef needs,
                                        const LinearSpec &spec) {
  return Refusal{Need::StepSize,
                 ("needs steps of " + needs + ", found " +
                  tokens(spec.maxTokens))
                     .str(),
                 ""};
}

LinearForm nvvm::parseLinearForm(StringRef lowering) {
  StringRef form = lowering.substr(lowering.rfind('_') + 1);
  if (form == "stream")
    return LinearForm::Stream;
  if (form == "tile")
    return LinearForm::Tile;
  if (form == "large")
    return LinearForm::Large;
  return form == "fp4" ? LinearForm::LargeFp4 : LinearForm::F32;
}

std::optional<Refusal> nvvm::refusal(LinearForm form, const LinearSpec &spec,
                                     const LoweringSite &site) {
  Format format = spec.segments[0].format;
  if ((form == LinearForm::F32) == isPacked(format))
    return Refusal{Need::WeightFormat,
                   std::string("needs weights in ") +
                       (form == LinearForm::F32
                            ? "f32 or f16"
                            : "bf16, fp8_block, nvfp4 or int4_g32") +
                       ", found " + std::string(formatName(format)),
                   ""};
  int64_t small = 64, few = 16;
  switch (form) {
  case LinearForm::F32:
    return std::nullopt;
  case LinearForm::Stream:
    if (spec.maxTokens != 1)
      return wrongSize("one token", spec);
    if (!canStream(spec, *site.gpu))
      return Refusal{Need::SharedMemory,
                     "needs x and two stages of weights within " +
                         std::to_string(streamShared) +
                         " bytes of shared memory, found " +
                         std::to_string(spec.segments[0].columns) +
                         " columns of x" + (spec.exact ? ", twice" : ""),
                     ""};
    return std::nullopt;
  case LinearForm::Tile:
    if (spec.maxTokens > small)
      return wrongSize("up to 64 tokens", spec);
    return std::nullopt;
  case LinearForm::LargeFp4:
    if (format != Format::NVFP4)
      return Refusal{Need::WeightFormat,
                     "needs weights in nvfp4, found " +
                         std::string(formatName(format)),
                     ""};
    if (!site.gpu->hasFp4)
      return Refusal{Need::Instruction,
                     "needs block-scaled fp4 products (mma.sync kind::mxf4nvf4), "
                     "which " +
                         site.gpu->name.str() + " has not",
                     ""};
    if (!site.fp4Activations || spec.exact)
      return Refusal{Need::Activations,
                     "needs activations in 4 bits, found 16", "--activations fp4"};
    [[fallthrough]];
  case LinearForm::Large:
    if (spec.maxTokens <= few)
      return wrongSize("more than 16 tokens", spec);
    return std::nullopt;
  }
  llvm_unreachable("all forms are handled");
}

cost::Estimate nvvm::estimate(LinearForm form, const LinearSpec &spec,
                              const LoweringSite &site,
                              const cost::Step &step) {
  SmallVector<cost::Matrix> segments;
  for (const MatrixShape &m : spec.segments)
    segments.push_back(costMatrix(m));
  // A row of logits for each sequence.
  int64_t rows = spec.outputs ? std::min(step.tokens, step.sequences) : step.tokens;
  switch (form) {
  case LinearForm::Stream:
    return site.model.linearStream(segments);
  case LinearForm::Tile:
    return site.model.linearTile(segments, rows);
  case LinearForm::Large:
    return site.model.linearLarge(segments, rows);
  case LinearForm::LargeFp4: {
    // The tensor cores do twice as much; nothing is known of the rest, since it has
    // never been executed.
    cost::Estimate e = site.model.linearLarge(segments, rows);
    e.seconds = std::max(e.seconds / 2, e.floorSeconds);
    return e;
  }
  case LinearForm::F32:
    return site.model.linearF32(segments, rows);
  }
  llvm_unreachable("all forms are handled");
}

LinearForm nvvm::bestForm(const LinearSpec &spec, const LoweringSite &site) {
  if (!isPacked(spec.segments[0].format))
    return LinearForm::F32;
  LinearForm best = LinearForm::Tile;
  double least = 0;
  for (LinearForm form : {LinearForm::Stream, LinearForm::Tile,
                          LinearForm::Large, LinearForm::LargeFp4}) {
    if (refusal(form, spec, site))
      continue;
    double seconds = estimate(form, spec, site, site.step()).seconds;
    if (least == 0 || seconds * withinError < least)
      least = seconds, best = form;
  }
  return best;
}

//===----------------------------------------------------------------------===//
// Ops
//===----------------------------------------------------------------------===//

/// What an op's launches compute: one for each run of weights of one format.
static SmallVector<LinearSpec> specsOf(Operation *op,
                                       const LoweringSite &site) {
  SmallVector<LinearSpec> specs;
  for (Value operand : op->getOperands()) {
    if (!isa<WeightType>(operand.getType()))
      continue;
    MatrixShape m = matrix(operand);
    if (specs.empty() || specs.back().segments[0].format != m.format) {
      LinearSpec &spec = specs.emplace_back();
      spec.maxTokens = site.program.maxTokens;
      spec.gated = isa<GatedLinearOp>(op);
      spec.outputs = isa<LMHeadOp>(op);
    }
    specs.back().segments.push_back(m);
  }
  // Runs in f32 have their own kernel beside any other.
  if (llvm::any_of(specs, [](const LinearSpec &spec) {
        return isPacked(spec.segments[0].format);
      }))
    llvm::erase_if(specs, [](const LinearSpec &spec) {
      return !isPacked(spec.segments[0].format);
    });
  return specs;
}

template <LinearForm form>
static std::optional<Refusal> refuses(Operation *op, const LoweringSite &site) {
  for (const LinearSpec &spec : specsOf(op, site))
    if (auto lacks = refusal(form, spec, site))
      return lacks;
  return std::nullopt;
}

template <LinearForm form>
static cost::Estimate costOf(Operation *op, const LoweringSite &site,
                           const cost::Step &step) {
  cost::Estimate sum;
  for (const LinearSpec &spec : specsOf(op, site))
    sum += estimate(form, spec, site, step);
  return sum;
}

ArrayRef<Lowering> nvvm::linearLowerings() {
  using enum LinearForm;
#define FORMS(prefix, op)                                                      \
  {prefix "_stream", op, refuses<Stream>, costOf<Stream>},                       \
      {prefix "_tile", op, refuses<Tile>, costOf<Tile>},                         \
      {prefix "_large", op, refuses<Large>, costOf<Large>},                      \
      {prefix "_large_fp4", op, refuses<LargeFp4>, costOf<LargeFp4>},            \
      {prefix "_f32", op, refuses<F32>, costOf<F32>}
  static const Lowering list[] = {
      FORMS("linear", "mla.linear"),
      FORMS("joined_linear", "mla.joined_linear"),
      FORMS("gated_linear", "mla.gated_linear"),
      FORMS("lm_head", "mla.lm_head"),
  };
#undef FORMS
  return list;
}
