//===- ExplainText.h - text of reports --------------------------*- C++ -*-===//
//
// Part of mla. Lines of at most 100 columns.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_DRIVER_EXPLAINTEXT_H
#define MLA_LIB_DRIVER_EXPLAINTEXT_H

#include "Report.h"
#include "llvm/Support/raw_ostream.h"
#include <string>
#include <vector>

namespace mla::explain {

/// "35,136".
std::string grouped(int64_t number);
/// With `digits` behind the point.
std::string fixed(double number, int digits);
/// "12.3%".
std::string percent(double part, double whole);

/// `text` with line ends between words; all lines but the first begin with
/// `indent` spaces, the first one follows on `column` that are there already.
void wrapped(llvm::raw_ostream &out, llvm::StringRef text, unsigned indent,
             unsigned column);

/// Columns as wide as they need to be; the first is flush left, others right.
class TextTable {
public:
  explicit TextTable(std::vector<std::string> header)
      : rows{std::move(header)} {}
  void add(std::vector<std::string> row) { rows.push_back(std::move(row)); }
  void print(llvm::raw_ostream &out, unsigned indent = 2) const;

private:
  std::vector<std::vector<std::string>> rows;
};

} // namespace mla::explain

#endif // MLA_LIB_DRIVER_EXPLAINTEXT_H
