//===- MLABase.td - the dialect, its types and attributes -----*- tablegen -*-===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_DIALECT_BASE_TD
#define MLA_DIALECT_BASE_TD

include "mlir/IR/OpBase.td"
include "mlir/IR/AttrTypeBase.td"
include "mlir/IR/EnumAttr.td"
include "mlir/IR/BuiltinAttributes.td"

def MLA_Dialect : Dialect {
  let name = "mla";
  let summary = "Models with latent attention and experts, from module to launch";
  let cppNamespace = "::mla";
  let description = [{
    What a model of the DeepSeek-V3 family means, in three steps of lowering
    that share types:

        plain ops  --fuse-->  fused ops  --lower-->  launches
        (one a Hugging Face   (latent attention,     (kernels over buffers,
         module)               experts, MLPs)         ready for a plan)

    Activations are `tensor<?xNxf32>`: one row a query token of the step, over
    all sequences. Which token belongs to which sequence, at which position,
    and where a sequence's cache pages lie is the `!mla.batch` value. Weights
    and caches are symbols with types of their own, which carry the storage
    format; `mla.get_weight` and `mla.get_cache` make values of them, so that
    every op can be verified by itself.

    `mla` names the project, this dialect and, elsewhere, multi-head latent
    attention; ops are named after what they compute.
  }];
  let useDefaultTypePrinterParser = 1;
  let useDefaultAttributePrinterParser = 1;
  let extraClassDeclaration = [{
    void registerTypes();
    void registerAttributes();
  }];
}

//===----------------------------------------------------------------------===//
// Types
//===----------------------------------------------------------------------===//

class MLA_Type<string name, string typeMnemonic> : TypeDef<MLA_Dialect, name> {
  let mnemonic = typeMnemonic;
}

def MLA_WeightType : MLA_Type<"Weight", "weight"> {
  let summary = "A constant tensor in its storage format";
  let description = [{
    Shape and storage format of a weight: `f32`, `bf16`, `f16`, `fp8_block`
    (e4m3 with one scale a 128x128 block), `nvfp4` (e2m1 with one e4m3 scale for
    16 columns and one f32 scale), `int4_g32` (one bf16 scale for 32 columns).
    The last three are of matrices only, and the last two need their groups to
    divide the columns. A rank of three is a stack of matrices, one an expert.
    Matrices are [rows = outputs, columns = inputs], as in the checkpoint.

    Example: `!mla.weight<8x128x256xbf16>`.
  }];
  let parameters = (ins ArrayRefParameter<"int64_t">:$shape, "::mla::Format":$format);
  let hasCustomAssemblyFormat = 1;
  let genVerifyDecl = 1;
  let extraClassDeclaration = [{
    unsigned getRank() const { return getShape().size(); }
    int64_t getDim(unsigned i) const { return getShape()[i]; }
  }];
}

def MLA_CacheKind : I32EnumAttr<"CacheKind", "what a row of a cache holds", [
  I32EnumAttrCase<"Expanded", 0, "expanded">, I32EnumAttrCase<"Latent", 1, "latent">,
  I32EnumAttrCase<"Index", 2, "index">]> {
  let cppNamespace = "::mla";
  let genSpecializedAttr = 0;
}

def MLA_CacheType : MLA_Type<"Cache", "cache"> {
  let summary = "A paged cache with one row a token";
  let description = [{
    What a row holds, the number of its values and their storage format:

    - `expanded`: [k_nope | v] of every head, then the rotated key part shared
      by all heads: heads * (nope + v) + rope values. The plain graph.
    - `latent`: the normed latent, then the rotated key part: kv_lora + rope.
    - `index`: the key of the sparse-attention indexer.

    Example: `!mla.cache<latent, 576xf32>`.
  }];
  let parameters = (ins "::mla::CacheKind":$kind, "int64_t":$width, "::mla::Format":$format);
  let hasCustomAssemblyFormat = 1;
  let genVerifyDecl = 1;
}

