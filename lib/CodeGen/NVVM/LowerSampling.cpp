//===- LowerSampling.cpp - the program that chooses ids -------------------===//
//
// Part of mla. Not a part of every step: who wants logits pays nothing for it.
//
//===----------------------------------------------------------------------===//
#include "LowerToNVVM.h"

using namespace mlir;

namespace mla::nvvm {

namespace {
class SamplingLowering : ProgramWriter {
public:
  SamplingLowering(ProgramOp program, ModuleOp kernels, const Gpu &gpu)
      : ProgramWriter(program, kernels), program(program), gpu(gpu) {}

  void lower(int64_t vocab) {
    SampleKernels sampling = sample({kernels, program.getLoc(), gpu}, vocab);
    Value logits = port("logits", {"outputs", text(vocab)}, Format::F32);
    Value parameters = port("sampling", {"outputs", "4"}, Format::F32);
    Value topK = port("top_k", {"outputs"}, Format::I32);
    Value sampled = port("sampled", {"outputs"}, Format::I32);
    Value partial =
        workspace({"outputs", text(sampling.partialWidth)}, Format::I32);
    launch(program, sampling.first.name, sampling.first.grid,
           {logits, parameters, topK, partial});
    launch(program, sampling.second.name, sampling.second.grid,
           {logits, parameters, topK, partial, sampled});
  }
  using ProgramWriter::launches;

private:
  ProgramOp program;
  const Gpu &gpu;
};

/// Sums of more weights than this would not fit what the kernels sum them in.
constexpr int64_t maxVocab = int64_t(1) << 22;
} // namespace

int64_t addSampling(ModuleOp module, ModuleOp kernels, const Gpu &gpu,
                    int64_t vocab, int64_t rows) {
  if (vocab >= maxVocab)
    return 0;
  OpBuilder b(kernels);
  auto name = b.getStringAttr("sample");
  auto program = ProgramOp::create(b, NameLoc::get(name), name, rows, rows,
                                   rows, IntegerAttr(), IntegerAttr(),
                                   /*sampling=*/true);
  program.getBody().emplaceBlock();
  SamplingLowering lowering(program, kernels, gpu);
  lowering.lower(vocab);
  return lowering.launches;
}

} // namespace mla::nvvm
