// RUN: mla-opt %s -verify-diagnostics -split-input-file

func.func @get_cache_c1() {
  // expected-error@+1 {{C1: no mla.cache named @kv}}
  %0 = mla.get_cache @kv : !mla.cache<latent, 12xf32>
  return
}

// -----

mla.cache @kv : !mla.cache<latent, 12xf32>
func.func @get_cache_c1_type() {
  // expected-error@+1 {{C1: expected a result of type '!mla.cache<latent, 12xf32>', found '!mla.cache<expanded, 12xf32>'}}
  %0 = mla.get_cache @kv : !mla.cache<expanded, 12xf32>
  return
}

// -----

func.func @rotary_embedding_c1(%b: !mla.batch) {
  // expected-error@+1 {{C1: expected a result row of 4, found 2}}
  %0 = mla.rotary_embedding %b {frequencies = array<f32: 1.0, 0.5>, factor = 1.0} : (!mla.batch) -> tensor<?x2xf32>
  return
}

// -----

func.func @rotary_embedding_c2(%b: !mla.batch) {
  // expected-error@+1 {{C2: expected each frequency to be positive, found 0}}
  %0 = mla.rotary_embedding %b {frequencies = array<f32: 1.0, 0.0>, factor = 1.0} : (!mla.batch) -> tensor<?x4xf32>
  return
}

// -----

func.func @rotary_embedding_c2_none(%b: !mla.batch) {
  // expected-error@+1 {{C2: expected at least one frequency, found none}}
  %0 = mla.rotary_embedding %b {frequencies = array<f32>, factor = 1.0} : (!mla.batch) -> tensor<?x0xf32>
  return
}

// -----

func.func @rope_c1(%x: tensor<?x24xf32>, %cs: tensor<?x4xf32>) {
  // expected-error@+1 {{C1: expected a head_dim that divides 24, found 10}}
  %0 = mla.rope %x, %cs {head_dim = 10, offset = 0, interleaved = true} : (tensor<?x24xf32>, tensor<?x4xf32>) -> tensor<?x24xf32>
  return
}

// -----

func.func @rope_c1_zero(%x: tensor<?x24xf32>, %cs: tensor<?x4xf32>) {
  // expected-error@+1 {{C1: expected a head_dim that divides 24, found 0}}
  %0 = mla.rope %x, %cs {head_dim = 0, offset = 0, interleaved = true} : (tensor<?x24xf32>, tensor<?x4xf32>) -> tensor<?x24xf32>
  return
}

// -----

func.func @rope_c2(%x: tensor<?x24xf32>, %cs: tensor<?x4xf32>) {
  // expected-error@+1 {{C2: expected the rotated values inside the 12 of a head, found 10 to 14}}
  %0 = mla.rope %x, %cs {head_dim = 12, offset = 10, interleaved = true} : (tensor<?x24xf32>, tensor<?x4xf32>) -> tensor<?x24xf32>
  return
}

// -----

func.func @rope_c2_negative(%x: tensor<?x24xf32>, %cs: tensor<?x4xf32>) {
  // expected-error@+1 {{C2: expected the rotated values inside the 12 of a head, found -1 to 3}}
  %0 = mla.rope %x, %cs {head_dim = 12, offset = -1, interleaved = true} : (tensor<?x24xf32>, tensor<?x4xf32>) -> tensor<?x24xf32>
  return
}

// -----

func.func @rope_c3(%x: tensor<?x24xf32>, %cs: tensor<?x4xf32>) {
  // expected-error@+1 {{C3: expected a result of type 'tensor<?x24xf32>', found 'tensor<?x12xf32>'}}
  %0 = mla.rope %x, %cs {head_dim = 12, offset = 8, interleaved = true} : (tensor<?x24xf32>, tensor<?x4xf32>) -> tensor<?x12xf32>
  return
}

// -----

func.func @cache_write_c1(%c: !mla.cache<expanded, 28xf32>, %b: !mla.batch, %kv: tensor<?x24xf32>) {
  // expected-error@+1 {{C1: expected part widths with a sum of 28, found 24}}
  %0 = mla.cache_write %c, %b, %kv : (!mla.cache<expanded, 28xf32>, !mla.batch, tensor<?x24xf32>) -> !mla.cache<expanded, 28xf32>
  return
}

// -----

func.func @cache_write_c2(%c: !mla.cache<expanded, 28xf32>, %b: !mla.batch, %kv: tensor<?x28xf32>) {
  // expected-error@+1 {{C2: expected a result of type '!mla.cache<expanded, 28xf32>', found '!mla.cache<latent, 28xf32>'}}
  %0 = mla.cache_write %c, %b, %kv : (!mla.cache<expanded, 28xf32>, !mla.batch, tensor<?x28xf32>) -> !mla.cache<latent, 28xf32>
  return
}

