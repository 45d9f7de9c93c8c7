// RUN: mla-opt %s | FileCheck %s
// RUN: mla-opt %s | \
// RUN:   FileCheck --check-prefixes=A,B %s
// CHECK-LABEL: module
// A: module
// B-NEXT: module
