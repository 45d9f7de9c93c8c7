//===- Diagnostics.h - MLIR's diagnostics for people ------------*- C++ -*-===//
//
// Part of mla. A location in our IR is the path of a Hugging Face module; a
// line is "mla-compile: error: layers.3.mlp: ...". Printing stops after a few
// errors, since one wrong setting can make every layer fail.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_DRIVER_DIAGNOSTICS_H
#define MLA_LIB_DRIVER_DIAGNOSTICS_H

#include "mlir/IR/Diagnostics.h"
#include "llvm/Support/raw_ostream.h"

namespace mla {

class DiagnosticPrinter {
public:
  DiagnosticPrinter(mlir::MLIRContext &context, llvm::raw_ostream &out);

  /// Whether remarks are printed; off for passes that explain each op.
  void showRemarks(bool show) { remarks = show; }
  bool hadErrors() const { return errors != 0; }
  /// Says how many errors were not printed; once, at the end.
  void finish();

private:
  void print(mlir::Diagnostic &diagnostic);
  void line(llvm::StringRef severity, mlir::Diagnostic &diagnostic);

  llvm::raw_ostream &out;
  bool remarks = true;
  unsigned errors = 0;
  bool hidden = false; ///< the last error was not printed, nor are its notes
  mlir::ScopedDiagnosticHandler handler;
};

/// The module path in `loc`, or "".
std::string locationText(mlir::Location loc);

} // namespace mla

#endif // MLA_LIB_DRIVER_DIAGNOSTICS_H
