//===- ExplainText.cpp - a report as text ---------------------------------===//
//
// Part of mla. Lines of at most 100 columns; what fits no line is wrapped.
//
//===----------------------------------------------------------------------===//
#include "ExplainText.h"
#include "Explain.h"
#include "llvm/Support/FormatVariadic.h"
#include <algorithm>
#include <cmath>

using namespace mla;
using namespace mla::explain;

static constexpr unsigned lineWidth = 100;

std::string mla::explain::grouped(int64_t number) {
  std::string digits = std::to_string(number < 0 ? -number : number);
  for (size_t at = digits.size(); at > 3;)
    digits.insert(at -= 3, ",");
  return (number < 0 ? "-" : "") + digits;
}

std::string mla::explain::fixed(double number, int digits) {
  std::string text;
  llvm::raw_string_ostream(text) << llvm::format("%.*f", digits, number);
  return text;
}

std::string mla::explain::percent(double part, double whole) {
  return whole > 0 ? fixed(part / whole * 100, 0) + "%" : "";
}

void mla::explain::wrapped(llvm::raw_ostream &out, llvm::StringRef text,
                           unsigned indent, unsigned column) {
  for (bool first = true; !text.empty(); first = false) {
    auto [word, rest] = text.split(' ');
    if (!first && column + 1 + word.size() > lineWidth) {
      out << "\n";
      out.indent(indent);
      column = indent;
    } else if (!first) {
      out << ' ';
      ++column;
    }
    out << word;
    column += word.size();
    text = rest;
  }
  out << "\n";
}

void TextTable::print(llvm::raw_ostream &out, unsigned indent) const {
  std::vector<size_t> widths;
  for (const auto &row : rows)
    for (size_t i = 0; i < row.size(); ++i) {
      widths.resize(std::max(widths.size(), i + 1));
      widths[i] = std::max(widths[i], row[i].size());
    }
  for (const auto &row : rows) {
    std::string line(indent, ' ');
    for (size_t i = 0; i < row.size(); ++i) {
      std::string pad(widths[i] - row[i].size(), ' ');
      line += i == 0 ? row[i] + pad : "  " + pad + row[i];
    }
    out << llvm::StringRef(line).rtrim() << "\n";
  }
}

/// "name     text", wrapped under the text.
static void field(llvm::raw_ostream &out, llvm::StringRef name,
                  llvm::StringRef text) {
  out << name;
  out.indent(9 - std::min<size_t>(name.size(), 8));
  wrapped(out, text, 9, 9);
}

static void bullets(llvm::raw_ostream &out, llvm::ArrayRef<std::string> items) {
  for (const std::string &item : items) {
    out << "  - ";
    wrapped(out, item, 4, 4);
  }
}

static std::string modelText(const Facts &f) {
  std::string text = f.file + ": " + f.architecture + ", " +
                     std::to_string(f.layers) + " layers";
  if (f.moeLayers)
    text += " (" + std::to_string(f.denseLayers) + " dense, " +
            std::to_string(f.moeLayers) + " of " + std::to_string(f.experts) +
            " experts, top " + std::to_string(f.topk) + ")";
  text += ", hidden " + std::to_string(f.hidden) + ", " +
          std::to_string(f.heads) + " heads, latent " +
          std::to_string(f.latent) + " + " + std::to_string(f.rope) +
          ", weights " + f.weights;
  if (f.indexer)
    text += ", sparse attention to " + std::to_string(f.indexer->topk);
  return text;
}

static std::string machineText(const Machine &m) {
  std::string text = m.name + ": " + std::to_string(m.devices) + " x " +
                     m.architecture + ", " + std::to_string(m.multiprocessors) +
                     (m.isHost() ? " cores, " : " multiprocessors, ") +
                     bytesText(m.memoryBytes) + " at " +
                     fixed(m.readBytesPerSecond / 1e12, 2) + " TB/s";
  if (m.devices > 1)
    text += ", link " + m.link.kind;
  return text;
}

static std::string exchangeText(const Report &r) {
  const ExchangeCounts &e = r.exchanges;
  std::string text = grouped(e.reduces) + " reductions a step, " +
                     grouped(e.fused) + " of them with the norm behind them, " +
                     grouped(e.gathers) + (e.gathers == 1 ? " gather" : " gathers");
  if (e.merges)
    text += ", " + grouped(e.merges) + " merges of attention";
  if (e.overlaps)
    text += "; " + grouped(e.overlaps) + " of these beside other work";
  if (r.exchangeBy != ExchangeBy::Cost)
    text += std::string("; by ") +
            (r.exchangeBy == ExchangeBy::Nccl ? "NCCL" : "kernels of the plan") +
            " alone, as --collectives says";
  return text + (r.canExchange ? "" : "; no plan of this target exchanges rows");
}

