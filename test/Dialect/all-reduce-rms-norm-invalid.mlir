// RUN: mla-opt %s -verify-diagnostics -split-input-file
//
// Each numbered constraint of mla.all_reduce_rms_norm, violated.

func.func @all_reduce_rms_norm_c1(%x: tensor<?x8xf32>, %w: !mla.weight<8xbf16>) {
  // expected-error@+1 {{C1: expected a number of ranks of at least 2, found 1}}
  %0:2 = mla.all_reduce_rms_norm %x, %w {eps = 1.0e-6 : f64, ranks = 1 : i64} : (tensor<?x8xf32>, !mla.weight<8xbf16>) -> (tensor<?x8xf32>, tensor<?x8xf32>)
  return
}

// -----

func.func @all_reduce_rms_norm_c2_rank(%x: tensor<?x8xf32>, %w: !mla.weight<8x8xbf16>) {
  // expected-error@+1 {{C2: expected weight rank of 1, found 2}}
  %0:2 = mla.all_reduce_rms_norm %x, %w {eps = 1.0e-6 : f64, ranks = 2 : i64} : (tensor<?x8xf32>, !mla.weight<8x8xbf16>) -> (tensor<?x8xf32>, tensor<?x8xf32>)
  return
}

// -----

func.func @all_reduce_rms_norm_c2(%x: tensor<?x8xf32>, %w: !mla.weight<4xbf16>) {
  // expected-error@+1 {{C2: expected a weight length of 8, found 4}}
  %0:2 = mla.all_reduce_rms_norm %x, %w {eps = 1.0e-6 : f64, ranks = 2 : i64} : (tensor<?x8xf32>, !mla.weight<4xbf16>) -> (tensor<?x8xf32>, tensor<?x8xf32>)
  return
}

// -----

func.func @all_reduce_rms_norm_c3(%x: tensor<?x8xf32>, %r: tensor<?x4xf32>, %w: !mla.weight<8xbf16>) {
  // expected-error@+1 {{C3: expected a residual of type 'tensor<?x8xf32>', found 'tensor<?x4xf32>'}}
  %0:2 = mla.all_reduce_rms_norm %x, %w residual %r {eps = 1.0e-6 : f64, ranks = 2 : i64} : (tensor<?x8xf32>, !mla.weight<8xbf16>, tensor<?x4xf32>) -> (tensor<?x8xf32>, tensor<?x8xf32>)
  return
}

// -----

func.func @all_reduce_rms_norm_c3_sum(%x: tensor<?x8xf32>, %w: !mla.weight<8xbf16>) {
  // expected-error@+1 {{C3: expected a result of type 'tensor<?x8xf32>', found 'tensor<?x4xf32>'}}
  %0:2 = mla.all_reduce_rms_norm %x, %w {eps = 1.0e-6 : f64, ranks = 2 : i64} : (tensor<?x8xf32>, !mla.weight<8xbf16>) -> (tensor<?x4xf32>, tensor<?x8xf32>)
  return
}

// -----

func.func @all_reduce_rms_norm_c3_normed(%x: tensor<?x8xf32>, %w: !mla.weight<8xbf16>) {
  // expected-error@+1 {{C3: expected a result of type 'tensor<?x8xf32>', found 'tensor<?x4xf32>'}}
  %0:2 = mla.all_reduce_rms_norm %x, %w {eps = 1.0e-6 : f64, ranks = 2 : i64} : (tensor<?x8xf32>, !mla.weight<8xbf16>) -> (tensor<?x8xf32>, tensor<?x4xf32>)
  return
}

// -----

func.func @all_reduce_rms_norm_c4(%x: tensor<?x8xf32>, %w: !mla.weight<8xbf16>) {
  // expected-error@+1 {{C4: expected eps to be positive, found 0}}
  %0:2 = mla.all_reduce_rms_norm %x, %w {eps = 0.0 : f64, ranks = 2 : i64} : (tensor<?x8xf32>, !mla.weight<8xbf16>) -> (tensor<?x8xf32>, tensor<?x8xf32>)
  return
}
