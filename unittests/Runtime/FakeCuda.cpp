//===- FakeCuda.cpp - a CUDA driver for tests without a GPU ---------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "FakeCuda.h"
#include "runtime/hal/cuda/Driver.h"
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

using namespace mla::hal::cuda;

namespace {

enum class Kernel : uintptr_t { Add = 1, Large = 2 };

struct Launch {
  Kernel kernel;
  unsigned grid;
  std::vector<uint64_t> arguments;
  void run() const {
    if (kernel == Kernel::Add) {
      auto *at = reinterpret_cast<int64_t *>(arguments[0]);
      *at += static_cast<int64_t>(arguments[1]) * static_cast<int64_t>(grid);
    }
  }
};
using List = std::vector<Launch>;

bool hasContext = false; // of the calling thread; tests have one
bool capturing = false;
List captured;
std::map<Address, size_t> sizes;
uint64_t used = 0;
bool lost = false;

template <typename T> T tag(uintptr_t value) {
  return reinterpret_cast<T>(value);
}
int take(int &code) { return std::exchange(code, 0); }

} // namespace

extern "C" {
__attribute__((visibility("default"))) FakeCuda fakeCuda;

/// As when the process starts.
void fakeCudaReset() {
  fakeCuda = {};
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
                                                 : fakeCuda.sharedLimit;
  return Success;
}
Code cuDeviceTotalMem_v2(size_t *bytes, Ordinal) {
  return *bytes = fakeCuda.totalMemory, Success;
}
Code cuDevicePrimaryCtxRetain(Context *context, Ordinal) {
  ++fakeCuda.contexts;
  return *context = tag<Context>(1), Success;
}
Code cuDevicePrimaryCtxRelease_v2(Ordinal) {
  return --fakeCuda.contexts, Success;
}
Code cuCtxSetCurrent(Context context) {
  return hasContext = context != nullptr, Success;
}
Code cuMemGetInfo_v2(size_t *free, size_t *total) {
  *total = fakeCuda.totalMemory;
  return *free = fakeCuda.totalMemory - used, Success;
}
Code cuMemAlloc_v2(Address *address, size_t bytes) {
  if (!hasContext)
    return 201; // CUDA_ERROR_INVALID_CONTEXT
  if (bytes > fakeCuda.totalMemory - used)
    return OutOfMemory;
  void *memory = std::malloc(bytes);
  std::memset(memory, 0xCD, bytes);
  *address = reinterpret_cast<Address>(memory);
  sizes[*address] = bytes;
  used += bytes;
  return ++fakeCuda.buffers, Success;
}
Code cuMemFree_v2(Address address) {
  used -= sizes[address];
  sizes.erase(address);
  std::free(reinterpret_cast<void *>(address));
  return --fakeCuda.buffers, Success;
}
Code cuMemHostAlloc(void **memory, size_t bytes, unsigned) {
  *memory = std::malloc(bytes);
  return ++fakeCuda.mirrors, Success;
}
Code cuMemFreeHost(void *memory) {
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
Code cuStreamCreate(Stream *stream, unsigned) {
  ++fakeCuda.streams;
  return *stream = tag<Stream>(1), Success;
}
Code cuStreamDestroy_v2(Stream) { return --fakeCuda.streams, Success; }
Code cuStreamSynchronize(Stream) {
  return lost ? IllegalAddress : take(fakeCuda.failNextSynchronize);
}
Code cuStreamBeginCapture_v2(Stream, int) {
  captured.clear();
  ++fakeCuda.recordings;
  return capturing = true, Success;
}
Code cuStreamEndCapture(Stream, Graph *graph) {
  capturing = false;
  ++fakeCuda.graphs;
  return *graph = reinterpret_cast<Graph>(new List(captured)), Success;
}
Code cuGraphInstantiateWithFlags(GraphExec *exec, Graph graph,
                                 unsigned long long) {
  ++fakeCuda.execs;
  *exec = reinterpret_cast<GraphExec>(
      new List(*reinterpret_cast<List *>(graph)));
  return Success;
}
Code cuGraphDestroy(Graph graph) {
  delete reinterpret_cast<List *>(graph);
  return --fakeCuda.graphs, Success;
}
Code cuGraphExecDestroy(GraphExec exec) {
  delete reinterpret_cast<List *>(exec);
  return --fakeCuda.execs, Success;
}
Code cuGraphLaunch(GraphExec exec, Stream) {
  ++fakeCuda.replays;
  for (const Launch &launch : *reinterpret_cast<List *>(exec))
    launch.run();
  return Success;
}
Code cuEventCreate(Event *event, unsigned) {
  return *event = tag<Event>(static_cast<uintptr_t>(++fakeCuda.events)),
         Success;
}
Code cuEventDestroy_v2(Event) { return --fakeCuda.events, Success; }
Code cuEventRecord(Event, Stream) { return Success; }
Code cuEventElapsedTime(float *milliseconds, Event, Event) {
  return *milliseconds = 0.5F, Success;
}
Code cuModuleLoadDataEx(ModuleHandle *module, const void *image, unsigned count,
                        int *options, void **values) {
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
Code cuModuleUnload(ModuleHandle) { return --fakeCuda.modules, Success; }
Code cuModuleGetFunction(Function *function, ModuleHandle, const char *name) {
  std::string text = name;
  if (text != "add" && text != "large")
    return NotFound;
  *function = tag<Function>(
      static_cast<uintptr_t>(text == "add" ? Kernel::Add : Kernel::Large));
  return Success;
}
Code cuFuncGetAttribute(int *value, int attribute, Function) {
  return *value = attribute == MaxThreadsPerBlock ? 64 : 16, Success;
}
Code cuFuncSetAttribute(Function, int attribute, int value) {
  if (attribute == MaxDynamicSharedSizeBytes)
    fakeCuda.sharedBytes = value;
  return Success;
}
Code cuFuncGetParamInfo(Function function, size_t index, size_t *offset,
                        size_t *size) {
  bool add = reinterpret_cast<uintptr_t>(function) ==
             static_cast<uintptr_t>(Kernel::Add);
  *offset = 8 * index;
  *size = 8;
  return index < (add ? 2U : 0U) ? Success : 1;
}
Code cuLaunchKernelEx(const LaunchConfig *config, Function function,
                      void **parameters, void **) {
  if (lost)
    return IllegalAddress;
  if (int code = take(fakeCuda.failNextLaunch)) {
    lost = code == IllegalAddress;
    return code;
  }
  Launch launch{static_cast<Kernel>(reinterpret_cast<uintptr_t>(function)),
                config->gridX,
                {}};
  if (launch.kernel == Kernel::Add)
    for (int i = 0; i < 2; ++i)
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
