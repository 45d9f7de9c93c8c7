//===- Documents.h - the documents of a text file ---------------*- C++ -*-===//
//
// Part of mla. A document is a run of lines without a blank line between them;
// its ids are bos, its text with a newline at the end, eos.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_CLI_DOCUMENTS_H
#define MLA_RUNTIME_CLI_DOCUMENTS_H

#include "mla/Plan/Plan.h"
#include <filesystem>
#include <vector>

namespace mla::cli {

/// The ids of each document of `file`, by the tokenizer in the folder `plan`,
/// cut to `limit`. Documents of fewer than two ids are left out; Invalid if none
/// is left.
Result<std::vector<std::vector<int32_t>>>
readDocuments(const std::filesystem::path &file,
              const std::filesystem::path &plan, const plan::Model &model,
              int64_t limit);

} // namespace mla::cli

#endif // MLA_RUNTIME_CLI_DOCUMENTS_H
