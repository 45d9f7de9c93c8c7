//===- Open.h - the device that a plan needs --------------------*- C++ -*-===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_HAL_OPEN_H
#define MLA_RUNTIME_HAL_OPEN_H

#include "runtime/base/ThreadPool.h"
#include "runtime/hal/Device.h"

namespace mla::hal {

/// The host for a plan of the host, which computes on `pool`; else GPU number
/// `gpu`. `pool` must outlive the device. Unsupported if there is no such GPU;
/// whether the kernels fit it is for Device::load() to say.
Result<std::unique_ptr<Device>>
openDevice(const plan::Plan &plan, runtime::ThreadPool &pool, int gpu = 0);

} // namespace mla::hal

#endif // MLA_RUNTIME_HAL_OPEN_H
