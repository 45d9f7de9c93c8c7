//===- Compare.cpp - two models on one machine ----------------------------===//
//
// Part of mla. --compare: what two models have in common and what not, and what
// that means for whoever wants to use the tuning of one for the other. All
// sentences follow from the figures; no model is known by name.
//
//===----------------------------------------------------------------------===//
#include "ExplainJson.h"
#include "ExplainText.h"
#include <algorithm>

using namespace mla;
using namespace mla::explain;

/// Differences below this are none to a tuning.
static constexpr double alike = 0.05;

static bool isAlike(double a, double b) {
  return std::abs(a - b) <= alike * std::max(std::abs(a), std::abs(b));
}

/// "27% more", "14% less", of b against a.
static std::string difference(double a, double b) {
  double ratio = a > 0 ? b / a - 1 : 0;
  return fixed(std::abs(ratio) * 100, 0) + (ratio > 0 ? "% more" : "% less");
}

/// The parts of a step that shapes of matrices decide.
static int64_t headsOf(const Report &r) { return r.model.heads / r.ranks; }

static void compareAttention(const Report &a, const Report &b,
                             std::vector<std::string> &out) {
  const Facts &x = a.model, &y = b.model;
  bool sameRow = x.latent == y.latent && x.rope == y.rope;
  bool sameHeads = headsOf(a) == headsOf(b);
  bool sameFormat = a.cache.chosen == b.cache.chosen;
  if (sameRow && sameHeads && sameFormat)
    out.push_back("Decode attention is the same kernel: rows of " +
                  std::to_string(x.latent + x.rope) + " in " +
                  std::string(formatName(a.cache.chosen)) + ", " +
                  std::to_string(headsOf(a)) +
                  " heads a device. Its tuning carries over as it is.");
  else
    out.push_back("Decode attention differs: rows of " +
                  std::to_string(x.latent + x.rope) + " in " +
                  std::string(formatName(a.cache.chosen)) + " and " +
                  std::to_string(headsOf(a)) + " heads a device in A, " +
                  std::to_string(y.latent + y.rope) + " in " +
                  std::string(formatName(b.cache.chosen)) + " and " +
                  std::to_string(headsOf(b)) + " in B" +
                  (sameRow && sameFormat ? "; the rows are alike, so what "
                                           "bounds it by memory carries over, "
                                           "what depends on heads does not."
                                         : ": measure it anew."));
  if (x.indexer.has_value() != y.indexer.has_value()) {
    const Report &sparse = x.indexer ? a : b;
    const char *which = x.indexer ? "A" : "B", *other = x.indexer ? "B" : "A";
    out.push_back(std::string("Beyond ") + grouped(sparse.model.indexer->topk) +
                  " tokens " + which + " attends to " +
                  grouped(sparse.model.indexer->topk) + " chosen ones, " +
                  other +
                  " to all: nothing that was tuned for long contexts carries "
                  "over. " +
                  which + " reads " + grouped(sparse.model.indexBytes()) +
                  " bytes of index keys for each token behind it.");
  } else if (x.indexer && x.indexer->fullLayers != y.indexer->fullLayers) {
    out.push_back("Both are sparse, but the indexer runs in " +
                  std::to_string(x.indexer->fullLayers) + " layers of A and " +
                  std::to_string(y.indexer->fullLayers) + " of B.");
  }
}

static void compareExperts(const Report &a, const Report &b,
                           std::vector<std::string> &out) {
  const Facts &x = a.model, &y = b.model;
  if (!x.moeLayers || !y.moeLayers)
    return;
  int64_t rowsA = x.expertWidth / a.ranks, rowsB = y.expertWidth / b.ranks;
  std::string shapes = std::to_string(rowsA) + " x " +
                       std::to_string(x.hidden) + " a rank in A, " +
                       std::to_string(rowsB) + " x " +
                       std::to_string(y.hidden) + " in B";
  if (rowsA == rowsB && x.hidden == y.hidden && x.topk == y.topk &&
      x.weights == y.weights)
    out.push_back("Experts of one token are the same kernel: " +
                  std::to_string(x.topk) + " matrices of " + shapes + ".");
  else
    out.push_back(
        "Experts differ: " + shapes + ", top " + std::to_string(x.topk) +
        " and " + std::to_string(y.topk) + ", weights " + x.weights + " and " +
        y.weights +
        (x.weights == y.weights && rowsA == rowsB && x.topk == y.topk
             ? ": the same kernel with another length of rows, so choices of "
               "tiles carry over, split counts are to be measured."
             : ": measure them anew."));
  if (x.experts != y.experts)
    out.push_back("For batches, " + std::to_string(x.experts) +
                  " experts against " + std::to_string(y.experts) +
                  ": the same batch is spread over more of them in " +
                  (x.experts > y.experts ? "A" : "B") +
                  ", which reads more weights a step until all are in use.");
  if (x.groups != y.groups)
    out.push_back("The router chooses among " + std::to_string(x.groups) +
                  " groups in A and " + std::to_string(y.groups) +
                  " in B: the choice of experts is another kernel.");
}

