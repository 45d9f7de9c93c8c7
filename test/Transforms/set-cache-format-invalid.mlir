// Tests every way in which a format and its scales can be wrong. Each error is
// one line, and says what was found.
// RUN: not mla-opt %s -mla-set-cache-format='format=nvfp4' 2>&1 | FileCheck %s --check-prefix=BLOCKS
// RUN: not mla-opt %s -mla-set-cache-format='format=i32' 2>&1 | FileCheck %s --check-prefix=INTEGERS
// RUN: not mla-opt %s -mla-set-cache-format='format=fp8' 2>&1 | FileCheck %s --check-prefix=UNKNOWN
// RUN: not mla-opt %s -mla-set-cache-format='format=fp8_e4m3' 2>&1 | FileCheck %s --check-prefix=NONE
// RUN: not mla-opt %s -mla-set-cache-format='format=fp8_e4m3 scales=1,1' 2>&1 | FileCheck %s --check-prefix=FEW
// RUN: not mla-opt %s -mla-set-cache-format='format=fp8_e4m3 scales=1,1,1,1' 2>&1 | FileCheck %s --check-prefix=MANY
// RUN: not mla-opt %s -mla-set-cache-format='format=bf16 scales=1' 2>&1 | FileCheck %s --check-prefix=UNSCALED
// RUN: not mla-opt %s -mla-set-cache-format='format=fp8_e4m3 scales=0' 2>&1 | FileCheck %s --check-prefix=ZERO
// RUN: not mla-opt %s -mla-set-cache-format='format=fp8_e4m3 scales=1,-2,1' 2>&1 | FileCheck %s --check-prefix=NEGATIVE
// RUN: not mla-opt %s -mla-set-cache-format='format=fp8_e4m3 scales=1,1,nan' 2>&1 | FileCheck %s --check-prefix=NAN
// RUN: not mla-opt %s -mla-set-cache-format='format=fp8_e4m3 scales=1e40' 2>&1 | FileCheck %s --check-prefix=HUGE
// RUN: not mla-opt %s -mla-set-cache-format='format=fp8_e4m3 scales=1e-60' 2>&1 | FileCheck %s --check-prefix=TINY

// BLOCKS: error: expected a cache format of f32, bf16, f16 or fp8_e4m3, found 'nvfp4'
// INTEGERS: error: expected a cache format of f32, bf16, f16 or fp8_e4m3, found 'i32'
// UNKNOWN: error: expected a cache format of f32, bf16, f16 or fp8_e4m3, found 'fp8'
// NONE: error: expected one scale, or one for each of 3 latent caches in fp8_e4m3, found 0
// FEW: error: expected one scale, or one for each of 3 latent caches in fp8_e4m3, found 2
// MANY: error: expected one scale, or one for each of 3 latent caches in fp8_e4m3, found 4
// UNSCALED: error: expected no scales for 3 latent caches in bf16, found 1
// ZERO: [[@LINE+4]]:1: error: 'mla.cache' op expected a positive, finite scale, found 0.0
// HUGE: [[@LINE+3]]:1: error: 'mla.cache' op expected a positive, finite scale, found
// A scale that no f32 holds is zero.
// TINY: [[@LINE+1]]:1: error: 'mla.cache' op expected a positive, finite scale, found 0.0
mla.cache @layers.0 : !mla.cache<latent, 8xf32>
mla.cache @index : !mla.cache<index, 8xf32>
// NEGATIVE: [[@LINE+1]]:1: error: 'mla.cache' op expected a positive, finite scale, found -2.0
mla.cache @layers.1 : !mla.cache<latent, 8xf32>
// NAN: [[@LINE+1]]:1: error: 'mla.cache' op expected a positive, finite scale, found
mla.cache @layers.2 : !mla.cache<latent, 8xbf16>
