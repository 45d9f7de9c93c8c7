//===- Kernels.cpp - kernels that exchange rows, without a plan -----------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/collectives/p2p/Kernels.h"
#include <algorithm>
#include <string>
#include <vector>

namespace mla::p2p {
using namespace hal::cuda;

namespace {

struct Text {
  const char *name, *text;
};
constexpr Text texts[] = {
#include "CollectiveKernels.inc"
};

Status check(const Driver &driver, Code code, const char *call,
             const std::string &attempt) {
  if (code == Success)
    return {};
  std::string message = std::string(call) + " failed " + attempt + ": " +
                        driver.describe(code);
  return code == OutOfMemory ? exhausted(message) : internalError(message);
}

} // namespace

Result<std::unique_ptr<Kernels>>
Kernels::load(const Driver &driver, Ordinal device, Context context) {
  int major = 0;
  MLA_RETURN_IF_ERROR(
      check(driver, driver.deviceGetAttribute(&major, ComputeCapabilityMajor,
                                              device),
            "cuDeviceGetAttribute", "to ask for the compute capability"));
  if (major < 9)
    return unsupported("kernels that exchange rows need compute capability "
                       "9.0, found " +
                       std::to_string(major) + ".x");
  std::unique_ptr<Kernels> kernels(new Kernels(driver, context));
  std::string said;
  Code code = driver.loadModule(&kernels->module, texts[0].text, said);
  if (code != Success) {
    Status status = check(driver, code, "cuModuleLoadDataEx",
                          "to compile the kernels that exchange rows");
    return Status(code == UnsupportedPtxVersion ? StatusCode::Unsupported
                                                : status.code(),
                  status.message() + said);
  }
  for (size_t i = 0; i < kernelCount; ++i) {
    const char *name = kernelTable[i].name;
    std::string attempt = std::string("to find kernel ") + name;
    Loaded &one = kernels->loaded[i];
    MLA_RETURN_IF_ERROR(check(
        driver, driver.moduleGetFunction(&one.function, kernels->module, name),
        "cuModuleGetFunction", attempt));
    // A kernel says how many threads its blocks have.
    MLA_RETURN_IF_ERROR(check(driver,
                              driver.funcGetAttribute(
                                  &one.threads, MaxThreadsPerBlock,
                                  one.function),
                              "cuFuncGetAttribute", attempt));
    // As CudaDevice does for a plan's. Loading must not wait until a kernel runs
    // that waits for this one.
    if (driver.funcLoad)
      MLA_RETURN_IF_ERROR(check(driver, driver.funcLoad(one.function),
                                "cuFuncLoad", attempt));
    MLA_RETURN_IF_ERROR(check(
        driver,
        driver.funcSetAttribute(one.function, PreferredSharedMemoryCarveout,
                                100),
        "cuFuncSetAttribute", attempt));
  }
  return kernels;
}

Kernels::~Kernels() {
  if (!module)
    return;
  driver.ctxSetCurrent(context);
  driver.moduleUnload(module);
}

Status Kernels::launch(Kernel kernel, Stream stream, const Peers *peers,
                       std::span<const Address> buffers, int64_t rows,
                       uint32_t number, bool early) const {
  const KernelInfo &info = infoOf(kernel);
  if (buffers.size() != static_cast<size_t>(info.buffers))
    return invalid(std::string("kernel ") + info.name + " has " +
                   std::to_string(info.buffers) + " buffers, found " +
                   std::to_string(buffers.size()));
  // Kernels count values in 32 bits.
  if (rows < 0 || rows > (int64_t(1) << 30) / std::max<int64_t>(
                                                  info.unitsOfRow, 1))
    return invalid(std::string("kernel ") + info.name + " cannot take " +
                   std::to_string(rows) + " rows");
  if (rows == 0)
    return {};
  int64_t blocks =
      (rows * info.unitsOfRow + info.unitsOfBlock - 1) / info.unitsOfBlock;
  if (info.exchanges)
    blocks = std::min({blocks, mostBlocks, peers->mostBlocks()});
  std::vector<uint64_t> arguments;
  if (info.exchanges)
    arguments.push_back(peers->table());
  arguments.insert(arguments.end(), buffers.begin(), buffers.end());
  if (info.exchanges) {
    arguments.push_back(static_cast<uint64_t>(rows));
    arguments.push_back(number);
  }
  std::vector<void *> parameters;
  for (uint64_t &argument : arguments)
    parameters.push_back(&argument);
  const Loaded &one = loaded[static_cast<size_t>(kernel)];
  LaunchAttribute attribute;
  attribute.id = programmaticStreamSerialization;
  attribute.value.programmaticStreamSerializationAllowed = 1;
  LaunchConfig config;
  config.gridX = static_cast<unsigned>(blocks);
  config.blockX = static_cast<unsigned>(one.threads);
  config.sharedBytes = sharedBytes;
  config.stream = stream;
  config.attributes = &attribute;
  config.attributeCount = early ? 1 : 0;
  return check(driver,
               driver.launchKernelEx(&config, one.function, parameters.data(),
                                     nullptr),
               "cuLaunchKernelEx", std::string("to launch ") + info.name);
}

} // namespace mla::p2p
