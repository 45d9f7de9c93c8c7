// RUN: mla-opt %s -mla-fuse-attention -verify-diagnostics -split-input-file | FileCheck %s
//
// Near misses: chains that look like latent attention and must stay expanded,
// each with the remark that says why.

// Tests that an attention whose new rows are read by something else, which
// would find latents there, is left alone.
// CHECK: mla.cache @kv : !mla.cache<expanded, 32xf32>
mla.cache @kv : !mla.cache<expanded, 32xf32>
// CHECK-LABEL: func.func @cache_read_twice
func.func @cache_read_twice(%x: tensor<?x16xf32>, %cs: tensor<?x4xf32>, %b: !mla.batch, %wq: !mla.weight<24x16xbf16>,
    %wkva: !mla.weight<14x16xbf16>, %nkv: !mla.weight<10xbf16>, %wkvb: !mla.weight<28x10xbf16>) -> tensor<?x12xf32> {
  %q = mla.linear %x, %wq : (tensor<?x16xf32>, !mla.weight<24x16xbf16>) -> tensor<?x24xf32>
  %kva = mla.linear %x, %wkva : (tensor<?x16xf32>, !mla.weight<14x16xbf16>) -> tensor<?x14xf32>
  %c, %kr = mla.split %kva : (tensor<?x14xf32>) -> (tensor<?x10xf32>, tensor<?x4xf32>)
  %cn = mla.rms_norm %c, %nkv {eps = 0.125} : (tensor<?x10xf32>, !mla.weight<10xbf16>) -> tensor<?x10xf32>
  %kv = mla.linear %cn, %wkvb : (tensor<?x10xf32>, !mla.weight<28x10xbf16>) -> tensor<?x28xf32>
  %qr = mla.rope %q, %cs {head_dim = 12, offset = 8, interleaved = true} : (tensor<?x24xf32>, tensor<?x4xf32>) -> tensor<?x24xf32>
  %krr = mla.rope %kr, %cs {head_dim = 4, offset = 0, interleaved = true} : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  %cache = mla.get_cache @kv : !mla.cache<expanded, 32xf32>
  %new = mla.cache_write %cache, %b, %kv, %krr : (!mla.cache<expanded, 32xf32>, !mla.batch, tensor<?x28xf32>, tensor<?x4xf32>) -> !mla.cache<expanded, 32xf32>
  // CHECK: mla.attention
  // expected-remark@+1 {{not fused: the cache @kv has other users}}
  %o = mla.attention %qr, %new, %b {heads = 2, nope = 8, rope = 4, v = 6, scale = 0.25} : (tensor<?x24xf32>, !mla.cache<expanded, 32xf32>, !mla.batch) -> tensor<?x12xf32>
  // expected-remark@+1 {{not fused: the cache @kv has other users}}
  %p = mla.attention %qr, %new, %b {heads = 2, nope = 8, rope = 4, v = 6, scale = 0.5} : (tensor<?x24xf32>, !mla.cache<expanded, 32xf32>, !mla.batch) -> tensor<?x12xf32>
  %s = mla.add %o, %p : tensor<?x12xf32>
  return %s : tensor<?x12xf32>
}

// -----

// Tests that a cache that is a value in two places is left alone, even if the
// other one is not part of an attention.
// CHECK: mla.cache @kv : !mla.cache<expanded, 32xf32>
mla.cache @kv : !mla.cache<expanded, 32xf32>
// CHECK-LABEL: func.func @cache_got_twice
func.func @cache_got_twice(%x: tensor<?x16xf32>, %cs: tensor<?x4xf32>, %b: !mla.batch, %wq: !mla.weight<24x16xbf16>,
    %wkva: !mla.weight<14x16xbf16>, %nkv: !mla.weight<10xbf16>, %wkvb: !mla.weight<28x10xbf16>, %kv2: tensor<?x28xf32>) -> tensor<?x12xf32> {
  %q = mla.linear %x, %wq : (tensor<?x16xf32>, !mla.weight<24x16xbf16>) -> tensor<?x24xf32>
  %kva = mla.linear %x, %wkva : (tensor<?x16xf32>, !mla.weight<14x16xbf16>) -> tensor<?x14xf32>
  %c, %kr = mla.split %kva : (tensor<?x14xf32>) -> (tensor<?x10xf32>, tensor<?x4xf32>)
  %cn = mla.rms_norm %c, %nkv {eps = 0.125} : (tensor<?x10xf32>, !mla.weight<10xbf16>) -> tensor<?x10xf32>
  %kv = mla.linear %cn, %wkvb : (tensor<?x10xf32>, !mla.weight<28x10xbf16>) -> tensor<?x28xf32>
  %qr = mla.rope %q, %cs {head_dim = 12, offset = 8, interleaved = true} : (tensor<?x24xf32>, tensor<?x4xf32>) -> tensor<?x24xf32>
  %krr = mla.rope %kr, %cs {head_dim = 4, offset = 0, interleaved = true} : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  %cache = mla.get_cache @kv : !mla.cache<expanded, 32xf32>
  %new = mla.cache_write %cache, %b, %kv, %krr : (!mla.cache<expanded, 32xf32>, !mla.batch, tensor<?x28xf32>, tensor<?x4xf32>) -> !mla.cache<expanded, 32xf32>
  // CHECK: mla.attention
  // expected-remark@+1 {{not fused: the cache @kv has other users}}
  %o = mla.attention %qr, %new, %b {heads = 2, nope = 8, rope = 4, v = 6, scale = 0.25} : (tensor<?x24xf32>, !mla.cache<expanded, 32xf32>, !mla.batch) -> tensor<?x12xf32>
  %again = mla.get_cache @kv : !mla.cache<expanded, 32xf32>
  %renewed = mla.cache_write %again, %b, %kv2, %krr : (!mla.cache<expanded, 32xf32>, !mla.batch, tensor<?x28xf32>, tensor<?x4xf32>) -> !mla.cache<expanded, 32xf32>
  return %o : tensor<?x12xf32>
}

