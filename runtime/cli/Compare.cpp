//===- Compare.cpp - mla-run compare --------------------------------------===//
//
// Part of mla. Two plans of one model run the same steps, and every value that
// both have a name for is compared as the launch that wrote it leaves it. Where
// a kernel first goes wrong is then the value with a large error whose inputs
// have small ones. Where a tie between experts falls the other way, the second
// plan goes on with the first one's choice, so that what follows is comparable.
//
//===----------------------------------------------------------------------===//
#include "mla/Support/Json.h"
#include "runtime/cli/Choices.h"
#include "runtime/cli/Commands.h"
#include "runtime/cli/Support.h"
#include "runtime/tokenizer/Tokenizer.h"
#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>

namespace mla::cli {
namespace {

constexpr uint64_t maxIdsBytes = uint64_t(64) << 20;

/// What was found of one value, over all steps.
struct Finding {
  double error = 0; ///< The largest of ||a - b|| / ||a||.
  int64_t step = 0; ///< In which it was, from 0.
  double norm = 0;  ///< ||a|| there, a being the first plan's.
  int64_t size = 0; ///< Elements there.
  size_t place = 0; ///< Launch of the second plan that writes it.
  std::string kernel;
  int64_t notFinite[2] = {0, 0}; ///< Elements of each, in the worst step.
};

/// What was compared, and what could not be.
struct Report {
  std::map<std::string, Finding> values;
  std::map<std::string, std::string> otherSizes;
  Finding logits;
  int64_t steps = 0;
  int64_t choices = 0; ///< Compared, one a token and router.
  std::vector<ChoiceDifference> otherChoices;

  int64_t count(ChoiceDifference::Kind kind) const {
    return std::count_if(otherChoices.begin(), otherChoices.end(),
                         [&](const auto &d) { return d.kind == kind; });
  }
};

int64_t countNotFinite(std::span<const float> values) {
  return std::count_if(values.begin(), values.end(),
                       [](float v) { return !std::isfinite(v); });
}

void compareValues(std::span<const float> a, std::span<const float> b,
                   int64_t step, Finding &finding) {
  int64_t bad[2] = {countNotFinite(a), countNotFinite(b)};
  for (int i = 0; i < 2; ++i)
    finding.notFinite[i] = std::max(finding.notFinite[i], bad[i]);
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(a[i]) || !std::isfinite(b[i]))
      continue; // Named by itself.
    double d = static_cast<double>(a[i]) - b[i];
    difference += d * d;
    norm += static_cast<double>(a[i]) * a[i];
  }
  double error = norm > 0       ? std::sqrt(difference / norm)
                 : difference > 0 ? INFINITY
                                  : 0;
  if (finding.size == 0 || error > finding.error) {
    finding.error = error;
    finding.step = step;
    finding.norm = std::sqrt(norm);
  }
  finding.size = static_cast<int64_t>(a.size());
}

/// "w12": scratch that is no value of the graph.
bool isScratch(std::string_view name) {
  return name.size() > 1 && name[0] == 'w' &&
         std::all_of(name.begin() + 1, name.end(),
                     [](char c) { return c >= '0' && c <= '9'; });
}

bool hasValue(const plan::Program &program, std::string_view name) {
  return std::any_of(program.workspaces.begin(), program.workspaces.end(),
                     [&](const auto &w) { return w.name == name; });
}

/// Whether `launch` sums over ranks what others left in `workspace`: before that it
/// is one rank's part of a value, and not to be compared.
bool sums(const plan::Plan &plan, const plan::Launch &launch, size_t workspace) {
  plan::Collective collective = plan.kernels[launch.kernel].collective;
  if (collective != plan::Collective::AllReduce &&
      collective != plan::Collective::ReduceScatter)
    return false;
  auto *x = std::get_if<plan::WorkspaceRef>(&launch.arguments[0].value);
  return x && x->index == workspace;
}

