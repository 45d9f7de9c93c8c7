//===- Graphs.cpp - running lists of launches on a GPU --------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/hal/cuda/CudaDevice.h"
#include "runtime/hal/cuda/CudaModule.h"
#include <algorithm>
#include <limits>

namespace mla::hal {
using namespace cuda;

namespace {
/// Keys that were run once, and no more: forgotten beyond this many.
constexpr size_t maxKeys = 4096;
} // namespace

Status CudaDevice::launch(const Module &module,
                          std::span<const Dispatch> list) {
  const auto &kernels = static_cast<const CudaModule &>(module).kernels;
  LaunchAttribute early;
  early.id = programmaticStreamSerialization;
  early.value.programmaticStreamSerializationAllowed = 1;
  bool mayBeginEarly = false; // The first has nothing before it.
  std::vector<void *> parameters;
  running = list;
  for (const Dispatch &dispatch : list) {
    if (dispatch.grid == 0)
      continue;
    const CudaModule::Kernel &kernel = kernels[dispatch.kernel];
    if (kernel.collective != plan::Collective::None) {
      MLA_RETURN_IF_ERROR(launchCollective(kernel.collective, dispatch));
      mayBeginEarly = false;
      continue;
    }
    if (dispatch.grid > std::numeric_limits<int32_t>::max())
      return invalid("kernel '" + kernel.name + "': a grid has at most 2^31 - 1 "
                     "blocks, found " + std::to_string(dispatch.grid));
    LaunchConfig config;
    // Whatever grid all ranks give a kernel that exchanges, it does everything.
    int64_t blocks = kernel.exchanges
                         ? std::min(dispatch.grid, peers->mostBlocks())
                         : dispatch.grid;
    config.gridX = static_cast<unsigned>(blocks);
    config.blockX = kernel.threads;
    config.sharedBytes = kernel.sharedBytes;
    config.stream = stream;
    config.attributes = &early;
    config.attributeCount = mayBeginEarly ? 1 : 0;
    mayBeginEarly = !(kernel.exchanges && sharesDevice());
    parameters.clear();
    for (const uint64_t &argument : dispatch.arguments)
      parameters.push_back(const_cast<uint64_t *>(&argument));
    Code code = driver->launchKernelEx(&config, kernel.function,
                                       parameters.data(), nullptr);
    if (code != Success)
      return check(code, "cuLaunchKernelEx",
                   "to launch " + std::to_string(dispatch.grid) +
                       " blocks of kernel " + kernel.name);
  }
  return {};
}

Result<GraphExec> CudaDevice::record(const Module &module,
                                     std::span<const Dispatch> list) {
  std::string attempt =
      "to record " + std::to_string(list.size()) + " launches";
  MLA_RETURN_IF_ERROR(
      check(driver->streamBeginCapture(stream, captureThreadLocal),
            "cuStreamBeginCapture", attempt));
  Status launched = launch(module, list);
  Graph graph = nullptr; // Ended in any case, or the stream stays as it is.
  Status ended = check(driver->streamEndCapture(stream, &graph),
                       "cuStreamEndCapture", attempt);
  GraphExec exec = nullptr;
  if (launched.ok() && ended.ok())
    ended = check(driver->graphInstantiate(&exec, graph, 0),
                  "cuGraphInstantiateWithFlags", attempt);
  if (graph)
    driver->graphDestroy(graph);
  MLA_RETURN_IF_ERROR(launched);
  MLA_RETURN_IF_ERROR(ended);
  return exec;
}

void CudaDevice::evict() {
  if (graphs >= maxGraphs) {
    auto oldest = recorded.end();
    for (auto it = recorded.begin(); it != recorded.end(); ++it)
      if (it->second.exec &&
          (oldest == recorded.end() || it->second.used < oldest->second.used))
        oldest = it;
    if (oldest != recorded.end()) {
      driver->graphExecDestroy(oldest->second.exec);
      recorded.erase(oldest);
      --graphs;
    }
  }
  if (recorded.size() > maxKeys)
    std::erase_if(recorded, [](const auto &e) { return !e.second.exec; });
}

void CudaDevice::forgetGraphs() {
  for (auto &[key, list] : recorded)
    if (list.exec)
      driver->graphExecDestroy(list.exec);
  recorded.clear();
  graphs = 0;
  if (timed)
    driver->graphExecDestroy(timed);
  timed = nullptr;
}

Status CudaDevice::run(const Module &module, std::span<const Dispatch> list,
                       uint64_t key) {
  MLA_RETURN_IF_ERROR(enter());
  if (key == 0)
    return launch(module, list);
  ++runs;
  running = list;
  auto known = recorded.find(key);
  // With other ranks on this GPU nothing is launched before all have recorded it.
  if (known == recorded.end() && !sharesDevice()) {
    MLA_RETURN_IF_ERROR(launch(module, list));
    evict();
    recorded[key].used = runs;
    return {};
  }
  if (known == recorded.end() || !known->second.exec) {
    MLA_ASSIGN_OR_RETURN(GraphExec exec, record(module, list));
    evict(); // May erase others, not this one: it has no graph yet ...
    recorded[key] = {exec, runs}; // ... but may have been forgotten.
    ++graphs;
    known = recorded.find(key);
    MLA_RETURN_IF_ERROR(meet("recording a step's kernels"));
  }
  known->second.used = runs;
  return check(driver->graphLaunch(known->second.exec, stream), "cuGraphLaunch",
               "to run " + std::to_string(list.size()) + " recorded launches");
}

Result<std::vector<double>> CudaDevice::time(const Module &module,
                                             std::span<const Dispatch> list,
                                             int repeats) {
  MLA_RETURN_IF_ERROR(enter());
  std::string attempt =
      "to time " + std::to_string(list.size()) + " launches";
  MLA_ASSIGN_OR_RETURN(timed, record(module, list));
  // What other ranks need not do they may not be here for.
  if (exchanges(module, list))
    MLA_RETURN_IF_ERROR(meet("recording kernels to time"));
  // Everything is queued before anything is waited for, so that the GPU never
  // waits for the host between an event and what it measures.
  std::vector<Event> events(static_cast<size_t>(std::max(repeats, 0)) + 1);
  auto measure = [&]() -> Result<std::vector<double>> {
    for (Event &event : events)
      MLA_RETURN_IF_ERROR(
          check(driver->eventCreate(&event, 0), "cuEventCreate", attempt));
    for (Event event : events) {
      MLA_RETURN_IF_ERROR(check(driver->graphLaunch(timed, stream),
                                "cuGraphLaunch", attempt));
      MLA_RETURN_IF_ERROR(
          check(driver->eventRecord(event, stream), "cuEventRecord", attempt));
    }
    MLA_RETURN_IF_ERROR(finish(attempt));
    std::vector<double> seconds;
    for (size_t i = 0; i + 1 < events.size(); ++i) {
      float milliseconds = 0;
      MLA_RETURN_IF_ERROR(check(driver->eventElapsedTime(
                                    &milliseconds, events[i], events[i + 1]),
                                "cuEventElapsedTime", attempt));
      seconds.push_back(static_cast<double>(milliseconds) * 1e-3);
    }
    return seconds;
  };
  Result<std::vector<double>> seconds = measure();
  for (Event event : events)
    if (event)
      driver->eventDestroy(event);
  if (timed)
    driver->graphExecDestroy(timed);
  timed = nullptr;
  return seconds;
}

} // namespace mla::hal