// -----

// Tests that a cache that is not one of the model's, so that its type cannot
// change, is left alone.
// CHECK-LABEL: func.func @cache_argument
func.func @cache_argument(%x: tensor<?x16xf32>, %cs: tensor<?x4xf32>, %b: !mla.batch, %wq: !mla.weight<24x16xbf16>,
    %wkva: !mla.weight<14x16xbf16>, %nkv: !mla.weight<10xbf16>, %wkvb: !mla.weight<28x10xbf16>, %cache: !mla.cache<expanded, 32xf32>) -> tensor<?x12xf32> {
  %q = mla.linear %x, %wq : (tensor<?x16xf32>, !mla.weight<24x16xbf16>) -> tensor<?x24xf32>
  %kva = mla.linear %x, %wkva : (tensor<?x16xf32>, !mla.weight<14x16xbf16>) -> tensor<?x14xf32>
  %c, %kr = mla.split %kva : (tensor<?x14xf32>) -> (tensor<?x10xf32>, tensor<?x4xf32>)
  %cn = mla.rms_norm %c, %nkv {eps = 0.125} : (tensor<?x10xf32>, !mla.weight<10xbf16>) -> tensor<?x10xf32>
  %kv = mla.linear %cn, %wkvb : (tensor<?x10xf32>, !mla.weight<28x10xbf16>) -> tensor<?x28xf32>
  %qr = mla.rope %q, %cs {head_dim = 12, offset = 8, interleaved = true} : (tensor<?x24xf32>, tensor<?x4xf32>) -> tensor<?x24xf32>
  %krr = mla.rope %kr, %cs {head_dim = 4, offset = 0, interleaved = true} : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  %new = mla.cache_write %cache, %b, %kv, %krr : (!mla.cache<expanded, 32xf32>, !mla.batch, tensor<?x28xf32>, tensor<?x4xf32>) -> !mla.cache<expanded, 32xf32>
  // CHECK: mla.attention
  // expected-remark@+1 {{not fused: expected a cache from a mla.get_cache}}
  %o = mla.attention %qr, %new, %b {heads = 2, nope = 8, rope = 4, v = 6, scale = 0.25} : (tensor<?x24xf32>, !mla.cache<expanded, 32xf32>, !mla.batch) -> tensor<?x12xf32>
  return %o : tensor<?x12xf32>
}

// -----

// Tests that an attention over a cache that this step does not write is left
// alone.
// CHECK: mla.cache @kv : !mla.cache<expanded, 32xf32>
mla.cache @kv : !mla.cache<expanded, 32xf32>
// CHECK-LABEL: func.func @cache_unwritten
func.func @cache_unwritten(%x: tensor<?x16xf32>, %cs: tensor<?x4xf32>, %b: !mla.batch, %wq: !mla.weight<24x16xbf16>,
    %wkva: !mla.weight<14x16xbf16>, %nkv: !mla.weight<10xbf16>, %wkvb: !mla.weight<28x10xbf16>) -> tensor<?x12xf32> {
  %q = mla.linear %x, %wq : (tensor<?x16xf32>, !mla.weight<24x16xbf16>) -> tensor<?x24xf32>
  %kva = mla.linear %x, %wkva : (tensor<?x16xf32>, !mla.weight<14x16xbf16>) -> tensor<?x14xf32>
  %c, %kr = mla.split %kva : (tensor<?x14xf32>) -> (tensor<?x10xf32>, tensor<?x4xf32>)
  %cn = mla.rms_norm %c, %nkv {eps = 0.125} : (tensor<?x10xf32>, !mla.weight<10xbf16>) -> tensor<?x10xf32>
  %kv = mla.linear %cn, %wkvb : (tensor<?x10xf32>, !mla.weight<28x10xbf16>) -> tensor<?x28xf32>
  %qr = mla.rope %q, %cs {head_dim = 12, offset = 8, interleaved = true} : (tensor<?x24xf32>, tensor<?x4xf32>) -> tensor<?x24xf32>
  %krr = mla.rope %kr, %cs {head_dim = 4, offset = 0, interleaved = true} : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  %cache = mla.get_cache @kv : !mla.cache<expanded, 32xf32>
  // CHECK: mla.attention
  // expected-remark@+1 {{not fused: expected a cache that a mla.cache_write of the same batch returns}}
  %o = mla.attention %qr, %cache, %b {heads = 2, nope = 8, rope = 4, v = 6, scale = 0.25} : (tensor<?x24xf32>, !mla.cache<expanded, 32xf32>, !mla.batch) -> tensor<?x12xf32>
  return %o : tensor<?x12xf32>
}

// -----

