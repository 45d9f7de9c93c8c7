//===- Compile.cpp - GPU kernels to PTX -----------------------------------===//
//
// Part of mla. MLIR to LLVM IR to PTX; see Assemble.cpp for ptxas.
//
//===----------------------------------------------------------------------===//
#include "Assemble.h"
#include "lib/CodeGen/Emit/Optimize.h"
#include "mla/CodeGen/NVVM/Compile.h"
#include "mlir/Conversion/Passes.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Target/LLVMIR/Dialect/Builtin/BuiltinToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/LLVMIR/LLVMToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/NVVM/NVVMToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Export.h"
#include "mlir/Transforms/Passes.h"
#include "llvm/Analysis/LoopInfo.h"
#include "llvm/IR/Dominators.h"
#include "llvm/IR/LegacyPassManager.h"
#include "llvm/IR/Module.h"
#include "llvm/MC/TargetRegistry.h"
#include "llvm/Support/CrashRecoveryContext.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/Target/TargetMachine.h"
#include "llvm/Target/TargetOptions.h"

using namespace mlir;
using namespace mla;

/// Lowers scf, arith and nvvm to what LLVM IR can express.
static llvm::Error lowerToLLVMDialect(ModuleOp kernels, const Gpu &gpu) {
  PassManager pm(kernels.getContext());
  // Nothing is canonicalised while there are scf loops: on loops of a hundred
  // accumulators that is quadratic, most of the time of a compile, and LLVM makes
  // the same instructions of it.
  pm.addPass(createCSEPass());
  pm.addPass(createLoopInvariantCodeMotionPass());
  pm.addPass(createSCFToControlFlowPass());
  pm.addPass(createArithToLLVMConversionPass());
  pm.addPass(createConvertControlFlowToLLVMPass());
  pm.addPass(createConvertNVVMToLLVMPass());
  pm.addPass(createReconcileUnrealizedCastsPass());
  pm.addPass(createCanonicalizerPass());
  pm.addPass(createCSEPass());
  if (failed(pm.run(kernels)))
    return makeError("the kernels for " + gpu.name +
                     " could not be lowered to LLVM (see the diagnostics "
                     "above)");
  return llvm::Error::success();
}

static llvm::Expected<std::unique_ptr<llvm::TargetMachine>>
makeTargetMachine(const Gpu &gpu) {
  LLVMInitializeNVPTXTarget();
  LLVMInitializeNVPTXTargetInfo();
  LLVMInitializeNVPTXTargetMC();
  LLVMInitializeNVPTXAsmPrinter();
  llvm::Triple triple("nvptx64-nvidia-cuda");
  std::string error;
  const llvm::Target *target =
      llvm::TargetRegistry::lookupTarget(triple, error);
  if (!target)
    return makeError(error);
  llvm::TargetOptions options;
  options.AllowFPOpFusion = llvm::FPOpFusion::Fast; // mul and add to fma
  // PTX ISA 8.7 is the first that knows sm_120a; drivers for it know it.
  return std::unique_ptr<llvm::TargetMachine>(target->createTargetMachine(
      triple, gpu.name, "+ptx87", options, std::nullopt, std::nullopt,
      llvm::CodeGenOptLevel::Aggressive));
}

/// Tells ptxas, too, to leave loops rolled (.pragma "nounroll").
static void keepLoops(llvm::Function &function) {
  llvm::DominatorTree dominators(function);
  llvm::LoopInfo loops(dominators);
  llvm::LLVMContext &context = function.getContext();
  for (llvm::Loop *loop : loops.getLoopsInPreorder()) {
    llvm::Metadata *no[] = {
        nullptr, llvm::MDNode::get(context, llvm::MDString::get(
                                                context,
                                                "llvm.loop.unroll.disable"))};
    llvm::MDNode *id = llvm::MDNode::getDistinct(context, no);
    id->replaceOperandWith(0, id);
    loop->setLoopID(id);
  }
}

namespace {
/// What LLVM said when it gave up: instruction selection aborts the process on
/// what a target lacks.
struct FatalError {
  std::string message;
  static void handle(void *self, const char *reason, bool) {
    static_cast<FatalError *>(self)->message = reason;
    if (auto *recovery = llvm::CrashRecoveryContext::GetCurrent())
      recovery->HandleExit(EXIT_FAILURE);
  }
};
} // namespace

/// PTX of `module`, or why LLVM cannot make it.
static llvm::Expected<std::string>
emitPTX(llvm::Module &module, llvm::TargetMachine &machine, const Gpu &gpu) {
  llvm::SmallString<0> text;
  FatalError fatal;
  bool supported = true;
  llvm::CrashRecoveryContext::Enable();
  llvm::CrashRecoveryContext recovery;
  llvm::install_fatal_error_handler(FatalError::handle, &fatal);
  bool done = recovery.RunSafely([&] {
    // Kernels are unrolled where they are written; code that does not fit the
    // instruction cache is slower than a loop.
    optimizeKernels(module, machine, llvm::OptimizationLevel::O3,
                    /*unrollLoops=*/false);
    for (llvm::Function &function : module)
      if (!function.isDeclaration())
        keepLoops(function);
    llvm::raw_svector_ostream stream(text);
    llvm::legacy::PassManager codegen;
    supported = !machine.addPassesToEmitFile(
        codegen, stream, nullptr, llvm::CodeGenFileType::AssemblyFile);
    if (supported)
      codegen.run(module);
  });
  llvm::remove_fatal_error_handler();
  llvm::CrashRecoveryContext::Disable();
  if (!done)
    return makeError("LLVM cannot compile the kernels for " + gpu.name + ": " +
                     (fatal.message.empty() ? "it crashed" : fatal.message));
  if (!supported)
    return makeError("LLVM cannot write PTX for " + gpu.name);
  return std::string(text);
}

