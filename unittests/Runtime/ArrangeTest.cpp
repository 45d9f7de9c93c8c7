//===- ArrangeTest.cpp - weights cut, converted and packed ----------------===//
//
// Part of mla. Weights of every layout are loaded to a device and compared with
// matrices that are cut here, element by element, and packed as a whole: from a
// checkpoint of random values, from the formula of synthetic weights, and from a
// packed file.
//
//===----------------------------------------------------------------------===//
#include "MirrorDevice.h"
#include "TestPlan.h"
#include "mla/Quant/Codec.h"
#include "mla/Quant/Pack.h"
#include "mla/Support/Hash.h"
#include "runtime/weights/Synthetic.h"
#include "runtime/weights/WeightStore.h"
#include <cstring>
#include <fstream>
#include <gtest/gtest.h>
#include <random>

using namespace mla;
using namespace mla::runtime;
using quant::canPack;

namespace {

using Bytes = std::vector<std::byte>;

/// A checkpoint's tensor as a whole.
struct Tensor {
  Format format;
  int64_t rows, columns;
  Bytes part[3];
  quant::MatrixParts parts() {
    return {format, rows, columns, part[0], part[1], part[2]};
  }
  quant::ConstMatrixParts parts() const {
    return {format, rows, columns, part[0], part[1], part[2]};
  }
};

Tensor emptyTensor(Format format, int64_t rows, int64_t columns) {
  Tensor t{format, rows, columns, {}};
  size_t i = 0;
  for (const StoragePart &part : storageParts(format, rows, columns))
    t.part[i++].resize(part.bytes());
  return t;
}

Tensor randomTensor(Format format, int64_t rows, int64_t columns,
                    uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(rows * columns));
  for (float &v : values)
    v = normal(random);
  Tensor t = emptyTensor(format, rows, columns);
  if (format == Format::NVFP4) {
    float global = quant::nvfp4GlobalScale(quant::largestMagnitude(values));
    std::memcpy(t.part[2].data(), &global, 4);
  }
  quant::quantizeRows(values, 0, t.parts());
  return t;
}

Tensor syntheticTensor(const std::string &name, const plan::Weight &w,
                       int64_t seed) {
  const plan::Slice &s = w.slice;
  std::vector<int64_t> shape = {s.rows, s.columns};
  if (w.shape.size() == 1)
    shape = {s.columns};
  SyntheticTensor formula(name, shape, seed);
  std::vector<float> values(static_cast<size_t>(s.rows * s.columns));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = formula.value(i);
    if (s.format != Format::F32)
      values[i] = quant::decodeBF16(quant::encodeBF16(values[i]));
  }
  Tensor t = emptyTensor(s.format, s.rows, s.columns);
  if (s.format == Format::NVFP4) {
    float global = quant::nvfp4GlobalScale(formula.bound());
    std::memcpy(t.part[2].data(), &global, 4);
  }
  quant::quantizeRows(values, 0, t.parts());
  return t;
}

/// Copies element [fromRow, fromColumn] of a part with `bits` an element, of
/// which each row begins a byte.
void copyElement(const Bytes &from, int64_t fromColumns, int64_t fromRow,
                 int64_t fromColumn, Bytes &to, int64_t toColumns,
                 int64_t toRow, int64_t toColumn, int64_t bits) {
  int64_t a = (fromRow * fromColumns + fromColumn) * bits;
  int64_t b = (toRow * toColumns + toColumn) * bits;
  for (int64_t i = 0; i < bits; ++i) {
    auto bit = std::to_integer<int>(from[size_t((a + i) / 8)]) >>
                   ((a + i) % 8) & 1;
    to[size_t((b + i) / 8)] |= std::byte(bit << ((b + i) % 8));
  }
}

