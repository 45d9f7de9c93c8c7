// RUN: mla-opt %s -verify-diagnostics -split-input-file

func.func @attention_c1(%q: tensor<?x20xf32>, %c: !mla.cache<expanded, 28xf32>, %b: !mla.batch) {
  // expected-error@+1 {{C1: expected a q row of 24, found 20}}
  %0 = mla.attention %q, %c, %b {heads = 2, nope = 8, rope = 4, v = 4, scale = 0.25} : (tensor<?x20xf32>, !mla.cache<expanded, 28xf32>, !mla.batch) -> tensor<?x8xf32>
  return
}

// -----

func.func @attention_c1_negative(%q: tensor<?x24xf32>, %c: !mla.cache<expanded, 28xf32>, %b: !mla.batch) {
  // expected-error@+1 {{C1: expected heads of at least 1, found -2}}
  %0 = mla.attention %q, %c, %b {heads = -2, nope = -8, rope = -4, v = 4, scale = 0.25} : (tensor<?x24xf32>, !mla.cache<expanded, 28xf32>, !mla.batch) -> tensor<?x8xf32>
  return
}

// -----

func.func @attention_c2(%q: tensor<?x24xf32>, %c: !mla.cache<expanded, 24xf32>, %b: !mla.batch) {
  // expected-error@+1 {{C2: expected a cache width of 28, found 24}}
  %0 = mla.attention %q, %c, %b {heads = 2, nope = 8, rope = 4, v = 4, scale = 0.25} : (tensor<?x24xf32>, !mla.cache<expanded, 24xf32>, !mla.batch) -> tensor<?x8xf32>
  return
}

// -----

func.func @attention_c2_kind(%q: tensor<?x24xf32>, %c: !mla.cache<latent, 28xf32>, %b: !mla.batch) {
  // expected-error@+1 {{C2: expected a cache of kind expanded, found '!mla.cache<latent, 28xf32>'}}
  %0 = mla.attention %q, %c, %b {heads = 2, nope = 8, rope = 4, v = 4, scale = 0.25} : (tensor<?x24xf32>, !mla.cache<latent, 28xf32>, !mla.batch) -> tensor<?x8xf32>
  return
}

// -----

func.func @attention_c3(%q: tensor<?x24xf32>, %c: !mla.cache<expanded, 28xf32>, %b: !mla.batch) {
  // expected-error@+1 {{C3: expected a result row of 8, found 16}}
  %0 = mla.attention %q, %c, %b {heads = 2, nope = 8, rope = 4, v = 4, scale = 0.25} : (tensor<?x24xf32>, !mla.cache<expanded, 28xf32>, !mla.batch) -> tensor<?x16xf32>
  return
}

// -----

func.func @absorb_query_c1(%q: tensor<?x24xf32>, %w: !mla.weight<16x16xbf16>, %cs: tensor<?x4xf32>) {
  // expected-error@+1 {{C1: expected kv_b rows of 24, found 16}}
  %0 = mla.absorb_query %q, %w, %cs {heads = 2, nope = 8, v = 4, interleaved = true} : (tensor<?x24xf32>, !mla.weight<16x16xbf16>, tensor<?x4xf32>) -> tensor<?x40xf32>
  return
}

// -----

func.func @absorb_query_c1_rank(%q: tensor<?x24xf32>, %w: !mla.weight<24xbf16>, %cs: tensor<?x4xf32>) {
  // expected-error@+1 {{C1: expected kv_b rank of 2, found 1}}
  %0 = mla.absorb_query %q, %w, %cs {heads = 2, nope = 8, v = 4, interleaved = true} : (tensor<?x24xf32>, !mla.weight<24xbf16>, tensor<?x4xf32>) -> tensor<?x40xf32>
  return
}

// -----

func.func @absorb_query_c1_zero(%q: tensor<?x24xf32>, %w: !mla.weight<24x16xbf16>, %cs: tensor<?x4xf32>) {
  // expected-error@+1 {{C1: expected nope of at least 1, found 0}}
  %0 = mla.absorb_query %q, %w, %cs {heads = 2, nope = 0, v = 12, interleaved = true} : (tensor<?x24xf32>, !mla.weight<24x16xbf16>, tensor<?x4xf32>) -> tensor<?x40xf32>
  return
}

