//===- LowerToNVVM.h - ops to launches on a GPU -----------------*- C++ -*-===//
//
// Part of mla. One step function to one program: see LowerToNVVM.cpp for what
// each op becomes.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_CODEGEN_NVVM_LOWERTONVVM_H
#define MLA_LIB_CODEGEN_NVVM_LOWERTONVVM_H

#include "CollectiveKernels.h"
#include "Lowerings.h"
#include "lib/CodeGen/Emit/ProgramWriter.h"
#include "mla/Plan/Plan.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include <map>
#include <tuple>

namespace mla::nvvm {

/// Lowers the step function into one program. Values of the function map to
/// buffers of the program, with two exceptions: a norm is launched only if a
/// consumer cannot do it itself, and a sum is done by the linear or the experts
/// whose result it adds to the residual stream.
class ProgramLowering : ProgramWriter {
public:
  ProgramLowering(ProgramOp program, mlir::ModuleOp kernels,
                  const LoweringSite &where, int64_t exchangeBlocks)
      : ProgramWriter(program, kernels), program(program), where(where),
        gpu(*where.gpu), exchangeBlocks(exchangeBlocks) {}

  mlir::LogicalResult lower(mlir::func::FuncOp step);
  using ProgramWriter::launches;

private:
  /// A norm, of an op of its own or of a fused one.
  struct Norm {
    mlir::Operation *op = nullptr; ///< null: there is no norm
    mlir::Value x, weight;
    double eps = 0;
    Norm(std::nullptr_t = nullptr) {}
    Norm(mlir::Operation *op, mlir::Value x, mlir::Value weight, double eps)
        : op(op), x(x), weight(weight), eps(eps) {}
    explicit operator bool() const { return op; }
  };
  /// What a matrix reads: the rows, or the rows before a norm and the norm.
  struct Input {
    mlir::Value rows;
    Norm norm;
  };

  mlir::LogicalResult lowerOp(mlir::Operation *op);
  void lowerLinear(mlir::Operation *op, Input x, mlir::ValueRange weights,
                   mlir::ValueRange results, mlir::Value residual,
                   bool gated = false, bool exact = false);
  void lowerHead(LMHeadOp op);
  /// The launches of a linear whose operands behind x and gamma are `operands`.
  void launchLinear(mlir::Operation *op, LinearSpec spec, Input x,
                    llvm::ArrayRef<mlir::Value> operands, int64_t weightBytes);
  /// The lowering that was chosen for `op` in this program, without its target.
  llvm::StringRef chosen(mlir::Operation *op) {
    return loweringOf(op, where.program.name).split('.').second;
  }
  /// That of a linear: chosen for the op, if it is one, else the best for `spec`.
  LinearForm formOf(mlir::Operation *op, const LinearSpec &spec);
  /// x16 of `x` (LargeKernels.h); launched once for all that read the same.
  /// `operands` are packRows()'s, or with `fp4` packRowsFp4()'s, without x16.
  mlir::Value packRowsOnce(mlir::Operation *op, const LinearSpec &spec, Input x,
                           llvm::SmallVector<mlir::Value> operands,
                           bool fp4 = false);
  mlir::LogicalResult lowerShare(ShardBatchOp op);
  void lowerAttention(LatentAttentionOp op);
  void lowerExpand(ExpandValueOp op);
  void lowerCacheWrite(LatentCacheWriteOp op);
  /// What chooses experts: logits, and a bias or null.
  struct Choice {
    RoutingAttr routing;
    mlir::Value logits, bias;
  };
  /// Launches route(): indices and weights.
  std::pair<mlir::Value, mlir::Value> launchRoute(mlir::Operation *op,
                                                  Choice choice);
  /// With `choice`, the experts' kernels choose; else `indices` and `weights` say.
  void lowerExperts(mlir::Operation *op, Input x, std::optional<Choice> choice,
                    mlir::Value indices, mlir::Value weights, int64_t topk,
                    mlir::Value gate, mlir::Value up,
                    mlir::Value down, mlir::ValueRange shared,
                    mlir::Value residual, mlir::Value out);
  void lowerMoE(MoEOp op);

