//===- ShardTest.cpp - weights cut for ranks ------------------------------===//
//
// Part of mla. Every rank of a plan loads what it has of each weight, on a host and
// on a device, from a file and by the formula; together that is the whole, and
// zeros beyond it.
//
//===----------------------------------------------------------------------===//
#include "MirrorDevice.h"
#include "ShardTensor.h"
#include "TestPlan.h"
#include "mla/Quant/Pack.h"
#include "mla/Support/Hash.h"
#include "runtime/hal/host/HostDevice.h"
#include "runtime/weights/WeightStore.h"
#include <cmath>
#include <cstring>
#include <fstream>
#include <gtest/gtest.h>
#include <limits>
#include <random>

using namespace mla;
using namespace mla::runtime;
using test::Tensor, test::randomTensor, test::syntheticTensor;
using Split = plan::Shard::Split;

namespace {

using Bytes = std::vector<std::byte>;

constexpr Format allFormats[] = {Format::F32,   Format::BF16,
                                 Format::F16,   Format::FP8Block,
                                 Format::NVFP4, Format::Int4G32};

/// A size of parts that verify() takes.
int64_t partOf(Format format, int64_t whole, int64_t count, bool columns) {
  int64_t least = (whole + count - 1) / count, group = scaleGroup(format);
  if (format == Format::FP8Block)
    for (group = 1; group < 128 && group < least;)
      group *= 2;
  else if (!columns)
    group = 1;
  return (least + group - 1) / group * group;
}

class ShardTest : public testing::Test {
protected:
  ShardTest() {
    auto made = ThreadPool::create(3);
    EXPECT_TRUE(made.ok());
    pool = *std::move(made);
    host = std::make_unique<hal::HostDevice>(*pool);
    log.fill = std::byte{0xA5};
    gpu = std::make_unique<test::MirrorDevice>(*pool, log);
    first = files.plan.weights.size();
  }

  bool synthetic() const {
    return files.plan.checkpoint.kind == plan::Checkpoint::Kind::Synthetic;
  }

  void beSynthetic() {
    plan::Plan &plan = files.plan;
    plan.checkpoint = {};
    plan.checkpoint.kind = plan::Checkpoint::Kind::Synthetic;
    plan.checkpoint.seed = 5;
    for (plan::Weight &w : plan.weights)
      for (plan::TensorSource &source : w.sources)
        source.file = 0, source.offset = 0;
  }

  /// Adds a weight of tensors of the size `whole` ([tensors,] rows, columns).
  plan::Weight &add(const std::string &name, Format format,
                    std::vector<int64_t> whole, std::vector<Split> splits) {
    plan::Weight w{name, format, {}, whole.size() == 3, {}};
    plan::Shard shard{whole, whole, splits};
    for (const Split &split : splits) {
      auto dim = static_cast<size_t>(split.dim);
      bool one = w.stacked && dim == 0;
      shard.part[dim] =
          partOf(one ? Format::F32 : format, whole[dim], split.count,
                 dim + 1 == whole.size());
    }
    w.shape = shard.part;
    w.shard = shard;
    w.scales.resize(storagePartCount(format) - 1);
    int64_t rows = whole.size() > 1 ? whole[whole.size() - 2] : 1;
    std::vector<Tensor> all;
    for (int64_t t = 0; t < (w.stacked ? whole[0] : 1); ++t) {
      std::string tensor = name + "." + std::to_string(t);
      all.push_back(synthetic()
                        ? syntheticTensor(tensor, format, whole.size() == 1,
                                          rows, whole.back())
                        : randomTensor(format, rows, whole.back(), random));
      for (size_t p = 0; p <= w.scales.size(); ++p) {
        plan::TensorSource source = {tensor, 0, 0};
        if (p)
          source.tensor += ".scale" + std::to_string(p);
        if (!synthetic()) {
          source.file = fileIndex;
          bytes.resize((bytes.size() + 63) / 64 * 64, '#');
          source.offset = bytes.size();
          bytes.append(reinterpret_cast<const char *>(all.back().part[p].data()),
                       all.back().part[p].size());
        }
        (p ? w.scales[p - 1].sources : w.sources).push_back(source);
      }
    }
    tensors.push_back(std::move(all));
    files.plan.weights.push_back(std::move(w));
    return files.plan.weights.back();
  }

