//===- Internal.h - limits and names shared inside lib/Plan -----*- C++ -*-===//
//
// Part of mla. Reader, writer and verifier must agree on every limit: what is
// written must be readable, and what was read must be writable again.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_PLAN_INTERNAL_H
#define MLA_LIB_PLAN_INTERNAL_H

#include "mla/Plan/Plan.h"
#include <string>
#include <string_view>

namespace mla::plan::detail {

constexpr const char *planFile = "plan.json";

/// Sizes, offsets and seeds: JSON integers up to this are exact everywhere.
constexpr uint64_t maxInteger = (uint64_t(1) << 53) - 1;
/// Largest plan.json. A plan of a 61-layer model takes a few megabytes.
constexpr uint64_t maxPlanBytes = uint64_t(64) << 20;
/// Most checkpoint tensors in a plan. A pattern expands to names, so this is
/// what keeps a short file from asking for all memory.
constexpr uint64_t maxSources = uint64_t(1) << 19;
/// Tokens, sequences, outputs of a step; dimensions of the model.
constexpr int64_t maxStep = int64_t(1) << 31;
/// Ranks that share a model.
constexpr int64_t maxRanks = 1024;
/// Pages of a sequence: positions fit an i32.
constexpr int64_t maxSequencePages = (int64_t(1) << 31) / pageTokens;
/// Pages of the whole cache: page numbers fit an i32.
constexpr int64_t maxCapacity = (int64_t(1) << 31) - 1;
/// Threads and dynamic shared memory of a block, on any GPU.
constexpr int64_t maxBlockThreads = 1024, maxSharedBytes = 232448;
constexpr size_t maxRank = 8;
constexpr size_t maxNameBytes = 255;
constexpr size_t maxTextBytes = 4096;

/// 1 to 255 printable ASCII characters other than space: names of weights,
/// caches, workspaces, programs and tensors.
bool isName(std::string_view text);
/// A C identifier: names of kernels.
bool isSymbol(std::string_view text);
/// A name without any folder that every system takes: not "." or "..", no '/',
/// '\' or ':', no control characters, valid UTF-8, at most 255 bytes.
bool isPlainFileName(std::string_view text);
/// Valid UTF-8 without control characters, at most 4096 bytes.
bool isText(std::string_view text);
/// `text` in quotes for a message, shortened, other than ASCII replaced.
std::string quote(std::string_view text);

std::string_view accessName(Access access);
std::string_view checkpointKindName(Checkpoint::Kind kind);
std::string_view layoutName(Layout layout);
std::string_view collectivesName(Ranks::Collectives collectives);
/// "read f32", "table bf16", "scalar".
std::string parameterText(const Parameter &parameter);

/// Tensor names in `pattern` stand for "{}" replaced by first, first + 1, ...
constexpr std::string_view placeholder = "{}";

/// verify() with `file` before each message, unless it is empty.
Status verify(const Plan &plan, const std::string &file);

} // namespace mla::plan::detail

#endif // MLA_LIB_PLAN_INTERNAL_H