/// The workspaces that `launch` is the last to write.
std::vector<size_t> lastWritten(const plan::Plan &plan,
                                const plan::Program &program, size_t launch) {
  auto writes = [&](size_t l, std::vector<bool> &marked, bool value) {
    const plan::Launch &at = program.launches[l];
    const std::vector<plan::Parameter> &parameters =
        plan.kernels[at.kernel].parameters;
    for (size_t i = 0; i < at.arguments.size(); ++i)
      if (auto *ref = std::get_if<plan::WorkspaceRef>(&at.arguments[i].value))
        if (parameters[i].access != plan::Access::Read)
          marked[ref->index] = value;
  };
  std::vector<bool> marked(program.workspaces.size());
  writes(launch, marked, true);
  for (size_t l = launch + 1; l < program.launches.size(); ++l)
    writes(l, marked, false);
  std::vector<size_t> result;
  for (size_t i = 0; i < marked.size(); ++i)
    if (marked[i] && !isScratch(program.workspaces[i].name) &&
        std::none_of(program.launches.begin() + static_cast<ptrdiff_t>(launch) + 1,
                     program.launches.end(), [&](const plan::Launch &later) {
                       return sums(plan, later, i);
                     }))
      result.push_back(i);
  return result;
}

/// Calls `take` with each named value of a step, right after it is complete, but
/// `takeChoices` with what a router leaves.
template <typename Take, typename TakeChoices>
runtime::Engine::Observer observerOf(runtime::Engine &engine, Take take,
                                     TakeChoices takeChoices) {
  // Which launch completes what, by program.
  auto known = std::make_shared<
      std::map<const plan::Program *, std::vector<std::vector<size_t>>>>();
  return [&engine, take, takeChoices, known](const plan::Program &program,
                                const plan::SymbolValues &symbols,
                                size_t launch) -> Status {
    std::vector<std::vector<size_t>> &written = (*known)[&program];
    if (written.empty())
      for (size_t l = 0; l < program.launches.size(); ++l)
        written.push_back(lastWritten(engine.plan(), program, l));
    MLA_ASSIGN_OR_RETURN(std::optional<Choices> choices,
                         readChoices(engine, program, symbols, launch));
    if (choices && isScratch(choices->name))
      choices.reset();
    if (choices)
      MLA_RETURN_IF_ERROR(takeChoices(program, launch, *choices));
    for (size_t w : written[launch]) {
      if (choices &&
          (w == choices->indicesSpace || w == choices->weightsSpace))
        continue;
      MLA_ASSIGN_OR_RETURN(std::vector<float> values,
                           engine.readWorkspace(program, w, symbols));
      MLA_RETURN_IF_ERROR(take(program, launch, w, std::move(values)));
    }
    return {};
  };
}

Result<std::vector<int32_t>> idsOf(const CompareOptions &options,
                                   const plan::Plan &plan) {
  if (options.random > 0)
    return spreadIds(options.random, plan.model.vocabSize, options.seed);
  if (!options.prompt.empty()) {
    MLA_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer,
                         Tokenizer::fromFile(options.plan));
    return tokenizer->encode(options.prompt);
  }
  std::error_code error;
  if (!std::filesystem::is_regular_file(options.ids, error))
    return parseIds(options.ids);
  MLA_ASSIGN_OR_RETURN(std::string text, readFile(options.ids, maxIdsBytes));
  std::replace(text.begin(), text.end(), '\n', ' ');
  return parseIds(text);
}

