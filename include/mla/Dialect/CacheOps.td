//===- CacheOps.td - rotary embedding and caches --------------*- tablegen -*-===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_DIALECT_CACHEOPS_TD
#define MLA_DIALECT_CACHEOPS_TD

include "mla/Dialect/MLABase.td"
include "mlir/IR/SymbolInterfaces.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

def MLA_CacheOp : MLA_Op<"cache", [Symbol]> {
  let summary = "Declares a cache of the model";
  let description = [{
    One row for every token of every sequence, in pages that all caches share.
    An fp8_e4m3 cache holds values divided by `scale`.

    - C1: `scale` is given if and only if the format is fp8_e4m3, and is
      positive and finite.

    Example: `mla.cache @layers.0.latent : !mla.cache<latent, 576xfp8_e4m3> {scale = 1.25e-02 : f32}`
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, TypeAttrOf<MLA_Cache>:$type, OptionalAttr<F32Attr>:$scale);
  let assemblyFormat = "$sym_name `:` $type attr-dict";
  let hasVerifier = 1;
}

def MLA_GetCacheOp : MLA_Op<"get_cache", [Pure, DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "A declared cache as a value";
  let description = [{
    The cache as it was before the step.

    - C1: `name` is a `mla.cache` of the module with the type of the result.
  }];
  let arguments = (ins FlatSymbolRefAttr:$name);
  let results = (outs MLA_Cache:$result);
  let assemblyFormat = "$name attr-dict `:` type($result)";
}

def MLA_RotaryEmbeddingOp : MLA_Op<"rotary_embedding", [Pure]> {
  let summary = "Cosine and sine of every token's position";
  let description = [{
    `angle[t, i] = f32(position[t]) * frequencies[i]`; a row is
    [cos(angle) | sin(angle)], times `factor`. Computed once a step, as
    Hugging Face does, and with its f32 product.

    - C1: a row of the result has two values for each frequency.
    - C2: there is at least one frequency, and all are positive.

    Lowers to: host `rotary_embedding`.
  }];
  let arguments = (ins MLA_Batch:$batch, DenseF32ArrayAttr:$frequencies, F64Attr:$factor);
  let results = (outs MLA_Rows:$result);
  let assemblyFormat = "$batch attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def MLA_RopeOp : MLA_Op<"rope", [Pure]> {
  let summary = "Rotates a part of every head";
  let description = [{
    A row of `x` is heads of `head_dim` values; in each, the values from
    `offset` on, as many as `rotary` has in a row, are rotated. With
    `interleaved` pairs are (0,1), (2,3), ...; otherwise (i, i + d/2). The
    result has [first of every pair | second of every pair] in either case, as
    Hugging Face keeps it; scores do not change since queries and keys are
    permuted alike.

    - C1: `head_dim` divides the row of `x`.
    - C2: `offset` + the row of `rotary` is at most `head_dim`.
    - C3: the result has the type of `x`.

    Lowers to: host `rope`.
  }];
  let arguments = (ins MLA_Rows:$x, MLA_Rows:$rotary, I64Attr:$head_dim, I64Attr:$offset, BoolAttr:$interleaved);
  let results = (outs MLA_Rows:$result);
  let assemblyFormat = "$x `,` $rotary attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def MLA_ShardBatchOp : MLA_Op<"shard_batch", [Pure]> {
  let summary = "A step as one rank's caches see it";
  let description = [{
    For caches whose tokens are spread over the ranks, page by page: positions
    [64 b, 64 (b + 1)) of a sequence, block b, are those of rank b % `ranks`, where
    they are block b / `ranks`. One page number stands for a page on every rank, for
    64 * `ranks` tokens together; so sequences and page table are those of `batch`.

    In `read` the position of a token is that of the last row of its sequence that
    it sees and that this rank has; -1 if there is none. In `write` it is the place
    of the token's own row if that is this rank's; -1 otherwise, and nothing is
    written for it.

    - C1: `ranks` is at least 2.

    Lowers to: host `shard_batch`.

    Example: `%read, %write = mla.shard_batch %batch {ranks = 8 : i64}`
  }];
  let arguments = (ins MLA_Batch:$batch, I64Attr:$ranks);
  let results = (outs MLA_Batch:$read, MLA_Batch:$write);
  let assemblyFormat = "$batch attr-dict";
  let hasVerifier = 1;
}

def MLA_CacheWriteOp : MLA_Op<"cache_write", [MemoryEffects<[MemWrite]>]> {
  let summary = "Writes each token's row into a cache";
  let description = [{
    A row is the concatenation of the tokens' rows of `parts`. The result is
    the cache after the write; what reads the new rows takes it as operand. A token
    with a position below 0 (`mla.shard_batch`) is not written.

    - C1: the widths of `parts` add up to that of `cache`.
    - C2: the result has the type of `cache`.

    Lowers to: host `cache_write`.
  }];
  let arguments = (ins MLA_Cache:$cache, MLA_Batch:$batch, Variadic<MLA_Rows>:$parts);
  let results = (outs MLA_Cache:$result);
  let assemblyFormat = "$cache `,` $batch `,` $parts attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def MLA_LatentCacheWriteOp : MLA_Op<"latent_cache_write", [MemoryEffects<[MemWrite]>]> {
  let summary = "Norms, rotates and writes the latent of each token";
  let description = [{
    A row of `x` is the output of kv_a_proj_with_mqa: kv_lora values, which are
    RMS-normed with `norm`, then the rotary part, which is rotated as by
    `mla.rope`. Made by `mla-fuse-attention`. A token with a position below 0
    (`mla.shard_batch`) is not written.

    - C1: `cache` is a latent cache whose width is that of `x`.
    - C2: `norm` has rank 1, and its values and those of a row of `rotary` add
      up to the width of `x`.
    - C3: the result has the type of `cache`; `eps` is positive.

    Lowers to: host `latent_cache_write`.
  }];
  let arguments = (ins MLA_Rows:$x, MLA_Weight:$norm, MLA_Rows:$rotary, MLA_Cache:$cache,
                       MLA_Batch:$batch, F64Attr:$eps, BoolAttr:$interleaved);
  let results = (outs MLA_Cache:$result);
  let assemblyFormat = "$x `,` $norm `,` $rotary `,` $cache `,` $batch attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

#endif // MLA_DIALECT_CACHEOPS_TD
