//===- ExplainJson.cpp - a report as JSON ---------------------------------===//
//
// Part of mla. docs/explain.md describes it. Keys stand in the order of the
// text.
//
//===----------------------------------------------------------------------===//
#include "ExplainJson.h"
#include "ExplainText.h"

using namespace mla;
using namespace mla::explain;
using llvm::json::OStream;

/// Names of files may be anything; JSON is UTF-8.
static std::string text(llvm::StringRef value) {
  return llvm::json::isUTF8(value) ? value.str() : llvm::json::fixUTF8(value);
}

static llvm::StringRef name(Format format) { return formatName(format); }

static void strings(OStream &json, llvm::StringRef key,
                    llvm::ArrayRef<std::string> values) {
  json.attributeArray(key, [&] {
    for (const std::string &value : values)
      json.value(text(value));
  });
}

static void writeFacts(OStream &json, const Facts &f) {
  json.attribute("file", text(f.file));
  json.attribute("architecture", text(f.architecture));
  json.attribute("weights", f.weights);
  json.attribute("layers", f.layers);
  json.attribute("dense_layers", f.denseLayers);
  json.attribute("expert_layers", f.moeLayers);
  json.attribute("prediction_layers", f.predictionLayers);
  json.attribute("hidden_size", f.hidden);
  json.attribute("vocabulary", f.vocabulary);
  json.attribute("positions", f.positions);
  json.attribute("heads", f.heads);
  json.attribute("latent", f.latent);
  json.attribute("rope", f.rope);
  json.attribute("nope", f.nope);
  json.attribute("value", f.value);
  if (f.queryRank)
    json.attribute("query_rank", *f.queryRank);
  json.attribute("experts", f.experts);
  json.attribute("top_k", f.topk);
  json.attribute("shared_experts", f.sharedExperts);
  json.attribute("expert_width", f.expertWidth);
  json.attribute("dense_width", f.denseWidth);
  json.attribute("groups", f.groups);
  if (f.indexer)
    json.attributeObject("indexer", [&] {
      json.attribute("heads", f.indexer->heads);
      json.attribute("head_dim", f.indexer->headDim);
      json.attribute("top_k", f.indexer->topk);
      json.attribute("full_layers", f.indexer->fullLayers);
      json.attribute("bytes_per_token", f.indexBytes());
    });
}

static void writeMachine(OStream &json, const Report &r) {
  const Machine &m = r.machine;
  json.attribute("name", text(m.name));
  json.attribute("architecture", m.architecture);
  json.attribute("devices", m.devices);
  json.attribute("memory_bytes", m.memoryBytes);
  json.attribute("read_bytes_per_second", m.readBytesPerSecond);
}

static void writeCache(OStream &json, const Report &r) {
  const CacheDecision &c = r.cache;
  if (c.asked) {
    json.attribute("asked", name(*c.asked));
    json.attribute("asked_by", text(c.askedBy));
  }
  json.attribute("wanted", name(c.chosen));
  json.attribute("wanted_by", c.chosenBy);
  if (c.possible)
    json.attribute("chosen", name(c.chosen));
  json.attributeArray("formats", [&] {
    for (const CacheFormatOption &o : c.options)
      json.object([&] {
        json.attribute("format", name(o.format));
        json.attribute("bytes_per_token", o.bytesPerToken);
        json.attribute("bytes_per_token_sharded", o.bytesPerToken / r.ranks);
        if (r.memory && !o.lowering.empty())
          json.attribute("tokens_that_fit", o.tokensThatFit);
        if (o.lowering.empty())
          json.attribute("refusal", text(o.refusal));
        else
          json.attribute("lowering", o.lowering);
      });
  });
  strings(json, "words", c.words);
}

static void writeLayouts(OStream &json, const LayoutReport &l) {
  json.attribute("reason", text(l.reason));
  json.attributeArray("contexts", [&] {
    for (int64_t context : l.contexts)
      json.value(context);
  });
  json.attributeArray("alternatives", [&] {
    for (const LayoutRow &row : l.rows)
      json.object([&] {
        json.attribute("layout", row.name);
        json.attribute("chosen", row.chosen);
        if (!row.refusal.empty())
          json.attribute("refusal", text(row.refusal));
        if (row.seconds.empty())
          return;
        if (!row.against.empty())
          json.attribute("against_chosen", row.against);
        json.attributeArray("seconds", [&] {
          for (double seconds : row.seconds)
            json.value(seconds);
        });
        json.attribute("all_reduces", row.exchanges.reduces);
        json.attribute("all_gathers", row.exchanges.gathers);
        json.attribute("attention_merges", row.exchanges.merges);
        json.attribute("overlapped", row.exchanges.overlaps);
        json.attribute("weights_bytes", row.weights);
        json.attribute("cache_bytes_per_token", row.cachePerToken);
        if (row.tokens >= 0)
          json.attribute("tokens_that_fit", row.tokens);
      });
  });
}

