//===- mla-opt.cpp - runs passes on IR ------------------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "mla/Driver/Driver.h"

int main(int argc, char **argv) { return mla::optMain(argc, argv); }
