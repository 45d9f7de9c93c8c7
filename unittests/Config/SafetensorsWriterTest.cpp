//===- SafetensorsWriterTest.cpp - what is written reads back -------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "mla/Config/SafetensorsWriter.h"
#include "TestFiles.h"
#include "mla/Config/Checkpoint.h"
#include <gtest/gtest.h>
#include <thread>

using namespace mla;
using namespace mla::test;
using nlohmann::json;

namespace {

std::vector<std::byte> pattern(size_t bytes, size_t seed) {
  std::vector<std::byte> out(bytes);
  for (size_t i = 0; i < bytes; ++i)
    out[i] = static_cast<std::byte>(i * 7 + seed * 31 + 1);
  return out;
}

std::vector<TensorSpec> someTensors() {
  return {{"a.weight", "U8", {3, 5}},      {"a.weight_scale", "F8_E4M3", {3}},
          {"a.weight_scale_2", "F32", {}}, {"b", "BF16", {7, 11}},
          {"empty", "F32", {0, 4}},        {"c", "I64", {2}},
          {"language_model.d", "F32", {9}}};
}

std::string contentOf(const TempFolder &folder, const Checkpoint &checkpoint,
                      const TensorInfo &tensor) {
  return readBytes(folder / checkpoint.files()[tensor.file].name)
      .substr(tensor.offset, tensor.bytes);
}

TEST(SafetensorsWriter, ReadsBack) {
  for (uint64_t shardBytes : {uint64_t(1), uint64_t(64), uint64_t(1) << 30}) {
    TempFolder folder;
    auto writer =
        SafetensorsWriter::create(folder.path, someTensors(), shardBytes);
    ASSERT_TRUE(writer.ok()) << writer.status().message();
    // In pieces, from behind.
    for (size_t i = writer->tensors().size(); i-- > 0;) {
      auto bytes = pattern(writer->tensors()[i].bytes(), i);
      size_t half = bytes.size() / 2;
      auto all = std::span<const std::byte>(bytes);
      ASSERT_TRUE(writer->write(i, half, all.subspan(half)).ok());
      ASSERT_TRUE(writer->write(i, 0, all.first(half)).ok());
    }
    Status status = writer->finish();
    ASSERT_TRUE(status.ok()) << status.message();

    auto checkpoint = Checkpoint::open(folder.path);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    EXPECT_EQ(checkpoint->tensors().size(), someTensors().size());
    uint64_t bytes = 0, data = 0;
    for (const CheckpointFile &file : checkpoint->files())
      bytes += file.size;
    EXPECT_EQ(bytes, writer->totalBytes());
    for (size_t i = 0; i < someTensors().size(); ++i) {
      TensorSpec spec = someTensors()[i];
      const TensorInfo *tensor =
          checkpoint->find(Checkpoint::textName(spec.name));
      ASSERT_TRUE(tensor) << spec.name;
      EXPECT_EQ(tensor->name, spec.name);
      EXPECT_EQ(tensor->dtype, spec.dtype);
      EXPECT_EQ(tensor->shape, spec.shape);
      EXPECT_EQ(tensor->offset % safetensorsElementBytes(spec.dtype), 0u);
      auto expected = pattern(spec.bytes(), i);
      EXPECT_EQ(contentOf(folder, *checkpoint, *tensor),
                std::string(reinterpret_cast<const char *>(expected.data()),
                            expected.size()));
      data += spec.bytes();
    }
    json index =
        json::parse(readBytes(folder / "model.safetensors.index.json"));
    EXPECT_EQ(index["metadata"]["total_size"], data);
    EXPECT_EQ(index["weight_map"].size(), someTensors().size());
    if (shardBytes > data) {
      EXPECT_EQ(checkpoint->files().size(), 1u);
      EXPECT_EQ(checkpoint->files()[0].name, "model.safetensors");
      std::string file = readBytes(folder / "model.safetensors");
      EXPECT_NE(file.find(R"("__metadata__":{"format":"pt"})"),
                std::string::npos);
    } else {
      EXPECT_EQ(checkpoint->files().size(), writer->shards());
      EXPECT_GT(writer->shards(), 1u);
    }
  }
}

TEST(SafetensorsWriter, ManyThreadsWriteOneTensor) {
  TempFolder folder;
  auto writer = SafetensorsWriter::create(folder.path,
                                          {{"t", "F32", {1000, 64}}}, 1 << 30);
  ASSERT_TRUE(writer.ok());
  auto bytes = pattern(1000 * 256, 3);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (size_t row = t; row < 1000; row += 4)
        EXPECT_TRUE(
            writer
                ->write(0, row * 256, std::span(bytes).subspan(row * 256, 256))
                .ok());
    });
  for (std::thread &thread : threads)
    thread.join();
  ASSERT_TRUE(writer->finish().ok());
  std::string file = readBytes(folder / "model.safetensors");
  EXPECT_EQ(file.substr(file.size() - bytes.size()),
            std::string(reinterpret_cast<char *>(bytes.data()), bytes.size()));
}

TEST(SafetensorsWriter, Errors) {
  TempFolder folder;
  auto error = [&](std::vector<TensorSpec> tensors) {
    return SafetensorsWriter::create(folder.path, std::move(tensors), 100)
        .status()
        .message();
  };
  EXPECT_EQ(error({{"a", "F32", {1}}, {"a", "U8", {2}}}),
            "tensor a would be written twice");
  EXPECT_EQ(error({{"a", "F3", {1}}}), "tensor a: unknown dtype F3");

  auto writer =
      SafetensorsWriter::create(folder.path, {{"a", "F32", {2}}}, 100);
  ASSERT_TRUE(writer.ok());
  auto bytes = pattern(8, 0);
  EXPECT_EQ(writer->write(0, 4, bytes).code(), StatusCode::Invalid);
  ASSERT_TRUE(writer->write(0, 4, std::span(bytes).first(4)).ok());
  Status status = writer->finish();
  EXPECT_NE(status.message().find("4 bytes were not written"),
            std::string::npos);

  auto nowhere =
      SafetensorsWriter::create(folder / "no/such", {{"a", "F32", {2}}}, 100);
  ASSERT_TRUE(nowhere.ok());
  status = nowhere->write(0, 0, bytes);
  EXPECT_EQ(status.code(), StatusCode::Io);
  EXPECT_NE(status.message().find("no/such/model.safetensors: No such file"),
            std::string::npos)
      << status.message();
}

TEST(SafetensorsWriter, NoTensors) {
  TempFolder folder;
  auto writer = SafetensorsWriter::create(folder.path, {}, 100);
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE(writer->finish().ok());
  EXPECT_TRUE(Checkpoint::open(folder.path).ok());
}

} // namespace
