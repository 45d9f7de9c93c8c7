//===- Documents.cpp - the documents of a text file -----------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/cli/Documents.h"
#include "mla/Support/Json.h"
#include "runtime/tokenizer/Tokenizer.h"
#include <algorithm>

namespace mla::cli {
namespace {

std::vector<std::string> splitDocuments(std::string_view text) {
  std::vector<std::string> documents;
  std::string document;
  auto finish = [&] {
    if (!document.empty())
      documents.push_back(std::move(document));
    document.clear();
  };
  while (!text.empty()) {
    size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) {
      finish();
      continue;
    }
    document.append(line).append("\n");
  }
  finish();
  return documents;
}

} // namespace

Result<std::vector<std::vector<int32_t>>>
readDocuments(const std::filesystem::path &file,
              const std::filesystem::path &plan, const plan::Model &model,
              int64_t limit) {
  MLA_ASSIGN_OR_RETURN(std::string text, readFile(file));
  MLA_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer,
                       Tokenizer::fromFile(plan));
  std::vector<std::vector<int32_t>> documents;
  for (const std::string &document : splitDocuments(text)) {
    MLA_ASSIGN_OR_RETURN(std::vector<int32_t> body,
                         tokenizer->encode(document, {.addSpecial = false,
                                                      .parseSpecial = false}));
    std::vector<int32_t> ids;
    if (model.bosToken)
      ids.push_back(static_cast<int32_t>(*model.bosToken));
    ids.insert(ids.end(), body.begin(), body.end());
    if (!model.eosTokens.empty())
      ids.push_back(static_cast<int32_t>(model.eosTokens.front()));
    ids.resize(std::min(ids.size(), static_cast<size_t>(limit)));
    if (ids.size() >= 2)
      documents.push_back(std::move(ids));
  }
  if (documents.empty())
    return invalid(file.string() + ": has no tokens to predict");
  return documents;
}

} // namespace mla::cli
