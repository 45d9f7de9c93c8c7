//===- TestPlan.cpp - a plan and checkpoint made by hand ------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "TestPlan.h"
#include "mla/Support/Hash.h"
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <gtest/gtest.h>
#include <limits>

namespace mla::test {
namespace {

using plan::Access;
using plan::Expr;
using plan::Parameter;
using plan::Port;
using plan::Symbol;

float expert(int64_t e, int64_t w) {
  return static_cast<float>((e * 5 + w * 2) % 7 - 3);
}

Parameter buffer(Format format, Access access) {
  return {Parameter::Kind::Buffer, format, access};
}
const Parameter floatsIn = buffer(Format::F32, Access::Read);
const Parameter floatsOut = buffer(Format::F32, Access::Write);
const Parameter integers = buffer(Format::I32, Access::Read);
const Parameter scalar = {Parameter::Kind::Scalar, Format::F32, Access::Read};
const Parameter table = {Parameter::Kind::Table, Format::F32, Access::Read};

/// Writes `header` bytes that stand for a header, `skip` bytes, and `values`.
plan::CheckpointFile writeFile(const std::filesystem::path &path,
                               const std::string &header, size_t skip,
                               const std::vector<float> &values) {
  std::string bytes = header + std::string(skip, 'x');
  bytes.append(reinterpret_cast<const char *>(values.data()),
               values.size() * sizeof(float));
  std::ofstream(path, std::ios::binary) << bytes;
  return {path.filename().string(), bytes.size(), header.size(),
          fnv1a64(header)};
}

plan::Program program(const std::string &name, int64_t tokens,
                      int64_t sequences, int64_t outputs) {
  constexpr int64_t width = TestPlan::width;
  plan::Program p;
  p.name = name;
  p.maxTokens = tokens;
  p.maxSequences = sequences;
  p.maxOutputs = outputs;
  auto bytes = static_cast<uint64_t>((tokens * width * 4 + 63) / 64 * 64);
  p.workspaces = {{"x", Format::F32, {Symbol::Tokens, width}, 0},
                  {"y", Format::F32, {Symbol::Tokens, width}, bytes}};
  p.workspaceBytes = 2 * bytes;
  plan::WorkspaceRef x{0}, y{1};
  plan::CacheRef cache{0};
  p.launches = {{0,
                 Symbol::Tokens,
                 {{plan::WeightRef{0}}, {Port::Ids}, {x}, {Expr(width)}},
                 "embed"},
                {1,
                 Symbol::Tokens,
                 {{x},
                  {cache},
                  {Port::Positions},
                  {Port::Sequence},
                  {Port::PageTable},
                  {Expr(Symbol::Pages)},
                  {Expr(width)}},
                 "store"},
                {2,
                 Symbol::Tokens,
                 {{cache},
                  {Port::Positions},
                  {Port::Sequence},
                  {Port::PageTable},
                  {y},
                  {Expr(Symbol::Pages)},
                  {Expr(width)}},
                 "recall"},
                {3,
                 Symbol::Outputs,
                 {{y},
                  {Port::Outputs},
                  {plan::WeightRef{1}},
                  {Port::Logits},
                  {Expr(TestPlan::vocab)},
                  {Expr(width)},
                  {Expr(TestPlan::expertCount)}},
                 "head"}};
  return p;
}

} // namespace

float embedding(int64_t id, int64_t w) {
  if (id == TestPlan::nanToken)
    return std::numeric_limits<float>::quiet_NaN();
  return static_cast<float>((id * 7 + w * 3) % 11 - 5);
}

float largestEmbedding(std::span<const int32_t> ids) {
  float largest = 0;
  for (int32_t id : ids)
    for (int64_t w = 0; w < TestPlan::width; ++w)
      largest = std::max(largest, std::fabs(embedding(id, w)));
  return largest;
}

TestPlan::TestPlan() {
  std::filesystem::create_directories(folder());
  std::filesystem::create_directories(checkpoint());
  std::filesystem::copy_file(MLA_TEST_KERNELS, folder() / "kernels.so");

  std::vector<float> embeddings, experts;
  for (int64_t id = 0; id < vocab; ++id)
    for (int64_t w = 0; w < width; ++w)
      embeddings.push_back(embedding(id, w));
  for (int64_t e = 0; e < expertCount; ++e)
    for (int64_t w = 0; w < width; ++w)
      experts.push_back(expert(e, w));

  plan.producer = "test";
  plan.target = {"host", "generic", {}, plan::hostKernelAbi};
  plan.model = {"TestModel", vocab, 1, width, maxPositions, 0, {1}};
  plan.checkpoint.kind = plan::Checkpoint::Kind::Safetensors;
  plan.checkpoint.folder = checkpoint().string();
  // The experts lie at an odd address, as a header of odd length makes it.
  plan.checkpoint.files = {
      writeFile(checkpoint() / "a.safetensors", "header-a", 8, embeddings),
      writeFile(checkpoint() / "b.safetensors", "header-b", 3, experts)};
  plan.library = "kernels.so";
  plan.weights = {{"embedding",
                   Format::F32,
                   {vocab, width},
                   false,
                   {{"model.embed_tokens.weight", 0, 16}}},
                  {"experts", Format::F32, {expertCount, width}, true, {}}};
  for (int64_t e = 0; e < expertCount; ++e)
    plan.weights[1].sources.push_back(
        {"experts." + std::to_string(e), 1,
         static_cast<uint64_t>(11 + e * width * 4)});
  plan.caches = {{"cache", Format::F32, width}};
  plan.kernels = {
      {"test_embed", {floatsIn, integers, floatsOut, scalar}},
      {"test_store",
       {floatsIn, buffer(Format::F32, Access::ReadWrite), integers, integers,
        integers, scalar, scalar}},
      {"test_recall",
       {floatsIn, integers, integers, integers, floatsOut, scalar, scalar}},
      {"test_head",
       {floatsIn, integers, table, floatsOut, scalar, scalar, scalar}}};
  plan.programs = {program("decode", 4, 4, 4), program("prefill", 16, 3, 5)};
  plan.maxPages = 4;
}

void TestPlan::addLatentCache(Format format, float scale) {
  std::string number = std::to_string(plan.caches.size());
  plan::CacheRef cache{static_cast<uint32_t>(plan.caches.size())};
  plan.caches.push_back({"latent." + number, format, width, "latent"});
  plan::Kernel store = plan.kernels[1];
  store.parameters[1].format = format;
  if (format != Format::F32)
    store.name += "_" + std::string(formatName(format));
  if (format == Format::FP8E4M3) {
    store.parameters.push_back(buffer(Format::I32, Access::ReadWrite));
    store.parameters.push_back(scalar);
  }
  auto known = std::find_if(
      plan.kernels.begin(), plan.kernels.end(),
      [&](const plan::Kernel &kernel) { return kernel.name == store.name; });
  auto kernel = static_cast<uint32_t>(known - plan.kernels.begin());
  if (known == plan.kernels.end())
    plan.kernels.push_back(store);
  for (plan::Program &program : plan.programs) {
    plan::Launch launch = program.launches[1];
    launch.kernel = kernel;
    launch.origin += "." + number;
    launch.arguments[1] = {cache};
    if (format == Format::FP8E4M3) {
      launch.arguments.push_back({Port::Saturated});
      launch.arguments.push_back(
          {Expr(int64_t(std::bit_cast<uint32_t>(scale)))});
    }
    program.launches.push_back(launch);
  }
}

void TestPlan::addRouter(const std::string &kernel) {
  auto first = static_cast<uint32_t>(plan.kernels.size());
  plan.kernels.push_back({kernel,
                          {floatsIn, buffer(Format::I32, Access::Write),
                           buffer(Format::F32, Access::Write), scalar}});
  plan.kernels.push_back({"test_expert", {integers, floatsIn, floatsOut, scalar}});
  for (plan::Program &p : plan.programs) {
    auto bytes = static_cast<uint64_t>((p.maxTokens * 4 + 63) / 64 * 64);
    p.workspaces.push_back(
        {"experts", Format::I32, {Symbol::Tokens, int64_t(1)}, p.workspaceBytes});
    p.workspaces.push_back({"weights",
                            Format::F32,
                            {Symbol::Tokens, int64_t(1)},
                            p.workspaceBytes + bytes});
    p.workspaceBytes += 2 * bytes;
    plan::WorkspaceRef y{1}, experts{2}, weights{3};
    p.launches.insert(
        p.launches.begin() + 3,
        {{first, Symbol::Tokens, {{y}, {experts}, {weights}, {Expr(width)}}, "r"},
         {first + 1,
          Symbol::Tokens,
          {{experts}, {weights}, {y}, {Expr(width)}},
          "e"}});
  }
}

void TestPlan::addRanks(int64_t count) {
  plan.ranks.count = count;
  plan.ranks.layout = "by hand";
  auto first = static_cast<uint32_t>(plan.kernels.size());
  plan.kernels.push_back(
      {"test_embed_part",
       {floatsIn, integers, floatsOut, scalar, scalar, scalar}});
  plan.kernels.push_back({"test_head_part",
                          {floatsIn, integers, table, floatsOut, scalar, scalar,
                           scalar, scalar, scalar}});
  for (plan::Collective c :
       {plan::Collective::AllReduce, plan::Collective::AllGather})
    plan.kernels.push_back(
        {.name = std::string(plan::collectiveName(c)),
         .parameters = {floatsIn, floatsOut, scalar, scalar, scalar},
         .collective = c});
  int64_t part = (vocab + count - 1) / count;
  for (plan::Program &p : plan.programs) {
    auto space = static_cast<uint32_t>(p.workspaces.size());
    p.workspaces.push_back(
        {"part", Format::F32, {Symbol::Outputs, part}, p.workspaceBytes});
    p.workspaceBytes +=
        static_cast<uint64_t>((p.maxOutputs * part * 4 + 63) / 64 * 64);
    plan::WorkspaceRef x{0}, y{1}, own{space};
    plan::Launch &embed = p.launches.front();
    auto at = std::find_if(p.launches.begin(), p.launches.end(),
                           [](const plan::Launch &l) { return l.kernel == 3; });
    plan::Launch &head = *at;
    embed.kernel = first;
    embed.arguments.push_back({Expr(Symbol::Rank)});
    embed.arguments.push_back({Expr(count)});
    head.kernel = first + 1;
    head.arguments = {{y},
                      {Port::Outputs},
                      {plan::WeightRef{1}},
                      {own},
                      {Expr(part)},
                      {Expr(width)},
                      {Expr(expertCount)},
                      {Expr(Symbol::Rank)},
                      {Expr(vocab)}};
    p.launches.insert(at + 1, {first + 3,
                               Expr(1),
                               {{own},
                                {Port::Logits},
                                {Expr(Symbol::Outputs)},
                                {Expr(part)},
                                {Expr(vocab)}},
                               "head"});
    p.launches.insert(p.launches.begin() + 1,
                      {first + 2,
                       Expr(1),
                       {{x},
                        {x},
                        {Expr(Symbol::Tokens)},
                        {Expr(width)},
                        {Expr(width)}},
                       "embed"});
  }
}

void TestPlan::addSampling() {
  plan.kernels.push_back({"test_sample",
                          {floatsIn, floatsIn, integers,
                           buffer(Format::I32, Access::Write),
                           buffer(Format::I32, Access::Write), scalar}});
  plan::Program &p = plan.sampling.emplace();
  p.name = "sample";
  p.maxTokens = p.maxSequences = p.maxOutputs = 5;
  p.workspaces = {{"seen", Format::I32, {Symbol::Tokens}, 0}};
  p.workspaceBytes = 4096; // More than the programs have.
  p.launches = {{static_cast<uint32_t>(plan.kernels.size() - 1),
                 Symbol::Outputs,
                 {{Port::Logits},
                  {Port::Sampling},
                  {Port::TopK},
                  {plan::WorkspaceRef{0}},
                  {Port::Sampled},
                  {Expr(vocab)}},
                 "sampling"}};
}

void TestPlan::addTokenizer() {
  plan.tokenizerFiles = {"tokenizer.json"};
  std::ofstream(folder() / "tokenizer.json") << R"({
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false,
                      "trim_offsets": true, "use_regex": false},
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "vocab": {"a": 2, "b": 4, "\u010a": 6},
              "merges": []}})";
}

void TestPlan::write() {
  Result<uint64_t> hash = plan::hashFile(folder() / "kernels.so");
  ASSERT_TRUE(hash.ok()) << hash.status().message();
  plan.libraryHash = *hash;
  Status status = plan::write(plan, folder());
  ASSERT_TRUE(status.ok()) << status.message();
}

std::vector<int32_t> text(size_t length, int32_t seed) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < length; ++i)
    ids.push_back((static_cast<int32_t>(i) * 5 + seed * 3) %
                  TestPlan::nanToken);
  return ids;
}

std::vector<float> expectedLogits(std::span<const int32_t> ids) {
  std::vector<float> logits;
  for (int64_t v = 0; v < TestPlan::vocab; ++v) {
    auto sum = static_cast<float>(v);
    for (int64_t w = 0; w < TestPlan::width; ++w)
      for (size_t q = 0; q < ids.size(); ++q)
        sum += expert(v % TestPlan::expertCount, w) *
               static_cast<float>(q + 1) * embedding(ids[q], w);
    logits.push_back(sum);
  }
  return logits;
}

} // namespace mla::test