/// Compares what a router of the second plan left with `a`, what the first one's
/// did. Weights are compared expert by expert, since the order of a token's is
/// nobody's business. Where the choice is a tie, the second plan gets the first
/// one's.
Status compareChoices(const Choices &a, const Choices &b,
                      const plan::Program &program, runtime::Engine &second,
                      double tolerance, int64_t firstToken, Report &report,
                      Finding &finding) {
  auto topk = static_cast<size_t>(a.routing.topk);
  for (ChoiceDifference &d : differences(a, b, tolerance)) {
    bool tie = d.kind == ChoiceDifference::Kind::Tie;
    if (tie && !b.indicesSpace) {
      // The experts' kernels choose by themselves: by the first plan's logits.
      std::span<const float> row = a.logitsOf(d.token);
      MLA_RETURN_IF_ERROR(second.writeWorkspace(
          program, b.logitsSpace,
          static_cast<size_t>(d.token) * row.size() * sizeof(float),
          std::as_bytes(row)));
    } else if (tie) {
      auto at = static_cast<size_t>(d.token) * topk;
      std::vector<int32_t> ids(a.indices.begin() + static_cast<ptrdiff_t>(at),
                               a.indices.begin() +
                                   static_cast<ptrdiff_t>(at + topk));
      MLA_RETURN_IF_ERROR(second.writeWorkspace(
          program, *b.indicesSpace, at * sizeof(int32_t),
          std::as_bytes(std::span(ids))));
      MLA_RETURN_IF_ERROR(second.writeWorkspace(
          program, *b.weightsSpace, at * sizeof(float),
          std::as_bytes(std::span(a.weights).subspan(at, topk))));
    }
    d.step = report.steps;
    d.token += firstToken;
    report.otherChoices.push_back(std::move(d));
  }
  report.choices += a.tokens();
  if (b.weights.empty())
    return {};
  std::vector<float> x, y;
  for (size_t i = 0; i < a.indices.size(); ++i)
    for (size_t j = i / topk * topk; j < (i / topk + 1) * topk; ++j)
      if (a.indices[i] == b.indices[j]) {
        x.push_back(a.weights[i]);
        y.push_back(b.weights[j]);
      }
  compareValues(x, y, report.steps, finding);
  return {};
}

/// Tokens that each plan takes in one run.
int64_t largestRun(const plan::Plan &plan) {
  int64_t largest = 1;
  for (const plan::Program &program : plan.programs)
    largest = std::max(largest, program.maxTokens);
  return largest;
}

void print(const CompareOptions &options, const Report &report,
           std::ostream &out) {
  std::vector<std::pair<std::string, Finding>> order(report.values.begin(),
                                                     report.values.end());
  std::stable_sort(order.begin(), order.end(), [](auto &a, auto &b) {
    return a.second.error > b.second.error;
  });
  if (options.json) {
    auto toJson = [](const Finding &f) {
      nlohmann::ordered_json json = {
          {"relative_error", f.error}, {"step", f.step}, {"norm", f.norm},
          {"elements", f.size},        {"launch", f.place},
          {"kernel", f.kernel},        {"not_finite", f.notFinite[0]},
          {"not_finite_other", f.notFinite[1]}};
      if (!std::isfinite(f.error))
        json["relative_error"] = "infinite";
      return json;
    };
    nlohmann::ordered_json json = {{"steps", report.steps},
                                   {"tolerance", options.tolerance},
                                   {"logits", toJson(report.logits)}};
    nlohmann::ordered_json &values = json["values"] =
        nlohmann::ordered_json::object();
    for (const auto &[name, finding] : order)
      values[name] = toJson(finding);
    json["other_sizes"] = report.otherSizes;
    nlohmann::ordered_json differ = nlohmann::ordered_json::array();
    for (const ChoiceDifference &d : report.otherChoices)
      differ.push_back({{"router", d.name},
                        {"step", d.step},
                        {"token", d.token},
                        {"kind", kindName(d.kind)},
                        {"first", d.first},
                        {"other", d.other},
                        {"gap", d.gap},
                        {"logits_error", d.logitsError}});
    json["choices"] = {
        {"compared", report.choices},
        {"ties", report.count(ChoiceDifference::Kind::Tie)},
        {"differ", std::move(differ)}};
    out << json.dump(2) << "\n";
    return;
  }
  out << order.size() << " values in " << report.steps
      << " steps; relative error, worst first:\n";
  constexpr size_t shown = 20;
  char line[160];
  for (size_t i = 0; i < std::min(shown, order.size()); ++i) {
    const Finding &f = order[i].second;
    std::snprintf(line, sizeof line, "  %.2e  step %-4lld launch %-5zu ",
                  f.error, static_cast<long long>(f.step), f.place);
    out << line << order[i].first << "  (" << f.kernel << ")\n";
  }
  std::vector<std::pair<size_t, std::string>> bad;
  for (const auto &[name, f] : order)
    if (f.notFinite[0] != 0 || f.notFinite[1] != 0)
      bad.emplace_back(f.place, name);
  std::sort(bad.begin(), bad.end());
  if (!bad.empty())
    out << "NaN or infinite, in the order of launches:\n";
  for (size_t i = 0; i < std::min(shown, bad.size()); ++i) {
    const Finding &f = report.values.at(bad[i].second);
    out << "  " << bad[i].second << ": " << f.notFinite[0] << " and "
        << f.notFinite[1] << " of " << f.size << " (launch " << f.place << ", "
        << f.kernel << ")\n";
  }
  if (bad.size() > shown)
    out << "  and " << bad.size() - shown << " more\n";
  for (const auto &[name, why] : report.otherSizes)
    out << "not compared: " << name << ": " << why << "\n";
  if (!report.otherChoices.empty())
    out << report.otherChoices.size() << " of " << report.choices
        << " choices of experts differ, "
        << report.count(ChoiceDifference::Kind::Tie)
        << " of them ties, where the second plan went on with the first one's:\n";
  for (size_t i = 0; i < std::min(shown, report.otherChoices.size()); ++i)
    out << describe(report.otherChoices[i]) << "\n";
  if (report.otherChoices.size() > shown)
    out << "  and " << report.otherChoices.size() - shown << " more\n";
  std::snprintf(line, sizeof line, "logits  %.3e  (step %lld)\n",
                report.logits.error,
                static_cast<long long>(report.logits.step));
  out << line;
}

