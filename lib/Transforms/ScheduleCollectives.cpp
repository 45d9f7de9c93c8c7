//===- ScheduleCollectives.cpp - other work while ranks exchange ----------===//
//
// Part of mla. A stable list schedule of a block: of the ops whose operands are
// there it takes the next exchange, else one that no exchange on its way feeds,
// else the first in the order of before. Blocks are a model's step, about a
// thousand ops, so quadratic loops are cheap.
//
//===----------------------------------------------------------------------===//
#include "Collectives.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "llvm/ADT/BitVector.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/SmallSet.h"

using namespace mlir;
using namespace mla;

bool mla::isExchange(Operation *op) {
  return isa<AllReduceOp, AllGatherOp, AllReduceRMSNormOp>(op) &&
         !op->hasAttr("local");
}

bool mla::isName(Operation *op) { return isa<GetWeightOp, GetCacheOp>(op); }

Operation *mla::workBefore(Operation *op) {
  do {
    op = op->getPrevNode();
  } while (op && isName(op));
  return op;
}

Operation *mla::workAfter(Operation *op) {
  do {
    op = op->getNextNode();
  } while (op && isName(op));
  return op;
}

//===----------------------------------------------------------------------===//
// What has to stay before what
//===----------------------------------------------------------------------===//

static bool isWrite(Operation *op) {
  return isa<CacheWriteOp, LatentCacheWriteOp>(op);
}

/// The declared cache that `value` is a state of; null if that is not known.
static StringAttr cacheOf(Value value) {
  while (Operation *op = value.getDefiningOp()) {
    if (auto get = dyn_cast<GetCacheOp>(op))
      return get.getNameAttr().getAttr();
    if (auto write = dyn_cast<CacheWriteOp>(op))
      value = write.getCache();
    else if (auto write = dyn_cast<LatentCacheWriteOp>(op))
      value = write.getCache();
    else
      break;
  }
  return {};
}

namespace {
/// Who read and wrote a cache so far.
struct CacheUse {
  std::optional<unsigned> write; ///< the last
  SmallVector<unsigned> reads;   ///< since then
};
} // namespace

Dependences::Dependences(Block &block) {
  for (Operation &op : block.without_terminator())
    if (!isName(&op))
      order.push_back(&op);
  llvm::DenseMap<Operation *, unsigned> number;
  for (auto [i, op] : llvm::enumerate(order))
    number[op] = i;
  edges.resize(order.size());

  // Of a cache that is not known anything may be true: it is any of them.
  llvm::MapVector<StringAttr, CacheUse> caches;
  std::optional<unsigned> barrier; // The last op with other effects.
  for (auto [i, op] : llvm::enumerate(order)) {
    llvm::SmallSet<unsigned, 8> before;
    if (barrier)
      before.insert(*barrier);
    // Ops with regions use what their bodies do.
    op->walk([&](Operation *inner) {
      for (Value operand : inner->getOperands())
        if (Operation *def = operand.getDefiningOp();
            def && number.contains(def) && def != op)
          before.insert(number[def]);
    });
    bool writes = isWrite(op);
    if (!writes && !isMemoryEffectFree(op)) {
      for (unsigned j = barrier.value_or(0); j < i; ++j)
        before.insert(j);
      barrier = i;
    }
    for (Value operand : op->getOperands()) {
      if (!isa<CacheType>(operand.getType()))
        continue;
      StringAttr name = cacheOf(operand);
      caches.try_emplace(name);
      for (auto &[other, use] : caches) {
        if (other != name && other && name)
          continue;
        if (use.write && *use.write != i)
          before.insert(*use.write);
        if (writes)
          for (unsigned read : use.reads)
            if (read != i)
              before.insert(read);
      }
      CacheUse &use = caches[name];
      if (!writes) {
        use.reads.push_back(i);
        continue;
      }
      use.write = i;
      use.reads.clear();
    }
    edges[i].append(before.begin(), before.end());
  }
}

//===----------------------------------------------------------------------===//
// The schedule
//===----------------------------------------------------------------------===//