static void compareCollectives(const Report &a, const Report &b,
                               std::vector<std::string> &out) {
  if (a.ranks == 1 && b.ranks == 1)
    return;
  std::string text = "Reductions: " + std::to_string(a.exchanges.reduces) +
                     " a step of " + grouped(2 * a.model.hidden) +
                     " bytes a token in A, " + std::to_string(b.exchanges.reduces) +
                     " of " + grouped(2 * b.model.hidden) + " in B.";
  if (!a.steps.empty() && !b.steps.empty() && a.steps[0].known &&
      b.steps[0].known && a.steps[0].collectives > 0 &&
      b.steps[0].collectives > 0) {
    double shareA = a.steps[0].collectives / a.steps[0].total();
    double shareB = b.steps[0].collectives / b.steps[0].total();
    double perA = a.steps[0].collectives / double(a.exchanges.reduces);
    double perB = b.steps[0].collectives / double(b.exchanges.reduces);
    text += " They are " + percent(shareA, 1) +
            " of a step of one token in A "
            "and " +
            percent(shareB, 1) + " in B, " + fixed(perA * 1e6, 1) + " and " +
            fixed(perB * 1e6, 1) + " us each" +
            (isAlike(perA, perB)
                 ? ": tuning of them carries over, and is worth " +
                       difference(double(a.exchanges.reduces), double(b.exchanges.reduces)) +
                       " in B."
                 : ": the sizes cost different times, so where methods cross "
                   "is to be measured.");
  }
  out.push_back(text);
}

static void compareSteps(const Report &a, const Report &b,
                         std::vector<std::string> &out) {
  for (const StepTime &x : a.steps)
    for (const StepTime &y : b.steps) {
      if (x.context != y.context || x.batch != y.batch || x.batch != 1 ||
          !x.known || !y.known)
        continue;
      std::string text = "At context " + grouped(x.context) +
                         " one request "
                         "gets " +
                         fixed(x.tokensPerSecond(), 0) +
                         " tokens/s from A and " +
                         fixed(y.tokensPerSecond(), 0) +
                         " from B; most of "
                         "the step is " +
                         x.bound +
                         (x.bound == y.bound ? std::string(" in both.")
                                             : " in A and " + y.bound +
                                                   " in B: another thing to "
                                                   "tune first.");
      out.push_back(text);
    }
}

Comparison mla::explain::compare(Report a, Report b) {
  Comparison c{std::move(a), std::move(b), {}};
  compareAttention(c.a, c.b, c.conclusions);
  compareExperts(c.a, c.b, c.conclusions);
  compareCollectives(c.a, c.b, c.conclusions);
  const Facts &x = c.a.model, &y = c.b.model;
  if (x.layers != y.layers)
    c.conclusions.push_back("A has " + std::to_string(x.layers) +
                            " layers, B " + std::to_string(y.layers) + " (" +
                            difference(double(x.layers), double(y.layers)) +
                            "): what a layer saves counts accordingly.");
  if ((x.predictionLayers > 0) != (y.predictionLayers > 0))
    c.conclusions.push_back(
        std::string(x.predictionLayers ? "A" : "B") +
        " has a layer that predicts further tokens, " +
        (x.predictionLayers ? "B" : "A") +
        " has none: figures with such drafts say nothing of the other.");
  compareSteps(c.a, c.b, c.conclusions);
  return c;
}

//===----------------------------------------------------------------------===//
// Text
//===----------------------------------------------------------------------===//

static std::string layersText(const Facts &f) {
  return std::to_string(f.layers) + " (" + std::to_string(f.denseLayers) +
         " dense)";
}

