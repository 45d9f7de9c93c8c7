// RUN: mla-opt %s | FileCheck %s
// CHECK: module
// OTHER-NEXT: func
