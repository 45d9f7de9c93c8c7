//===- ModelTest.cpp - estimates of kernels -------------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "mla/CostModel/CostModel.h"
#include <cmath>
#include <functional>
#include <gtest/gtest.h>

using namespace mla;
using namespace mla::cost;

namespace {

constexpr Format weightFormats[] = {Format::BF16, Format::FP8Block,
                                    Format::NVFP4, Format::Int4G32};
constexpr Format caches[] = {Format::BF16, Format::F16, Format::FP8E4M3};

Experts experts(Format f, int64_t inner, int64_t hidden, int64_t shared) {
  return {{f, inner, hidden}, {f, hidden, inner}, 256, 8, shared};
}

/// Calls `body` with estimates of every family, of work that grows with `n`.
void eachEstimate(const Model &model, int64_t n,
                  const std::function<void(const std::string &,
                                           const Estimate &)> &body) {
  int64_t tokens = n;
  for (Format f : weightFormats) {
    std::string name(formatName(f));
    Matrix m{f, 96 * n, 512 * n};
    Matrix two[] = {m, m};
    body("stream " + name, model.linearStream({&m, 1}));
    body("streams " + name, model.linearStream(two, {true, true}));
    body("tile " + name, model.linearTile({&m, 1}, std::min<int64_t>(n, 64)));
    body("large " + name, model.linearLarge({&m, 1}, 64 * n));
    Experts e = experts(f, 64 * n, 256 * n, 64 * n);
    body("experts one " + name, model.expertsOne(e));
    body("experts " + name, model.experts(e, 8 * n));
  }
  for (Format f : caches) {
    std::string name(formatName(f));
    Attention a{8 * n, 512, 64, f};
    body("decode " + name, model.attentionDecode(a, {1, 1, 1000 * n}));
    body("combined " + name, model.attentionCombineExpand(a, 128, {1, 1, 99}));
    body("decodes " + name,
         model.attentionDecode({16, 512, 64, f}, {n, n, 100 * n}));
    body("prefill " + name,
         model.attentionPrefill(a, {64 * tokens, 1, 100 * n}));
  }
  Matrix f32{Format::F32, 64 * n, 256 * n};
  body("f32", model.linearF32({&f32, 1}, n));
  body("heads", model.heads(8 * n, {Format::BF16, 512, 128}, 1));
  body("heads many", model.heads(8, {Format::BF16, 512, 128}, 100 * n));
  body("rows", model.rows(n, 7168 * 8));
  body("route", model.route(64 * n, 8 * n));
}

TEST(Model, NeverBelowItsFloor) {
  for (const std::string &name : shippedMachines()) {
    Machine m = *findMachine(name);
    Model model(m);
    for (int64_t n : {1, 3, 8, 20})
      eachEstimate(model, n, [&](const std::string &family,
                                 const Estimate &e) {
        std::string what = name + ", " + family + " " + std::to_string(n);
        EXPECT_TRUE(std::isfinite(e.seconds)) << what;
        EXPECT_GE(e.seconds, e.floorSeconds) << what;
        EXPECT_GE(e.floorSeconds, (e.weightBytes + e.cacheBytes) /
                                      m.readBytesPerSecond * 0.999999)
            << what;
        if (!m.isHost()) {
          EXPECT_GT(e.seconds, 5e-7) << what;
          EXPECT_GE(e.launches, 1) << what;
        }
      });
  }
}

TEST(Model, MoreWorkTakesNoLess) {
  for (const char *name : {"h200x1", "rtx-pro-6000x8-pcie5", "host"}) {
    Model model(*findMachine(name));
    std::map<std::string, Estimate> before;
    for (int64_t n = 1; n <= 32; n *= 2)
      eachEstimate(model, n, [&](const std::string &family,
                                 const Estimate &e) {
        if (auto found = before.find(family); found != before.end()) {
          // Splits of attention are whole tiles: a little may be gained by more.
          EXPECT_GE(e.seconds, 0.97 * found->second.seconds)
              << name << ", " << family << " " << n;
          EXPECT_GE(e.weightBytes + e.cacheBytes,
                    found->second.weightBytes + found->second.cacheBytes);
        }
        before[family] = e;
      });
  }
}

TEST(Model, BytesAndFlops) {
  Model model(*findMachine("h200x1"));
  Matrix m{Format::NVFP4, 1024, 4096};
  Estimate e = model.linearStream({&m, 1});
  // 4.5 bits a weight, and the global scale in a line of its own.
  EXPECT_EQ(e.weightBytes, 1024 * 4096 / 16 * 9 + 256);
  EXPECT_EQ(e.flops, 2.0 * 1024 * 4096);
  EXPECT_EQ(e.launches, 1);
  Estimate a = model.attentionDecode({8, 512, 64, Format::FP8E4M3}, {4, 4, 999});
  EXPECT_EQ(a.cacheBytes, 4 * 1000 * 576);
  EXPECT_EQ(a.flops, 2.0 * 4 * 1000 * 8 * (576 + 512));
  EXPECT_EQ(a.launches, 2);
  Estimate x = model.expertsOne(experts(Format::BF16, 256, 1024, 256));
  EXPECT_EQ(x.weightBytes, 9 * 3 * 256 * 1024 * 2);
  EXPECT_EQ(x.flops, 2.0 * 9 * 3 * 256 * 1024);
  // Eight of 256 for each of eight tokens: 57.4 of them, if all are as likely.
  Estimate g = model.experts(experts(Format::BF16, 256, 1024, 0), 8);
  EXPECT_NEAR(g.weightBytes / (3 * 256 * 1024 * 2),
              256 * (1 - std::pow(1 - 8. / 256, 8)), 1e-6);
  EXPECT_EQ(g.launches, 4);
}

/// On the H200, docs/gpu.md; alone, in chains of the same kernel.
TEST(Model, MeasuredFigures) {
  Model model(*findMachine("h200x1"));
  auto near = [](const Estimate &e, double microseconds) {
    EXPECT_NEAR(e.seconds * 1e6 / microseconds, 1, 0.15);
  };
  auto stream = [&](Format f, int64_t rows, int64_t columns) {
    Matrix m{f, rows, columns};
    return model.linearStream({&m, 1});
  };
  near(stream(Format::BF16, 2112, 7168), 9.97);
  near(stream(Format::FP8Block, 20480, 7168), 36.4);
  near(stream(Format::NVFP4, 4608, 7168), 9.12);
  near(stream(Format::Int4G32, 1536, 1536), 1.73);
  near(model.expertsOne(experts(Format::NVFP4, 256, 7168, 256)), 13.84);
  near(model.attentionDecode({8, 512, 64, Format::FP8E4M3}, {1, 1, 32768}),
       11.5);
  near(model.attentionDecode({16, 512, 64, Format::BF16}, {1, 1, 131000}), 46.3);
  near(model.attentionDecode({128, 512, 64, Format::BF16}, {32, 32, 32768}),
       1601);
}

TEST(Model, WhatBoundsIt) {
  Model model(*findMachine("h200x1"));
  Matrix large{Format::BF16, 20480, 7168}, small{Format::NVFP4, 256, 256},
      fp4{Format::NVFP4, 20480, 7168};
  EXPECT_EQ(model.linearStream({&large, 1}).bound, Bound::Memory);
  EXPECT_EQ(model.linearStream({&small, 1}).bound, Bound::Latency);
  EXPECT_EQ(model.linearStream({&fp4, 1}).bound, Bound::Decode);
  EXPECT_EQ(model.linearLarge({&large, 1}, 4096).bound, Bound::Matrix);
  // SM120 has a third of the bandwidth and more multiprocessors.
  Model sm120(*findMachine("rtx-pro-6000x8-pcie5"));
  EXPECT_EQ(sm120.linearStream({&fp4, 1}).bound, Bound::Memory);
}

TEST(Model, SlowerClocksAndMemory) {
  Machine m = *findMachine("h200x1");
  Matrix fp4{Format::NVFP4, 20480, 7168}, bf16{Format::BF16, 20480, 7168};
  double decode = Model(m).linearStream({&fp4, 1}).seconds;
  double memory = Model(m).linearStream({&bf16, 1}).seconds;
  Machine slow = m;
  slow.clockHz /= 2;
  EXPECT_GT(Model(slow).linearStream({&fp4, 1}).seconds, 1.7 * decode);
  Machine narrow = m;
  narrow.readBytesPerSecond /= 2;
  EXPECT_GT(Model(narrow).linearStream({&bf16, 1}).seconds, 1.7 * memory);
}

TEST(Model, Host) {
  Machine m = *findMachine("host");
  Model model(m);
  Matrix w{Format::BF16, 4096, 4096};
  Estimate e = model.linearStream({&w, 1});
  double bytes = e.weightBytes / m.readBytesPerSecond;
  double flops =
      m.bf16FlopsPerSecond > 0 ? e.flops / m.bf16FlopsPerSecond : 0;
  EXPECT_DOUBLE_EQ(e.seconds, std::max(bytes, flops));
  EXPECT_EQ(model.gaps(100), 0);
  EXPECT_GT(model.attentionDecode({8, 512, 64, Format::F32}, {1, 1, 1000})
                .seconds,
            0);
}

TEST(Model, Sums) {
  Estimate a, b;
  a.seconds = 1;
  a.bound = Bound::Memory;
  a.launches = 2;
  a.weightBytes = 10;
  b.seconds = 3;
  b.bound = Bound::Matrix;
  b.launches = 1;
  b.cacheBytes = 5;
  a += b;
  EXPECT_EQ(a.seconds, 4);
  EXPECT_EQ(a.bound, Bound::Matrix);
  EXPECT_EQ(a.launches, 3);
  EXPECT_EQ(a.weightBytes + a.cacheBytes, 15);
  for (Bound bound : {Bound::Memory, Bound::Decode, Bound::Matrix,
                      Bound::Latency, Bound::Link})
    EXPECT_FALSE(boundName(bound).empty());
}

TEST(Model, GapsBetweenLaunches) {
  Machine m = *findMachine("h200x1");
  double one = Model(m).gaps(1);
  EXPECT_GT(one, 0);
  EXPECT_DOUBLE_EQ(Model(m).gaps(10), 10 * one);
}

/// Shapes at the edge: nothing is divided by zero.
TEST(Model, SmallShapes) {
  Model model(*findMachine("h200x1"));
  for (Format f : weightFormats) {
    Matrix m{f, 1, 1};
    EXPECT_TRUE(std::isfinite(model.linearStream({&m, 1}).seconds));
    EXPECT_TRUE(std::isfinite(model.linearTile({&m, 1}, 1).seconds));
    EXPECT_TRUE(std::isfinite(model.linearLarge({&m, 1}, 1).seconds));
    Experts e{m, m, 1, 1, 0};
    EXPECT_TRUE(std::isfinite(model.expertsOne(e).seconds));
    EXPECT_TRUE(std::isfinite(model.experts(e, 1).seconds));
    EXPECT_TRUE(std::isfinite(model.experts(e, 100).seconds));
  }
  EXPECT_EQ(model.linearStream({}).seconds, 0);
  Attention a{1, 512, 64, Format::BF16};
  EXPECT_TRUE(std::isfinite(model.attentionDecode(a, {1, 1, 0}).seconds));
  EXPECT_TRUE(std::isfinite(model.attentionPrefill(a, {1, 1, 0}).seconds));
}

} // namespace
