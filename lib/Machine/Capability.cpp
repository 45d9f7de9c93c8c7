//===- Capability.cpp - what a compute capability has ---------------------===//
//
// Part of mla. Source: CUDA C++ Programming Guide, technical specifications per
// compute capability, and the PTX manual's lists of targets (fp4, wgmma,
// tcgen05).
//
//===----------------------------------------------------------------------===//
#include "mla/Machine/Machine.h"

namespace mla {

std::span<const Capability> capabilities() {
  static constexpr Capability all[] = {
      {.name = "sm_120a",
       .sharedBytesPerBlock = 101376,
       .sharedBytesPerSM = 102400,
       .registersPerSM = 65536,
       .threadsPerSM = 1536,
       .hasFp4 = true,
       .hasWgmma = false,
       .hasTcgen05 = false,
       .hasKernels = true},
      {.name = "sm_90a",
       .sharedBytesPerBlock = 232448,
       .sharedBytesPerSM = 233472,
       .registersPerSM = 65536,
       .threadsPerSM = 2048,
       .hasFp4 = false,
       .hasWgmma = true,
       .hasTcgen05 = false,
       .hasKernels = true},
      {.name = "sm_100a",
       .sharedBytesPerBlock = 232448,
       .sharedBytesPerSM = 233472,
       .registersPerSM = 65536,
       .threadsPerSM = 2048,
       .hasFp4 = true,
       .hasWgmma = false,
       .hasTcgen05 = true,
       .hasKernels = false},
  };
  return all;
}

const Capability *findCapability(std::string_view name) {
  for (const Capability &capability : capabilities())
    if (capability.name == name)
      return &capability;
  return nullptr;
}

} // namespace mla
