//===- ShardTest.cpp - weights that ranks have in part, collectives -------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "SamplePlan.h"
#include <gtest/gtest.h>
#include <set>

using namespace mla;
using namespace mla::plan;

namespace {

/// The sample, synthetic, with a weight of 6 ranks: parts of `whole`, cut by
/// `splits` into `part`.
Plan shardPlan(Format format, std::vector<int64_t> whole,
               std::vector<int64_t> part, std::vector<Shard::Split> splits) {
  Plan p = samplePlan();
  takeOffFiles(p, Checkpoint::Kind::Synthetic);
  p.ranks.count = 6;
  Weight &w = p.weights[WShard];
  w = {"shard", format, part, whole.size() == 3, {}};
  w.shard = {whole, part, splits};
  w.scales.resize(storagePartCount(format) - 1);
  for (int64_t i = 0; i < (w.stacked ? whole[0] : 1); ++i) {
    w.sources.push_back({"t" + std::to_string(i), 0, 0});
    for (size_t s = 0; s < w.scales.size(); ++s)
      w.scales[s].sources.push_back(
          {"s" + std::to_string(s) + "." + std::to_string(i), 0, 0});
  }
  return p;
}

/// 5 experts among 3, the rows of each among 2.
Plan experts() {
  return shardPlan(Format::FP8Block, {5, 300, 200}, {2, 256, 200},
                   {{0, 3, 2}, {1, 2, 1}});
}

/// For a GPU, the heads of a matrix: 3 of 128 rows, of which 64 to 127 are taken,
/// among 3.
Plan heads() {
  Plan p = shardPlan(Format::FP8Block, {384, 200}, {128, 200}, {{0, 3, 1}});
  p.target = {"sm_90a", "", {}, cudaKernelAbi};
  for (Kernel &kernel : p.kernels)
    kernel.threads = kernel.collective == Collective::None ? 32 : 0;
  Weight &w = p.weights[WShard];
  w.format = Format::BF16;
  w.layout = Layout::Packed;
  w.shape = {64, 100};
  w.slice = {.format = Format::FP8Block, .rows = 128, .columns = 200,
             .firstRow = 64, .firstColumn = 100, .blockRows = 64};
  return p;
}

const Weight &shard(const Plan &p) { return p.weights[WShard]; }

TEST(Shard, Accepts) {
  const Plan plans[] = {
      experts(),
      heads(),
      shardPlan(Format::F32, {7}, {2}, {{0, 6, 1}}),
      shardPlan(Format::BF16, {7, 9}, {7, 9}, {}),
      shardPlan(Format::BF16, {7, 9}, {100, 9}, {{0, 6, 1}}),
      shardPlan(Format::BF16, {7, 9}, {4, 3}, {{0, 2, 3}, {1, 3, 1}}),
      shardPlan(Format::BF16, {7, 9}, {4, 3}, {{1, 3, 2}, {0, 2, 1}}),
      shardPlan(Format::BF16, {7, 9}, {4, 9}, {{0, 2, 3}}),
      shardPlan(Format::FP8Block, {7, 130}, {2, 130}, {{0, 6, 1}}),
      shardPlan(Format::FP8Block, {7, 130}, {7, 32}, {{1, 6, 1}}),
      shardPlan(Format::NVFP4, {7, 80}, {2, 80}, {{0, 6, 1}}),
      shardPlan(Format::NVFP4, {7, 80}, {7, 16}, {{1, 6, 1}}),
      shardPlan(Format::Int4G32, {7, 96}, {7, 32}, {{1, 3, 1}})};
  for (const Plan &p : plans) {
    Status status = verify(p);
    EXPECT_TRUE(status.ok()) << status.message();
    Result<Plan> read = parse(print(p), "plan.json");
    ASSERT_TRUE(read.ok()) << read.status().message();
    EXPECT_EQ(print(*read), print(p));
  }
}

TEST(Shard, StoredAndLocalSizes) {
  Plan p = experts();
  EXPECT_EQ(shard(p).storedRows(), 300);
  EXPECT_EQ(shard(p).storedColumns(), 200);
  EXPECT_EQ(shard(p).parts()[0].bytes(), 300u * 200);
  EXPECT_EQ(shard(p).parts()[1].bytes(), 3u * 2 * 4);
  EXPECT_EQ(*shard(p).deviceBytes(), 2u * (256 * 200 + 2 * 2 * 4));
  p = shardPlan(Format::F32, {7}, {2}, {{0, 6, 1}});
  EXPECT_EQ(shard(p).storedRows(), 1);
  EXPECT_EQ(shard(p).storedColumns(), 7);
  EXPECT_EQ(*shard(p).deviceBytes(), 8u);
}

//===----------------------------------------------------------------------===//
// localized()
//===----------------------------------------------------------------------===//

void expectSlice(const Weight &w, const Slice &s) {
  EXPECT_FALSE(w.shard);
  EXPECT_EQ(w.slice.format, s.format);
  EXPECT_EQ(w.slice.rows, s.rows);
  EXPECT_EQ(w.slice.columns, s.columns);
  EXPECT_EQ(w.slice.firstRow, s.firstRow);
  EXPECT_EQ(w.slice.firstColumn, s.firstColumn);
  EXPECT_EQ(w.slice.blocks, s.blocks);
  EXPECT_EQ(w.slice.blockRows, s.blockRows);
  EXPECT_EQ(w.slice.rowStride, s.rowStride);
  EXPECT_EQ(w.slice.transposed, s.transposed);
}

TEST(Localized, Rows) {
  Plan p = shardPlan(Format::BF16, {7, 9}, {2, 9}, {{0, 6, 1}});
  for (int64_t rank = 0; rank < 6; ++rank) {
    Plan own = localized(p, rank);
    const Weight &w = shard(own);
    // 2, 2, 2, 1 and nothing.
    expectSlice(w, {.format = Format::BF16, .rows = 7, .columns = 9,
                    .firstRow = 2 * rank, .blockRows = 2});
    EXPECT_EQ(w.shape, std::vector<int64_t>({2, 9}));
    EXPECT_EQ(w.storedRows(), 7);
    ASSERT_EQ(w.sources.size(), 1u);
    EXPECT_EQ(w.sources[0].tensor, "t0");
    // Others are as they were.
    EXPECT_EQ(own.weights[WStack].sources.size(), 4u);
    EXPECT_EQ(own.weights[WStack].slice.rows, 0);
    EXPECT_EQ(own.ranks.count, 6);
  }
}

TEST(Localized, ColumnsAndVectors) {
  Plan p = shardPlan(Format::NVFP4, {7, 80}, {7, 32}, {{1, 3, 2}});
  for (int64_t rank = 0; rank < 6; ++rank)
    expectSlice(shard(localized(p, rank)),
                {.format = Format::NVFP4, .rows = 7, .columns = 80,
                 .firstColumn = rank / 2 * 32, .blockRows = 7});
  p = shardPlan(Format::F32, {7}, {2}, {{0, 6, 1}});
  for (int64_t rank = 0; rank < 6; ++rank)
    expectSlice(shard(localized(p, rank)),
                {.format = Format::F32, .rows = 1, .columns = 7,
                 .firstColumn = rank * 2, .blockRows = 1});
}

TEST(Localized, ExpertsAndRows) {
  Plan p = experts();
  for (int64_t rank = 0; rank < 6; ++rank) {
    Plan own = localized(p, rank);
    const Weight &w = shard(own);
    expectSlice(w, {.format = Format::FP8Block, .rows = 300, .columns = 200,
                    .firstRow = rank % 2 * 256, .blockRows = 256});
    ASSERT_EQ(w.sources.size(), 2u);
    ASSERT_EQ(w.scales[0].sources.size(), 2u);
    for (int64_t i = 0; i < 2; ++i) {
      int64_t expert = rank / 2 * 2 + i;
      std::string number = std::to_string(expert);
      EXPECT_EQ(w.sources[size_t(i)].tensor, expert < 5 ? "t" + number : "");
      EXPECT_EQ(w.scales[0].sources[size_t(i)].tensor,
                expert < 5 ? "s0." + number : "");
    }
  }
}

TEST(Localized, ASliceOfThePart) {
  Plan p = heads();
  for (int64_t rank = 0; rank < 6; ++rank) {
    Plan own = localized(p, rank);
    expectSlice(shard(own),
                {.format = Format::FP8Block, .rows = 384, .columns = 200,
                 .firstRow = 64 + rank % 3 * 128, .firstColumn = 100,
                 .blockRows = 64});
    EXPECT_EQ(shard(own).layout, Layout::Packed);
    EXPECT_EQ(shard(own).format, Format::BF16);
  }
}

/// Together, the ranks have every element, each as often as any other.
TEST(Localized, NothingIsLost) {
  Plan p = shardPlan(Format::BF16, {7, 10}, {4, 4}, {{1, 3, 1}, {0, 2, 3}});
  ASSERT_TRUE(verify(p).ok());
  std::multiset<std::pair<int64_t, int64_t>> found;
  for (int64_t rank = 0; rank < 6; ++rank) {
    const Slice s = shard(localized(p, rank)).slice;
    for (int64_t r = s.firstRow; r < std::min<int64_t>(s.firstRow + 4, 7); ++r)
      for (int64_t c = s.firstColumn;
           c < std::min<int64_t>(s.firstColumn + 4, 10); ++c)
        found.insert({r, c});
  }
  EXPECT_EQ(found.size(), 70u);
  for (const auto &element : found)
    EXPECT_EQ(found.count(element), 1u);
}

//===----------------------------------------------------------------------===//
// verify()
//===----------------------------------------------------------------------===//

struct Rule {
  const char *name;
  Plan (*broken)();
  const char *message;
};

/// `good`, changed.
template <typename Change> Plan changed(Plan good, Change change) {
  change(good.weights[WShard], *good.weights[WShard].shard);
  return good;
}
Plan rows() {
  return shardPlan(Format::BF16, {7, 9}, {2, 9}, {{0, 6, 1}});
}

#define CHANGED(good, change)                                                  \
  [] {                                                                         \
    return changed(good, [](Weight & w, Shard & s) {                           \
      (void)w;                                                                 \
      (void)s;                                                                 \
      change;                                                                  \
    });                                                                        \
  }

const Rule rules[] = {
    {"oneRank",
     [] {
       Plan p = rows();
       p.ranks = {};
       return p;
     },
     "at /weights/5/shard: expected none in a plan for one rank, found one"},
    {"noDimension", CHANGED(rows(), s.whole.clear()),
     "/shard/whole: expected 1 or 2 dimensions, found 0"},
    {"threeDimensions", CHANGED(rows(), (s.whole = s.part = w.shape = {1, 2, 9})),
     "/shard/whole: expected 1 or 2 dimensions, found 3"},
    {"stackOfTwo",
     CHANGED(experts(), (s.whole = {5, 200}, s.part = w.shape = {2, 200})),
     "/shard/whole: expected 3 dimensions, found 2"},
    {"partDimensions", CHANGED(rows(), s.part.pop_back()),
     "/shard/part: expected as many dimensions as the whole has, found 1"},
    {"wholeZero", CHANGED(rows(), s.whole[1] = 0),
     "/shard/whole/1: expected an integer from 1"},
    {"partZero", CHANGED(rows(), s.part[0] = 0),
     "/shard/part/0: expected an integer from 1"},
    {"overflow", CHANGED(rows(), (s.whole = {int64_t(1) << 26, 1 << 26})),
     "/shard/whole: expected less than 2^53 bytes, found more"},
    {"overflow64", CHANGED(rows(), (s.whole = {int64_t(1) << 52, 1 << 30})),
     "/shard/whole: expected less than 2^53 bytes, found more"},
    {"splitDim", CHANGED(rows(), s.splits[0].dim = 2),
     "/shard/splits/0/dim: expected an integer from 0 to 1, found 2"},
    {"splitCountOne", CHANGED(rows(), s.splits[0].count = 1),
     "/shard/splits/0/count: expected an integer from 2 to 6, found 1"},
    {"splitCountMany", CHANGED(rows(), s.splits[0].count = 7),
     "/shard/splits/0/count: expected an integer from 2 to 6, found 7"},
    {"splitStrideMany", CHANGED(rows(), s.splits[0].stride = 7),
     "/shard/splits/0/stride: expected an integer from 1 to 6, found 7"},
    {"splitStrideZero", CHANGED(rows(), s.splits[0].stride = 0),
     "/shard/splits/0/stride: expected an integer from 1 to 6, found 0"},
    {"splitOfOthers", CHANGED(rows(), s.splits[0].count = 4),
     "/shard/splits/0: expected parts for all of the 6 ranks, found 4 by 1"},
    {"splitBeyond", CHANGED(rows(), s.splits[0].stride = 2),
     "/shard/splits/0: expected parts for all of the 6 ranks, found 6 by 2"},
    {"splitTwice",
     CHANGED(rows(), (s.splits = {{0, 2, 1}, {0, 3, 2}})),
     "/shard/splits/1/dim: expected one split of a dimension, found a second"},
    {"diagonal",
     CHANGED(experts(), (s.splits = {{0, 3, 1}, {1, 3, 1}})),
     "/shard/splits: expected a rank for each part, found none for some"},
    {"tooManyParts",
     CHANGED(experts(), (s.splits = {{0, 3, 2}, {1, 3, 2}, {2, 3, 2}})),
     "/shard/splits: expected a rank for each part, found none for some"},
    {"notAll", CHANGED(rows(), s.part[1] = w.shape[1] = 8),
     "/shard/part/1: expected all of 9, found 1 of 8"},
    {"partsTooSmall", CHANGED(rows(), s.part[0] = w.shape[0] = 1),
     "/shard/part/0: expected parts of 7, found 6 of 1"},
    {"blockRows", CHANGED(experts(), s.part[1] = w.shape[1] = 192),
     "/shard/part/1: expected whole groups of 128, which share a scale, or a "
     "divisor of that, found 192"},
    {"blockColumns",
     [] {
       return shardPlan(Format::FP8Block, {300, 200}, {300, 48}, {{1, 6, 1}});
     },
     "/shard/part/1: expected whole groups of 128"},
    {"groupColumns",
     [] { return shardPlan(Format::NVFP4, {7, 96}, {7, 24}, {{1, 6, 1}}); },
     "/shard/part/1: expected whole groups of 16, which share a scale, found "
     "24"},
    {"groupColumnsOfInt4",
     [] { return shardPlan(Format::Int4G32, {7, 96}, {7, 48}, {{1, 2, 1}}); },
     "/shard/part/1: expected whole groups of 32, which share a scale, found "
     "48"},
    {"wholeColumns",
     [] { return shardPlan(Format::NVFP4, {7, 88}, {7, 48}, {{1, 2, 1}}); },
     "/shard/whole/1: expected columns in groups of 16, found 88"},
    {"otherShape", CHANGED(rows(), w.shape[0] = 3),
     "/shard/part: expected the shape of the weight, found another"},
    {"otherSlice", CHANGED(heads(), w.slice.rows = 256),
     "/shard/part: expected the 256 x 200 that the slice is taken from, found "
     "128 x 200"},
    {"otherTensors",
     [] {
       Plan p = heads();
       Weight &w = p.weights[WShard];
       w.stacked = true;
       w.shape = {3, 64, 100};
       w.shard = {{6, 128, 200}, {2, 128, 200}, {{0, 3, 1}}};
       w.sources.assign(6, w.sources[0]);
       w.scales[0].sources = w.sources;
       return p;
     },
     "/shard/part/0: expected the 3 tensors of the weight, found 2"},
    {"sourcesOfThePart",
     [] {
       return changed(experts(), [](Weight &w, Shard &) {
         w.sources.resize(2);
         w.scales[0].sources.resize(2);
       });
     },
     "at /weights/5: expected 5 checkpoint tensors for \"shard\", found 2"},
    // Of the part, not of the whole.
    {"sliceBeyondThePart", CHANGED(heads(), w.slice.firstRow = 65),
     "/weights/5/slice: expected 1 runs of 64 rows within the matrix of 128"},

    {"rankInAShape",
     [] {
       Plan p = samplePlan();
       p.programs[0].workspaces[0].shape[1] = expr("8 + rank");
       return p;
     },
     "at /programs/0/workspaces/0/shape/1: expected neither capacity nor rank in "
     "the shape of a workspace, found \"8 + rank\""},
    {"gridOfTheLastRank",
     [] {
       Plan p = samplePlan();
       p.programs[0].launches[LNorm].grid = expr("2 - rank");
       return p;
     },
     "at /programs/0/launches/3/grid: expected a grid of at least 0, found \"2 - "
     "rank\" = -1"},
    {"collectiveOfOneRank",
     [] {
       Plan p = samplePlan();
       p.ranks = {};
       p.weights.pop_back();
       return p;
     },
     "at /kernels/7/collective: expected a kernel of the library in a plan for "
     "one rank, found all_reduce"},
    {"collectiveFormat",
     [] {
       Plan p = samplePlan();
       p.kernels[KReduce].parameters[1].format = Format::BF16;
       return p;
     },
     "at /kernels/7/parameters: expected read f32, write f32, scalar, scalar, "
     "scalar of a collective, found \"read f32, write bf16, scalar, scalar, "
     "scalar\""},
    {"collectiveScalars",
     [] {
       Plan p = samplePlan();
       p.kernels[KReduce].parameters.pop_back();
       return p;
     },
     "at /kernels/7/parameters: expected read f32, write f32, scalar, scalar, "
     "scalar of a collective"},
    {"collectiveThreads",
     [] {
       Plan p = heads();
       p.kernels[KReduce].threads = 32;
       return p;
     },
     "at /kernels/7/threads: expected an integer from 0 to 0, found 32"},
    {"collectiveShared",
     [] {
       Plan p = heads();
       p.kernels[KReduce].sharedBytes = 4;
       return p;
     },
     "at /kernels/7/shared_bytes: expected an integer from 0 to 0, found 4"},
    {"collectiveGrid",
     [] {
       Plan p = samplePlan();
       p.programs[0].launches[LReduce].grid = expr("tokens");
       return p;
     },
     "at /programs/0/launches/6/grid: expected 1 for the collective \"sum\", "
     "found \"tokens\""},
};

class ShardRule : public testing::TestWithParam<Rule> {};

TEST_P(ShardRule, Complains) {
  Plan p = GetParam().broken();
  Status status = verify(p);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::Invalid);
  EXPECT_NE(status.message().find(GetParam().message), std::string::npos)
      << status.message();
  EXPECT_FALSE(parse(print(p), "plan.json").ok());
}

INSTANTIATE_TEST_SUITE_P(Plan, ShardRule, testing::ValuesIn(rules),
                         [](const auto &info) {
                           return std::string(info.param.name);
                         });

TEST(Collectives, AllComeBack) {
  Plan p = samplePlan();
  for (size_t i = 1; i < collectiveCount; ++i) {
    auto collective = static_cast<Collective>(i);
    p.kernels[KReduce].collective = collective;
    Result<Plan> read = parse(print(p), "plan.json");
    ASSERT_TRUE(read.ok()) << read.status().message();
    EXPECT_EQ(read->kernels[KReduce].collective, collective);
    EXPECT_EQ(read->kernels[KGather].collective, Collective::None);
  }
}

} // namespace
