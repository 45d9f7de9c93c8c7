//===- ExplainLayouts.cpp - the layouts that were judged ------------------===//
//
// Part of mla. What each way of dividing the model takes, and in words what it
// exchanges and saves against the chosen one.
//
//===----------------------------------------------------------------------===//
#include "ExplainParts.h"
#include "ExplainText.h"
#include "llvm/ADT/StringExtras.h"
#include <cmath>

using namespace mla;
using namespace mla::explain;

/// "61 gathers more", "1 merge less", or nothing.
static void addDifference(std::vector<std::string> &parts, int64_t more,
                          const char *what) {
  if (more)
    parts.push_back(grouped(std::abs(more)) + " " + what +
                    (std::abs(more) == 1 ? "" : "s") + (more > 0 ? " more" : " fewer"));
}

static std::string ms(double seconds) { return fixed(std::abs(seconds) * 1e3, 2); }

/// What `one` does that `chosen` does not, and what comes of it.
static std::string against(const LayoutCost &one, const LayoutCost &chosen) {
  std::vector<std::string> parts;
  const ExchangeCounts &a = one.exchanges, &b = chosen.exchanges;
  addDifference(parts, a.reduces - b.reduces, "reduction");
  addDifference(parts, a.gathers - b.gathers, "gather");
  addDifference(parts, a.merges - b.merges, "merge");
  double exchange = one.exchange - chosen.exchange, work = one.work - chosen.work;
  std::string text = parts.empty() ? "the same exchanges" : llvm::join(parts, " and ");
  if (!parts.empty() || std::abs(exchange) >= 5e-6)
    text += ": " + ms(exchange) + " ms " + (exchange >= 0 ? "more" : "less");
  return text + "; kernels " + ms(work) + " ms " + (work > 0 ? "more" : "less");
}

LayoutReport mla::explain::reportLayouts(const Graph &graph, const Facts &facts,
                                         const Memory *memory) {
  LayoutReport report;
  if (graph.ranks == 1)
    return report;
  if (!graph.decision) {
    report.reason = graph.isHost()
                        ? "the host's, unless the command line says otherwise: there "
                          "are no figures for its exchanges"
                        : "the simplest, unless the command line says otherwise: there "
                          "are no kernels whose times could be compared";
    return report;
  }
  const LayoutDecision &decision = *graph.decision;
  report.reason = decision.reason;
  report.contexts = decision.contexts;
  const LayoutCost &chosen = decision.choice();
  for (const LayoutCost &one : decision.layouts) {
    LayoutRow row;
    row.name = one.name;
    row.chosen = &one == &chosen;
    row.refusal = one.refusal;
    row.seconds = one.seconds;
    row.exchanges = one.exchanges;
    row.weights = one.weightBytes;
    int64_t spread = one.layout.shardCache ? graph.ranks : 1;
    row.cachePerToken = facts.cacheBytes(graph.cache.format) / spread;
    if (!one.seconds.empty() && !row.chosen)
      row.against = against(one, chosen);
    if (memory && !one.seconds.empty())
      // The chosen one is laid out; others differ from it in their weights.
      row.tokens = spread * tokensIn(memory->free + chosen.weightBytes -
                                         one.weightBytes,
                                     memory->planPerToken);
    report.rows.push_back(std::move(row));
  }
  return report;
}
