// RUN: mla-opt %s -mla-select-lowering -mla-lower-to-host=step-tokens=4 -mla-verify-lowered | FileCheck %s

// Tests what each op becomes: kernels, grids, operands in the order in which the
// kernel takes them, scalars. The ops hang together only by their types.

mla.weight @table : !mla.weight<100x8xbf16> from "table"
mla.weight @square : !mla.weight<8x8xbf16> from "square"
mla.weight @tall : !mla.weight<300x8xf32> from "tall"
mla.weight @norm : !mla.weight<8xf16> from "norm"
mla.weight @norm4 : !mla.weight<4xbf16> from "norm4"
mla.weight @kv_b : !mla.weight<24x16xbf16> from "kv_b"
mla.weight @router : !mla.weight<4x8xbf16> from "router"
mla.weight @bias : !mla.weight<4xf32> from "bias"
mla.weight @gates : !mla.weight<4x40x8xbf16> from "gates.{}"
mla.weight @ups : !mla.weight<4x40x8xf16> from "ups.{}"
mla.weight @downs : !mla.weight<4x8x40xbf16> from "downs.{}"
mla.weight @gate : !mla.weight<12x8xbf16> from "gate"
mla.weight @down : !mla.weight<8x12xbf16> from "down"
mla.cache @expanded : !mla.cache<expanded, 28xf32>
mla.cache @latent : !mla.cache<latent, 20xf32>
mla.cache @narrow : !mla.cache<latent, 8xf32>
mla.cache @index : !mla.cache<index, 8xf32>

#routing = #mla.routing<topk = 2, groups = 1, topk_groups = 1, scoring = sigmoid, method = noaux_tc, normalize = true, scale = 2.5 : f64>

