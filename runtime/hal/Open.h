//===- Open.h - the device that a plan needs --------------------*- C++ -*-===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_HAL_OPEN_H
#define MLA_RUNTIME_HAL_OPEN_H

#include "runtime/base/ThreadPool.h"
#include "runtime/collectives/Collectives.h"
#include "runtime/collectives/p2p/Peers.h"
#include "runtime/hal/Device.h"

namespace mla::hal {

/// A GPU of this machine, and how it may exchange rows with others.
struct GpuChoice {
  int number = 0;
  p2p::Path path = p2p::Path::Any;
};

/// The host for a plan of the host, which computes on `pool`; else the GPU `gpu`.
/// `pool` must outlive the device, and so must `collectives`, by which this rank
/// exchanges data with the others; null if there are none. Unsupported if there is no
/// such GPU; whether the kernels fit the device is for Device::load() to say.
Result<std::unique_ptr<Device>>
openDevice(const plan::Plan &plan, runtime::ThreadPool &pool,
           collectives::Collectives *collectives = nullptr, GpuChoice gpu = {});

} // namespace mla::hal

#endif // MLA_RUNTIME_HAL_OPEN_H
