//===- Regex.cpp - matching with PCRE2 ------------------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/tokenizer/Regex.h"
#include "runtime/tokenizer/Utf8.h"
#include <new>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#if PCRE2_MAJOR < 10 || (PCRE2_MAJOR == 10 && PCRE2_MINOR < 40)
#error "PCRE2 10.40 or later is needed: earlier ones know no binary properties"
#endif

namespace mla {

namespace {
// PCRE2 counts these for each place where a match is tried. Patterns of
// tokenizers need a few steps for each character of a word.
constexpr uint32_t matchLimit = 10'000'000;
constexpr uint32_t heapLimitKiB = 256 * 1024;
constexpr size_t jitStackStart = 32 * 1024, jitStackMax = 8 * 1024 * 1024;
constexpr size_t maxPattern = 64 * 1024;

std::string errorText(int error) {
  PCRE2_UCHAR buffer[256];
  if (pcre2_get_error_message(error, buffer, sizeof(buffer)) < 0)
    return "PCRE2 error " + std::to_string(error);
  return reinterpret_cast<const char *>(buffer);
}

template <auto freeIt> struct Freer {
  template <typename T> void operator()(T *p) const { freeIt(p); }
};
using CodePtr = std::unique_ptr<pcre2_code, Freer<pcre2_code_free>>;
using CompileContextPtr =
    std::unique_ptr<pcre2_compile_context, Freer<pcre2_compile_context_free>>;
using MatchDataPtr =
    std::unique_ptr<pcre2_match_data, Freer<pcre2_match_data_free>>;
using MatchContextPtr =
    std::unique_ptr<pcre2_match_context, Freer<pcre2_match_context_free>>;
using JitStackPtr =
    std::unique_ptr<pcre2_jit_stack, Freer<pcre2_jit_stack_free>>;
} // namespace

struct RegexScratch::State {
  MatchDataPtr match;
  MatchContextPtr context;
  JitStackPtr jitStack;
};

// Allocation failures are seen in Regex::split, which can report them.
RegexScratch::RegexScratch() : state(std::make_unique<State>()) {
  state->match.reset(pcre2_match_data_create(1, nullptr));
  state->context.reset(pcre2_match_context_create(nullptr));
  if (!state->context)
    return;
  pcre2_set_match_limit(state->context.get(), matchLimit);
  pcre2_set_heap_limit(state->context.get(), heapLimitKiB);
  state->jitStack.reset(
      pcre2_jit_stack_create(jitStackStart, jitStackMax, nullptr));
  if (state->jitStack) // Null where this PCRE2 has no JIT: fine.
    pcre2_jit_stack_assign(state->context.get(), nullptr,
                           state->jitStack.get());
}
RegexScratch::~RegexScratch() = default;

struct Regex::Code {
  CodePtr code;
  std::string source;
};

Regex::Regex() : code(std::make_unique<Code>()) {}
Regex::Regex(Regex &&) noexcept = default;
Regex &Regex::operator=(Regex &&) noexcept = default;
Regex::~Regex() = default;

Result<Regex> Regex::compile(std::string_view pattern) {
  if (pattern.size() > maxPattern)
    return unsupported("a pattern of more than " + std::to_string(maxPattern) +
                       " bytes");
  auto context = [&](const Status &s) {
    return s.withContext("pattern \"" + std::string(pattern) + "\"");
  };
  Result<std::string> translated = translateOniguruma(pattern);
  if (!translated.ok())
    return context(translated.status());

  CompileContextPtr settings(pcre2_compile_context_create(nullptr));
  if (!settings)
    return exhausted("no memory for a pattern");
  pcre2_set_newline(settings.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  Regex regex;
  regex.code->source = pattern;
  regex.code->code.reset(pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(translated->data()), translated->size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset,
      settings.get()));
  if (!regex.code->code)
    return context(invalid(errorText(error) + " (rewritten for PCRE2 as \"" +
                           *translated + "\", byte " + std::to_string(offset) +
                           ")"));
  // Where there is no JIT, or none for this pattern, the interpreter runs it.
  (void)pcre2_jit_compile(regex.code->code.get(), PCRE2_JIT_COMPLETE);
  return regex;
}

Status Regex::split(std::string_view text, RegexScratch &scratch,
                    std::vector<std::string_view> &out) const {
  RegexScratch::State &state = *scratch.state;
  if (!state.match || !state.context)
    return exhausted("no memory to match a pattern");
  auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const PCRE2_SIZE *bounds = pcre2_get_ovector_pointer(state.match.get());
  size_t done = 0;  // Everything before is in `out`.
  size_t from = 0;  // Where the next search begins.
  bool any = false; // An earlier match exists and ended at `lastEnd`.
  size_t lastEnd = 0;
  auto emit = [&](size_t begin, size_t end) {
    if (begin < end)
      out.push_back(text.substr(begin, end - begin));
  };
  while (from <= text.size()) {
    // The text is known to be UTF-8; checking it at every match would be
    // quadratic.
    uint32_t flags = PCRE2_NO_UTF_CHECK;
    int rc = pcre2_match(code->code.get(), subject, text.size(), from, flags,
                         state.match.get(), state.context.get());
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
      rc = pcre2_match(code->code.get(), subject, text.size(), from,
                       flags | PCRE2_NO_JIT, state.match.get(),
                       state.context.get());
    if (rc == PCRE2_ERROR_NOMATCH)
      break;
    if (rc < 0)
      return exhausted("pattern \"" + code->source +
                       "\" gave up on a text of " +
                       std::to_string(text.size()) + " bytes at byte " +
                       std::to_string(from) + ": " + errorText(rc));
    size_t begin = bounds[0], end = bounds[1];
    // A lookaround may not move the bounds (there is no \K), but a wrong
    // assumption here must not become a wrong read.
    if (begin > end || begin < done || end > text.size())
      return internalError("a pattern matched outside of its text");
    if (begin == end && any && lastEnd == end) {
      // No empty match right after a match: go on one character later.
      if (end == text.size())
        break;
      from = end + utf8Length(text[end]);
      continue;
    }
    emit(done, begin);
    emit(begin, end);
    done = from = lastEnd = end;
    any = true;
  }
  emit(done, text.size());
  return {};
}

} // namespace mla