  /// Weights of every format, cut in every way among `ranks`.
  void addAll(int64_t ranks) {
    files.plan.ranks.count = ranks;
    add("base", Format::F32, {4, 4}, {}); // Where the file is mapped.
    for (Format f : allFormats) {
      std::string name(formatName(f));
      bool groups = scaleGroup(f) != 1;
      int64_t columns = groups ? 320 : 333;
      add(name + ".rows", f, {300, columns}, {{0, ranks, 1}});
      add(name + ".columns", f, {30, columns}, {{1, ranks, 1}});
      add(name + ".experts", f, {5, 20, 96}, {{0, ranks, 1}});
      add(name + ".stacked_rows", f, {3, 140, 64}, {{1, ranks, 1}});
      if (!groups)
        add(name + ".vector", f, {77}, {{0, ranks, 1}});
      if (ranks % 2 != 0 || ranks == 2)
        continue;
      int64_t rest = ranks / 2;
      add(name + ".replicated", f, {150, 64}, {{0, 2, rest}});
      add(name + ".both", f, {300, columns}, {{0, 2, 1}, {1, rest, 2}});
      add(name + ".experts_rows", f, {5, 140, 64}, {{0, 2, rest}, {1, rest, 1}});
      add(name + ".experts_columns", f, {3, 9, 160},
          {{0, rest, 1}, {2, 2, rest}});
    }
    if (!synthetic())
      writeFile();
  }

  void writeFile() {
    plan::Plan &plan = files.plan;
    std::ofstream(files.checkpoint() / "c.safetensors", std::ios::binary)
        << bytes;
    plan.checkpoint.files.resize(fileIndex);
    plan.checkpoint.files.push_back(
        {"c.safetensors", bytes.size(), 16, fnv1a64(bytes.substr(0, 16))});
  }

  /// The plan for a GPU, with the same parts: packed if that can be.
  plan::Plan arranged() const {
    plan::Plan plan = files.plan;
    plan.target.name = "sm_90a";
    for (plan::Kernel &kernel : plan.kernels)
      kernel.threads = 32;
    for (size_t i = first; i < plan.weights.size(); ++i) {
      plan::Weight &w = plan.weights[i];
      if (w.layout != plan::Layout::Checkpoint)
        continue;
      w.layout = quant::canPack(w.format) && w.shape.size() > 1
                     ? plan::Layout::Packed
                     : plan::Layout::Rows;
      w.slice = {.format = w.format, .rows = w.matrixRows(),
                 .columns = w.matrixColumns(), .blockRows = w.matrixRows()};
    }
    return plan;
  }

  Result<std::unique_ptr<WeightStore>> load(const plan::Plan &plan,
                                            hal::Device &device, int64_t rank,
                                            const WeightOptions &options = {}) {
    Status status = plan::verify(plan);
    EXPECT_TRUE(status.ok()) << status.message();
    local = plan::localized(plan, rank);
    return WeightStore::load(local, device, *pool, options);
  }

  /// Tensor `t` of a weight on the host.
  static quant::ConstMatrixParts parts(const WeightStore &store,
                                       const plan::Weight &w, size_t index,
                                       size_t t) {
    auto all = store.tensors(static_cast<uint32_t>(index));
    size_t count = w.scales.size() + 1;
    quant::ConstMatrixParts parts = {w.format, w.matrixRows(),
                                     w.matrixColumns(), all[t * count],
                                     {},       {}};
    if (count > 1)
      parts.scales = all[t * count + 1];
    if (count > 2)
      parts.global = all[t * count + 2];
    return parts;
  }

  void expectAll(int64_t ranks);
  void expectHost(const WeightStore &store, size_t index, int64_t rank);
  void expectInPlace(const WeightStore &store, size_t index, int64_t rank);

