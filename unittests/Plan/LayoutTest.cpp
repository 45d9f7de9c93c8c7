//===- LayoutTest.cpp - plans of a GPU: layouts, blocks, binaries ---------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "SamplePlan.h"
#include "mla/Quant/Pack.h"
#include <gtest/gtest.h>

using namespace mla;
using namespace mla::plan;

namespace {

enum { GEmbed, GNorm, GExperts, GKeys, GHalf, GWeights };

/// The sample's first launch and its head, for a GPU, with a weight of each kind
/// of layout. Synthetic, so that no offset matters.
Plan gpuPlan() {
  Plan p = samplePlan();
  takeOffFiles(p, Checkpoint::Kind::Synthetic);
  p.target = {"sm_90a", "", {}, cudaKernelAbi};
  p.library = "kernels.ptx";
  p.binary = "kernels.cubin";
  p.binaryHash = 0x0123456789abcdefu;
  p.weights.resize(2);
  p.weights[GEmbed].layout = Layout::Rows;
  p.weights[GEmbed].slice = {.format = Format::BF16, .rows = 64, .columns = 8,
                             .firstRow = 32, .blockRows = 32};
  p.weights[GNorm].layout = Layout::Rows;
  p.weights[GNorm].slice = {.format = Format::BF16, .rows = 1, .columns = 8,
                            .blockRows = 1};
  Weight experts{"experts", Format::NVFP4, {2, 20, 32}, true,
                 {{"e.0.w", 0, 0}, {"e.1.w", 0, 0}}};
  experts.scales = {{{{"e.0.s", 0, 0}, {"e.1.s", 0, 0}}},
                    {{{"e.0.g", 0, 0}, {"e.1.g", 0, 0}}, true}};
  experts.layout = Layout::Packed;
  experts.slice = {.format = Format::NVFP4, .rows = 40, .columns = 64,
                   .firstRow = 20, .firstColumn = 32, .blockRows = 20};
  p.weights.push_back(experts);
  // The keys of heads 1 and 2 of 4, [head, 24 + 40 rows, 16].
  Weight keys{"keys", Format::BF16, {2, 16, 24}, false, {{"kv_b", 0, 0}}};
  keys.scales = {{{{"kv_b.s", 0, 0}}}};
  keys.layout = Layout::Packed;
  keys.slice = {.format = Format::FP8Block, .rows = 256, .columns = 16,
                .firstRow = 64, .blocks = 2, .blockRows = 24, .rowStride = 64,
                .transposed = true};
  p.weights.push_back(keys);
  Weight half{"half", Format::FP8Block, {172, 128}, false, {{"o", 0, 0}}};
  half.scales = {{{{"o.s", 0, 0}}}};
  half.layout = Layout::Packed;
  half.slice = {.format = Format::FP8Block, .rows = 300, .columns = 256,
                .firstRow = 128, .firstColumn = 128, .blockRows = 172};
  p.weights.push_back(half);
  p.kernels = {p.kernels[KGather], p.kernels[KHead]};
  p.sampling.reset();
  p.kernels[0].threads = 128;
  p.kernels[1].threads = 1024;
  p.kernels[1].sharedBytes = 101376;
  for (Program &program : p.programs) {
    program.launches = {program.launches[LGather], program.launches[LHead]};
    program.launches[0].kernel = 0;
    program.launches[1].kernel = 1;
    program.launches[1].arguments[0].value = WorkspaceRef{XIn};
    program.launches[1].weightBytes = expr("outputs * 512");
  }
  return p;
}

TEST(PlanLayout, ComesBack) {
  Plan before = gpuPlan();
  Status status = verify(before);
  ASSERT_TRUE(status.ok()) << status.message();
  std::string text = print(before);
  Result<Plan> read = parse(text, "plan.json");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(print(*read), text);
  EXPECT_EQ(read->binary, "kernels.cubin");
  EXPECT_EQ(read->binaryHash, 0x0123456789abcdefu);
  EXPECT_EQ(read->kernels[1].threads, 1024);
  EXPECT_EQ(read->kernels[1].sharedBytes, 101376);
  EXPECT_EQ(read->programs[0].launches[1].weightBytes, expr("outputs * 512"));
  EXPECT_EQ(read->programs[0].launches[0].weightBytes, Expr(0));
  ASSERT_EQ(read->weights.size(), size_t(GWeights));
  for (size_t i = 0; i < GWeights; ++i) {
    const Weight &a = read->weights[i], &b = before.weights[i];
    EXPECT_EQ(a.layout, b.layout);
    EXPECT_EQ(a.slice.format, b.slice.format);
    EXPECT_EQ(a.slice.rows, b.slice.rows);
    EXPECT_EQ(a.slice.columns, b.slice.columns);
    EXPECT_EQ(a.slice.firstRow, b.slice.firstRow);
    EXPECT_EQ(a.slice.firstColumn, b.slice.firstColumn);
    EXPECT_EQ(a.slice.blocks, b.slice.blocks);
    EXPECT_EQ(a.slice.blockRows, b.slice.blockRows);
    EXPECT_EQ(a.slice.rowStride, b.slice.rowStride);
    EXPECT_EQ(a.slice.transposed, b.slice.transposed);
    EXPECT_EQ(a.scales.size(), b.scales.size());
  }
}

TEST(PlanLayout, HostPlansSayNothingOfIt) {
  std::string text = print(samplePlan());
  for (const char *key : {"\"layout\": \"packed", "\"layout\": \"rows\"", "slice", "threads", "shared_bytes",
                          "weight_bytes", "binary"})
    EXPECT_EQ(text.find(key), std::string::npos) << key;
}

TEST(PlanLayout, DeviceBytes) {
  Plan p = gpuPlan();
  auto bytes = [&](int w) {
    Result<uint64_t> r = p.weights[w].deviceBytes();
    EXPECT_TRUE(r.ok()) << r.status().message();
    return r.ok() ? *r : 0;
  };
  EXPECT_EQ(bytes(GEmbed), 32u * 8 * 2);
  EXPECT_EQ(bytes(GNorm), 8u * 4);
  // 32 rows in 8 quads, one unit of columns, and the scale, in 256s.
  EXPECT_EQ(bytes(GExperts), 2u * 2560);
  EXPECT_EQ(bytes(GKeys), 8u * 256);
  EXPECT_EQ(bytes(GHalf), 176u / 4 * 2 * 256 + 256);
  for (const Weight &w : p.weights)
    EXPECT_FALSE(w.isTable()) << w.name;
  p = samplePlan();
  EXPECT_EQ(bytes(WStack), 4u * 8 * 32 / 2 + 4 * 8 * 2);
  EXPECT_EQ(bytes(WDown), 64u + 8 + 4);
  p.weights[0] = {"huge", Format::BF16, {int64_t(1) << 40, 1 << 20}, false, {}};
  EXPECT_FALSE(p.weights[0].deviceBytes().ok());
}

struct Rule {
  const char *name;
  void (*breakIt)(Plan &);
  const char *message;
  /// plan.json has no way to say it, so that only verify() can complain.
  bool onlyInMemory = false;
};

Slice &slice(Plan &p, int w) { return p.weights[w].slice; }

const Rule rules[] = {
    {"target", [](Plan &p) { p.target.name = "gfx942"; },
     "at /target/name: expected \"host\" or a GPU"},
    {"abi", [](Plan &p) { p.target.kernelAbi = 2; },
     "at /target/kernel_abi: expected kernel ABI 1, found 2"},
    {"noThreads", [](Plan &p) { p.kernels[0].threads = 0; },
     "at /kernels/0/threads: expected an integer from 1 to 1024, found 0"},
    {"manyThreads", [](Plan &p) { p.kernels[0].threads = 1025; },
     "at /kernels/0/threads: "},
    {"shared", [](Plan &p) { p.kernels[1].sharedBytes = 232449; },
     "at /kernels/1/shared_bytes: expected an integer from 0 to 232448"},
    {"binaryName", [](Plan &p) { p.binary = "../k.cubin"; },
     "at /library/binary: expected a plain file name"},
    {"binaryTaken", [](Plan &p) { p.binary = p.library; },
     "at /library/binary: expected a name that is not taken"},
    {"binaryHashAlone", [](Plan &p) { p.binary = ""; },
     "at /library/binary: expected a file for its hash", true},
    {"weightBytes",
     [](Plan &p) { p.programs[0].launches[1].weightBytes = expr("tokens - 2"); },
     "at /programs/0/launches/1/weight_bytes: expected at least 0 bytes"},
    {"hostThreads",
     [](Plan &p) {
       p = samplePlan();
       p.kernels[0].threads = 32;
     },
     "at /kernels/0/threads: expected an integer from 0 to 0, found 32"},
    {"hostShared",
     [](Plan &p) {
       p = samplePlan();
       p.kernels[0].sharedBytes = 32;
     },
     "at /kernels/0/shared_bytes: "},
    {"hostBinary",
     [](Plan &p) {
       p = samplePlan();
       p.binary = "k.cubin";
     },
     "at /library/binary: expected none for the host"},
    {"hostLayout",
     [](Plan &p) {
       Weight rows = p.weights[GNorm];
       p = samplePlan();
       p.weights[WNorm].layout = Layout::Rows;
       p.weights[WNorm].slice = rows.slice;
     },
     "at /weights/1/layout: expected the checkpoint's layout for the host"},
    {"sliceWithoutLayout",
     [](Plan &p) { p.weights[GNorm].layout = Layout::Checkpoint; },
     "at /weights/1/slice: expected no slice", true},
    {"rowsWithScales", [](Plan &p) { p.weights[GHalf].layout = Layout::Rows; },
     "at /weights/4/format: expected f32, bf16 or f16 in rows, found "
     "fp8_block"},
    {"packedF32",
     [](Plan &p) { p.weights[GKeys].format = Format::F32; },
     "at /weights/3/format: expected a format that can be packed"},
    {"packedVector",
     [](Plan &p) {
       p.weights[GNorm].layout = Layout::Packed;
       p.weights[GNorm].format = Format::BF16;
     },
     "at /weights/1/shape: expected packed matrices in two or three"},
    {"conversion", [](Plan &p) { p.weights[GKeys].format = Format::NVFP4; },
     "at /weights/3/format: expected the checkpoint's fp8_block, or bf16 or "
     "f32, found nvfp4"},
    {"storedFormat",
     [](Plan &p) { slice(p, GEmbed).format = Format::FP8E4M3; },
     "at /weights/0/slice/format: expected the format of a weight"},
    {"rows", [](Plan &p) { slice(p, GEmbed).rows = 0; },
     "at /weights/0/slice/rows: "},
    {"columnsHuge",
     [](Plan &p) { slice(p, GEmbed).columns = int64_t(1) << 52; },
     "at /weights/0/slice: expected less than 2^53 bytes"},
    {"firstRow", [](Plan &p) { slice(p, GEmbed).firstRow = -1; },
     "at /weights/0/slice/first_row: "},
    {"firstColumn", [](Plan &p) { slice(p, GEmbed).firstColumn = 1; },
     "at /weights/0/slice: expected 8 columns from 1 on within 8"},
    {"blocks", [](Plan &p) { slice(p, GEmbed).blocks = 0; },
     "at /weights/0/slice/blocks: "},
    {"blockRows", [](Plan &p) { slice(p, GEmbed).blockRows = 0; },
     "at /weights/0/slice/block_rows: "},
    {"stride", [](Plan &p) { slice(p, GEmbed).rowStride = -1; },
     "at /weights/0/slice/row_stride: "},
    {"beyondTheEnd", [](Plan &p) { slice(p, GEmbed).firstRow = 33; },
     "at /weights/0/slice: expected 1 runs of 32 rows within the matrix of 64"},
    {"overflow",
     [](Plan &p) {
       slice(p, GEmbed).blocks = (int64_t(1) << 53) - 1;
       slice(p, GEmbed).rowStride = (int64_t(1) << 53) - 1;
     },
     "at /weights/0/slice: expected 9007199254740991 runs"},
    {"runsOverlap", [](Plan &p) { slice(p, GKeys).rowStride = 23; },
     "at /weights/3/slice/row_stride: expected at least the 24 rows"},
    {"otherRows", [](Plan &p) { slice(p, GEmbed).blockRows = 31; },
     "at /weights/0/slice: expected as many rows as the runs have (1 of 31), "
     "found [32, 8]"},
    {"transposedColumns", [](Plan &p) { slice(p, GKeys).blockRows = 25; },
     "at /weights/3/slice: expected a transposed weight of 25 columns"},
    {"transposedRows", [](Plan &p) { p.weights[GKeys].shape[1] = 17; },
     "at /weights/3/slice: expected 17 columns from 0 on within 16"},
    {"transposedScales",
     [](Plan &p) {
       slice(p, GHalf).transposed = true;
       p.weights[GHalf].shape = {128, 172};
     },
     "at /weights/4/slice/transposed: expected a conversion"},
    {"blockRowsCut", [](Plan &p) { slice(p, GHalf).firstRow = 127; },
     "at /weights/4/slice: expected a slice between groups of 128 rows and "
     "columns"},
    {"blockColumnsCut",
     [](Plan &p) {
       slice(p, GHalf).firstColumn = 0;
       p.weights[GHalf].shape[1] = 192;
     },
     "at /weights/4/slice: expected a slice between groups"},
    {"blockEndCut",
     [](Plan &p) {
       slice(p, GHalf).firstRow = 0;
     },
     "at /weights/4/slice: expected a slice between groups"},
    {"groupCut", [](Plan &p) { slice(p, GExperts).firstColumn = 8; },
     "at /weights/2/slice: expected a slice between groups of 16 columns"},
    {"groupColumns", [](Plan &p) { slice(p, GExperts).columns = 72; },
     "at /weights/2/slice/columns: expected columns in groups of 16, found 72"},
    {"parts", [](Plan &p) { p.weights[GKeys].scales.clear(); },
     "at /weights/3: expected 2 parts of \"keys\" in fp8_block, found 1"},
};

class LayoutRule : public testing::TestWithParam<Rule> {};

TEST_P(LayoutRule, Complains) {
  Plan p = gpuPlan();
  GetParam().breakIt(p);
  Status status = verify(p);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find(GetParam().message), std::string::npos)
      << status.message();
  EXPECT_EQ(parse(print(p), "plan.json").ok(), GetParam().onlyInMemory);
}

INSTANTIATE_TEST_SUITE_P(Plan, LayoutRule, testing::ValuesIn(rules),
                         [](const auto &info) {
                           return std::string(info.param.name);
                         });

TEST(PlanLayout, ReaderRefuses) {
  std::string good = print(gpuPlan());
  auto refused = [&](const char *from, const char *to, const char *message) {
    std::string text = good;
    size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    text.replace(at, std::string_view(from).size(), to);
    Result<Plan> plan = parse(text, "plan.json");
    ASSERT_FALSE(plan.ok()) << to;
    EXPECT_NE(plan.status().message().find(message), std::string::npos)
        << plan.status().message();
  };
  refused("\"layout\": \"packed\"", "\"layout\": \"tiles\"",
          "/layout: expected \"rows\" or \"packed\"");
  refused("\"block_rows\": 32", "\"block_rows\": 32, \"step\": 1",
          "/slice/step: expected a key");
  refused("\"transposed\": true", "\"transposed\": 1", "/slice/transposed: ");
  refused("\"binary\": \"kernels.cubin\"", "\"binary\": \"\"",
          "/library/binary: expected a file name");
  refused("\"layout\": \"rows\"", "\"stacked\": {}", "/slice: expected a key");
}

} // namespace
