//===- VerifyTest.cpp - each rule of verify() broken once -----------------===//
//
// Part of mla. A row changes the sample plan in one place and says where and
// how verify() must complain.
//
//===----------------------------------------------------------------------===//
#include "SamplePlan.h"
#include <gtest/gtest.h>

using namespace mla;
using namespace mla::plan;

namespace {

struct Rule {
  const char *name;
  void (*breakIt)(Plan &);
  const char *message;
  /// plan.json has no way to say it, so that only verify() can complain.
  bool onlyInMemory = false;
};

Program &decode(Plan &p) { return p.programs[0]; }
Launch &launch(Plan &p, size_t i) { return p.programs[0].launches[i]; }
Argument &argument(Plan &p, size_t l, size_t i) {
  return p.programs[0].launches[l].arguments[i];
}

const Rule rules[] = {
    // Texts, target, model.
    {"producer", [](Plan &p) { p.producer = "\xff"; }, "at /producer: ", true},
    {"producerControl", [](Plan &p) { p.producer = "a\nb"; }, "at /producer: "},
    {"producerOverlong", [](Plan &p) { p.producer = "\xc0\xaf"; },
     "at /producer: ", true},
    {"producerSurrogate", [](Plan &p) { p.producer = "\xed\xa0\x80"; },
     "at /producer: ", true},
    {"producerCut", [](Plan &p) { p.producer = "\xe2\x82"; },
     "at /producer: ", true},
    {"producerLong", [](Plan &p) { p.producer.assign(5000, 'a'); },
     "at /producer: expected at most 4096 bytes"},
    {"targetName", [](Plan &p) { p.target.name = ""; }, "at /target/name: "},
    {"targetFeature", [](Plan &p) { p.target.features[1] = "a b"; },
     "at /target/features/1: expected the name of a CPU feature, found \"a "
     "b\""},
    {"kernelAbi", [](Plan &p) { p.target.kernelAbi = 2; },
     "at /target/kernel_abi: expected kernel ABI 1, found 2"},
    {"vocab", [](Plan &p) { p.model.vocabSize = 0; },
     "at /model/vocab_size: expected an integer from 1"},
    {"layers", [](Plan &p) { p.model.layers = -1; }, "at /model/layers: "},
    {"hidden", [](Plan &p) { p.model.hiddenSize = 0; },
     "at /model/hidden_size: "},
    {"positions", [](Plan &p) { p.model.maxPositions = INT64_MAX; },
     "at /model/max_positions: "},
    {"bos", [](Plan &p) { p.model.bosToken = 32; },
     "at /model/bos_token: expected an integer from 0 to 31, found 32"},
    {"eos", [](Plan &p) { p.model.eosTokens[1] = -1; },
     "at /model/eos_tokens/1: expected an integer from 0 to 31, found -1"},

    // The ranks (ShardTest.cpp has more), sampling.
    {"ranks", [](Plan &p) { p.ranks.count = 0; },
     "at /ranks/count: expected an integer from 1 to 1024, found 0"},
    {"ranksPages", [](Plan &p) { p.ranks.pageRanks = 0; },
     "at /ranks/page_ranks: expected 1 or all 4 ranks, found 0"},
    {"ranksMany", [](Plan &p) { p.ranks.count = INT64_MAX; },
     "at /ranks/count: expected an integer from 1 to 1024"},
    {"ranksLayout", [](Plan &p) { p.ranks.layout = "a\nb"; },
     "at /ranks/layout: expected at most 4096 bytes of UTF-8"},
    {"localAlone",
     [](Plan &p) { p.ranks = {1, Ranks::Collectives::Local, ""}; },
     "at /ranks: expected several ranks, found one"},
    {"layoutAlone",
     [](Plan &p) { p.ranks = {1, Ranks::Collectives::Exchange, "tp1"}; },
     "at /ranks: expected several ranks, found one"},
    {"samplingName", [](Plan &p) { p.sampling->name = ""; },
     "at /sampling/name: expected a name"},
    {"samplingFewRows", [](Plan &p) { p.sampling->maxOutputs = 3; },
     "at /sampling/max_outputs: expected at least the 4 of program \"decode\", "
     "found 3"},
    {"samplingArena", [](Plan &p) { p.sampling->workspaceBytes = 31; },
     "at /sampling/workspaces/0/offset: expected \"best\" to end within"},
    {"samplingEmpty", [](Plan &p) { p.sampling->launches.clear(); },
     "at /sampling/launches: expected a launch that writes the port sampled"},
    {"samplingLogitsWritten",
     [](Plan &p) { p.kernels[KSample].parameters[0].access = Access::Write; },
     "at /sampling/launches/0/arguments/0: expected port logits to be only "
     "read"},
    {"samplingNumbers",
     [](Plan &p) { p.kernels[KSample].parameters[1].format = Format::I32; },
     "at /sampling/launches/0/arguments/1: expected an argument for \"read "
     "i32\", found port sampling, a buffer of f32"},
    {"samplingTopKWritten",
     [](Plan &p) { p.kernels[KSample].parameters[2].access = Access::ReadWrite; },
     "at /sampling/launches/0/arguments/2: expected port top_k to be only read"},
    {"sampledRead",
     [](Plan &p) { p.kernels[KSample].parameters[4].access = Access::Read; },
     "at /sampling/launches/0/arguments/4: expected port sampled to be only "
     "written"},
    {"samplingInStep", [](Plan &p) { argument(p, LHead, 1).value = Port::TopK; },
     "at /programs/0/launches/5/arguments/1: expected a port of a step, found "
     "port top_k"},
    {"stepInSampling",
     [](Plan &p) { p.sampling->launches[0].arguments[2].value = Port::Ids; },
     "at /sampling/launches/0/arguments/2: expected a port of sampling, found "
     "port ids"},

    // Checkpoint and files.
    {"folderRelative", [](Plan &p) { p.checkpoint.folder = "models"; },
     "at /checkpoint/folder: expected an absolute path, found \"models\""},
    {"fileName", [](Plan &p) { p.checkpoint.files[1].name = "../x"; },
     "at /checkpoint/files/1/name: expected a plain file name"},
    {"fileTwice",
     [](Plan &p) { p.checkpoint.files[1].name = p.checkpoint.files[0].name; },
     "at /checkpoint/files/1/name: expected a name that is not taken"},
    {"fileSize", [](Plan &p) { p.checkpoint.files[0].size = UINT64_MAX; },
     "at /checkpoint/files/0/size: expected less than 2^53 bytes"},
    {"headerAboveSize",
     [](Plan &p) { p.checkpoint.files[0].headerBytes = 4097; },
     "at /checkpoint/files/0/header_bytes: expected from 8 to the file's 4096 "
     "bytes, found 4097"},
    {"headerTooSmall", [](Plan &p) { p.checkpoint.files[0].headerBytes = 7; },
     "at /checkpoint/files/0/header_bytes: "},
    {"seedOfSafetensors", [](Plan &p) { p.checkpoint.seed = 1; },
     "at /checkpoint: expected no seed", true},
    {"filesOfNone", [](Plan &p) { p.checkpoint.kind = Checkpoint::Kind::None; },
     "at /checkpoint: expected neither folder nor files in a checkpoint of "
     "kind none",
     true},
    {"offsetOfSynthetic",
     [](Plan &p) {
       p.checkpoint = {};
       p.checkpoint.kind = Checkpoint::Kind::Synthetic;
     },
     "at /weights/0: expected neither file nor offset", true},
    {"seedNegative",
     [](Plan &p) {
       p.checkpoint = {};
       p.checkpoint.kind = Checkpoint::Kind::Synthetic;
       p.checkpoint.seed = -1;
     },
     "at /checkpoint/seed: "},
    {"libraryEmpty", [](Plan &p) { p.library = ""; }, "at /library/file: "},
    {"libraryAbsolute", [](Plan &p) { p.library = "/lib/libc.so.6"; },
     "at /library/file: expected a plain file name"},
    {"libraryIsPlan", [](Plan &p) { p.library = "plan.json"; },
     "at /library/file: expected a name that is not taken"},
    {"tokenizerDots", [](Plan &p) { p.tokenizerFiles[1] = ".."; },
     "at /tokenizer/1: expected a plain file name"},
    {"tokenizerBackslash", [](Plan &p) { p.tokenizerFiles[0] = "a\\b"; },
     "at /tokenizer/0: expected a plain file name"},
    {"tokenizerNul",
     [](Plan &p) { p.tokenizerFiles[0] = std::string("a\0b", 3); },
     "at /tokenizer/0: expected a plain file name"},
    {"tokenizerTwice",
     [](Plan &p) { p.tokenizerFiles[1] = p.tokenizerFiles[0]; },
     "at /tokenizer/1: expected a name that is not taken"},

    // Weights.
    {"weightName", [](Plan &p) { p.weights[0].name = ""; },
     "at /weights/0/name: expected a name"},
    {"weightTwice", [](Plan &p) { p.weights[1].name = "embed"; },
     "at /weights/1/name: expected a name that is not taken, found \"embed\""},
    {"weightDimension", [](Plan &p) { p.weights[1].shape[0] = 0; },
     "at /weights/1/shape/0: expected an integer from 1"},
    {"weightRank", [](Plan &p) { p.weights[1].shape.assign(9, 1); },
     "at /weights/1/shape: expected from 0 to 8 dimensions, found 9"},
    {"weightStackedRank", [](Plan &p) { p.weights[WExperts].shape.clear(); },
     "at /weights/2/shape: expected from 1 to 8 dimensions, found 0"},
    {"weightOverflow",
     [](Plan &p) {
       p.weights[0].shape = {int64_t(1) << 40, int64_t(1) << 40};
     },
     "at /weights/0/shape: expected less than 2^53 bytes"},
    {"weightTooBig", [](Plan &p) { p.weights[0].shape = {int64_t(1) << 52}; },
     "at /weights/0/shape: expected less than 2^53 bytes"},
    {"weightSources", [](Plan &p) { p.weights[0].sources.clear(); },
     "at /weights/0: expected 1 checkpoint tensors for \"embed\", found 0"},
    {"weightStackCount", [](Plan &p) { p.weights[WExperts].shape[0] = 5; },
     "at /weights/2: expected 5 checkpoint tensors for \"experts\", found 4"},
    {"weightFile", [](Plan &p) { p.weights[0].sources[0].file = 2; },
     "at /weights/0: expected a file from 0 to 2 (exclusive), found 2"},
    {"weightInHeader", [](Plan &p) { p.weights[0].sources[0].offset = 255; },
     "at /weights/0: expected tensor \"model.embed_tokens.weight\" between "
     "bytes 256 and 4096"},
    {"weightPastEnd",
     [](Plan &p) { p.weights[0].sources[0].offset = 4096 - 511; },
     "found offset 3585 and 512 bytes"},
    {"weightOffsetHuge",
     [](Plan &p) { p.weights[0].sources[0].offset = UINT64_MAX; },
     "found offset 18446744073709551615"},
    {"stackPastEnd",
     [](Plan &p) { p.weights[WExperts].sources[3].offset = 513; },
     "at /weights/2/stacked (tensor 3): expected tensor"},
    {"tensorName", [](Plan &p) { p.weights[0].sources[0].tensor = "a b"; },
     "at /weights/0: expected the name of a tensor"},

    // Weights in parts.
    {"partsOfVector",
     [](Plan &p) {
       p.weights[WDown].format = Format::FP8Block;
       p.weights[WDown].shape = {128};
       p.weights[WDown].scales.pop_back();
     },
     "at /weights/3/shape: expected a matrix in the format fp8_block, found "
     "fewer dimensions"},
    {"partsOfStackedVectors",
     [](Plan &p) { p.weights[WStack].shape = {4, 32}; },
     "at /weights/4/shape: expected a matrix in the format int4_g32"},
    {"groupsOf16", [](Plan &p) { p.weights[WDown].shape = {8, 24}; },
     "at /weights/3/shape: expected columns in groups of 16, found 24"},
    {"groupsOf32", [](Plan &p) { p.weights[WStack].shape = {4, 8, 48}; },
     "at /weights/4/shape: expected columns in groups of 32, found 48"},
    {"partMissing", [](Plan &p) { p.weights[WDown].scales.pop_back(); },
     "at /weights/3: expected 3 parts of \"down\" in nvfp4, found 2"},
    {"partsMissing",
     [](Plan &p) { p.weights[WEmbed].format = Format::FP8Block; },
     "at /weights/0: expected 2 parts of \"embed\" in fp8_block, found 1"},
    {"partExtra",
     [](Plan &p) {
       Weight &w = p.weights[WStack];
       w.scales.push_back(w.scales[0]);
     },
     "at /weights/4: expected 2 parts of \"stack\" in int4_g32, found 3", true},
    {"partsOfF32",
     [](Plan &p) { p.weights[WNorm].scales = {p.weights[WDown].scales[0]}; },
     "at /weights/1: expected 1 parts of \"norm\" in f32, found 2", true},
    {"partWithoutSource",
     [](Plan &p) { p.weights[WDown].scales[1].sources.clear(); },
     "at /weights/3/global: expected 1 checkpoint tensors for \"down\", found "
     "0"},
    {"partWithTwoSources",
     [](Plan &p) {
       std::vector<TensorSource> &s = p.weights[WDown].scales[0].sources;
       s.push_back(s[0]);
     },
     "at /weights/3/scales: expected 1 checkpoint tensors for \"down\", found "
     "2",
     true},
    {"partStackCount",
     [](Plan &p) { p.weights[WStack].scales[0].sources.pop_back(); },
     "at /weights/4/scales: expected 4 checkpoint tensors for \"stack\", found "
     "3"},
    {"reciprocalScales",
     [](Plan &p) { p.weights[WDown].scales[0].reciprocal = true; },
     "at /weights/3/scales/reciprocal: expected none but of a global scale"},
    {"reciprocalInt4",
     [](Plan &p) { p.weights[WStack].scales[0].reciprocal = true; },
     "at /weights/4/scales/reciprocal: expected none but of a global scale"},
    {"valuesPastEnd",
     [](Plan &p) { p.weights[WDown].sources[0].offset = 4096 - 63; },
     "at /weights/3: expected tensor \"down.weight_packed\" between bytes 256 "
     "and 4096 of \"model-1.safetensors\", found offset 4033 and 64 bytes"},
    {"scalesPastEnd",
     [](Plan &p) { p.weights[WDown].scales[0].sources[0].offset = 4096 - 7; },
     "at /weights/3/scales: expected tensor \"down.weight_scale\" between "
     "bytes 256 and 4096 of \"model-1.safetensors\", found offset 4089 and 8 "
     "bytes"},
    {"globalPastEnd",
     [](Plan &p) { p.weights[WDown].scales[1].sources[0].offset = 4096 - 3; },
     "found offset 4093 and 4 bytes"},
    {"stackedScalesPastEnd",
     [](Plan &p) { p.weights[WStack].scales[0].sources[2].offset = 4096 - 15; },
     "at /weights/4/scales/stacked (tensor 2): expected tensor"},
    {"blockScalesPastEnd", // 2 x 2 blocks, and not one
     [](Plan &p) {
       Weight &w = p.weights[WDown];
       w.format = Format::FP8Block;
       w.shape = {129, 129};
       w.scales.pop_back();
       p.checkpoint.files[0].size = 1 << 20;
       w.scales[0].sources[0].offset = (1 << 20) - 15;
     },
     "found offset 1048561 and 16 bytes"},
    {"scalesInHeader",
     [](Plan &p) { p.weights[WDown].scales[0].sources[0].offset = 255; },
     "at /weights/3/scales: expected tensor"},
    {"scalesFile",
     [](Plan &p) { p.weights[WDown].scales[0].sources[0].file = 2; },
     "at /weights/3/scales: expected a file from 0 to 2 (exclusive), found 2"},
    {"scalesTensorName",
     [](Plan &p) { p.weights[WDown].scales[0].sources[0].tensor = ""; },
     "at /weights/3/scales: expected the name of a tensor"},

    // Caches and kernels.
    {"cacheKind", [](Plan &p) { p.caches[0].kind = "paged"; },
     "at /caches/0/kind: expected \"expanded\", \"latent\" or \"index\", "
     "found \"paged\""},
    {"cacheName", [](Plan &p) { p.caches[0].name = "\x7f"; },
     "at /caches/0/name: "},
    {"cacheTwice", [](Plan &p) { p.caches.push_back(p.caches[0]); },
     "at /caches/1/name: expected a name that is not taken"},
    {"cacheWidth", [](Plan &p) { p.caches[0].width = 0; },
     "at /caches/0/width: "},
    {"cacheFormat", [](Plan &p) { p.caches[0].format = Format::NVFP4; },
     "at /caches/0/format: expected a format without block scales, found "
     "nvfp4"},
    {"kernelName", [](Plan &p) { p.kernels[0].name = "2gather"; },
     "at /kernels/0/name: expected a C identifier, found \"2gather\""},
    {"kernelNameDash", [](Plan &p) { p.kernels[0].name = "a-b"; },
     "at /kernels/0/name: expected a C identifier"},
    {"kernelTwice", [](Plan &p) { p.kernels[1].name = "gather"; },
     "at /kernels/1/name: expected a name that is not taken"},

    // Programs.
    {"maxPages", [](Plan &p) { p.maxPages = 0; }, "at /max_pages: "},
    {"maxPagesHuge", [](Plan &p) { p.maxPages = (int64_t(1) << 25) + 1; },
     "at /max_pages: expected an integer from 1 to 33554432"},
    {"noProgram", [](Plan &p) { p.programs.clear(); },
     "at /programs: expected at least one program"},
    {"programName", [](Plan &p) { p.programs[1].name = "decode"; },
     "at /programs/1/name: expected a name that is not taken"},
    {"programOrder", [](Plan &p) { std::swap(p.programs[0], p.programs[1]); },
     "at /programs/1: expected bounds above those of \"prefill\""},
    {"programSame",
     [](Plan &p) {
       p.programs[1] = p.programs[0];
       p.programs[1].name = "again";
     },
     "at /programs/1: expected bounds above those of \"decode\""},
    {"maxTokens", [](Plan &p) { decode(p).maxTokens = 0; },
     "at /programs/0/max_tokens: "},
    {"maxTokensHuge",
     [](Plan &p) { p.programs[1].maxTokens = (int64_t(1) << 31) + 1; },
     "at /programs/1/max_tokens: expected an integer from 1 to 2147483648"},
    {"maxSequences", [](Plan &p) { decode(p).maxSequences = 5; },
     "at /programs/0/max_sequences: expected an integer from 1 to 4, found 5"},
    {"maxOutputs", [](Plan &p) { decode(p).maxOutputs = 0; },
     "at /programs/0/max_outputs: expected an integer from 1 to 4, found 0"},
    {"arenaHuge", [](Plan &p) { decode(p).workspaceBytes = UINT64_MAX; },
     "at /programs/0/workspace_bytes: expected less than 2^53 bytes"},

    // Workspaces.
    {"workspaceName", [](Plan &p) { decode(p).workspaces[1].name = "x"; },
     "at /programs/0/workspaces/1/name: expected a name that is not taken"},
    {"workspaceFormat",
     [](Plan &p) { decode(p).workspaces[0].format = Format::Int4G32; },
     "at /programs/0/workspaces/0/format: expected a format without block"},
    {"workspaceOffset", [](Plan &p) { decode(p).workspaces[0].offset = 32; },
     "at /programs/0/workspaces/0/offset: expected a multiple of 64, found 32"},
    {"workspaceRank",
     [](Plan &p) { decode(p).workspaces[0].shape.assign(9, Expr(1)); },
     "at /programs/0/workspaces/0/shape: expected at most 8 dimensions"},
    {"workspaceCapacity",
     [](Plan &p) { decode(p).workspaces[0].shape[1] = Symbol::Capacity; },
     "at /programs/0/workspaces/0/shape/1: expected neither capacity nor "
     "rank"},
    {"workspaceMonotone",
     [](Plan &p) { decode(p).workspaces[0].shape[0] = expr("5 - tokens"); },
     "at /programs/0/workspaces/0/shape/0: expected a dimension that grows"},
    {"workspaceZero",
     [](Plan &p) { decode(p).workspaces[0].shape[1] = Expr(0); },
     "at /programs/0/workspaces/0/shape/1: expected a dimension of at least 1"},
    {"workspaceDimensionOverflow",
     [](Plan &p) {
       decode(p).workspaces[0].shape[1] = expr("tokens * 9223372036854775807");
     },
     "at /programs/0/workspaces/0/shape/1: expected a value at the bounds"},
    {"workspaceBytesOverflow",
     [](Plan &p) { decode(p).workspaces[0].shape[1] = Expr(INT64_MAX); },
     "at /programs/0/workspaces/0/shape: the size of a buffer overflows"},
    {"workspacePastArena", [](Plan &p) { --decode(p).workspaceBytes; },
     "at /programs/0/workspaces/1/offset: expected \"moe\" to end within the "
     "arena of 255 bytes, found offset 128 and 128 bytes"},
    {"workspaceOffsetHuge",
     [](Plan &p) { decode(p).workspaces[0].offset = UINT64_MAX - 63; },
     "at /programs/0/workspaces/0/offset: expected \"x\" to end within"},
    {"overlapSame", [](Plan &p) { decode(p).workspaces[XMoe].offset = 0; },
     "at /programs/0/workspaces/1: expected no overlap of live workspaces, "
     "found \"moe\" at bytes 0 to 128 in launches 2 to 4 and \"x\" at bytes 0 "
     "to 128 in launches 0 to 2"},
    {"overlapPartly", [](Plan &p) { decode(p).workspaces[XMoe].offset = 64; },
     "at /programs/0/workspaces/1: expected no overlap"},
    {"overlapFromBelow",
     [](Plan &p) {
       decode(p).workspaces[XIn].offset = 128;
       decode(p).workspaces[XMoe].offset = 64;
     },
     "at /programs/0/workspaces/1: expected no overlap"},
    {"overlapOneLaunch",
     [](Plan &p) { decode(p).workspaces[XOut].offset = 128; },
     "at /programs/0/workspaces/2: expected no overlap"},
    {"overlapLiveLonger",
     [](Plan &p) { argument(p, LHead, 0).value = WorkspaceRef{XIn}; },
     "expected no overlap"},

    // Launches.
    {"origin", [](Plan &p) { launch(p, 0).origin = "\xff"; },
     "at /programs/0/launches/0/origin: ", true},
    {"gridNegative", [](Plan &p) { launch(p, 0).grid = expr("tokens - 2"); },
     "at /programs/0/launches/0/grid: expected a grid of at least 0, found "
     "\"tokens - 2\" = -1"},
    {"gridError",
     [](Plan &p) { launch(p, 0).grid = expr("ceildiv(8, tokens - 1)"); },
     "at /programs/0/launches/0/grid: expected a value at the smallest step"},
    {"gridOverflowLargestCache",
     [](Plan &p) {
       launch(p, 0).grid = expr("capacity * 4611686018427387904");
       decode(p).maxSequences = p.maxPages = 1;
     },
     "at /programs/0/launches/0/grid: expected a value at the bounds and the "
     "largest cache"},
    {"kernelIndex", [](Plan &p) { launch(p, 0).kernel = 8; },
     "at /programs/0/launches/0/kernel: expected a kernel from 0 to 8"},
    {"argumentMissing", [](Plan &p) { launch(p, 3).arguments.pop_back(); },
     "at /programs/0/launches/3/arguments: expected 2 arguments for kernel "
     "\"rms_norm_8\", found 1"},
    {"argumentExtra",
     [](Plan &p) { launch(p, 3).arguments.push_back({Expr(1)}); },
     "at /programs/0/launches/3/arguments: expected 2 arguments"},
    {"weightIndex", [](Plan &p) { argument(p, LNorm, 1).value = WeightRef{6}; },
     "at /programs/0/launches/3/arguments/1: expected a weight from 0 to 6"},
    {"cacheIndex",
     [](Plan &p) { argument(p, LStore, 4).value = CacheRef{UINT32_MAX}; },
     "at /programs/0/launches/1/arguments/4: expected a cache from 0 to 1"},
    {"workspaceIndex",
     [](Plan &p) { argument(p, LStore, 0).value = WorkspaceRef{3}; },
     "at /programs/0/launches/1/arguments/0: expected a workspace from 0 to 3"},
    {"portIndex",
     [](Plan &p) { argument(p, LGather, 0).value = Port(portCount); },
     "at /programs/0/launches/0/arguments/0: expected a port from 0 to 10"},
    {"scalarForBuffer",
     [](Plan &p) { argument(p, LGather, 0).value = expr("tokens"); },
     "at /programs/0/launches/0/arguments/0: expected an argument for \"read "
     "i32\", found scalar \"tokens\""},
    {"bufferForScalar",
     [](Plan &p) { argument(p, LGather, 3).value = WeightRef{WNorm}; },
     "at /programs/0/launches/0/arguments/3: expected an argument for "
     "\"scalar\", found weight \"norm\", a buffer of f32"},
    {"bufferForTable",
     [](Plan &p) { argument(p, LExperts, 1).value = WeightRef{WEmbed}; },
     "at /programs/0/launches/2/arguments/1: expected an argument for \"table "
     "bf16\", found weight \"embed\", a buffer of bf16"},
    {"workspaceForTable",
     [](Plan &p) { argument(p, LExperts, 1).value = WorkspaceRef{XIn}; },
     "at /programs/0/launches/2/arguments/1: expected an argument for \"table"},
    {"tableForBuffer",
     [](Plan &p) { argument(p, LGather, 1).value = WeightRef{WExperts}; },
     "at /programs/0/launches/0/arguments/1: expected an argument for \"read "
     "bf16\", found weight \"experts\", a table of bf16"},
    {"partsForBuffer",
     [](Plan &p) {
       p.kernels[KExperts].parameters[3].kind = Parameter::Kind::Buffer;
     },
     "at /programs/0/launches/2/arguments/3: expected an argument for \"read "
     "nvfp4\", found weight \"down\", a table of nvfp4"},
    {"partsOfOtherFormat",
     [](Plan &p) { argument(p, LExperts, 3).value = WeightRef{WStack}; },
     "at /programs/0/launches/2/arguments/3: expected an argument for \"table "
     "nvfp4\", found weight \"stack\", a table of int4_g32"},
    {"weightFormat",
     [](Plan &p) { argument(p, LGather, 1).value = WeightRef{WNorm}; },
     "at /programs/0/launches/0/arguments/1: expected an argument for \"read "
     "bf16\", found weight \"norm\", a buffer of f32"},
    {"cacheFormatMismatch", [](Plan &p) { p.caches[0].format = Format::F32; },
     "at /programs/0/launches/1/arguments/4: expected an argument for "
     "\"readwrite bf16\", found cache \"latent.0\", a buffer of f32"},
    {"workspaceFormatMismatch",
     [](Plan &p) { decode(p).workspaces[XIn].format = Format::I32; },
     "found workspace \"x\", a buffer of i32"},
    {"portFormat",
     [](Plan &p) { argument(p, LGather, 0).value = Port::Logits; },
     "at /programs/0/launches/0/arguments/0: expected an argument for \"read "
     "i32\", found port logits, a buffer of f32"},
    {"scalarError",
     [](Plan &p) { argument(p, LGather, 3).value = expr("ceildiv(1, 0)"); },
     "at /programs/0/launches/0/arguments/3/scalar: expected a value"},
    {"weightWritten",
     [](Plan &p) { p.kernels[KNorm].parameters[1].access = Access::ReadWrite; },
     "at /programs/0/launches/3/arguments/1: expected weights to be only read"},
    {"portWritten",
     [](Plan &p) { p.kernels[KGather].parameters[0].access = Access::Write; },
     "at /programs/0/launches/0/arguments/0: expected port ids to be only "
     "read"},
    {"portReadAndWritten",
     [](Plan &p) {
       p.kernels[KGather].parameters[0].access = Access::ReadWrite;
     },
     "at /programs/0/launches/0/arguments/0: expected port ids to be only "
     "read"},
    {"saturatedRead",
     [](Plan &p) { p.kernels[KStore].parameters[6].access = Access::Read; },
     "at /programs/0/launches/1/arguments/6: expected port saturated to be "
     "read and written, found \"read i32\""},
    {"saturatedWritten",
     [](Plan &p) { p.kernels[KStore].parameters[6].access = Access::Write; },
     "at /programs/0/launches/1/arguments/6: expected port saturated to be "
     "read and written, found \"write i32\""},
    {"saturatedFormat",
     [](Plan &p) { p.kernels[KStore].parameters[6].format = Format::F32; },
     "at /programs/0/launches/1/arguments/6: expected an argument for "
     "\"readwrite f32\", found port saturated, a buffer of i32"},
    {"logitsRead",
     [](Plan &p) { p.kernels[KHead].parameters[3].access = Access::ReadWrite; },
     "at /programs/0/launches/5/arguments/3: expected port logits to be only "
     "written"},
    {"logitsMissing", [](Plan &p) { decode(p).launches.resize(LHead); },
     "at /programs/0/launches: expected a launch that writes the port logits"},
    {"readBeforeWrite",
     [](Plan &p) { std::swap(launch(p, LGather), launch(p, LStore)); },
     "at /programs/0/launches/0/arguments/0: expected an earlier launch that "
     "writes workspace \"x\""},
    {"readWriteBeforeWrite",
     [](Plan &
            p) { p.kernels[KExperts].parameters[2].access = Access::ReadWrite; },
     "at /programs/0/launches/2/arguments/2: expected an earlier launch that "
     "writes workspace \"moe\""},
    {"readInTheLaunchThatWrites",
     [](Plan &p) { argument(p, LExperts, 0).value = WorkspaceRef{XMoe}; },
     "at /programs/0/launches/2/arguments/0: expected an earlier launch"},
};

class VerifyRule : public testing::TestWithParam<Rule> {};

TEST_P(VerifyRule, Complains) {
  Plan p = samplePlan();
  GetParam().breakIt(p);
  Status status = verify(p);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::Invalid);
  EXPECT_NE(status.message().find(GetParam().message), std::string::npos)
      << status.message();
  EXPECT_EQ(parse(print(p), "plan.json").ok(), GetParam().onlyInMemory);
}