static void printShapes(const Comparison &c, llvm::raw_ostream &out) {
  TextTable table({"", "A", "B"});
  auto row = [&](const char *what, auto value) {
    std::string a = value(c.a), b = value(c.b);
    table.add({what + std::string(a == b ? "" : " *"), a, b});
  };
  auto number = [&](const char *what, int64_t Facts::*member) {
    row(what, [=](const Report &r) { return grouped(r.model.*member); });
  };
  row("layers", [](const Report &r) { return layersText(r.model); });
  number("hidden size", &Facts::hidden);
  number("vocabulary", &Facts::vocabulary);
  number("positions", &Facts::positions);
  number("heads", &Facts::heads);
  row("latent + rotary", [](const Report &r) {
    return std::to_string(r.model.latent) + " + " +
           std::to_string(r.model.rope);
  });
  row("head: key, value", [](const Report &r) {
    return std::to_string(r.model.nope) + ", " + std::to_string(r.model.value);
  });
  row("rank of queries", [](const Report &r) {
    return r.model.queryRank ? grouped(*r.model.queryRank)
                             : std::string("none");
  });
  number("experts", &Facts::experts);
  number("experts a token", &Facts::topk);
  number("shared experts", &Facts::sharedExperts);
  number("width of an expert", &Facts::expertWidth);
  number("width of a dense MLP", &Facts::denseWidth);
  row("groups of the router", [](const Report &r) {
    return r.model.groups == 1 ? std::string("none")
                               : std::to_string(r.model.topkGroups) + " of " +
                                     std::to_string(r.model.groups);
  });
  row("weights", [](const Report &r) { return r.model.weights; });
  row("sparse attention", [](const Report &r) {
    return r.model.indexer
               ? "to " + grouped(r.model.indexer->topk) + ", indexer in " +
                     std::to_string(r.model.indexer->fullLayers)
               : std::string("none");
  });
  number("prediction layers", &Facts::predictionLayers);
  table.print(out);
}

static void printCosts(const Comparison &c, llvm::raw_ostream &out) {
  out << "\n  On the machine\n";
  TextTable table({"", "A", "B"});
  auto row = [&](const std::string &what, auto value) {
    table.add({what, value(c.a), value(c.b)});
  };
  row("ranks", [](const Report &r) { return std::to_string(r.ranks); });
  row("latent cache",
      [](const Report &r) { return std::string(formatName(r.cache.chosen)); });
  row("  bytes a token and device", [](const Report &r) {
    return grouped(r.model.cacheBytes(r.cache.chosen));
  });
  row("  and of index keys",
      [](const Report &r) { return grouped(r.model.indexBytes()); });
  row("weights a device", [](const Report &r) {
    return r.memory ? bytesText(r.memory->weights) : std::string("unknown");
  });
  row("tokens that fit", [](const Report &r) {
    return r.memory ? grouped(r.memory->tokens) : std::string("unknown");
  });
  row("reductions a step",
      [](const Report &r) { return std::to_string(r.exchanges.reduces); });
  for (const StepTime &s : c.a.steps) {
    auto same = [&](const Report &r) -> const StepTime * {
      for (const StepTime &t : r.steps)
        if (t.context == s.context && t.batch == s.batch)
          return &t;
      return nullptr;
    };
    std::string what = grouped(s.batch) + " x context " + grouped(s.context);
    row(what + ", read", [&](const Report &r) {
      const StepTime *t = same(r);
      return t ? bytesText(t->weightBytes + t->cacheBytes)
               : std::string("left out");
    });
    row("  tokens/s, share of collectives, most", [&](const Report &r) {
      const StepTime *t = same(r);
      if (!t || !t->known)
        return std::string("unknown");
      return fixed(t->tokensPerSecond(), 1) + ", " +
             (t->collectives > 0 ? percent(t->collectives, t->total()) : "0%") +
             ", " + t->bound + (t->notes.empty() ? "" : " !");
    });
  }
  table.print(out);
}

void mla::explain::printText(const Comparison &c, llvm::raw_ostream &out) {
  out << "A  " << c.a.model.file << " (" << c.a.model.architecture << ")\n"
      << "B  " << c.b.model.file << " (" << c.b.model.architecture << ")\n"
      << "on " << c.a.machine.name << "; * differs\n";
  printShapes(c, out);
  printCosts(c, out);
  out << "\n  ! does not fit, or no plan does it yet; --explain has the "
         "reasons and assumptions\n\nWhat that means for a tuning\n";
  for (const std::string &text : c.conclusions) {
    out << "  - ";
    wrapped(out, text, 4, 4);
  }
}

void mla::explain::printJson(const Comparison &c, llvm::raw_ostream &out) {
  llvm::json::OStream json(out, 1);
  json.object([&] {
    json.attribute("version", explainVersion);
    json.attributeObject("a", [&] { writeReport(json, c.a); });
    json.attributeObject("b", [&] { writeReport(json, c.b); });
    json.attributeArray("conclusions", [&] {
      for (const std::string &text : c.conclusions)
        json.value(text);
    });
  });
  out << "\n";
}