  test::TestPlan files;
  test::TempFolder temp;
  test::MirrorLog log;
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<hal::HostDevice> host;
  std::unique_ptr<test::MirrorDevice> gpu;
  std::mt19937 random{7};
  const uint32_t fileIndex =
      static_cast<uint32_t>(files.plan.checkpoint.files.size());
  std::string bytes = "the file's head "; // 16 bytes
  size_t first = 0;
  std::vector<std::vector<Tensor>> tensors; ///< Of each weight that is added.
  plan::Plan local;                         ///< Of the last load().
};

/// Where a weight's rank begins: tensor, row, column.
std::array<int64_t, 3> beginning(const plan::Weight &w, int64_t rank) {
  const plan::Shard &s = *w.shard;
  auto n = static_cast<int64_t>(s.whole.size());
  return {w.stacked ? s.first(0, rank) : 0, n > 1 ? s.first(n - 2, rank) : 0,
          s.first(n - 1, rank)};
}

/// The values are those of the whole, and zero beyond.
void ShardTest::expectHost(const WeightStore &store, size_t index,
                           int64_t rank) {
  const plan::Weight &w = files.plan.weights[index];
  const std::vector<Tensor> &whole = tensors[index - first];
  auto [tensor, row, column] = beginning(w, rank);
  int64_t rows = w.matrixRows(), columns = w.matrixColumns();
  size_t count = w.stacked ? static_cast<size_t>(w.shape[0]) : 1;
  ASSERT_EQ(store.tensors(static_cast<uint32_t>(index)).size(),
            count * (w.scales.size() + 1));
  std::vector<float> values(static_cast<size_t>(rows * columns));
  for (size_t t = 0; t < count; ++t) {
    quant::ConstMatrixParts have = parts(store, w, index, t);
    std::span<const std::byte> spans[] = {have.values, have.scales,
                                          have.global};
    size_t p = 0;
    for (const StoragePart &part : storageParts(w.format, rows, columns))
      ASSERT_EQ(spans[p++].size(), part.bytes());
    quant::dequantizeRows(have, 0, values);
    size_t from = static_cast<size_t>(tensor) + t, wrong = 0;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c) {
        float expected =
            from < whole.size() ? whole[from].at(row + r, column + c) : 0;
        wrong += values[static_cast<size_t>(r * columns + c)] != expected;
      }
    EXPECT_EQ(wrong, 0U) << "tensor " << t;
  }
}

/// What is one run of the file's bytes is used where it lies.
void ShardTest::expectInPlace(const WeightStore &store, size_t index,
                              int64_t rank) {
  const plan::Weight &w = files.plan.weights[index];
  const std::byte *mapping =
      store.tensors(static_cast<uint32_t>(first))[0].data() -
      local.weights[first].sources[0].offset;
  auto [tensor, row, column] = beginning(w, rank);
  int64_t rows = w.matrixRows();
  const Tensor &one = tensors[index - first][0];
  size_t count = w.stacked ? static_cast<size_t>(w.shape[0]) : 1;
  for (size_t t = 0; t < count; ++t) {
    bool there = !w.stacked || tensor + int64_t(t) < w.shard->whole[0];
    auto address = [&](size_t p) {
      return store.tensors(static_cast<uint32_t>(index))
          [t * (w.scales.size() + 1) + p]
              .data();
    };
    bool inside = there && row + rows <= one.rows &&
                  column + w.matrixColumns() <= one.columns;
    bool run = inside && (w.matrixColumns() == one.columns || rows == 1);
    const auto *end = mapping + bytes.size();
    EXPECT_EQ(address(0) >= mapping && address(0) < end, run);
    if (run) {
      const plan::TensorSource &source =
          w.sources[static_cast<size_t>(tensor) + t];
      uint64_t each = one.part[0].size() / static_cast<uint64_t>(one.rows);
      uint64_t at = static_cast<uint64_t>(row) * each +
                    static_cast<uint64_t>(column) * each /
                        static_cast<uint64_t>(one.columns);
      EXPECT_EQ(address(0), mapping + source.offset + at);
      EXPECT_TRUE(w.scales.empty() ||
                  (address(1) >= mapping && address(1) < end));
    }
    EXPECT_TRUE(!there || w.scales.size() < 2 ||
                (address(2) >= mapping && address(2) < end));
  }
}

