//===- CollectiveLowerings.cpp - lowerings of what ranks exchange ---------===//
//
// Part of mla. An all-reduce in one step sends (ranks - 1) times the rows, with a flag
// for each 4 bytes; in two steps twice the rows without flags, but it waits twice as
// often. NCCL does either and starts later; it takes the rows in f32, twice the bytes,
// and reaches ranks that are no peers. Which is faster depends on the link: by the
// machine's figures where it has them, never by what kind of link it is.
//
//===----------------------------------------------------------------------===//
#include "CollectiveKernels.h"
#include "Lowerings.h"
#include "llvm/ADT/STLExtras.h"

using namespace mlir;
using namespace mla;
using namespace mla::nvvm;

using Needed = std::optional<Refusal>;

static int64_t ranksOf(Operation *op) {
  auto ranks = op->getAttrOfType<IntegerAttr>("ranks");
  return ranks ? ranks.getInt() : 1;
}

MergeSpec nvvm::mergeSpec(MergeAttentionOp op, Transport transport) {
  int64_t heads = int64_t(op.getHeads()) / int64_t(op.getRanks());
  MergeSpec spec{heads, rowWidth(op.getResult()) / heads};
  spec.transport = transport;
  return spec;
}

static Needed needsRanks(Operation *op) {
  if (op->hasAttr("local"))
    return Refusal{Need::Exchange,
                   "needs an exchange among ranks, found a local collective",
                   ""};
  return std::nullopt;
}

/// Kernels that write into the other ranks' memory.
static Needed needsExchange(Operation *op, const LoweringSite &site) {
  if (Needed none = needsRanks(op))
    return none;
  if (site.exchange == ExchangeBy::Nccl)
    return Refusal{Need::Exchange,
                   "needs kernels that exchange, found collectives by NCCL alone",
                   "--collectives exchange or p2p"};
  // Ranks on one device reach each other whatever its file says of a link.
  const Machine &m = site.machine();
  if (m.devices > 1 && m.link.peerAccess == false)
    return Refusal{Need::Exchange,
                   "needs access to the memory of other devices, found none on " +
                       m.name,
                   ""};
  if (ranksOf(op) > ExchangeLayout::maxRanks)
    return Refusal{Need::Exchange,
                   "needs at most " + std::to_string(ExchangeLayout::maxRanks) +
                       " ranks, found " + std::to_string(ranksOf(op)),
                   ""};
  return needsPlainWeights(op, site);
}

/// Where loads are what a link is for. Of ranks on one device nothing is known, or asked.
static Needed needsPull(Operation *op, const LoweringSite &site) {
  if (Needed none = needsExchange(op, site))
    return none;
  const Link &link = site.machine().link;
  double read = link.readBytesPerSecond, write = link.writeBytesPerSecond;
  if (site.machine().devices == 1 || read > 1.5 * write)
    return std::nullopt;
  auto text = [](double rate) {
    return std::to_string(int64_t(rate * 1e-9 + 0.5));
  };
  return Refusal{Need::Exchange,
                 "needs peers' memory that is read half as fast again as it is "
                 "written, found " +
                     text(read) + " and " + text(write) + " GB/s",
                 ""};
}

template <Transport transport>
static Needed needsMerge(Operation *op, const LoweringSite &site) {
  if (Needed lacks = needsExchange(op, site))
    return lacks;
  if (transport == Transport::Pull)
    if (Needed lacks = needsPull(op, site))
      return lacks;
  MergeSpec spec = mergeSpec(cast<MergeAttentionOp>(op), transport);
  if (canMerge({}, spec))
    return std::nullopt;
  return Refusal{Need::Shape,
                 "needs a head's values within a slot of exchange memory, found " +
                     std::to_string(spec.latent),
                 ""};
}

static Needed needsNccl(Operation *op, const LoweringSite &site) {
  if (Needed none = needsRanks(op))
    return none;
  if (site.exchange == ExchangeBy::Peers)
    return Refusal{Need::Exchange,
                   "needs NCCL, found collectives by kernels of the plan alone",
                   "--collectives exchange or nccl"};
  return needsPlainWeights(op, site);
}