INSTANTIATE_TEST_SUITE_P(Plan, VerifyRule, testing::ValuesIn(rules),
                         [](const auto &info) {
                           return std::string(info.param.name);
                         });

/// What the rules must not forbid.
TEST(Verify, Accepts) {
  Plan p = samplePlan();
  p.programs[1] = p.programs[0];
  p.programs[1].name = "decode_more_outputs";
  p.programs[0].maxOutputs = 2; // Same tokens, more outputs: ascending.
  p.producer = "mla \xc3\xa4 \xe2\x82\xac \xf0\x9f\x8e\x89";
  p.checkpoint.files[0].name = "mod\xc3\xa8le.safetensors";
  p.weights[WNorm].shape.clear();             // a scalar
  p.weights[WDown].scales[1].reciprocal = false;
  Weight odd{"odd", Format::FP8Block, {7, 130}, false, {{"o", 0, 2048}}};
  odd.scales = {{{{"o.scale", 0, 4096 - 8}}}}; // Blocks need not be whole.
  p.weights.push_back(odd);
  for (const char *kind : {"", "expanded", "index"})
    p.caches.push_back({"c" + std::string(kind), Format::FP8E4M3, 8, kind});
  launch(p, LNorm).grid = expr("tokens - 1"); // Zero items in a step of one.
  decode(p).workspaces.push_back({"unused", Format::F32, {Expr(1)}, 0});
  Status status = verify(p);
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST(Verify, ManyMistakesAreLimited) {
  Plan p = samplePlan();
  for (int i = 0; i < 1000; ++i)
    p.kernels.push_back({"bad name", {}});
  std::string message = verify(p).message();
  EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 15);
}

