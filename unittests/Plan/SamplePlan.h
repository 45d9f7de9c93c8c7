//===- SamplePlan.h - a small plan that uses everything ---------*- C++ -*-===//
//
// Part of mla. The plan that the tests of lib/Plan break in one place each.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_UNITTESTS_PLAN_SAMPLEPLAN_H
#define MLA_UNITTESTS_PLAN_SAMPLEPLAN_H

#include "mla/Plan/Plan.h"

namespace mla::plan {

// Indices inside samplePlan().
enum { WEmbed, WNorm, WExperts, WDown, WStack, WShard };
enum { KGather, KStore, KExperts, KNorm, KCopy, KHead, KSample, KReduce };
enum { XIn, XMoe, XOut };                                // workspaces
enum { LGather, LStore, LExperts, LNorm, LCopy, LHead, LReduce }; // launches

/// Two programs and one that samples, 4 ranks, a stacked weight, weights in parts
/// (WDown in nvfp4 with a reciprocal, WStack a stack in int4_g32), one of which each
/// rank has 3 of 10 rows, a cache, a collective, every port and every kind of
/// argument. Workspace XOut takes the place
/// of XIn once that is dead.
Plan samplePlan();

/// Makes the weights of `plan` those of a checkpoint without files.
void takeOffFiles(Plan &plan, Checkpoint::Kind kind);

/// The expression `text`, which must be valid.
Expr expr(const char *text);

} // namespace mla::plan

#endif // MLA_UNITTESTS_PLAN_SAMPLEPLAN_H
