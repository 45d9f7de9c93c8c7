//===- RoundTripTest.cpp - print, parse, and sizes ------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "SamplePlan.h"
#include "mla/Support/Json.h"
#include <gtest/gtest.h>

using namespace mla;
using namespace mla::plan;

namespace {

Plan parsed(const std::string &text) {
  Result<Plan> plan = parse(text, "plan.json");
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return plan.ok() ? *std::move(plan) : Plan();
}

bool has(const std::string &text, const std::string &part) {
  return text.find(part) != std::string::npos;
}

void expectSame(const std::vector<TensorSource> &a,
                const std::vector<TensorSource> &b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].tensor, b[i].tensor);
    EXPECT_EQ(a[i].file, b[i].file);
    EXPECT_EQ(a[i].offset, b[i].offset);
  }
}

void expectSame(const Weight &a, const Weight &b) {
  EXPECT_EQ(a.name, b.name);
  EXPECT_EQ(a.format, b.format);
  EXPECT_EQ(a.shape, b.shape);
  EXPECT_EQ(a.stacked, b.stacked);
  expectSame(a.sources, b.sources);
  ASSERT_EQ(a.scales.size(), b.scales.size());
  for (size_t i = 0; i < a.scales.size(); ++i) {
    expectSame(a.scales[i].sources, b.scales[i].sources);
    EXPECT_EQ(a.scales[i].reciprocal, b.scales[i].reciprocal);
  }
  ASSERT_EQ(a.shard.has_value(), b.shard.has_value());
  if (!a.shard)
    return;
  EXPECT_EQ(a.shard->whole, b.shard->whole);
  EXPECT_EQ(a.shard->part, b.shard->part);
  ASSERT_EQ(a.shard->splits.size(), b.shard->splits.size());
  for (size_t i = 0; i < a.shard->splits.size(); ++i) {
    EXPECT_EQ(a.shard->splits[i].dim, b.shard->splits[i].dim);
    EXPECT_EQ(a.shard->splits[i].count, b.shard->splits[i].count);
    EXPECT_EQ(a.shard->splits[i].stride, b.shard->splits[i].stride);
  }
}