Status runSteps(const CompareOptions &options, runtime::Engine &first,
                runtime::Engine &second, Report &report) {
  MLA_ASSIGN_OR_RETURN(std::vector<int32_t> ids,
                       idsOf(options, first.plan()));
  if (ids.empty())
    return invalid("there are no tokens to compare with");
  // What the first plan computed in this step.
  std::map<std::string, std::vector<float>> values;
  std::map<std::string, Choices> choices;
  size_t done = 0; // Tokens before this step.
  first.observe(observerOf(
      first,
      [&](const plan::Program &program, size_t, size_t workspace,
          std::vector<float> read) -> Status {
        values[program.workspaces[workspace].name] = std::move(read);
        return {};
      },
      [&](const plan::Program &, size_t, Choices &read) -> Status {
        std::string name = read.name;
        choices[std::move(name)] = std::move(read);
        return {};
      }));
  auto findingOf = [&](const std::string &name, const plan::Program &program,
                       size_t launch) -> Finding & {
    Finding &finding = report.values[name];
    finding.place = launch;
    finding.kernel =
        second.plan().kernels[program.launches[launch].kernel].name;
    return finding;
  };
  second.observe(observerOf(
      second,
      [&](const plan::Program &program, size_t launch, size_t workspace,
          std::vector<float> read) -> Status {
        const std::string &name = program.workspaces[workspace].name;
        auto known = values.find(name);
        if (known == values.end())
          return {};
        if (known->second.size() != read.size()) {
          report.otherSizes[name] = std::to_string(known->second.size()) +
                                    " and " + std::to_string(read.size()) +
                                    " elements";
          return {};
        }
        Finding &finding = findingOf(name, program, launch);
        compareValues(known->second, read, report.steps, finding);
        // Logits by which the experts' kernels will choose: now is the time.
        std::string_view router = name;
        constexpr std::string_view suffix = ".logits";
        if (!router.ends_with(suffix))
          return {};
        router.remove_suffix(suffix.size());
        auto choice = choices.find(std::string(router) + ".experts");
        if (choice == choices.end() || hasValue(program, choice->first))
          return {};
        return compareChoices(
            choice->second,
            choicesFrom(choice->second, std::move(read), workspace), program,
            second, options.tolerance, static_cast<int64_t>(done), report,
            finding);
      },
      [&](const plan::Program &program, size_t launch,
          const Choices &read) -> Status {
        auto known = choices.find(read.name);
        if (known == choices.end() ||
            known->second.indices.size() != read.indices.size() ||
            known->second.logits.size() != read.logits.size())
          return {};
        return compareChoices(
            known->second, read, program, second, options.tolerance,
            static_cast<int64_t>(done), report,
            findingOf(program.workspaces[*read.weightsSpace].name, program,
                      launch));
      }));

  runtime::Sequence a = first.newSequence(), b = second.newSequence();
  int64_t chunk =
      std::min(largestRun(first.plan()), largestRun(second.plan()));
  size_t prompt = ids.size();
  while (done < prompt + static_cast<size_t>(options.decode)) {
    size_t count = done < prompt ? std::min(prompt - done,
                                            static_cast<size_t>(chunk))
                                 : 1;
    std::span<const int32_t> now = std::span(ids).subspan(done, count);
    values.clear();
    choices.clear();
    if (options.poison) {
      MLA_RETURN_IF_ERROR(first.poisonWorkspace());
      MLA_RETURN_IF_ERROR(second.poisonWorkspace());
    }
    runtime::StepSequence stepA{&a, now}, stepB{&b, now};
    Result<runtime::Logits> logitsA = first.step({&stepA, 1});
    if (!logitsA.ok())
      return logitsA.status().withContext(options.plan.string());
    Result<runtime::Logits> logitsB = second.step({&stepB, 1});
    if (!logitsB.ok())
      return logitsB.status().withContext(options.other.string());
    std::span<const float> row = logitsA->row(0);
    compareValues(row, logitsB->row(0), report.steps, report.logits);
    ++report.steps;
    done += count;
    if (done >= prompt) // Both go on with the first plan's choice.
      ids.push_back(static_cast<int32_t>(
          std::max_element(row.begin(), row.end()) - row.begin()));
  }
  return {};
}

} // namespace