/// The bytes that one tensor of `w` must be on the device.
Bytes expectedTensor(const plan::Weight &w, const Tensor &t) {
  const plan::Slice &s = w.slice;
  int64_t R = w.matrixRows(), C = w.matrixColumns();
  Tensor cut = emptyTensor(w.format, R, C);
  auto source = [&](int64_t r, int64_t c) -> std::pair<int64_t, int64_t> {
    if (!s.transposed)
      return {s.firstRow + r / s.blockRows * s.rowStride + r % s.blockRows,
              s.firstColumn + c};
    int64_t W = R / s.blocks;
    return {s.firstRow + r / W * s.rowStride + c, s.firstColumn + r % W};
  };
  if (w.format == s.format && s.format != Format::F32) {
    int64_t bits = s.format == Format::FP8Block           ? 8
                   : storagePartCount(s.format) == 1 ? 16
                                                           : 4;
    for (int64_t r = 0; r < R; ++r)
      for (int64_t c = 0; c < C; ++c) {
        auto [row, column] = source(r, c);
        copyElement(t.part[0], t.columns, row, column, cut.part[0], C, r, c,
                    bits);
      }
    int64_t group = scaleGroup(s.format);
    if (s.format == Format::FP8Block) {
      int64_t across = (C + 127) / 128, all = (t.columns + 127) / 128;
      for (int64_t r = 0; r < (R + 127) / 128; ++r)
        for (int64_t c = 0; c < across; ++c) {
          auto [row, column] = source(r * 128, c * 128);
          copyElement(t.part[1], all, row / 128, column / 128, cut.part[1],
                      across, r, c, 32);
        }
    } else if (group > 1) {
      for (int64_t r = 0; r < R; ++r)
        for (int64_t c = 0; c < C / group; ++c) {
          auto [row, column] = source(r, c * group);
          copyElement(t.part[1], t.columns / group, row, column / group,
                      cut.part[1], C / group, r, c,
                      s.format == Format::NVFP4 ? 8 : 16);
        }
    }
    cut.part[2] = t.part[2];
  } else {
    std::vector<float> all(static_cast<size_t>(t.rows * t.columns));
    quant::dequantizeRows(t.parts(), 0, all);
    std::vector<float> values;
    for (int64_t r = 0; r < R; ++r)
      for (int64_t c = 0; c < C; ++c) {
        auto [row, column] = source(r, c);
        values.push_back(all[size_t(row * t.columns + column)]);
      }
    quant::quantizeRows(values, 0, cut.parts());
  }
  if (w.layout == plan::Layout::Rows)
    return cut.part[0];
  Bytes out(size_t(quant::packedBytes(w.format, R, C)), std::byte{0x77});
  const Tensor &done = cut;
  quant::pack(done.parts(), 0, quant::packedQuads(R), out);
  return out;
}

struct Case {
  const char *name;
  Format format;
  std::vector<int64_t> shape;
  bool stacked;
  plan::Layout layout;
  plan::Slice slice;
};

constexpr auto rowsLayout = plan::Layout::Rows, packed = plan::Layout::Packed;

