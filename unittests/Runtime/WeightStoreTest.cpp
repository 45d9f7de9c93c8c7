//===- WeightStoreTest.cpp - the parts of weights in memory ---------------===//
//
// Part of mla. Which bytes kernels get for a weight: those of the file where
// they lie, copies where they must be, and generated ones.
//
//===----------------------------------------------------------------------===//
#include "runtime/weights/WeightStore.h"
#include "TestPlan.h"
#include "mla/Quant/Codec.h"
#include "mla/Quant/Matrix.h"
#include "mla/Support/Hash.h"
#include "runtime/hal/host/HostDevice.h"
#include "runtime/weights/Synthetic.h"
#include <cmath>
#include <cstring>
#include <fstream>
#include <gtest/gtest.h>
#include <limits>
#include <random>

using namespace mla;
using namespace mla::runtime;

namespace {

constexpr Format allFormats[] = {Format::F32,   Format::BF16,
                                 Format::F16,   Format::FP8Block,
                                 Format::NVFP4, Format::Int4G32};

std::string text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char *>(bytes.data()), bytes.size()};
}

/// A plan of weights alone, whose checkpoint is one file.
class WeightStoreTest : public testing::Test {
protected:
  WeightStoreTest() {
    auto made = ThreadPool::create(3);
    EXPECT_TRUE(made.ok());
    pool = *std::move(made);
    device = std::make_unique<hal::HostDevice>(*pool);
    plan.checkpoint.kind = plan::Checkpoint::Kind::Safetensors;
    plan.checkpoint.folder = folder.path.string();
  }

  /// Puts `bytes` into the file, `shift` bytes off a multiple of 64.
  plan::TensorSource place(const std::string &name, const std::string &bytes,
                           size_t shift = 0) {
    file.resize((file.size() + 63) / 64 * 64 + shift, '#');
    plan::TensorSource source = {name, 0, file.size()};
    file += bytes;
    return source;
  }

  /// Adds a weight of random bytes; the parts of its tensor t are at shift(p).
  template <typename Shift>
  plan::Weight &addWeight(const std::string &name, Format format,
                          std::vector<int64_t> shape, bool stacked,
                          Shift shift) {
    plan::Weight weight{name, format, std::move(shape), stacked, {}};
    std::vector<StoragePart> parts = weight.parts();
    weight.scales.resize(parts.size() - 1);
    for (int64_t t = 0; t < (stacked ? weight.shape[0] : 1); ++t)
      for (size_t p = 0; p < parts.size(); ++p) {
        std::string bytes(parts[p].bytes(), 0);
        // No upper byte of a number that is NaN.
        for (char &c : bytes)
          c = static_cast<char>(random() & 0xBF);
        auto &sources = p == 0 ? weight.sources : weight.scales[p - 1].sources;
        sources.push_back(place(name + "." + std::to_string(t) + "." +
                                    std::string(parts[p].name),
                                bytes, shift(p)));
      }
    plan.weights.push_back(std::move(weight));
    return plan.weights.back();
  }

  /// An nvfp4 weight of one row whose global scale is `global`, in the file as
  /// its reciprocal or as it is.
  void addGlobal(const std::string &name, float global, bool reciprocal,
                 size_t shift = 0) {
    plan::Weight &weight = addWeight(name, Format::NVFP4, {1, 16}, false,
                                     [](size_t) { return size_t(0); });
    std::string bytes(4, 0);
    std::memcpy(bytes.data(), &global, 4);
    weight.scales[1] = {{place(name + "_scale", bytes, shift)}, reciprocal};
  }

  Result<std::unique_ptr<WeightStore>> load() {
    if (plan.checkpoint.kind == plan::Checkpoint::Kind::Safetensors) {
      std::ofstream(folder.path / "w.safetensors", std::ios::binary) << file;
      plan.checkpoint.files = {
          {"w.safetensors", file.size(), 16, fnv1a64(file.substr(0, 16))}};
    }
    return WeightStore::load(plan, *device, *pool, {});
  }

  /// The addresses that a kernel gets for weight `index`.
  static std::vector<uint64_t> addresses(const WeightStore &store,
                                         const plan::Weight &weight,
                                         uint32_t index) {
    uint64_t argument = store.argument(index);
    if (!weight.isTable())
      return {argument};
    const auto *table = reinterpret_cast<const uint64_t *>(argument);
    return {table, table + store.tensors(index).size()};
  }

  test::TempFolder folder;
  std::string file = "the file's head "; // 16 bytes
  plan::Plan plan;
  std::mt19937 random{1};
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<hal::Device> device;
};