// Tests that rows that another batch wrote are left alone.
// CHECK: mla.cache @kv : !mla.cache<expanded, 32xf32>
mla.cache @kv : !mla.cache<expanded, 32xf32>
// CHECK-LABEL: func.func @other_batch
func.func @other_batch(%x: tensor<?x16xf32>, %cs: tensor<?x4xf32>, %b: !mla.batch, %wq: !mla.weight<24x16xbf16>,
    %wkva: !mla.weight<14x16xbf16>, %nkv: !mla.weight<10xbf16>, %wkvb: !mla.weight<28x10xbf16>, %b2: !mla.batch) -> tensor<?x12xf32> {
  %q = mla.linear %x, %wq : (tensor<?x16xf32>, !mla.weight<24x16xbf16>) -> tensor<?x24xf32>
  %kva = mla.linear %x, %wkva : (tensor<?x16xf32>, !mla.weight<14x16xbf16>) -> tensor<?x14xf32>
  %c, %kr = mla.split %kva : (tensor<?x14xf32>) -> (tensor<?x10xf32>, tensor<?x4xf32>)
  %cn = mla.rms_norm %c, %nkv {eps = 0.125} : (tensor<?x10xf32>, !mla.weight<10xbf16>) -> tensor<?x10xf32>
  %kv = mla.linear %cn, %wkvb : (tensor<?x10xf32>, !mla.weight<28x10xbf16>) -> tensor<?x28xf32>
  %qr = mla.rope %q, %cs {head_dim = 12, offset = 8, interleaved = true} : (tensor<?x24xf32>, tensor<?x4xf32>) -> tensor<?x24xf32>
  %krr = mla.rope %kr, %cs {head_dim = 4, offset = 0, interleaved = true} : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  %cache = mla.get_cache @kv : !mla.cache<expanded, 32xf32>
  %new = mla.cache_write %cache, %b, %kv, %krr : (!mla.cache<expanded, 32xf32>, !mla.batch, tensor<?x28xf32>, tensor<?x4xf32>) -> !mla.cache<expanded, 32xf32>
  // CHECK: mla.attention
  // expected-remark@+1 {{not fused: expected a cache that a mla.cache_write of the same batch returns}}
  %o = mla.attention %qr, %new, %b2 {heads = 2, nope = 8, rope = 4, v = 6, scale = 0.25} : (tensor<?x24xf32>, !mla.cache<expanded, 32xf32>, !mla.batch) -> tensor<?x12xf32>
  return %o : tensor<?x12xf32>
}

// -----

// Tests that expanded rows with another user, for which they would have to be
// computed after all, are left alone.
// CHECK: mla.cache @kv : !mla.cache<expanded, 32xf32>
mla.cache @kv : !mla.cache<expanded, 32xf32>
// CHECK-LABEL: func.func @expanded_rows_used
func.func @expanded_rows_used(%x: tensor<?x16xf32>, %cs: tensor<?x4xf32>, %b: !mla.batch, %wq: !mla.weight<24x16xbf16>,
    %wkva: !mla.weight<14x16xbf16>, %nkv: !mla.weight<10xbf16>, %wkvb: !mla.weight<28x10xbf16>) -> (tensor<?x12xf32>, tensor<?x28xf32>) {
  %q = mla.linear %x, %wq : (tensor<?x16xf32>, !mla.weight<24x16xbf16>) -> tensor<?x24xf32>
  %kva = mla.linear %x, %wkva : (tensor<?x16xf32>, !mla.weight<14x16xbf16>) -> tensor<?x14xf32>
  %c, %kr = mla.split %kva : (tensor<?x14xf32>) -> (tensor<?x10xf32>, tensor<?x4xf32>)
  %cn = mla.rms_norm %c, %nkv {eps = 0.125} : (tensor<?x10xf32>, !mla.weight<10xbf16>) -> tensor<?x10xf32>
  %kv = mla.linear %cn, %wkvb : (tensor<?x10xf32>, !mla.weight<28x10xbf16>) -> tensor<?x28xf32>
  %qr = mla.rope %q, %cs {head_dim = 12, offset = 8, interleaved = true} : (tensor<?x24xf32>, tensor<?x4xf32>) -> tensor<?x24xf32>
  %krr = mla.rope %kr, %cs {head_dim = 4, offset = 0, interleaved = true} : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  %cache = mla.get_cache @kv : !mla.cache<expanded, 32xf32>
  %new = mla.cache_write %cache, %b, %kv, %krr : (!mla.cache<expanded, 32xf32>, !mla.batch, tensor<?x28xf32>, tensor<?x4xf32>) -> !mla.cache<expanded, 32xf32>
  // CHECK: mla.attention
  // expected-remark@+1 {{not fused: the expanded rows have other users}}
  %o = mla.attention %qr, %new, %b {heads = 2, nope = 8, rope = 4, v = 6, scale = 0.25} : (tensor<?x24xf32>, !mla.cache<expanded, 32xf32>, !mla.batch) -> tensor<?x12xf32>
  return %o, %kv : tensor<?x12xf32>, tensor<?x28xf32>
}

// -----

// Tests that a latent without a norm is left alone: the fused write has one.
// CHECK: mla.cache @kv : !mla.cache<expanded, 32xf32>
mla.cache @kv : !mla.cache<expanded, 32xf32>
// CHECK-LABEL: func.func @no_norm
func.func @no_norm(%x: tensor<?x16xf32>, %cs: tensor<?x4xf32>, %b: !mla.batch, %wq: !mla.weight<24x16xbf16>,
    %wkva: !mla.weight<14x16xbf16>, %nkv: !mla.weight<10xbf16>, %wkvb: !mla.weight<28x10xbf16>) -> tensor<?x12xf32> {
  %q = mla.linear %x, %wq : (tensor<?x16xf32>, !mla.weight<24x16xbf16>) -> tensor<?x24xf32>
  %kva = mla.linear %x, %wkva : (tensor<?x16xf32>, !mla.weight<14x16xbf16>) -> tensor<?x14xf32>
  %c, %kr = mla.split %kva : (tensor<?x14xf32>) -> (tensor<?x10xf32>, tensor<?x4xf32>)
  %kv = mla.linear %c, %wkvb : (tensor<?x10xf32>, !mla.weight<28x10xbf16>) -> tensor<?x28xf32>
  %qr = mla.rope %q, %cs {head_dim = 12, offset = 8, interleaved = true} : (tensor<?x24xf32>, tensor<?x4xf32>) -> tensor<?x24xf32>
  %krr = mla.rope %kr, %cs {head_dim = 4, offset = 0, interleaved = true} : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  %cache = mla.get_cache @kv : !mla.cache<expanded, 32xf32>
  %new = mla.cache_write %cache, %b, %kv, %krr : (!mla.cache<expanded, 32xf32>, !mla.batch, tensor<?x28xf32>, tensor<?x4xf32>) -> !mla.cache<expanded, 32xf32>
  // CHECK: mla.attention
  // expected-remark@+1 {{not fused: expected a latent normed by mla.rms_norm}}
  %o = mla.attention %qr, %new, %b {heads = 2, nope = 8, rope = 4, v = 6, scale = 0.25} : (tensor<?x24xf32>, !mla.cache<expanded, 32xf32>, !mla.batch) -> tensor<?x12xf32>
  return %o : tensor<?x12xf32>
}