// -----

func.func @absorb_query_c2(%q: tensor<?x16xf32>, %w: !mla.weight<24x16xbf16>, %cs: tensor<?x4xf32>) {
  // expected-error@+1 {{C2: expected a q row of 24, found 16}}
  %0 = mla.absorb_query %q, %w, %cs {heads = 2, nope = 8, v = 4, interleaved = true} : (tensor<?x16xf32>, !mla.weight<24x16xbf16>, tensor<?x4xf32>) -> tensor<?x40xf32>
  return
}

// -----

func.func @absorb_query_c3(%q: tensor<?x24xf32>, %w: !mla.weight<24x16xbf16>, %cs: tensor<?x4xf32>) {
  // expected-error@+1 {{C3: expected a result row of 40, found 32}}
  %0 = mla.absorb_query %q, %w, %cs {heads = 2, nope = 8, v = 4, interleaved = true} : (tensor<?x24xf32>, !mla.weight<24x16xbf16>, tensor<?x4xf32>) -> tensor<?x32xf32>
  return
}

// -----

func.func @latent_attention_c1(%q: tensor<?x40xf32>, %c: !mla.cache<index, 20xf32>, %b: !mla.batch) {
  // expected-error@+1 {{C1: expected a cache of kind latent, found '!mla.cache<index, 20xf32>'}}
  %0 = mla.latent_attention %q, %c, %b {heads = 2, kv_lora = 16, scale = 0.25} : (tensor<?x40xf32>, !mla.cache<index, 20xf32>, !mla.batch) -> tensor<?x32xf32>
  return
}

// -----

func.func @latent_attention_c1_width(%q: tensor<?x40xf32>, %c: !mla.cache<latent, 20xf32>, %b: !mla.batch) {
  // expected-error@+1 {{C1: expected a cache wider than kv_lora 20, found 20}}
  %0 = mla.latent_attention %q, %c, %b {heads = 2, kv_lora = 20, scale = 0.25} : (tensor<?x40xf32>, !mla.cache<latent, 20xf32>, !mla.batch) -> tensor<?x40xf32>
  return
}

// -----

func.func @latent_attention_c1_heads(%q: tensor<?x40xf32>, %c: !mla.cache<latent, 20xf32>, %b: !mla.batch) {
  // expected-error@+1 {{C1: expected heads of at least 1, found 0}}
  %0 = mla.latent_attention %q, %c, %b {heads = 0, kv_lora = 16, scale = 0.25} : (tensor<?x40xf32>, !mla.cache<latent, 20xf32>, !mla.batch) -> tensor<?x32xf32>
  return
}

// -----

func.func @latent_attention_c2(%q: tensor<?x36xf32>, %c: !mla.cache<latent, 20xf32>, %b: !mla.batch) {
  // expected-error@+1 {{C2: expected a q row of 40, found 36}}
  %0 = mla.latent_attention %q, %c, %b {heads = 2, kv_lora = 16, scale = 0.25} : (tensor<?x36xf32>, !mla.cache<latent, 20xf32>, !mla.batch) -> tensor<?x32xf32>
  return
}

// -----

func.func @latent_attention_c3(%q: tensor<?x40xf32>, %c: !mla.cache<latent, 20xf32>, %b: !mla.batch) {
  // expected-error@+1 {{C3: expected a result row of 32, found 16}}
  %0 = mla.latent_attention %q, %c, %b {heads = 2, kv_lora = 16, scale = 0.25} : (tensor<?x40xf32>, !mla.cache<latent, 20xf32>, !mla.batch) -> tensor<?x16xf32>
  return
}

// -----

func.func @expand_value_c1(%x: tensor<?x32xf32>, %w: !mla.weight<20x16xbf16>) {
  // expected-error@+1 {{C1: expected kv_b rows of 24, found 20}}
  %0 = mla.expand_value %x, %w {heads = 2, nope = 8, v = 4} : (tensor<?x32xf32>, !mla.weight<20x16xbf16>) -> tensor<?x8xf32>
  return
}

