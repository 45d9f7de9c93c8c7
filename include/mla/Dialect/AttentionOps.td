//===- AttentionOps.td - attention, plain and latent ----------*- tablegen -*-===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_DIALECT_ATTENTIONOPS_TD
#define MLA_DIALECT_ATTENTIONOPS_TD

include "mla/Dialect/MLABase.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

def MLA_AttentionOp : MLA_Op<"attention", [Pure]> {
  let summary = "Attention over expanded keys and values";
  let description = [{
    For each token and head: scores over the tokens of its sequence up to its
    own position, `scale * (q_nope . k_nope + q_rope . k_rope)`, softmax in
    f32, weighted sum of the values. With `selected`, only the positions listed
    in the token's row take part (they come first in it; -1 fills the
    rest).

    - C1: `heads`, `nope`, `rope` and `v` are positive, and a row of `q` is
      `heads` * (`nope` + `rope`) values.
    - C2: `cache` is expanded, `heads` * (`nope` + `v`) + `rope` wide.
    - C3: a row of the result is `heads` * `v` values.

    Lowers to: host `attention`.
  }];
  let arguments = (ins MLA_Rows:$q, MLA_Cache:$cache, MLA_Batch:$batch, Optional<MLA_IndexRows>:$selected,
                       I64Attr:$heads, I64Attr:$nope, I64Attr:$rope, I64Attr:$v, F64Attr:$scale);
  let results = (outs MLA_Rows:$result);
  let assemblyFormat = "$q `,` $cache `,` $batch (`selected` $selected^)? attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def MLA_AbsorbQueryOp : MLA_Op<"absorb_query", [Pure]> {
  let summary = "Takes queries into the latent space";
  let description = [{
    Applies the key half of kv_b to the query instead of to every cached
    latent (reassociation; the matrices are not multiplied together), and
    rotates the rotary part. For each head:
    `result = [q_nope * kv_b[head's nope rows] | rotated q_rope]`.

    - C1: `heads`, `nope` and `v` are positive, and `kv_b` has rank 2 and
      `heads` * (`nope` + `v`) rows.
    - C2: a row of `q` is `heads` * (`nope` + width of `rotary`) values.
    - C3: a row of the result is `heads` * (columns of `kv_b` + width of
      `rotary`) values.

    Lowers to: host `absorb_query`.
  }];
  let arguments = (ins MLA_Rows:$q, MLA_Weight:$kv_b, MLA_Rows:$rotary,
                       I64Attr:$heads, I64Attr:$nope, I64Attr:$v, BoolAttr:$interleaved);
  let results = (outs MLA_Rows:$result);
  let assemblyFormat = "$q `,` $kv_b `,` $rotary attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def MLA_LatentAttentionOp : MLA_Op<"latent_attention", [Pure]> {
  let summary = "Attention over the latent cache";
  let description = [{
    For each token and head: scores `scale * (q . row)` over the rows of its
    sequence up to its own position, softmax in f32, weighted sum of the first
    `kv_lora` values of the rows. With `selected`, only the positions listed in
    the token's row take part (they come first in it; -1 fills the
    rest).

    The second result, if there is one, is for a cache of which each rank has some
    of the tokens (`mla.shard_batch`, `mla.merge_attention`): the logarithm of the
    sum of the exponentials of a token's scores, one for each head. A token that
    sees none of the rows has zeros in the first result, and -inf in the second.

    - C1: `heads` and `kv_lora` are positive, and `cache` is latent and wider
      than `kv_lora`.
    - C2: a row of `q` is `heads` times the width of `cache`.
    - C3: a row of the result is `heads` * `kv_lora` values.
    - C4: a row of `lse` is `heads` values, and `lse` is not there with `selected`.

    Lowers to: host `latent_attention`.
  }];
  let arguments = (ins MLA_Rows:$q, MLA_Cache:$cache, MLA_Batch:$batch, Optional<MLA_IndexRows>:$selected,
                       I64Attr:$heads, I64Attr:$kv_lora, F64Attr:$scale);
  let results = (outs MLA_Rows:$result, Optional<MLA_Rows>:$lse);
  let assemblyFormat = "$q `,` $cache `,` $batch (`selected` $selected^)? attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def MLA_MergeAttentionOp : MLA_Op<"merge_attention", [Pure]> {
  let summary = "Merges what the ranks' tokens contribute to attention";
  let description = [{
    A collective. Every rank has, in `x` and `lse`, the two results of
    `mla.latent_attention` of all heads over the tokens that are in its cache. A rank
    gets its part of the heads, h of `heads` / `ranks`, over all tokens:

    `result[t, h] = sum over ranks r of w[r] * x of r [t, h]`, where
    `w[r] = exp(lse of r [t, h] - m) / sum over s of exp(lse of s [t, h] - m)` and m
    is the largest of them; zeros if all are -inf. Sums are taken in the order of the
    ranks. Made by `mla-distribute` with a sharded cache.

    With `local` nothing is exchanged, and the rank's own heads stand in the place of
    what the others send: see `mla.all_reduce`.

    - C1: `ranks` is at least 2.
    - C2: `heads` is positive and divided by `ranks`, and a row of `lse` is `heads`
      values.
    - C3: a row of `x` is `ranks` times a row of the result, and divided by `heads`.

    Lowers to: host `merge_attention`.

    Example: `%2 = mla.merge_attention %1#0, %1#1 {heads = 64 : i64, ranks = 8 : i64} : (tensor<?x32768xf32>, tensor<?x64xf32>) -> tensor<?x4096xf32>`
  }];
  let arguments = (ins MLA_Rows:$x, MLA_Rows:$lse, I64Attr:$ranks, I64Attr:$heads, UnitAttr:$local);
  let results = (outs MLA_Rows:$result);
  let assemblyFormat = "$x `,` $lse attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def MLA_ExpandValueOp : MLA_Op<"expand_value", [Pure]> {
  let summary = "Takes attention outputs out of the latent space";
  let description = [{
    Applies the value half of kv_b to the output instead of to every cached
    latent. For each head: `result = kv_b[head's v rows] * x`.

    - C1: `heads`, `nope` and `v` are positive, and `kv_b` has rank 2 and
      `heads` * (`nope` + `v`) rows.
    - C2: a row of `x` is `heads` times the columns of `kv_b`.
    - C3: a row of the result is `heads` * `v` values.

    Lowers to: host `expand_value`.
  }];
  let arguments = (ins MLA_Rows:$x, MLA_Weight:$kv_b, I64Attr:$heads, I64Attr:$nope, I64Attr:$v);
  let results = (outs MLA_Rows:$result);
  let assemblyFormat = "$x `,` $kv_b attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def MLA_IndexerOp : MLA_Op<"indexer", [Pure]> {
  let summary = "Chooses the positions that sparse attention looks at";
  let description = [{
    The lightning indexer of DeepSeek-V3.2 and GLM-5. For each token t and each
    position s up to its own: `score = scale * sum_h weights[t, h] *
    relu(q[t, h] . key[s])`; the result is the positions of the best `topk`
    scores (ties: lower position), all of them if there are no more, then -1.

    - C1: `heads` is positive, and `cache` is an index cache; a row of `q` is
      `heads` times its width.
    - C2: a row of `weights` is `heads` values.
    - C3: `topk` is positive and the width of the result.

    Lowers to: host `indexer`.
  }];
  let arguments = (ins MLA_Rows:$q, MLA_Rows:$weights, MLA_Cache:$cache, MLA_Batch:$batch,
                       I64Attr:$heads, I64Attr:$topk, F64Attr:$scale);
  let results = (outs MLA_IndexRows:$result);
  let assemblyFormat = "$q `,` $weights `,` $cache `,` $batch attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

#endif // MLA_DIALECT_ATTENTIONOPS_TD