// -----

// Tests that expanded rows that no linear makes are left alone.
// CHECK: mla.cache @kv : !mla.cache<expanded, 32xf32>
mla.cache @kv : !mla.cache<expanded, 32xf32>
// CHECK-LABEL: func.func @no_expansion
func.func @no_expansion(%x: tensor<?x16xf32>, %cs: tensor<?x4xf32>, %b: !mla.batch, %wq: !mla.weight<24x16xbf16>,
    %wkva: !mla.weight<14x16xbf16>, %nkv: !mla.weight<10xbf16>, %wkvb: !mla.weight<28x10xbf16>, %kv: tensor<?x28xf32>) -> tensor<?x12xf32> {
  %q = mla.linear %x, %wq : (tensor<?x16xf32>, !mla.weight<24x16xbf16>) -> tensor<?x24xf32>
  %kva = mla.linear %x, %wkva : (tensor<?x16xf32>, !mla.weight<14x16xbf16>) -> tensor<?x14xf32>
  %c, %kr = mla.split %kva : (tensor<?x14xf32>) -> (tensor<?x10xf32>, tensor<?x4xf32>)
  %qr = mla.rope %q, %cs {head_dim = 12, offset = 8, interleaved = true} : (tensor<?x24xf32>, tensor<?x4xf32>) -> tensor<?x24xf32>
  %krr = mla.rope %kr, %cs {head_dim = 4, offset = 0, interleaved = true} : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  %cache = mla.get_cache @kv : !mla.cache<expanded, 32xf32>
  %new = mla.cache_write %cache, %b, %kv, %krr : (!mla.cache<expanded, 32xf32>, !mla.batch, tensor<?x28xf32>, tensor<?x4xf32>) -> !mla.cache<expanded, 32xf32>
  // CHECK: mla.attention
  // expected-remark@+1 {{not fused: expected expanded rows of a mla.linear}}
  %o = mla.attention %qr, %new, %b {heads = 2, nope = 8, rope = 4, v = 6, scale = 0.25} : (tensor<?x24xf32>, !mla.cache<expanded, 32xf32>, !mla.batch) -> tensor<?x12xf32>
  return %o : tensor<?x12xf32>
}

// -----

// Tests that a cache row of one part, already joined, is left alone.
// CHECK: mla.cache @kv : !mla.cache<expanded, 32xf32>
mla.cache @kv : !mla.cache<expanded, 32xf32>
// CHECK-LABEL: func.func @one_part
func.func @one_part(%x: tensor<?x16xf32>, %cs: tensor<?x4xf32>, %b: !mla.batch, %wq: !mla.weight<24x16xbf16>,
    %wkva: !mla.weight<14x16xbf16>, %nkv: !mla.weight<10xbf16>, %wkvb: !mla.weight<28x10xbf16>, %row: tensor<?x32xf32>) -> tensor<?x12xf32> {
  %q = mla.linear %x, %wq : (tensor<?x16xf32>, !mla.weight<24x16xbf16>) -> tensor<?x24xf32>
  %kva = mla.linear %x, %wkva : (tensor<?x16xf32>, !mla.weight<14x16xbf16>) -> tensor<?x14xf32>
  %c, %kr = mla.split %kva : (tensor<?x14xf32>) -> (tensor<?x10xf32>, tensor<?x4xf32>)
  %qr = mla.rope %q, %cs {head_dim = 12, offset = 8, interleaved = true} : (tensor<?x24xf32>, tensor<?x4xf32>) -> tensor<?x24xf32>
  %cache = mla.get_cache @kv : !mla.cache<expanded, 32xf32>
  %new = mla.cache_write %cache, %b, %row : (!mla.cache<expanded, 32xf32>, !mla.batch, tensor<?x32xf32>) -> !mla.cache<expanded, 32xf32>
  // CHECK: mla.attention
  // expected-remark@+1 {{not fused: expected a cache row of two parts, found 1}}
  %o = mla.attention %qr, %new, %b {heads = 2, nope = 8, rope = 4, v = 6, scale = 0.25} : (tensor<?x24xf32>, !mla.cache<expanded, 32xf32>, !mla.batch) -> tensor<?x12xf32>
  return %o : tensor<?x12xf32>
}

// -----

// Tests that a rotary part that does not come with the latent is left alone.
// CHECK: mla.cache @kv : !mla.cache<expanded, 32xf32>
mla.cache @kv : !mla.cache<expanded, 32xf32>
// CHECK-LABEL: func.func @rotary_elsewhere
func.func @rotary_elsewhere(%x: tensor<?x16xf32>, %cs: tensor<?x4xf32>, %b: !mla.batch, %wq: !mla.weight<24x16xbf16>,
    %wkva: !mla.weight<14x16xbf16>, %nkv: !mla.weight<10xbf16>, %wkvb: !mla.weight<28x10xbf16>, %kr2: tensor<?x4xf32>) -> tensor<?x12xf32> {
  %q = mla.linear %x, %wq : (tensor<?x16xf32>, !mla.weight<24x16xbf16>) -> tensor<?x24xf32>
  %kva = mla.linear %x, %wkva : (tensor<?x16xf32>, !mla.weight<14x16xbf16>) -> tensor<?x14xf32>
  %c, %kr = mla.split %kva : (tensor<?x14xf32>) -> (tensor<?x10xf32>, tensor<?x4xf32>)
  %cn = mla.rms_norm %c, %nkv {eps = 0.125} : (tensor<?x10xf32>, !mla.weight<10xbf16>) -> tensor<?x10xf32>
  %kv = mla.linear %cn, %wkvb : (tensor<?x10xf32>, !mla.weight<28x10xbf16>) -> tensor<?x28xf32>
  %qr = mla.rope %q, %cs {head_dim = 12, offset = 8, interleaved = true} : (tensor<?x24xf32>, tensor<?x4xf32>) -> tensor<?x24xf32>
  %krr = mla.rope %kr2, %cs {head_dim = 4, offset = 0, interleaved = true} : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  %cache = mla.get_cache @kv : !mla.cache<expanded, 32xf32>
  %new = mla.cache_write %cache, %b, %kv, %krr : (!mla.cache<expanded, 32xf32>, !mla.batch, tensor<?x28xf32>, tensor<?x4xf32>) -> !mla.cache<expanded, 32xf32>
  // CHECK: mla.attention
  // expected-remark@+1 {{not fused: expected latent and rotary part of one mla.split}}
  %o = mla.attention %qr, %new, %b {heads = 2, nope = 8, rope = 4, v = 6, scale = 0.25} : (tensor<?x24xf32>, !mla.cache<expanded, 32xf32>, !mla.batch) -> tensor<?x12xf32>
  return %o : tensor<?x12xf32>
}

