// RUN: mla-opt %s -verify-diagnostics -split-input-file

// expected-error@+1 {{C1: expected 1 '{}' in the tensor name of a weight of rank 3, found 0}}
mla.weight @weight_c1 : !mla.weight<2x4x8xbf16> from "experts.gate_proj.weight"

// -----

// expected-error@+1 {{C1: expected 0 '{}' in the tensor name of a weight of rank 2, found 1}}
mla.weight @weight_c1_matrix : !mla.weight<4x8xbf16> from "experts.{}.gate_proj.weight"

// -----

func.func @get_weight_c1() {
  // expected-error@+1 {{C1: no mla.weight named @norm}}
  %0 = mla.get_weight @norm : !mla.weight<8xbf16>
  return
}

// -----

mla.weight @norm : !mla.weight<8xbf16> from "norm.weight"
func.func @get_weight_c1_type() {
  // expected-error@+1 {{C1: expected a result of type '!mla.weight<8xbf16>', found '!mla.weight<8xf32>'}}
  %0 = mla.get_weight @norm : !mla.weight<8xf32>
  return
}

// -----

mla.cache @kv : !mla.cache<latent, 8xf32>
func.func @get_weight_c1_kind() {
  // expected-error@+1 {{C1: no mla.weight named @kv}}
  %0 = mla.get_weight @kv : !mla.weight<8xf32>
  return
}

// -----

func.func @embedding_c1(%ids: tensor<?xi32>, %table: !mla.weight<8xbf16>) {
  // expected-error@+1 {{C1: expected table rank of 2, found 1}}
  %0 = mla.embedding %ids, %table : (tensor<?xi32>, !mla.weight<8xbf16>) -> tensor<?x8xf32>
  return
}

// -----

func.func @embedding_c2(%ids: tensor<?xi32>, %table: !mla.weight<32x8xbf16>) {
  // expected-error@+1 {{C2: expected a result row of 8, found 16}}
  %0 = mla.embedding %ids, %table : (tensor<?xi32>, !mla.weight<32x8xbf16>) -> tensor<?x16xf32>
  return
}

// -----

func.func @rms_norm_c1(%x: tensor<?x8xf32>, %w: !mla.weight<4xbf16>) {
  // expected-error@+1 {{C1: expected weight length of 8, found 4}}
  %0 = mla.rms_norm %x, %w {eps = 1.0e-6} : (tensor<?x8xf32>, !mla.weight<4xbf16>) -> tensor<?x8xf32>
  return
}

// -----

func.func @rms_norm_c1_rank(%x: tensor<?x8xf32>, %w: !mla.weight<8x8xbf16>) {
  // expected-error@+1 {{C1: expected weight rank of 1, found 2}}
  %0 = mla.rms_norm %x, %w {eps = 1.0e-6} : (tensor<?x8xf32>, !mla.weight<8x8xbf16>) -> tensor<?x8xf32>
  return
}

// -----

func.func @rms_norm_c2(%x: tensor<?x8xf32>, %w: !mla.weight<8xbf16>) {
  // expected-error@+1 {{C2: expected a result of type 'tensor<?x8xf32>', found 'tensor<?x4xf32>'}}
  %0 = mla.rms_norm %x, %w {eps = 1.0e-6} : (tensor<?x8xf32>, !mla.weight<8xbf16>) -> tensor<?x4xf32>
  return
}

// -----

func.func @rms_norm_c3(%x: tensor<?x8xf32>, %w: !mla.weight<8xbf16>) {
  // expected-error@+1 {{C3: expected eps to be positive, found 0}}
  %0 = mla.rms_norm %x, %w {eps = 0.0} : (tensor<?x8xf32>, !mla.weight<8xbf16>) -> tensor<?x8xf32>
  return
}

// -----

func.func @layer_norm_c1(%x: tensor<?x8xf32>, %w: !mla.weight<4xbf16>, %b: !mla.weight<8xbf16>) {
  // expected-error@+1 {{C1: expected weight length of 8, found 4}}
  %0 = mla.layer_norm %x, %w, %b {eps = 1.0e-6} : (tensor<?x8xf32>, !mla.weight<4xbf16>, !mla.weight<8xbf16>) -> tensor<?x8xf32>
  return
}

// -----

