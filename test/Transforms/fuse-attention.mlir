// RUN: mla-opt %s -mla-fuse-attention -split-input-file | FileCheck %s --implicit-check-not=mla.attention

// Tests that the chain of a layer with q_proj becomes attention over latents:
// the declared cache shrinks, the linears of %x become one, kv_b moves to the
// query and to the output. A weight that stood below its new place is moved.
// CHECK: mla.cache @kv : !mla.cache<latent, 14xbf16>
mla.cache @kv : !mla.cache<expanded, 32xbf16>
mla.weight @q_proj : !mla.weight<24x16xbf16> from "q_proj.weight"
mla.weight @kv_a_proj_with_mqa : !mla.weight<14x16xbf16> from "kv_a_proj_with_mqa.weight"
mla.weight @kv_a_layernorm : !mla.weight<10xbf16> from "kv_a_layernorm.weight"
mla.weight @kv_b_proj : !mla.weight<28x10xbf16> from "kv_b_proj.weight"
// CHECK-LABEL: func.func @q_proj_only
// CHECK-SAME: (%[[X:[^:]*]]: tensor<?x16xf32>, %[[CS:[^:]*]]: tensor<?x4xf32>, %[[B:[^:]*]]: !mla.batch)
func.func @q_proj_only(%x: tensor<?x16xf32>, %cs: tensor<?x4xf32>, %b: !mla.batch) -> tensor<?x12xf32> {
  // CHECK-DAG: %[[WQ:.*]] = mla.get_weight @q_proj
  // CHECK-DAG: %[[WKVA:.*]] = mla.get_weight @kv_a_proj_with_mqa
  // CHECK: %[[DOWN:.*]]:2 = mla.joined_linear %[[X]], %[[WQ]], %[[WKVA]]
  // CHECK-NOT: mla.linear
  // CHECK-NOT: mla.split
  // CHECK-NOT: mla.rms_norm
  // CHECK-NOT: mla.rope
  %wq = mla.get_weight @q_proj : !mla.weight<24x16xbf16>
  %q = mla.linear %x, %wq : (tensor<?x16xf32>, !mla.weight<24x16xbf16>) -> tensor<?x24xf32>
  %wkva = mla.get_weight @kv_a_proj_with_mqa : !mla.weight<14x16xbf16>
  %kva = mla.linear %x, %wkva : (tensor<?x16xf32>, !mla.weight<14x16xbf16>) -> tensor<?x14xf32>
  %c, %kr = mla.split %kva : (tensor<?x14xf32>) -> (tensor<?x10xf32>, tensor<?x4xf32>)
  // CHECK: %[[NORM:.*]] = mla.get_weight @kv_a_layernorm
  %nkv = mla.get_weight @kv_a_layernorm : !mla.weight<10xbf16>
  %cn = mla.rms_norm %c, %nkv {eps = 0.125} : (tensor<?x10xf32>, !mla.weight<10xbf16>) -> tensor<?x10xf32>
  // CHECK: %[[WKVB:.*]] = mla.get_weight @kv_b_proj
  %wkvb = mla.get_weight @kv_b_proj : !mla.weight<28x10xbf16>
  %kv = mla.linear %cn, %wkvb : (tensor<?x10xf32>, !mla.weight<28x10xbf16>) -> tensor<?x28xf32>
  %qr = mla.rope %q, %cs {head_dim = 12, offset = 8, interleaved = true} : (tensor<?x24xf32>, tensor<?x4xf32>) -> tensor<?x24xf32>
  %krr = mla.rope %kr, %cs {head_dim = 4, offset = 0, interleaved = true} : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  // CHECK: %[[CACHE:.*]] = mla.get_cache @kv : !mla.cache<latent, 14xbf16>
  %cache = mla.get_cache @kv : !mla.cache<expanded, 32xbf16>
  // CHECK: %[[NEW:.*]] = mla.latent_cache_write %[[DOWN]]#1, %[[NORM]], %[[CS]], %[[CACHE]], %[[B]] {eps = 1.250000e-01 : f64, interleaved = true} : (tensor<?x14xf32>, !mla.weight<10xbf16>, tensor<?x4xf32>, !mla.cache<latent, 14xbf16>, !mla.batch) -> !mla.cache<latent, 14xbf16>
  // CHECK-NOT: mla.cache_write
  %new = mla.cache_write %cache, %b, %kv, %krr : (!mla.cache<expanded, 32xbf16>, !mla.batch, tensor<?x28xf32>, tensor<?x4xf32>) -> !mla.cache<expanded, 32xbf16>
  // CHECK: %[[ABSORBED:.*]] = mla.absorb_query %[[DOWN]]#0, %[[WKVB]], %[[CS]] {heads = 2 : i64, interleaved = true, nope = 8 : i64, v = 6 : i64} : (tensor<?x24xf32>, !mla.weight<28x10xbf16>, tensor<?x4xf32>) -> tensor<?x28xf32>
  // CHECK: %[[LATENT:.*]] = mla.latent_attention %[[ABSORBED]], %[[NEW]], %[[B]] {heads = 2 : i64, kv_lora = 10 : i64, scale = 2.500000e-01 : f64} : (tensor<?x28xf32>, !mla.cache<latent, 14xbf16>, !mla.batch) -> tensor<?x20xf32>
  // CHECK: %[[O:.*]] = mla.expand_value %[[LATENT]], %[[WKVB]] {heads = 2 : i64, nope = 8 : i64, v = 6 : i64} : (tensor<?x20xf32>, !mla.weight<28x10xbf16>) -> tensor<?x12xf32>
  // CHECK-NEXT: return %[[O]]
  %o = mla.attention %qr, %new, %b {heads = 2, nope = 8, rope = 4, v = 6, scale = 0.25} : (tensor<?x24xf32>, !mla.cache<expanded, 32xbf16>, !mla.batch) -> tensor<?x12xf32>
  return %o : tensor<?x12xf32>
}