// -----

func.func @expand_value_c1_rank(%x: tensor<?x32xf32>, %w: !mla.weight<2x24x16xbf16>) {
  // expected-error@+1 {{C1: expected kv_b rank of 2, found 3}}
  %0 = mla.expand_value %x, %w {heads = 2, nope = 8, v = 4} : (tensor<?x32xf32>, !mla.weight<2x24x16xbf16>) -> tensor<?x8xf32>
  return
}

// -----

func.func @expand_value_c1_negative(%x: tensor<?x32xf32>, %w: !mla.weight<24x16xbf16>) {
  // expected-error@+1 {{C1: expected v of at least 1, found -4}}
  %0 = mla.expand_value %x, %w {heads = 2, nope = 16, v = -4} : (tensor<?x32xf32>, !mla.weight<24x16xbf16>) -> tensor<?x8xf32>
  return
}

// -----

func.func @expand_value_c2(%x: tensor<?x16xf32>, %w: !mla.weight<24x16xbf16>) {
  // expected-error@+1 {{C2: expected an x row of 32, found 16}}
  %0 = mla.expand_value %x, %w {heads = 2, nope = 8, v = 4} : (tensor<?x16xf32>, !mla.weight<24x16xbf16>) -> tensor<?x8xf32>
  return
}

// -----

func.func @expand_value_c3(%x: tensor<?x32xf32>, %w: !mla.weight<24x16xbf16>) {
  // expected-error@+1 {{C3: expected a result row of 8, found 16}}
  %0 = mla.expand_value %x, %w {heads = 2, nope = 8, v = 4} : (tensor<?x32xf32>, !mla.weight<24x16xbf16>) -> tensor<?x16xf32>
  return
}

// -----

func.func @indexer_c1(%q: tensor<?x16xf32>, %w: tensor<?x3xf32>, %c: !mla.cache<index, 8xf32>, %b: !mla.batch) {
  // expected-error@+1 {{C1: expected a q row of 24, found 16}}
  %0 = mla.indexer %q, %w, %c, %b {heads = 3, topk = 16, scale = 0.25} : (tensor<?x16xf32>, tensor<?x3xf32>, !mla.cache<index, 8xf32>, !mla.batch) -> tensor<?x16xi32>
  return
}

// -----

func.func @indexer_c1_kind(%q: tensor<?x24xf32>, %w: tensor<?x3xf32>, %c: !mla.cache<latent, 8xf32>, %b: !mla.batch) {
  // expected-error@+1 {{C1: expected a cache of kind index, found '!mla.cache<latent, 8xf32>'}}
  %0 = mla.indexer %q, %w, %c, %b {heads = 3, topk = 16, scale = 0.25} : (tensor<?x24xf32>, tensor<?x3xf32>, !mla.cache<latent, 8xf32>, !mla.batch) -> tensor<?x16xi32>
  return
}

// -----

func.func @indexer_c2(%q: tensor<?x24xf32>, %w: tensor<?x4xf32>, %c: !mla.cache<index, 8xf32>, %b: !mla.batch) {
  // expected-error@+1 {{C2: expected a weights row of 3, found 4}}
  %0 = mla.indexer %q, %w, %c, %b {heads = 3, topk = 16, scale = 0.25} : (tensor<?x24xf32>, tensor<?x4xf32>, !mla.cache<index, 8xf32>, !mla.batch) -> tensor<?x16xi32>
  return
}

// -----

func.func @indexer_c3(%q: tensor<?x24xf32>, %w: tensor<?x3xf32>, %c: !mla.cache<index, 8xf32>, %b: !mla.batch) {
  // expected-error@+1 {{C3: expected a result row of 16, found 8}}
  %0 = mla.indexer %q, %w, %c, %b {heads = 3, topk = 16, scale = 0.25} : (tensor<?x24xf32>, tensor<?x3xf32>, !mla.cache<index, 8xf32>, !mla.batch) -> tensor<?x8xi32>
  return
}

// -----

