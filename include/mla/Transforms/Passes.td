//===- Passes.td - the passes over the mla dialect ------------*- tablegen -*-===//
//
// Part of mla. In pipeline order: a stage, then the pass that verifies it.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_TRANSFORMS_PASSES_TD
#define MLA_TRANSFORMS_PASSES_TD

include "mlir/Pass/PassBase.td"

//===----------------------------------------------------------------------===//
// Import
//===----------------------------------------------------------------------===//

def VerifyImportedPass : Pass<"mla-verify-imported", "::mlir::ModuleOp"> {
  let summary = "Checks what the front end promises";
  let description = [{
    The module holds only functions, the declarations of weights and caches,
    and plain `mla` ops, one for each Hugging Face module; every
    `mla.get_weight` and `mla.get_cache` names a declaration of its type.

    An op that only a later stage makes (`mla.latent_attention`, `mla.moe`,
    `mla.launch`, ...) or one of a foreign dialect is an error, as is a
    `lowering` that is already chosen. Changes nothing.
  }];
}

//===----------------------------------------------------------------------===//
// Fuse
//===----------------------------------------------------------------------===//

def FuseAttentionPass : Pass<"mla-fuse-attention", "::mlir::ModuleOp"> {
  let summary = "Attends over cached latents instead of expanded keys and values";
  let description = [{
    Rewrites the plain chain of a layer so that the cache holds a token's
    latent (kv_lora + rope values) instead of the keys and values of every head.
    kv_b moves from the cached rows to the query and to the output of the
    attention by reassociation; matrices are never multiplied together, which
    would make them larger. The linears that read the same rows as kv_a (q_a or
    q_proj, and the indexer's wk and weights_proj) become one.

    Before:
    ```mlir
    %q    = mla.linear %x, %q_proj
    %kva  = mla.linear %x, %kv_a
    %c, %kr = mla.split %kva
    %cn   = mla.rms_norm %c, %norm {eps = 1.0e-6}
    %kv   = mla.linear %cn, %kv_b
    %qr   = mla.rope %q, %cs {head_dim = 12, interleaved = true, offset = 8}
    %krr  = mla.rope %kr, %cs {head_dim = 4, interleaved = true, offset = 0}
    %new  = mla.cache_write %cache, %batch, %kv, %krr
    %o    = mla.attention %qr, %new, %batch {heads = 2, nope = 8, rope = 4, v = 8, scale = 0.3}
    ```
    After (types left out):
    ```mlir
    %q, %kva = mla.joined_linear %x, %q_proj, %kv_a
    %new  = mla.latent_cache_write %kva, %norm, %cs, %cache, %batch {eps = 1.0e-6, interleaved = true}
    %ql   = mla.absorb_query %q, %kv_b, %cs {heads = 2, interleaved = true, nope = 8, v = 8}
    %ol   = mla.latent_attention %ql, %new, %batch {heads = 2, kv_lora = 16, scale = 0.3}
    %o    = mla.expand_value %ol, %kv_b {heads = 2, nope = 8, v = 8}
    ```
    The declared `mla.cache` and its `mla.get_cache` change from expanded to
    latent; the storage format stays.

    Leaves alone, with a remark that says why, an attention whose cache or
    expanded rows have other users (their values would be lost), whose latent
    is not normed, whose queries and keys are rotated differently, or whose
    shapes do not fit. Any other op of the chain that has other users is kept
    for them. Linears of other rows are not joined.
  }];
  let dependentDialects = ["::mla::MLADialect"];
  let statistics = [
    Statistic<"numFused", "attentions-fused", "Attentions taken into the latent space">,
    Statistic<"numKept", "attentions-kept", "Attentions left expanded">,
    Statistic<"numJoined", "linears-joined", "Linears that became part of a joined one">
  ];
}

def FuseMLPPass : Pass<"mla-fuse-mlp", "::mlir::ModuleOp"> {
  let summary = "Makes one op of the two linears and the activation of an MLP";
  let description = [{
    Before:
    ```mlir
    %g = mla.linear %x, %gate
    %u = mla.linear %x, %up
    %s = mla.swiglu %g, %u
    ```
    After:
    ```mlir
    %s = mla.gated_linear %x, %gate, %up
    ```
    so that the two inner rows never reach memory. The two weights may differ
    in format.

    Leaves alone an activation whose operands are not both linears of the same
    rows, and one whose linears have other users, as the fused op would compute
    them twice.
  }];
  let dependentDialects = ["::mla::MLADialect"];
  let statistics = [Statistic<"numFused", "mlps-fused", "Activations fused with their linears">];
}

def FuseMoEPass : Pass<"mla-fuse-moe", "::mlir::ModuleOp"> {
  let summary = "Makes one op of router, experts and shared expert";
  let description = [{
    Runs after `mla-fuse-mlp`, which makes the shared expert's gated linear.

    Before:
    ```mlir
    %l = mla.linear %x, %router
    %i, %w = mla.route %l bias %bias routing <...>
    %e = mla.experts %x, %i, %w, %gate, %up, %down
    %s = mla.gated_linear %x, %sgate, %sup
    %d = mla.linear %s, %sdown
    %m = mla.add %e, %d
    ```
    After:
    ```mlir
    %m = mla.moe %x, %router bias %bias experts %gate, %up, %down shared %sgate, %sup, %sdown routing <...>
    ```
    Without a shared expert the last three ops are absent.

    Leaves alone, with a remark that says why, experts whose indices and
    weights do not come from one router over the same rows, or whose router's
    values have other users. A shared expert that reads other rows or whose
    values have other users stays outside of the `mla.moe`.
  }];
  let dependentDialects = ["::mla::MLADialect"];
  let statistics = [
    Statistic<"numFused", "moes-fused", "Routers fused with their experts">,
    Statistic<"numShared", "shared-experts-fused", "Shared experts fused with them">,
    Statistic<"numKept", "experts-kept", "Experts left apart from their router">
  ];
}

def VerifyFusedPass : Pass<"mla-verify-fused", "::mlir::ModuleOp"> {
  let summary = "Checks that nothing is left that the fusions claim to fuse";
  let description = [{
    No cache is expanded, no activation could be an `mla.gated_linear`, and no
    experts and router could be an `mla.moe`. Changes nothing.
  }];
}

//===----------------------------------------------------------------------===//
// Distribute
//===----------------------------------------------------------------------===//

def DistributePass : Pass<"mla-distribute", "::mlir::ModuleOp"> {
  let summary = "Makes the graph that several ranks run together";
  let description = [{
    Tensor and expert parallelism over the fused graph. A chain of ops that is wide
    in its middle is cut there: a rank has some of the rows of the first matrices, the
    same columns of the last one, and computes a summand of the chain's result, which
    one `mla.all_reduce` adds up. All ranks run the same graph; what differs are
    the parts of the weights that they have (`#mla.shard`).

    | chain | a rank has |
    | --- | --- |
    | q_b or q_proj, `absorb_query`, `latent_attention`, `expand_value`, o_proj | some heads: rows of q and kv_b, columns of o_proj |
    | `gated_linear`, down | some inner columns: rows of gate and up, columns of down |
    | `moe`, `experts` | some experts, whole or some of their inner columns; of the shared expert some inner columns |
    | `embedding` | some of the vocabulary; rows of zeros for the rest |
    | `lm_head` | some of the vocabulary, joined by `mla.all_gather` |

    With `expert-groups` = E > 1 the ranks are E groups of neighbours; a group has
    its own experts, and its ranks divide the inner columns of each (tensor
    parallel; E = ranks: whole experts on each rank). Every rank routes all tokens
    alike, and experts of other groups count for nothing in its summand.

    Every rank has all of the rest: norms, caches, indexers, and, unless the options
    say otherwise, the projections to latents (q_a, kv_a) and the routers. With
    `shard-down` a rank has some of the rows of these projections, and one
    `mla.all_gather` joins what comes out; with `shard-router` the same of routers.
    It costs an exchange and saves the reading of the other ranks' rows.

    With `shard-cache` the tokens of latent caches are spread over the ranks
    (`mla.shard_batch`). A rank's queries are gathered, so that each rank has those of
    all heads for attention over the tokens that it has; `mla.merge_attention` gives
    it the results of its own heads over all tokens:
    ```mlir
    %read, %write = mla.shard_batch %batch {ranks = 2 : i64}
    %new = mla.latent_cache_write %kv, %norm, %cs, %c, %write {...} : ...
    %1 = mla.absorb_query %q, %kvb, %cs {heads = 4 : i64, ...} : ... -> tensor<?x2304xf32>
    %2 = mla.all_gather %1 {ranks = 2 : i64} : (tensor<?x2304xf32>) -> tensor<?x4608xf32>
    %3:2 = mla.latent_attention %2, %new, %read {heads = 8 : i64, ...} : ... -> (tensor<?x4096xf32>, tensor<?x8xf32>)
    %4 = mla.merge_attention %3#0, %3#1 {heads = 8 : i64, ranks = 2 : i64} : ... -> tensor<?x2048xf32>
    ```
    All caches are sharded, or none: attention whose heads cannot be divided, or to
    positions that an indexer selects, is then an error.

    Before:
    ```mlir
    mla.weight @gate : !mla.weight<128x64xbf16> from "gate"
    mla.weight @up : !mla.weight<128x64xbf16> from "up"
    mla.weight @down : !mla.weight<64x128xbf16> from "down"
    ...
    %s = mla.gated_linear %x, %gate, %up : (...) -> tensor<?x128xf32>
    %y = mla.linear %s, %down : (...) -> tensor<?x64xf32>
    ```
    After, with ranks=2:
    ```mlir
    module attributes {mla.ranks = 2 : i64, mla.layout = "..."}
    mla.weight @gate : !mla.weight<64x64xbf16> from "gate" shard <[128, 64] dim 0 in 2>
    mla.weight @up : !mla.weight<64x64xbf16> from "up" shard <[128, 64] dim 0 in 2>
    mla.weight @down : !mla.weight<64x64xbf16> from "down" shard <[64, 128] dim 1 in 2>
    ...
    %s = mla.gated_linear %x, %gate, %up : (...) -> tensor<?x64xf32>
    %y = mla.linear %s, %down : (...) -> tensor<?x64xf32>
    %z = mla.all_reduce %y {ranks = 2 : i64} : tensor<?x64xf32>
    ```
    Where two sums are added, as those of experts and of a shared expert that
    stayed outside, the summands are added first and one collective is left. A
    weight with other users stays whole for them, and the part is a declaration of
    its own, `@name.part`.

    Nothing need divide. A part is as large as the largest, the others are padded
    with zeros, and a remark says so: 4 heads among 3 ranks are 2, 2 and none. Parts
    of a quantized weight are whole groups of scales, or in fp8_block a divisor of
    one, so that a part carries a copy of its scale; heads and columns are added until
    that holds. An error, before anything changes, if there are fewer experts than
    groups of ranks; it says which numbers there can be. Leaves alone, with a remark
    that says why, a chain whose values have other users, whose weights are not
    declared, or that is not fused: each rank then computes all of it. With one rank
    nothing changes.
  }];
  let options = [
    Option<"ranks", "ranks", "int64_t", "1", "Number of ranks">,
    Option<"expertGroups", "expert-groups", "int64_t", "1", "Groups of ranks that have experts of their own">,
    Option<"shardDown", "shard-down", "bool", "false", "Divide the projections to latents">,
    Option<"shardRouter", "shard-router", "bool", "false", "Divide the routers">,
    Option<"shardCache", "shard-cache", "bool", "false", "Spread the caches' tokens over the ranks">,
    Option<"local", "local", "bool", "false", "Collectives exchange nothing, for measuring one rank alone">
  ];
  let statistics = [
    Statistic<"numAttentions", "attentions-shared", "Attentions whose heads are shared">,
    Statistic<"numMLPs", "mlps-shared", "MLPs whose inner columns are shared">,
    Statistic<"numExperts", "experts-shared", "Layers of experts that are shared">,
    Statistic<"numDowns", "projections-shared", "Projections to latents that are shared">,
    Statistic<"numRouters", "routers-shared", "Routers that are shared">,
    Statistic<"numReductions", "reductions", "Sums over the ranks">,
    Statistic<"numGathers", "gathers", "Rows joined from the ranks">,
    Statistic<"numMerges", "merges", "Attentions to caches whose tokens are spread">,
    Statistic<"numUneven", "uneven", "Kinds of divisions that leave ranks with less">,
    Statistic<"numKept", "chains-kept", "Chains that every rank computes">
  ];
}

def VerifyDistributedPass : Pass<"mla-verify-distributed", "::mlir::ModuleOp"> {
  let summary = "Checks that each value that crosses ranks does so in one collective";
  let description = [{
    Follows through the function what a rank has of each value: all of it, some
    of its columns, or a summand. Parts of weights decide where such values
    begin, and only a collective makes them whole again. An error is
    - an op that needs whole rows and gets a part or a summand,
    - columns that meet a matrix of which the rank has other columns, or heads
      of which it has others,
    - an `mla.moe` of which only some weights are parts,
    - a collective of what is whole already, or of another number of ranks than
      the module's,
    - experts of other groups of ranks than their op says,
    - two sums that are only added, where one collective would do,
    - in a module with `mla.page_ranks`, whose caches' tokens are spread, a write or
      attention that is not given the rank's tokens, or queries of only some heads;
      in another module a write or attention that is.

    A module without `mla.ranks` has no collective and only whole values.
    Changes nothing.
  }];
}

//===----------------------------------------------------------------------===//
// Collectives
//===----------------------------------------------------------------------===//

def FuseCollectivesPass : Pass<"mla-fuse-collectives", "::mlir::ModuleOp"> {
  let summary = "Fuses sums over the ranks with what follows, and overlaps exchanges";
  let description = [{
    **Fusion.** A `mla.all_reduce`, the `mla.add` of a residual if there is one, and
    a `mla.rms_norm` of the sum become one op. Other users of the sum, as the next
    residual `mla.add`, read its first result.

    Before:
    ```mlir
    %r = mla.all_reduce %x {ranks = 8 : i64} : tensor<?x64xf32>
    %h = mla.add %h0, %r : tensor<?x64xf32>
    %n = mla.rms_norm %h, %w {eps = 1.0e-6 : f64} : ...
    ```
    After:
    ```mlir
    %h, %n = mla.all_reduce_rms_norm %x, %w residual %h0 {eps = 1.0e-6 : f64, ranks = 8 : i64} : ...
    ```
    Left as it is, with a remark that says why: a sum that no norm reads, neither
    itself nor with a residual, and one with a residual that others read without it.

    **Shared experts.** A `mla.moe` whose logits are gathered from the ranks waits
    for them with all it does. Its shared expert, which does not need them, comes
    out of it, and the summands are added before the reduction:
    ```mlir
    %l = mla.all_gather %p {ranks = 8 : i64} : ...
    %y = mla.moe %x logits %l experts %g, %u, %d shared %sg, %su, %sd routing <...> : ...
    ```
    becomes
    ```mlir
    %l = mla.all_gather %p {ranks = 8 : i64} : ...
    %s = mla.gated_linear %x, %sg, %su : ...
    %t = mla.linear %s, %sd : ...
    %m = mla.moe %x logits %l experts %g, %u, %d routing <...> : ...
    %y = mla.add %m, %t : ...
    ```

    **Overlap.** The ops of a function are put in order anew, by a stable list
    schedule. Of the ops that have all they need it takes the first, in the old
    order, of the first of these kinds that has one:

    1. collectives,
    2. what the next collective needs and no collective on its way feeds,
    3. other ops that no collective on its way feeds,
    4. ops that need a collective that is on its way.

    A collective is on its way until an op that reads it is taken. So collectives
    come directly behind the last op that they need, independent ops come between a
    collective and its first user, and otherwise the order stays. What has to stay
    before what: operands, the write of a cache before its reads, reads before the
    next write. Different caches share no memory. `mla.get_weight` and
    `mla.get_cache` follow their users.

    Before:
    ```mlir
    %c = mla.rotary_embedding %batch {...} : ...
    %e = mla.embedding %ids, %t {ranks = 8 : i64} : ...
    %h, %n = mla.all_reduce_rms_norm %e, %w {...} : ...
    %q = mla.linear %n, %wq : ...
    ```
    After:
    ```mlir
    %e = mla.embedding %ids, %t {ranks = 8 : i64} : ...
    %h, %n = mla.all_reduce_rms_norm %e, %w {...} : ...
    %c = mla.rotary_embedding %batch {...} : ...
    %q = mla.linear %n, %wq : ...
    ```
    Then `mla.all_gather`s of the same ranks that stand side by side become one, if
    none gathers what the other made. Those of logits have other rows and stay.

    Collectives with `local` exchange nothing and are left alone, and so is a module
    without collectives.
  }];
  let dependentDialects = ["::mla::MLADialect"];
  let statistics = [
    Statistic<"numFused", "fused", "Sums over the ranks fused with a norm">,
    Statistic<"numKept", "kept", "Sums over the ranks left alone">,
    Statistic<"numJoined", "joined", "Gathers that became part of another">,
    Statistic<"numTakenOut", "shared-taken-out", "Shared experts taken out of their op">,
    Statistic<"numMoved", "moved", "Ops that came to stand between a collective and its first user">
  ];
}

def VerifyCollectivesPass : Pass<"mla-verify-collectives", "::mlir::ModuleOp"> {
  let summary = "Checks that nothing is left that mla-fuse-collectives claims to do";
  let description = [{
    An error is
    - a `mla.all_reduce` whose sum, with a residual or without, is normed,
    - two `mla.all_gather`s side by side that could be one,
    - a `mla.moe` with a shared expert whose logits are gathered,
    - a collective directly behind an op that it does not need.

    Collectives with `local` are not looked at. Changes nothing.
  }];
}

//===----------------------------------------------------------------------===//
// Select
//===----------------------------------------------------------------------===//

def SetCacheFormatPass : Pass<"mla-set-cache-format", "::mlir::ModuleOp"> {
  let summary = "Stores the latent caches in the format that was chosen";
  let description = [{
    Changes the type of every latent `mla.cache`, of the `mla.get_cache` that
    name it and of the caches that come out of their writes. An fp8_e4m3 cache
    gets a scale: the option `scales` has one for each latent cache, in the
    order of their declarations, or one for all.

    Before: `mla.cache @kv : !mla.cache<latent, 576xf32>`
    After: `mla.cache @kv : !mla.cache<latent, 576xfp8_e4m3> {scale = 1.25e-02 : f32}`

    Leaves expanded caches (the plain graph) and the indexer's alone. Scales
    that are not positive, or are too few, or are given without fp8_e4m3, are an
    error, as is a format other than f32, bf16, f16 and fp8_e4m3.
  }];
  let options = [
    Option<"format", "format", "std::string", "\"f32\"", "f32, bf16, f16 or fp8_e4m3">,
    ListOption<"scales", "scales", "double", "Scales of the FP8 caches: one each, or one for all">
  ];
  let statistics = [Statistic<"numCaches", "caches", "Latent caches set to the format">];
}

def FoldIndexerPass : Pass<"mla-fold-indexer", "::mlir::ModuleOp"> {
  let summary = "Removes indexers that choose every position there can be";
  let description = [{
    An indexer whose `topk` is not below the longest context chooses all
    positions up to a token's own, so attention to what it selects is attention to
    everything. The selection goes, and with it what only it needs: the indexer,
    its projections and norms, its cache, their weights.

    Before:
    ```mlir
    %s = mla.indexer %qi, %wi, %ki, %batch {heads = 4 : i64, topk = 2048 : i64, ...} : ...
    %y = mla.latent_attention %q, %kv, %batch selected %s {...} : ...
    ```
    After, with max-context=2048:
    ```mlir
    %y = mla.latent_attention %q, %kv, %batch {...} : ...
    ```
    Leaves indexers of fewer positions alone, with a remark.
  }];
  let options = [
    Option<"maxContext", "max-context", "int64_t", "1", "Most tokens of a sequence">
  ];
  let statistics = [Statistic<"numFolded", "folded", "Attentions to everything">];
}

def SelectLoweringPass : Pass<"mla-select-lowering", "::mlir::ModuleOp"> {
  let summary = "Chooses how each op is lowered";
  let description = [{
    Gives each tensor-level op the attribute `lowering`, the name of a row of the
    target's table: of the op's candidates that have all they need the one that
    takes the least time on the machine, for steps as large as the program's (within
    a tenth, the first), or the one that `lower` names. Where programs differ, it is a dictionary from their
    names. What ranks exchange on a GPU is exchanged by kernels or by NCCL as `collectives` allows. Where an op has several candidates, `candidates` says of each what it
    costs and why it is not taken.

    Before: `mla.linear %x, %w : ...`
    After: `mla.linear %x, %w {lowering = "host.linear"} : ...`, or
    ```mlir
    mla.linear %x, %w {candidates = {step1 = ["linear_stream: 4.3 us, bound by memory",
                                              "linear_tile: takes 6.1 us, 1.42 times as long", ...], ...},
                       lowering = {step1 = "sm_120a.linear_stream", step8 = "sm_120a.linear_tile", ...}} : ...
    ```

    An op that every candidate refuses, or for which there is none, is an error
    that lists each candidate with its reason; all ops are looked at before the
    pass fails. So is an override that has all it needs in no program: of an op that
    is there, with what it lacks. Declarations and `mla.get_weight`, `mla.get_cache`
    have nothing to lower and are left alone. An earlier choice is replaced.
  }];
  let options = [
    Option<"target", "target", "std::string", "\"host\"",
           "Architecture, shipped machine, or a machine's file">,
    ListOption<"stepTokens", "step-tokens", "int64_t",
               "Most tokens of a step, ascending; one program each">,
    Option<"maxSequences", "max-sequences", "int64_t", "64",
           "Most sequences of a step">,
    Option<"maxContext", "max-context", "int64_t", "131072",
           "Most tokens of a sequence">,
    ListOption<"lower", "lower", "std::string",
               "OP=LOWERING, to be taken instead of the fastest">,
    Option<"activations", "activations", "std::string", "\"16bit\"",
           "16bit, or fp4: products of nvfp4 weights with 4-bit activations">,
    Option<"collectives", "collectives", "std::string", "\"exchange\"",
           "exchange: by cost; p2p: by kernels alone; nccl: by NCCL alone">
  ];
  let statistics = [
    Statistic<"numSelected", "ops-selected", "Ops with a lowering">,
    Statistic<"numChoices", "choices", "Ops and programs with several candidates">
  ];
}

