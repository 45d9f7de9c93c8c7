//===- CompileTest.cpp - kernels to a shared library ----------------------===//
//
// Part of mla. What goes wrong between the kernels and the library is an error
// that says so.
//
//===----------------------------------------------------------------------===//
#include "Harness.h"
#include "mla/CodeGen/Host/Emit.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Builders.h"
#include <filesystem>

using namespace mla;
using namespace mla::test;

namespace {

class CompileHostKernels : public testing::Test {
protected:
  std::string compile(const std::string &path) {
    return llvm::toString(
        compileHostKernels(kernels.site().kernels, "x86-64-v3", path));
  }

  Kernels kernels;
  TempFolder folder;
};

TEST_F(CompileHostKernels, NamesAnUndefinedFunction) {
  mlir::ModuleOp module = kernels.site().kernels;
  auto b = mlir::OpBuilder::atBlockEnd(module.getBody());
  mlir::Location loc = kernels.site().loc;
  auto callee = mlir::func::FuncOp::create(b, loc, "missing_function",
                                           b.getFunctionType({}, {}));
  callee.setPrivate();
  auto caller =
      mlir::func::FuncOp::create(b, loc, "caller", b.getFunctionType({}, {}));
  b.setInsertionPointToStart(caller.addEntryBlock());
  mlir::func::CallOp::create(b, loc, callee);
  mlir::func::ReturnOp::create(b, loc);
  std::string path = (folder / "kernels.so").string();
  EXPECT_EQ(compile(path), "the host kernels call 'missing_function', which no "
                           "host library defines");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path));
}

TEST_F(CompileHostKernels, NamesAPathThatCannotBeWritten) {
  host::add(kernels.site(), 8);
  std::string path = (folder / "nowhere/kernels.so").string();
  std::string message = compile(path);
  EXPECT_NE(message.find(path), std::string::npos) << message;
  EXPECT_NE(message.find("No such file"), std::string::npos) << message;
}

TEST_F(CompileHostKernels, WritesOneFile) {
  host::rotaryEmbedding(kernels.site(), {1.0f, 0.5f}, 1.0);
  host::linear(kernels.site(), {{Format::BF16, 8, 8}});
  EXPECT_EQ(compile((folder / "kernels.so").string()), "");
  auto files = std::filesystem::directory_iterator(folder.path);
  EXPECT_EQ(std::distance(begin(files), end(files)), 1);
}

} // namespace