// -----

// Tests that with a query of two linears the first is joined and the second
// stays. The pairs are not interleaved here.
mla.cache @kv : !mla.cache<expanded, 32xf32>
// CHECK-LABEL: func.func @q_lora
// CHECK-SAME: (%[[X:[^:]*]]: tensor<?x16xf32>, {{.*}}, %[[WQA:[^:]*]]: !mla.weight<12x16xbf16>, %{{.*}}: !mla.weight<12xbf16>, %[[WQB:[^:]*]]: !mla.weight<24x12xbf16>, %[[WKVA:[^:]*]]: !mla.weight<14x16xbf16>
func.func @q_lora(%x: tensor<?x16xf32>, %cs: tensor<?x4xf32>, %b: !mla.batch, %wqa: !mla.weight<12x16xbf16>, %nq: !mla.weight<12xbf16>, %wqb: !mla.weight<24x12xbf16>, %wkva: !mla.weight<14x16xbf16>, %nkv: !mla.weight<10xbf16>, %wkvb: !mla.weight<28x10xbf16>) -> tensor<?x12xf32> {
  // CHECK-NEXT: %[[DOWN:.*]]:2 = mla.joined_linear %[[X]], %[[WQA]], %[[WKVA]]
  %qa = mla.linear %x, %wqa : (tensor<?x16xf32>, !mla.weight<12x16xbf16>) -> tensor<?x12xf32>
  // CHECK-NEXT: %[[QN:.*]] = mla.rms_norm %[[DOWN]]#0
  %qn = mla.rms_norm %qa, %nq {eps = 1.0e-6} : (tensor<?x12xf32>, !mla.weight<12xbf16>) -> tensor<?x12xf32>
  // CHECK-NEXT: %[[Q:.*]] = mla.linear %[[QN]], %[[WQB]]
  %q = mla.linear %qn, %wqb : (tensor<?x12xf32>, !mla.weight<24x12xbf16>) -> tensor<?x24xf32>
  %kva = mla.linear %x, %wkva : (tensor<?x16xf32>, !mla.weight<14x16xbf16>) -> tensor<?x14xf32>
  %c, %kr = mla.split %kva : (tensor<?x14xf32>) -> (tensor<?x10xf32>, tensor<?x4xf32>)
  %cn = mla.rms_norm %c, %nkv {eps = 0.125} : (tensor<?x10xf32>, !mla.weight<10xbf16>) -> tensor<?x10xf32>
  %kv = mla.linear %cn, %wkvb : (tensor<?x10xf32>, !mla.weight<28x10xbf16>) -> tensor<?x28xf32>
  %qr = mla.rope %q, %cs {head_dim = 12, offset = 8, interleaved = false} : (tensor<?x24xf32>, tensor<?x4xf32>) -> tensor<?x24xf32>
  %krr = mla.rope %kr, %cs {head_dim = 4, offset = 0, interleaved = false} : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  // CHECK-NEXT: %[[CACHE:.*]] = mla.get_cache
  %cache = mla.get_cache @kv : !mla.cache<expanded, 32xf32>
  // CHECK-NEXT: %[[NEW:.*]] = mla.latent_cache_write %[[DOWN]]#1, {{.*}}, %[[CACHE]], {{.*}}interleaved = false
  %new = mla.cache_write %cache, %b, %kv, %krr : (!mla.cache<expanded, 32xf32>, !mla.batch, tensor<?x28xf32>, tensor<?x4xf32>) -> !mla.cache<expanded, 32xf32>
  // CHECK-NEXT: %[[ABSORBED:.*]] = mla.absorb_query %[[Q]], {{.*}}interleaved = false
  // CHECK-NEXT: %[[LATENT:.*]] = mla.latent_attention %[[ABSORBED]], %[[NEW]]
  // CHECK-NEXT: %[[O:.*]] = mla.expand_value %[[LATENT]]
  // CHECK-NEXT: return %[[O]]
  %o = mla.attention %qr, %new, %b {heads = 2, nope = 8, rope = 4, v = 6, scale = 0.25} : (tensor<?x24xf32>, !mla.cache<expanded, 32xf32>, !mla.batch) -> tensor<?x12xf32>
  return %o : tensor<?x12xf32>
}