def MLA_BatchType : MLA_Type<"Batch", "batch"> {
  let summary = "The sequences of a step";
  let description = [{
    For each query token its sequence and its position, for each sequence its
    pages, and which tokens want logits. Positions and lengths are data: no
    shape depends on them. `mla.shard_batch` makes batches with other positions, for
    caches of which a rank has a part.
  }];
}

def MLA_BufferType : MLA_Type<"Buffer", "buffer"> {
  let summary = "Memory that a launch reads or writes";
  let description = [{
    A row-major buffer whose dimensions are expressions over the step symbols
    of the plan (`tokens`, `sequences`, `outputs`, `pages`, `capacity`).

    Example: `!mla.buffer<["tokens", "256"], f32>`.
  }];
  let parameters = (ins ArrayRefParameter<"::mlir::StringAttr">:$shape, "::mla::Format":$format);
  let hasCustomAssemblyFormat = 1;
  let genVerifyDecl = 1;
}

def MLA_PeersType : MLA_Type<"Peers", "peers"> {
  let summary = "The exchange memory of all ranks";
  let description = [{
    What a kernel receives that exchanges data with other ranks: the table of
    include/mla/Plan/Peers.h.
  }];
}

//===----------------------------------------------------------------------===//
// Attributes
//===----------------------------------------------------------------------===//

def MLA_Scoring : I32EnumAttr<"ScoringKind", "how a router scores experts", [
  I32EnumAttrCase<"Sigmoid", 0, "sigmoid">, I32EnumAttrCase<"Softmax", 1, "softmax">]> {
  let cppNamespace = "::mla";
  let genSpecializedAttr = 0;
}
def MLA_TopkMethod : I32EnumAttr<"TopkKind", "how a router chooses experts", [
  I32EnumAttrCase<"NoAuxTc", 0, "noaux_tc">, I32EnumAttrCase<"Greedy", 1, "greedy">,
  I32EnumAttrCase<"GroupLimitedGreedy", 2, "group_limited_greedy">]> {
  let cppNamespace = "::mla";
  let genSpecializedAttr = 0;
}

def MLA_RoutingAttr : AttrDef<MLA_Dialect, "Routing"> {
  let mnemonic = "routing";
  let summary = "How a router turns logits into experts and weights";
  let description = [{
    scores = sigmoid or softmax of the f32 logits. With `noaux_tc` the choice
    is made on scores + bias and a group's score is the sum of its best two;
    with `group_limited_greedy` a group's score is its best one; `greedy` knows
    no groups. The best `topk_groups` groups are kept, experts outside them are
    masked, the best `topk` experts are chosen (ties: lower index). Weights are
    the unbiased scores of the chosen, divided by their sum (+ 1e-20) if
    `normalize`, times `scale`.
  }];
  let parameters = (ins
    "int64_t":$topk, "int64_t":$groups, "int64_t":$topk_groups,
    "::mla::ScoringKind":$scoring, "::mla::TopkKind":$method,
    "bool":$normalize, "::mlir::FloatAttr":$scale);
  let assemblyFormat = "`<` struct(params) `>`";
}

def MLA_ViewLayout : I32EnumAttr<"ViewLayout", "how a view lies in device memory", [
  I32EnumAttrCase<"Rows", 0, "rows">, I32EnumAttrCase<"Packed", 1, "packed">]> {
  let cppNamespace = "::mla";
  let genSpecializedAttr = 0;
}