  // What ranks exchange (LowerCollectives.cpp).
  void lowerReduce(AllReduceOp op);
  void lowerReduceNorm(AllReduceRMSNormOp op);
  void lowerGather(AllGatherOp op);
  void lowerMerge(MergeAttentionOp op);
  ExchangeSpec exchangeSpec(int64_t ranks);
  /// Launches a kernel of CollectiveKernels.h on `operands`, without peers, of rows
  /// whose number is `symbol`.
  void launchExchange(mlir::Operation *op, const Kernel &kernel,
                      mlir::ValueRange operands, llvm::StringRef symbol,
                      int64_t exchangeBytes);
  /// Launches what the runtime does: x becomes `to`, of `count` rows of `width`.
  void launchCollective(mlir::Operation *op, plan::Collective kind,
                        llvm::StringRef count, mlir::Value x, mlir::Value to,
                        int64_t width);

  KernelSite site(mlir::Operation *op) {
    return {kernels, op->getLoc(), gpu};
  }
  int64_t maxTokens() { return program.getMaxTokens(); }
  /// Whether products are of many tokens, with rows packed beforehand.
  bool isLarge() { return maxTokens() > 64; }

  /// The program's value for a value of the function; launches a norm that was
  /// put off.
  mlir::Value get(mlir::Value v);
  Input input(mlir::Value v);
  /// If the only use of `v` is a sum with something that is there already:
  /// that, and the sum's result is where `v` is to be written.
  mlir::Value takeResidual(mlir::Value v, mlir::Value &result);

  /// A view of the weight that is `v` in the function.
  mlir::Value view(mlir::Value v, ViewLayout layout, Format format,
                   int64_t first, int64_t blocks, int64_t blockRows,
                   int64_t stride, bool transposed);
  /// All of it; its own format.
  mlir::Value packed(mlir::Value v);
  /// All of it, row by row; its own format, or f32 for what is not standalone.
  mlir::Value rows(mlir::Value v);

  /// A cache write that waits for a launch to stand beside, in programs of one
  /// token.
  struct CacheWrite {
    mlir::Operation *op;
    Kernel kernel;
    llvm::SmallVector<mlir::Value> operands;
    llvm::SmallVector<std::string> scalars;
  };
  void flushCacheWrite();
  void declare(GetCacheOp op); ///< if it was not
  /// The cache write that stands between `op` and its attention, if all that it reads
  /// is there: a gather of queries is between the two, and it moved behind that.
  void takeCacheWrite(mlir::Operation *op);
  /// As launch(), with the cache write that waits, if there is one, beside it.
  void launchWithCacheWrite(mlir::Operation *op, const Kernel &kernel,
                            llvm::SmallVector<mlir::Value> operands,
                            llvm::SmallVector<std::string> scalars,
                            const std::string &weightBytes);

  void launch(mlir::Operation *op, const Kernel &kernel,
              mlir::ValueRange operands, llvm::ArrayRef<std::string> scalars,
              const std::string &weightBytes = "");

  ProgramOp program;
  const LoweringSite &where;
  const Gpu &gpu;
  int64_t exchangeBlocks; ///< most blocks of a kernel that exchanges, or 0
  mlir::Value peers; ///< the table, once something is exchanged
  llvm::DenseMap<mlir::Value, Norm> putOff;
  std::optional<CacheWrite> cacheWrite;
  /// Attention whose splits expand_value combines.
  struct Splits {
    AttentionSpec spec;
    DecodeForm form;
    mlir::Value partial, lse;
  };
  llvm::DenseMap<mlir::Value, Splits> uncombined; ///< by its value
  llvm::DenseSet<mlir::Operation *> done; ///< what another op's lowering did
  llvm::DenseMap<std::pair<mlir::Attribute, mlir::Attribute>, mlir::Value>
      views; ///< of (weight, view)
  /// Rows in 16 bits, of (rows, norm, name of packRows()).
  std::map<std::tuple<void *, void *, std::string>, mlir::Value> packedRows;
};

/// Adds the program that chooses ids from up to `rows` rows of logits, as long as
/// the kernels take the vocabulary. Returns its number of launches.
int64_t addSampling(mlir::ModuleOp module, mlir::ModuleOp kernels,
                    const Gpu &gpu, int64_t vocab, int64_t rows);

//===--- Inside --------------------------------------------------------------===//

inline std::string text(int64_t n) { return std::to_string(n); }

} // namespace mla::nvvm

#endif // MLA_LIB_CODEGEN_NVVM_LOWERTONVVM_H
