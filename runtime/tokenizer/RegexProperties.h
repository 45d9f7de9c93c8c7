//===- RegexProperties.h - names of character properties -------*- C++ -*-===//
//
// Part of mla. Private to the rewriting of patterns: \p{...} of Oniguruma to
// \p{...} of PCRE2.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_TOKENIZER_REGEXPROPERTIES_H
#define MLA_RUNTIME_TOKENIZER_REGEXPROPERTIES_H

#include "mla/Support/Status.h"
#include <optional>
#include <string_view>

namespace mla {

/// The item for the property `name` (as between the braces, without "^"), fit
/// for use inside and outside of brackets.
Result<std::string> translateProperty(std::string_view name, bool negated);

/// For items that are general categories and nothing else ("\p{Lu}\p{M}"): the
/// items of all other categories. Each character is of exactly one category.
std::optional<std::string> otherCategories(std::string_view items);

} // namespace mla

#endif // MLA_RUNTIME_TOKENIZER_REGEXPROPERTIES_H
