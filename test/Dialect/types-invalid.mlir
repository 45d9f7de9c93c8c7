// RUN: mla-opt %s -verify-diagnostics -split-input-file

// Tests that a weight has one to three dimensions.
// expected-error@+1 {{a weight has 1 to 3 dimensions, found 4}}
func.func private @weight_rank(!mla.weight<1x2x3x4xf32>)

// -----

// Tests that a weight has no empty dimension.
// expected-error@+1 {{a dimension of a weight is from 1 to 2^31, found 0}}
func.func private @weight_dimension(!mla.weight<0x4xf32>)

// -----

// Tests that the dimensions of a weight are static.
// expected-error@+1 {{expected static shape}}
func.func private @weight_dynamic(!mla.weight<?x4xf32>)

// -----

// Tests that a format of caches is none of weights.
// expected-error@+1 {{fp8_e4m3 is no storage format of a weight}}
func.func private @weight_format(!mla.weight<4xfp8_e4m3>)

// -----

// Tests that a format that does not exist is named.
// expected-error@+1 {{expected a storage format, found 'fp6'}}
func.func private @weight_format_unknown(!mla.weight<4xfp6>)

// -----

// Tests that the kind of a cache is one of three.
// expected-error@+1 {{expected 'expanded', 'latent' or 'index', found 'paged'}}
func.func private @cache_kind(!mla.cache<paged, 4xf32>)

// -----

// Tests that a cache has one width.
// expected-error@+1 {{expected one width, found 2}}
func.func private @cache_dimensions(!mla.cache<latent, 4x4xf32>)

// -----

// Tests that a cache has at least one value a token.
// expected-error@+1 {{the width of a cache is from 1 to 2^24, found 0}}
func.func private @cache_width(!mla.cache<latent, 0xf32>)

// -----

// Tests that a format of weights is none of caches.
// expected-error@+1 {{nvfp4 is no storage format of a cache}}
func.func private @cache_format(!mla.cache<latent, 16xnvfp4>)

// -----

// Tests that ids are not cached.
// expected-error@+1 {{i32 is no storage format of a cache}}
func.func private @cache_format_ids(!mla.cache<latent, 16xi32>)

// -----

// Tests that a dimension of a buffer is an expression over the step symbols.
// expected-error@+1 {{sizes}}
func.func private @buffer_symbol(!mla.buffer<["sizes"], f32>)

// -----

// Tests that a buffer has elements that stand alone.
// expected-error@+1 {{fp8_block is no element type of a buffer}}
func.func private @buffer_format(!mla.buffer<["tokens"], fp8_block>)

// -----

// Tests that a scoring function that does not exist is refused.
// expected-error@+2 {{expected one of [sigmoid, softmax] for how a router scores experts, got: relu}}
// expected-error@+1 {{failed to parse MLA_RoutingAttr parameter 'scoring'}}
func.func private @routing_scoring() attributes {r = #mla.routing<topk = 2, groups = 1, topk_groups = 1, scoring = relu, method = greedy, normalize = true, scale = 1.0 : f64>}

// -----

// Tests that rows have two dimensions.
func.func @rows_rank(%a: tensor<?xf32>) {
  // expected-error@+1 {{must be f32 rows, tensor<?xNxf32>, but got 'tensor<?xf32>'}}
  %0 = mla.add %a, %a : tensor<?xf32>
  return
}

// -----

// Tests that the number of rows is data and never static.
func.func @rows_static(%a: tensor<4x8xf32>) {
  // expected-error@+1 {{must be f32 rows, tensor<?xNxf32>, but got 'tensor<4x8xf32>'}}
  %0 = mla.add %a, %a : tensor<4x8xf32>
  return
}

// -----

// Tests that the width of rows is static.
func.func @rows_dynamic(%a: tensor<?x?xf32>) {
  // expected-error@+1 {{must be f32 rows, tensor<?xNxf32>, but got 'tensor<?x?xf32>'}}
  %0 = mla.add %a, %a : tensor<?x?xf32>
  return
}

// -----

// Tests that rows are f32 whatever the storage formats.
func.func @rows_element(%a: tensor<?x8xbf16>) {
  // expected-error@+1 {{must be f32 rows, tensor<?xNxf32>, but got 'tensor<?x8xbf16>'}}
  %0 = mla.add %a, %a : tensor<?x8xbf16>
  return
}

// -----

// Tests that the quantized formats are of matrices.
// expected-error@+1 {{fp8_block is a storage format of matrices, found 1 dimension}}
func.func private @weight_vector(!mla.weight<128xfp8_block>)

// -----

// Tests that a group of columns which shares a scale is whole.
// expected-error@+1 {{nvfp4 needs columns in groups of 16, found 40}}
func.func private @weight_groups_nvfp4(!mla.weight<8x40xnvfp4>)

// -----

// expected-error@+1 {{int4_g32 needs columns in groups of 32, found 48}}
func.func private @weight_groups_int4(!mla.weight<2x8x48xint4_g32>)
