//===- mla-compile.cpp - from a model folder to a plan --------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "mla/Driver/Driver.h"

int main(int argc, char **argv) { return mla::compileMain(argc, argv); }
