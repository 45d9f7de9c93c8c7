//===- StepFunction.h - a step function instead of a model ------*- C++ -*-===//
//
// Part of mla. For tests and benchmarks of single ops: a module with weights,
// caches and `func @step`, as the front end would make it.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_DRIVER_STEPFUNCTION_H
#define MLA_LIB_DRIVER_STEPFUNCTION_H

#include "mla/Config/ModelConfig.h"
#include "mlir/IR/OwningOpRef.h"
#include "mlir/IR/BuiltinOps.h"
#include "llvm/Support/Error.h"
#include <filesystem>

namespace mla {

/// Most tokens of a sequence, unless --max-context says less.
constexpr int64_t stepFunctionContext = int64_t(1) << 20;

/// Parses `file` and fills of `config` what a plan says of a model: vocabulary,
/// hidden size, layers (latent caches), positions.
llvm::Expected<mlir::OwningOpRef<mlir::ModuleOp>>
readStepFunction(mlir::MLIRContext &context, const std::filesystem::path &file,
                 ModelConfig &config);

} // namespace mla

#endif // MLA_LIB_DRIVER_STEPFUNCTION_H
