//===- ExplainCommand.cpp - --explain and --compare -----------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "ExplainCommand.h"
#include "Explain.h"
#include <algorithm>

using namespace mla;
using namespace mla::explain;

std::vector<std::string> Command::complete(int argc, char **argv) {
  // In the order that the parser wants: the last one first.
  std::vector<std::string> arguments;
  for (int i = argc - 1; i > 0; --i) {
    arguments.push_back(argv[i]);
    if (arguments.back() == "--explain")
      arguments.back() += "=text";
  }
  return arguments;
}

void Command::addTo(CLI::App &app) {
  std::string group = "Explaining";
  app.add_option(
         "--explain", format,
         "Tell what would be chosen and why, what fits, and how fast it "
         "would be; no weights are read, nothing is written "
         "(--explain=json: as JSON)")
      ->type_name("")
      ->group(group)
      ->check(CLI::IsMember({"text", "json"}).description(""));
  app.add_option("--compare", compared,
                 "Tell what two models have in common on a machine")
      ->type_name("A B")
      ->group(group)
      ->expected(2);
  details.push_back(
      app.add_flag("--json", json, "With --explain and --compare: as JSON")
          ->group(group));
  details.push_back(
      app.add_option("--contexts", contexts,
                     "Tokens behind each new one, for times of a step")
          ->type_name("N,N,...")
          ->group(group)
          ->delimiter(',')
          ->default_str("0,32768,131072")
          ->check(CLI::Range(int64_t(0), int64_t(1) << 31).description("")));
  details.push_back(
      app.add_option("--batches", batches, "Sequences of a step")
          ->type_name("N,N,...")
          ->group(group)
          ->delimiter(',')
          ->default_str("1,8,64")
          ->check(CLI::Range(int64_t(1), int64_t(1) << 20).description("")));
}

bool Command::hasDetails() const {
  return std::any_of(details.begin(), details.end(),
                     [](CLI::Option *option) { return option->count() > 0; });
}

std::string Command::check(bool model) const {
  if (!format.empty() && !compared.empty())
    return "--explain and --compare exclude each other";
  if (!compared.empty() && model)
    return "--compare names its two models itself";
  return "";
}

llvm::Error Command::run(const CompileOptions &compile, bool ranks,
                         llvm::raw_ostream &out, llvm::raw_ostream &err) const {
  Options options;
  options.compile = compile;
  if (ranks)
    options.ranks = compile.pipeline.ranks;
  options.contexts = contexts;
  options.batches = batches;
  bool asJson = json || format == "json";
  if (compared.empty()) {
    auto report = explainModel(options, err);
    if (!report)
      return report.takeError();
    asJson ? printJson(*report, out) : printText(*report, out);
    return llvm::Error::success();
  }
  options.compile.model = compared[0];
  auto a = explainModel(options, err);
  if (!a)
    return a.takeError();
  options.compile.model = compared[1];
  auto b = explainModel(options, err);
  if (!b)
    return b.takeError();
  Comparison comparison = compare(*std::move(a), *std::move(b));
  asJson ? printJson(comparison, out) : printText(comparison, out);
  return llvm::Error::success();
}