func.func @indexer_c3_zero(%q: tensor<?x24xf32>, %w: tensor<?x3xf32>, %c: !mla.cache<index, 8xf32>, %b: !mla.batch) {
  // expected-error@+1 {{C3: expected a topk of at least 1, found 0}}
  %0 = mla.indexer %q, %w, %c, %b {heads = 3, topk = 0, scale = 0.25} : (tensor<?x24xf32>, tensor<?x3xf32>, !mla.cache<index, 8xf32>, !mla.batch) -> tensor<?x0xi32>
  return
}

// -----

func.func @latent_attention_c4(%q: tensor<?x40xf32>, %c: !mla.cache<latent, 20xf32>, %b: !mla.batch) {
  // expected-error@+1 {{C4: expected an lse row of 2, found 16}}
  %0, %1 = mla.latent_attention %q, %c, %b {heads = 2, kv_lora = 16, scale = 0.25} : (tensor<?x40xf32>, !mla.cache<latent, 20xf32>, !mla.batch) -> (tensor<?x32xf32>, tensor<?x16xf32>)
  return
}

// -----

func.func @latent_attention_c4_selected(%q: tensor<?x40xf32>, %c: !mla.cache<latent, 20xf32>, %b: !mla.batch, %s: tensor<?x16xi32>) {
  // expected-error@+1 {{C4: expected no lse with selected positions}}
  %0, %1 = mla.latent_attention %q, %c, %b selected %s {heads = 2, kv_lora = 16, scale = 0.25} : (tensor<?x40xf32>, !mla.cache<latent, 20xf32>, !mla.batch, tensor<?x16xi32>) -> (tensor<?x32xf32>, tensor<?x2xf32>)
  return
}

// -----

func.func @merge_attention_c1(%x: tensor<?x32xf32>, %l: tensor<?x2xf32>) {
  // expected-error@+1 {{C1: expected a number of ranks of at least 2, found 1}}
  %0 = mla.merge_attention %x, %l {heads = 2, ranks = 1} : (tensor<?x32xf32>, tensor<?x2xf32>) -> tensor<?x32xf32>
  return
}

// -----

func.func @merge_attention_c2(%x: tensor<?x32xf32>, %l: tensor<?x4xf32>) {
  // expected-error@+1 {{C2: expected heads that 3 ranks divide, found 4}}
  %0 = mla.merge_attention %x, %l {heads = 4, ranks = 3} : (tensor<?x32xf32>, tensor<?x4xf32>) -> tensor<?x16xf32>
  return
}

// -----

func.func @merge_attention_c2_heads(%x: tensor<?x32xf32>, %l: tensor<?x4xf32>) {
  // expected-error@+1 {{C2: expected heads of at least 1, found -2}}
  %0 = mla.merge_attention %x, %l {heads = -2, ranks = 2} : (tensor<?x32xf32>, tensor<?x4xf32>) -> tensor<?x16xf32>
  return
}

// -----

func.func @merge_attention_c2_lse(%x: tensor<?x32xf32>, %l: tensor<?x2xf32>) {
  // expected-error@+1 {{C2: expected an lse row of 4, found 2}}
  %0 = mla.merge_attention %x, %l {heads = 4, ranks = 2} : (tensor<?x32xf32>, tensor<?x2xf32>) -> tensor<?x16xf32>
  return
}

// -----

func.func @merge_attention_c3(%x: tensor<?x32xf32>, %l: tensor<?x4xf32>) {
  // expected-error@+1 {{C3: expected a result row of 16, found 8}}
  %0 = mla.merge_attention %x, %l {heads = 4, ranks = 2} : (tensor<?x32xf32>, tensor<?x4xf32>) -> tensor<?x8xf32>
  return
}

// -----

func.func @merge_attention_c3_heads(%x: tensor<?x34xf32>, %l: tensor<?x4xf32>) {
  // expected-error@+1 {{C3: expected an x row of 4 heads, found 34}}
  %0 = mla.merge_attention %x, %l {heads = 4, ranks = 2} : (tensor<?x34xf32>, tensor<?x4xf32>) -> tensor<?x17xf32>
  return
}
