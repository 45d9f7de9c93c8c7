//===- Kernels.h - kernels that exchange rows, without a plan ---*- C++ -*-===//
//
// Part of mla. By these the runtime tries and measures exchanges. Kernels.ptx is
// what nvvm::collectiveSuite() makes (unittests/CodeGen/NVVM/CollectiveTest.cpp),
// for 2 to 8 ranks and any GPU from compute capability 9.0 on. Rows are of f32; the
// format is what is exchanged.
//
// Threads: load() by one at a time; launches by as many as there are streams.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_COLLECTIVES_P2P_KERNELS_H
#define MLA_RUNTIME_COLLECTIVES_P2P_KERNELS_H

#include "mla/Support/Status.h"
#include "runtime/collectives/p2p/Peers.h"
#include <array>
#include <memory>
#include <span>

namespace mla::p2p {

/// In the order of kernelTable. Buffers in parentheses, without the peers, which come
/// first where `exchanges` is set.
enum class Kernel {
  // y = sum of x over the ranks, `rows` values (x, y).
  OneShotBf16,
  TwoShotBf16,
  OneShotF32,
  TwoShotF32,
  // The same, loaded from the other ranks.
  OneShotPullF32,
  TwoShotPullF32,
  // y = residual + sum of x over the ranks, rows of 7168 (x, residual, y).
  OneShotRows,
  TwoShotRows,
  OneShotPullRows,
  TwoShotPullRows,
  // The same and its RMS norm, eps 1e-5 (x, residual, y, weight bf16, normed).
  ReduceNorm,
  // y[i * 8 + r] = x[i] of rank r, i < rows (x, y).
  GatherFlagged,
  // Rows of 192 and of 72 to rows of 1536 and 576, rank r's from column 192 r and
  // 72 r on (x0, y0, x1, y1).
  GatherTwoFlagged,
  // The same in bulk.
  GatherBulk,
  GatherTwoBulk,
  // Loaded from the other ranks.
  GatherPull,
  GatherTwoPull,
  // 8 heads a rank of 512 values (x [rows, ranks * 8, 512], lse [rows, ranks * 8],
  // y [rows, 8, 512]).
  MergeFlagged,
  MergeBulk,
  MergePull,
  // Rows of 7168 that are exchanged with nobody: y = a + b (a, b, y); the norm
  // (x, weight bf16, y); y = x (x, y).
  Add,
  RmsNorm,
  Copy,
};

struct KernelInfo {
  const char *name;
  int buffers; ///< without the peers
  bool exchanges;
  /// Blocks: ceil(rows * unitsOfRow / unitsOfBlock), of kernels that exchange no more
  /// than mostBlocks and Peers::mostBlocks().
  int64_t unitsOfRow, unitsOfBlock;
};

constexpr int64_t mostBlocks = 64;
constexpr KernelInfo kernelTable[] = {
    {"all_reduce_one_shot_bf16_1", 2, true, 1, 1024},
    {"all_reduce_two_shot_bf16_1", 2, true, 1, 2048},
    {"all_reduce_one_shot_f32_1", 2, true, 1, 512},
    {"all_reduce_two_shot_f32_1", 2, true, 1, 1024},
    {"all_reduce_one_shot_pull_f32_1", 2, true, 1, 1024},
    {"all_reduce_two_shot_pull_f32_1", 2, true, 1, 1024},
    {"all_reduce_one_shot_bf16_7168_residual", 3, true, 7168, 1024},
    {"all_reduce_two_shot_bf16_7168_residual", 3, true, 7168, 2048},
    {"all_reduce_one_shot_pull_bf16_7168_residual", 3, true, 7168, 2048},
    {"all_reduce_two_shot_pull_bf16_7168_residual", 3, true, 7168, 2048},
    {"all_reduce_norm_bf16_7168_residual_bf16_3727c5ac", 5, true, 1792, 256},
    {"all_gather_flagged_f32_1x8", 2, true, 1, 256},
    {"all_gather_flagged_f32_192x1536_72x576", 4, true, 132, 256},
    {"all_gather_bulk_f32_1x8", 2, true, 1, 256},
    {"all_gather_bulk_f32_192x1536_72x576", 4, true, 66, 256},
    {"all_gather_pull_f32_1x8", 2, true, 1, 256},
    {"all_gather_pull_f32_192x1536_72x576", 4, true, 66, 256},
    {"merge_attention_flagged_bf16_8_512", 3, true, 8, 1},
    {"merge_attention_bulk_bf16_8_512", 3, true, 8, 1},
    {"merge_attention_pull_bf16_8_512", 3, true, 8, 1},
    {"add_7168", 3, false, 7, 1},
    {"rms_norm_bf16_7168_3727c5ac", 3, false, 1, 1},
    {"repeat_7168_7168", 2, false, 7, 1},
};
constexpr size_t kernelCount = std::size(kernelTable);

constexpr const KernelInfo &infoOf(Kernel kernel) {
  return kernelTable[static_cast<size_t>(kernel)];
}

/// Exchange memory of a rank that these kernels need, as Peers::connect() takes it.
constexpr uint64_t exchangeBytes = 67'244'032;
/// Of a block, enough for each of them.
constexpr unsigned sharedBytes = 32 << 10;

/// The kernels in a context.
class Kernels {
public:
  /// Compiles them for `context`, which is current. Unsupported if the GPU's compute
  /// capability is below 9.0 or the driver is too old; Exhausted; Internal with what
  /// the driver says. `driver` outlives this.
  static Result<std::unique_ptr<Kernels>> load(const hal::cuda::Driver &driver,
                                               hal::cuda::Ordinal device,
                                               hal::cuda::Context context);
  ~Kernels();
  Kernels(const Kernels &) = delete;
  Kernels &operator=(const Kernels &) = delete;

  /// One launch into `stream`; none if there are no rows. `peers` and `number`, what a
  /// report calls the launch, are for kernels that exchange.
  /// `early`: may begin while the one before it runs, which must be false behind a
  /// kernel that exchanges with ranks on the same GPU. Invalid unless there are as
  /// many buffers as the table says and the rows fit the kernels' 32 bits.
  Status launch(Kernel kernel, hal::cuda::Stream stream,
                const Peers *peers,
                std::span<const hal::cuda::Address> buffers, int64_t rows,
                uint32_t number = 0, bool early = false) const;

private:
  Kernels(const hal::cuda::Driver &driver, hal::cuda::Context context)
      : driver(driver), context(context) {}
  struct Loaded {
    hal::cuda::Function function = nullptr;
    int threads = 0;
  };
  const hal::cuda::Driver &driver;
  const hal::cuda::Context context;
  hal::cuda::ModuleHandle module = nullptr;
  std::array<Loaded, kernelCount> loaded;
};

} // namespace mla::p2p

#endif // MLA_RUNTIME_COLLECTIVES_P2P_KERNELS_H