TEST(PlanRoundTrip, SampleIsValid) {
  Status status = verify(samplePlan());
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST(PlanRoundTrip, EveryFieldComesBack) {
  Plan before = samplePlan(), p = parsed(print(before));
  EXPECT_EQ(p.producer, before.producer);
  EXPECT_EQ(p.target.name, before.target.name);
  EXPECT_EQ(p.target.cpu, before.target.cpu);
  EXPECT_EQ(p.target.features, before.target.features);
  EXPECT_EQ(p.target.kernelAbi, before.target.kernelAbi);
  EXPECT_EQ(p.model.architecture, before.model.architecture);
  EXPECT_EQ(p.model.vocabSize, before.model.vocabSize);
  EXPECT_EQ(p.model.layers, before.model.layers);
  EXPECT_EQ(p.model.hiddenSize, before.model.hiddenSize);
  EXPECT_EQ(p.model.maxPositions, before.model.maxPositions);
  EXPECT_EQ(p.model.bosToken, before.model.bosToken);
  EXPECT_EQ(p.model.eosTokens, before.model.eosTokens);
  EXPECT_EQ(p.ranks.count, 4);
  EXPECT_EQ(p.ranks.collectives, Ranks::Collectives::Local);
  EXPECT_EQ(p.ranks.layout, "rows tp4");
  EXPECT_EQ(p.checkpoint.kind, before.checkpoint.kind);
  EXPECT_EQ(p.checkpoint.folder, before.checkpoint.folder);
  ASSERT_EQ(p.checkpoint.files.size(), 2u);
  EXPECT_EQ(p.checkpoint.files[0].name, "model-1.safetensors");
  EXPECT_EQ(p.checkpoint.files[0].size, 4096u);
  EXPECT_EQ(p.checkpoint.files[0].headerBytes, 256u);
  EXPECT_EQ(p.checkpoint.files[0].headerHash, 0xfedcba9876543210u);
  EXPECT_EQ(p.library, before.library);
  EXPECT_EQ(p.libraryHash, before.libraryHash);
  EXPECT_EQ(p.tokenizerFiles, before.tokenizerFiles);
  EXPECT_EQ(p.maxPages, before.maxPages);

  ASSERT_EQ(p.weights.size(), before.weights.size());
  for (size_t i = 0; i < p.weights.size(); ++i)
    expectSame(p.weights[i], before.weights[i]);
  ASSERT_EQ(p.caches.size(), 1u);
  EXPECT_EQ(p.caches[0].name, "latent.0");
  EXPECT_EQ(p.caches[0].format, Format::BF16);
  EXPECT_EQ(p.caches[0].width, 8);
  EXPECT_EQ(p.caches[0].kind, "latent");

  ASSERT_EQ(p.kernels.size(), before.kernels.size());
  for (size_t i = 0; i < p.kernels.size(); ++i) {
    EXPECT_EQ(p.kernels[i].name, before.kernels[i].name);
    EXPECT_EQ(p.kernels[i].collective, before.kernels[i].collective);
    ASSERT_EQ(p.kernels[i].parameters.size(),
              before.kernels[i].parameters.size());
    for (size_t k = 0; k < p.kernels[i].parameters.size(); ++k) {
      const Parameter &a = p.kernels[i].parameters[k];
      const Parameter &b = before.kernels[i].parameters[k];
      EXPECT_EQ(a.kind, b.kind);
      EXPECT_EQ(a.format, b.format);
      EXPECT_EQ(a.access, b.access);
    }
  }

  ASSERT_EQ(p.programs.size(), 2u);
  ASSERT_TRUE(p.sampling);
  for (size_t i = 0; i < 3; ++i) {
    const Program &a = i < 2 ? p.programs[i] : *p.sampling;
    const Program &b = i < 2 ? before.programs[i] : *before.sampling;
    EXPECT_EQ(a.name, b.name);
    EXPECT_EQ(a.maxTokens, b.maxTokens);
    EXPECT_EQ(a.maxSequences, b.maxSequences);
    EXPECT_EQ(a.maxOutputs, b.maxOutputs);
    EXPECT_EQ(a.workspaceBytes, b.workspaceBytes);
    ASSERT_EQ(a.workspaces.size(), b.workspaces.size());
    for (size_t k = 0; k < a.workspaces.size(); ++k) {
      EXPECT_EQ(a.workspaces[k].name, b.workspaces[k].name);
      EXPECT_EQ(a.workspaces[k].format, b.workspaces[k].format);
      EXPECT_EQ(a.workspaces[k].shape, b.workspaces[k].shape);
      EXPECT_EQ(a.workspaces[k].offset, b.workspaces[k].offset);
    }
    ASSERT_EQ(a.launches.size(), b.launches.size());
    for (size_t k = 0; k < a.launches.size(); ++k) {
      const Launch &l = a.launches[k], &m = b.launches[k];
      EXPECT_EQ(l.kernel, m.kernel);
      EXPECT_EQ(l.grid, m.grid);
      EXPECT_EQ(l.origin, m.origin);
      ASSERT_EQ(l.arguments.size(), m.arguments.size());
      for (size_t n = 0; n < l.arguments.size(); ++n) {
        const auto &v = l.arguments[n].value, &w = m.arguments[n].value;
        ASSERT_EQ(v.index(), w.index());
        if (auto *x = std::get_if<WeightRef>(&v)) {
          EXPECT_EQ(x->index, std::get<WeightRef>(w).index);
        } else if (auto *x = std::get_if<CacheRef>(&v)) {
          EXPECT_EQ(x->index, std::get<CacheRef>(w).index);
        } else if (auto *x = std::get_if<WorkspaceRef>(&v)) {
          EXPECT_EQ(x->index, std::get<WorkspaceRef>(w).index);
        } else if (auto *x = std::get_if<Port>(&v)) {
          EXPECT_EQ(*x, std::get<Port>(w));
        } else {
          EXPECT_EQ(std::get<Expr>(v), std::get<Expr>(w));
        }
      }
    }
  }
}

TEST(PlanRoundTrip, TextIsStable) {
  std::string text = print(samplePlan());
  EXPECT_EQ(print(samplePlan()), text);
  EXPECT_EQ(print(parsed(text)), text);
}

TEST(PlanRoundTrip, OtherCheckpoints) {
  for (Checkpoint::Kind kind :
       {Checkpoint::Kind::None, Checkpoint::Kind::Synthetic}) {
    Plan p = samplePlan();
    takeOffFiles(p, kind);
    if (kind == Checkpoint::Kind::Synthetic)
      p.checkpoint.seed = (int64_t(1) << 53) - 1;
    p.model.bosToken.reset();
    p.model.eosTokens.clear();
    p.tokenizerFiles.clear();
    std::string text = print(p);
    EXPECT_FALSE(has(text, "\"offset\": 256"));
    EXPECT_FALSE(has(text, "\"at\""));
    Plan q = parsed(text);
    EXPECT_EQ(q.checkpoint.kind, kind);
    EXPECT_EQ(q.checkpoint.seed, p.checkpoint.seed);
    EXPECT_FALSE(q.model.bosToken.has_value());
    EXPECT_EQ(q.weights[WExperts].sources[3].tensor,
              p.weights[WExperts].sources[3].tensor);
    EXPECT_EQ(print(q), text);
  }
}

TEST(PlanRoundTrip, StackedNames) {
  auto names = [](std::vector<std::string> tensors) {
    Plan p = samplePlan();
    for (size_t i = 0; i < 4; ++i)
      p.weights[WExperts].sources[i].tensor = tensors[i];
    std::string text = print(p);
    Plan q = parsed(text);
    for (size_t i = 0; i < 4 && q.weights.size() == p.weights.size(); ++i)
      EXPECT_EQ(q.weights[WExperts].sources[i].tensor, tensors[i]);
    return text;
  };
  std::string text = print(samplePlan());
  EXPECT_TRUE(has(text, "\"model.layers.0.mlp.experts.{}.up_proj.weight\""));
  EXPECT_TRUE(has(text, "\"at\": [[1, 128], [1, 256], [1, 384], [1, 512]]"));

  // Expert parallelism: the experts of a rank do not begin at 0.
  text = names({"l.8.e.98", "l.8.e.99", "l.8.e.100", "l.8.e.101"});
  EXPECT_TRUE(has(text, "\"l.8.e.{}\"") && has(text, "\"first\": 98"));
  // Without a pattern the names stand as they are.
  for (const std::vector<std::string> &list :
       {std::vector<std::string>{"e.0", "e.1", "e.2", "e.4"},
        {"e.00", "e.01", "e.02", "e.03"},
        {"e", "f", "g", "h"},
        {"e.{}.0", "e.{}.1", "e.{}.2", "e.{}.3"},
        {"e.0", "e.0", "e.0", "e.0"},
        {"9999999999.0", "9999999999.1", "a", "b"}})
    EXPECT_TRUE(has(names(list), "\"tensors\": [")) << list[0];
  text =
      names({"9999999999.0", "9999999999.1", "9999999999.2", "9999999999.3"});
  EXPECT_TRUE(has(text, "\"9999999999.{}\""));

  // A stack of one has no counting pattern.
  Plan p = samplePlan();
  p.weights[WExperts].shape[0] = 1;
  p.weights[WExperts].sources.resize(1);
  EXPECT_EQ(print(parsed(print(p))), print(p));
}

TEST(PlanRoundTrip, LargeScalars) {
  for (int64_t value : {INT64_MIN, INT64_MAX, int64_t(1) << 53,
                        (int64_t(1) << 53) - 1, int64_t(-1), int64_t(0)}) {
    Plan p = samplePlan();
    p.programs[0].launches[LGather].arguments[3].value = Expr(value);
    Plan q = parsed(print(p));
    ASSERT_EQ(q.programs.size(), 2u);
    EXPECT_EQ(std::get<Expr>(q.programs[0].launches[0].arguments[3].value),
              Expr(value));
  }
}

TEST(PlanRoundTrip, UnverifiedPlansPrint) {
  Plan p = samplePlan();
  p.producer = "\xff\xfe";
  p.weights[WNorm].sources.clear();
  p.programs[0].launches[0].kernel = 77;
  p.programs[0].launches[0].arguments[1].value = WeightRef{99};
  std::string text = print(p); // must not throw
  EXPECT_TRUE(has(text, "77 (out of range)"));
  EXPECT_FALSE(parse(text, "plan.json").ok());
  EXPECT_FALSE(print(Plan()).empty());
}

/// Weights in every format, alone and in stacks, from files and not.
TEST(PlanRoundTrip, WeightsInParts) {
  for (Format format : {Format::F32, Format::BF16, Format::F16,
                        Format::FP8Block, Format::NVFP4, Format::Int4G32})
    for (bool stacked : {false, true})
      for (bool placed : {false, true})
        for (bool reciprocal : {false, true}) {
          Plan p = samplePlan();
          Weight w{"w", format, {160, 96}, stacked, {}};
          if (stacked)
            w.shape.insert(w.shape.begin(), 3);
          std::vector<StoragePart> parts = w.parts();
          uint64_t offset = 1 << 20;
          for (size_t i = 0; i < parts.size(); ++i) {
            std::vector<TensorSource> sources;
            for (int e = 0; e < (stacked ? 3 : 1); ++e) {
              sources.push_back(
                  {"w." + std::to_string(e) + "." + std::string(parts[i].name),
                   1, offset});
              offset += parts[i].bytes();
            }
            if (i == 0)
              w.sources = sources;
            else
              w.scales.push_back(
                  {sources, reciprocal && parts[i].name == "global"});
          }
          p.checkpoint.files[1].size = offset; // not a byte more
          p.weights.push_back(w);
          if (!placed)
            takeOffFiles(p, Checkpoint::Kind::Synthetic);

          std::string text = print(p);
          Plan q = parsed(text);
          ASSERT_EQ(q.weights.size(), p.weights.size()) << text;
          expectSame(q.weights.back(), p.weights.back());
          EXPECT_EQ(print(q), text);
          EXPECT_EQ(q.weights.back().isTable(), stacked || parts.size() > 1);
          EXPECT_EQ(has(text, stacked ? "\"w.{}.scales\"" : "\"w.0.scales\""),
                    parts.size() > 1);
        }
}

TEST(PlanRoundTrip, RanksThatExchange) {
  Plan p = samplePlan();
  p.ranks.collectives = Ranks::Collectives::Exchange;
  EXPECT_EQ(parsed(print(p)).ranks.collectives, Ranks::Collectives::Exchange);
}

/// Caches whose tokens are spread; others are not mentioned.
TEST(PlanRoundTrip, PageRanks) {
  Plan p = samplePlan();
  EXPECT_FALSE(has(print(p), "page_ranks"));
  EXPECT_EQ(parsed(print(p)).ranks.pageRanks, 1);
  EXPECT_EQ(p.tokensOfPage(), 64);
  p.ranks.pageRanks = 4;
  EXPECT_EQ(parsed(print(p)).ranks.pageRanks, 4);
  EXPECT_EQ(p.tokensOfPage(), 256);
}

/// A cache or a workspace has no place for scales.
TEST(PlanRoundTrip, BuffersHaveNoParts) {
  for (Format f : {Format::FP8Block, Format::NVFP4, Format::Int4G32})
    EXPECT_EQ(bufferBytes(f, {Expr(8)}, {}).status().code(),
              StatusCode::Unsupported);
}

/// A plan for one rank says nothing of ranks.
TEST(PlanRoundTrip, OneRank) {
  Plan p = samplePlan();
  p.ranks = {};
  p.weights.pop_back();
  p.kernels.pop_back();
  for (Program &program : p.programs)
    program.launches.pop_back();
  std::string text = print(p);
  for (const char *key : {"ranks", "shard", "collective"})
    EXPECT_FALSE(has(text, key)) << key;
  EXPECT_TRUE(parsed(text).ranks.isOne());
  EXPECT_EQ(print(parsed(text)), text);
}

TEST(PlanRoundTrip, BufferBytes) {
  SymbolValues v;
  v[Symbol::Tokens] = 3;
  EXPECT_EQ(*bufferBytes(Format::F32, {Symbol::Tokens, int64_t(8)}, v), 96u);
  EXPECT_EQ(*bufferBytes(Format::FP8E4M3, {}, v), 1u);
  EXPECT_EQ(*bufferBytes(Format::BF16, {int64_t(0)}, v), 0u);
  EXPECT_FALSE(bufferBytes(Format::F32, {int64_t(-1)}, v).ok());
  EXPECT_FALSE(bufferBytes(Format::F32, {INT64_MAX, int64_t(4)}, v).ok());
  EXPECT_FALSE(bufferBytes(Format::F32, {expr("ceildiv(1, 0)")}, v).ok());
}

TEST(PlanRoundTrip, Bounds) {
  Plan p = samplePlan();
  SymbolValues v = bounds(p, p.programs[1]);
  EXPECT_EQ(v[Symbol::Tokens], 16);
  EXPECT_EQ(v[Symbol::Sequences], 4);
  EXPECT_EQ(v[Symbol::Outputs], 4);
  EXPECT_EQ(v[Symbol::Pages], 8);
  EXPECT_EQ(v[Symbol::Capacity], 32);
  EXPECT_EQ(v[Symbol::Rank], 3);
  p.maxPages = p.programs[1].maxSequences = INT64_MAX; // no overflow
  EXPECT_EQ(bounds(p, p.programs[1])[Symbol::Capacity], INT32_MAX);
}

/// 384 experts x 60 layers x 3 matrices.
TEST(PlanRoundTrip, ManyExpertsStayCompact) {
  Plan p = samplePlan();
  p.checkpoint.files.assign(60, {"", uint64_t(1) << 35, 1000, 1});
  for (size_t i = 0; i < 60; ++i)
    p.checkpoint.files[i].name = "model-" + std::to_string(i);
  p.weights[WEmbed].sources[0].offset = p.weights[WNorm].sources[0].offset =
      1000;
  for (TensorSource &s : p.weights[WExperts].sources)
    s.offset = 1000;
  for (uint32_t layer = 0; layer < 60; ++layer)
    for (const char *matrix : {"gate_proj", "up_proj", "down_proj"}) {
      Weight w{"layers." + std::to_string(layer) + "." + matrix,
               Format::BF16,
               {384, 2048, 7168},
               true,
               {}};
      for (uint64_t e = 0; e < 384; ++e)
        w.sources.push_back({"model.layers." + std::to_string(layer) +
                                 ".mlp.experts." + std::to_string(e) + "." +
                                 matrix + ".weight",
                             layer, 1000 + e * 2048 * 7168 * 2});
      p.weights.push_back(std::move(w));
    }
  std::string text = print(p);
  EXPECT_LT(text.size(), 2u << 20);
  Plan q = parsed(text);
  ASSERT_EQ(q.weights.size(), p.weights.size());
  EXPECT_EQ(q.weights.back().sources.back().tensor,
            "model.layers.59.mlp.experts.383.down_proj.weight");
  EXPECT_EQ(q.weights.back().sources.back().offset,
            p.weights.back().sources.back().offset);
}

/// The page shows what print() prints.
TEST(PlanRoundTrip, ExampleOfThePage) {
  Result<std::string> page = readFile(MLA_PLAN_FORMAT_PAGE);
  ASSERT_TRUE(page.ok()) << page.status().message();
  std::string fence = "```json\n";
  size_t begin = page->find(fence);
  ASSERT_NE(begin, std::string::npos);
  begin += fence.size();
  std::string example = page->substr(begin, page->find("```", begin) - begin);
  Result<Plan> plan = parse(example, "plan-format.md");
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(print(*plan), example);
}

} // namespace
