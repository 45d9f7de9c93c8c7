//===- Explain.h - what a compile would choose, and why ---------*- C++ -*-===//
//
// Part of mla. The report of --explain and the two of --compare. It is built as
// one structure and printed as text or as JSON (docs/explain.md), so that both
// say the same. No weights are read: headers at most, and nothing is emitted.
//
// Seconds, bytes and bytes a token are of one device unless a name says more.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_DRIVER_EXPLAIN_H
#define MLA_LIB_DRIVER_EXPLAIN_H

#include "ExchangeCounts.h"
#include "mla/Config/ModelConfig.h"
#include "mla/Driver/Compile.h"
#include "mla/Machine/Machine.h"
#include "llvm/Support/Error.h"
#include "llvm/Support/raw_ostream.h"
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace mla::explain {

struct Options {
  CompileOptions compile; ///< model, target, cache format, bounds of a step
  /// None: as many as the machine has devices, or fewer if the model cannot be
  /// shared among these.
  std::optional<int64_t> ranks;
  std::vector<int64_t> contexts{0, 32768,
                                131072};  ///< tokens behind each new one
  std::vector<int64_t> batches{1, 8, 64}; ///< sequences, one token each
};

//===--- The model
//-----------------------------------------------------------===//

struct Facts {
  std::string file, architecture, weights; ///< weights: "nvfp4", "as stored"
  int64_t layers = 0, denseLayers = 0, moeLayers = 0, predictionLayers = 0;
  int64_t hidden = 0, vocabulary = 0, positions = 0;
  int64_t heads = 0, latent = 0, rope = 0, nope = 0, value = 0;
  std::optional<int64_t> queryRank;
  int64_t experts = 0, topk = 0, sharedExperts = 0, expertWidth = 0;
  int64_t denseWidth = 0, groups = 1, topkGroups = 1;
  struct Indexer {
    int64_t heads, headDim, topk, fullLayers;
  };
  std::optional<Indexer> indexer;

  /// Bytes of a token's latents in `format`, of all layers.
  int64_t cacheBytes(Format format) const;
  /// Bytes of a token's index keys, of all layers that run the indexer: FP8
  /// with one f32 scale, as published engines keep them.
  int64_t indexBytes() const;
};
Facts factsOf(const ModelConfig &config);

//===--- The latent cache
//----------------------------------------------------===//

struct CacheFormatOption {
  Format format;
  std::string lowering; ///< of attention, "" if none takes it
  std::string refusal;  ///< why none does
  int64_t bytesPerToken = 0;
  int64_t tokensThatFit = 0;
};

struct CacheDecision {
  std::optional<Format> asked; ///< by the checkpoint
  std::string askedBy;         ///< file and pointer
  Format chosen = Format::F32; ///< wanted, unless it is possible
  std::string chosenBy; ///< "--kv-cache-dtype", "the checkpoint", "the default"
  bool possible = true; ///< whether the target takes it
  std::vector<CacheFormatOption> options;
  std::vector<std::string> words; ///< the decision in sentences
};

//===--- Lowerings
//-----------------------------------------------------------===//

struct Judged {
  std::string lowering;
  bool chosen = false;
  double seconds = -1;     ///< of one op; below 0: not known
  std::string refusalKind; ///< "instruction", ..., "" if it was not refused
  std::string reason;      ///< why it was not chosen
};

/// The candidates of one kind of program.
struct Choice {
  std::string program; ///< "one token"
  std::vector<Judged> candidates;
};

/// Equal ops: the same op, shapes and formats.
struct OpChoices {
  std::string op, shape, first; ///< first: where the first of them is
  int64_t count = 0;
  std::vector<Choice> choices; ///< equal ones of several programs are one
};

//===--- Memory
//--------------------------------------------------------------===//

struct Memory {
  int64_t total = 0, reserved = 0;
  std::vector<std::pair<Format, int64_t>> weightsByFormat; ///< before padding
  int64_t weights = 0;
  std::vector<std::pair<std::string, int64_t>> workspaces; ///< by program
  int64_t workspace = 0;                                   ///< of the largest
  int64_t ports = 0, graphs = 0, collectives = 0;
  int64_t latentPerToken = 0; ///< on a device that has the token
  int64_t indexPerToken = 0;  ///< of sparse attention, where it is needed
  int64_t planPerToken = 0;   ///< of the plan's caches
  int64_t free = 0;           ///< for the cache; below 0: what is missing
  int64_t pageRanks = 1;      ///< devices that tokens are divided among, or 1
  int64_t tokens = 0;         ///< that fit, in whole pages, with the layout
  int64_t shardedTokens = 0;  ///< if tokens are divided among the devices
  /// Requests, and the longest context that each may have.
  std::vector<std::pair<int64_t, int64_t>> contexts;
  std::string contextLimit; ///< what else limits a context
  std::vector<std::string> notes;
};

//===--- Time
//----------------------------------------------------------------===//

/// A step of one token each of `batch` sequences.
struct StepTime {
  int64_t context = 0, batch = 1;
  std::string program;
  bool known = true;    ///< false: no kernels, only bytes and floor are
  double weights = 0;   ///< linears, head, kv_b
  double attention = 0; ///< scores, values, combining, indexer
  double experts = 0;   ///< router, choice, experts
  double small = 0;     ///< norms, cache writes, embedding, sums
  double gaps = 0;      ///< between launches
  double collectives = 0; ///< that the step is longer for them
  double collectivesFloor = 0; ///< their bytes over the link's rate
  std::string method;          ///< of the collectives
  /// Each known one's collectives, and the step with it: fused ones do what small
  /// kernels do otherwise.
  std::map<std::string, double> methods, methodSteps;
  double weightBytes = 0, cacheBytes = 0;
  double floor = 0; ///< bytes over the read ceiling
  int64_t launches = 0;
  std::string bound;              ///< the largest part
  std::vector<std::string> notes; ///< why it cannot run, what was assumed

  double total() const {
    return weights + attention + experts + small + gaps + collectives;
  }
  double tokensPerSecond() const { return batch / total(); }
};

//===--- Layouts
//---------------------------------------------------------------===//

/// One way of dividing the model among the ranks.
struct LayoutRow {
  std::string name;
  bool chosen = false;
  std::string refusal;         ///< why it cannot be chosen
  std::string against;         ///< what it exchanges and saves against the chosen one
  std::vector<double> seconds; ///< of steps of one token, at the contexts
  ExchangeCounts exchanges;
  int64_t weights = 0;         ///< bytes of a rank
  int64_t cachePerToken = 0;   ///< bytes on each rank, of a sharded cache on average
  int64_t tokens = -1;         ///< that fit; below 0: not known
};

struct LayoutReport {
  std::string reason; ///< of the choice; "" for one rank
  std::vector<int64_t> contexts;
  std::vector<LayoutRow> rows; ///< none where nothing is chosen by cost
};

//===--- All of it
//-----------------------------------------------------------===//

struct Report {
  Facts model;
  Machine machine;
  std::string target;
  bool hasKernels = true; ///< code is generated for the target
  int64_t ranks = 1;
  std::string ranksReason; ///< why fewer than there are devices
  ExchangeCounts exchanges; ///< of a step
  std::string layoutName;   ///< "experts tp8, latent projections sharded, ..."
  bool canExchange = true;  ///< a plan of this target
  ExchangeBy exchangeBy = ExchangeBy::Cost; ///< --collectives
  LayoutReport layouts;
  CacheDecision cache;
  std::vector<OpChoices> ops;
  std::vector<std::string> problems; ///< why no plan can be made
  std::optional<Memory> memory;      ///< none: it could not be laid out
  std::vector<StepTime> steps;
  std::vector<std::string> assumptions; ///< of the times
};

/// Errors are those of a compile: a model that cannot be read or shared. What
/// the target cannot do is part of the report.
llvm::Expected<Report> explainModel(const Options &options,
                                    llvm::raw_ostream &err);

void printText(const Report &report, llvm::raw_ostream &out);
void printJson(const Report &report, llvm::raw_ostream &out);

/// Two reports of one machine side by side.
struct Comparison {
  Report a, b;
  std::vector<std::string> conclusions;
};
Comparison compare(Report a, Report b);
void printText(const Comparison &comparison, llvm::raw_ostream &out);
void printJson(const Comparison &comparison, llvm::raw_ostream &out);

} // namespace mla::explain

#endif // MLA_LIB_DRIVER_EXPLAIN_H
