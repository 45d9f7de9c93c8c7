//===- CostModel.cpp - fits and judges the cost model ---------------------===//
//
// Part of mla. Reads what mla-run bench measured (its JSON, or the files of
// benchmarks/gpu/calibrate.py):
//
//   cost_model fit RESULTS... -o share/calibration/kernels.json
//   cost_model check RESULTS... [--limit 0.15] [--json FILE]
//
// RESULTS are files or folders of .json files. fit searches the constants that make
// the mean squared logarithm of predicted over measured least. check prints every
// kernel and every step, predicted beside measured, and fails if a decode attention,
// a linear of one token, experts of one token or a step of one token is further off
// than the limit. Kernels of which a step has but one launch are not judged, nor those
// that found their weights in the L2 cache, as mla-run bench repeats a kernel's
// launches: the model is about a step, in which they come from memory.
//
//===----------------------------------------------------------------------===//
#include "CostFit.h"
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

using namespace mla;
using namespace mla::cost;

namespace {
using Json = nlohmann::ordered_json;

/// One line of the check.
struct Line {
  std::string group, step, name;
  double measured, predicted;
  double error() const { return predicted / measured - 1; }
};

bool judged(const std::string &group) {
  return group == "op attention" || group == "op linear" ||
         group == "op experts" || group == "step";
}

/// Kernels, ops of several kernels, and the step as a whole.
void judge(const Model &model, double start, const MeasuredStep &step,
           std::vector<Line> &lines, std::map<std::string, int> &unknown) {
  struct Times {
    double measured = 0, predicted = 0;
    bool all = true; ///< its kernels can be compared
  };
  std::map<std::string, Times> ops;
  double sum = 0;
  int64_t launches = 0;
  bool whole = true;
  for (const MeasuredKernel &k : step.kernels) {
    launches += k.launches;
    std::optional<Prediction> p = predict(model, k.name, step.step);
    if (!p) {
      ++unknown[k.name];
      whole = false;
      continue;
    }
    sum += p->seconds * double(k.launches);
    std::string op = p->op;
    // Linears are judged one by one, others together.
    if (op == "linear")
      op += " " + k.name;
    if (!comparable(k, model.machine())) {
      ops[op].all = false;
      continue;
    }
    // Each kernel was measured in a graph of its own.
    double measured = k.seconds - start / double(k.measured);
    lines.push_back({"kernel " + p->family, step.name, k.name, measured,
                     p->seconds});
    ops[op].measured += measured;
    ops[op].predicted += p->seconds;
  }
  for (const auto &[op, times] : ops)
    if (std::string group = "op " + op.substr(0, op.find(' '));
        times.all && judged(group))
      lines.push_back(
          {group, step.name, op, times.measured, times.predicted});
  // Whole steps only of models; step functions are mostly embeddings and heads.
  if (whole && step.isModel)
    lines.push_back({step.step.tokens == 1 ? "step" : "step of several tokens",
                     step.name, std::to_string(launches) + " launches",
                     step.seconds, sum + model.gaps(launches)});
}

int check(const Model &model, const Calibration &calibration,
          const std::vector<MeasuredStep> &steps, double limit, bool quiet,
          const std::string &jsonFile) {
  std::vector<Line> lines;
  std::map<std::string, int> unknown;
  double start = calibration.values.at("bench.start");
  for (const MeasuredStep &step : steps)
    judge(model, start, step, lines, unknown);
  std::stable_sort(lines.begin(), lines.end(),
                   [](const Line &a, const Line &b) {
                     return a.group < b.group;
                   });
  struct Sum {
    int count = 0;
    double total = 0, most = 0;
    const Line *worst = nullptr;
  };
  std::map<std::string, Sum> sums;
  Json rows = Json::array();
  if (!quiet)
    std::printf("%9s %9s %7s  %s\n", "measured", "predicted", "error",
                "us: kernel, step");
  for (const Line &line : lines) {
    Sum &sum = sums[line.group];
    double error = std::fabs(line.error());
    ++sum.count;
    sum.total += error;
    if (!sum.worst || error > sum.most)
      sum.most = error, sum.worst = &line;
    rows.push_back({{"group", line.group},
                    {"step", line.step},
                    {"name", line.name},
                    {"measured_seconds", line.measured},
                    {"predicted_seconds", line.predicted},
                    {"error", line.error()}});
    if (!quiet)
      std::printf("%9.2f %9.2f %+6.1f%%  %s, %s: %s\n", line.measured * 1e6,
                  line.predicted * 1e6, line.error() * 100, line.group.c_str(),
                  line.step.c_str(), line.name.c_str());
  }
  std::printf("%5s %8s %8s  %s\n", "count", "mean", "most", "");
  bool failed = lines.empty();
  Json groups = Json::object();
  for (const auto &[group, sum] : sums) {
    bool over = judged(group) && sum.most > limit;
    failed |= over;
    std::printf("%5d %7.1f%% %7.1f%%  %s%s (%s: %s)\n", sum.count,
                sum.total / sum.count * 100, sum.most * 100, group.c_str(),
                over ? " BEYOND THE LIMIT" : "", sum.worst->step.c_str(),
                sum.worst->name.c_str());
    groups[group] = {{"count", sum.count},
                     {"mean_error", sum.total / sum.count},
                     {"largest_error", sum.most},
                     {"judged", judged(group)}};
  }
  for (const auto &[name, count] : unknown)
    std::printf("not modelled, %d times: %s\n", count, name.c_str());
  if (lines.empty())
    std::printf("nothing to compare\n");
  if (!jsonFile.empty()) {
    std::ofstream out(jsonFile);
    out << Json({{"limit", limit}, {"groups", groups}, {"lines", rows}}).dump(1)
        << "\n";
    out.close();
    if (!out) {
      std::cerr << "cost_model: " << jsonFile << ": cannot be written\n";
      return 2;
    }
  }
  return failed ? 1 : 0;
}

int fail(const Status &status) {
  std::cerr << "cost_model: " << status.message() << "\n";
  return 2;
}

int fitTo(const Machine &machine, const Calibration &from,
          const std::vector<MeasuredStep> &steps,
          const std::vector<std::string> &files, const std::string &output) {
  Fitted fitted = fit(machine, from, steps);
  if (fitted.measurements == 0) {
    std::cerr << "cost_model: nothing to fit to\n";
    return 2;
  }
  Json constantsJson = Json::object();
  for (const auto &[name, value] : fitted.calibration.values) {
    char text[32];
    std::snprintf(text, sizeof text, "%.4g", value);
    constantsJson[name] = Json::parse(text);
  }
  Json json = {{"version", 1},
               {"machine", machine.name},
               {"fitted_to", files},
               {"measurements", fitted.measurements},
               {"error", Json::parse(std::to_string(fitted.error))},
               {"constants", constantsJson}};
  std::ofstream out(output);
  out << json.dump(1) << "\n";
  out.close();
  if (!out) {
    std::cerr << "cost_model: " << output << ": cannot be written\n";
    return 2;
  }
  std::printf("%d measurements, typical error %.1f%%\n", fitted.measurements,
              fitted.error * 100);
  return 0;
}
} // namespace