static void printHead(const Report &r, llvm::raw_ostream &out) {
  field(out, "model", modelText(r.model));
  field(out, "machine", machineText(r.machine));
  std::string target = r.target;
  if (!r.hasKernels)
    target += ": no code is generated for it";
  else if (r.target == "sm_120a")
    target += ": assembled, never executed";
  target += r.ranks == 1
                ? ", one rank"
                : ", " + std::to_string(r.ranks) + " ranks, " + r.layoutName + ": " +
                      exchangeText(r);
  field(out, "target", target);
  if (!r.ranksReason.empty())
    field(out, "",
          "not " + std::to_string(r.machine.devices) +
              " ranks: " + r.ranksReason);
  for (const std::string &problem : r.problems)
    field(out, "problem", problem);
}

static void printCache(const Report &r, llvm::raw_ostream &out) {
  out << "\nLatent cache\n";
  bullets(out, r.cache.words);
  TextTable table({"format", "bytes a token", "sharded by token",
                   "tokens that fit", "taken by"});
  for (const CacheFormatOption &o : r.cache.options)
    table.add({std::string(formatName(o.format)) +
                   (o.format == r.cache.chosen && r.cache.possible ? " *" : ""),
               grouped(o.bytesPerToken), grouped(o.bytesPerToken / r.ranks),
               r.memory && !o.lowering.empty() ? grouped(o.tokensThatFit) : "",
               o.lowering.empty() ? "nothing" : o.lowering});
  table.print(out);
  if (r.memory && r.memory->pageRanks > 1)
    out << "  Each device has the rows of some tokens (--cache sharded).\n";
  else if (r.ranks > 1)
    out << "  Each device has all of it; sharded by token is what --cache sharded "
           "makes of it.\n";
}

static void printMemory(const Report &r, llvm::raw_ostream &out) {
  out << "\nMemory of each device\n";
  if (!r.memory) {
    out << "  no plan can be made, so nothing is laid out\n";
    return;
  }
  const Memory &m = *r.memory;
  std::string formats;
  for (const auto &[format, bytes] : m.weightsByFormat)
    formats += (formats.empty() ? "" : ", ") + std::string(formatName(format)) +
               " " + bytesText(bytes);
  TextTable table({"what", "bytes", ""});
  auto row = [&](const std::string &what, int64_t bytes) {
    table.add({what, grouped(std::abs(bytes)), bytesText(std::abs(bytes))});
  };
  row("all of it", m.total);
  row("reserve (driver, libraries)", m.reserved);
  row("weights", m.weights);
  row("workspace of the largest program", m.workspace);
  row("inputs and outputs of a step", m.ports);
  if (m.graphs)
    row("CUDA graphs", m.graphs);
  if (m.collectives)
    row("exchange between ranks", m.collectives);
  row(m.free < 0 ? "missing" : "left for the cache", m.free);
  table.print(out);
  out << "  weights: ";
  wrapped(out, formats, 4, 11);
  bool sharded = m.pageRanks > 1;
  std::string cache = "cache: " + grouped(m.planPerToken) + " bytes a token on " +
                      (sharded ? "the device that has it" : "each device") +
                      ", so " + grouped(m.tokens) + " tokens fit";
  if (r.ranks > 1 && m.tokens)
    cache += sharded ? " (" + grouped(m.shardedTokens / r.ranks) +
                           " if each device had all of them)"
                     : " (" + grouped(m.shardedTokens) +
                           " if they were sharded over the devices: --cache sharded)";
  out << "  ";
  wrapped(out, cache, 4, 2);
  std::string longest;
  for (const auto &[requests, context] : m.contexts)
    longest += (longest.empty() ? "longest context: " : ", ") +
               grouped(context) + " for " + grouped(requests) +
               (requests == 1 ? " request" : " requests");
  out << "  ";
  wrapped(out, longest + " (limited by memory and by " + m.contextLimit + ")",
          4, 2);
  bullets(out, m.notes);
}

static void printLayouts(const Report &r, llvm::raw_ostream &out) {
  if (r.ranks == 1)
    return;
  const LayoutReport &l = r.layouts;
  out << "\nLayout of " << r.ranks << " ranks\n  ";
  wrapped(out, r.layoutName + ": " + l.reason, 4, 2);
  if (l.rows.empty())
    return;
  std::vector<std::string> head{"ms of one token at context"};
  for (int64_t context : l.contexts)
    head.push_back(grouped(context));
  head.insert(head.end(), {"weights", "cache/token", "tokens that fit"});
  TextTable table(head);
  auto departs = [](const LayoutRow &row) {
    return llvm::StringRef(row.name).count(',') + (row.name != "tensor parallel");
  };
  // Those that differ in one thing, and the fastest; the JSON has all.
  auto mean = [](const LayoutRow &row) {
    double sum = row.seconds.empty() ? INFINITY : 0;
    for (double seconds : row.seconds)
      sum += seconds;
    return sum;
  };
  const LayoutRow &least = *std::min_element(
      l.rows.begin(), l.rows.end(),
      [&](const LayoutRow &a, const LayoutRow &b) { return mean(a) < mean(b); });
  std::vector<std::string> why;
  for (const LayoutRow &row : l.rows) {
    if (departs(row) > 1 && !row.chosen && &row != &least)
      continue;
    std::vector<std::string> cells{row.name + (row.chosen ? " *" : "")};
    for (size_t i = 0; i < l.contexts.size(); ++i)
      cells.push_back(i < row.seconds.size() ? fixed(row.seconds[i] * 1e3, 2) : "");
    bool made = !row.seconds.empty();
    cells.push_back(made ? bytesText(row.weights) : "");
    cells.push_back(made ? grouped(row.cachePerToken) : "");
    cells.push_back(row.tokens >= 0 ? grouped(row.tokens) : "");
    table.add(cells);
    if (row.chosen)
      continue;
    std::string text = row.name + ": " + row.against;
    if (!row.refusal.empty())
      text += std::string(row.against.empty() ? "" : ". ") + "Not possible: " +
              row.refusal;
    why.push_back(text);
  }
  table.print(out);
  bullets(out, why);
}