static void writeMemory(OStream &json, const Memory &m) {
  json.attribute("total_bytes", m.total);
  json.attribute("reserved_bytes", m.reserved);
  json.attribute("weights_bytes", m.weights);
  json.attributeObject("weights_by_format", [&] {
    for (const auto &[format, bytes] : m.weightsByFormat)
      json.attribute(name(format), bytes);
  });
  json.attribute("workspace_bytes", m.workspace);
  json.attributeObject("workspace_by_program", [&] {
    for (const auto &[name, bytes] : m.workspaces)
      json.attribute(name, bytes);
  });
  json.attribute("ports_bytes", m.ports);
  json.attribute("graphs_bytes", m.graphs);
  json.attribute("collectives_bytes", m.collectives);
  json.attribute("cache_bytes_per_token", m.planPerToken);
  json.attribute("latent_bytes_per_token", m.latentPerToken);
  json.attribute("index_bytes_per_token", m.indexPerToken);
  json.attribute("free_bytes", m.free);
  json.attribute("tokens_that_fit", m.tokens);
  json.attribute("tokens_that_fit_sharded", m.shardedTokens);
  json.attributeArray("longest_contexts", [&] {
    for (const auto &[requests, context] : m.contexts)
      json.object([&] {
        json.attribute("requests", requests);
        json.attribute("context", context);
      });
  });
  json.attribute("context_limit", m.contextLimit);
  strings(json, "notes", m.notes);
}

static void writeStep(OStream &json, const StepTime &s) {
  json.attribute("context", s.context);
  json.attribute("batch", s.batch);
  json.attribute("program", s.program);
  json.attribute("launches", s.launches);
  json.attributeObject("seconds", [&] {
    if (s.known) {
      json.attribute("weights", s.weights);
      json.attribute("attention", s.attention);
      json.attribute("experts", s.experts);
      json.attribute("small_kernels", s.small);
      json.attribute("gaps", s.gaps);
      json.attribute("collectives", s.collectives);
      if (!s.method.empty())
        json.attribute("collectives_floor", s.collectivesFloor);
      json.attribute("step", s.total());
    }
    json.attribute("floor", s.floor);
  });
  if (s.known) {
    json.attribute("collectives_share", s.collectives / s.total());
    if (!s.method.empty())
      json.attribute("collectives_method", s.method);
    json.attributeObject("collectives_by_method", [&] {
      for (const auto &[method, seconds] : s.methods)
        json.attribute(method, seconds);
    });
    json.attributeObject("step_by_method", [&] {
      for (const auto &[method, seconds] : s.methodSteps)
        json.attribute(method, seconds);
    });
    json.attribute("tokens_per_second", s.tokensPerSecond());
    json.attribute("largest_part", s.bound);
  }
  json.attribute("weight_bytes", s.weightBytes);
  json.attribute("cache_bytes", s.cacheBytes);
  strings(json, "notes", s.notes);
}

static void writeOp(OStream &json, const OpChoices &op) {
  json.attribute("op", op.op);
  json.attribute("shape", op.shape);
  json.attribute("first", text(op.first));
  json.attribute("count", op.count);
  json.attributeArray("choices", [&] {
    for (const Choice &choice : op.choices)
      json.object([&] {
        json.attribute("programs", choice.program);
        json.attributeArray("candidates", [&] {
          for (const Judged &c : choice.candidates)
            json.object([&] {
              json.attribute("lowering", c.lowering);
              json.attribute("chosen", c.chosen);
              if (c.seconds >= 0)
                json.attribute("seconds", c.seconds);
              if (!c.reason.empty()) {
                json.attribute("refusal", c.refusalKind);
                json.attribute("reason", text(c.reason));
              }
            });
        });
      });
  });
}

void mla::explain::writeReport(OStream &json, const Report &r) {
  json.attributeObject("model", [&] { writeFacts(json, r.model); });
  json.attributeObject("machine", [&] { writeMachine(json, r); });
  json.attribute("target", r.target);
  json.attribute("has_kernels", r.hasKernels);
  json.attribute("ranks", r.ranks);
  if (!r.ranksReason.empty())
    json.attribute("ranks_reason", text(r.ranksReason));
  json.attribute("all_reduces", r.exchanges.reduces);
  json.attribute("all_reduces_fused", r.exchanges.fused);
  json.attribute("all_gathers", r.exchanges.gathers);
  json.attribute("attention_merges", r.exchanges.merges);
  json.attribute("overlapped", r.exchanges.overlaps);
  if (r.ranks > 1) {
    json.attribute("collectives", exchangeByName(r.exchangeBy));
    json.attribute("layout", r.layoutName);
    json.attributeObject("layouts", [&] { writeLayouts(json, r.layouts); });
  }
  strings(json, "problems", r.problems);
  json.attributeObject("cache", [&] { writeCache(json, r); });
  if (r.memory)
    json.attributeObject("memory", [&] { writeMemory(json, *r.memory); });
  json.attributeArray("steps", [&] {
    for (const StepTime &s : r.steps)
      json.object([&] { writeStep(json, s); });
  });
  strings(json, "assumptions", r.assumptions);
  json.attributeArray("ops", [&] {
    for (const OpChoices &op : r.ops)
      json.object([&] { writeOp(json, op); });
  });
}

void mla::explain::printJson(const Report &report, llvm::raw_ostream &out) {
  OStream json(out, 1);
  json.object([&] {
    json.attribute("version", explainVersion);
    writeReport(json, report);
  });
  out << "\n";
}