//===----------------------------------------------------------------------===//
// Costs
//===----------------------------------------------------------------------===//

namespace {
/// What kernels pay for the link, in seconds.
struct LinkTerms {
  double latency; ///< of a store until a peer sees it
  double perByte; ///< of what a rank stores in other ranks' memory
  double perByteRead; ///< of what it loads from there
  /// Until all stores of a block have landed and their flag may be stored. Assumed:
  /// about two round trips of PCIe.
  static constexpr double landing = 2e-6;
  /// Begin, first loads, last stores of a kernel. Assumed.
  static constexpr double start = 3e-6;
};
} // namespace

/// Of ranks on one device, where the machine says nothing of a link: its memory.
static LinkTerms linkOf(const LoweringSite &site) {
  const Machine &m = site.machine();
  double rate = m.link.writeBytesPerSecond;
  if (rate <= 0)
    rate = std::max(m.readBytesPerSecond, 1.0);
  double read = m.link.readBytesPerSecond;
  if (read <= 0)
    read = rate;
  double latency = m.link.latencySeconds;
  return {latency > 0 ? latency : 1e-6, 1 / rate, 1 / read};
}

/// Exchanges of which all but flags are loaded: in each, stores into the own memory have
/// landed, a flag comes, and a load goes there and back.
static cost::Estimate pulled(const LoweringSite &site, int64_t exchanges,
                             double bytes);

static cost::Estimate ofLink(double seconds, double bytes,
                             const LinkTerms &link) {
  cost::Estimate e;
  e.seconds = seconds;
  e.launches = 1;
  e.bound = cost::Bound::Link;
  e.floorSeconds = std::min(seconds, bytes * link.perByte);
  return e;
}

static cost::Estimate pulled(const LoweringSite &site, int64_t exchanges,
                             double bytes) {
  LinkTerms link = linkOf(site);
  double seconds = link.start + bytes * link.perByteRead +
                   double(exchanges) * (3 * link.latency + link.landing);
  cost::Estimate e = ofLink(seconds, bytes, link);
  e.floorSeconds = std::min(seconds, bytes * link.perByteRead);
  return e;
}

/// Bytes of the rows that are reduced, as they are exchanged.
static int64_t reducedBytes(Operation *op, const cost::Step &step) {
  return step.tokens * rowWidth(op->getOperand(0)) * 2;
}

/// Whether the norm behind a sum is done with it or by a kernel of its own, not by what
/// reads the rows; see ProgramLowering::input().
static bool normsHere(Operation *op, const LoweringSite &site) {
  int64_t most = site.program.maxTokens;
  return isa<AllReduceRMSNormOp>(op) && most > 1 && most <= 64;
}

static cost::Estimate normApart(Operation *op, const LoweringSite &site,
                                const cost::Step &step) {
  if (!normsHere(op, site))
    return {};
  return site.model.rows(step.tokens, rowWidth(op->getOperand(0)) * 4 * 2);
}

static cost::Estimate oneShot(Operation *op, const LoweringSite &site,
                              const cost::Step &step) {
  int64_t bytes = reducedBytes(op, step), ranks = ranksOf(op);
  auto method = normsHere(op, site) ? cost::Collective::Fused
                                    : cost::Collective::OneShot;
  if (auto known = site.model.allReduce(method, ranks, bytes); known.ok())
    return *known;
  LinkTerms link = linkOf(site);
  double sent = double(bytes) * double(ranks - 1);
  return ofLink(link.start + link.latency + 2 * sent * link.perByte, sent, link);
}

/// Where the machine has no figures for it: it sends what NCCL's ring sends, and is
/// taken to be no faster.
static cost::Estimate twoShot(Operation *op, const LoweringSite &site,
                              const cost::Step &step) {
  int64_t bytes = reducedBytes(op, step), ranks = ranksOf(op);
  cost::Estimate norm = normApart(op, site, step);
  if (auto known = site.model.allReduce(cost::Collective::TwoShot, ranks, bytes);
      known.ok()) {
    *known += norm;
    return *known;
  }
  LinkTerms link = linkOf(site);
  double sent = 2 * double(bytes) * double(ranks - 1) / double(ranks);
  double seconds = link.start + 2 * (link.latency + link.landing) +
                   sent * link.perByte;
  if (auto ring = site.model.allReduce(cost::Collective::Nccl, ranks, bytes);
      ring.ok())
    seconds = std::max(seconds, ring->seconds);
  cost::Estimate e = ofLink(seconds, sent, link);
  e += norm;
  return e;
}

