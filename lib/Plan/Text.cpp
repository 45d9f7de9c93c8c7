//===- Text.cpp - what names and texts of a plan may hold -----------------===//
//
// Part of mla. Names end up in messages, in file systems and in dlsym, so each
// kind is held to the narrowest alphabet that serves it.
//
//===----------------------------------------------------------------------===//
#include "Internal.h"
#include <algorithm>

namespace mla::plan::detail {
namespace {

bool isLetter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

/// Well-formed UTF-8 (no overlong forms, no surrogates) without control
/// characters.
bool isCleanUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    unsigned char lead = static_cast<unsigned char>(text[i++]);
    if (lead < 0x80) {
      if (lead < 0x20 || lead == 0x7F)
        return false;
      continue;
    }
    size_t more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
    if (lead < 0xC2 || lead > 0xF4 || text.size() - i < more)
      return false;
    uint32_t code = lead & (0x3F >> more);
    for (size_t k = 0; k < more; ++k) {
      unsigned char c = static_cast<unsigned char>(text[i++]);
      if ((c & 0xC0) != 0x80)
        return false;
      code = (code << 6) | (c & 0x3F);
    }
    uint32_t least = more == 3 ? 0x10000 : more == 2 ? 0x800 : 0x80;
    if (code < least || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF) ||
        code < 0xA0)
      return false;
  }
  return true;
}

} // namespace

bool isName(std::string_view text) {
  return !text.empty() && text.size() <= maxNameBytes &&
         std::all_of(text.begin(), text.end(),
                     [](char c) { return c > 0x20 && c < 0x7F; });
}

bool isSymbol(std::string_view text) {
  return !text.empty() && text.size() <= maxNameBytes && isLetter(text[0]) &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return isLetter(c) || (c >= '0' && c <= '9');
         });
}

bool isPlainFileName(std::string_view text) {
  return !text.empty() && text.size() <= maxNameBytes && text != "." &&
         text != ".." && text.find_first_of("/\\:") == std::string_view::npos &&
         isCleanUtf8(text);
}

bool isText(std::string_view text) {
  return text.size() <= maxTextBytes && isCleanUtf8(text);
}

std::string quote(std::string_view text) {
  constexpr size_t limit = 80;
  std::string out = "\"";
  for (char c : text.substr(0, limit))
    out += c >= 0x20 && c < 0x7F ? c : '?';
  return out + (text.size() > limit ? "...\"" : "\"");
}

std::string_view accessName(Access access) {
  switch (access) {
  case Access::Read:
    return "read";
  case Access::Write:
    return "write";
  case Access::ReadWrite:
    return "readwrite";
  }
  return "unknown";
}

std::string_view checkpointKindName(Checkpoint::Kind kind) {
  switch (kind) {
  case Checkpoint::Kind::None:
    return "none";
  case Checkpoint::Kind::Safetensors:
    return "safetensors";
  case Checkpoint::Kind::Synthetic:
    return "synthetic";
  }
  return "unknown";
}

std::string_view collectivesName(Ranks::Collectives collectives) {
  return collectives == Ranks::Collectives::Local ? "local" : "exchange";
}

std::string_view layoutName(Layout layout) {
  switch (layout) {
  case Layout::Checkpoint:
    return "checkpoint";
  case Layout::Rows:
    return "rows";
  case Layout::Packed:
    return "packed";
  }
  return "unknown";
}

std::string parameterText(const Parameter &parameter) {
  switch (parameter.kind) {
  case Parameter::Kind::Buffer:
    return std::string(accessName(parameter.access)) + " " +
           std::string(formatName(parameter.format));
  case Parameter::Kind::Table:
    return "table " + std::string(formatName(parameter.format));
  case Parameter::Kind::Scalar:
    return "scalar";
  case Parameter::Kind::Peers:
    return "peers";
  }
  return "unknown";
}

} // namespace mla::plan::detail