const Case cases[] = {
    {"vector", Format::F32, {70}, false, rowsLayout,
     {.format = Format::BF16, .rows = 1, .columns = 70, .blockRows = 1}},
    {"part_of_a_vector.bias", Format::F32, {20}, false, rowsLayout,
     {.format = Format::F32, .rows = 1, .columns = 70, .firstColumn = 30,
      .blockRows = 1}},
    {"runs", Format::BF16, {6, 33}, false, rowsLayout,
     {.format = Format::BF16, .rows = 40, .columns = 50, .firstRow = 5,
      .firstColumn = 7, .blocks = 2, .blockRows = 3, .rowStride = 11}},
    {"half", Format::F16, {5, 9}, false, rowsLayout,
     {.format = Format::F16, .rows = 5, .columns = 9, .blockRows = 5}},
    {"stack_of_rows", Format::BF16, {3, 4, 10}, true, rowsLayout,
     {.format = Format::F32, .rows = 8, .columns = 10, .firstRow = 4,
      .blockRows = 4}},
    {"bf16", Format::BF16, {45, 70}, false, packed,
     {.format = Format::BF16, .rows = 45, .columns = 70, .blockRows = 45}},
    {"bf16_runs", Format::BF16, {18, 41}, false, packed,
     {.format = Format::BF16, .rows = 99, .columns = 64, .firstRow = 3,
      .firstColumn = 2, .blocks = 3, .blockRows = 6, .rowStride = 32}},
    {"bf16_transposed", Format::BF16, {2, 36, 24}, false, packed,
     {.format = Format::BF16, .rows = 128, .columns = 50, .firstRow = 8,
      .firstColumn = 9, .blocks = 2, .blockRows = 24, .rowStride = 64,
      .transposed = true}},
    {"f32_rounded", Format::BF16, {20, 33}, false, packed,
     {.format = Format::F32, .rows = 20, .columns = 33, .blockRows = 20}},
    {"bf16_many_items", Format::BF16, {2400, 700}, false, packed,
     {.format = Format::BF16, .rows = 4000, .columns = 701, .firstRow = 10,
      .firstColumn = 1, .blocks = 3, .blockRows = 800, .rowStride = 1300}},
    {"fp8", Format::FP8Block, {172, 205}, false, packed,
     {.format = Format::FP8Block, .rows = 300, .columns = 333, .firstRow = 128,
      .firstColumn = 128, .blockRows = 172}},
    {"fp8_runs", Format::FP8Block, {256, 128}, false, packed,
     {.format = Format::FP8Block, .rows = 700, .columns = 300, .firstRow = 128,
      .firstColumn = 128, .blocks = 2, .blockRows = 128, .rowStride = 384}},
    {"fp8_many_items", Format::FP8Block, {1300, 1000}, false, packed,
     {.format = Format::FP8Block, .rows = 1300, .columns = 1000,
      .blockRows = 1300}},
    {"fp8_stack", Format::FP8Block, {2, 128, 200}, true, packed,
     {.format = Format::FP8Block, .rows = 256, .columns = 200, .firstRow = 128,
      .blockRows = 128}},
    {"fp8_keys", Format::BF16, {3, 50, 24}, false, packed,
     {.format = Format::FP8Block, .rows = 200, .columns = 60, .firstRow = 40,
      .firstColumn = 5, .blocks = 3, .blockRows = 24, .rowStride = 56,
      .transposed = true}},
    {"fp8_rows", Format::F32, {30, 77}, false, rowsLayout,
     {.format = Format::FP8Block, .rows = 200, .columns = 200, .firstRow = 110,
      .firstColumn = 100, .blockRows = 30}},
    {"nvfp4_stack", Format::NVFP4, {3, 20, 160}, true, packed,
     {.format = Format::NVFP4, .rows = 40, .columns = 320, .firstRow = 20,
      .firstColumn = 144, .blockRows = 20}},
    {"nvfp4_keys", Format::BF16, {34, 20}, false, packed,
     {.format = Format::NVFP4, .rows = 40, .columns = 64, .firstRow = 20,
      .firstColumn = 10, .blockRows = 20, .transposed = true}},
    {"int4", Format::Int4G32, {33, 96}, false, packed,
     {.format = Format::Int4G32, .rows = 50, .columns = 160, .firstRow = 17,
      .firstColumn = 64, .blockRows = 33}},
    {"int4_rows", Format::BF16, {7, 21}, false, rowsLayout,
     {.format = Format::Int4G32, .rows = 9, .columns = 64, .firstRow = 1,
      .firstColumn = 30, .blockRows = 7}},
};

class ArrangeTest : public testing::Test {
protected:
  void SetUp() override {
    auto made = ThreadPool::create(3);
    ASSERT_TRUE(made.ok());
    pool = *std::move(made);
    device = std::make_unique<test::MirrorDevice>(*pool, log);
    plan::Plan &plan = files.plan;
    plan.target.name = "sm_90a";
    for (plan::Kernel &kernel : plan.kernels)
      kernel.threads = 32;
    first = plan.weights.size();
  }

  /// Adds all cases, of a checkpoint's file with random values.
  void addStored() {
    plan::Plan &plan = files.plan;
    std::string bytes(9, 'h'); // Odd: nothing is aligned.
    auto file = static_cast<uint32_t>(plan.checkpoint.files.size());
    uint32_t seed = 0;
    for (const Case &c : cases) {
      plan::Weight w = weightOf(c);
      for (size_t t = 0; t < count(c); ++t) {
        Tensor tensor = randomTensor(c.slice.format, c.slice.rows,
                                     c.slice.columns, ++seed);
        bool inverse = c.slice.format == Format::NVFP4;
        for (size_t p = 0; p <= w.scales.size(); ++p) {
          Bytes stored = tensor.part[p];
          if (p == 2 && inverse) {
            float global = 0;
            std::memcpy(&global, stored.data(), 4);
            global = 1 / global;
            std::memcpy(stored.data(), &global, 4);
            global = 1 / global; // What comes back may differ by a bit.
            std::memcpy(tensor.part[2].data(), &global, 4);
          }
          auto &sources = p ? w.scales[p - 1].sources : w.sources;
          sources.push_back({c.name + std::to_string(t) + "." +
                                 std::to_string(p),
                             file, bytes.size()});
          bytes.append(reinterpret_cast<const char *>(stored.data()),
                       stored.size());
        }
        tensors.push_back(tensor);
      }
      if (c.slice.format == Format::NVFP4)
        w.scales[1].reciprocal = true;
      plan.weights.push_back(w);
    }
    std::ofstream(files.checkpoint() / "c.safetensors", std::ios::binary)
        << bytes;
    plan.checkpoint.files.push_back(
        {"c.safetensors", bytes.size(), 9, fnv1a64(bytes.substr(0, 9))});
  }