// -----

// Tests that latent and rotary part in the other order are left alone: the
// latent comes first in the fused row.
// CHECK: mla.cache @kv : !mla.cache<expanded, 32xf32>
mla.cache @kv : !mla.cache<expanded, 32xf32>
// CHECK-LABEL: func.func @swapped
func.func @swapped(%x: tensor<?x16xf32>, %cs: tensor<?x4xf32>, %b: !mla.batch, %wq: !mla.weight<24x16xbf16>,
    %wkva: !mla.weight<14x16xbf16>, %nkv: !mla.weight<10xbf16>, %wkvb: !mla.weight<28x10xbf16>) -> tensor<?x12xf32> {
  %q = mla.linear %x, %wq : (tensor<?x16xf32>, !mla.weight<24x16xbf16>) -> tensor<?x24xf32>
  %kva = mla.linear %x, %wkva : (tensor<?x16xf32>, !mla.weight<14x16xbf16>) -> tensor<?x14xf32>
  %kr, %c = mla.split %kva : (tensor<?x14xf32>) -> (tensor<?x4xf32>, tensor<?x10xf32>)
  %cn = mla.rms_norm %c, %nkv {eps = 0.125} : (tensor<?x10xf32>, !mla.weight<10xbf16>) -> tensor<?x10xf32>
  %kv = mla.linear %cn, %wkvb : (tensor<?x10xf32>, !mla.weight<28x10xbf16>) -> tensor<?x28xf32>
  %qr = mla.rope %q, %cs {head_dim = 12, offset = 8, interleaved = true} : (tensor<?x24xf32>, tensor<?x4xf32>) -> tensor<?x24xf32>
  %krr = mla.rope %kr, %cs {head_dim = 4, offset = 0, interleaved = true} : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  %cache = mla.get_cache @kv : !mla.cache<expanded, 32xf32>
  %new = mla.cache_write %cache, %b, %kv, %krr : (!mla.cache<expanded, 32xf32>, !mla.batch, tensor<?x28xf32>, tensor<?x4xf32>) -> !mla.cache<expanded, 32xf32>
  // CHECK: mla.attention
  // expected-remark@+1 {{not fused: expected latent and rotary part of one mla.split}}
  %o = mla.attention %qr, %new, %b {heads = 2, nope = 8, rope = 4, v = 6, scale = 0.25} : (tensor<?x24xf32>, !mla.cache<expanded, 32xf32>, !mla.batch) -> tensor<?x12xf32>
  return %o : tensor<?x12xf32>
}

// -----

// Tests that keys that are not rotated are left alone.
// CHECK: mla.cache @kv : !mla.cache<expanded, 32xf32>
mla.cache @kv : !mla.cache<expanded, 32xf32>
// CHECK-LABEL: func.func @keys_not_rotated
func.func @keys_not_rotated(%x: tensor<?x16xf32>, %cs: tensor<?x4xf32>, %b: !mla.batch, %wq: !mla.weight<24x16xbf16>,
    %wkva: !mla.weight<14x16xbf16>, %nkv: !mla.weight<10xbf16>, %wkvb: !mla.weight<28x10xbf16>) -> tensor<?x12xf32> {
  %q = mla.linear %x, %wq : (tensor<?x16xf32>, !mla.weight<24x16xbf16>) -> tensor<?x24xf32>
  %kva = mla.linear %x, %wkva : (tensor<?x16xf32>, !mla.weight<14x16xbf16>) -> tensor<?x14xf32>
  %c, %kr = mla.split %kva : (tensor<?x14xf32>) -> (tensor<?x10xf32>, tensor<?x4xf32>)
  %cn = mla.rms_norm %c, %nkv {eps = 0.125} : (tensor<?x10xf32>, !mla.weight<10xbf16>) -> tensor<?x10xf32>
  %kv = mla.linear %cn, %wkvb : (tensor<?x10xf32>, !mla.weight<28x10xbf16>) -> tensor<?x28xf32>
  %qr = mla.rope %q, %cs {head_dim = 12, offset = 8, interleaved = true} : (tensor<?x24xf32>, tensor<?x4xf32>) -> tensor<?x24xf32>
  %cache = mla.get_cache @kv : !mla.cache<expanded, 32xf32>
  %new = mla.cache_write %cache, %b, %kv, %kr : (!mla.cache<expanded, 32xf32>, !mla.batch, tensor<?x28xf32>, tensor<?x4xf32>) -> !mla.cache<expanded, 32xf32>
  // CHECK: mla.attention
  // expected-remark@+1 {{not fused: expected latent and rotary part of one mla.split}}
  %o = mla.attention %qr, %new, %b {heads = 2, nope = 8, rope = 4, v = 6, scale = 0.25} : (tensor<?x24xf32>, !mla.cache<expanded, 32xf32>, !mla.batch) -> tensor<?x12xf32>
  return %o : tensor<?x12xf32>
}