def VerifySelectedPass : Pass<"mla-verify-selected", "::mlir::ModuleOp"> {
  let summary = "Checks that each op has one known lowering";
  let description = [{
    Each tensor-level op has an attribute `lowering` that names, for each program,
    a row of the target's table that is made for this op and does not refuse it.
    Changes nothing. The options are those of `mla-select-lowering`.
  }];
  let options = [
    Option<"target", "target", "std::string", "\"host\"",
           "Architecture, shipped machine, or a machine's file">,
    ListOption<"stepTokens", "step-tokens", "int64_t",
               "Most tokens of a step, ascending; one program each">,
    Option<"maxSequences", "max-sequences", "int64_t", "64",
           "Most sequences of a step">,
    Option<"maxContext", "max-context", "int64_t", "131072",
           "Most tokens of a sequence">,
    Option<"activations", "activations", "std::string", "\"16bit\"",
           "16bit or fp4">,
    Option<"collectives", "collectives", "std::string", "\"exchange\"",
           "exchange, p2p or nccl">
  ];
}

//===----------------------------------------------------------------------===//
// Lower
//===----------------------------------------------------------------------===//

def PlanMemoryPass : Pass<"mla-plan-memory", "::mla::ProgramOp"> {
  let summary = "Gives each workspace of a program a place in one arena";
  let description = [{
    A workspace is live from the first to the last launch that has it as
    operand; launches run one after another, so two workspaces may share memory
    if no launch lies in both lives. Sizes are those at the program's bounds
    (`tokens` = max_tokens, ..., `pages` = the option max-pages), rounded up to
    64 bytes. The largest workspace is placed first, each into the smallest gap
    that holds it. Sets `workspace_bytes` of the program.

    Before:
    ```mlir
    mla.program @step attributes {max_outputs = 1 : i64, max_sequences = 1 : i64, max_tokens = 4 : i64} {
      %a = mla.workspace : !mla.buffer<["tokens", "16"], f32>
    ```
    After:
    ```mlir
    mla.program @step attributes {max_outputs = 1 : i64, max_sequences = 1 : i64, max_tokens = 4 : i64, workspace_bytes = 256 : i64} {
      %a = mla.workspace at 0 : !mla.buffer<["tokens", "16"], f32>
    ```
    A workspace that no launch uses is removed. A shape that needs `capacity`
    is refused: it is known only where the plan is loaded. Weights, caches and
    ports are not in the arena.
  }];
  let options = [
    Option<"maxPages", "max-pages", "int64_t", "1", "Pages of the longest sequence, the bound of the symbol `pages`">
  ];
  let statistics = [
    Statistic<"numWorkspaces", "workspaces", "Workspaces placed">,
    Statistic<"arenaBytes", "arena-bytes", "Size of the arenas">,
    Statistic<"sumBytes", "sum-bytes", "Size that the workspaces would have side by side">
  ];
}

def VerifyLoweredPass : Pass<"mla-verify-lowered", "::mlir::ModuleOp"> {
  let summary = "Checks that only launches and kernels are left";
  let description = [{
    The module holds programs, the declarations of weights and caches, and the
    module `@kernels`, in which there is no `mla` op. With `planned`, each
    workspace has its place inside the arena of its program. Changes nothing.
  }];
  let options = [
    Option<"planned", "planned", "bool", "false", "Also check that `mla-plan-memory` has run">
  ];
}

#endif // MLA_TRANSFORMS_PASSES_TD