  void addSynthetic() {
    plan::Plan &plan = files.plan;
    plan.checkpoint = {};
    plan.checkpoint.kind = plan::Checkpoint::Kind::Synthetic;
    plan.checkpoint.seed = 5;
    for (plan::Weight &w : plan.weights)
      for (plan::TensorSource &source : w.sources)
        source.file = 0, source.offset = 0;
    for (const Case &c : cases) {
      plan::Weight w = weightOf(c);
      for (size_t t = 0; t < count(c); ++t) {
        std::string name = std::string("layer.") + std::to_string(t) + c.name;
        w.sources.push_back({name, 0, 0});
        for (plan::WeightScales &scales : w.scales)
          scales.sources.push_back({name + ".scale", 0, 0});
        tensors.push_back(syntheticTensor(name, w, 5));
      }
      plan.weights.push_back(w);
    }
  }

  static size_t count(const Case &c) {
    return c.stacked ? static_cast<size_t>(c.shape[0]) : 1;
  }
  static plan::Weight weightOf(const Case &c) {
    plan::Weight w{c.name, c.format, c.shape, c.stacked, {}};
    w.layout = c.layout;
    w.slice = c.slice;
    w.scales.resize(storagePartCount(c.slice.format) - 1);
    return w;
  }

  Result<std::unique_ptr<WeightStore>>
  load(const std::filesystem::path &packed = {}) {
    Status status = plan::verify(files.plan);
    EXPECT_TRUE(status.ok()) << status.message();
    WeightOptions options;
    options.packed = packed;
    return WeightStore::load(files.plan, *device, *pool, options);
  }

  void expectAll(const WeightStore &store) {
    size_t tensor = 0;
    for (size_t i = 0; i < std::size(cases); ++i) {
      SCOPED_TRACE(cases[i].name);
      const plan::Weight &w = files.plan.weights[first + i];
      Bytes expected;
      for (size_t t = 0; t < count(cases[i]); ++t) {
        Bytes one = expectedTensor(w, tensors[tensor++]);
        expected.insert(expected.end(), one.begin(), one.end());
      }
      Result<uint64_t> bytes = w.deviceBytes();
      ASSERT_TRUE(bytes.ok());
      ASSERT_EQ(*bytes, expected.size());
      uint64_t address = store.argument(static_cast<uint32_t>(first + i));
      EXPECT_EQ(address % 256, 0u);
      EXPECT_EQ(std::memcmp(reinterpret_cast<const void *>(address),
                            expected.data(), expected.size()),
                0);
    }
  }

  test::TestPlan files;
  test::TempFolder temp;
  test::MirrorLog log;
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<test::MirrorDevice> device;
  std::vector<Tensor> tensors;
  size_t first = 0;
};

TEST_F(ArrangeTest, Checkpoint) {
  addStored();
  auto store = load();
  ASSERT_TRUE(store.ok()) << store.status().message();
  expectAll(**store);
  uint64_t total = 0;
  for (const plan::Weight &w : files.plan.weights)
    total += *w.deviceBytes();
  EXPECT_EQ((*store)->bytes(), total);
}

TEST_F(ArrangeTest, Synthetic) {
  addSynthetic();
  auto store = load();
  ASSERT_TRUE(store.ok()) << store.status().message();
  expectAll(**store);
}