// -----

// Tests that queries that are not rotated are left alone.
// CHECK: mla.cache @kv : !mla.cache<expanded, 32xf32>
mla.cache @kv : !mla.cache<expanded, 32xf32>
// CHECK-LABEL: func.func @queries_not_rotated
func.func @queries_not_rotated(%x: tensor<?x16xf32>, %cs: tensor<?x4xf32>, %b: !mla.batch, %wq: !mla.weight<24x16xbf16>,
    %wkva: !mla.weight<14x16xbf16>, %nkv: !mla.weight<10xbf16>, %wkvb: !mla.weight<28x10xbf16>) -> tensor<?x12xf32> {
  %q = mla.linear %x, %wq : (tensor<?x16xf32>, !mla.weight<24x16xbf16>) -> tensor<?x24xf32>
  %kva = mla.linear %x, %wkva : (tensor<?x16xf32>, !mla.weight<14x16xbf16>) -> tensor<?x14xf32>
  %c, %kr = mla.split %kva : (tensor<?x14xf32>) -> (tensor<?x10xf32>, tensor<?x4xf32>)
  %cn = mla.rms_norm %c, %nkv {eps = 0.125} : (tensor<?x10xf32>, !mla.weight<10xbf16>) -> tensor<?x10xf32>
  %kv = mla.linear %cn, %wkvb : (tensor<?x10xf32>, !mla.weight<28x10xbf16>) -> tensor<?x28xf32>
  %krr = mla.rope %kr, %cs {head_dim = 4, offset = 0, interleaved = true} : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  %cache = mla.get_cache @kv : !mla.cache<expanded, 32xf32>
  %new = mla.cache_write %cache, %b, %kv, %krr : (!mla.cache<expanded, 32xf32>, !mla.batch, tensor<?x28xf32>, tensor<?x4xf32>) -> !mla.cache<expanded, 32xf32>
  // CHECK: mla.attention
  // expected-remark@+1 {{not fused: expected queries of a mla.rope}}
  %o = mla.attention %q, %new, %b {heads = 2, nope = 8, rope = 4, v = 6, scale = 0.25} : (tensor<?x24xf32>, !mla.cache<expanded, 32xf32>, !mla.batch) -> tensor<?x12xf32>
  return %o : tensor<?x12xf32>
}

// -----

// Tests that queries and keys with different angles are left alone.
// CHECK: mla.cache @kv : !mla.cache<expanded, 32xf32>
mla.cache @kv : !mla.cache<expanded, 32xf32>
// CHECK-LABEL: func.func @other_angles
func.func @other_angles(%x: tensor<?x16xf32>, %cs: tensor<?x4xf32>, %b: !mla.batch, %wq: !mla.weight<24x16xbf16>,
    %wkva: !mla.weight<14x16xbf16>, %nkv: !mla.weight<10xbf16>, %wkvb: !mla.weight<28x10xbf16>, %cs2: tensor<?x4xf32>) -> tensor<?x12xf32> {
  %q = mla.linear %x, %wq : (tensor<?x16xf32>, !mla.weight<24x16xbf16>) -> tensor<?x24xf32>
  %kva = mla.linear %x, %wkva : (tensor<?x16xf32>, !mla.weight<14x16xbf16>) -> tensor<?x14xf32>
  %c, %kr = mla.split %kva : (tensor<?x14xf32>) -> (tensor<?x10xf32>, tensor<?x4xf32>)
  %cn = mla.rms_norm %c, %nkv {eps = 0.125} : (tensor<?x10xf32>, !mla.weight<10xbf16>) -> tensor<?x10xf32>
  %kv = mla.linear %cn, %wkvb : (tensor<?x10xf32>, !mla.weight<28x10xbf16>) -> tensor<?x28xf32>
  %qr = mla.rope %q, %cs2 {head_dim = 12, offset = 8, interleaved = true} : (tensor<?x24xf32>, tensor<?x4xf32>) -> tensor<?x24xf32>
  %krr = mla.rope %kr, %cs {head_dim = 4, offset = 0, interleaved = true} : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  %cache = mla.get_cache @kv : !mla.cache<expanded, 32xf32>
  %new = mla.cache_write %cache, %b, %kv, %krr : (!mla.cache<expanded, 32xf32>, !mla.batch, tensor<?x28xf32>, tensor<?x4xf32>) -> !mla.cache<expanded, 32xf32>
  // CHECK: mla.attention
  // expected-remark@+1 {{not fused: queries and keys are rotated differently}}
  %o = mla.attention %qr, %new, %b {heads = 2, nope = 8, rope = 4, v = 6, scale = 0.25} : (tensor<?x24xf32>, !mla.cache<expanded, 32xf32>, !mla.batch) -> tensor<?x12xf32>
  return %o : tensor<?x12xf32>
}

// -----