/// A call of what no kernel defines would be found by the driver only.
static llvm::Error checkExternals(llvm::StringRef ptx, const Gpu &gpu) {
  size_t at = ptx.find(".extern .func");
  if (at == llvm::StringRef::npos)
    return llvm::Error::success();
  llvm::StringRef declaration = ptx.substr(at).split(';').first;
  return makeError("the kernels for " + gpu.name +
                   " call a function that does not exist: " +
                   declaration.str());
}

int64_t KernelResources::blocksPerSM(const Gpu &gpu) const {
  int64_t blocks = gpu.threadsPerSM / std::max<int64_t>(threads, 1);
  // Shared memory comes in units of 128 bytes with 1,024 reserved a block,
  // registers in units of 256 a warp.
  blocks = std::min(blocks, gpu.sharedBytesPerSM /
                                int64_t(llvm::alignTo(sharedBytes, 128) + 1024));
  if (registers) {
    int64_t perWarp = llvm::alignTo(registers * 32, 256);
    int64_t warps = (threads + 31) / 32;
    blocks = std::min(blocks, gpu.registersPerSM / perWarp / warps);
  }
  return blocks;
}

/// What the kernels ask for, before any is compiled.
static llvm::Expected<std::vector<KernelResources>>
declaredResources(ModuleOp kernels, const Gpu &gpu) {
  std::vector<KernelResources> all;
  for (auto function : kernels.getOps<LLVM::LLVMFuncOp>()) {
    auto shared = function->getAttrOfType<IntegerAttr>("mla.shared");
    auto threads = function->getAttrOfType<IntegerAttr>("mla.threads");
    if (!shared || !threads)
      continue;
    KernelResources one;
    one.kernel = function.getName().str();
    one.threads = threads.getInt();
    one.sharedBytes = shared.getInt();
    if (one.sharedBytes > gpu.sharedBytesPerBlock) {
      function.emitError("kernel '")
          << one.kernel << "' needs " << one.sharedBytes
          << " bytes of shared memory, " << gpu.name << " has "
          << gpu.sharedBytesPerBlock;
      return makeError("a kernel does not fit " + gpu.name);
    }
    all.push_back(std::move(one));
  }
  return all;
}

/// PTX of lowered kernels.
static llvm::Expected<std::string> translate(ModuleOp kernels, const Gpu &gpu) {
  llvm::LLVMContext context;
  std::unique_ptr<llvm::Module> module =
      translateModuleToLLVMIR(kernels, context, "kernels");
  if (!module)
    return makeError("the kernels for " + gpu.name +
                     " could not be translated to LLVM IR");
  auto machine = makeTargetMachine(gpu);
  if (!machine)
    return machine.takeError();
  module->setDataLayout((*machine)->createDataLayout());
  module->setTargetTriple((*machine)->getTargetTriple());
  return emitPTX(*module, **machine, gpu);
}

/// LLVM does not say which function it gave up on: compiles one by one and
/// emits an error at each that fails.
static void blameKernels(ModuleOp kernels, const Gpu &gpu) {
  for (auto function : kernels.getOps<LLVM::LLVMFuncOp>()) {
    if (function.isExternal())
      continue;
    OwningOpRef<ModuleOp> alone = kernels.clone();
    for (auto other :
         llvm::make_early_inc_range(alone->getOps<LLVM::LLVMFuncOp>()))
      if (!other.isExternal() && other.getName() != function.getName())
        other.erase();
    auto ptx = translate(*alone, gpu);
    if (!ptx)
      function.emitError("kernel '")
          << function.getName() << "': " << llvm::toString(ptx.takeError());
  }
}

llvm::Expected<GpuCode> mla::compileGpuKernels(ModuleOp kernels,
                                               const Gpu &gpu) {
  GpuCode code;
  auto resources = declaredResources(kernels, gpu);
  if (!resources)
    return resources.takeError();
  code.resources = std::move(*resources);
  if (llvm::Error error = lowerToLLVMDialect(kernels, gpu))
    return error;
  DialectRegistry registry;
  registerBuiltinDialectTranslation(registry);
  registerLLVMDialectTranslation(registry);
  registerNVVMDialectTranslation(registry);
  kernels.getContext()->appendDialectRegistry(registry);
  auto ptx = translate(kernels, gpu);
  if (!ptx) {
    blameKernels(kernels, gpu);
    return ptx.takeError();
  }
  code.ptx = std::move(*ptx);
  if (llvm::Error error = checkExternals(code.ptx, gpu))
    return error;
  if (llvm::Error error = assemble(code, gpu))
    return error;
  return code;
}
