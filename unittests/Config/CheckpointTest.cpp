//===- CheckpointTest.cpp - safetensors headers and shards ----------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "mla/Config/Checkpoint.h"
#include "TestFiles.h"
#include <chrono>
#include <gtest/gtest.h>

using namespace mla;
using namespace mla::test;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

/// A header entry of F32 values.
json floats(int64_t begin, int64_t count) {
  return {{"dtype", "F32"},
          {"shape", {count}},
          {"data_offsets", {begin, begin + 4 * count}}};
}

/// A shard that holds the tensors `names`, four floats each.
std::string shard(const std::vector<std::string> &names) {
  json header = json::object();
  for (size_t i = 0; i < names.size(); ++i)
    header[names[i]] = floats(int64_t(16 * i), 4);
  return safetensors(header.dump(), 16 * names.size());
}

/// The error of opening the folder, without its name.
std::string openError(const TempFolder &folder) {
  Result<Checkpoint> result = Checkpoint::open(folder.path);
  std::string message = result.status().message();
  message = without(message, folder.path.string() + "/");
  return without(message, folder.path.string() + ": ");
}

std::string textError(const std::string &header, uint64_t dataBytes) {
  return parseSafetensorsHeader(header, 8 + header.size(),
                                8 + header.size() + dataBytes, "a")
      .status()
      .message();
}

std::string headerError(const json &header, uint64_t dataBytes) {
  return textError(header.dump(), dataBytes);
}

TEST(Safetensors, ElementBytes) {
  EXPECT_EQ(safetensorsElementBytes("F8_E4M3"), 1u);
  EXPECT_EQ(safetensorsElementBytes("BF16"), 2u);
  EXPECT_EQ(safetensorsElementBytes("I32"), 4u);
  EXPECT_EQ(safetensorsElementBytes("I64"), 8u);
  EXPECT_EQ(safetensorsElementBytes("F4"), 0u);
  EXPECT_EQ(safetensorsElementBytes(""), 0u);
}

TEST(Safetensors, Fnv1a) {
  EXPECT_EQ(fnv1a64(""), 0xcbf29ce484222325u);
  EXPECT_EQ(fnv1a64("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(fnv1a64("foobar"), 0x85944171f73967e8u);
}

TEST(Safetensors, TensorsComeInTheOrderOfTheirBytes) {
  json header = {
      {"__metadata__", {{"format", "pt"}}},
      {"b", floats(0, 2)},
      {"a", floats(8, 1)},
      {"empty",
       {{"dtype", "BF16"}, {"shape", {0, 7}}, {"data_offsets", {8, 8}}}},
      {"last", {{"dtype", "U8"}, {"shape", {0}}, {"data_offsets", {12, 12}}}},
      {"scalar",
       {{"dtype", "F32"},
        {"shape", json::array()},
        {"data_offsets", {12, 16}}}}};
  std::string text = header.dump() + "   ";
  auto got =
      parseSafetensorsHeader(text, 8 + text.size(), 24 + text.size(), "a");
  ASSERT_TRUE(got.ok()) << got.status().message();
  std::vector<std::string> names;
  for (const TensorInfo &tensor : *got)
    names.push_back(tensor.name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"b", "empty", "a", "last", "scalar"}));
  EXPECT_EQ((*got)[2].offset, 8 + text.size() + 8);
  EXPECT_EQ((*got)[2].bytes, 4u);
  EXPECT_EQ((*got)[1].shape, (std::vector<int64_t>{0, 7}));
  EXPECT_EQ(headerError(json::object(), 0), "");
}

