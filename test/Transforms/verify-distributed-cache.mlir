// RUN: mla-opt %s -mla-verify-distributed -verify-diagnostics -split-input-file
//
// Tests mistakes with caches whose tokens are spread over the ranks.

// Queries of some heads, places that are not the rank's, a second result that is
// missing or has no reason, merges of what is none.
module attributes {mla.ranks = 2 : i64, mla.page_ranks = 2 : i64} {
  mla.weight @q : !mla.weight<28x16xbf16> from "q" shard <[56, 16] dim 0 in 2>
  func.func @mistakes(%x: tensor<?x16xf32>, %kv: tensor<?x14xf32>, %n: !mla.weight<10xbf16>, %cs: tensor<?x4xf32>, %c: !mla.cache<latent, 14xf32>, %b: !mla.batch, %whole: tensor<?x56xf32>, %l: tensor<?x4xf32>, %y: tensor<?x40xf32>) {
    %q = mla.get_weight @q : !mla.weight<28x16xbf16>
    %read, %write = mla.shard_batch %b {ranks = 2 : i64}
    // expected-error@+1 {{'mla.shard_batch' op needs all of its operands on each rank, found places to read of some tokens}}
    %r2, %w2 = mla.shard_batch %read {ranks = 2 : i64}
    // expected-error@+1 {{'mla.shard_batch' op expected 2 ranks as the module's caches have, found 3}}
    %r3, %w3 = mla.shard_batch %b {ranks = 3 : i64}
    // expected-error@+1 {{'mla.latent_cache_write' op expected places to write of some tokens as its batch, found all}}
    %0 = mla.latent_cache_write %kv, %n, %cs, %c, %b {eps = 1.0e-6, interleaved = true} : (tensor<?x14xf32>, !mla.weight<10xbf16>, tensor<?x4xf32>, !mla.cache<latent, 14xf32>, !mla.batch) -> !mla.cache<latent, 14xf32>
    // expected-error@+1 {{'mla.latent_cache_write' op expected places to write of some tokens as its batch, found places to read of some tokens}}
    %1 = mla.latent_cache_write %kv, %n, %cs, %c, %read {eps = 1.0e-6, interleaved = true} : (tensor<?x14xf32>, !mla.weight<10xbf16>, tensor<?x4xf32>, !mla.cache<latent, 14xf32>, !mla.batch) -> !mla.cache<latent, 14xf32>
    %new = mla.latent_cache_write %kv, %n, %cs, %c, %write {eps = 1.0e-6, interleaved = true} : (tensor<?x14xf32>, !mla.weight<10xbf16>, tensor<?x4xf32>, !mla.cache<latent, 14xf32>, !mla.batch) -> !mla.cache<latent, 14xf32>
    %part = mla.linear %x, %q : (tensor<?x16xf32>, !mla.weight<28x16xbf16>) -> tensor<?x28xf32>
    // expected-error@+1 {{'mla.latent_attention' op needs queries of all heads, found 28 of 56 columns}}
    %2, %3 = mla.latent_attention %part, %new, %read {heads = 2, kv_lora = 10, scale = 0.25} : (tensor<?x28xf32>, !mla.cache<latent, 14xf32>, !mla.batch) -> (tensor<?x20xf32>, tensor<?x2xf32>)
    // expected-error@+1 {{'mla.latent_attention' op expected a cache and a batch of some tokens, found some tokens and all}}
    %4, %5 = mla.latent_attention %whole, %new, %b {heads = 4, kv_lora = 10, scale = 0.25} : (tensor<?x56xf32>, !mla.cache<latent, 14xf32>, !mla.batch) -> (tensor<?x40xf32>, tensor<?x4xf32>)
    // expected-error@+1 {{'mla.latent_attention' op expected a cache and a batch of some tokens, found all and places to read of some tokens}}
    %6, %7 = mla.latent_attention %whole, %c, %read {heads = 4, kv_lora = 10, scale = 0.25} : (tensor<?x56xf32>, !mla.cache<latent, 14xf32>, !mla.batch) -> (tensor<?x40xf32>, tensor<?x4xf32>)
    // expected-error@+1 {{'mla.latent_attention' op expected a second result if and only if its cache has some tokens}}
    %8 = mla.latent_attention %whole, %new, %read {heads = 4, kv_lora = 10, scale = 0.25} : (tensor<?x56xf32>, !mla.cache<latent, 14xf32>, !mla.batch) -> tensor<?x40xf32>
    %9, %10 = mla.latent_attention %whole, %new, %read {heads = 4, kv_lora = 10, scale = 0.25} : (tensor<?x56xf32>, !mla.cache<latent, 14xf32>, !mla.batch) -> (tensor<?x40xf32>, tensor<?x4xf32>)
    // expected-error@+1 {{'mla.merge_attention' op expected what some tokens contribute to its 4 heads, found what some tokens contribute to 4 heads and all}}
    %11 = mla.merge_attention %9, %l {heads = 4, ranks = 2} : (tensor<?x40xf32>, tensor<?x4xf32>) -> tensor<?x20xf32>
    // expected-error@+1 {{'mla.merge_attention' op expected what some tokens contribute to its 4 heads, found all and all}}
    %12 = mla.merge_attention %y, %l {heads = 4, ranks = 2} : (tensor<?x40xf32>, tensor<?x4xf32>) -> tensor<?x20xf32>
    // expected-error@+1 {{'mla.merge_attention' op expected 2 ranks as the module has, found 4}}
    %13 = mla.merge_attention %9, %10 {heads = 4, ranks = 4} : (tensor<?x40xf32>, tensor<?x4xf32>) -> tensor<?x10xf32>
    %14 = mla.merge_attention %9, %10 {heads = 4, ranks = 2} : (tensor<?x40xf32>, tensor<?x4xf32>) -> tensor<?x20xf32>
    // expected-error@+1 {{'mla.add' op adds what some tokens contribute to 4 heads and all}}
    %15 = mla.add %9, %y : tensor<?x40xf32>
    // expected-error@+1 {{'mla.cache_write' op expected no cache but latent ones in a module whose caches' tokens are spread}}
    %16 = mla.cache_write %c, %b, %kv : (!mla.cache<latent, 14xf32>, !mla.batch, tensor<?x14xf32>) -> !mla.cache<latent, 14xf32>
    return
  }
}

