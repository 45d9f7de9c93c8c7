//===- Compile.cpp - kernels to a shared library --------------------------===//
//
// Part of mla. MLIR to LLVM IR, optimised and compiled for the chosen CPU,
// linked by lld as a library. No C compiler and no linker is called.
//
//===----------------------------------------------------------------------===//
#include "lib/CodeGen/Emit/Optimize.h"
#include "mla/CodeGen/Host/Emit.h"
#include "mlir/Conversion/Passes.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Target/LLVMIR/Dialect/Builtin/BuiltinToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/LLVMIR/LLVMToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Export.h"
#include "mlir/Transforms/Passes.h"
#include "lld/Common/Driver.h"
#include "llvm/IR/LegacyPassManager.h"
#include "llvm/IR/Module.h"
#include "llvm/MC/TargetRegistry.h"
#include "llvm/Object/ObjectFile.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/Target/TargetMachine.h"
#include "llvm/Target/TargetOptions.h"

LLD_HAS_DRIVER(elf)

using namespace mlir;
using namespace mla;

template <typename... Ts>
static llvm::Error makeError(const char *format, Ts... values) {
  return llvm::createStringError(llvm::inconvertibleErrorCode(), format,
                                 values...);
}

/// Lowers vector, scf, memref, math and arith to the LLVM dialect.
static llvm::Error lowerToLLVMDialect(ModuleOp kernels) {
  PassManager pm(kernels.getContext());
  pm.addPass(createCanonicalizerPass());
  pm.addPass(createCSEPass());
  pm.addPass(createLoopInvariantCodeMotionPass());
  pm.addPass(createSCFToControlFlowPass());
  pm.addPass(createConvertVectorToLLVMPass());
  pm.addPass(createConvertMathToLLVMPass());
  pm.addPass(createFinalizeMemRefToLLVMConversionPass());
  pm.addPass(createArithToLLVMConversionPass());
  pm.addPass(createConvertIndexToLLVMPass());
  pm.addPass(createConvertFuncToLLVMPass());
  pm.addPass(createConvertControlFlowToLLVMPass());
  pm.addPass(createReconcileUnrealizedCastsPass());
  pm.addPass(createCanonicalizerPass());
  pm.addPass(createCSEPass());
  if (failed(pm.run(kernels)))
    return makeError("the host kernels could not be lowered to LLVM (see the "
                     "diagnostics above)");
  return llvm::Error::success();
}

static llvm::Expected<std::unique_ptr<llvm::TargetMachine>>
makeTargetMachine(const std::string &cpu) {
  llvm::InitializeNativeTarget();
  llvm::InitializeNativeTargetAsmPrinter();
  llvm::Triple triple("x86_64-unknown-linux-gnu");
  std::string error;
  const llvm::Target *target =
      llvm::TargetRegistry::lookupTarget(triple, error);
  if (!target)
    return makeError("%s", error.c_str());
  llvm::TargetOptions options;
  // A multiplication and an addition are fused where a kernel says so, nowhere
  // else: results must not depend on what the optimiser finds.
  options.AllowFPOpFusion = llvm::FPOpFusion::Strict;
  return std::unique_ptr<llvm::TargetMachine>(target->createTargetMachine(
      triple, cpu, "", options, llvm::Reloc::PIC_, std::nullopt,
      llvm::CodeGenOptLevel::Aggressive));
}

/// An object may call only what every C library's math part has.
static llvm::Error checkExternals(llvm::StringRef object) {
  static const llvm::StringRef allowed[] = {"sinf", "cosf", "sincosf", "logf", "memcpy", "memset",
                                            "memmove"};
  auto file = llvm::object::ObjectFile::createObjectFile(
      llvm::MemoryBufferRef(object, "kernels"));
  if (!file)
    return file.takeError();
  for (const llvm::object::SymbolRef &symbol : (*file)->symbols()) {
    auto flags = symbol.getFlags();
    if (!flags)
      return flags.takeError();
    if (!(*flags & llvm::object::BasicSymbolRef::SF_Undefined))
      continue;
    auto name = symbol.getName();
    if (!name)
      return name.takeError();
    if (!name->empty() && !llvm::is_contained(allowed, *name))
      return makeError("the host kernels call '%s', which no host library "
                       "defines",
                       name->str().c_str());
  }
  return llvm::Error::success();
}

/// Links `object` to a shared library at `path`.
static llvm::Error link(llvm::StringRef object,
                        const std::filesystem::path &path) {
  std::filesystem::path objectPath = path;
  objectPath += ".o";
  std::error_code ec;
  {
    llvm::raw_fd_ostream out(objectPath.string(), ec);
    if (!ec)
      out << object;
  }
  if (ec)
    return makeError("%s: %s", objectPath.c_str(), ec.message().c_str());
  std::string output = path.string(), input = objectPath.string();
  const char *arguments[] = {"ld.lld",        "-shared",       "-z",
                             "noexecstack",   "--hash-style=gnu",
                             "--build-id=none", "-o",           output.c_str(),
                             input.c_str()};
  std::string messages;
  llvm::raw_string_ostream stream(messages);
  lld::Result result = lld::lldMain(arguments, stream, stream,
                                    {{lld::Gnu, &lld::elf::link}});
  std::filesystem::remove(objectPath, ec);
  if (result.retCode != 0)
    return makeError("%s could not be linked: %s", output.c_str(),
                     messages.c_str());
  return llvm::Error::success();
}

llvm::Error mla::compileHostKernels(ModuleOp kernels, const std::string &cpu,
                                    const std::filesystem::path &path) {
  if (llvm::Error error = lowerToLLVMDialect(kernels))
    return error;
  DialectRegistry registry;
  registerBuiltinDialectTranslation(registry);
  registerLLVMDialectTranslation(registry);
  kernels.getContext()->appendDialectRegistry(registry);
  llvm::LLVMContext context;
  std::unique_ptr<llvm::Module> module =
      translateModuleToLLVMIR(kernels, context, "kernels");
  if (!module)
    return makeError("the host kernels could not be translated to LLVM IR");
  auto machine = makeTargetMachine(cpu);
  if (!machine)
    return machine.takeError();
  module->setDataLayout((*machine)->createDataLayout());
  module->setTargetTriple((*machine)->getTargetTriple());
  for (llvm::Function &f : *module) {
    if (f.isDeclaration())
      continue;
    f.addFnAttr("target-cpu", cpu);
    f.addFnAttr(llvm::Attribute::NoUnwind);
  }
  optimizeKernels(*module, **machine, llvm::OptimizationLevel::O2,
                  /*unrollLoops=*/true);
  llvm::SmallString<0> object;
  llvm::raw_svector_ostream stream(object);
  llvm::legacy::PassManager codegen;
  if ((*machine)->addPassesToEmitFile(codegen, stream, nullptr,
                                      llvm::CodeGenFileType::ObjectFile))
    return makeError("the host target cannot write objects");
  codegen.run(*module);
  if (llvm::Error error = checkExternals(object))
    return error;
  return link(object, path);
}
