//===- CpuFeatures.cpp - what this processor can do -----------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/hal/host/CpuFeatures.h"
#include <optional>
#include <string_view>

namespace mla::hal {
namespace {

/// Whether the processor and the operating system support `name`; nothing if
/// the name is not known.
std::optional<bool> supports(std::string_view name) {
#if defined(__x86_64__)
  // The builtin takes literals only. Left LLVM's name, right the compiler's.
#define MLA_FEATURE(llvmName, builtinName)                                     \
  if (name == llvmName)                                                        \
    return __builtin_cpu_supports(builtinName) != 0;
  MLA_FEATURE("sse", "sse")
  MLA_FEATURE("sse2", "sse2")
  MLA_FEATURE("sse3", "sse3")
  MLA_FEATURE("ssse3", "ssse3")
  MLA_FEATURE("sse4.1", "sse4.1")
  MLA_FEATURE("sse4.2", "sse4.2")
  MLA_FEATURE("popcnt", "popcnt")
  MLA_FEATURE("avx", "avx")
  MLA_FEATURE("avx2", "avx2")
  MLA_FEATURE("fma", "fma")
  MLA_FEATURE("bmi", "bmi")
  MLA_FEATURE("bmi2", "bmi2")
  MLA_FEATURE("avx512f", "avx512f")
  MLA_FEATURE("avx512bw", "avx512bw")
  MLA_FEATURE("avx512cd", "avx512cd")
  MLA_FEATURE("avx512dq", "avx512dq")
  MLA_FEATURE("avx512vl", "avx512vl")
  MLA_FEATURE("avx512vnni", "avx512vnni")
  MLA_FEATURE("avx512bf16", "avx512bf16")
  // Compilers that know the names below only as target options.
#if !defined(__clang__) && __GNUC__ >= 11
  MLA_FEATURE("f16c", "f16c")
  MLA_FEATURE("lzcnt", "lzcnt")
  MLA_FEATURE("movbe", "movbe")
  MLA_FEATURE("xsave", "xsave")
  MLA_FEATURE("cx16", "cmpxchg16b")
  MLA_FEATURE("sahf", "lahf_lm")
  MLA_FEATURE("fxsr", "fxsave")
  MLA_FEATURE("mmx", "mmx")
  MLA_FEATURE("crc32", "sse4.2")
  MLA_FEATURE("avxvnni", "avxvnni")
  MLA_FEATURE("amx-tile", "amx-tile")
  MLA_FEATURE("amx-int8", "amx-int8")
  MLA_FEATURE("amx-bf16", "amx-bf16")
#endif
#undef MLA_FEATURE
#endif
  return std::nullopt;
}

} // namespace

Status checkCpuFeatures(const std::vector<std::string> &features) {
  std::string missing;
  std::string unknown;
  for (const std::string &feature : features) {
    std::optional<bool> has = supports(feature);
    if (has.value_or(false))
      continue;
    std::string &list = has ? missing : unknown;
    list += (list.empty() ? "" : ", ") + feature;
  }
  if (!missing.empty())
    return unsupported("this processor lacks " + missing +
                       ", which the plan's kernels need; compile the plan for "
                       "this machine");
  if (!unknown.empty())
    return unsupported("the plan needs CPU features that this build cannot "
                       "check: " +
                       unknown);
  return {};
}

} // namespace mla::hal