static cost::Estimate oneShotPull(Operation *op, const LoweringSite &site,
                                  const cost::Step &step) {
  double bytes = double(reducedBytes(op, step)) * double(ranksOf(op) - 1);
  cost::Estimate e = pulled(site, 1, bytes);
  e += normApart(op, site, step);
  return e;
}

static cost::Estimate twoShotPull(Operation *op, const LoweringSite &site,
                                  const cost::Step &step) {
  auto ranks = double(ranksOf(op));
  double bytes = 2 * double(reducedBytes(op, step)) * (ranks - 1) / ranks;
  cost::Estimate e = pulled(site, 2, bytes);
  e += normApart(op, site, step);
  return e;
}

/// A machine without figures: what lies between the 12.3 us of two H200 over NVLink
/// and the 19 us of eight boards on PCIe, by the steps of a ring, and its bytes.
static cost::Estimate ringOf(int64_t ranks, double sent, const LinkTerms &link,
                             double steps) {
  constexpr double ringStart = 11.2e-6, ringStep = 0.56e-6;
  return ofLink(ringStart + steps * double(ranks - 1) * ringStep +
                    sent * link.perByte,
                sent, link);
}

/// The sum in f32, then what the kernels of this plan do within theirs.
static cost::Estimate ncclReduce(Operation *op, const LoweringSite &site,
                                 const cost::Step &step) {
  int64_t width = rowWidth(op->getOperand(0)), ranks = ranksOf(op);
  int64_t bytes = step.tokens * width * 4;
  auto known = site.model.allReduce(cost::Collective::Nccl, ranks, bytes);
  cost::Estimate e =
      known.ok() ? *known
                 : ringOf(ranks, 2 * double(bytes) * double(ranks - 1) / double(ranks),
                          linkOf(site), 2);
  if (addsResidual(op))
    e += site.model.rows(step.tokens, width * 4 * 3);
  e += normApart(op, site, step);
  return e;
}

/// One after another for each operand; rows that do not stand alone are put in their
/// places behind it.
static cost::Estimate ncclGather(Operation *op, const LoweringSite &site,
                                 const cost::Step &step) {
  int64_t ranks = ranksOf(op);
  cost::Estimate sum;
  for (Value all : op->getResults()) {
    int64_t bytes = step.tokens * rowWidth(all) * 4;
    auto known = site.model.allGather(cost::Collective::Nccl, ranks, bytes);
    sum += known.ok() ? *known
                      : ringOf(ranks, double(bytes) * double(ranks - 1) / double(ranks),
                               linkOf(site), 1);
    if (step.tokens > 1)
      sum += site.model.rows(step.tokens, rowWidth(all) * 4 * 2);
  }
  return sum;
}

/// Bytes that a rank stores in others' memory, f32.
static double gatheredBytes(Operation *op, const cost::Step &step) {
  double bytes = 0;
  for (Value x : op->getOperands())
    bytes += double(rowWidth(x)) * 4;
  return bytes * double(step.tokens) * double(ranksOf(op) - 1);
}

static cost::Estimate gatherFlagged(Operation *op, const LoweringSite &site,
                                    const cost::Step &step) {
  LinkTerms link = linkOf(site);
  double sent = gatheredBytes(op, step);
  return ofLink(link.start + link.latency + 2 * sent * link.perByte, sent, link);
}

static cost::Estimate gatherBulk(Operation *op, const LoweringSite &site,
                                 const cost::Step &step) {
  LinkTerms link = linkOf(site);
  double sent = gatheredBytes(op, step);
  return ofLink(link.start + link.latency + link.landing + sent * link.perByte,
                sent, link);
}

