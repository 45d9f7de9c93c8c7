//===- Open.h - the device that a plan needs --------------------*- C++ -*-===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_HAL_OPEN_H
#define MLA_RUNTIME_HAL_OPEN_H

#include "runtime/base/ThreadPool.h"
#include "runtime/collectives/Collectives.h"
#include "runtime/hal/Device.h"

namespace mla::hal {

/// The host for a plan of the host, which computes on `pool`; else GPU number
/// `gpu`. `pool` must outlive the device, and so must `collectives`, by which this
/// rank exchanges data with the others; null if there are none. Unsupported if there
/// is no such GPU, or if GPUs would have to exchange data; whether the kernels fit
/// the device is for Device::load() to say.
Result<std::unique_ptr<Device>>
openDevice(const plan::Plan &plan, runtime::ThreadPool &pool,
           collectives::Collectives *collectives = nullptr, int gpu = 0);

} // namespace mla::hal

#endif // MLA_RUNTIME_HAL_OPEN_H
