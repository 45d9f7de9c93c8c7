//===- Passes.td - lowering to GPU targets --------------------*- tablegen -*-===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_CODEGEN_NVVM_PASSES_TD
#define MLA_CODEGEN_NVVM_PASSES_TD

include "mlir/Pass/PassBase.td"

def LowerToNVVMPass : Pass<"mla-lower-to-nvvm", "::mlir::ModuleOp"> {
  let summary = "Turns the step function into launches of GPU kernels";
  let description = [{
    Needs a module whose ops were given lowerings by `mla-select-lowering` for
    the same target. `func @step` becomes one `mla.program` for each entry of
    `step-tokens`, whose launches name kernels in the module `@kernels`: functions
    of nvvm, llvm, arith and scf ops, made once for all layers and programs that
    use them with the same shapes and formats.

    A norm is done by the linears that read it in a program of one token, and a
    sum by the linear or the experts whose result it adds to the residual stream.

    ```mlir
    %n = mla.rms_norm %x, %g {eps = 1.0e-6 : f64, lowering = "sm_90a.rms_norm"} : ...
    %y = mla.linear %n, %w {lowering = "sm_90a.linear"} : (tensor<?x256xf32>, !mla.weight<512x256xbf16>) -> tensor<?x512xf32>
    ```
    becomes
    ```mlir
    %g = mla.get_weight @norm {view = #mla.view<layout = rows, ...>} : ...
    %w = mla.get_weight @up_proj {view = #mla.view<layout = packed, ...>} : ...
    %y = mla.workspace of "layers.0.mlp.up_proj/linear:0" : !mla.buffer<["tokens", "512"], f32>
    mla.launch @linear_... grid "132" (%x, %g, %w, %y : ...) scalars ["tokens"] for "layers.0.mlp.up_proj" reads "262144"
    ```
    One more program, `@sample`, chooses ids from the logits that a step left, if
    the vocabulary is below 2^22.

    Does not place workspaces: `mla-plan-memory` does.
  }];
  let options = [
    Option<"target", "target", "std::string", "\"sm_120a\"",
           "Architecture, shipped machine, or a machine's file">,
    ListOption<"stepTokens", "step-tokens", "int64_t",
               "Most tokens of a step, ascending; one program each (default 1, 8, 64)">,
    Option<"maxSequences", "max-sequences", "int64_t", "64",
           "Most sequences of a step">,
    Option<"sampling", "sampling", "bool", "true",
           "Add the program that chooses ids from logits">,
    Option<"maxContext", "max-context", "int64_t", "131072",
           "Most tokens of a sequence">,
    Option<"activations", "activations", "std::string", "\"16bit\"",
           "16bit or fp4">,
    Option<"exchangeBlocks", "exchange-blocks", "int64_t", "0",
           "Most blocks of a kernel that waits for other ranks; 0: so many that they "
           "fill half of a GPU, of which the runtime gives each rank on it a part">
  ];
  let statistics = [
    Statistic<"numKernels", "kernels", "Kernels made">,
    Statistic<"numLaunches", "launches", "Launches in all programs">
  ];
  let dependentDialects = [
    "::mla::MLADialect", "::mlir::arith::ArithDialect", "::mlir::func::FuncDialect",
    "::mlir::LLVM::LLVMDialect", "::mlir::NVVM::NVVMDialect", "::mlir::scf::SCFDialect"
  ];
}

#endif // MLA_CODEGEN_NVVM_PASSES_TD
