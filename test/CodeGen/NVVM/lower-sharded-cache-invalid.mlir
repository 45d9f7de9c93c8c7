// RUN: mla-opt %s -split-input-file -verify-diagnostics "-mla-select-lowering=target=sm_120a" "-mla-lower-to-nvvm=target=sm_120a step-tokens=1"

// Tests that places of a rank's tokens are used for what kernels compute them for.

mla.weight @embed : !mla.weight<1024x39xbf16> from "e"
mla.weight @norm : !mla.weight<33xbf16> from "n"
mla.weight @head : !mla.weight<64x39xbf16> from "h"
mla.cache @c : !mla.cache<latent, 39xbf16>

func.func @step(%ids: tensor<?xi32>, %batch: !mla.batch) -> tensor<?x64xf32> {
  %read, %write = mla.shard_batch %batch {ranks = 2 : i64}
  %we = mla.get_weight @embed : !mla.weight<1024x39xbf16>
  %wn = mla.get_weight @norm : !mla.weight<33xbf16>
  %wh = mla.get_weight @head : !mla.weight<64x39xbf16>
  %c = mla.get_cache @c : !mla.cache<latent, 39xbf16>
  %x = mla.embedding %ids, %we : (tensor<?xi32>, !mla.weight<1024x39xbf16>) -> tensor<?x39xf32>
  %cs = mla.rotary_embedding %batch {frequencies = array<f32: 1.0, 0.5, 0.25>, factor = 1.0} : (!mla.batch) -> tensor<?x6xf32>
  // expected-error@+1 {{'mla.latent_cache_write' op expected to read at `read` or to write at `write` of a mla.shard_batch, which is all that sm_120a does with them}}
  %new = mla.latent_cache_write %x, %wn, %cs, %c, %read {eps = 1.0e-6, interleaved = false} : (tensor<?x39xf32>, !mla.weight<33xbf16>, tensor<?x6xf32>, !mla.cache<latent, 39xbf16>, !mla.batch) -> !mla.cache<latent, 39xbf16>
  %logits = mla.lm_head %x, %wh, %batch : (tensor<?x39xf32>, !mla.weight<64x39xbf16>, !mla.batch) -> tensor<?x64xf32>
  return %logits : tensor<?x64xf32>
}

// -----

mla.weight @embed : !mla.weight<1024x39xbf16> from "e"
mla.weight @head : !mla.weight<64x6xbf16> from "h"

func.func @step(%ids: tensor<?xi32>, %batch: !mla.batch) -> tensor<?x64xf32> {
  %read, %write = mla.shard_batch %batch {ranks = 2 : i64}
  %wh = mla.get_weight @head : !mla.weight<64x6xbf16>
  // expected-error@+1 {{'mla.rotary_embedding' op expected to read at `read`}}
  %cs = mla.rotary_embedding %read {frequencies = array<f32: 1.0, 0.5, 0.25>, factor = 1.0} : (!mla.batch) -> tensor<?x6xf32>
  %logits = mla.lm_head %cs, %wh, %batch : (tensor<?x6xf32>, !mla.weight<64x6xbf16>, !mla.batch) -> tensor<?x64xf32>
  return %logits : tensor<?x64xf32>
}