// Tests that queries and keys with different pairs are left alone.
// CHECK: mla.cache @kv : !mla.cache<expanded, 32xf32>
mla.cache @kv : !mla.cache<expanded, 32xf32>
// CHECK-LABEL: func.func @other_pairs
func.func @other_pairs(%x: tensor<?x16xf32>, %cs: tensor<?x4xf32>, %b: !mla.batch, %wq: !mla.weight<24x16xbf16>,
    %wkva: !mla.weight<14x16xbf16>, %nkv: !mla.weight<10xbf16>, %wkvb: !mla.weight<28x10xbf16>) -> tensor<?x12xf32> {
  %q = mla.linear %x, %wq : (tensor<?x16xf32>, !mla.weight<24x16xbf16>) -> tensor<?x24xf32>
  %kva = mla.linear %x, %wkva : (tensor<?x16xf32>, !mla.weight<14x16xbf16>) -> tensor<?x14xf32>
  %c, %kr = mla.split %kva : (tensor<?x14xf32>) -> (tensor<?x10xf32>, tensor<?x4xf32>)
  %cn = mla.rms_norm %c, %nkv {eps = 0.125} : (tensor<?x10xf32>, !mla.weight<10xbf16>) -> tensor<?x10xf32>
  %kv = mla.linear %cn, %wkvb : (tensor<?x10xf32>, !mla.weight<28x10xbf16>) -> tensor<?x28xf32>
  %qr = mla.rope %q, %cs {head_dim = 12, offset = 8, interleaved = false} : (tensor<?x24xf32>, tensor<?x4xf32>) -> tensor<?x24xf32>
  %krr = mla.rope %kr, %cs {head_dim = 4, offset = 0, interleaved = true} : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  %cache = mla.get_cache @kv : !mla.cache<expanded, 32xf32>
  %new = mla.cache_write %cache, %b, %kv, %krr : (!mla.cache<expanded, 32xf32>, !mla.batch, tensor<?x28xf32>, tensor<?x4xf32>) -> !mla.cache<expanded, 32xf32>
  // CHECK: mla.attention
  // expected-remark@+1 {{not fused: queries and keys are rotated differently}}
  %o = mla.attention %qr, %new, %b {heads = 2, nope = 8, rope = 4, v = 6, scale = 0.25} : (tensor<?x24xf32>, !mla.cache<expanded, 32xf32>, !mla.batch) -> tensor<?x12xf32>
  return %o : tensor<?x12xf32>
}

// -----

// Tests that queries whose rotated values come first in a head are left alone.
// CHECK: mla.cache @kv : !mla.cache<expanded, 32xf32>
mla.cache @kv : !mla.cache<expanded, 32xf32>
// CHECK-LABEL: func.func @rotated_first
func.func @rotated_first(%x: tensor<?x16xf32>, %cs: tensor<?x4xf32>, %b: !mla.batch, %wq: !mla.weight<24x16xbf16>,
    %wkva: !mla.weight<14x16xbf16>, %nkv: !mla.weight<10xbf16>, %wkvb: !mla.weight<28x10xbf16>) -> tensor<?x12xf32> {
  %q = mla.linear %x, %wq : (tensor<?x16xf32>, !mla.weight<24x16xbf16>) -> tensor<?x24xf32>
  %kva = mla.linear %x, %wkva : (tensor<?x16xf32>, !mla.weight<14x16xbf16>) -> tensor<?x14xf32>
  %c, %kr = mla.split %kva : (tensor<?x14xf32>) -> (tensor<?x10xf32>, tensor<?x4xf32>)
  %cn = mla.rms_norm %c, %nkv {eps = 0.125} : (tensor<?x10xf32>, !mla.weight<10xbf16>) -> tensor<?x10xf32>
  %kv = mla.linear %cn, %wkvb : (tensor<?x10xf32>, !mla.weight<28x10xbf16>) -> tensor<?x28xf32>
  %qr = mla.rope %q, %cs {head_dim = 12, offset = 0, interleaved = true} : (tensor<?x24xf32>, tensor<?x4xf32>) -> tensor<?x24xf32>
  %krr = mla.rope %kr, %cs {head_dim = 4, offset = 0, interleaved = true} : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  %cache = mla.get_cache @kv : !mla.cache<expanded, 32xf32>
  %new = mla.cache_write %cache, %b, %kv, %krr : (!mla.cache<expanded, 32xf32>, !mla.batch, tensor<?x28xf32>, tensor<?x4xf32>) -> !mla.cache<expanded, 32xf32>
  // CHECK: mla.attention
  // expected-remark@+1 {{not fused: the rotated part of the queries is not the last of each head}}
  %o = mla.attention %qr, %new, %b {heads = 2, nope = 8, rope = 4, v = 6, scale = 0.25} : (tensor<?x24xf32>, !mla.cache<expanded, 32xf32>, !mla.batch) -> tensor<?x12xf32>
  return %o : tensor<?x12xf32>
}

// -----

// Tests that queries that are rotated as if they were one head are left alone.
// CHECK: mla.cache @kv : !mla.cache<expanded, 32xf32>
mla.cache @kv : !mla.cache<expanded, 32xf32>
// CHECK-LABEL: func.func @one_query_head
func.func @one_query_head(%x: tensor<?x16xf32>, %cs: tensor<?x4xf32>, %b: !mla.batch, %wq: !mla.weight<24x16xbf16>,
    %wkva: !mla.weight<14x16xbf16>, %nkv: !mla.weight<10xbf16>, %wkvb: !mla.weight<28x10xbf16>) -> tensor<?x12xf32> {
  %q = mla.linear %x, %wq : (tensor<?x16xf32>, !mla.weight<24x16xbf16>) -> tensor<?x24xf32>
  %kva = mla.linear %x, %wkva : (tensor<?x16xf32>, !mla.weight<14x16xbf16>) -> tensor<?x14xf32>
  %c, %kr = mla.split %kva : (tensor<?x14xf32>) -> (tensor<?x10xf32>, tensor<?x4xf32>)
  %cn = mla.rms_norm %c, %nkv {eps = 0.125} : (tensor<?x10xf32>, !mla.weight<10xbf16>) -> tensor<?x10xf32>
  %kv = mla.linear %cn, %wkvb : (tensor<?x10xf32>, !mla.weight<28x10xbf16>) -> tensor<?x28xf32>
  %qr = mla.rope %q, %cs {head_dim = 24, offset = 20, interleaved = true} : (tensor<?x24xf32>, tensor<?x4xf32>) -> tensor<?x24xf32>
  %krr = mla.rope %kr, %cs {head_dim = 4, offset = 0, interleaved = true} : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  %cache = mla.get_cache @kv : !mla.cache<expanded, 32xf32>
  %new = mla.cache_write %cache, %b, %kv, %krr : (!mla.cache<expanded, 32xf32>, !mla.batch, tensor<?x28xf32>, tensor<?x4xf32>) -> !mla.cache<expanded, 32xf32>
  // CHECK: mla.attention
  // expected-remark@+1 {{not fused: the rotated part of the queries is not the last of each head}}
  %o = mla.attention %qr, %new, %b {heads = 2, nope = 8, rope = 4, v = 6, scale = 0.25} : (tensor<?x24xf32>, !mla.cache<expanded, 32xf32>, !mla.batch) -> tensor<?x12xf32>
  return %o : tensor<?x12xf32>
}