int main(int argc, char **argv) {
  CLI::App app("Fits the cost model's constants to measurements, or judges them");
  app.require_subcommand(1);
  std::vector<std::string> files;
  std::string machineName = "h200x1", calibrationFile, output, jsonFile;
  double limit = 0.15;
  bool quiet = false;
  auto common = [&](CLI::App *sub) {
    sub->add_option("results", files, "Files, or folders of .json files")
        ->required()
        ->type_name("RESULTS");
    sub->add_option("--machine", machineName, "On which they were measured")
        ->capture_default_str();
    sub->add_option("--calibration", calibrationFile,
                    "Constants to begin with, or to judge, instead of the "
                    "shipped ones");
  };
  CLI::App *fitting = app.add_subcommand("fit", "Search the constants");
  common(fitting);
  fitting->add_option("-o,--output", output, "File to write")->required();
  CLI::App *checking = app.add_subcommand("check", "Predicted beside measured");
  common(checking);
  checking->add_option("--limit", limit, "Largest error that passes")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  checking->add_option("--json", jsonFile, "Write JSON to a file, too");
  checking->add_flag("--summary", quiet, "Print the errors alone");
  CLI11_PARSE(app, argc, argv);

  Result<Machine> machine = findMachine(machineName);
  if (!machine)
    return fail(machine.status());
  Calibration calibration = Calibration::shipped();
  if (!calibrationFile.empty()) {
    Result<std::string> text = readFile(calibrationFile);
    if (!text)
      return fail(text.status());
    Result<Calibration> parsed = Calibration::parse(*text, calibrationFile);
    if (!parsed)
      return fail(parsed.status());
    calibration = *std::move(parsed);
  }
  std::vector<MeasuredStep> steps;
  for (const std::string &file : files)
    if (Status status = readResults(file, steps); !status.ok())
      return fail(status);
  if (*fitting)
    return fitTo(*machine, calibration, steps, files, output);
  return check(Model(*machine, calibration), calibration, steps, limit, quiet,
               jsonFile);
}
