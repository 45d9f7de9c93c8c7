//===- LinearOps.td - weights, linears, norms, embeddings -----*- tablegen -*-===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_DIALECT_LINEAROPS_TD
#define MLA_DIALECT_LINEAROPS_TD

include "mla/Dialect/MLABase.td"
include "mlir/IR/SymbolInterfaces.td"
include "mlir/Interfaces/InferTypeOpInterface.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

def MLA_WeightOp : MLA_Op<"weight", [Symbol]> {
  let summary = "Declares a weight of the checkpoint";
  let description = [{
    A symbol for one tensor of the checkpoint, or for a stack of tensors of the
    same shape and format. `tensor` is the Hugging Face name; a stack has `{}`
    where the number of the tensor stands. The quantized formats have scales in
    tensors of their own: fp8_block and int4_g32 one, nvfp4 one for the blocks
    and one for the matrix, of which the checkpoint may hold the reciprocal
    (`reciprocal_global`). With `shard` the weight is what each of several ranks
    has of its tensors, and the type is that of a part.

    - C1: `tensor` and each of `scales` contain `{}` exactly once if the type
      has rank 3, else never.
    - C2: there are as many `scales` as the format has.
    - C3: `reciprocal_global` is only given in the format nvfp4.
    - C4: `shard` is of as many dimensions as the type, divides each once at the
      most, into at least 2 parts, and no number in it is beyond 2^31.
    - C5: a dimension that `shard` does not divide is that of its whole, and the
      parts of one that it does divide make up the whole.
    - C6: `shard` cuts no group of scales: in nvfp4 and int4_g32 the columns of a
      part are whole groups; in fp8_block rows and columns of a part that is not
      all are, or a divisor of a group, so that a part has a copy of its scale.

    Example:
    ```mlir
    mla.weight @layers.1.experts.gate_proj : !mla.weight<8x128x256xbf16> from "model.layers.1.mlp.experts.{}.gate_proj.weight"
    mla.weight @layers.0.o_proj : !mla.weight<256x128xfp8_block> from "model.layers.0.self_attn.o_proj.weight" scales ["model.layers.0.self_attn.o_proj.weight_scale_inv"]
    mla.weight @layers.0.mlp.down_proj : !mla.weight<256x64xbf16> from "model.layers.0.mlp.down_proj.weight" shard <[256, 128] dim 1 in 2>
    ```
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, TypeAttrOf<MLA_Weight>:$type, StrAttr:$tensor,
                       OptionalAttr<StrArrayAttr>:$scales, UnitAttr:$reciprocal_global,
                       OptionalAttr<MLA_ShardAttr>:$shard);
  let assemblyFormat = "$sym_name `:` $type `from` $tensor (`scales` $scales^)? (`shard` $shard^)? attr-dict";
  let hasVerifier = 1;
}

def MLA_GetWeightOp : MLA_Op<"get_weight", [Pure, DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "A declared weight as a value";
  let description = [{
    - C1: `name` is a `mla.weight` of the module with the type of the result.

    Example: `%w = mla.get_weight @norm : !mla.weight<256xbf16>`
  }];
  let arguments = (ins FlatSymbolRefAttr:$name);
  let results = (outs MLA_Weight:$result);
  let assemblyFormat = "$name attr-dict `:` type($result)";
}

def MLA_EmbeddingOp : MLA_Op<"embedding", [Pure]> {
  let summary = "Looks up a row for each token id";
  let description = [{
    `result[t] = f32(table[ids[t]])`. With `ranks` the table is the rank's part of
    the vocabulary, and ids of other ranks' parts have rows of zeros, so that the sum
    over the ranks is the embedding.

    - C1: `table` has rank 2.
    - C2: a row of the result has as many values as a row of `table`.
    - C3: `ranks` is at least 2.

    Lowers to: host `embedding`.
  }];
  let arguments = (ins MLA_Ids:$ids, MLA_Weight:$table, OptionalAttr<I64Attr>:$ranks);
  let results = (outs MLA_Rows:$result);
  let assemblyFormat = "$ids `,` $table attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def MLA_RMSNormOp : MLA_Op<"rms_norm", [Pure]> {
  let summary = "Root-mean-square norm of each row";
  let description = [{
    `result = x * rsqrt(mean(x^2) + eps) * weight`.

    - C1: `weight` has rank 1 and as many values as a row of `x`.
    - C2: the result has the type of `x`.
    - C3: `eps` is positive.

    Lowers to: host `rms_norm`.
  }];
  let arguments = (ins MLA_Rows:$x, MLA_Weight:$weight, F64Attr:$eps);
  let results = (outs MLA_Rows:$result);
  let assemblyFormat = "$x `,` $weight attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def MLA_LayerNormOp : MLA_Op<"layer_norm", [Pure]> {
  let summary = "Layer norm of each row";
  let description = [{
    `result = (x - mean(x)) * rsqrt(var(x) + eps) * weight + bias`, with the
    biased variance. The indexer's key norm.

    - C1: `weight` and `bias` have rank 1 and as many values as a row of `x`.
    - C2: the result has the type of `x`.
    - C3: `eps` is positive.

    Lowers to: host `layer_norm`.
  }];
  let arguments = (ins MLA_Rows:$x, MLA_Weight:$weight, MLA_Weight:$bias, F64Attr:$eps);
  let results = (outs MLA_Rows:$result);
  let assemblyFormat = "$x `,` $weight `,` $bias attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def MLA_LinearOp : MLA_Op<"linear", [Pure]> {
  let summary = "Multiplies each row by a weight matrix";
  let description = [{
    `result = x * weight^T`, accumulated in f32.

    - C1: `weight` has rank 2 and as many columns as a row of `x` has values.
    - C2: a row of the result has as many values as `weight` has rows.

    Lowers to: host `linear`.
  }];
  let arguments = (ins MLA_Rows:$x, MLA_Weight:$weight);
  let results = (outs MLA_Rows:$result);
  let assemblyFormat = "$x `,` $weight attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def MLA_JoinedLinearOp : MLA_Op<"joined_linear", [Pure]> {
  let summary = "Several linears of the same rows in one pass";
  let description = [{
    `results[i] = x * weights[i]^T`. Made by `mla-fuse-attention` of the
    down-projections, which read the same rows.

    - C1: there are at least two weights and one result for each.
    - C2: each weight has rank 2 and as many columns as a row of `x` has values.
    - C3: a row of result i has as many values as weight i has rows.

    Lowers to: host `linear` with several segments.
  }];
  let arguments = (ins MLA_Rows:$x, Variadic<MLA_Weight>:$weights);
  let results = (outs Variadic<MLA_Rows>:$results);
  let assemblyFormat = "$x `,` $weights attr-dict `:` functional-type(operands, $results)";
  let hasVerifier = 1;
}

def MLA_GatedLinearOp : MLA_Op<"gated_linear", [Pure]> {
  let summary = "silu(gate x) * (up x)";
  let description = [{
    `result = silu(x * gate^T) * (x * up^T)`, silu(v) = v * sigmoid(v). Made by
    `mla-fuse-mlp`.

    - C1: `gate` and `up` have rank 2, the same shape, and as many columns as a
      row of `x` has values.
    - C2: a row of the result has as many values as `gate` has rows.

    Lowers to: host `gated_linear`.
  }];
  let arguments = (ins MLA_Rows:$x, MLA_Weight:$gate, MLA_Weight:$up);
  let results = (outs MLA_Rows:$result);
  let assemblyFormat = "$x `,` $gate `,` $up attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def MLA_SwiGLUOp : MLA_Op<"swiglu", [Pure, SameOperandsAndResultType]> {
  let summary = "silu(gate) * up";
  let description = [{
    The activation of an MLP, silu(v) = v * sigmoid(v).

    Lowers to: host `swiglu`.
  }];
  let arguments = (ins MLA_Rows:$gate, MLA_Rows:$up);
  let results = (outs MLA_Rows:$result);
  let assemblyFormat = "$gate `,` $up attr-dict `:` type($result)";
}

def MLA_AddOp : MLA_Op<"add", [Pure, Commutative, SameOperandsAndResultType]> {
  let summary = "Adds rows";
  let description = [{
    The residual stream.

    Lowers to: host `add`.
  }];
  let arguments = (ins MLA_Rows:$lhs, MLA_Rows:$rhs);
  let results = (outs MLA_Rows:$result);
  let assemblyFormat = "$lhs `,` $rhs attr-dict `:` type($result)";
}

def MLA_SplitOp : MLA_Op<"split", [Pure]> {
  let summary = "Cuts each row into parts";
  let description = [{
    - C1: there are at least two results and their widths add up to that of `x`.

    Lowers to: host `split`.
  }];
  let arguments = (ins MLA_Rows:$x);
  let results = (outs Variadic<MLA_Rows>:$results);
  let assemblyFormat = "$x attr-dict `:` functional-type(operands, $results)";
  let hasVerifier = 1;
}

def MLA_LMHeadOp : MLA_Op<"lm_head", [Pure]> {
  let summary = "Logits of the tokens that want them";
  let description = [{
    `result[i] = x[outputs[i]] * weight^T` for the tokens that `batch` lists.

    - C1: `weight` has rank 2 and as many columns as a row of `x` has values.
    - C2: a row of the result has as many values as `weight` has rows.

    Lowers to: host `lm_head`.
  }];
  let arguments = (ins MLA_Rows:$x, MLA_Weight:$weight, MLA_Batch:$batch);
  let results = (outs MLA_Rows:$result);
  let assemblyFormat = "$x `,` $weight `,` $batch attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

#endif // MLA_DIALECT_LINEAROPS_TD