TEST(Safetensors, WrongHeaders) {
  auto one = [](const char *key, const json &value) {
    json tensor = floats(0, 4);
    if (value.is_discarded())
      tensor.erase(key);
    else
      tensor[key] = value;
    return headerError(json{{"x", tensor}}, 16);
  };
  EXPECT_EQ(one("dtype", "F32"), "");
  EXPECT_EQ(one("dtype", "F4"),
            "a: at /x/dtype: expected a dtype of safetensors, found string "
            "\"F4\"");
  EXPECT_EQ(one("dtype", 4),
            "a: at /x/dtype: expected a string, found number 4");
  EXPECT_EQ(one("dtype", json(json::value_t::discarded)),
            "a: at /x/dtype: expected a string, found nothing");
  EXPECT_EQ(one("shape", {5}),
            "a: at /x/data_offsets: expected 20 bytes (F32 [5]), found 16");
  EXPECT_EQ(one("shape", {-4}),
            "a: at /x/shape/0: expected an integer of at least 0, found number "
            "-4\na: at /x/data_offsets: expected 0 bytes (F32 [-4]), found 16");
  EXPECT_EQ(one("shape", {4294967296, 4294967296, 4}),
            "a: at /x/shape: expected a shape of fewer than 2^64 bytes, found "
            "an array of 3");
  EXPECT_EQ(one("shape", {4294967296, 4294967296, 0}),
            "a: at /x/shape: expected a shape of fewer than 2^64 bytes, found "
            "an array of 3");
  EXPECT_EQ(one("shape", "4"),
            "a: at /x/shape: expected an array, found string \"4\"");
  EXPECT_EQ(one("data_offsets", {0}),
            "a: at /x/data_offsets: expected an array of 2, found an array of "
            "1");
  EXPECT_EQ(one("data_offsets", {16, 0}),
            "a: at /x/data_offsets: expected an end behind the begin, found "
            "[16,0]");
  EXPECT_EQ(one("data_offsets", {0, 1.5}),
            "a: at /x/data_offsets/1: expected an integer of at least 0, found "
            "number 1.5");
  EXPECT_EQ(headerError(json{{"x", 5}}, 0),
            "a: at /x: expected an object, found number 5");
  EXPECT_EQ(headerError(json{{"__metadata__", {{"k", 5}}}}, 0),
            "a: at /__metadata__/k: expected a string, found number 5");
  EXPECT_EQ(headerError(json::array(), 0),
            "a: at the root: expected an object, found an array of 0");
  EXPECT_EQ(textError(R"({"x": 1, "x": 2})", 0),
            "a: found the key \"x\" twice, which is refused");
}

TEST(Safetensors, TensorsMustCoverTheFile) {
  json header = {{"x", floats(0, 4)}, {"y", floats(16, 4)}};
  size_t length = header.dump().size() + 8;
  auto bytes = [&](size_t data) { return std::to_string(length + data); };
  EXPECT_EQ(headerError(header, 32), "");
  EXPECT_EQ(headerError(header, 31), "a: expected a file of " + bytes(32) +
                                         " bytes, as its header says, found " +
                                         bytes(31) + " (cut off?)");
  EXPECT_EQ(headerError(header, 33), "a: expected a file of " + bytes(32) +
                                         " bytes, as its header says, found " +
                                         bytes(33));
  header["y"] = floats(12, 4);
  EXPECT_EQ(headerError(header, 28), "a: tensors x and y overlap");
  header["y"] = floats(0, 4);
  EXPECT_EQ(headerError(header, 16), "a: tensors x and y overlap");
  header["y"] = floats(20, 4);
  EXPECT_EQ(headerError(header, 36),
            "a: expected tensor y at data offset 16, found a gap up to 20");
}

TEST(Checkpoint, ShardsWithoutIndex) {
  TempFolder folder;
  folder.write("b.safetensors", shard({"model.norm.weight"}));
  folder.write("a.safetensors", shard({"lm_head.weight", "x.weight"}));
  folder.write("notes.txt", "no tensors here");
  auto got = Checkpoint::open(folder.path);
  ASSERT_TRUE(got.ok()) << got.status().message();
  ASSERT_EQ(got->files().size(), 2u);
  EXPECT_EQ(got->files()[0].name, "a.safetensors");
  EXPECT_EQ(got->files()[0].size, fs::file_size(folder / "a.safetensors"));
  std::string bytes = readBytes(folder / "a.safetensors");
  EXPECT_EQ(got->files()[0].headerBytes, bytes.size() - 32);
  EXPECT_EQ(got->files()[0].headerHash,
            fnv1a64(std::string_view(bytes).substr(0, bytes.size() - 32)));
  EXPECT_EQ(got->tensors().size(), 3u);
  const TensorInfo *norm = got->find("model.norm.weight");
  ASSERT_NE(norm, nullptr);
  EXPECT_EQ(norm->file, 1u);
  EXPECT_EQ(norm->dtype, "F32");
  EXPECT_EQ(got->find("model.norm.bias"), nullptr);
  EXPECT_EQ(got->folder(), folder.path);
}

