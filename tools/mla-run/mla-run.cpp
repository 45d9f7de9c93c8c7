//===- mla-run.cpp - runs plans -------------------------------------------===//
//
// Part of mla. See runtime/cli for what it does.
//
//===----------------------------------------------------------------------===//
#include "runtime/cli/Commands.h"

int main(int argc, char **argv) { return mla::cli::run(argc, argv); }