// -----

func.func @latent_cache_write_c1(%x: tensor<?x12xf32>, %n: !mla.weight<8xbf16>, %cs: tensor<?x4xf32>, %c: !mla.cache<expanded, 12xf32>, %b: !mla.batch) {
  // expected-error@+1 {{C1: expected a latent cache, found '!mla.cache<expanded, 12xf32>'}}
  %0 = mla.latent_cache_write %x, %n, %cs, %c, %b {eps = 1.0e-6, interleaved = true} : (tensor<?x12xf32>, !mla.weight<8xbf16>, tensor<?x4xf32>, !mla.cache<expanded, 12xf32>, !mla.batch) -> !mla.cache<expanded, 12xf32>
  return
}

// -----

func.func @latent_cache_write_c1_width(%x: tensor<?x12xf32>, %n: !mla.weight<8xbf16>, %cs: tensor<?x4xf32>, %c: !mla.cache<latent, 16xf32>, %b: !mla.batch) {
  // expected-error@+1 {{C1: expected a cache width of 12, found 16}}
  %0 = mla.latent_cache_write %x, %n, %cs, %c, %b {eps = 1.0e-6, interleaved = true} : (tensor<?x12xf32>, !mla.weight<8xbf16>, tensor<?x4xf32>, !mla.cache<latent, 16xf32>, !mla.batch) -> !mla.cache<latent, 16xf32>
  return
}

// -----

func.func @latent_cache_write_c2(%x: tensor<?x12xf32>, %n: !mla.weight<6xbf16>, %cs: tensor<?x4xf32>, %c: !mla.cache<latent, 12xf32>, %b: !mla.batch) {
  // expected-error@+1 {{C2: expected norm and rotary widths with a sum of 12, found 10}}
  %0 = mla.latent_cache_write %x, %n, %cs, %c, %b {eps = 1.0e-6, interleaved = true} : (tensor<?x12xf32>, !mla.weight<6xbf16>, tensor<?x4xf32>, !mla.cache<latent, 12xf32>, !mla.batch) -> !mla.cache<latent, 12xf32>
  return
}

// -----

func.func @latent_cache_write_c3(%x: tensor<?x12xf32>, %n: !mla.weight<8xbf16>, %cs: tensor<?x4xf32>, %c: !mla.cache<latent, 12xf32>, %b: !mla.batch) {
  // expected-error@+1 {{C3: expected a result of type '!mla.cache<latent, 12xf32>', found '!mla.cache<latent, 12xbf16>'}}
  %0 = mla.latent_cache_write %x, %n, %cs, %c, %b {eps = 1.0e-6, interleaved = true} : (tensor<?x12xf32>, !mla.weight<8xbf16>, tensor<?x4xf32>, !mla.cache<latent, 12xf32>, !mla.batch) -> !mla.cache<latent, 12xbf16>
  return
}

// -----

func.func @latent_cache_write_c3_eps(%x: tensor<?x12xf32>, %n: !mla.weight<8xbf16>, %cs: tensor<?x4xf32>, %c: !mla.cache<latent, 12xf32>, %b: !mla.batch) {
  // expected-error@+1 {{C3: expected eps to be positive, found 0}}
  %0 = mla.latent_cache_write %x, %n, %cs, %c, %b {eps = 0.0, interleaved = true} : (tensor<?x12xf32>, !mla.weight<8xbf16>, tensor<?x4xf32>, !mla.cache<latent, 12xf32>, !mla.batch) -> !mla.cache<latent, 12xf32>
  return
}

// -----

// expected-error@+1 {{C1: expected a scale with fp8_e4m3 and only with it, found none with '!mla.cache<latent, 12xfp8_e4m3>'}}
mla.cache @cache_c1 : !mla.cache<latent, 12xfp8_e4m3>

// -----

// expected-error@+1 {{C1: expected a scale with fp8_e4m3 and only with it, found one with '!mla.cache<latent, 12xbf16>'}}
mla.cache @cache_c1_bf16 : !mla.cache<latent, 12xbf16> {scale = 1.0 : f32}

// -----

// expected-error@+1 {{C1: expected a positive, finite scale, found -1.000000e+00 : f32}}
mla.cache @cache_c1_negative : !mla.cache<latent, 12xfp8_e4m3> {scale = -1.0 : f32}

// -----

// expected-error@+1 {{C1: expected a positive, finite scale, found 0x7F800000 : f32}}
mla.cache @cache_c1_infinite : !mla.cache<latent, 12xfp8_e4m3> {scale = 0x7F800000 : f32}

// -----

func.func @shard_batch_c1(%b: !mla.batch) {
  // expected-error@+1 {{C1: expected a number of ranks of at least 2, found 1}}
  %0, %1 = mla.shard_batch %b {ranks = 1 : i64}
  return
}
