//===- MoEKernels.cpp - routers and experts -------------------------------===//
//
// Part of mla. Experts run in grouped form: (token, choice) pairs are sorted
// by expert, then a work item is a block of rows of one expert, over all pairs
// of that expert. So every chosen expert's weights are read once a step, for
// one token as for many; experts that nobody chose cost nothing.
//
//===----------------------------------------------------------------------===//
#include "KernelSupport.h"

using namespace mlir;

namespace mla::host {

//===----------------------------------------------------------------------===//
// Router
//===----------------------------------------------------------------------===//

/// Index of the largest of `count` values (ties: lowest). NaN never wins, so
/// the result is always in range.
static V argmax(KernelBuilder &k, Mem values, int64_t count) {
  V low = k.f32(-std::numeric_limits<double>::infinity());
  return k.loop(k.index(0), k.index(count), 1, {k.index(0), low},
                [&](V i, ArrayRef<V> best) {
                  V v = k.load(values, i);
                  V wins = v > best[1];
                  return SmallVector<V>{k.select(wins, i, best[0]),
                                        k.select(wins, v, best[1])};
                })[0];
}

/// scores[e] = sigmoid or softmax of the logits.
static void emitScores(KernelBuilder &k, RoutingAttr routing, Mem logits, V at,
                       int64_t experts, Mem scores) {
  auto each = [&](function_ref<void(V)> body) {
    k.loop(k.index(0), k.index(experts), 1, body);
  };
  if (routing.getScoring() == ScoringKind::Sigmoid) {
    each([&](V e) {
      k.store(scores, e, k.sigmoid(k.load(logits, at + e)));
    });
    return;
  }
  V maximum =
      k.loop(k.index(1), k.index(experts), 1, {k.load(logits, at)},
             [&](V e, ArrayRef<V> m) {
               return SmallVector<V>{
                   k.maximum(m[0], k.load(logits, at + e))};
             })[0];
  V sum = k.loop(k.index(0), k.index(experts), 1, {k.f32(0)},
                 [&](V e, ArrayRef<V> acc) {
                   V p = k.exp(k.load(logits, at + e) - maximum);
                   k.store(scores, e, p);
                   return SmallVector<V>{acc[0] + p};
                 })[0];
  each([&](V e) { k.store(scores, e, k.load(scores, e) / sum); });
}

/// Masks the experts of all but the best groups with -inf.
static void emitGroupLimit(KernelBuilder &k, RoutingAttr routing,
                           int64_t experts, Mem choice, Mem groupScores,
                           Mem keep) {
  int64_t groups = routing.getGroups(), perGroup = experts / groups;
  V low = k.f32(-std::numeric_limits<double>::infinity());
  bool bestTwo = routing.getMethod() == TopkKind::NoAuxTc;
  k.loop(k.index(0), k.index(groups), 1, [&](V g) {
    auto best = k.loop(
        k.index(0), k.index(perGroup), 1, {low, low},
        [&](V i, ArrayRef<V> top) {
          V v = k.load(choice, g * perGroup + i);
          V first = v > top[0], second = v > top[1];
          return SmallVector<V>{
              k.select(first, v, top[0]),
              k.select(first, top[0], k.select(second, v, top[1]))};
        });
    k.store(groupScores, g, bestTwo ? best[0] + best[1] : best[0]);
    k.store(keep, g, k.index(0));
  });
  k.loop(k.index(0), k.index(routing.getTopkGroups()), 1, [&](V) {
    V g = argmax(k, groupScores, groups);
    k.store(keep, g, k.index(1));
    k.store(groupScores, g, low);
  });
  k.loop(k.index(0), k.index(experts), 1, [&](V e) {
    V kept = k.load(keep, e / perGroup) == 1;
    k.store(choice, e, k.select(kept, k.load(choice, e), low));
  });
}

std::string route(KernelSite site, RoutingAttr routing, int64_t experts,
                  std::optional<Format> bias) {
  int64_t topk = routing.getTopk(), groups = routing.getGroups();
  double scale = routing.getScale().getValueAsDouble();
  std::string name = "route_" + stringifyScoringKind(routing.getScoring()).str() +
                     "_" + stringifyTopkKind(routing.getMethod()).str();
  for (int64_t n : {experts, topk, groups, routing.getTopkGroups(),
                    int64_t(routing.getNormalize())})
    name += "_" + std::to_string(n);
  name += "_" + llvm::utohexstr(llvm::bit_cast<uint64_t>(scale));
  if (bias)
    name += "_" + nameOf(*bias);
  SmallVector<StringRef> access{"read", "write", "write"};
  if (bias)
    access.insert(access.begin(), "read");
  return kernelOnce(site, name, access, 0, [&](KernelBuilder &k) {
    Mem logits = k.buffer(0, Format::F32);
    Mem biases = bias ? k.buffer(1, *bias) : Mem();
    Mem indices = k.buffer(access.size() - 2, Format::I32);
    Mem weights = k.buffer(access.size() - 1, Format::F32);
    Mem scores = k.scratch(experts, Format::F32);
    Mem choice = k.scratch(experts, Format::F32);
    Mem groupScores = k.scratch(groups, Format::F32);
    Mem keep = k.scratch(groups, Format::I32);
    V low = k.f32(-std::numeric_limits<double>::infinity());
    k.items([&](V t) {
      emitScores(k, routing, logits, t * experts, experts, scores);
      k.loop(k.index(0), k.index(experts), 1, [&](V e) {
        V v = k.load(scores, e);
        k.store(choice, e, bias ? v + k.load(biases, e) : v);
      });
      if (groups > 1 && routing.getMethod() != TopkKind::Greedy)
        emitGroupLimit(k, routing, experts, choice, groupScores, keep);
      V sum = k.loop(k.index(0), k.index(topk), 1, {k.f32(0)},
                     [&](V j, ArrayRef<V> acc) {
                       V e = argmax(k, choice, experts);
                       V w = k.load(scores, e);
                       k.store(choice, e, low);
                       k.store(indices, t * topk + j, e);
                       k.store(weights, t * topk + j, w);
                       return SmallVector<V>{acc[0] + w};
                     })[0];
      k.loop(k.index(0), k.index(topk), 1, [&](V j) {
        V w = k.load(weights, t * topk + j);
        if (routing.getNormalize())
          w = w / (sum + k.f32(1e-20));
        k.store(weights, t * topk + j, w * k.f32(scale));
      });
    });
  });
}

//===----------------------------------------------------------------------===//
// Experts
//===----------------------------------------------------------------------===//

std::string moeGroup(KernelSite site, int64_t experts, int64_t topk,
                     bool part) {
  std::string name =
      "moe_group_" + std::to_string(experts) + "_" + std::to_string(topk);
  if (part)
    name += "_part";
  return kernelOnce(
      site, name, {"read", "write", "write", "write", "write"}, 1 + part,
      [&](KernelBuilder &k) {
        Mem indices = k.buffer(0, Format::I32), order = k.buffer(1, Format::I32);
        Mem active = k.buffer(2, Format::I32);
        Mem offsets = k.buffer(3, Format::I32);
        Mem count = k.buffer(4, Format::I32);
        V pairs = k.scalar(0) * topk;
        Mem cursor = k.scratch(experts, Format::I32);
        // The expert of pair p, if the rank has it.
        auto expertOf = [&](V p, function_ref<void(V)> body) {
          V e = k.load(indices, p);
          if (!part)
            return body(e);
          e = e - k.scalar(1);
          k.when(e >= k.index(0), [&] { k.when(e < experts, [&] { body(e); }); });
        };
        k.items([&](V) {
          k.fill(cursor, k.index(0), experts);
          k.loop(k.index(0), pairs, 1, [&](V p) {
            expertOf(p, [&](V e) {
              k.store(cursor, e, k.load(cursor, e) + 1);
            });
          });
          auto end = k.loop(
              k.index(0), k.index(experts), 1, {k.index(0), k.index(0)},
              [&](V e, ArrayRef<V> state) {
                V slot = state[0], start = state[1];
                V chosen = k.load(cursor, e);
                V some = chosen > k.index(0);
                k.when(some, [&] {
                  k.store(active, slot, e);
                  k.store(offsets, slot, start);
                });
                k.store(cursor, e, start);
                return SmallVector<V>{k.select(some, slot + 1, slot),
                                      start + chosen};
              });
          k.store(offsets, end[0], end[1]);
          k.store(count, k.index(0), end[0]);
          // Pairs of an expert stay in the order of the tokens.
          k.loop(k.index(0), pairs, 1, [&](V p) {
            expertOf(p, [&](V e) {
              V at = k.load(cursor, e);
              k.store(order, at, p);
              k.store(cursor, e, at + 1);
            });
          });
        });
      });
}

namespace {
/// The pairs of the expert in an active slot.
struct Slot {
  V expert, low, high;
};
} // namespace

/// Calls `body` with slot and block of a work item, if the slot is in use.
static void forSlot(KernelBuilder &k, V item, int64_t blocks, Mem active,
                    Mem offsets, Mem count, function_ref<void(Slot, V)> body) {
  V slot = item / blocks, block = item % blocks;
  k.when(slot < k.load(count, k.index(0)), [&] {
    body({k.load(active, slot), k.load(offsets, slot),
          k.load(offsets, slot + 1)},
         block);
  });
}

std::string moeGateUp(KernelSite site, MatrixShape gate, Format up,
                      int64_t topk) {
  std::string name = "moe_gate_up_" + nameOf(gate.format) + "_" + nameOf(up) +
                     "_" + std::to_string(gate.rows) + "x" +
                     std::to_string(gate.columns) + "_" + std::to_string(topk);
  SmallVector<StringRef> access(8, "read");
  access.back() = "write";
  return kernelOnce(site, name, access, 0, [&](KernelBuilder &k) {
    Mem x = k.buffer(0, Format::F32), order = k.buffer(1, Format::I32);
    Mem active = k.buffer(2, Format::I32), offsets = k.buffer(3, Format::I32);
    Mem count = k.buffer(4, Format::I32), h = k.buffer(7, Format::F32);
    k.items([&](V item) {
      forSlot(k, item, rowBlocks(gate.rows), active, offsets, count,
              [&](Slot slot, V block) {
                Matrix g = k.matrix(5, gate, slot.expert);
                Matrix u = k.matrix(6, {up, gate.rows, gate.columns},
                                    slot.expert);
                auto [low, high] = blockRows(k, block, gate.rows);
                auto xAt = [&](V p) {
                  return k.load(order, p) / topk * gate.columns;
                };
                auto emit = [&](V p, V r, ArrayRef<V> v) {
                  k.store(h, p * gate.rows + r, k.silu(v[0]) * v[1]);
                };
                rowProduct(k, {x, xAt, {g, u}, {}, emit}, low, high, slot.low,
                           slot.high);
              });
    });
  });
}

std::string moeDown(KernelSite site, MatrixShape down) {
  std::string name = "moe_down_" + nameOf(down.format) + "_" +
                     std::to_string(down.rows) + "x" +
                     std::to_string(down.columns);
  SmallVector<StringRef> access(7, "read");
  access.back() = "write";
  return kernelOnce(site, name, access, 0, [&](KernelBuilder &k) {
    Mem h = k.buffer(0, Format::F32), order = k.buffer(1, Format::I32);
    Mem active = k.buffer(2, Format::I32), offsets = k.buffer(3, Format::I32);
    Mem count = k.buffer(4, Format::I32), y = k.buffer(6, Format::F32);
    k.items([&](V item) {
      forSlot(k, item, rowBlocks(down.rows), active, offsets, count,
              [&](Slot slot, V block) {
                Matrix w = k.matrix(5, down, slot.expert);
                auto [low, high] = blockRows(k, block, down.rows);
                auto xAt = [&](V p) { return p * down.columns; };
                auto emit = [&](V p, V r, ArrayRef<V> v) {
                  k.store(y, k.load(order, p) * down.rows + r, v[0]);
                };
                rowProduct(k, {h, xAt, {w}, {}, emit}, low, high, slot.low,
                           slot.high);
              });
    });
  });
}

std::string moeCombine(KernelSite site, int64_t width, int64_t topk,
                       bool shared, int64_t part) {
  std::string name = "moe_combine_" + std::to_string(width) + "_" +
                     std::to_string(topk) + (shared ? "_shared" : "");
  if (part)
    name += "_part" + std::to_string(part);
  SmallVector<StringRef> access(3 + shared + (part != 0), "read");
  access.back() = "write";
  return kernelOnce(site, name, access, part != 0, [&](KernelBuilder &k) {
    Mem y = k.buffer(0, Format::F32), weights = k.buffer(1, Format::F32);
    Mem extra = shared ? k.buffer(2, Format::F32) : Mem();
    Mem indices = part ? k.buffer(2 + shared, Format::I32) : Mem();
    Mem out = k.buffer(access.size() - 1, Format::F32);
    int64_t n = lanesFor(width);
    k.items([&](V t) {
      k.loop(k.index(0), k.index(width), n, [&](V c) {
        V sum = k.zeros(n);
        for (int64_t j = 0; j < topk; ++j) {
          V pair = t * topk + j, weight = k.load(weights, pair);
          V row = k.loadVector(y, pair * width + c, n);
          if (part) {
            V e = k.load(indices, pair) - k.scalar(0);
            row = k.select(e >= k.index(0),
                           k.select(e < part, row, k.zeros(n)), k.zeros(n));
          }
          sum = k.fma(k.splat(weight, n), row, sum);
        }
        if (shared)
          sum = sum + k.loadVector(extra, t * width + c, n);
        k.storeVector(out, t * width + c, sum);
      });
    });
  });
}

} // namespace mla::host
