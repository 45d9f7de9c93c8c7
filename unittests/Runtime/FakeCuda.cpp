//===- FakeCuda.cpp - a CUDA driver for tests without a GPU ---------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "FakeCuda.h"
#include "runtime/hal/cuda/Driver.h"
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

using namespace mla::hal::cuda;

namespace {

enum class Kernel : uintptr_t {
  Add = 1,
  Large,
  Read,
  Empty,
  Matrix,
  Push,
  Check,
  PingPong,
  Exchange
};
struct Description {
  const char *name;
  unsigned parameters;
};
constexpr Description kernels[] = {
    {"add", 2},          {"large", 0},       {"read_ceiling", 3},
    {"probe_empty", 0},  {"probe_matrix_bf16", 2},
    {"probe_push", 3},   {"probe_check", 4}, {"probe_ping_pong", 6},
    {"exchange", 2}};
const Description &describe(Kernel kernel) {
  return kernels[static_cast<uintptr_t>(kernel) - 1];
}

thread_local uintptr_t current = 0; ///< Context: device + 1.
std::recursive_mutex mutex; ///< Of all that follows, and of `fakeCuda`'s counts.
struct Allocation {
  size_t bytes;
  uintptr_t context;
};
uint32_t pattern(uint64_t index, uint64_t seed) {
  return (static_cast<uint32_t>(index) * 0x9E3779B1U) ^
         static_cast<uint32_t>(seed);
}

struct Launch {
  Kernel kernel;
  unsigned grid;
  uintptr_t context;
  std::vector<uint64_t> arguments;
  /// Whether what this one touches at `address` is its own, or links work.
  bool reaches(uint64_t address) const;
  void run() const;
};
using List = std::vector<Launch>;

/// What is alive. Left over when a test resets or the process ends, it goes with
/// the driver, as with a real one: a device that hangs frees nothing, which is no
/// leak of the host's memory. What must not be left, tests see in the counts.
struct Alive {
  std::map<Address, Allocation> allocations;
  std::set<void *> mirrors;
  std::set<List *> lists; ///< Graphs and their executables.

  ~Alive() { clear(); }
  void clear() {
    for (auto &[address, allocation] : allocations)
      std::free(reinterpret_cast<void *>(address));
    for (void *mirror : mirrors)
      std::free(mirror);
    for (List *list : lists)
      delete list;
    allocations.clear();
    mirrors.clear();
    lists.clear();
  }
};
Alive alive;

template <typename T> T newList(const List &launches) {
  return reinterpret_cast<T>(
      *alive.lists.insert(new List(launches)).first);
}
void deleteList(void *list) {
  alive.lists.erase(static_cast<List *>(list));
  delete static_cast<List *>(list);
}

thread_local bool capturing = false;
thread_local List captured;
uint64_t used = 0;
bool lost = false;

template <typename T> T tag(uintptr_t value) {
  return reinterpret_cast<T>(value);
}
int take(int &code) { return std::exchange(code, 0); }

} // namespace

extern "C" {
__attribute__((visibility("default"))) FakeCuda fakeCuda;
}

namespace {

bool Launch::reaches(uint64_t address) const {
  auto it = alive.allocations.upper_bound(address);
  return fakeCuda.peerWorks ||
         (it != alive.allocations.begin() && std::prev(it)->second.context == context);
}

void Launch::run() const {
  auto at = [&](size_t i) { return reinterpret_cast<uint32_t *>(arguments[i]); };
  auto wide = [&](size_t i) { return reinterpret_cast<int64_t *>(arguments[i]); };
  switch (kernel) {
  case Kernel::Add:
    *wide(0) += static_cast<int64_t>(arguments[1]) * static_cast<int64_t>(grid);
    break;
  case Kernel::Exchange:
    *wide(0) += static_cast<int64_t>(arguments[1]) * static_cast<int64_t>(grid);
    break;
  case Kernel::Matrix:
    wide(0)[0] = 2000, wide(0)[1] = 1000; // 2 GHz
    break;
  case Kernel::Push:
    if (reaches(arguments[0]))
      for (uint64_t i = 0; i < arguments[1] / 4; ++i)
        at(0)[i] = pattern(i, arguments[2]);
    break;
  case Kernel::Check:
    for (uint64_t i = 0; i < arguments[2] / 4; i += 4)
      *at(1) += at(0)[i] != pattern(i, arguments[3]) ||
                !reaches(arguments[0]);
    break;
  case Kernel::PingPong:
    wide(2)[0] = static_cast<int64_t>(arguments[3]) * 1400;
    wide(2)[1] = !fakeCuda.peerWorks;
    break;
  default:
    break;
  }
}

} // namespace

