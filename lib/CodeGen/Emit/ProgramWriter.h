//===- ProgramWriter.h - launches of a program ------------------*- C++ -*-===//
//
// Part of mla. What the lowerings of all targets do alike: ports, workspaces that
// carry the name of the value that they hold, launches.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_CODEGEN_EMIT_PROGRAMWRITER_H
#define MLA_LIB_CODEGEN_EMIT_PROGRAMWRITER_H

#include "mla/Dialect/MLA.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/BuiltinOps.h"

namespace mla {

class ProgramWriter {
public:
  int64_t launches = 0; ///< written

protected:
  /// Writes at the end of `program`, of launches of kernels in `kernels`.
  ProgramWriter(ProgramOp program, mlir::ModuleOp kernels)
      : b(mlir::OpBuilder::atBlockEnd(&program.getBody().front())),
        kernels(kernels) {}

  mlir::Value port(llvm::StringRef name, llvm::ArrayRef<llvm::StringRef> shape,
                   Format format);
  mlir::Value positions() { return port("positions", {"tokens"}, Format::I32); }
  mlir::Value sequence() { return port("sequence", {"tokens"}, Format::I32); }
  mlir::Value pageTable() {
    return port("page_table", {"sequences", "pages"}, Format::I32);
  }
  mlir::Value workspace(llvm::ArrayRef<std::string> shape, Format format);
  /// One for what an op computes on the way to `v`, its result: it carries v's name
  /// and `suffix`.
  mlir::Value inner(mlir::Value v, llvm::StringRef suffix,
                    llvm::ArrayRef<std::string> shape, Format format);
  /// A new workspace for a result of the function.
  mlir::Value result(mlir::Value v);
  /// The bits of an FP8 cache's scale as a scalar; nothing for other caches.
  std::optional<std::string> cacheScale(mlir::Value cache);
  /// `weightBytes`: an expression, "" if not known.
  void launch(mlir::Operation *op, llvm::StringRef kernel,
              llvm::StringRef grid, mlir::ValueRange operands,
              llvm::ArrayRef<llvm::StringRef> scalars = {},
              llvm::StringRef weightBytes = "");

  mlir::OpBuilder b;
  mlir::ModuleOp kernels;
  /// The program's value for a value of the function.
  llvm::DenseMap<mlir::Value, mlir::Value> mapped;
  llvm::DenseMap<mlir::Value, std::string> valueNames; ///< nameValues()

private:
  llvm::StringMap<mlir::Value> ports;
};

} // namespace mla

#endif // MLA_LIB_CODEGEN_EMIT_PROGRAMWRITER_H