// -----

// Tests a sparse layer with its own indexer: the indexer's linears of %x are
// joined with the others (its wq_b reads other rows and is not), its cache
// stays as it is, and the selection reaches the latent attention.
mla.cache @kv : !mla.cache<expanded, 32xf32>
// CHECK: mla.cache @indexer.k : !mla.cache<index, 8xf32>
mla.cache @indexer.k : !mla.cache<index, 8xf32>
// CHECK-LABEL: func.func @sparse_full
// CHECK-SAME: (%[[X:[^:]*]]: tensor<?x16xf32>,
func.func @sparse_full(%x: tensor<?x16xf32>, %cs: tensor<?x4xf32>, %b: !mla.batch, %wqa: !mla.weight<12x16xbf16>, %nq: !mla.weight<12xbf16>, %wqb: !mla.weight<24x12xbf16>, %wkva: !mla.weight<14x16xbf16>, %nkv: !mla.weight<10xbf16>, %wkvb: !mla.weight<28x10xbf16>,
    // CHECK-SAME: {{.*}}%[[WIQ:[^:]*]]: !mla.weight<24x12xbf16>, %[[WIK:[^:]*]]: !mla.weight<8x16xbf16>, {{.*}}, %[[WIW:[^:]*]]: !mla.weight<3x16xbf16>)
    %wiq: !mla.weight<24x12xbf16>, %wik: !mla.weight<8x16xbf16>, %nik: !mla.weight<8xf32>, %bik: !mla.weight<8xf32>, %wiw: !mla.weight<3x16xbf16>) -> tensor<?x12xf32> {
  // CHECK: %[[DOWN:.*]]:4 = mla.joined_linear %[[X]], %{{.*}}, %{{.*}}, %[[WIK]], %[[WIW]] : {{.*}} -> (tensor<?x12xf32>, tensor<?x14xf32>, tensor<?x8xf32>, tensor<?x3xf32>)
  %qa = mla.linear %x, %wqa : (tensor<?x16xf32>, !mla.weight<12x16xbf16>) -> tensor<?x12xf32>
  // CHECK: %[[QN:.*]] = mla.rms_norm %[[DOWN]]#0
  %qn = mla.rms_norm %qa, %nq {eps = 1.0e-6} : (tensor<?x12xf32>, !mla.weight<12xbf16>) -> tensor<?x12xf32>
  %q = mla.linear %qn, %wqb : (tensor<?x12xf32>, !mla.weight<24x12xbf16>) -> tensor<?x24xf32>
  %kva = mla.linear %x, %wkva : (tensor<?x16xf32>, !mla.weight<14x16xbf16>) -> tensor<?x14xf32>
  %c, %kr = mla.split %kva : (tensor<?x14xf32>) -> (tensor<?x10xf32>, tensor<?x4xf32>)
  %cn = mla.rms_norm %c, %nkv {eps = 0.125} : (tensor<?x10xf32>, !mla.weight<10xbf16>) -> tensor<?x10xf32>
  %kv = mla.linear %cn, %wkvb : (tensor<?x10xf32>, !mla.weight<28x10xbf16>) -> tensor<?x28xf32>
  %qr = mla.rope %q, %cs {head_dim = 12, offset = 8, interleaved = true} : (tensor<?x24xf32>, tensor<?x4xf32>) -> tensor<?x24xf32>
  %krr = mla.rope %kr, %cs {head_dim = 4, offset = 0, interleaved = true} : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  %cache = mla.get_cache @kv : !mla.cache<expanded, 32xf32>
  // CHECK: %[[NEW:.*]] = mla.latent_cache_write %[[DOWN]]#1
  %new = mla.cache_write %cache, %b, %kv, %krr : (!mla.cache<expanded, 32xf32>, !mla.batch, tensor<?x28xf32>, tensor<?x4xf32>) -> !mla.cache<expanded, 32xf32>
  // CHECK: %[[IQ:.*]] = mla.linear %[[QN]], %[[WIQ]]
  %iq = mla.linear %qn, %wiq : (tensor<?x12xf32>, !mla.weight<24x12xbf16>) -> tensor<?x24xf32>
  // CHECK: %[[IQR:.*]] = mla.rope %[[IQ]]
  %iqr = mla.rope %iq, %cs {head_dim = 8, offset = 0, interleaved = false} : (tensor<?x24xf32>, tensor<?x4xf32>) -> tensor<?x24xf32>
  %ik = mla.linear %x, %wik : (tensor<?x16xf32>, !mla.weight<8x16xbf16>) -> tensor<?x8xf32>
  // CHECK: %[[IKN:.*]] = mla.layer_norm %[[DOWN]]#2
  %ikn = mla.layer_norm %ik, %nik, %bik {eps = 1.0e-6} : (tensor<?x8xf32>, !mla.weight<8xf32>, !mla.weight<8xf32>) -> tensor<?x8xf32>
  // CHECK: %[[IKR:.*]] = mla.rope %[[IKN]]
  %ikr = mla.rope %ikn, %cs {head_dim = 8, offset = 0, interleaved = false} : (tensor<?x8xf32>, tensor<?x4xf32>) -> tensor<?x8xf32>
  %ic = mla.get_cache @indexer.k : !mla.cache<index, 8xf32>
  // CHECK: %[[ICW:.*]] = mla.cache_write %{{.*}}, %{{.*}}, %[[IKR]]
  %icw = mla.cache_write %ic, %b, %ikr : (!mla.cache<index, 8xf32>, !mla.batch, tensor<?x8xf32>) -> !mla.cache<index, 8xf32>
  %iw = mla.linear %x, %wiw : (tensor<?x16xf32>, !mla.weight<3x16xbf16>) -> tensor<?x3xf32>
  // CHECK: %[[SEL:.*]] = mla.indexer %[[IQR]], %[[DOWN]]#3, %[[ICW]]
  %sel = mla.indexer %iqr, %iw, %icw, %b {heads = 3, topk = 5, scale = 0.25} : (tensor<?x24xf32>, tensor<?x3xf32>, !mla.cache<index, 8xf32>, !mla.batch) -> tensor<?x5xi32>
  // CHECK: mla.latent_attention %{{.*}}, %[[NEW]], %{{.*}} selected %[[SEL]]
  %o = mla.attention %qr, %new, %b selected %sel {heads = 2, nope = 8, rope = 4, v = 6, scale = 0.25} : (tensor<?x24xf32>, !mla.cache<expanded, 32xf32>, !mla.batch, tensor<?x5xi32>) -> tensor<?x12xf32>
  return %o : tensor<?x12xf32>
}

