//===- CudaDevice.cpp - an NVIDIA GPU as a device -------------------------===//
//
// Part of mla. Memory, copies and the stream; Graphs.cpp runs lists and
// CudaModule.cpp loads kernels.
//
//===----------------------------------------------------------------------===//
#include "runtime/hal/cuda/CudaDevice.h"
#include "runtime/base/Memory.h"
#include <algorithm>
#include <array>

namespace mla::hal {
using namespace cuda;
using runtime::formatBytes;

namespace {

class CudaBuffer final : public Buffer {
public:
  CudaBuffer(const Driver &driver, Context context, Address address,
             uint64_t bytes, std::span<std::byte> mirror)
      : Buffer(address, bytes, mirror), driver(driver), context(context) {}
  ~CudaBuffer() override {
    driver.ctxSetCurrent(context);
    if (address())
      driver.memFree(address());
    if (!host().empty())
      driver.memFreeHost(host().data());
  }

private:
  const Driver &driver;
  Context context;
};

} // namespace

Result<std::unique_ptr<Device>> CudaDevice::open(const Options &options) {
  MLA_ASSIGN_OR_RETURN(std::unique_ptr<Driver> driver,
                       Driver::load(options.library));
  std::unique_ptr<CudaDevice> device(
      new CudaDevice(std::move(driver), options));
  MLA_RETURN_IF_ERROR(device->start(options.ordinal));
  return std::unique_ptr<Device>(std::move(device));
}

Status CudaDevice::start(int ordinal) {
  int count = 0;
  std::string attempt = "to open GPU " + std::to_string(ordinal);
  MLA_RETURN_IF_ERROR(
      check(driver->deviceGetCount(&count), "cuDeviceGetCount", attempt));
  if (ordinal < 0 || ordinal >= count)
    return unsupported("expected a GPU from 0 to " + std::to_string(count) +
                       " (exclusive), found " + std::to_string(ordinal) +
                       (ranks && ordinal > 0
                            ? " (each rank has a GPU of its own; --gpu 0 puts "
                              "all of a process on one)"
                            : ""));
  MLA_RETURN_IF_ERROR(
      check(driver->deviceGet(&device, ordinal), "cuDeviceGet", attempt));
  std::array<char, 256> text{};
  MLA_RETURN_IF_ERROR(
      check(driver->deviceGetName(text.data(), int(text.size()) - 1, device),
            "cuDeviceGetName", attempt));
  name = text.data();
  const std::pair<int, int *> attributes[] = {
      {ComputeCapabilityMajor, &major},
      {ComputeCapabilityMinor, &minor},
      {MultiprocessorCount, &multiprocessors},
      {MaxSharedMemoryPerBlockOptin, &sharedLimit}};
  for (auto [attribute, value] : attributes)
    MLA_RETURN_IF_ERROR(
        check(driver->deviceGetAttribute(value, attribute, device),
              "cuDeviceGetAttribute", attempt));
  MLA_RETURN_IF_ERROR(check(driver->primaryCtxRetain(&context, device),
                            "cuDevicePrimaryCtxRetain", attempt));
  MLA_RETURN_IF_ERROR(enter());
  return check(driver->streamCreate(&stream, streamNonBlocking),
               "cuStreamCreate", attempt);
}

CudaDevice::~CudaDevice() {
  if (!context)
    return;
  driver->ctxSetCurrent(context);
  forgetGraphs();
  group.reset();
  gathered.reset();
  peers.reset();
  if (stream)
    driver->streamDestroy(stream);
  driver->ctxSetCurrent(nullptr);
  driver->primaryCtxRelease(device);
}

Status CudaDevice::enter() {
  if (!lost.ok())
    return lost;
  return check(driver->ctxSetCurrent(context), "cuCtxSetCurrent",
               "to use the GPU");
}

Status CudaDevice::check(Code code, const char *call,
                         const std::string &attempt) {
  if (code == Success)
    return {};
  std::string message = std::string(call) + " failed " + attempt + ": " +
                        driver->describe(code) +
                        (name.empty() ? "" : " on " + name);
  if (!Driver::isSticky(code))
    return code == OutOfMemory ? exhausted(message) : internalError(message);
  lost = internalError("the GPU is of no further use: " + message);
  return lost;
}

Status CudaDevice::checkRange(const Buffer &buffer, uint64_t offset,
                              uint64_t bytes, const char *verb) const {
  if (offset > buffer.size() || bytes > buffer.size() - offset)
    return invalid(std::string("cannot ") + verb + " " + std::to_string(bytes) +
                   " bytes from byte " + std::to_string(offset) +
                   " of a buffer of " + std::to_string(buffer.size()));
  return {};
}

Result<std::unique_ptr<Buffer>>
CudaDevice::allocate(uint64_t bytes, Access access, const std::string &what) {
  MLA_RETURN_IF_ERROR(enter());
  Address address = 0;
  void *mirror = nullptr;
  std::string attempt =
      "to allocate " + formatBytes(bytes) + " for " + what;
  if (bytes != 0) {
    Code code = driver->memAlloc(&address, bytes);
    if (code == OutOfMemory) {
      size_t free = 0, total = 0;
      driver->memGetInfo(&free, &total);
      return exhausted("cannot allocate " + formatBytes(bytes) + " for " +
                       what + ": " + formatBytes(free) + " of " +
                       formatBytes(total) + " are free on " + name);
    }
    MLA_RETURN_IF_ERROR(check(code, "cuMemAlloc", attempt));
  }
  Status status;
  if (bytes != 0 && access == Access::Shared)
    status = check(driver->memHostAlloc(&mirror, bytes, hostAllocPortable),
                   "cuMemHostAlloc", attempt + " on the host");
  // From here on the buffer frees what there is.
  std::span<std::byte> view;
  if (mirror)
    view = {static_cast<std::byte *>(mirror), bytes};
  std::unique_ptr<Buffer> buffer =
      std::make_unique<CudaBuffer>(*driver, context, address, bytes, view);
  MLA_RETURN_IF_ERROR(status);
  std::fill(view.begin(), view.end(), std::byte{});
  if (bytes != 0)
    MLA_RETURN_IF_ERROR(check(driver->memsetD8Async(address, 0, bytes, stream),
                              "cuMemsetD8Async", attempt));
  return buffer;
}

Result<std::unique_ptr<Buffer>>
CudaDevice::import(std::span<const std::byte> memory, const std::string &what) {
  MLA_ASSIGN_OR_RETURN(std::unique_ptr<Buffer> buffer,
                       allocate(memory.size(), Access::Device, what));
  MLA_RETURN_IF_ERROR(write(*buffer, 0, memory));
  return buffer;
}

Status CudaDevice::toDevice(Buffer &buffer, uint64_t bytes) {
  if (bytes > buffer.host().size())
    return checkRange(buffer, buffer.host().size(), bytes + 1, "share");
  MLA_RETURN_IF_ERROR(enter());
  if (bytes == 0)
    return {};
  return check(driver->memcpyHtoDAsync(buffer.address(), buffer.host().data(),
                                       bytes, stream),
               "cuMemcpyHtoDAsync",
               "to copy " + std::to_string(bytes) + " bytes of a step's input");
}

Status CudaDevice::toHost(Buffer &buffer, uint64_t bytes) {
  if (bytes > buffer.host().size())
    return checkRange(buffer, buffer.host().size(), bytes + 1, "share");
  MLA_RETURN_IF_ERROR(enter());
  if (bytes == 0)
    return {};
  return check(
      driver->memcpyDtoHAsync(buffer.host().data(), buffer.address(), bytes,
                              stream),
      "cuMemcpyDtoHAsync",
      "to copy " + std::to_string(bytes) + " bytes of a step's output");
}

Status CudaDevice::write(Buffer &buffer, uint64_t offset,
                         std::span<const std::byte> from) {
  MLA_RETURN_IF_ERROR(checkRange(buffer, offset, from.size(), "write"));
  MLA_RETURN_IF_ERROR(enter());
  if (from.empty())
    return {};
  std::string attempt = "to write " + std::to_string(from.size()) + " bytes";
  MLA_RETURN_IF_ERROR(check(driver->memcpyHtoDAsync(buffer.address() + offset,
                                                    from.data(), from.size(),
                                                    stream),
                            "cuMemcpyHtoDAsync", attempt));
  return check(driver->streamSynchronize(stream), "cuStreamSynchronize",
               attempt);
}

Status CudaDevice::read(const Buffer &buffer, uint64_t offset,
                        std::span<std::byte> to) {
  MLA_RETURN_IF_ERROR(checkRange(buffer, offset, to.size(), "read"));
  MLA_RETURN_IF_ERROR(enter());
  std::string attempt = "to read " + std::to_string(to.size()) + " bytes";
  if (!to.empty())
    MLA_RETURN_IF_ERROR(check(driver->memcpyDtoHAsync(to.data(),
                                                      buffer.address() + offset,
                                                      to.size(), stream),
                              "cuMemcpyDtoHAsync", attempt));
  return finish(attempt);
}

Status CudaDevice::synchronize() {
  MLA_RETURN_IF_ERROR(enter());
  return finish("to wait for kernels");
}

Result<DeviceFacts> CudaDevice::facts() {
  MLA_RETURN_IF_ERROR(enter());
  size_t free = 0, total = 0;
  int version = 0;
  MLA_RETURN_IF_ERROR(
      check(driver->memGetInfo(&free, &total), "cuMemGetInfo", "to report"));
  MLA_RETURN_IF_ERROR(check(driver->driverGetVersion(&version),
                            "cuDriverGetVersion", "to report"));
  DeviceFacts facts;
  facts.name = name;
  facts.architecture =
      "sm_" + std::to_string(major) + std::to_string(minor);
  facts.units = multiprocessors;
  facts.totalMemory = total;
  facts.freeMemory = free;
  facts.exchange = exchangeText();
  facts.driver = "CUDA " + std::to_string(version / 1000) + "." +
                 std::to_string(version % 1000 / 10);
  return facts;
}

} // namespace mla::hal