TEST(Checkpoint, PrefixOfMultimodalModels) {
  TempFolder folder;
  folder.write("a.safetensors",
               shard({"language_model.lm_head.weight", "vision_tower.x"}));
  auto got = Checkpoint::open(folder.path);
  ASSERT_TRUE(got.ok()) << got.status().message();
  ASSERT_NE(got->find("lm_head.weight"), nullptr);
  EXPECT_EQ(got->find("lm_head.weight")->name, "language_model.lm_head.weight");
  EXPECT_NE(got->find("vision_tower.x"), nullptr);
}

TEST(Checkpoint, IndexThatListsLess) {
  TempFolder folder;
  folder.write("a.safetensors", shard({"x.weight"}));
  // A weight and its scale in different shards, and the scale not listed.
  folder.write("b.safetensors", shard({"x.weight_scale"}));
  folder.write("model.safetensors.index.json",
               json{{"metadata", {{"total_size", 1}}},
                    {"weight_map", {{"x.weight", "a.safetensors"}}}}
                   .dump());
  auto got = Checkpoint::open(folder.path);
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_EQ(got->find("x.weight")->file, 0u);
  EXPECT_EQ(got->find("x.weight_scale")->file, 1u);
}

TEST(Checkpoint, IndexThatIsWrong) {
  TempFolder folder;
  folder.write("a.safetensors", shard({"x", "y"}));
  auto index = [&](const json &map) {
    folder.write("model.safetensors.index.json",
                 json{{"weight_map", map}}.dump());
    return openError(folder);
  };
  std::string file = "model.safetensors.index.json: ";
  EXPECT_EQ(index({{"x", "a.safetensors"},
                   {"u", "c.safetensors"},
                   {"v", "b.safetensors"},
                   {"w", "c.safetensors"}}),
            "2 shards are missing: b.safetensors, c.safetensors");
  EXPECT_EQ(index({{"z", "a.safetensors"}}),
            file + "expected tensor z in a.safetensors, found it nowhere");
  folder.write("b.safetensors", shard({"z"}));
  EXPECT_EQ(index({{"z", "a.safetensors"}}),
            file + "expected tensor z in a.safetensors, found it in "
                   "b.safetensors");
  EXPECT_EQ(index({{"z", "../a.safetensors"}}),
            file + "at /weight_map/z: expected the name of a .safetensors file "
                   "in the same folder, found string \"../a.safetensors\"");
  EXPECT_EQ(index({{"z", 5}}),
            file + "at /weight_map/z: expected a string, found number 5");
  EXPECT_EQ(index(nullptr),
            file + "at /weight_map: expected an object, found null");
}

TEST(Checkpoint, MissingShardsWithoutIndex) {
  TempFolder folder;
  folder.write("model-00002-of-00004.safetensors", shard({"x"}));
  folder.write("model-00004-of-00004.safetensors", shard({"y"}));
  EXPECT_EQ(openError(folder),
            "2 shards are missing: model-00001-of-00004.safetensors, "
            "model-00003-of-00004.safetensors");
  folder.write("model-00001-of-00004.safetensors", shard({"z"}));
  EXPECT_EQ(openError(folder),
            "1 shard is missing: model-00003-of-00004.safetensors");
  folder.write("model-00003-of-00004.safetensors", shard({}));
  EXPECT_EQ(openError(folder), "");
  // Names that only look like a series.
  for (const char *name : {"-of-.safetensors", "a-of-b.safetensors",
                           "1-of-99999999999.safetensors", "-of-5.safetensors"})
    folder.write(name, shard({}));
  EXPECT_EQ(openError(folder), "");
}