/// Where the parts of a tensor are: in the mapping, so that two of them are as
/// far from each other as in the file, or in a copy.
TEST_F(WeightStoreTest, PartsLieWhereTheFileHasThem) {
  for (Format format : allFormats)
    for (bool stacked : {false, true}) {
      std::string name = std::string(formatName(format));
      std::vector<int64_t> shape = {130, 96};
      if (stacked)
        shape.insert(shape.begin(), 3);
      addWeight(name + (stacked ? "s" : ""), format, shape, stacked,
                [](size_t) { return size_t(0); });
      addWeight(name + (stacked ? "s" : "") + ".odd", format, shape, stacked,
                [](size_t) { return size_t(1); });
    }
  auto loaded = load();
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  const WeightStore &store = **loaded;

  // The first weight is f32 and aligned, so it is in the mapping.
  const std::byte *mapping =
      store.tensors(0)[0].data() - plan.weights[0].sources[0].offset;
  uint64_t total = 0;
  size_t inPlace = 0, copied = 0;
  for (uint32_t w = 0; w < plan.weights.size(); ++w) {
    const plan::Weight &weight = plan.weights[w];
    std::vector<StoragePart> parts = weight.parts();
    auto tensors = store.tensors(w);
    std::vector<uint64_t> table = addresses(store, weight, w);
    ASSERT_EQ(tensors.size(), parts.size() * weight.sources.size());
    ASSERT_EQ(table.size(), tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      // All parts of the first tensor, then of the next.
      size_t p = i % parts.size(), t = i / parts.size();
      uint64_t offset = weight.partSources(p)[t].offset;
      ASSERT_EQ(tensors[i].size(), parts[p].bytes()) << weight.name;
      EXPECT_TRUE(text(tensors[i]) == file.substr(offset, tensors[i].size()))
          << weight.name << " " << i;
      auto address = reinterpret_cast<uintptr_t>(tensors[i].data());
      EXPECT_EQ(table[i], address);
      EXPECT_EQ(address % parts[p].elementBytes, 0U);
      bool stays = offset % parts[p].elementBytes == 0;
      EXPECT_EQ(tensors[i].data() == mapping + offset, stays)
          << weight.name << " " << i;
      ++(stays ? inPlace : copied);
      total += parts[p].bytes();
    }
  }
  EXPECT_EQ(store.bytes(), total);
  EXPECT_GT(inPlace, 30U);
  EXPECT_GT(copied, 20U);
}

TEST_F(WeightStoreTest, ReciprocalsAreInverted) {
  addGlobal("as_it_is", 4, false);
  addGlobal("inverted", 4, true);
  addGlobal("odd", 3, true, 1);
  plan::Weight &stack = addWeight("stack", Format::NVFP4, {2, 1, 16}, true,
                                  [](size_t) { return size_t(0); });
  stack.scales[1].reciprocal = true;
  for (float value : {8.0F, 1e-30F}) {
    std::string bytes(4, 0);
    std::memcpy(bytes.data(), &value, 4);
    stack.scales[1].sources[value == 8 ? 0 : 1] = place("g", bytes);
  }
  auto loaded = load();
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  auto global = [&](uint32_t weight, size_t tensor) {
    std::vector<uint64_t> table =
        addresses(**loaded, plan.weights[weight], weight);
    float value = 0;
    std::memcpy(&value, reinterpret_cast<const void *>(table[3 * tensor + 2]),
                4);
    return value;
  };
  EXPECT_EQ(global(0, 0), 4);
  EXPECT_EQ(global(1, 0), 0.25F);
  EXPECT_EQ(global(2, 0), 1.0F / 3);
  EXPECT_EQ(global(3, 0), 0.125F);
  EXPECT_EQ(global(3, 1), 1 / 1e-30F);
  // Other parts are the file's.
  EXPECT_TRUE(text((*loaded)->tensors(1)[0]) ==
              file.substr(plan.weights[1].sources[0].offset, 8));
}

TEST_F(WeightStoreTest, ReciprocalsOfNoScaleAreRefused) {
  float infinity = std::numeric_limits<float>::infinity();
  float nan = std::numeric_limits<float>::quiet_NaN();
  for (float bad : {0.0F, -0.0F, -2.0F, nan, infinity, -infinity, 1e-45F}) {
    plan.weights.clear();
    addGlobal("good", 2, true);
    addGlobal("bad", bad, true);
    auto loaded = load();
    ASSERT_FALSE(loaded.ok()) << bad;
    EXPECT_EQ(loaded.status().code(), StatusCode::Invalid);
    EXPECT_EQ(loaded.status().message().find(
                  "tensor bad_scale: expected a positive scale, found "),
              0U)
        << loaded.status().message();
  }
}

//===----------------------------------------------------------------------===//
// Synthetic weights
//===----------------------------------------------------------------------===//