// -----

// Queries in parts of no whole heads, and merged parts that kv_b does not have.
module attributes {mla.ranks = 2 : i64, mla.page_ranks = 2 : i64} {
  mla.weight @half : !mla.weight<21x16xbf16> from "h" shard <[40, 16] dim 0 in 2>
  mla.weight @kv_b : !mla.weight<28x10xbf16> from "kv_b" shard <[42, 10] dim 0 in 2>
  func.func @parts(%x: tensor<?x16xf32>, %kv: tensor<?x14xf32>, %n: !mla.weight<10xbf16>, %cs: tensor<?x4xf32>, %c: !mla.cache<latent, 14xf32>, %b: !mla.batch, %whole: tensor<?x56xf32>) {
    %half = mla.get_weight @half : !mla.weight<21x16xbf16>
    %kvb = mla.get_weight @kv_b : !mla.weight<28x10xbf16>
    %read, %write = mla.shard_batch %b {ranks = 2 : i64}
    %new = mla.latent_cache_write %kv, %n, %cs, %c, %write {eps = 1.0e-6, interleaved = true} : (tensor<?x14xf32>, !mla.weight<10xbf16>, tensor<?x4xf32>, !mla.cache<latent, 14xf32>, !mla.batch) -> !mla.cache<latent, 14xf32>
    %0 = mla.linear %x, %half : (tensor<?x16xf32>, !mla.weight<21x16xbf16>) -> tensor<?x21xf32>
    %1 = mla.all_gather %0 {ranks = 2 : i64} : (tensor<?x21xf32>) -> tensor<?x42xf32>
    // expected-error@+1 {{'mla.latent_attention' op expected as many whole heads of each of 2 ranks, found 40 columns in padded parts of 21}}
    %6, %7 = mla.latent_attention %1, %new, %read {heads = 3, kv_lora = 10, scale = 0.25} : (tensor<?x42xf32>, !mla.cache<latent, 14xf32>, !mla.batch) -> (tensor<?x30xf32>, tensor<?x3xf32>)
    %2, %3 = mla.latent_attention %whole, %new, %read {heads = 4, kv_lora = 10, scale = 0.25} : (tensor<?x56xf32>, !mla.cache<latent, 14xf32>, !mla.batch) -> (tensor<?x40xf32>, tensor<?x4xf32>)
    %4 = mla.merge_attention %2, %3 {heads = 4, ranks = 2} : (tensor<?x40xf32>, tensor<?x4xf32>) -> tensor<?x20xf32>
    // expected-error@+1 {{'mla.expand_value' op expected the same heads of its rows and of kv_b, found 20 of 40 columns and 28 of 42 rows}}
    %5 = mla.expand_value %4, %kvb {heads = 2, nope = 8, v = 6} : (tensor<?x20xf32>, !mla.weight<28x10xbf16>) -> tensor<?x12xf32>
    return
  }
}

// -----

// Tokens that are spread in a module that does not say so.
module attributes {mla.ranks = 2 : i64} {
  func.func @unsaid(%b: !mla.batch) {
    // expected-error@+1 {{'mla.shard_batch' op expected 1 ranks as the module's caches have, found 2}}
    %read, %write = mla.shard_batch %b {ranks = 2 : i64}
    return
  }
}

// -----

// expected-error@+1 {{expected caches whose tokens are spread over all 4 ranks, found 2}}
module attributes {mla.ranks = 4 : i64, mla.page_ranks = 2 : i64} {
}
