// RUN: mla-opt %s
// CHECK: module