def MLA_ViewAttr : AttrDef<MLA_Dialect, "View"> {
  let mnemonic = "view";
  let summary = "Which part of a weight a launch reads, and how it lies in memory";
  let description = [{
    The attribute `view` of a `mla.get_weight` in a program of a GPU. `blocks`
    runs of `block_rows` rows of the weight, the first at row `first`, each
    `stride` rows below the one before; with `transposed` each run is transposed.
    In device memory elements are in `format` (that of the weight, or bf16 or f32,
    to which it is then converted when the plan is loaded), row by row or `packed`
    (include/mla/Quant/Pack.h).

    Example: the key half of kv_b, head by head:
    `#mla.view<layout = packed, format = "bf16", first = 0, blocks = 8, block_rows = 128, stride = 256, transposed = true>`
  }];
  let parameters = (ins
    "::mla::ViewLayout":$layout, StringRefParameter<>:$format,
    "int64_t":$first, "int64_t":$blocks, "int64_t":$block_rows, "int64_t":$stride,
    "bool":$transposed);
  let assemblyFormat = "`<` struct(params) `>`";
}

def MLA_ShardAttr : AttrDef<MLA_Dialect, "Shard"> {
  let mnemonic = "shard";
  let summary = "What each of several ranks has of a checkpoint's tensors";
  let description = [{
    `whole` is the shape of the weight in the checkpoint: [tensors of a stack,]
    rows, columns; or the length of a vector. Dimension `dims[i]` is divided into
    `counts[i]` parts, each as large as the weight's type says. Rank r has the part
    (r / strides[i]) % counts[i]. The last parts may reach beyond the whole, or lie
    beyond it: what is not there is zero. The plan has the same structure
    (`plan::Shard`).

    An eighth of the rows of a matrix; two groups of four ranks that have half of
    the experts, of which each rank has a quarter of the rows:
    ```mlir
    #mla.shard<[2048, 7168] dim 0 in 8>
    #mla.shard<[384, 2048, 7168] dim 0 in 2 by 4, dim 1 in 4>
    ```
  }];
  let parameters = (ins
    ArrayRefParameter<"int64_t">:$whole, ArrayRefParameter<"int64_t">:$dims,
    ArrayRefParameter<"int64_t">:$counts, ArrayRefParameter<"int64_t">:$strides);
  let hasCustomAssemblyFormat = 1;
  let extraClassDeclaration = [{
    /// Parts of dimension `dim`: 1 if it is not divided.
    int64_t countOf(int64_t dim) const;
    /// Ranks in a row that have the same part of it: 1 if it is not divided.
    int64_t strideOf(int64_t dim) const;
  }];
}

//===----------------------------------------------------------------------===//
// Constraints and base classes
//===----------------------------------------------------------------------===//

def MLA_Weight : DialectType<MLA_Dialect, CPred<"::llvm::isa<::mla::WeightType>($_self)">, "weight">;
def MLA_Cache : DialectType<MLA_Dialect, CPred<"::llvm::isa<::mla::CacheType>($_self)">, "cache">;
def MLA_Batch : DialectType<MLA_Dialect, CPred<"::llvm::isa<::mla::BatchType>($_self)">, "batch">,
                BuildableType<"$_builder.getType<::mla::BatchType>()">;
def MLA_Peers : DialectType<MLA_Dialect, CPred<"::llvm::isa<::mla::PeersType>($_self)">, "peers">;
def MLA_Buffer : DialectType<MLA_Dialect, CPred<"::llvm::isa<::mla::BufferType>($_self)">, "buffer">;

class MLA_RowsOf<Type element, string cond, string desc> : Type<And<[
    RankedTensorOf<[element]>.predicate,
    CPred<"::mla::isRows(::llvm::cast<::mlir::RankedTensorType>($_self), " # cond # ")">]>,
    desc, "::mlir::RankedTensorType">;

def MLA_Rows : MLA_RowsOf<F32, "2", "f32 rows, tensor<?xNxf32>">;
def MLA_IndexRows : MLA_RowsOf<I32, "2", "i32 rows, tensor<?xNxi32>">;
def MLA_Ids : MLA_RowsOf<I32, "1", "token ids, tensor<?xi32>">;

class MLA_Op<string mnemonic, list<Trait> traits = []> : Op<MLA_Dialect, mnemonic, traits>;

#endif // MLA_DIALECT_BASE_TD
