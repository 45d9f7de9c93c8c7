//===- Router.h - choosing experts inside a kernel --------------*- C++ -*-===//
//
// Part of mla. What chooses a token's experts from the router's logits, for kernels
// that do this and for kernels that need the choice of their one token: there it is
// sooner made by every block than fetched from a kernel between.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_CODEGEN_NVVM_ROUTER_H
#define MLA_LIB_CODEGEN_NVVM_ROUTER_H

#include "KernelBuilder.h"
#include "Kernels.h"

namespace mla::nvvm {

/// Routing of one token by a block of any number of threads: a thread scores every
/// threads()-th expert, the first warp chooses.
class Router {
public:
  /// Reserves shared memory.
  Router(KernelBuilder &k, RoutingAttr routing, int64_t experts,
         std::optional<Format> bias);
  /// Of shared memory, with that many threads.
  static int64_t sharedBytes(RoutingAttr routing, int64_t experts,
                             int64_t threads);
  /// What a kernel's name says of them.
  static std::string name(RoutingAttr routing, int64_t experts,
                          std::optional<Format> bias);

  /// By every thread, in this order: fetch the bias (a weight, so before the wait
  /// for earlier kernels), fetch the token's logits, score (has barriers).
  void fetchBias(Ptr from);
  void fetchLogits(Ptr from);
  void score();
  /// By the first warp: the best topk, indices i32 and, unless null, weights f32, in
  /// global or shared memory. What others read of it needs a barrier.
  void choose(Ptr indices, Ptr weights);

private:
  V blockMax(V v);
  void limitGroups();

  KernelBuilder &k;
  RoutingAttr routing;
  int64_t experts, groups, perGroup;
  std::optional<Format> bias;
  bool limited;
  Vs biases, logits;            ///< of this thread's experts
  Ptr scores, choice;           ///< f32 an expert
  Ptr groupScores, keep;        ///< f32 and i32 a group
  Ptr chosen;                   ///< i32 a choice
  Ptr candidates;               ///< 32 keys, 32 numbers
  static constexpr int64_t atOnce = 16; ///< most choices that are made at once
  Ptr scratch;                  ///< f32 a warp
};

} // namespace mla::nvvm

#endif // MLA_LIB_CODEGEN_NVVM_ROUTER_H
