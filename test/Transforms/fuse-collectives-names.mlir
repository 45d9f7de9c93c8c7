// RUN: mla-opt %s -mla-fuse-collectives -mlir-print-debuginfo | FileCheck %s
//
// Results of an op that takes the place of others keep the names of theirs, by which
// plans are compared; it is itself named after the first.

// CHECK: mla.all_reduce_rms_norm {{.*}} loc(#[[SUM:.*]])
// CHECK: mla.all_gather {{.*}} loc(#[[BOTH:.*]])
// CHECK-DAG: #[[O:.*]] = loc("o.all_reduce")
// CHECK-DAG: #[[LAYER:.*]] = loc("layers.0")
// CHECK-DAG: #[[NORM:.*]] = loc("norm")
// CHECK-DAG: #[[P:.*]] = loc("p")
// CHECK-DAG: #[[Q:.*]] = loc("q")
// CHECK-DAG: #[[SUM]] = loc(fused<["layers.0/add:0", "norm/rms_norm:0"]>[#[[O]], #[[LAYER]], #[[NORM]]])
// CHECK-DAG: #[[BOTH]] = loc(fused<["p/all_gather:0", "q/all_gather:0"]>[#[[P]], #[[Q]]])
func.func @f(%x: tensor<?x8xf32>, %y: tensor<?x8xf32>, %h: tensor<?x8xf32>, %w: !mla.weight<8xbf16>) -> (tensor<?x8xf32>, tensor<?x8xf32>, tensor<?x16xf32>, tensor<?x16xf32>) {
  %s = mla.all_reduce %y {ranks = 2 : i64} : tensor<?x8xf32> loc("o.all_reduce")
  %a = mla.add %h, %s : tensor<?x8xf32> loc("layers.0")
  %m = mla.rms_norm %a, %w {eps = 1.0e-6} : (tensor<?x8xf32>, !mla.weight<8xbf16>) -> tensor<?x8xf32> loc("norm")
  %0 = mla.all_gather %x {ranks = 2 : i64} : (tensor<?x8xf32>) -> tensor<?x16xf32> loc("p")
  %1 = mla.all_gather %y {ranks = 2 : i64} : (tensor<?x8xf32>) -> tensor<?x16xf32> loc("q")
  return %a, %m, %0, %1 : tensor<?x8xf32>, tensor<?x8xf32>, tensor<?x16xf32>, tensor<?x16xf32>
}