namespace {
class Schedule {
public:
  explicit Schedule(const Dependences &dependences);

  /// The new order, as numbers of the old one.
  SmallVector<unsigned> run();

private:
  std::optional<unsigned> nextExchange() const;
  bool isReady(unsigned op) const;
  unsigned choose() const;
  void put(unsigned op);

  const Dependences &dependences;
  unsigned size;
  llvm::BitVector exchange; ///< which ops are
  /// Of each op all that it needs, directly or not.
  SmallVector<llvm::BitVector> needs;
  llvm::BitVector done;
  llvm::BitVector open; ///< exchanges that are done, and none of their users
};
} // namespace

Schedule::Schedule(const Dependences &dependences)
    : dependences(dependences), size(dependences.ops().size()), exchange(size),
      needs(size, llvm::BitVector(size)), done(size), open(size) {
  for (unsigned i = 0; i < size; ++i) {
    exchange[i] = isExchange(dependences.ops()[i]);
    for (unsigned before : dependences.before(i)) {
      needs[i].set(before);
      needs[i] |= needs[before];
    }
  }
}

std::optional<unsigned> Schedule::nextExchange() const {
  for (unsigned i : exchange.set_bits())
    if (!done[i])
      return i;
  return std::nullopt;
}

bool Schedule::isReady(unsigned op) const {
  return !done[op] && llvm::all_of(dependences.before(op),
                                   [&](unsigned i) { return done[i]; });
}

unsigned Schedule::choose() const {
  std::optional<unsigned> next = nextExchange();
  // From 0, the best, to 3.
  std::optional<std::pair<unsigned, unsigned>> best;
  for (unsigned i = 0; i < size; ++i) {
    if (!isReady(i))
      continue;
    unsigned rank = exchange[i]                     ? 0
                    : needs[i].anyCommon(open)      ? 3
                    : next && needs[*next].test(i) ? 1
                                                    : 2;
    if (!best || rank < best->first)
      best = std::pair(rank, i);
  }
  // Something is ready, since the old order is one of those that there can be.
  return best->second;
}

void Schedule::put(unsigned op) {
  done.set(op);
  for (unsigned before : dependences.before(op))
    open.reset(before);
  if (exchange[op])
    open.set(op);
}

SmallVector<unsigned> Schedule::run() {
  SmallVector<unsigned> order;
  while (order.size() < size) {
    order.push_back(choose());
    put(order.back());
  }
  return order;
}

/// The numbers of ops between an exchange and the first that needs it, in an order.
static llvm::BitVector covered(const Dependences &dependences,
                               ArrayRef<unsigned> order) {
  llvm::BitVector found(order.size()), open(order.size());
  for (unsigned op : order) {
    for (unsigned before : dependences.before(op))
      open.reset(before);
    if (isExchange(dependences.ops()[op]))
      open.set(op);
    else if (open.any())
      found.set(op);
  }
  return found;
}

int64_t mla::overlapExchanges(Block &block) {
  Dependences dependences(block);
  ArrayRef<Operation *> ops = dependences.ops();
  auto old = llvm::to_vector(llvm::seq<unsigned>(0, ops.size()));
  if (llvm::none_of(ops, isExchange))
    return 0;
  SmallVector<unsigned> order = Schedule(dependences).run();
  if (order == old)
    return 0;

  // Names go before the first that uses them, where import put them.
  Operation *end = block.getTerminator();
  llvm::SmallPtrSet<Operation *, 16> placed;
  for (unsigned i : order) {
    SmallVector<Operation *> names;
    ops[i]->walk([&](Operation *inner) {
      for (Value operand : inner->getOperands())
        if (Operation *def = operand.getDefiningOp();
            def && isName(def) && def->getBlock() == &block &&
            placed.insert(def).second)
          names.push_back(def);
    });
    for (Operation *name : names)
      name->moveBefore(end);
    ops[i]->moveBefore(end);
  }
  llvm::BitVector before = covered(dependences, old);
  llvm::BitVector moved = covered(dependences, order);
  moved.reset(before);
  return moved.count();
}
