//===- Passes.td - lowering to the host target ----------------*- tablegen -*-===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_CODEGEN_HOST_PASSES_TD
#define MLA_CODEGEN_HOST_PASSES_TD

include "mlir/Pass/PassBase.td"

def LowerToHostPass : Pass<"mla-lower-to-host", "::mlir::ModuleOp"> {
  let summary = "Turns the step function into launches of host kernels";
  let description = [{
    Needs a module whose ops were given lowerings by `mla-select-lowering`.
    `func @step` becomes one `mla.program` for each entry of `step-tokens`,
    whose launches name kernels in the module `@kernels`. A kernel is made once
    for all layers and programs that use it with the same shapes and formats.

    ```mlir
    %y = mla.linear %x, %w {lowering = "host.linear"} : (tensor<?x256xf32>, !mla.weight<512x256xbf16>) -> tensor<?x512xf32>
    ```
    becomes
    ```mlir
    %y = mla.workspace : !mla.buffer<["tokens", "512"], f32>
    mla.launch @linear_256_bf16_512 grid "16" (%x, %w, %y : ...) scalars ["tokens"] for "layers.0.mlp.up_proj"
    ```
    Does not place workspaces: `mla-plan-memory` does.
  }];
  let options = [
    ListOption<"stepTokens", "step-tokens", "int64_t",
               "Most tokens of a step, ascending; one program each (default 16, 256)">,
    Option<"maxSequences", "max-sequences", "int64_t", "64",
           "Most sequences of a step">
  ];
  let statistics = [
    Statistic<"numKernels", "kernels", "Kernels made">,
    Statistic<"numLaunches", "launches", "Launches in all programs">
  ];
  let dependentDialects = [
    "::mla::MLADialect", "::mlir::arith::ArithDialect", "::mlir::func::FuncDialect",
    "::mlir::LLVM::LLVMDialect", "::mlir::math::MathDialect",
    "::mlir::memref::MemRefDialect", "::mlir::scf::SCFDialect",
    "::mlir::vector::VectorDialect"
  ];
}

#endif // MLA_CODEGEN_HOST_PASSES_TD
