//===- Device.cpp - what the executor asks of a machine -------------------===//
//
// Part of mla. Out-of-line destructors: one home for the virtual tables.
//
//===----------------------------------------------------------------------===//
#include "runtime/hal/Device.h"

namespace mla::hal {

Buffer::~Buffer() = default;
Module::~Module() = default;
Device::~Device() = default;

} // namespace mla::hal