// -----

// Tests a sparse layer that takes over the selection of a layer before: of that
// layer's indexer, which reads other rows (%before), nothing is joined.
mla.cache @kv : !mla.cache<expanded, 32xf32>
// CHECK-LABEL: func.func @sparse_shared
// CHECK-SAME: (%[[X:[^:]*]]: tensor<?x16xf32>, {{.*}}, %[[BEFORE:[^:]*]]: tensor<?x16xf32>,
func.func @sparse_shared(%x: tensor<?x16xf32>, %cs: tensor<?x4xf32>, %b: !mla.batch, %wq: !mla.weight<24x16xbf16>, %wkva: !mla.weight<14x16xbf16>, %nkv: !mla.weight<10xbf16>, %wkvb: !mla.weight<28x10xbf16>, %before: tensor<?x16xf32>, %iq: tensor<?x24xf32>, %ic: !mla.cache<index, 8xf32>, %wiw: !mla.weight<3x16xbf16>) -> tensor<?x12xf32> {
  // CHECK: %[[IW:.*]] = mla.linear %[[BEFORE]]
  %iw = mla.linear %before, %wiw : (tensor<?x16xf32>, !mla.weight<3x16xbf16>) -> tensor<?x3xf32>
  // CHECK: %[[SEL:.*]] = mla.indexer %{{.*}}, %[[IW]]
  %sel = mla.indexer %iq, %iw, %ic, %b {heads = 3, topk = 5, scale = 0.25} : (tensor<?x24xf32>, tensor<?x3xf32>, !mla.cache<index, 8xf32>, !mla.batch) -> tensor<?x5xi32>
  // CHECK: %{{.*}}:2 = mla.joined_linear %[[X]]
  %q = mla.linear %x, %wq : (tensor<?x16xf32>, !mla.weight<24x16xbf16>) -> tensor<?x24xf32>
  %kva = mla.linear %x, %wkva : (tensor<?x16xf32>, !mla.weight<14x16xbf16>) -> tensor<?x14xf32>
  %c, %kr = mla.split %kva : (tensor<?x14xf32>) -> (tensor<?x10xf32>, tensor<?x4xf32>)
  %cn = mla.rms_norm %c, %nkv {eps = 0.125} : (tensor<?x10xf32>, !mla.weight<10xbf16>) -> tensor<?x10xf32>
  %kv = mla.linear %cn, %wkvb : (tensor<?x10xf32>, !mla.weight<28x10xbf16>) -> tensor<?x28xf32>
  %qr = mla.rope %q, %cs {head_dim = 12, offset = 8, interleaved = true} : (tensor<?x24xf32>, tensor<?x4xf32>) -> tensor<?x24xf32>
  %krr = mla.rope %kr, %cs {head_dim = 4, offset = 0, interleaved = true} : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  %cache = mla.get_cache @kv : !mla.cache<expanded, 32xf32>
  %new = mla.cache_write %cache, %b, %kv, %krr : (!mla.cache<expanded, 32xf32>, !mla.batch, tensor<?x28xf32>, tensor<?x4xf32>) -> !mla.cache<expanded, 32xf32>
  // CHECK: mla.latent_attention %{{.*}} selected %[[SEL]]
  %o = mla.attention %qr, %new, %b selected %sel {heads = 2, nope = 8, rope = 4, v = 6, scale = 0.25} : (tensor<?x24xf32>, !mla.cache<expanded, 32xf32>, !mla.batch, tensor<?x5xi32>) -> tensor<?x12xf32>
  return %o : tensor<?x12xf32>
}