func.func @layer_norm_c1_bias(%x: tensor<?x8xf32>, %w: !mla.weight<8xbf16>, %b: !mla.weight<4xbf16>) {
  // expected-error@+1 {{C1: expected bias length of 8, found 4}}
  %0 = mla.layer_norm %x, %w, %b {eps = 1.0e-6} : (tensor<?x8xf32>, !mla.weight<8xbf16>, !mla.weight<4xbf16>) -> tensor<?x8xf32>
  return
}

// -----

func.func @layer_norm_c2(%x: tensor<?x8xf32>, %w: !mla.weight<8xbf16>, %b: !mla.weight<8xbf16>) {
  // expected-error@+1 {{C2: expected a result of type 'tensor<?x8xf32>', found 'tensor<?x4xf32>'}}
  %0 = mla.layer_norm %x, %w, %b {eps = 1.0e-6} : (tensor<?x8xf32>, !mla.weight<8xbf16>, !mla.weight<8xbf16>) -> tensor<?x4xf32>
  return
}

// -----

func.func @layer_norm_c3(%x: tensor<?x8xf32>, %w: !mla.weight<8xbf16>, %b: !mla.weight<8xbf16>) {
  // expected-error@+1 {{C3: expected eps to be positive, found -1}}
  %0 = mla.layer_norm %x, %w, %b {eps = -1.0} : (tensor<?x8xf32>, !mla.weight<8xbf16>, !mla.weight<8xbf16>) -> tensor<?x8xf32>
  return
}

// -----

func.func @linear_c1(%x: tensor<?x8xf32>, %w: !mla.weight<16x4xbf16>) {
  // expected-error@+1 {{C1: expected weight columns of 8, found 4}}
  %0 = mla.linear %x, %w : (tensor<?x8xf32>, !mla.weight<16x4xbf16>) -> tensor<?x16xf32>
  return
}

// -----

func.func @linear_c1_rank(%x: tensor<?x8xf32>, %w: !mla.weight<2x16x8xbf16>) {
  // expected-error@+1 {{C1: expected weight rank of 2, found 3}}
  %0 = mla.linear %x, %w : (tensor<?x8xf32>, !mla.weight<2x16x8xbf16>) -> tensor<?x16xf32>
  return
}

// -----

func.func @linear_c2(%x: tensor<?x8xf32>, %w: !mla.weight<16x8xbf16>) {
  // expected-error@+1 {{C2: expected a result row of 16, found 8}}
  %0 = mla.linear %x, %w : (tensor<?x8xf32>, !mla.weight<16x8xbf16>) -> tensor<?x8xf32>
  return
}

// -----

func.func @joined_linear_c1(%x: tensor<?x8xf32>, %w: !mla.weight<16x8xbf16>) {
  // expected-error@+1 {{C1: expected a number of weights of at least 2, found 1}}
  %0 = mla.joined_linear %x, %w : (tensor<?x8xf32>, !mla.weight<16x8xbf16>) -> tensor<?x16xf32>
  return
}

// -----

func.func @joined_linear_c1_results(%x: tensor<?x8xf32>, %w: !mla.weight<16x8xbf16>) {
  // expected-error@+1 {{C1: expected a number of results of 2, found 1}}
  %0 = mla.joined_linear %x, %w, %w : (tensor<?x8xf32>, !mla.weight<16x8xbf16>, !mla.weight<16x8xbf16>) -> tensor<?x16xf32>
  return
}

// -----

func.func @joined_linear_c2(%x: tensor<?x8xf32>, %w: !mla.weight<16x8xbf16>, %v: !mla.weight<16x4xbf16>) {
  // expected-error@+1 {{C2: expected weight columns of 8, found 4}}
  %0:2 = mla.joined_linear %x, %w, %v : (tensor<?x8xf32>, !mla.weight<16x8xbf16>, !mla.weight<16x4xbf16>) -> (tensor<?x16xf32>, tensor<?x16xf32>)
  return
}

// -----

func.func @joined_linear_c3(%x: tensor<?x8xf32>, %w: !mla.weight<16x8xbf16>) {
  // expected-error@+1 {{C3: expected a result row of 16, found 8}}
  %0:2 = mla.joined_linear %x, %w, %w : (tensor<?x8xf32>, !mla.weight<16x8xbf16>, !mla.weight<16x8xbf16>) -> (tensor<?x16xf32>, tensor<?x8xf32>)
  return
}

// -----