static void printSteps(const Report &r, llvm::raw_ostream &out) {
  out << "\nTime of a step (one token of each sequence, milliseconds)\n";
  TextTable table({"context", "batch", "weights", "attention", "experts",
                   "small", "gaps", "collectives", "step", "floor",
                   "tokens/s"});
  bool hasNotes = false;
  auto ms = [](double seconds) { return fixed(seconds * 1e3, 2); };
  for (const StepTime &s : r.steps) {
    hasNotes |= !s.notes.empty();
    if (!s.known) {
      table.add({grouped(s.context), grouped(s.batch), "", "", "", "", "", "",
                 "", ms(s.floor), s.notes.empty() ? "" : "!"});
      continue;
    }
    std::string collectives = ms(s.collectives);
    if (s.collectives > 0)
      collectives += " " + percent(s.collectives, s.total());
    table.add({grouped(s.context), grouped(s.batch), ms(s.weights),
               ms(s.attention), ms(s.experts), ms(s.small), ms(s.gaps),
               collectives, ms(s.total()), ms(s.floor),
               fixed(s.tokensPerSecond(), 1) + (s.notes.empty() ? "" : " !")});
  }
  table.print(out);
  if (r.ranks > 1 && !r.steps.empty() && r.hasKernels) {
    out << "\n  Reductions and gathers of a step by method\n";
    TextTable methods(
        {"context", "batch", "method", "ms", "of the step", "step", "tokens/s"});
    // They depend little on the context.
    for (const StepTime &s : r.steps)
      if (s.context == r.steps.front().context)
        for (const auto &[method, seconds] : s.methods) {
          double total = s.methodSteps.at(method);
          methods.add({grouped(s.context), grouped(s.batch), method,
                       fixed(seconds * 1e3, 2), percent(seconds, total),
                       ms(total), fixed(double(s.batch) / total, 1)});
        }
    methods.print(out, 4);
  }
  if (hasNotes) {
    // Told once each, with the steps that they are about.
    std::vector<std::pair<std::string, std::string>> notes;
    for (const StepTime &s : r.steps)
      for (const std::string &note : s.notes) {
        std::string where = grouped(s.batch) + " x " + grouped(s.context);
        auto known = std::find_if(notes.begin(), notes.end(),
                                  [&](auto &n) { return n.first == note; });
        if (known == notes.end())
          notes.push_back({note, where});
        else
          known->second += ", " + where;
      }
    for (const auto &[note, where] : notes) {
      out << "  ! ";
      wrapped(out, where + ": " + note, 4, 4);
    }
  }
  bullets(out, r.assumptions);
}

static void printOps(const Report &r, llvm::raw_ostream &out) {
  out << "\nLowerings (* is chosen; microseconds of one op at the size of the "
         "program)\n";
  for (const OpChoices &op : r.ops) {
    std::string line = grouped(op.count) + " x " + op.op;
    if (!op.shape.empty())
      line += ": " + op.shape;
    out << "  ";
    wrapped(out, line, 6, 2);
    for (const Choice &choice : op.choices) {
      out << "    " << choice.program << "\n";
      for (const Judged &c : choice.candidates) {
        std::string text = (c.chosen ? "* " : "  ") + c.lowering;
        if (c.chosen)
          text += "  " + fixed(c.seconds * 1e6, 1) + " us";
        out << "      " << text.substr(0, 2);
        wrapped(out,
                text.substr(2) + (c.reason.empty() ? ""
                                                   : "  [" + c.refusalKind +
                                                         "] " + c.reason),
                10, 8);
      }
      if (choice.candidates.empty())
        out << "        none is made for this op\n";
    }
  }
}

void mla::explain::printText(const Report &report, llvm::raw_ostream &out) {
  printHead(report, out);
  printCache(report, out);
  printMemory(report, out);
  printLayouts(report, out);
  printSteps(report, out);
  printOps(report, out);
}
