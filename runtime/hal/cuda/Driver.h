//===- Driver.h - the few calls of the CUDA driver that are used -*- C++ -*-===//
//
// Part of mla. libcuda is loaded when a plan for a GPU is, so that one program
// runs with and without a GPU, and is built without NVIDIA's toolkit. What is
// declared here of the driver's interface has the layout and the numbers of
// cuda.h; the functions carry the names that the library exports.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_HAL_CUDA_DRIVER_H
#define MLA_RUNTIME_HAL_CUDA_DRIVER_H

#include "mla/Support/Status.h"
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace mla::hal::cuda {

using Code = int; ///< CUresult
using Ordinal = int;
using Address = uint64_t; ///< CUdeviceptr
using Context = struct ContextTag *;
using Stream = struct StreamTag *;
using Event = struct EventTag *;
using ModuleHandle = struct ModuleTag *;
using Function = struct FunctionTag *;
using Graph = struct GraphTag *;
using GraphExec = struct GraphExecTag *;

/// Codes that are told apart here.
enum : Code {
  Success = 0,
  OutOfMemory = 2,
  Deinitialized = 4,
  StubLibrary = 34,
  DeviceUnavailable = 46,
  NoDevice = 100,
  InvalidPtx = 218,
  EccUncorrectable = 214,
  NvlinkUncorrectable = 220,
  UnsupportedPtxVersion = 222,
  Contained = 226,
  NotFound = 500,
  NotReady = 600,
  IllegalAddress = 700,
  LaunchTimeout = 702,
  PeerAccessAlreadyEnabled = 704,
  ContextIsDestroyed = 709,
  Assertion = 710,
  HardwareStackError = 714,
  IllegalInstruction = 715,
  MisalignedAddress = 716,
  InvalidAddressSpace = 717,
  InvalidPc = 718,
  LaunchFailed = 719,
  Unknown = 999
};

/// CUdevice_attribute
enum DeviceAttribute : int {
  MultiprocessorCount = 16,
  L2CacheSize = 38,
  ComputeCapabilityMajor = 75,
  ComputeCapabilityMinor = 76,
  MaxSharedMemoryPerBlockOptin = 97
};

/// CUdevice_P2PAttribute
enum PeerAttribute : int {
  NativeAtomicSupported = 3 ///< of NVLink, not of PCIe
};

/// CUfunction_attribute
enum FunctionAttribute : int {
  MaxThreadsPerBlock = 0,
  SharedSizeBytes = 1,
  NumRegs = 4,
  MaxDynamicSharedSizeBytes = 8,
  PreferredSharedMemoryCarveout = 9 ///< percent of what an SM can have
};

/// CUjit_option
enum JitOption : int { JitErrorLogBuffer = 5, JitErrorLogBufferSizeBytes = 6 };

constexpr unsigned streamNonBlocking = 1;
constexpr unsigned hostAllocPortable = 1;
constexpr unsigned hostRegisterPortable = 1, hostRegisterMapped = 2;
constexpr unsigned ipcLazyEnablePeerAccess = 1;
constexpr int captureThreadLocal = 1;
constexpr unsigned programmaticStreamSerialization = 6;

/// CUlaunchAttribute
struct LaunchAttribute {
  unsigned id = 0;
  char pad[4] = {};
  union alignas(8) {
    char bytes[64];
    int programmaticStreamSerializationAllowed;
  } value = {};
};
static_assert(sizeof(LaunchAttribute) == 72);

/// CUipcMemHandle
struct IpcHandle {
  char bytes[64] = {};
};

/// CUDA_MEMCPY2D: rows of a pitch on a device. What is not used stays zero.
struct Copy2D {
  static constexpr int device = 2; ///< CUmemorytype
  size_t fromX = 0, fromY = 0;
  int fromType = device;
  const void *fromHost = nullptr;
  Address from = 0;
  void *fromArray = nullptr;
  size_t fromPitch = 0;
  size_t toX = 0, toY = 0;
  int toType = device;
  void *toHost = nullptr;
  Address to = 0;
  void *toArray = nullptr;
  size_t toPitch = 0;
  size_t widthBytes = 0, height = 0;
};
static_assert(sizeof(Copy2D) == 128);

/// CUlaunchConfig
struct LaunchConfig {
  unsigned gridX = 1, gridY = 1, gridZ = 1;
  unsigned blockX = 1, blockY = 1, blockZ = 1;
  unsigned sharedBytes = 0;
  Stream stream = nullptr;
  LaunchAttribute *attributes = nullptr;
  unsigned attributeCount = 0;
};
static_assert(sizeof(LaunchConfig) == 56);

/// The functions: name in this program, exported name, parameters. All return a
/// Code.
#define MLA_CUDA_FUNCTIONS(X)                                                  \
  X(init, cuInit, (unsigned flags))                                            \
  X(driverGetVersion, cuDriverGetVersion, (int *version))                      \
  X(getErrorName, cuGetErrorName, (Code code, const char **name))              \
  X(getErrorString, cuGetErrorString, (Code code, const char **text))          \
  X(deviceGetCount, cuDeviceGetCount, (int *count))                            \
  X(deviceGet, cuDeviceGet, (Ordinal * device, int number))                    \
  X(deviceGetName, cuDeviceGetName, (char *name, int length, Ordinal device))  \
  X(deviceGetAttribute, cuDeviceGetAttribute,                                  \
    (int *value, int attribute, Ordinal device))                               \
  X(deviceTotalMem, cuDeviceTotalMem_v2, (size_t *bytes, Ordinal device))      \
  X(deviceGetPCIBusId, cuDeviceGetPCIBusId,                                    \
    (char *id, int length, Ordinal device))                                    \
  X(deviceCanAccessPeer, cuDeviceCanAccessPeer,                                \
    (int *can, Ordinal device, Ordinal peer))                                  \
  X(deviceGetP2PAttribute, cuDeviceGetP2PAttribute,                            \
    (int *value, int attribute, Ordinal device, Ordinal peer))                 \
  X(ctxEnablePeerAccess, cuCtxEnablePeerAccess,                                \
    (Context peer, unsigned flags))                                            \
  X(primaryCtxRetain, cuDevicePrimaryCtxRetain,                                \
    (Context * context, Ordinal device))                                       \
  X(primaryCtxRelease, cuDevicePrimaryCtxRelease_v2, (Ordinal device))         \
  X(ctxSetCurrent, cuCtxSetCurrent, (Context context))                         \
  X(memGetInfo, cuMemGetInfo_v2, (size_t *free, size_t *total))                \
  X(memAlloc, cuMemAlloc_v2, (Address * address, size_t bytes))                \
  X(memFree, cuMemFree_v2, (Address address))                                  \
  X(memHostAlloc, cuMemHostAlloc,                                              \
    (void **memory, size_t bytes, unsigned flags))                             \
  X(memFreeHost, cuMemFreeHost, (void *memory))                                \
  X(memHostRegister, cuMemHostRegister_v2,                                     \
    (void *memory, size_t bytes, unsigned flags))                              \
  X(memHostUnregister, cuMemHostUnregister, (void *memory))                    \
  X(memHostGetDevicePointer, cuMemHostGetDevicePointer_v2,                     \
    (Address * address, void *memory, unsigned flags))                         \
  X(ipcGetMemHandle, cuIpcGetMemHandle, (IpcHandle * handle, Address address)) \
  X(ipcOpenMemHandle, cuIpcOpenMemHandle_v2,                                   \
    (Address * address, IpcHandle handle, unsigned flags))                     \
  X(ipcCloseMemHandle, cuIpcCloseMemHandle, (Address address))                 \
  X(memsetD8Async, cuMemsetD8Async,                                            \
    (Address address, unsigned char value, size_t count, Stream stream))       \
  X(memcpyHtoDAsync, cuMemcpyHtoDAsync_v2,                                     \
    (Address to, const void *from, size_t bytes, Stream stream))               \
  X(memcpyDtoHAsync, cuMemcpyDtoHAsync_v2,                                     \
    (void *to, Address from, size_t bytes, Stream stream))                     \
  X(memcpyDtoDAsync, cuMemcpyDtoDAsync_v2,                                     \
    (Address to, Address from, size_t bytes, Stream stream))                   \
  X(memcpy2DAsync, cuMemcpy2DAsync_v2, (const Copy2D *copy, Stream stream))    \
  X(streamCreate, cuStreamCreate, (Stream * stream, unsigned flags))           \
  X(streamDestroy, cuStreamDestroy_v2, (Stream stream))                        \
  X(streamSynchronize, cuStreamSynchronize, (Stream stream))                   \
  X(streamQuery, cuStreamQuery, (Stream stream))                               \
  X(streamBeginCapture, cuStreamBeginCapture_v2, (Stream stream, int mode))    \
  X(streamEndCapture, cuStreamEndCapture, (Stream stream, Graph * graph))      \
  X(graphInstantiate, cuGraphInstantiateWithFlags,                             \
    (GraphExec * exec, Graph graph, unsigned long long flags))                 \
  X(graphDestroy, cuGraphDestroy, (Graph graph))                               \
  X(graphExecDestroy, cuGraphExecDestroy, (GraphExec exec))                    \
  X(graphLaunch, cuGraphLaunch, (GraphExec exec, Stream stream))               \
  X(eventCreate, cuEventCreate, (Event * event, unsigned flags))               \
  X(eventDestroy, cuEventDestroy_v2, (Event event))                            \
  X(eventRecord, cuEventRecord, (Event event, Stream stream))                  \
  X(eventQuery, cuEventQuery, (Event event))                                   \
  X(eventElapsedTime, cuEventElapsedTime,                                      \
    (float *milliseconds, Event start, Event end))                             \
  X(moduleLoadDataEx, cuModuleLoadDataEx,                                      \
    (ModuleHandle * module, const void *image, unsigned count, int *options,   \
     void **values))                                                           \
  X(moduleUnload, cuModuleUnload, (ModuleHandle module))                       \
  X(moduleGetFunction, cuModuleGetFunction,                                    \
    (Function * function, ModuleHandle module, const char *name))              \
  X(funcGetAttribute, cuFuncGetAttribute,                                      \
    (int *value, int attribute, Function function))                            \
  X(funcSetAttribute, cuFuncSetAttribute,                                      \
    (Function function, int attribute, int value))                             \
  X(launchKernelEx, cuLaunchKernelEx,                                          \
    (const LaunchConfig *config, Function function, void **parameters,         \
     void **extra))

/// The loaded library. What it made must be gone before it is.
class Driver {
public:
  static constexpr const char *defaultLibrary = "libcuda.so.1";

  /// Loads and initializes the driver. Unsupported, saying why, if there is no
  /// driver, if it is too old to have one of the functions, or if there is no
  /// GPU. `library` is another file in tests.
  static Result<std::unique_ptr<Driver>>
  load(const std::string &library = defaultLibrary);
  ~Driver();
  Driver(const Driver &) = delete;
  Driver &operator=(const Driver &) = delete;

#define MLA_CUDA_DECLARE(name, symbol, parameters)                             \
  Code(*name) parameters = nullptr;
  MLA_CUDA_FUNCTIONS(MLA_CUDA_DECLARE)
#undef MLA_CUDA_DECLARE
  /// From CUDA 12.4 on; null before.
  Code (*funcGetParamInfo)(Function function, size_t index, size_t *offset,
                           size_t *size) = nullptr;
  /// Likewise.
  Code (*funcLoad)(Function function) = nullptr;

  /// Loads `image`, PTX with a NUL behind it or machine code, into the current context.
  /// After an error `said` is what belongs behind its message: a line of what the
  /// compiler says, and whether a newer driver is needed.
  Code loadModule(ModuleHandle *module, const char *image,
                  std::string &said) const;

  /// "CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was encountered)".
  std::string describe(Code code) const;

  /// Whether nothing can be done with a context any more after `code`.
  static bool isSticky(Code code);

private:
  Driver() = default;
  void *handle = nullptr;
};

} // namespace mla::hal::cuda

#endif // MLA_RUNTIME_HAL_CUDA_DRIVER_H
