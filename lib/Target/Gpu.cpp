//===- Gpu.cpp - what a GPU has -------------------------------------------===//
//
// Part of mla. Sources: CUDA C++ Programming Guide, table of technical
// specifications per compute capability; read ceilings as measured (H200) or as
// published for the board.
//
//===----------------------------------------------------------------------===//
#include "mla/Target/Gpu.h"

using namespace mla;

llvm::ArrayRef<Gpu> mla::gpus() {
  constexpr int64_t gib = int64_t(1) << 30;
  static const Gpu all[] = {
      {"sm_120a", 188, 101376, 102400, 65536, 1536, 95 * gib, 1.63e12, true,
       true},
      {"sm_90a", 132, 232448, 233472, 65536, 2048, 139 * gib, 4.55e12, false,
       true},
      {"sm_100a", 148, 232448, 233472, 65536, 2048, 178 * gib, 7.2e12, true,
       false},
  };
  return all;
}

const Gpu *mla::lookupGpu(llvm::StringRef name) {
  for (const Gpu &gpu : gpus())
    if (gpu.name == name)
      return &gpu;
  return nullptr;
}
