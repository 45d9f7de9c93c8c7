//===- CudaDevice.h - an NVIDIA GPU as a device -----------------*- C++ -*-===//
//
// Part of mla. One primary context and one stream, in which everything happens
// in order. A list that is run with a key is launched the first time, recorded
// the second time and replayed from then on, since launching hundreds of
// kernels takes the host longer than they take the GPU. Within a list every
// launch but the first may begin while the one before it still runs
// (programmatic dependent launch; plan::cudaKernelAbi says how kernels wait).
//
// Ranks of one GPU ("virtual ranks") have a context in common and a stream each. That
// none waits for another that cannot go on, whatever kernels of all are there:
// - kernels that wait for other ranks get so few blocks that those of all ranks leave
//   half of the GPU (p2p::Peers::mostBlocks()), and nothing behind them begins early, so
//   that an SM that holds some has room for blocks of any other kernel;
// - no two streams share a queue of the hardware (prepareSharedGpu());
// - kernels are loaded, and lists recorded, before any rank runs them: either may
//   wait for kernels that run.
//
// Errors name the call, the driver's code and what was attempted. After one
// that destroys the context (an illegal address, a lost device) every call
// returns that error again, and destructors still run.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_HAL_CUDA_CUDADEVICE_H
#define MLA_RUNTIME_HAL_CUDA_CUDADEVICE_H

#include "runtime/collectives/Collectives.h"
#include "runtime/collectives/nccl/Group.h"
#include "runtime/collectives/p2p/Peers.h"
#include "runtime/hal/Device.h"
#include "runtime/hal/cuda/Driver.h"
#include <unordered_map>

namespace mla::hal {

class CudaDevice final : public Device {
public:
  /// Recorded lists that are kept; the one longest not used goes first.
  static constexpr size_t maxGraphs = 64;

  struct Options {
    int ordinal = 0; ///< Of the GPU.
    p2p::Path path = p2p::Path::Any;
    /// To the other ranks; null if there are none. Outlives the device.
    collectives::Collectives *ranks = nullptr;
    std::string library = cuda::Driver::defaultLibrary;
    std::string nccl = nccl::Library::defaultFile;
  };
  /// Unsupported if there is no driver or no such GPU.
  static Result<std::unique_ptr<Device>> open(const Options &options);
  ~CudaDevice() override;

  /// Unsupported if ranks of `plan` exchange data in a way that no GPU does.
  static Status checkCollectives(const plan::Plan &plan);
  /// To be called before the first device is opened, and before there are threads,
  /// where `ranks` ranks of this process will be on one GPU: asks the driver for as
  /// many queues. Invalid if the user has asked for too few.
  static Status prepareSharedGpu(int64_t ranks);

  Result<std::unique_ptr<Buffer>> allocate(uint64_t bytes, Access access,
                                           const std::string &what) override;
  /// Copies.
  Result<std::unique_ptr<Buffer>> import(std::span<const std::byte> memory,
                                         const std::string &what) override;
  Result<std::unique_ptr<Module>>
  load(const plan::Plan &plan, const std::filesystem::path &folder) override;
  Status toDevice(Buffer &buffer, uint64_t bytes) override;
  Status toHost(Buffer &buffer, uint64_t bytes) override;
  Status write(Buffer &buffer, uint64_t offset,
               std::span<const std::byte> from) override;
  Status run(const Module &module, std::span<const Dispatch> list,
             uint64_t key = 0) override;
  Result<std::vector<double>> time(const Module &module,
                                   std::span<const Dispatch> list,
                                   int repeats) override;
  Status synchronize() override;
  Status read(const Buffer &buffer, uint64_t offset,
              std::span<std::byte> to) override;
  Result<DeviceFacts> facts() override;

private:
  struct Recorded {
    cuda::GraphExec exec = nullptr; ///< Null after the first run.
    uint64_t used = 0;              ///< When, in runs.
  };

  CudaDevice(std::unique_ptr<cuda::Driver> driver, const Options &options)
      : driver(std::move(driver)), ranks(options.ranks), path(options.path),
        ncclFile(options.nccl) {}
  Status start(int ordinal);
  /// Makes the context current in the calling thread; the error that destroyed
  /// it, if one did.
  Status enter();
  /// Ok for Success; else an error with `call` and what was attempted.
  Status check(cuda::Code code, const char *call, const std::string &attempt);
  Status checkRange(const Buffer &buffer, uint64_t offset, uint64_t bytes,
                    const char *verb) const;
  /// Makes what `plan` needs to exchange rows with other ranks.
  Status connect(const plan::Plan &plan);
  Status launch(const Module &module, std::span<const Dispatch> list);
  /// One by the runtime's collectives, in the stream.
  Status launchCollective(plan::Collective collective,
                          const Dispatch &dispatch);
  /// With other ranks on this GPU: returns when all are here.
  Status meet(const char *what);
  /// Until what is in the stream has ended, or another rank has ended the group.
  Status finish(const std::string &attempt);
  std::string exchangeText() const;
  /// Whether some launch waits for other ranks.
  static bool exchanges(const Module &module, std::span<const Dispatch> list);
  bool sharesDevice() const { return peers && peers->sharesDevice(); }
  Result<cuda::GraphExec> record(const Module &module,
                                 std::span<const Dispatch> list);
  void evict();
  /// Gives all graphs back, which those that run survive. To be called before NCCL's
  /// group ends, be it by an abort: it waits until no graph has its kernels.
  void forgetGraphs();

  std::unique_ptr<cuda::Driver> driver;
  collectives::Collectives *const ranks;
  const p2p::Path path;
  const std::string ncclFile;
  cuda::Ordinal device = 0;
  cuda::Context context = nullptr;
  cuda::Stream stream = nullptr;
  std::string name;
  int major = 0, minor = 0, multiprocessors = 0, sharedLimit = 0;
  Status lost;
  std::unique_ptr<p2p::Peers> peers;     ///< If kernels exchange rows.
  std::unique_ptr<nccl::Group> group;    ///< If the runtime does.
  std::string ncclVersion;
  std::unique_ptr<Buffer> gathered; ///< What NCCL gathers, before it is in rows.
  std::span<const Dispatch> running; ///< What was run last, for its names.
  std::unordered_map<uint64_t, Recorded> recorded;
  size_t graphs = 0;
  cuda::GraphExec timed = nullptr; ///< What time() runs.
  uint64_t runs = 0;
};

} // namespace mla::hal

#endif // MLA_RUNTIME_HAL_CUDA_CUDADEVICE_H