TEST(Verify, ManySources) {
  Plan p = samplePlan();
  Weight &w = p.weights[WExperts];
  auto resize = [&](uint32_t n) {
    w.shape[0] = n;
    w.sources.resize(n, w.sources[0]);
  };
  resize((1u << 19) - 14); // What the other weights and their scales have.
  EXPECT_TRUE(verify(p).ok());
  resize((1u << 19) - 13);
  EXPECT_EQ(verify(p).message(), "at /weights: expected at most 524288 "
                                 "checkpoint tensors, found 524289");
}

/// Many workspaces live at once must not take quadratic time.
TEST(Verify, ManyWorkspaces) {
  Plan p = samplePlan();
  Program &d = decode(p);
  constexpr uint32_t n = 100000;
  for (uint32_t i = 0; i < n; ++i)
    d.workspaces.push_back(
        {"w" + std::to_string(i), Format::F32, {Expr(16)}, 256 + 64 * i});
  d.workspaceBytes = 256 + 64 * uint64_t(n);
  auto copy = [&](uint32_t from, uint32_t to) {
    d.launches.push_back(
        {KCopy, Expr(1), {{WorkspaceRef{from}}, {WorkspaceRef{to}}}, "copy"});
  };
  copy(XOut, 3);
  for (uint32_t i = 1; i < n; ++i)
    copy(2 + i, 3 + i);
  copy(3, 2 + n); // The first one lives to the end.
  Status status = verify(p);
  EXPECT_TRUE(status.ok()) << status.message();
  d.workspaces.back().offset = 256;
  EXPECT_FALSE(verify(p).ok());
}

} // namespace
