//===- Driver.h - entry points of the compiler's tools ----------*- C++ -*-===//
//
// Part of mla. The mains in tools/ call these.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_DRIVER_DRIVER_H
#define MLA_DRIVER_DRIVER_H

namespace mla {

/// mla-opt: reads IR, runs passes or stages, prints IR.
int optMain(int argc, char **argv);

/// mla-compile: turns a model folder into a plan. Returns 0, 1 if compiling
/// failed, 2 if the command line is wrong.
int compileMain(int argc, char **argv);

} // namespace mla

#endif // MLA_DRIVER_DRIVER_H