/// The parts of a [rows, columns] tensor by docs/synthetic.md, all rows at
/// once.
std::vector<std::vector<std::byte>> generated(const std::string &name,
                                              std::vector<int64_t> shape,
                                              Format format, int64_t seed) {
  int64_t columns = shape.back(), rows = 1;
  for (size_t i = 0; i + 1 < shape.size(); ++i)
    rows *= shape[i];
  std::vector<float> values(static_cast<size_t>(rows * columns));
  SyntheticTensor(name, shape, seed).fill(0, values);
  if (format != Format::F32)
    for (float &value : values)
      value = quant::decodeBF16(quant::encodeBF16(value));
  std::vector<std::vector<std::byte>> parts;
  for (const StoragePart &part : storageParts(format, rows, columns))
    parts.emplace_back(part.bytes());
  quant::MatrixParts out = {format, rows, columns, parts[0], {}, {}};
  if (parts.size() > 1)
    out.scales = parts[1];
  if (parts.size() > 2) {
    // Of the bound a, whatever the largest value is.
    float global =
        static_cast<float>(std::sqrt(3.0 / static_cast<double>(columns))) /
        (6 * 448);
    std::memcpy(parts[2].data(), &global, 4);
    out.global = parts[2];
  }
  quant::quantizeRows(values, 0, out);
  return parts;
}

/// Kernels do not look for NaN in what they turn into f32.
TEST_F(WeightStoreTest, NaNIsRefusedByName) {
  struct Case {
    Format format;
    size_t part;
    std::string bytes;
  };
  const Case cases[] = {
      {Format::FP8Block, 0, "\x7f"},
      {Format::FP8Block, 0, "\xff"},
      {Format::FP8Block, 1, std::string("\0\0\x80\x7f", 4)},
      {Format::NVFP4, 1, "\x7f"},
      {Format::NVFP4, 2, std::string("\0\0\xc0\xff", 4)},
      {Format::Int4G32, 1, std::string("\x80\x7f", 2)}};
  for (const Case &c : cases) {
    file.resize(16);
    plan.weights.clear();
    plan::Weight &weight = addWeight("w", c.format, {3, 130, 64}, true,
                                     [](size_t p) { return p; });
    ASSERT_TRUE(load().ok());
    // In the last tensor, at the end of the part.
    const plan::TensorSource &source = weight.partSources(c.part)[2];
    uint64_t end = source.offset + weight.parts()[c.part].bytes();
    file.replace(end - c.bytes.size(), c.bytes.size(), c.bytes);
    auto store = load();
    ASSERT_FALSE(store.ok());
    EXPECT_EQ(store.status().message(),
              "tensor " + source.tensor + ": expected numbers, found NaN or "
                                          "infinity (a damaged file?)");
  }
}

TEST_F(WeightStoreTest, SyntheticWeightsAreThoseOfTheWholeTensor) {
  plan.checkpoint = {};
  plan.checkpoint.kind = plan::Checkpoint::Kind::Synthetic;
  plan.checkpoint.seed = 5;
  for (Format format : allFormats)
    for (bool stacked : {false, true}) {
      // Several slices of work, and a last block of scales that is not whole.
      std::vector<int64_t> shape = {300, 480};
      if (stacked)
        shape.insert(shape.begin(), 2);
      plan::Weight weight{
          std::string(formatName(format)), format, shape, stacked, {}};
      weight.scales.resize(weight.parts().size() - 1);
      for (int t = 0; t < (stacked ? 2 : 1); ++t) {
        std::string name = "e." + std::to_string(t) + ".up_proj.weight";
        weight.sources.push_back(
            {name + (format == Format::Int4G32 ? "_packed" : ""), 0, 0});
        for (plan::WeightScales &scales : weight.scales)
          scales.sources.push_back({name + "_scale", 0, 0});
      }
      plan.weights.push_back(weight);
    }
  for (Format format : {Format::F32, Format::BF16})
    plan.weights.push_back(
        {"norm", format, {77}, false, {{"model.norm.weight", 0, 0}}});

  auto loaded = load();
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  for (uint32_t w = 0; w < plan.weights.size(); ++w) {
    const plan::Weight &weight = plan.weights[w];
    std::vector<int64_t> shape(weight.shape.begin() + weight.stacked,
                               weight.shape.end());
    auto tensors = (*loaded)->tensors(w);
    std::vector<uint64_t> table = addresses(**loaded, weight, w);
    size_t at = 0;
    for (const plan::TensorSource &source : weight.sources) {
      // int4's values go by the name of the weight.
      std::string name = source.tensor;
      if (size_t packed = name.find("_packed"); packed != std::string::npos)
        name.resize(packed);
      for (const auto &part : generated(name, shape, weight.format, 5)) {
        ASSERT_LT(at, tensors.size());
        EXPECT_TRUE(std::ranges::equal(tensors[at], part))
            << weight.name << " part " << at;
        EXPECT_EQ(table[at], reinterpret_cast<uintptr_t>(tensors[at].data()));
        ++at;
      }
    }
    EXPECT_EQ(at, tensors.size());
  }
}

} // namespace