void ShardTest::expectAll(int64_t ranks) {
  plan::Plan other = arranged();
  for (int64_t rank = 0; rank < ranks; ++rank) {
    auto device = load(other, *gpu, rank);
    ASSERT_TRUE(device.ok()) << device.status().message();
    auto loaded = load(files.plan, *host, rank);
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    uint64_t total = 0;
    for (size_t i = first; i < files.plan.weights.size(); ++i) {
      const plan::Weight &w = files.plan.weights[i];
      SCOPED_TRACE(w.name + ", rank " + std::to_string(rank) + " of " +
                   std::to_string(ranks));
      expectHost(**loaded, i, rank);
      if (!synthetic())
        expectInPlace(**loaded, i, rank);
      // The device has the same, packed.
      Bytes expected;
      for (size_t t = 0; t < (w.stacked ? size_t(w.shape[0]) : 1); ++t) {
        quant::ConstMatrixParts from = parts(**loaded, w, i, t);
        Bytes one(from.values.begin(), from.values.end());
        if (other.weights[i].layout == plan::Layout::Packed) {
          one.assign(size_t(quant::packedBytes(w.format, from.rows,
                                               from.columns)),
                     std::byte{0x77});
          quant::pack(from, 0, quant::packedQuads(from.rows), one);
        }
        expected.insert(expected.end(), one.begin(), one.end());
      }
      ASSERT_EQ(*other.weights[i].deviceBytes(), expected.size());
      EXPECT_EQ(std::memcmp(reinterpret_cast<const void *>((*device)->argument(
                                static_cast<uint32_t>(i))),
                            expected.data(), expected.size()),
                0);
      total += *w.deviceBytes();
    }
    for (size_t i = 0; i < first; ++i)
      total += *files.plan.weights[i].deviceBytes();
    EXPECT_EQ((*loaded)->bytes(), total);
  }
}

class ShardRanks : public ShardTest, public testing::WithParamInterface<int> {};

TEST_P(ShardRanks, FromAFile) {
  addAll(GetParam());
  expectAll(GetParam());
}

TEST_P(ShardRanks, ByTheFormula) {
  beSynthetic();
  addAll(GetParam());
  expectAll(GetParam());
}