extern "C" {
/// As when the process starts.
void fakeCudaReset() {
  fakeCuda = {};
  alive.clear();
  used = 0;
  lost = capturing = false;
}

Code cuInit(unsigned) { return fakeCuda.devices ? Success : NoDevice; }
Code cuDriverGetVersion(int *v) { return *v = 13000, Success; }
Code cuGetErrorName(Code code, const char **name) {
  *name = code == OutOfMemory      ? "CUDA_ERROR_OUT_OF_MEMORY"
          : code == IllegalAddress ? "CUDA_ERROR_ILLEGAL_ADDRESS"
          : code == NoDevice       ? "CUDA_ERROR_NO_DEVICE"
          : code == InvalidPtx     ? "CUDA_ERROR_INVALID_PTX"
                                   : "CUDA_ERROR_OTHER";
  return Success;
}
Code cuGetErrorString(Code, const char **text) {
  return *text = "as the test asked", Success;
}
Code cuDeviceGetCount(int *count) { return *count = fakeCuda.devices, Success; }
Code cuDeviceGet(Ordinal *device, int number) {
  return *device = number, Success;
}
Code cuDeviceGetName(char *name, int length, Ordinal) {
  return std::snprintf(name, static_cast<size_t>(length), "Fake GPU"), Success;
}
Code cuDeviceGetAttribute(int *value, int attribute, Ordinal) {
  *value = attribute == ComputeCapabilityMajor   ? fakeCuda.major
           : attribute == ComputeCapabilityMinor ? fakeCuda.minor
           : attribute == MultiprocessorCount    ? 132
           : attribute == L2CacheSize            ? 50 << 20
                                                 : fakeCuda.sharedLimit;
  return Success;
}
Code cuDeviceTotalMem_v2(size_t *bytes, Ordinal) {
  return *bytes = fakeCuda.totalMemory, Success;
}
Code cuDeviceGetPCIBusId(char *id, int length, Ordinal device) {
  return std::snprintf(id, static_cast<size_t>(length), "0000:0%X:00.0",
                       unsigned(device) + 10),
         Success;
}
Code cuDeviceCanAccessPeer(int *can, Ordinal, Ordinal) {
  return *can = fakeCuda.peerReported, Success;
}
Code cuDeviceGetP2PAttribute(int *value, int, Ordinal, Ordinal) {
  return *value = fakeCuda.peerAtomics, Success;
}
Code cuCtxEnablePeerAccess(Context, unsigned) { return Success; }
Code cuDevicePrimaryCtxRetain(Context *context, Ordinal device) {
  std::lock_guard lock(mutex);
  ++fakeCuda.contexts;
  return *context = tag<Context>(static_cast<uintptr_t>(device) + 1), Success;
}
Code cuDevicePrimaryCtxRelease_v2(Ordinal) {
  std::lock_guard lock(mutex);
  return --fakeCuda.contexts, Success;
}
Code cuCtxSetCurrent(Context context) {
  return current = reinterpret_cast<uintptr_t>(context), Success;
}
Code cuMemGetInfo_v2(size_t *free, size_t *total) {
  *total = fakeCuda.totalMemory;
  return *free = fakeCuda.totalMemory - used, Success;
}
Code cuMemAlloc_v2(Address *address, size_t bytes) {
  std::lock_guard lock(mutex);
  if (!current)
    return 201; // CUDA_ERROR_INVALID_CONTEXT
  if (bytes > fakeCuda.totalMemory - used)
    return OutOfMemory;
  void *memory = std::malloc(bytes);
  std::memset(memory, 0xCD, bytes);
  *address = reinterpret_cast<Address>(memory);
  alive.allocations[*address] = {bytes, current};
  used += bytes;
  return ++fakeCuda.buffers, Success;
}
Code cuMemFree_v2(Address address) {
  std::lock_guard lock(mutex);
  used -= alive.allocations[address].bytes;
  alive.allocations.erase(address);
  std::free(reinterpret_cast<void *>(address));
  return --fakeCuda.buffers, Success;
}
Code cuMemHostAlloc(void **memory, size_t bytes, unsigned) {
  std::lock_guard lock(mutex);
  *memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  alive.mirrors.insert(*memory);
  return ++fakeCuda.mirrors, Success;
}
Code cuMemFreeHost(void *memory) {
  std::lock_guard lock(mutex);
  alive.mirrors.erase(memory);
  std::free(memory);
  return --fakeCuda.mirrors, Success;
}
Code cuMemsetD8Async(Address address, unsigned char value, size_t count,
                     Stream) {
  std::memset(reinterpret_cast<void *>(address), value, count);
  return Success;
}
Code cuMemcpyHtoDAsync_v2(Address to, const void *from, size_t bytes, Stream) {
  std::memcpy(reinterpret_cast<void *>(to), from, bytes);
  return Success;
}
Code cuMemcpyDtoHAsync_v2(void *to, Address from, size_t bytes, Stream) {
  std::memcpy(to, reinterpret_cast<const void *>(from), bytes);
  return Success;
}
Code cuMemHostRegister_v2(void *, size_t, unsigned) {
  std::lock_guard lock(mutex);
  return ++fakeCuda.registered, Success;
}
Code cuMemHostUnregister(void *) {
  std::lock_guard lock(mutex);
  return --fakeCuda.registered, Success;
}
Code cuMemHostGetDevicePointer_v2(Address *address, void *memory, unsigned) {
  return *address = reinterpret_cast<Address>(memory), Success;
}
Code cuIpcGetMemHandle(IpcHandle *handle, Address address) {
  if (!fakeCuda.ipc)
    return 801; // CUDA_ERROR_NOT_SUPPORTED
  std::memcpy(handle->bytes, &address, sizeof address);
  return Success;
}
Code cuIpcOpenMemHandle_v2(Address *address, IpcHandle handle, unsigned) {
  std::lock_guard lock(mutex);
  std::memcpy(address, handle.bytes, sizeof *address);
  return ++fakeCuda.opened, Success;
}
Code cuIpcCloseMemHandle(Address) {
  std::lock_guard lock(mutex);
  return --fakeCuda.opened, Success;
}
Code cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, Stream) {
  std::lock_guard lock(mutex);
  auto it = alive.allocations.upper_bound(to);
  if (fakeCuda.peerWorks || std::prev(it)->second.context == current)
    std::memcpy(reinterpret_cast<void *>(to),
                reinterpret_cast<const void *>(from), bytes);
  return Success;
}
Code cuMemcpy2DAsync_v2(const Copy2D *copy, Stream) {
  for (size_t row = 0; row < copy->height; ++row)
    std::memcpy(reinterpret_cast<char *>(copy->to) + row * copy->toPitch,
                reinterpret_cast<const char *>(copy->from) +
                    row * copy->fromPitch,
                copy->widthBytes);
  return Success;
}
Code cuStreamQuery(Stream) {
  if (lost)
    return IllegalAddress;
  const uint32_t *word = fakeCuda.waitFor;
  return word && !std::atomic_ref(*const_cast<uint32_t *>(word)).load()
             ? NotReady
             : Success;
}
Code cuStreamCreate(Stream *stream, unsigned) {
  std::lock_guard lock(mutex);
  ++fakeCuda.streams;
  return *stream = tag<Stream>(1), Success;
}
Code cuStreamDestroy_v2(Stream) {
  std::lock_guard lock(mutex);
  return --fakeCuda.streams, Success;
}
Code cuStreamSynchronize(Stream) {
  std::lock_guard lock(mutex);
  return lost ? IllegalAddress : take(fakeCuda.failNextSynchronize);
}
Code cuStreamBeginCapture_v2(Stream, int) {
  std::lock_guard lock(mutex);
  captured.clear();
  ++fakeCuda.recordings;
  return capturing = true, Success;
}
Code cuStreamEndCapture(Stream, Graph *graph) {
  std::lock_guard lock(mutex);
  capturing = false;
  ++fakeCuda.graphs;
  return *graph = newList<Graph>(captured), Success;
}
Code cuGraphInstantiateWithFlags(GraphExec *exec, Graph graph,
                                 unsigned long long) {
  std::lock_guard lock(mutex);
  ++fakeCuda.execs;
  *exec = newList<GraphExec>(*reinterpret_cast<List *>(graph));
  return Success;
}
Code cuGraphDestroy(Graph graph) {
  std::lock_guard lock(mutex);
  deleteList(graph);
  return --fakeCuda.graphs, Success;
}
Code cuGraphExecDestroy(GraphExec exec) {
  std::lock_guard lock(mutex);
  deleteList(exec);
  return --fakeCuda.execs, Success;
}
Code cuGraphLaunch(GraphExec exec, Stream) {
  std::lock_guard lock(mutex);
  ++fakeCuda.replays;
  for (const Launch &launch : *reinterpret_cast<List *>(exec))
    if (launch.kernel != Kernel::Push) // Of a probe: the time alone counts.
      launch.run();
  return Success;
}
Code cuEventCreate(Event *event, unsigned) {
  std::lock_guard lock(mutex);
  return *event = tag<Event>(static_cast<uintptr_t>(++fakeCuda.events)),
         Success;
}
Code cuEventDestroy_v2(Event) {
  std::lock_guard lock(mutex);
  return --fakeCuda.events, Success;
}
Code cuEventRecord(Event, Stream) { return Success; }
Code cuEventQuery(Event) { return fakeCuda.stuck ? NotReady : Success; }
Code cuEventElapsedTime(float *milliseconds, Event, Event) {
  return *milliseconds = 0.5F, Success;
}
Code cuModuleLoadDataEx(ModuleHandle *module, const void *image, unsigned count,
                        int *options, void **values) {
  std::lock_guard lock(mutex);
  std::string text(static_cast<const char *>(image));
  if (text.rfind("bad", 0) == 0) {
    for (unsigned i = 0; i < count; ++i)
      if (options[i] == JitErrorLogBuffer)
        std::strcpy(static_cast<char *>(values[i]), "line 1: what is this");
    return InvalidPtx;
  }
  ++fakeCuda.modules;
  return *module = tag<ModuleHandle>(1), Success;
}
Code cuModuleUnload(ModuleHandle) {
  std::lock_guard lock(mutex);
  return --fakeCuda.modules, Success;
}
Code cuModuleGetFunction(Function *function, ModuleHandle, const char *name) {
  for (uintptr_t i = 0; i < std::size(kernels); ++i)
    if (std::string(name) == kernels[i].name)
      return *function = tag<Function>(i + 1), Success;
  // Those of collectives/p2p, which here exchange nothing.
  for (const char *begin : {"all_reduce_", "all_gather_", "merge_attention_",
                            "add_7168", "rms_norm_", "repeat_"})
    if (std::string(name).rfind(begin, 0) == 0)
      return *function = tag<Function>(uintptr_t(Kernel::Empty)), Success;
  return NotFound;
}
Code cuFuncGetAttribute(int *value, int attribute, Function) {
  return *value = attribute == MaxThreadsPerBlock ? 64 : 16, Success;
}
Code cuFuncSetAttribute(Function, int attribute, int value) {
  std::lock_guard lock(mutex);
  if (attribute == MaxDynamicSharedSizeBytes)
    fakeCuda.sharedBytes = value;
  return Success;
}
Code cuFuncGetParamInfo(Function function, size_t index, size_t *offset,
                        size_t *size) {
  *offset = 8 * index;
  *size = 8;
  auto kernel = static_cast<Kernel>(reinterpret_cast<uintptr_t>(function));
  return index < describe(kernel).parameters ? Success : 1;
}
Code cuLaunchKernelEx(const LaunchConfig *config, Function function,
                      void **parameters, void **) {
  std::lock_guard lock(mutex);
  if (lost)
    return IllegalAddress;
  if (int code = take(fakeCuda.failNextLaunch)) {
    lost = code == IllegalAddress;
    return code;
  }
  Launch launch{static_cast<Kernel>(reinterpret_cast<uintptr_t>(function)),
                config->gridX,
                current,
                {}};
  for (unsigned i = 0; i < describe(launch.kernel).parameters; ++i)
    launch.arguments.push_back(*static_cast<uint64_t *>(parameters[i]));
  for (unsigned i = 0; i < config->attributeCount; ++i)
    fakeCuda.earlyLaunches +=
        config->attributes[i].id == programmaticStreamSerialization &&
        config->attributes[i].value.programmaticStreamSerializationAllowed;
  if (capturing) {
    captured.push_back(launch);
    return Success;
  }
  ++fakeCuda.launches;
  launch.run();
  return Success;
}
} // extern "C"
