//===- RouteTest.cpp - routers on every GPU target ------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "Harness.h"
#include "mlir/IR/Builders.h"

using namespace mla;
using namespace mla::nvvm;
using namespace mla::nvvm::test;

namespace {

struct Case {
  int64_t experts, topk, groups, topkGroups;
};

TEST(Route, Compile) {
  expectCompiles([](KernelSite site) {
    mlir::Builder b(site.kernels.getContext());
    for (Case c : {Case{384, 8, 1, 1}, {256, 8, 8, 4}, {160, 6, 8, 3},
                   {64, 6, 1, 1}, {1, 1, 1, 1}, {7, 7, 1, 1}, {12, 3, 3, 2},
                   {1024, 32, 8, 4}, {1024, 32, 64, 40}, {90, 40, 45, 33}})
      for (ScoringKind scoring : {ScoringKind::Sigmoid, ScoringKind::Softmax})
        for (TopkKind method : {TopkKind::NoAuxTc, TopkKind::Greedy,
                                TopkKind::GroupLimitedGreedy}) {
          auto routing = RoutingAttr::get(
              b.getContext(), c.topk, c.groups, c.topkGroups, scoring, method,
              /*normalize=*/scoring == ScoringKind::Sigmoid,
              b.getF64FloatAttr(2.5));
          std::optional<Format> bias;
          if (method == TopkKind::NoAuxTc)
            bias = c.experts == 160 ? Format::BF16 : Format::F32;
          route(site, routing, c.experts, bias);
        }
  });
}

} // namespace