/// Keys of heads, transposed, and a part of the columns of their values.
TEST_P(ShardRanks, Converted) {
  constexpr int64_t heads = 5, keys = 72, height = 128, width = 96;
  int64_t ranks = GetParam(), own = (heads + ranks - 1) / ranks;
  files.plan.ranks.count = ranks;
  for (bool formula : {false, true}) {
    if (formula)
      beSynthetic();
    files.plan.weights.resize(first);
    tensors.clear();
    for (Format f : allFormats)
      for (bool transposed : {true, false}) {
        plan::Weight &w = add(std::string(formatName(f)) +
                                  (transposed ? ".keys" : ".values"),
                              f, {heads * height, width}, {{0, ranks, 1}});
        w.shard->part[0] = own * height;
        w.layout = transposed ? plan::Layout::Packed : plan::Layout::Rows;
        w.format = transposed ? Format::BF16 : Format::F32;
        w.slice = {.format = f, .rows = own * height, .columns = width,
                   .firstRow = transposed ? 0 : keys,
                   .firstColumn = transposed ? 0 : 37, .blocks = own,
                   .blockRows = transposed ? keys : height - keys,
                   .rowStride = height, .transposed = transposed};
        w.shape = {own, width, keys};
        if (!transposed)
          w.shape = {own, height - keys, 20};
      }
    if (!formula)
      writeFile();
    plan::Plan plan = arranged();
    for (int64_t rank = 0; rank < ranks; ++rank) {
      auto store = load(plan, *gpu, rank);
      ASSERT_TRUE(store.ok()) << store.status().message();
      for (size_t i = first; i < plan.weights.size(); ++i) {
        const plan::Weight &w = plan.weights[i];
        SCOPED_TRACE(w.name + " of rank " + std::to_string(rank));
        const Tensor &from = tensors[i - first][0];
        std::vector<float> values;
        for (int64_t h = rank * own; h < (rank + 1) * own; ++h)
          for (int64_t r = 0; r < w.shape[1]; ++r)
            for (int64_t c = 0; c < w.shape[2]; ++c)
              values.push_back(w.slice.transposed
                                   ? from.at(h * height + c, r)
                                   : from.at(h * height + keys + r, 37 + c));
        int64_t rows = w.matrixRows(), columns = w.matrixColumns();
        Bytes expected(values.size() * 4);
        std::memcpy(expected.data(), values.data(), expected.size());
        if (w.slice.transposed) {
          Bytes stored(values.size() * 2);
          quant::quantizeRows(values, 0,
                              {Format::BF16, rows, columns, stored, {}, {}});
          expected.assign(
              size_t(quant::packedBytes(Format::BF16, rows, columns)),
              std::byte{0x77});
          quant::pack({Format::BF16, rows, columns, stored, {}, {}}, 0,
                      quant::packedQuads(rows), expected);
        }
        ASSERT_EQ(*w.deviceBytes(), expected.size());
        EXPECT_EQ(
            std::memcmp(reinterpret_cast<const void *>(
                            (*store)->argument(static_cast<uint32_t>(i))),
                        expected.data(), expected.size()),
            0);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shard, ShardRanks, testing::Values(2, 3, 6, 8),
                         [](const auto &info) {
                           return "Of" + std::to_string(info.param);
                         });

TEST_F(ShardTest, NaNIsRefusedByName) {
  files.plan.ranks.count = 3;
  add("fp8", Format::FP8Block, {300, 64}, {{0, 3, 1}});
  add("nvfp4", Format::NVFP4, {9, 96}, {{1, 3, 1}});
  add("int4", Format::Int4G32, {4, 9, 64}, {{0, 3, 1}});
  struct Damage {
    size_t weight, tensor, part;
    uint64_t at;
    std::string bytes;
    int64_t rank; ///< That has it.
  };
  // fp8: 128 rows a rank; nvfp4: 2 scales of each row; int4: 2 tensors.
  const Damage damages[] = {
      {0, 0, 0, 299 * 64 + 3, "\x7f", 2},
      {0, 0, 0, 128 * 64, "\xff", 1},
      {1, 0, 1, 8 * 6 + 3, "\x7f", 1},
      {1, 0, 1, 5, "\xff", 2},
      {2, 2, 1, 9 * 2 * 2 - 2, std::string("\x80\x7f", 2), 1}};
  const std::string good = bytes;
  for (const Damage &damage : damages) {
    const plan::TensorSource source =
        files.plan.weights[first + damage.weight].partSources(
            damage.part)[damage.tensor];
    bytes.replace(source.offset + damage.at, damage.bytes.size(), damage.bytes);
    writeFile();
    plan::Plan other = arranged();
    for (int64_t rank = 0; rank < 3; ++rank)
      for (bool onHost : {true, false}) {
        auto store = onHost ? load(files.plan, *host, rank)
                            : load(other, *gpu, rank);
        ASSERT_EQ(store.ok(), rank != damage.rank)
            << source.tensor << " " << rank << " " << onHost;
        EXPECT_EQ(store.status().message(),
                  store.ok() ? ""
                             : "tensor " + source.tensor +
                                   ": expected numbers, found NaN or infinity "
                                   "(a damaged file?)");
      }
    bytes = good;
  }
  // Scales that no row has are every rank's.
  const plan::TensorSource global =
      files.plan.weights[first + 1].scales[1].sources[0];
  bytes.replace(global.offset, 4, std::string("\0\0\xc0\x7f", 4));
  writeFile();
  for (int64_t rank = 0; rank < 3; ++rank) {
    EXPECT_FALSE(load(files.plan, *host, rank).ok());
    EXPECT_FALSE(load(arranged(), *gpu, rank).ok());
  }
}

TEST_F(ShardTest, ReciprocalsAndTensorsOfZeros) {
  files.plan.ranks.count = 2;
  plan::Weight &w = add("e", Format::NVFP4, {3, 4, 32}, {{0, 2, 1}});
  w.scales[1].reciprocal = true;
  for (size_t t = 0; t < 3; ++t) {
    float value = static_cast<float>(2 << t);
    std::memcpy(bytes.data() + w.scales[1].sources[t].offset, &value, 4);
  }
  writeFile();
  const float expected[2][2] = {{0.5F, 0.25F}, {0.125F, 1}};
  for (int64_t rank : {0, 1}) {
    auto store = load(files.plan, *host, rank);
    ASSERT_TRUE(store.ok()) << store.status().message();
    auto device = load(arranged(), *gpu, rank);
    ASSERT_TRUE(device.ok()) << device.status().message();
    uint64_t each = static_cast<uint64_t>(quant::packedBytes(w.format, 4, 32));
    uint64_t tail = static_cast<uint64_t>(quant::packedTail(w.format, 4, 32));
    for (size_t t : {0, 1}) {
      float value = 0;
      std::memcpy(&value, parts(**store, w, first, t).global.data(), 4);
      EXPECT_EQ(value, expected[rank][t]);
      uint64_t at = (*device)->argument(static_cast<uint32_t>(first)) +
                    t * each + tail;
      std::memcpy(&value, reinterpret_cast<const void *>(at), 4);
      EXPECT_EQ(value, expected[rank][t]);
    }
  }
}

/// All tensors of zeros of a weight are one.
TEST_F(ShardTest, ZerosAreNotStoredTwice) {
  for (bool formula : {false, true}) {
    files.plan.ranks.count = 8;
    if (formula)
      beSynthetic();
    files.plan.weights.resize(first);
    tensors.clear();
    plan::Weight &w = add("e", Format::FP8Block, {4, 8, 8}, {{0, 8, 1}});
    w.shard->part[0] = w.shape[0] = 3;
    if (!formula)
      writeFile();
    auto store = load(files.plan, *host, 5);
    ASSERT_TRUE(store.ok()) << store.status().message();
    auto all = (*store)->tensors(static_cast<uint32_t>(first));
    ASSERT_EQ(all.size(), 6U);
    EXPECT_EQ(all[0].data(), all[2].data());
    EXPECT_EQ(all[1].data(), all[5].data());
    expectHost(**store, first, 5);
  }
}

/// A packed file is that of a rank.
TEST_F(ShardTest, PackedFiles) {
  for (bool formula : {false, true}) {
    if (formula)
      beSynthetic();
    files.plan.weights.resize(first);
    tensors.clear();
    addAll(3);
    plan::Plan plan = arranged();
    WeightOptions options;
    options.packed = temp.path / (formula ? "formula" : "file");
    auto made = load(plan, *gpu, 1);
    ASSERT_TRUE(made.ok()) << made.status().message();
    Status status = WeightStore::pack(local, *pool, {}, options.packed);
    ASSERT_TRUE(status.ok()) << status.message();
    auto again = load(plan, *gpu, 1, options);
    ASSERT_TRUE(again.ok()) << again.status().message();
    for (size_t i = first; i < plan.weights.size(); ++i)
      EXPECT_EQ(std::memcmp(reinterpret_cast<const void *>(
                                (*made)->argument(static_cast<uint32_t>(i))),
                            reinterpret_cast<const void *>(
                                (*again)->argument(static_cast<uint32_t>(i))),
                            *plan.weights[i].deviceBytes()),
                0);
    for (int64_t rank : {0, 2}) {
      auto other = load(plan, *gpu, rank, options);
      ASSERT_FALSE(other.ok());
      EXPECT_NE(other.status().message().find("those of another"),
                std::string::npos)
          << other.status().message();
    }
  }
}

} // namespace