func.func @gated_linear_c1(%x: tensor<?x8xf32>, %g: !mla.weight<16x4xbf16>, %u: !mla.weight<16x8xbf16>) {
  // expected-error@+1 {{C1: expected gate columns of 8, found 4}}
  %0 = mla.gated_linear %x, %g, %u : (tensor<?x8xf32>, !mla.weight<16x4xbf16>, !mla.weight<16x8xbf16>) -> tensor<?x16xf32>
  return
}

// -----

func.func @gated_linear_c1_up(%x: tensor<?x8xf32>, %g: !mla.weight<16x8xbf16>, %u: !mla.weight<12x8xbf16>) {
  // expected-error@+1 {{C1: expected up rows of 16, found 12}}
  %0 = mla.gated_linear %x, %g, %u : (tensor<?x8xf32>, !mla.weight<16x8xbf16>, !mla.weight<12x8xbf16>) -> tensor<?x16xf32>
  return
}

// -----

func.func @gated_linear_c2(%x: tensor<?x8xf32>, %w: !mla.weight<16x8xbf16>) {
  // expected-error@+1 {{C2: expected a result row of 16, found 8}}
  %0 = mla.gated_linear %x, %w, %w : (tensor<?x8xf32>, !mla.weight<16x8xbf16>, !mla.weight<16x8xbf16>) -> tensor<?x8xf32>
  return
}

// -----

func.func @swiglu_types(%a: tensor<?x8xf32>, %b: tensor<?x4xf32>) {
  // expected-error@+1 {{requires the same type for all operands and results}}
  %0 = "mla.swiglu"(%a, %b) : (tensor<?x8xf32>, tensor<?x4xf32>) -> tensor<?x8xf32>
  return
}

// -----

func.func @add_types(%a: tensor<?x8xf32>, %b: tensor<?x4xf32>) {
  // expected-error@+1 {{requires the same type for all operands and results}}
  %0 = "mla.add"(%a, %b) : (tensor<?x8xf32>, tensor<?x4xf32>) -> tensor<?x8xf32>
  return
}

// -----

func.func @split_c1(%x: tensor<?x8xf32>) {
  // expected-error@+1 {{C1: expected result widths with a sum of 8, found 7}}
  %0:2 = mla.split %x : (tensor<?x8xf32>) -> (tensor<?x4xf32>, tensor<?x3xf32>)
  return
}

// -----

func.func @split_c1_one(%x: tensor<?x8xf32>) {
  // expected-error@+1 {{C1: expected a number of results of at least 2, found 1}}
  %0 = mla.split %x : (tensor<?x8xf32>) -> tensor<?x8xf32>
  return
}

// -----

func.func @lm_head_c1(%x: tensor<?x8xf32>, %w: !mla.weight<32x4xbf16>, %b: !mla.batch) {
  // expected-error@+1 {{C1: expected weight columns of 8, found 4}}
  %0 = mla.lm_head %x, %w, %b : (tensor<?x8xf32>, !mla.weight<32x4xbf16>, !mla.batch) -> tensor<?x32xf32>
  return
}

// -----

func.func @lm_head_c2(%x: tensor<?x8xf32>, %w: !mla.weight<32x8xbf16>, %b: !mla.batch) {
  // expected-error@+1 {{C2: expected a result row of 32, found 8}}
  %0 = mla.lm_head %x, %w, %b : (tensor<?x8xf32>, !mla.weight<32x8xbf16>, !mla.batch) -> tensor<?x8xf32>
  return
}

// -----

// expected-error@+1 {{C1: expected 1 '{}' in the tensor name of a weight of rank 3, found 0}}
mla.weight @weight_c1_scales : !mla.weight<2x16x8xfp8_block> from "w.{}" scales ["s"]

// -----

// expected-error@+1 {{C2: expected a number of tensors of 3, found 2}}
mla.weight @weight_c2 : !mla.weight<16x32xnvfp4> from "w" scales ["s"]

// -----

// expected-error@+1 {{C2: expected a number of tensors of 1, found 2}}
mla.weight @weight_c2_none : !mla.weight<16x32xbf16> from "w" scales ["s"]

// -----

// expected-error@+1 {{C3: reciprocal_global is of nvfp4, found '!mla.weight<16x32xint4_g32>'}}
mla.weight @weight_c3 : !mla.weight<16x32xint4_g32> from "w" scales ["s"] {reciprocal_global}
