//===- mla-quantize.cpp - a model folder in other formats -----------------===//
//
// Part of mla. See runtime/quantize for what it does.
//
//===----------------------------------------------------------------------===//
#include "runtime/quantize/Quantize.h"

int main(int argc, char **argv) { return mla::quantize::run(argc, argv); }