// -----

// Tests that a rotation of only some rotary values is left alone: the fused
// write rotates all of them.
// CHECK: mla.cache @kv : !mla.cache<expanded, 32xf32>
mla.cache @kv : !mla.cache<expanded, 32xf32>
// CHECK-LABEL: func.func @partial_rotation
func.func @partial_rotation(%x: tensor<?x16xf32>, %cs: tensor<?x4xf32>, %b: !mla.batch, %wq: !mla.weight<24x16xbf16>,
    %wkva: !mla.weight<14x16xbf16>, %nkv: !mla.weight<10xbf16>, %wkvb: !mla.weight<28x10xbf16>, %cs2: tensor<?x2xf32>) -> tensor<?x12xf32> {
  %q = mla.linear %x, %wq : (tensor<?x16xf32>, !mla.weight<24x16xbf16>) -> tensor<?x24xf32>
  %kva = mla.linear %x, %wkva : (tensor<?x16xf32>, !mla.weight<14x16xbf16>) -> tensor<?x14xf32>
  %c, %kr = mla.split %kva : (tensor<?x14xf32>) -> (tensor<?x10xf32>, tensor<?x4xf32>)
  %cn = mla.rms_norm %c, %nkv {eps = 0.125} : (tensor<?x10xf32>, !mla.weight<10xbf16>) -> tensor<?x10xf32>
  %kv = mla.linear %cn, %wkvb : (tensor<?x10xf32>, !mla.weight<28x10xbf16>) -> tensor<?x28xf32>
  %qr = mla.rope %q, %cs2 {head_dim = 12, offset = 8, interleaved = true} : (tensor<?x24xf32>, tensor<?x2xf32>) -> tensor<?x24xf32>
  %krr = mla.rope %kr, %cs2 {head_dim = 4, offset = 0, interleaved = true} : (tensor<?x4xf32>, tensor<?x2xf32>) -> tensor<?x4xf32>
  %cache = mla.get_cache @kv : !mla.cache<expanded, 32xf32>
  %new = mla.cache_write %cache, %b, %kv, %krr : (!mla.cache<expanded, 32xf32>, !mla.batch, tensor<?x28xf32>, tensor<?x4xf32>) -> !mla.cache<expanded, 32xf32>
  // CHECK: mla.attention
  // expected-remark@+1 {{not fused: the rotation covers only a part of the rotary values}}
  %o = mla.attention %qr, %new, %b {heads = 2, nope = 8, rope = 4, v = 6, scale = 0.25} : (tensor<?x24xf32>, !mla.cache<expanded, 32xf32>, !mla.batch) -> tensor<?x12xf32>
  return %o : tensor<?x12xf32>
}

// -----

// Tests that a rotary part that does not fit the attention's is left alone:
// here the rest of the row lies beyond the keys and values of the heads.
// CHECK: mla.cache @kv : !mla.cache<expanded, 32xf32>
mla.cache @kv : !mla.cache<expanded, 32xf32>
// CHECK-LABEL: func.func @rope_of_two_heads
func.func @rope_of_two_heads(%x: tensor<?x16xf32>, %cs: tensor<?x4xf32>, %b: !mla.batch, %wq: !mla.weight<24x16xbf16>,
    %nkv: !mla.weight<10xbf16>, %wkvb24: !mla.weight<24x10xbf16>, %kva: tensor<?x18xf32>) -> tensor<?x12xf32> {
  %q = mla.linear %x, %wq : (tensor<?x16xf32>, !mla.weight<24x16xbf16>) -> tensor<?x24xf32>
  %c, %kr = mla.split %kva : (tensor<?x18xf32>) -> (tensor<?x10xf32>, tensor<?x8xf32>)
  %cn = mla.rms_norm %c, %nkv {eps = 0.125} : (tensor<?x10xf32>, !mla.weight<10xbf16>) -> tensor<?x10xf32>
  %kv = mla.linear %cn, %wkvb24 : (tensor<?x10xf32>, !mla.weight<24x10xbf16>) -> tensor<?x24xf32>
  %qr = mla.rope %q, %cs {head_dim = 12, offset = 8, interleaved = true} : (tensor<?x24xf32>, tensor<?x4xf32>) -> tensor<?x24xf32>
  %krr = mla.rope %kr, %cs {head_dim = 4, offset = 0, interleaved = true} : (tensor<?x8xf32>, tensor<?x4xf32>) -> tensor<?x8xf32>
  %cache = mla.get_cache @kv : !mla.cache<expanded, 32xf32>
  %new = mla.cache_write %cache, %b, %kv, %krr : (!mla.cache<expanded, 32xf32>, !mla.batch, tensor<?x24xf32>, tensor<?x8xf32>) -> !mla.cache<expanded, 32xf32>
  // CHECK: mla.attention
  // expected-remark@+1 {{not fused: the rotary part of the keys is not one head of rope values}}
  %o = mla.attention %qr, %new, %b {heads = 2, nope = 8, rope = 4, v = 6, scale = 0.25} : (tensor<?x24xf32>, !mla.cache<expanded, 32xf32>, !mla.batch) -> tensor<?x12xf32>
  return %o : tensor<?x12xf32>
}
