//===- Report.h - what a compile tells at its end ---------------*- C++ -*-===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_DRIVER_REPORT_H
#define MLA_LIB_DRIVER_REPORT_H

#include "CacheFormat.h"
#include "mla/Config/ModelConfig.h"
#include "mlir/IR/BuiltinOps.h"
#include "llvm/Support/raw_ostream.h"

namespace mla {

/// Prints model, weights by format, caches and kernels of a lowered module.
void printReport(mlir::ModuleOp module, const ModelConfig &config,
                 const CacheChoice &cache, llvm::raw_ostream &out);

/// "1.5 GB"; decimal units, as disks and model cards count.
std::string bytesText(uint64_t bytes);

} // namespace mla

#endif // MLA_LIB_DRIVER_REPORT_H