static cost::Estimate gatherPull(Operation *op, const LoweringSite &site,
                                 const cost::Step &step) {
  return pulled(site, 1, gatheredBytes(op, step));
}

/// Bytes that a rank stores in others' memory: their heads of its rows.
template <Transport transport>
static double mergedBytes(Operation *op, const cost::Step &step) {
  MergeSpec spec = mergeSpec(cast<MergeAttentionOp>(op), transport);
  UnitShape unit{spec.format, transport};
  // Behind a head's values a unit with its lse.
  int64_t units = llvm::divideCeil(spec.latent, unit.values()) + 1;
  return double(units * unit.words() * 4 * spec.heads) * double(step.tokens) *
         double(ranksOf(op) - 1);
}

static cost::Estimate mergeFlagged(Operation *op, const LoweringSite &site,
                                   const cost::Step &step) {
  LinkTerms link = linkOf(site);
  double sent = mergedBytes<Transport::Flagged>(op, step);
  return ofLink(link.start + link.latency + 2 * sent * link.perByte, sent, link);
}

static cost::Estimate mergeBulk(Operation *op, const LoweringSite &site,
                                const cost::Step &step) {
  LinkTerms link = linkOf(site);
  double sent = mergedBytes<Transport::Bulk>(op, step);
  return ofLink(link.start + link.latency + link.landing + sent * link.perByte,
                sent, link);
}

static cost::Estimate mergePull(Operation *op, const LoweringSite &site,
                                const cost::Step &step) {
  return pulled(site, 1, mergedBytes<Transport::Pull>(op, step));
}

/// Each rank's rows are read and written, nothing else.
static cost::Estimate local(Operation *op, const LoweringSite &site,
                            const cost::Step &step) {
  int64_t bytes = 0;
  for (Value v : op->getOperands())
    bytes += rowWidth(v) * 4;
  for (Value v : op->getResults())
    bytes += rowWidth(v) * 4;
  return site.model.rows(step.tokens, bytes);
}

ArrayRef<Lowering> nvvm::collectiveLowerings() {
  static const Lowering list[] = {
      {"all_reduce_local", "mla.all_reduce", needsLocalCollective, local},
      {"all_reduce_one_shot", "mla.all_reduce", needsExchange, oneShot},
      {"all_reduce_two_shot", "mla.all_reduce", needsExchange, twoShot},
      {"all_reduce_one_shot_pull", "mla.all_reduce", needsPull, oneShotPull},
      {"all_reduce_two_shot_pull", "mla.all_reduce", needsPull, twoShotPull},
      {"all_reduce_nccl", "mla.all_reduce", needsNccl, ncclReduce},
      {"all_reduce_rms_norm_one_shot", "mla.all_reduce_rms_norm",
       needsExchange, oneShot},
      {"all_reduce_rms_norm_two_shot", "mla.all_reduce_rms_norm",
       needsExchange, twoShot},
      {"all_reduce_rms_norm_one_shot_pull", "mla.all_reduce_rms_norm", needsPull,
       oneShotPull},
      {"all_reduce_rms_norm_two_shot_pull", "mla.all_reduce_rms_norm", needsPull,
       twoShotPull},
      {"all_reduce_rms_norm_nccl", "mla.all_reduce_rms_norm", needsNccl,
       ncclReduce},
      {"all_gather_local", "mla.all_gather", needsLocalCollective, local},
      {"all_gather_flagged", "mla.all_gather", needsExchange, gatherFlagged},
      {"all_gather_bulk", "mla.all_gather", needsExchange, gatherBulk},
      {"all_gather_pull", "mla.all_gather", needsPull, gatherPull},
      {"merge_attention_local", "mla.merge_attention", needsLocalCollective, local},
      {"merge_attention_flagged", "mla.merge_attention",
       needsMerge<Transport::Flagged>, mergeFlagged},
      {"merge_attention_bulk", "mla.merge_attention", needsMerge<Transport::Bulk>,
       mergeBulk},
      {"merge_attention_pull", "mla.merge_attention", needsMerge<Transport::Pull>,
       mergePull},
      {"all_gather_nccl", "mla.all_gather", needsNccl, ncclGather},
  };
  return list;
}
