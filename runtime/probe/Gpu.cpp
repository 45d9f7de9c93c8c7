//===- Gpu.cpp - one GPU under measurement --------------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/probe/Gpu.h"
#include "runtime/base/Memory.h"
#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

namespace mla::probe {
using namespace hal::cuda;

namespace {

struct Text {
  const char *name, *text;
};
constexpr Text texts[] = {
#include "ProbeKernels.inc"
};
constexpr const char *names[kernelCount] = {
    "read_ceiling", "probe_empty", "probe_matrix_bf16",
    "probe_push",   "probe_check", "probe_ping_pong"};

} // namespace

Memory::~Memory() {
  if (!gpu || gpu->hung)
    return;
  gpu->driver.ctxSetCurrent(gpu->context);
  gpu->driver.memFree(start);
}

Result<std::unique_ptr<Gpu>> Gpu::open(const Driver &driver, int ordinal) {
  std::unique_ptr<Gpu> gpu(new Gpu(driver, ordinal));
  MLA_RETURN_IF_ERROR(gpu->start());
  MLA_RETURN_IF_ERROR(gpu->loadKernels());
  return gpu;
}

Status Gpu::check(Code code, const char *call,
                  const std::string &attempt) const {
  if (code == Success)
    return {};
  std::string message = std::string(call) + " failed " + attempt + ": " +
                        driver.describe(code) + " on GPU " +
                        std::to_string(ordinal);
  return code == OutOfMemory ? exhausted(message) : internalError(message);
}

Status Gpu::start() {
  std::string attempt = "to open it";
  MLA_RETURN_IF_ERROR(
      check(driver.deviceGet(&device, ordinal), "cuDeviceGet", attempt));
  std::array<char, 256> text{};
  MLA_RETURN_IF_ERROR(
      check(driver.deviceGetName(text.data(), int(text.size()) - 1, device),
            "cuDeviceGetName", attempt));
  name = text.data();
  text = {};
  MLA_RETURN_IF_ERROR(check(
      driver.deviceGetPCIBusId(text.data(), int(text.size()) - 1, device),
      "cuDeviceGetPCIBusId", attempt));
  address = text.data();
  // Linux has them in small letters.
  std::transform(address.begin(), address.end(), address.begin(), [](char c) {
    return c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  const std::pair<int, int *> attributes[] = {
      {ComputeCapabilityMajor, &major},
      {ComputeCapabilityMinor, &minor},
      {MultiprocessorCount, &multiprocessors},
      {L2CacheSize, &l2Bytes}};
  for (auto [attribute, value] : attributes)
    MLA_RETURN_IF_ERROR(check(driver.deviceGetAttribute(value, attribute, device),
                              "cuDeviceGetAttribute", attempt));
  if (major < 9)
    return unsupported(name + " has compute capability " +
                       std::to_string(major) + "." + std::to_string(minor) +
                       "; the probe's kernels need 9.0");
  MLA_RETURN_IF_ERROR(check(driver.primaryCtxRetain(&context, device),
                            "cuDevicePrimaryCtxRetain", attempt));
  MLA_RETURN_IF_ERROR(enter());
  for (Stream *one : {&stream, &side})
    MLA_RETURN_IF_ERROR(check(driver.streamCreate(one, streamNonBlocking),
                              "cuStreamCreate", attempt));
  return {};
}

Status Gpu::loadKernels() {
  std::string said;
  Code code = driver.loadModule(&module, texts[0].text, said);
  if (code != Success) {
    Status status =
        check(code, "cuModuleLoadDataEx", "to compile the probe's kernels");
    return Status(code == UnsupportedPtxVersion ? StatusCode::Unsupported
                                                : StatusCode::Internal,
                  status.message() + said);
  }
  for (size_t i = 0; i < kernelCount; ++i) {
    std::string attempt = std::string("to find kernel ") + names[i];
    MLA_RETURN_IF_ERROR(check(
        driver.moduleGetFunction(&kernels[i].function, module, names[i]),
        "cuModuleGetFunction", attempt));
    // A kernel says how many threads its blocks have.
    MLA_RETURN_IF_ERROR(check(
        driver.funcGetAttribute(&kernels[i].threads, MaxThreadsPerBlock,
                                kernels[i].function),
        "cuFuncGetAttribute", attempt));
  }
  return {};
}

Gpu::~Gpu() {
  if (!context || hung)
    return;
  driver.ctxSetCurrent(context);
  if (module)
    driver.moduleUnload(module);
  for (Stream one : {stream, side})
    if (one)
      driver.streamDestroy(one);
  driver.ctxSetCurrent(nullptr);
  driver.primaryCtxRelease(device);
}

Status Gpu::enter() {
  return check(driver.ctxSetCurrent(context), "cuCtxSetCurrent", "to use it");
}

Result<std::pair<uint64_t, uint64_t>> Gpu::memory() {
  MLA_RETURN_IF_ERROR(enter());
  size_t free = 0, total = 0;
  MLA_RETURN_IF_ERROR(check(driver.memGetInfo(&free, &total), "cuMemGetInfo",
                            "to ask for its memory"));
  return std::pair<uint64_t, uint64_t>(free, total);
}

Result<Memory> Gpu::allocate(uint64_t bytes, const std::string &what) {
  MLA_RETURN_IF_ERROR(enter());
  Address start = 0;
  MLA_RETURN_IF_ERROR(check(driver.memAlloc(&start, bytes), "cuMemAlloc",
                            "to allocate " + runtime::formatBytes(bytes) +
                                " for " + what));
  Memory memory(this, start, bytes);
  MLA_RETURN_IF_ERROR(fill(start, 0, bytes));
  return memory;
}

Status Gpu::fill(uint64_t at, unsigned char value, uint64_t bytes) {
  MLA_RETURN_IF_ERROR(enter());
  MLA_RETURN_IF_ERROR(check(driver.memsetD8Async(at, value, bytes, stream),
                            "cuMemsetD8Async", "to fill memory"));
  return finish("to fill memory");
}

Status Gpu::read(uint64_t at, std::span<std::byte> to) {
  MLA_RETURN_IF_ERROR(enter());
  MLA_RETURN_IF_ERROR(
      check(driver.memcpyDtoHAsync(to.data(), at, to.size(), stream),
            "cuMemcpyDtoHAsync", "to read memory"));
  return finish("to read memory");
}

Status Gpu::launchIn(Stream in, Kernel kernel, int64_t blocks,
                     std::span<const uint64_t> arguments, bool early) {
  const Loaded &loaded = kernels[static_cast<size_t>(kernel)];
  LaunchAttribute attribute;
  attribute.id = programmaticStreamSerialization;
  attribute.value.programmaticStreamSerializationAllowed = 1;
  LaunchConfig config;
  config.gridX = static_cast<unsigned>(blocks);
  config.blockX = static_cast<unsigned>(loaded.threads);
  config.stream = in;
  config.attributes = &attribute;
  config.attributeCount = early ? 1 : 0;
  std::vector<void *> parameters;
  for (const uint64_t &argument : arguments)
    parameters.push_back(const_cast<uint64_t *>(&argument));
  return check(driver.launchKernelEx(&config, loaded.function,
                                     parameters.data(), nullptr),
               "cuLaunchKernelEx",
               std::string("to launch ") + names[static_cast<size_t>(kernel)]);
}

Status Gpu::finish(const std::string &attempt) {
  MLA_RETURN_IF_ERROR(finishIn(side, attempt));
  return finishIn(stream, attempt);
}

Status Gpu::finishIn(Stream in, const std::string &attempt) {
  if (hung)
    return internalError("GPU " + std::to_string(ordinal) +
                         " is still busy with what did not end");
  Event event = nullptr;
  MLA_RETURN_IF_ERROR(
      check(driver.eventCreate(&event, 0), "cuEventCreate", attempt));
  Status status = check(driver.eventRecord(event, in), "cuEventRecord", attempt);
  auto begin = std::chrono::steady_clock::now();
  while (status.ok()) {
    Code code = driver.eventQuery(event);
    if (code == Success)
      break;
    std::chrono::duration<double> waited =
        std::chrono::steady_clock::now() - begin;
    if (code != NotReady) {
      status = check(code, "cuEventQuery", attempt);
    } else if (waited.count() > patience) {
      hung = true;
      return internalError("GPU " + std::to_string(ordinal) +
                           " did not end within " +
                           std::to_string(int(patience)) + " s " + attempt);
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  driver.eventDestroy(event);
  return status;
}

Result<double> Gpu::time(const std::function<Status()> &enqueue, int repeats,
                         const std::string &attempt) {
  MLA_RETURN_IF_ERROR(enter());
  MLA_RETURN_IF_ERROR(check(driver.streamBeginCapture(stream, captureThreadLocal),
                            "cuStreamBeginCapture", attempt));
  Status queued = enqueue();
  Graph graph = nullptr; // Ended in any case, or the stream stays as it is.
  Status status = check(driver.streamEndCapture(stream, &graph),
                        "cuStreamEndCapture", attempt);
  GraphExec exec = nullptr;
  if (queued.ok() && status.ok())
    status = check(driver.graphInstantiate(&exec, graph, 0),
                   "cuGraphInstantiateWithFlags", attempt);
  if (graph)
    driver.graphDestroy(graph);
  MLA_RETURN_IF_ERROR(queued);
  MLA_RETURN_IF_ERROR(status);
  // All is queued before anything is waited for, so that the GPU never waits for
  // the host between two events.
  std::vector<Event> events(static_cast<size_t>(repeats) + 1);
  std::vector<double> seconds;
  auto measure = [&]() -> Status {
    for (Event &event : events)
      MLA_RETURN_IF_ERROR(
          check(driver.eventCreate(&event, 0), "cuEventCreate", attempt));
    for (Event event : events) {
      MLA_RETURN_IF_ERROR(
          check(driver.graphLaunch(exec, stream), "cuGraphLaunch", attempt));
      MLA_RETURN_IF_ERROR(
          check(driver.eventRecord(event, stream), "cuEventRecord", attempt));
    }
    MLA_RETURN_IF_ERROR(finish(attempt));
    for (size_t i = 0; i + 1 < events.size(); ++i) {
      float milliseconds = 0;
      MLA_RETURN_IF_ERROR(check(
          driver.eventElapsedTime(&milliseconds, events[i], events[i + 1]),
          "cuEventElapsedTime", attempt));
      seconds.push_back(static_cast<double>(milliseconds) * 1e-3);
    }
    return {};
  };
  status = measure();
  if (hung)
    return status;
  for (Event event : events)
    if (event)
      driver.eventDestroy(event);
  driver.graphExecDestroy(exec);
  MLA_RETURN_IF_ERROR(status);
  std::nth_element(seconds.begin(), seconds.begin() + repeats / 2,
                   seconds.end());
  return seconds[static_cast<size_t>(repeats / 2)];
}

} // namespace mla::probe