// -----

// Tests that ops of the chain with other users are kept for these, and that the
// others go all the same: here the normed latent and the rotated queries are
// wanted, the rotated keys are not.
mla.cache @kv : !mla.cache<expanded, 32xf32>
// CHECK-LABEL: func.func @other_users
func.func @other_users(%x: tensor<?x16xf32>, %cs: tensor<?x4xf32>, %b: !mla.batch, %wq: !mla.weight<24x16xbf16>, %wkva: !mla.weight<14x16xbf16>, %nkv: !mla.weight<10xbf16>, %wkvb: !mla.weight<28x10xbf16>) -> (tensor<?x12xf32>, tensor<?x10xf32>, tensor<?x24xf32>, tensor<?x14xf32>) {
  // CHECK-NEXT: %[[DOWN:.*]]:2 = mla.joined_linear
  %q = mla.linear %x, %wq : (tensor<?x16xf32>, !mla.weight<24x16xbf16>) -> tensor<?x24xf32>
  %kva = mla.linear %x, %wkva : (tensor<?x16xf32>, !mla.weight<14x16xbf16>) -> tensor<?x14xf32>
  // CHECK-NEXT: %[[SPLIT:.*]]:2 = mla.split %[[DOWN]]#1
  %c, %kr = mla.split %kva : (tensor<?x14xf32>) -> (tensor<?x10xf32>, tensor<?x4xf32>)
  // CHECK-NEXT: %[[CN:.*]] = mla.rms_norm %[[SPLIT]]#0
  %cn = mla.rms_norm %c, %nkv {eps = 0.125} : (tensor<?x10xf32>, !mla.weight<10xbf16>) -> tensor<?x10xf32>
  %kv = mla.linear %cn, %wkvb : (tensor<?x10xf32>, !mla.weight<28x10xbf16>) -> tensor<?x28xf32>
  // CHECK-NEXT: %[[QR:.*]] = mla.rope %[[DOWN]]#0
  %qr = mla.rope %q, %cs {head_dim = 12, offset = 8, interleaved = true} : (tensor<?x24xf32>, tensor<?x4xf32>) -> tensor<?x24xf32>
  %krr = mla.rope %kr, %cs {head_dim = 4, offset = 0, interleaved = true} : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  // CHECK-NEXT: mla.get_cache
  %cache = mla.get_cache @kv : !mla.cache<expanded, 32xf32>
  // CHECK-NEXT: mla.latent_cache_write %[[DOWN]]#1
  %new = mla.cache_write %cache, %b, %kv, %krr : (!mla.cache<expanded, 32xf32>, !mla.batch, tensor<?x28xf32>, tensor<?x4xf32>) -> !mla.cache<expanded, 32xf32>
  // CHECK-NEXT: mla.absorb_query %[[DOWN]]#0
  // CHECK-NEXT: mla.latent_attention
  // CHECK-NEXT: %[[O:.*]] = mla.expand_value
  %o = mla.attention %qr, %new, %b {heads = 2, nope = 8, rope = 4, v = 6, scale = 0.25} : (tensor<?x24xf32>, !mla.cache<expanded, 32xf32>, !mla.batch) -> tensor<?x12xf32>
  // CHECK-NEXT: return %[[O]], %[[CN]], %[[QR]], %[[DOWN]]#1
  return %o, %cn, %qr, %kva : tensor<?x12xf32>, tensor<?x10xf32>, tensor<?x24xf32>, tensor<?x14xf32>
}

