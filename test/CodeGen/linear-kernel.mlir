// RUN: mla-opt %s -mla-select-lowering -mla-lower-to-host=step-tokens=4 | FileCheck %s
// RUN: mla-opt %s -mla-select-lowering -mla-lower-to-host=step-tokens=4 | FileCheck %s --check-prefix=FLAGS

// Tests that the kernel of a linear with bf16 weights loads vectors of 16 bits,
// makes them the upper halves of f32 and multiplies and adds at once, in f32.
// CHECK: module @kernels
// CHECK: func.func @linear_64_bf16_32(%[[ARGS:.*]]: !llvm.ptr, %[[BEGIN:.*]]: i64, %[[END:.*]]: i64)
// The work items of the call, and only those.
// CHECK-DAG: %[[LOW:.*]] = arith.index_cast %[[BEGIN]] : i64 to index
// CHECK-DAG: %[[HIGH:.*]] = arith.index_cast %[[END]] : i64 to index
// CHECK: scf.for %{{.*}} = %[[LOW]] to %[[HIGH]]
// CHECK: %[[X:.*]] = vector.load %{{.*}} : memref<?xf32>, vector<8xf32>
// CHECK: %[[STORED:.*]] = vector.load %{{.*}} : memref<?xi16>, vector<8xi16>
// CHECK-NEXT: %[[WIDE:.*]] = arith.extui %[[STORED]] : vector<8xi16> to vector<8xi32>
// CHECK: %[[HALF:.*]] = arith.shli %[[WIDE]], %{{.*}} : vector<8xi32>
// CHECK-NEXT: %[[W:.*]] = arith.bitcast %[[HALF]] : vector<8xi32> to vector<8xf32>
// CHECK: math.fma %[[W]], %{{.*}}, %{{.*}} : vector<8xf32>
// CHECK: return

// Tests that no kernel lets LLVM reassociate or fuse: results must not depend
// on what the optimiser finds.
// FLAGS-NOT: fastmath
// FLAGS: module @kernels
// FLAGS-NOT: fastmath
// FLAGS-NOT: vector.reduction

mla.weight @w : !mla.weight<32x64xbf16> from "w"
mla.weight @v : !mla.weight<64x32xbf16> from "v"
func.func @step(%ids: tensor<?xi32>, %batch: !mla.batch) -> tensor<?x64xf32> {
  %w = mla.get_weight @w : !mla.weight<32x64xbf16>
  %v = mla.get_weight @v : !mla.weight<64x32xbf16>
  %x = mla.embedding %ids, %w : (tensor<?xi32>, !mla.weight<32x64xbf16>) -> tensor<?x64xf32>
  %y = mla.linear %x, %w : (tensor<?x64xf32>, !mla.weight<32x64xbf16>) -> tensor<?x32xf32>
  %z = mla.swiglu %y, %y : tensor<?x32xf32>
  %logits = mla.lm_head %z, %v, %batch : (tensor<?x32xf32>, !mla.weight<64x32xbf16>, !mla.batch) -> tensor<?x64xf32>
  return %logits : tensor<?x64xf32>
}