TEST(Checkpoint, EveryBrokenShardIsNamed) {
  TempFolder folder;
  folder.write("a.safetensors", shard({"x", "y"}));
  std::string whole = shard({"z"});
  folder.write("b.safetensors", whole.substr(0, whole.size() - 3));
  folder.write("c.safetensors", "short");
  folder.write("d.safetensors", std::string(8, '\xff') + "{}");
  folder.write("e.safetensors", whole.substr(0, 20));
  folder.write("f.safetensors", shard({"x"}));
  folder.write("g.safetensors", "");
  fs::create_directory(folder / "h.safetensors");
  fs::create_symlink("nowhere", folder / "i.safetensors");
  size_t header = whole.size() - 24;
  EXPECT_EQ(
      openError(folder),
      "b.safetensors: expected a file of " + std::to_string(whole.size()) +
          " bytes, as its header says, found " +
          std::to_string(whole.size() - 3) +
          " (cut off?)\n"
          "c.safetensors: expected a safetensors file, found 5 bytes\n"
          "d.safetensors: expected a header of at most 100000000 bytes, found "
          "18446744073709551615 (no safetensors file?)\n"
          "e.safetensors: expected a header of " +
          std::to_string(header) +
          " bytes, found a file of 20 (cut off?)\n"
          "g.safetensors: expected a safetensors file, found 0 bytes\n"
          "h.safetensors: expected a file, found something else\n"
          "i.safetensors: cannot be opened: No such file or directory\n"
          "tensor x of f.safetensors is also in a.safetensors");
}

TEST(Checkpoint, TwoTensorsOfOneName) {
  TempFolder folder;
  folder.write("a.safetensors", shard({"lm_head.weight"}));
  folder.write("b.safetensors", shard({"language_model.lm_head.weight"}));
  EXPECT_EQ(openError(folder),
            "tensor language_model.lm_head.weight of b.safetensors is also in "
            "a.safetensors as lm_head.weight");
}

TEST(Checkpoint, NothingThere) {
  TempFolder folder;
  EXPECT_EQ(openError(folder), "no *.safetensors file");
  EXPECT_EQ(Checkpoint::open(folder.path).status().code(),
            StatusCode::NotFound);
  EXPECT_EQ(Checkpoint::open(folder / "x").status().message(),
            (folder / "x").string() + ": no such folder");
}

TEST(Checkpoint, LinkedFiles) { // as in the cache of a model hub
  TempFolder blobs, folder;
  blobs.write("0123abcd", shard({"x"}));
  fs::create_symlink(blobs / "0123abcd", folder / "model.safetensors");
  EXPECT_EQ(openError(folder), "");
}

TEST(Checkpoint, Goldens) {
  auto got = Checkpoint::open(dataFile("goldens/v3_yarn"));
  ASSERT_TRUE(got.ok()) << got.status().message();
  ASSERT_NE(got->find("model.layers.1.mlp.experts.0.up_proj.weight"), nullptr);
  EXPECT_EQ(got->find("model.layers.1.mlp.experts.0.up_proj.weight")->shape,
            (std::vector<int64_t>{32, 64}));
  auto trained = Checkpoint::open(MLA_KJV_TINY);
  ASSERT_TRUE(trained.ok()) << trained.status().message();
  EXPECT_EQ(trained->find("model.embed_tokens.weight")->shape,
            (std::vector<int64_t>{2048, 256}));
}

// The largest published checkpoint has 208,550 tensors.
TEST(Checkpoint, LargeHeadersAreFast) {
  std::string header = "{";
  size_t end = 0;
  for (int i = 0; i < 200000; ++i) {
    std::string name = "model.layers." + std::to_string(i / 3000) +
                       ".mlp.experts." + std::to_string(i) + ".up_proj.weight";
    header += (i ? ",\"" : "\"") + name +
              R"(":{"dtype":"U8","shape":[2,1],"data_offsets":[)" +
              std::to_string(end) + "," + std::to_string(end + 2) + "]}";
    end += 2;
  }
  header += "}";
  TempFolder folder;
  folder.write("model.safetensors", safetensors(header, end));
  auto start = std::chrono::steady_clock::now();
  auto got = Checkpoint::open(folder.path);
  std::chrono::duration<double> seconds =
      std::chrono::steady_clock::now() - start;
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_EQ(got->tensors().size(), 200000u);
  RecordProperty("seconds", std::to_string(seconds.count()));
}

} // namespace