Status compare(const CompareOptions &options, std::ostream &out) {
  if (options.decode < 0 || options.random < 0)
    return invalid("numbers of tokens must not be negative");
  runtime::EngineOptions firstOptions = options.engine;
  firstOptions.packed.clear(); // Those of the plan that is judged.
  MLA_ASSIGN_OR_RETURN(std::unique_ptr<runtime::Engine> first,
                       runtime::Engine::load(options.plan, firstOptions));
  MLA_ASSIGN_OR_RETURN(std::unique_ptr<runtime::Engine> second,
                       runtime::Engine::load(options.other, options.engine));
  if (first->plan().model.vocabSize != second->plan().model.vocabSize)
    return invalid("the plans are not of one model: vocabularies of " +
                   std::to_string(first->plan().model.vocabSize) + " and " +
                   std::to_string(second->plan().model.vocabSize));
  Report report;
  Status status = runSteps(options, *first, *second, report);
  if (report.steps > 0 || !report.values.empty())
    print(options, report, out); // After an error, what was seen before it.
  MLA_RETURN_IF_ERROR(status);
  for (ChoiceDifference::Kind kind :
       {ChoiceDifference::Kind::Wrong, ChoiceDifference::Kind::Logits})
    if (int64_t count = report.count(kind))
      return invalid(std::to_string(count) + " choices of experts differ: " +
                     (kind == ChoiceDifference::Kind::Wrong
                          ? "they are not what their logits call for"
                          : "their logits differ by more than " +
                                formatNumber(options.tolerance, 6)));
  if (!(report.logits.error <= options.tolerance))
    return invalid("the logits differ by " +
                   formatNumber(report.logits.error, 6) + " (relative), more "
                   "than " + formatNumber(options.tolerance, 6));
  return {};
}

} // namespace mla::cli