// CHECK-NOT: func.func @step
// CHECK: mla.program @step4 attributes {max_outputs = 4 : i64, max_sequences = 4 : i64, max_tokens = 4 : i64} {
// Ports come first, one each however often they are used.
// CHECK-DAG: %[[IDS:.*]] = mla.port "ids" : !mla.buffer<["tokens"], i32>
// CHECK-DAG: %[[POS:.*]] = mla.port "positions" : !mla.buffer<["tokens"], i32>
// CHECK-DAG: %[[SEQ:.*]] = mla.port "sequence" : !mla.buffer<["tokens"], i32>
// CHECK-DAG: %[[PAGES:.*]] = mla.port "page_table" : !mla.buffer<["sequences", "pages"], i32>
// CHECK-DAG: %[[OUTS:.*]] = mla.port "outputs" : !mla.buffer<["outputs"], i32>
// CHECK-DAG: %[[LOGITS:.*]] = mla.port "logits" : !mla.buffer<["outputs", "300"], f32>
// CHECK-NOT: mla.port
func.func @step(%ids: tensor<?xi32>, %b: !mla.batch) -> tensor<?x300xf32> {
  // CHECK: %[[TABLE:.*]] = mla.get_weight @table : !mla.weight<100x8xbf16>
  %table = mla.get_weight @table : !mla.weight<100x8xbf16>
  // CHECK: %[[X:.*]] = mla.workspace{{.*}} : !mla.buffer<["tokens", "8"], f32>
  // CHECK: mla.launch @embedding_{{[a-z0-9_]+}} grid "tokens"(%[[IDS]], %[[TABLE]], %[[X]] : {{.*}}) scalars [] for "mla.embedding"
  %x = mla.embedding %ids, %table : (tensor<?xi32>, !mla.weight<100x8xbf16>) -> tensor<?x8xf32>

  // CHECK: %[[SQUARE:.*]] = mla.get_weight @square
  %square = mla.get_weight @square : !mla.weight<8x8xbf16>
  // CHECK: %[[TALL:.*]] = mla.get_weight @tall
  %tall = mla.get_weight @tall : !mla.weight<300x8xf32>
  // CHECK: %[[NORM:.*]] = mla.get_weight @norm
  %norm = mla.get_weight @norm : !mla.weight<8xf16>

  // CHECK: %[[Y:.*]] = mla.workspace
  // CHECK: mla.launch @rms_norm_{{[A-Za-z0-9_]+}} grid "tokens"(%[[X]], %[[NORM]], %[[Y]] : {{.*}}) scalars []
  %rms = mla.rms_norm %x, %norm {eps = 0.5} : (tensor<?x8xf32>, !mla.weight<8xf16>) -> tensor<?x8xf32>
  // CHECK: %[[LN:.*]] = mla.workspace
  // CHECK: mla.launch @layer_norm_{{[A-Za-z0-9_]+}} grid "tokens"(%[[X]], %[[NORM]], %[[NORM]], %[[LN]] : {{.*}}) scalars []
  %ln = mla.layer_norm %x, %norm, %norm {eps = 0.5} : (tensor<?x8xf32>, !mla.weight<8xf16>, !mla.weight<8xf16>) -> tensor<?x8xf32>

  // 300 rows are 13 blocks of 24. The name in an op's location is the origin.
  // CHECK: %[[LIN:.*]] = mla.workspace{{.*}} : !mla.buffer<["tokens", "300"], f32>
  // CHECK: mla.launch @linear_8_f32_300 grid "13"(%[[X]], %[[TALL]], %[[LIN]] : {{.*}}) scalars ["tokens"] for "layers.0.up"
  %lin = mla.linear %x, %tall : (tensor<?x8xf32>, !mla.weight<300x8xf32>) -> tensor<?x300xf32> loc("layers.0.up")

  // One launch for several weights, each beside its result; grids add up.
  // CHECK: %[[J0:.*]] = mla.workspace{{.*}} : !mla.buffer<["tokens", "300"], f32>
  // CHECK: %[[J1:.*]] = mla.workspace{{.*}} : !mla.buffer<["tokens", "8"], f32>
  // CHECK: mla.launch @linear_8_f32_300_bf16_8 grid "14"(%[[X]], %[[TALL]], %[[J0]], %[[SQUARE]], %[[J1]] : {{.*}}) scalars ["tokens"] for "mla.joined_linear"
  %joined:2 = mla.joined_linear %x, %tall, %square : (tensor<?x8xf32>, !mla.weight<300x8xf32>, !mla.weight<8x8xbf16>) -> (tensor<?x300xf32>, tensor<?x8xf32>)

  // CHECK: %[[GL:.*]] = mla.workspace
  // CHECK: mla.launch @gated_linear_{{[a-z0-9_]+}} grid "1"(%[[X]], %[[SQUARE]], %[[SQUARE]], %[[GL]] : {{.*}}) scalars ["tokens"]
  %gl = mla.gated_linear %x, %square, %square : (tensor<?x8xf32>, !mla.weight<8x8xbf16>, !mla.weight<8x8xbf16>) -> tensor<?x8xf32>
  // CHECK: %[[SW:.*]] = mla.workspace
  // CHECK: mla.launch @swiglu_8 grid "tokens"(%[[Y]], %[[LN]], %[[SW]] : {{.*}}) scalars []
  %sw = mla.swiglu %rms, %ln : tensor<?x8xf32>
  // CHECK: %[[ADD:.*]] = mla.workspace
  // CHECK: mla.launch @add_8 grid "tokens"(%[[X]], %[[SW]], %[[ADD]] : {{.*}}) scalars []
  %add = mla.add %x, %sw : tensor<?x8xf32>
  // CHECK: %[[S0:.*]] = mla.workspace{{.*}} : !mla.buffer<["tokens", "2"], f32>
  // CHECK: %[[S1:.*]] = mla.workspace{{.*}} : !mla.buffer<["tokens", "6"], f32>
  // CHECK: mla.launch @split_2_6 grid "tokens"(%[[ADD]], %[[S0]], %[[S1]] : {{.*}}) scalars []
  %split:2 = mla.split %add : (tensor<?x8xf32>) -> (tensor<?x2xf32>, tensor<?x6xf32>)

  // CHECK: %[[CS:.*]] = mla.workspace{{.*}} : !mla.buffer<["tokens", "4"], f32>
  // CHECK: mla.launch @rotary_embedding_2_{{[A-F0-9_]+}} grid "tokens"(%[[POS]], %[[CS]] : {{.*}}) scalars []
  %cs = mla.rotary_embedding %b {frequencies = array<f32: 1.0, 0.5>, factor = 1.0} : (!mla.batch) -> tensor<?x4xf32>
  // CHECK: %[[ROPE:.*]] = mla.workspace
  // CHECK: mla.launch @rope_{{[a-z0-9_]+}} grid "tokens"(%[[X]], %[[CS]], %[[ROPE]] : {{.*}}) scalars []
  %rope = mla.rope %x, %cs {head_dim = 4, offset = 0, interleaved = true} : (tensor<?x8xf32>, tensor<?x4xf32>) -> tensor<?x8xf32>

  // A written cache is the cache: it needs no memory of its own.
  // CHECK: %[[INDEX:.*]] = mla.get_cache @index : !mla.cache<index, 8xf32>
  // CHECK-NOT: mla.workspace
  // CHECK: mla.launch @cache_write_{{[a-z0-9_]+}} grid "tokens"(%[[POS]], %[[SEQ]], %[[PAGES]], %[[INDEX]], %[[S0]], %[[S1]] : {{.*}}) scalars ["pages"]
  %index0 = mla.get_cache @index : !mla.cache<index, 8xf32>
  %index = mla.cache_write %index0, %b, %split#0, %split#1 : (!mla.cache<index, 8xf32>, !mla.batch, tensor<?x2xf32>, tensor<?x6xf32>) -> !mla.cache<index, 8xf32>
  // CHECK: %[[NARROW:.*]] = mla.get_cache @narrow
  // CHECK: %[[NORM4:.*]] = mla.get_weight @norm4
  // CHECK: mla.launch @latent_cache_write_{{[A-Za-z0-9_]+}} grid "tokens"(%[[POS]], %[[SEQ]], %[[PAGES]], %[[X]], %[[NORM4]], %[[CS]], %[[NARROW]] : {{.*}}) scalars ["pages"]
  %narrow0 = mla.get_cache @narrow : !mla.cache<latent, 8xf32>
  %norm4 = mla.get_weight @norm4 : !mla.weight<4xbf16>
  %narrow = mla.latent_cache_write %x, %norm4, %cs, %narrow0, %b {eps = 0.5, interleaved = true} : (tensor<?x8xf32>, !mla.weight<4xbf16>, tensor<?x4xf32>, !mla.cache<latent, 8xf32>, !mla.batch) -> !mla.cache<latent, 8xf32>

  // CHECK: %[[Q:.*]] = mla.workspace{{.*}} : !mla.buffer<["tokens", "24"], f32>
  // CHECK: %[[W3:.*]] = mla.workspace{{.*}} : !mla.buffer<["tokens", "3"], f32>
  // CHECK: %[[W4:.*]] = mla.workspace{{.*}} : !mla.buffer<["tokens", "4"], f32>
  // CHECK: mla.launch @split_24_3_4_269
  %q, %w3, %w4, %rest = mla.split %lin : (tensor<?x300xf32>) -> (tensor<?x24xf32>, tensor<?x3xf32>, tensor<?x4xf32>, tensor<?x269xf32>)
  // CHECK: %[[CHOSEN:.*]] = mla.workspace{{.*}} : !mla.buffer<["tokens", "16"], i32>
  // CHECK: mla.launch @indexer_{{[A-Za-z0-9_]+}} grid "tokens"(%[[Q]], %[[W3]], %[[POS]], %[[SEQ]], %[[PAGES]], %[[INDEX]], %[[CHOSEN]] : {{.*}}) scalars ["pages"]
  %chosen = mla.indexer %q, %w3, %index, %b {heads = 3, topk = 16, scale = 0.25} : (tensor<?x24xf32>, tensor<?x3xf32>, !mla.cache<index, 8xf32>, !mla.batch) -> tensor<?x16xi32>

  // CHECK: %[[EXPANDED:.*]] = mla.get_cache @expanded
  %expanded = mla.get_cache @expanded : !mla.cache<expanded, 28xf32>
  // One work item a head; over the latent cache heads go in blocks.
  // CHECK: %[[A0:.*]] = mla.workspace{{.*}} : !mla.buffer<["tokens", "8"], f32>
  // CHECK: mla.launch @attention_{{[A-Z0-9_f]+}} grid "tokens * 2"(%[[Q]], %[[POS]], %[[SEQ]], %[[PAGES]], %[[EXPANDED]], %[[A0]] : {{.*}}) scalars ["pages"]
  %a0 = mla.attention %q, %expanded, %b {heads = 2, nope = 8, rope = 4, v = 4, scale = 0.25} : (tensor<?x24xf32>, !mla.cache<expanded, 28xf32>, !mla.batch) -> tensor<?x8xf32>
  // CHECK: %[[A1:.*]] = mla.workspace{{.*}} : !mla.buffer<["tokens", "8"], f32>
  // CHECK: mla.launch @attention_{{[A-Z0-9_f]+}}_selected_16 grid "tokens * 2"(%[[Q]], %[[POS]], %[[SEQ]], %[[PAGES]], %[[EXPANDED]], %[[CHOSEN]], %[[A1]] : {{.*}}) scalars ["pages"]
  %a1 = mla.attention %q, %expanded, %b selected %chosen {heads = 2, nope = 8, rope = 4, v = 4, scale = 0.25} : (tensor<?x24xf32>, !mla.cache<expanded, 28xf32>, !mla.batch, tensor<?x16xi32>) -> tensor<?x8xf32>

  // CHECK: %[[KVB:.*]] = mla.get_weight @kv_b
  %kv_b = mla.get_weight @kv_b : !mla.weight<24x16xbf16>
  // CHECK: %[[AQ:.*]] = mla.workspace{{.*}} : !mla.buffer<["tokens", "40"], f32>
  // CHECK: mla.launch @absorb_query_{{[A-Za-z0-9_]+}} grid "2"(%[[Q]], %[[KVB]], %[[CS]], %[[AQ]] : {{.*}}) scalars ["tokens"]
  %aq = mla.absorb_query %q, %kv_b, %cs {heads = 2, nope = 8, v = 4, interleaved = true} : (tensor<?x24xf32>, !mla.weight<24x16xbf16>, tensor<?x4xf32>) -> tensor<?x40xf32>
  // CHECK: %[[LATENT:.*]] = mla.get_cache @latent
  %latent = mla.get_cache @latent : !mla.cache<latent, 20xf32>
  // CHECK: %[[L0:.*]] = mla.workspace{{.*}} : !mla.buffer<["tokens", "32"], f32>
  // CHECK: mla.launch @latent_attention_{{[A-Z0-9_f]+}} grid "tokens * 1"(%[[AQ]], %[[POS]], %[[SEQ]], %[[PAGES]], %[[LATENT]], %[[L0]] : {{.*}}) scalars ["pages"]
  %l0 = mla.latent_attention %aq, %latent, %b {heads = 2, kv_lora = 16, scale = 0.25} : (tensor<?x40xf32>, !mla.cache<latent, 20xf32>, !mla.batch) -> tensor<?x32xf32>
  // CHECK: %[[L1:.*]] = mla.workspace{{.*}} : !mla.buffer<["tokens", "32"], f32>
  // CHECK: mla.launch @latent_attention_{{[A-Z0-9_f]+}}_selected_16 grid "tokens * 1"(%[[AQ]], %[[POS]], %[[SEQ]], %[[PAGES]], %[[LATENT]], %[[CHOSEN]], %[[L1]] : {{.*}}) scalars ["pages"]
  %l1 = mla.latent_attention %aq, %latent, %b selected %chosen {heads = 2, kv_lora = 16, scale = 0.25} : (tensor<?x40xf32>, !mla.cache<latent, 20xf32>, !mla.batch, tensor<?x16xi32>) -> tensor<?x32xf32>
  // CHECK: %[[EV:.*]] = mla.workspace{{.*}} : !mla.buffer<["tokens", "8"], f32>
  // CHECK: mla.launch @expand_value_{{[A-Za-z0-9_]+}} grid "2"(%[[L1]], %[[KVB]], %[[EV]] : {{.*}}) scalars ["tokens"]
  %ev = mla.expand_value %l1, %kv_b {heads = 2, nope = 8, v = 4} : (tensor<?x32xf32>, !mla.weight<24x16xbf16>) -> tensor<?x8xf32>

  %router = mla.get_weight @router : !mla.weight<4x8xbf16>
  %bias = mla.get_weight @bias : !mla.weight<4xf32>
  %gates = mla.get_weight @gates : !mla.weight<4x40x8xbf16>
  %ups = mla.get_weight @ups : !mla.weight<4x40x8xf16>
  %downs = mla.get_weight @downs : !mla.weight<4x8x40xbf16>
  %gate = mla.get_weight @gate : !mla.weight<12x8xbf16>
  %down = mla.get_weight @down : !mla.weight<8x12xbf16>
  // CHECK: %[[ROUTER:.*]] = mla.get_weight @router
  // CHECK: %[[BIAS:.*]] = mla.get_weight @bias
  // CHECK: %[[GATES:.*]] = mla.get_weight @gates
  // CHECK: %[[UPS:.*]] = mla.get_weight @ups
  // CHECK: %[[DOWNS:.*]] = mla.get_weight @downs
  // CHECK: %[[GATE:.*]] = mla.get_weight @gate
  // CHECK: %[[DOWN:.*]] = mla.get_weight @down

  // CHECK: %[[I:.*]] = mla.workspace{{.*}} : !mla.buffer<["tokens", "2"], i32>
  // CHECK: %[[W:.*]] = mla.workspace{{.*}} : !mla.buffer<["tokens", "2"], f32>
  // CHECK: mla.launch @route_sigmoid_noaux_tc_4_2_1_1_1_{{[A-F0-9]+}}_f32 grid "tokens"(%[[W4]], %[[BIAS]], %[[I]], %[[W]] : {{.*}}) scalars []
  %i, %w = mla.route %w4 bias %bias routing #routing : (tensor<?x4xf32>, !mla.weight<4xf32>) -> (tensor<?x2xi32>, tensor<?x2xf32>)

  // Work on pairs of token and choice; no more experts are in use than there are
  // pairs. 40 rows are 5 blocks.
  // CHECK: %[[MOE:.*]] = mla.workspace{{.*}} : !mla.buffer<["tokens", "8"], f32>
  // CHECK: %[[ORDER:.*]] = mla.workspace{{.*}} : !mla.buffer<["tokens * 2"], i32>
  // CHECK: %[[ACTIVE:.*]] = mla.workspace{{.*}} : !mla.buffer<["min(tokens * 2, 4)"], i32>
  // CHECK: %[[OFFSETS:.*]] = mla.workspace{{.*}} : !mla.buffer<["min(tokens * 2, 4) + 1"], i32>
  // CHECK: %[[COUNT:.*]] = mla.workspace{{.*}} : !mla.buffer<["1"], i32>
  // CHECK: mla.launch @moe_group_4_2 grid "1"(%[[I]], %[[ORDER]], %[[ACTIVE]], %[[OFFSETS]], %[[COUNT]] : {{.*}}) scalars ["tokens"]
  // CHECK: %[[H:.*]] = mla.workspace{{.*}} : !mla.buffer<["tokens * 2", "40"], f32>
  // CHECK: mla.launch @moe_gate_up_{{[a-z0-9_]+}} grid "min(tokens * 2, 4) * 5"(%[[X]], %[[ORDER]], %[[ACTIVE]], %[[OFFSETS]], %[[COUNT]], %[[GATES]], %[[UPS]], %[[H]] : {{.*}}) scalars []
  // CHECK: %[[YS:.*]] = mla.workspace{{.*}} : !mla.buffer<["tokens * 2", "8"], f32>
  // CHECK: mla.launch @moe_down_{{[a-z0-9_]+}} grid "min(tokens * 2, 4) * 1"(%[[H]], %[[ORDER]], %[[ACTIVE]], %[[OFFSETS]], %[[COUNT]], %[[DOWNS]], %[[YS]] : {{.*}}) scalars []
  // CHECK: mla.launch @moe_combine_8_2 grid "tokens"(%[[YS]], %[[W]], %[[MOE]] : {{.*}}) scalars []
  %experts = mla.experts %x, %i, %w, %gates, %ups, %downs : (tensor<?x8xf32>, tensor<?x2xi32>, tensor<?x2xf32>, !mla.weight<4x40x8xbf16>, !mla.weight<4x40x8xf16>, !mla.weight<4x8x40xbf16>) -> tensor<?x8xf32>

  // The router, then the shared expert, which the combination adds.
  // CHECK: %[[RL:.*]] = mla.workspace{{.*}} : !mla.buffer<["tokens", "4"], f32>
  // CHECK: mla.launch @linear_8_bf16_4 grid "1"(%[[X]], %[[ROUTER]], %[[RL]] : {{.*}}) scalars ["tokens"] for "mla.moe"
  // CHECK: mla.launch @route_{{[A-Za-z0-9_]+}} grid "tokens"(%[[RL]], %[[BIAS]], %[[MI:[a-z0-9]+]], %[[MW:[a-z0-9]+]] : {{.*}}) scalars [] for "mla.moe"
  // CHECK: %[[INNER:.*]] = mla.workspace{{.*}} : !mla.buffer<["tokens", "12"], f32>
  // CHECK: mla.launch @gated_linear_{{[a-z0-9_]+}} grid "2"(%[[X]], %[[GATE]], %[[GATE]], %[[INNER]] : {{.*}}) scalars ["tokens"] for "mla.moe"
  // CHECK: %[[SHARED:.*]] = mla.workspace{{.*}} : !mla.buffer<["tokens", "8"], f32>
  // CHECK: mla.launch @linear_12_bf16_8 grid "1"(%[[INNER]], %[[DOWN]], %[[SHARED]] : {{.*}}) scalars ["tokens"] for "mla.moe"
  // CHECK: mla.launch @moe_group_4_2 grid "1"(%[[MI]], {{.*}}) scalars ["tokens"] for "mla.moe"
  // CHECK: mla.launch @moe_gate_up_{{.*}} for "mla.moe"
  // CHECK: mla.launch @moe_down_{{.*}} for "mla.moe"
  // CHECK: mla.launch @moe_combine_8_2_shared grid "tokens"(%{{.*}}, %[[MW]], %[[SHARED]], %[[LAST:[a-z0-9]+]] : {{.*}}) scalars [] for "mla.moe"
  %moe = mla.moe %x, %router bias %bias experts %gates, %ups, %downs shared %gate, %gate, %down routing #routing : (tensor<?x8xf32>, !mla.weight<4x8xbf16>, !mla.weight<4xf32>, !mla.weight<4x40x8xbf16>, !mla.weight<4x40x8xf16>, !mla.weight<4x8x40xbf16>, !mla.weight<12x8xbf16>, !mla.weight<12x8xbf16>, !mla.weight<8x12xbf16>) -> tensor<?x8xf32>

  // Logits go to the port, for the tokens that want them.
  // CHECK: mla.launch @lm_head_{{[a-z0-9_]+}} grid "13"(%[[LAST]], %[[TALL]], %[[OUTS]], %[[LOGITS]] : {{.*}}) scalars ["outputs"] for "lm_head"
  // CHECK-NEXT: }
  %logits = mla.lm_head %moe, %tall, %b : (tensor<?x8xf32>, !mla.weight<300x8xf32>, !mla.batch) -> tensor<?x300xf32> loc("lm_head")
  return %logits : tensor<?x300xf32>
}

// Every kernel is a function of address table, begin and end.
// CHECK: module @kernels {
// CHECK: func.func @embedding_{{[a-z0-9_]+}}(%{{.*}}: !llvm.ptr, %{{.*}}: i64, %{{.*}}: i64) attributes {mla.access = ["read", "read", "write"], mla.scalars = 0 : i64}
// CHECK: func.func @latent_cache_write_{{.*}} attributes {mla.access = ["read", "read", "read", "read", "read", "read", "write"], mla.scalars = 1 : i64}
