//===- ExplainCommand.h - --explain and --compare ---------------*- C++ -*-===//
//
// Part of mla. Their options of mla-compile, and what they do.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_DRIVER_EXPLAINCOMMAND_H
#define MLA_LIB_DRIVER_EXPLAINCOMMAND_H

#include "mla/Driver/Compile.h"
#include <CLI/CLI.hpp>

namespace mla::explain {

class Command {
public:
  void addTo(CLI::App &app);
  bool given() const { return !format.empty() || !compared.empty(); }
  /// Options that are of use with the two alone, and were given.
  bool hasDetails() const;
  /// What is wrong with the command line, or "". `model`: whether one was
  /// named.
  std::string check(bool model) const;
  /// Prints the report of options.model, or of both models, to `out`. Without
  /// `ranks` as many as the machine has devices.
  llvm::Error run(const CompileOptions &options, bool ranks,
                  llvm::raw_ostream &out, llvm::raw_ostream &err) const;

  /// Arguments in which "--explain" alone has its format, which the parser
  /// would take the model for.
  static std::vector<std::string> complete(int argc, char **argv);

private:
  std::string format; ///< "text", "json"
  std::vector<std::string> compared;
  bool json = false;
  std::vector<CLI::Option *> details;
  std::vector<int64_t> contexts{0, 32768, 131072}, batches{1, 8, 64};
};

} // namespace mla::explain

#endif // MLA_LIB_DRIVER_EXPLAINCOMMAND_H