TEST_F(ArrangeTest, PackedFile) {
  addStored();
  std::filesystem::path file = temp.path / "weights.pack";
  auto store = load(file); // Writes it on the way.
  ASSERT_TRUE(store.ok()) << store.status().message();
  expectAll(**store);
  ASSERT_TRUE(std::filesystem::exists(file));
  EXPECT_FALSE(std::filesystem::exists(file.string() + ".part"));
  store = load(file);
  ASSERT_TRUE(store.ok()) << store.status().message();
  expectAll(**store);

  // Made without a device, it is the same.
  std::filesystem::path other = temp.path / "other.pack";
  Status status = WeightStore::pack(files.plan, *pool, {}, other);
  ASSERT_TRUE(status.ok()) << status.message();
  auto read = [](const std::filesystem::path &path) {
    std::ifstream in(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  EXPECT_TRUE(read(file) == read(other));

  auto refused = [&](const char *message) {
    auto loaded = load(file);
    ASSERT_FALSE(loaded.ok());
    EXPECT_NE(loaded.status().message().find(message), std::string::npos)
        << loaded.status().message();
  };
  std::string good = read(file);
  std::filesystem::resize_file(file, good.size() - 1);
  refused("bytes, found");
  std::ofstream(file, std::ios::binary) << std::string(5000, 'x');
  refused("expected a file of packed weights, found another");
  std::ofstream(file, std::ios::binary) << good;
  files.plan.weights[first + 2].slice.firstRow = 4;
  refused("those of another");
}

TEST_F(ArrangeTest, APackedFileNeedsNoCheckpoint) {
  addSynthetic();
  files.plan.weights.erase(files.plan.weights.begin() + 0,
                           files.plan.weights.begin() + int64_t(first));
  first = 0;
  // Not to be run, so it need not be verified.
  std::filesystem::path file = temp.path / "weights.pack";
  WeightOptions options;
  options.packed = file;
  ASSERT_TRUE(
      WeightStore::load(files.plan, *device, *pool, options).ok());
  tensors.clear();
  files.plan.weights.clear();
  addStored();
  files.plan.checkpoint.kind = plan::Checkpoint::Kind::Safetensors;
  files.plan.checkpoint.folder = files.checkpoint();
  std::filesystem::remove(file);
  ASSERT_TRUE(WeightStore::load(files.plan, *device, *pool, options).ok());
  std::filesystem::remove_all(files.checkpoint());
  auto store = WeightStore::load(files.plan, *device, *pool, options);
  ASSERT_TRUE(store.ok()) << store.status().message();
  expectAll(**store);
}

TEST_F(ArrangeTest, PackedFilesThatCannotBe) {
  auto store = load(temp.path / "weights.pack");
  ASSERT_FALSE(store.ok());
  EXPECT_NE(store.status().message().find("no weights that could be"),
            std::string::npos);
  Status status =
      WeightStore::pack(files.plan, *pool, {}, temp.path / "weights.pack");
  EXPECT_FALSE(status.ok());
  addStored();
  store = load(temp.path / "absent" / "weights.pack");
  ASSERT_FALSE(store.ok());
  EXPECT_EQ(store.status().code(), StatusCode::Io);
}

TEST_F(ArrangeTest, DamagedNumbersAreReportedByName) {
  addStored();
  struct Damage {
    size_t weight;
    size_t part;
    uint64_t at;
    std::string bytes;
  };
  auto index = [](const char *name) {
    for (size_t i = 0; i < std::size(cases); ++i)
      if (std::string_view(cases[i].name) == name)
        return i;
    return std::size(cases);
  };
  const std::string nan("\x00\x00\xC0\x7F", 4);
  const Damage damages[] = {{index("fp8_many_items"), 0, 1299 * 1000, "\x7F"},
                            {index("fp8"), 1, 4, nan},
                            {index("nvfp4_stack"), 1, 20 * 20 + 9, "\xFF"},
                            {index("nvfp4_stack"), 2, 0, nan},
                            {index("int4"), 1, 20 * 10 + 4, "\x80\x7F"},
                            {index("nvfp4_keys"), 2, 0, std::string(4, '\0')}};
  for (const Damage &damage : damages) {
    const plan::Weight &w = files.plan.weights[first + damage.weight];
    const plan::TensorSource &source = w.partSources(damage.part)[0];
    std::fstream file(files.checkpoint() / "c.safetensors",
                      std::ios::in | std::ios::out | std::ios::binary);
    std::string before(damage.bytes.size(), 0);
    file.seekg(static_cast<int64_t>(source.offset + damage.at));
    file.read(before.data(), static_cast<int64_t>(before.size()));
    file.seekp(static_cast<int64_t>(source.offset + damage.at));
    file << damage.bytes << std::flush;
    std::filesystem::path pack = temp.path / "weights.pack";
    auto store = load(pack);
    ASSERT_FALSE(store.ok()) << source.tensor;
    EXPECT_NE(store.status().message().find("tensor " + source.tensor),
              std::string::npos)
        << store.status().message();
    EXPECT_TRUE(std::filesystem::is_empty(temp.path)); // No file half done.
    file.seekp(static_cast<int64_t>(source.offset + damage.at));
    file << before << std::flush;
  }
  EXPECT_TRUE(load().ok());
}

} // namespace
