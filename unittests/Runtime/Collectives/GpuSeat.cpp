//===- GpuSeat.cpp - a rank's stream and memory on a GPU ------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "GpuSeat.h"
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace mla::testing {
using namespace hal::cuda;

void prepareEnvironment() {
  // Kernels are not loaded when they are first launched, which would wait for those
  // that run, and each stream has a queue of its own.
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

int countGpus(std::string &why) {
  int ends[2];
  if (pipe(ends) != 0)
    return why = "no pipe", 0;
  pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    int count = 0;
    std::string text;
    auto driver = Driver::load();
    if (!driver.ok())
      text = driver.status().message();
    else if (Code code = (*driver)->deviceGetCount(&count); code != Success)
      text = (*driver)->describe(code);
    text = std::to_string(count) + " " + text;
    bool written = write(ends[1], text.data(), text.size()) >= 0;
    _exit(written ? 0 : 1);
  }
  close(ends[1]);
  char text[512] = {};
  size_t have = 0;
  for (ssize_t got; have < sizeof text - 1 &&
                    (got = read(ends[0], text + have, sizeof text - 1 - have)) >
                        0;)
    have += static_cast<size_t>(got);
  close(ends[0]);
  if (child > 0)
    waitpid(child, nullptr, 0);
  const char *rest = std::strchr(text, ' ');
  why = rest ? rest + 1 : "the process that counts them died";
  return std::atoi(text);
}

namespace {

struct Shared {
  std::mutex mutex;
  std::vector<Seat *> seats;
  /// By GPU; a context has the kernels once.
  std::map<int, std::shared_ptr<p2p::Kernels>> kernels;
};
/// Never destroyed: the driver may end before what it made.
Shared &shared() {
  static auto *all = new Shared;
  return *all;
}

} // namespace

Result<Seat *> Seat::take(int gpu) {
  std::lock_guard lock(shared().mutex);
  for (Seat *seat : shared().seats)
    if (seat->gpu == gpu && !seat->taken) {
      MLA_RETURN_IF_ERROR(seat->check(
          seat->driver->ctxSetCurrent(seat->context), "cuCtxSetCurrent"));
      seat->taken = true;
      return seat;
    }
  auto *seat = new Seat(gpu);
  MLA_RETURN_IF_ERROR(seat->open());
  seat->taken = true;
  shared().seats.push_back(seat);
  return seat;
}

void Seat::giveBack() {
  std::lock_guard lock(shared().mutex);
  used = 0;
  taken = false;
}

Status Seat::open() {
  MLA_ASSIGN_OR_RETURN(driver, Driver::load());
  MLA_RETURN_IF_ERROR(check(driver->deviceGet(&device, gpu), "cuDeviceGet"));
  MLA_RETURN_IF_ERROR(check(driver->primaryCtxRetain(&context, device),
                            "cuDevicePrimaryCtxRetain"));
  MLA_RETURN_IF_ERROR(
      check(driver->ctxSetCurrent(context), "cuCtxSetCurrent"));
  MLA_RETURN_IF_ERROR(check(driver->streamCreate(&stream, streamNonBlocking),
                            "cuStreamCreate"));
  MLA_RETURN_IF_ERROR(check(driver->memAlloc(&memory, capacity), "cuMemAlloc"));
  void *start = nullptr;
  MLA_RETURN_IF_ERROR(check(
      driver->memHostAlloc(&start, capacity, hostAllocPortable),
      "cuMemHostAlloc"));
  pinned = static_cast<std::byte *>(start);
  std::shared_ptr<p2p::Kernels> &all = shared().kernels[gpu];
  if (!all) {
    MLA_ASSIGN_OR_RETURN(all, p2p::Kernels::load(*driver, device, context));
  }
  kernels = all;
  return {};
}

Status Seat::check(Code code, const char *call) const {
  return code == Success
             ? Status()
             : internalError(std::string(call) + " failed on GPU " +
                             std::to_string(gpu) + ": " +
                             driver->describe(code));
}

Result<Values> Seat::values(int64_t count) {
  uint64_t bytes = (static_cast<uint64_t>(count) * sizeof(float) + 255) / 256 * 256;
  if (used + bytes > capacity)
    return exhausted("a seat has " + std::to_string(capacity) + " bytes");
  Values values{memory + used, reinterpret_cast<float *>(pinned + used), count};
  used += bytes;
  return values;
}

Status Seat::up(const Values &values, int64_t count) {
  auto bytes = static_cast<size_t>(count < 0 ? values.count : count) * sizeof(float);
  if (bytes == 0)
    return {};
  return check(
      driver->memcpyHtoDAsync(values.device, values.host, bytes, stream),
      "cuMemcpyHtoDAsync");
}

Status Seat::down(const Values &values, int64_t count) {
  auto bytes = static_cast<size_t>(count < 0 ? values.count : count) * sizeof(float);
  if (bytes == 0)
    return {};
  return check(
      driver->memcpyDtoHAsync(values.host, values.device, bytes, stream),
      "cuMemcpyDtoHAsync");
}

Status Seat::poison(const Values &values) {
  return check(driver->memsetD8Async(values.device, 0xFF,
                                     static_cast<size_t>(values.count) *
                                         sizeof(float),
                                     stream),
               "cuMemsetD8Async");
}

Status Seat::launch(p2p::Kernel kernel, const p2p::Peers *peers,
                    std::initializer_list<Values> buffers, int64_t rows,
                    uint32_t number, bool early) {
  std::vector<Address> addresses;
  for (const Values &values : buffers)
    addresses.push_back(values.device);
  return kernels->launch(kernel, stream, peers, addresses,
                         rows, number, early);
}

Result<GraphExec> Seat::record(const std::function<Status()> &enqueue) {
  MLA_RETURN_IF_ERROR(
      check(driver->streamBeginCapture(stream, captureThreadLocal),
            "cuStreamBeginCapture"));
  Status queued = enqueue();
  Graph graph = nullptr; // Ended in any case, or the stream stays as it is.
  Status ended =
      check(driver->streamEndCapture(stream, &graph), "cuStreamEndCapture");
  GraphExec exec = nullptr;
  if (queued.ok() && ended.ok())
    ended = check(driver->graphInstantiate(&exec, graph, 0),
                  "cuGraphInstantiateWithFlags");
  if (graph)
    driver->graphDestroy(graph);
  MLA_RETURN_IF_ERROR(queued);
  MLA_RETURN_IF_ERROR(ended);
  return exec;
}

Status Seat::replay(GraphExec graph) {
  return check(driver->graphLaunch(graph, stream), "cuGraphLaunch");
}

void Seat::destroy(GraphExec graph) { driver->graphExecDestroy(graph); }

Status Seat::synchronize() {
  return check(driver->streamSynchronize(stream), "cuStreamSynchronize");
}

} // namespace mla::testing
