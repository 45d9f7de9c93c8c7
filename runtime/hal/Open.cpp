//===- Open.cpp - the device that a plan needs ----------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/hal/Open.h"
#include "runtime/hal/cuda/CudaDevice.h"
#include "runtime/hal/host/HostDevice.h"

namespace mla::hal {

Result<std::unique_ptr<Device>>
openDevice(const plan::Plan &plan, runtime::ThreadPool &pool,
           collectives::Collectives *collectives, GpuChoice gpu) {
  if (plan.target.isHost())
    return std::unique_ptr<Device>(
        std::make_unique<HostDevice>(pool, collectives));
  // Known without looking for a GPU.
  MLA_RETURN_IF_ERROR(CudaDevice::checkCollectives(plan));
  return CudaDevice::open({gpu.number, gpu.path, collectives});
}

} // namespace mla::hal