// -----

// Tests that a linear of %x that has nothing to do with the attention is not
// joined, nor one whose weight is not there yet and cannot be moved.
mla.cache @kv : !mla.cache<expanded, 32xf32>
// CHECK-LABEL: func.func @not_joined
// CHECK-SAME: (%[[X:[^:]*]]: tensor<?x16xf32>, {{.*}}, %[[OTHER:[^:]*]]: !mla.weight<8x16xbf16>)
func.func @not_joined(%x: tensor<?x16xf32>, %cs: tensor<?x4xf32>, %b: !mla.batch, %wkva: !mla.weight<14x16xbf16>, %nkv: !mla.weight<10xbf16>, %wkvb: !mla.weight<28x10xbf16>, %other: !mla.weight<8x16xbf16>) -> (tensor<?x12xf32>, tensor<?x8xf32>) {
  // CHECK-NOT: mla.joined_linear
  // CHECK: mla.linear %[[X]]
  %kva = mla.linear %x, %wkva : (tensor<?x16xf32>, !mla.weight<14x16xbf16>) -> tensor<?x14xf32>
  // CHECK: %[[W:.*]] = builtin.unrealized_conversion_cast
  %wq = builtin.unrealized_conversion_cast to !mla.weight<24x16xbf16>
  // CHECK: %[[Q:.*]] = mla.linear %[[X]], %[[W]]
  %q = mla.linear %x, %wq : (tensor<?x16xf32>, !mla.weight<24x16xbf16>) -> tensor<?x24xf32>
  // CHECK: mla.linear %[[X]], %[[OTHER]]
  %y = mla.linear %x, %other : (tensor<?x16xf32>, !mla.weight<8x16xbf16>) -> tensor<?x8xf32>
  %c, %kr = mla.split %kva : (tensor<?x14xf32>) -> (tensor<?x10xf32>, tensor<?x4xf32>)
  %cn = mla.rms_norm %c, %nkv {eps = 0.125} : (tensor<?x10xf32>, !mla.weight<10xbf16>) -> tensor<?x10xf32>
  %kv = mla.linear %cn, %wkvb : (tensor<?x10xf32>, !mla.weight<28x10xbf16>) -> tensor<?x28xf32>
  %qr = mla.rope %q, %cs {head_dim = 12, offset = 8, interleaved = true} : (tensor<?x24xf32>, tensor<?x4xf32>) -> tensor<?x24xf32>
  %krr = mla.rope %kr, %cs {head_dim = 4, offset = 0, interleaved = true} : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  %cache = mla.get_cache @kv : !mla.cache<expanded, 32xf32>
  %new = mla.cache_write %cache, %b, %kv, %krr : (!mla.cache<expanded, 32xf32>, !mla.batch, tensor<?x28xf32>, tensor<?x4xf32>) -> !mla.cache<expanded, 32xf32>
  // CHECK: mla.absorb_query %[[Q]]
  %o = mla.attention %qr, %new, %b {heads = 2, nope = 8, rope = 4, v = 6, scale = 0.25} : (tensor<?x24xf32>, !mla.cache<expanded, 32xf32>, !mla.batch) -> tensor<?x12xf32>
  return %o, %y : tensor<?x12xf32>, tensor<?x8xf32>
}

// -----

// Tests that a latent row which no linear makes is fused too, without a joined
// linear.
mla.cache @kv : !mla.cache<expanded, 32xf32>
// CHECK-LABEL: func.func @latent_argument
// CHECK-SAME: (%[[Q:[^:]*]]: tensor<?x24xf32>, %[[KVA:[^:]*]]: tensor<?x14xf32>
func.func @latent_argument(%q: tensor<?x24xf32>, %kva: tensor<?x14xf32>, %cs: tensor<?x4xf32>, %b: !mla.batch, %nkv: !mla.weight<10xbf16>, %wkvb: !mla.weight<28x10xbf16>) -> tensor<?x12xf32> {
  %c, %kr = mla.split %kva : (tensor<?x14xf32>) -> (tensor<?x10xf32>, tensor<?x4xf32>)
  %cn = mla.rms_norm %c, %nkv {eps = 0.125} : (tensor<?x10xf32>, !mla.weight<10xbf16>) -> tensor<?x10xf32>
  %kv = mla.linear %cn, %wkvb : (tensor<?x10xf32>, !mla.weight<28x10xbf16>) -> tensor<?x28xf32>
  %qr = mla.rope %q, %cs {head_dim = 12, offset = 8, interleaved = true} : (tensor<?x24xf32>, tensor<?x4xf32>) -> tensor<?x24xf32>
  %krr = mla.rope %kr, %cs {head_dim = 4, offset = 0, interleaved = true} : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  // CHECK-NEXT: mla.get_cache
  %cache = mla.get_cache @kv : !mla.cache<expanded, 32xf32>
  // CHECK-NEXT: mla.latent_cache_write %[[KVA]]
  %new = mla.cache_write %cache, %b, %kv, %krr : (!mla.cache<expanded, 32xf32>, !mla.batch, tensor<?x28xf32>, tensor<?x4xf32>) -> !mla.cache<expanded, 32xf32>
  // CHECK-NEXT: mla.absorb_query %[[Q]]
  %o = mla.attention %qr, %new, %b {heads = 2, nope = 8, rope = 4, v = 6, scale = 0.25} : (tensor<?x24xf32>, !mla.cache<expanded, 32xf32>, !mla.batch) -> tensor<?x12xf32>
  return %o : tensor<?x12xf32>
}
