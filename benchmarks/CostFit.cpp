//===- CostFit.cpp - measurements, and constants that explain them --------===//
//
// Part of mla. A pattern search: one constant after the other is multiplied and
// divided by a factor, what helps is kept, and the factor shrinks. Then several
// constants of a family are moved together at random, always by the same random
// numbers, since one that grows often must be made up for by another that shrinks.
// There are some sixty constants and some hundred measurements, so that this takes
// seconds and needs no derivatives, which the largest of several terms does not have
// everywhere.
//
//===----------------------------------------------------------------------===//
#include "CostFit.h"
#include <algorithm>
#include <cmath>
#include <random>

namespace mla::cost {

bool comparable(const MeasuredKernel &k, const Machine &machine) {
  if (k.launches < 2)
    return false;
  return k.bytes * double(k.measured) > 1.5 * double(machine.l2Bytes) ||
         k.bytes / machine.readBytesPerSecond < 0.25 * k.seconds;
}

static void readStep(JsonValue value, const std::string &stem,
                     std::vector<MeasuredStep> &steps) {
  MeasuredStep s;
  constexpr int64_t most = int64_t(1) << 40;
  s.step.sequences = value["sequences"].integer(1, most);
  s.step.context = value["context"].integer(0, most);
  s.step.tokens = value["tokens"].present() ? value["tokens"].integer(1, most)
                                            : s.step.sequences;
  s.seconds = value["step_seconds_device"].number();
  std::string plan =
      value["plan"].present() ? value["plan"].string() : stem;
  // Step functions for single kernels have no architecture of their own.
  s.isModel = value["architecture"].string() != "step function";
  s.name = plan + ", " + std::to_string(s.step.sequences) + " x " +
           std::to_string(s.step.tokens / s.step.sequences) + " at " +
           std::to_string(s.step.context);
  for (JsonValue k : value["kernels"].elements()) {
    MeasuredKernel kernel{k["name"].string(), k["launches"].integer(1, most),
                          k["measured"].integer(1, most),
                          k["seconds"].number(), k["bytes"].number()};
    if (k["seconds"].isNumber() && !(kernel.seconds > 0))
      k["seconds"].fail("a number above 0");
    s.kernels.push_back(std::move(kernel));
  }
  steps.push_back(std::move(s));
}

Status readResults(const std::string &path, std::vector<MeasuredStep> &steps) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    std::vector<std::string> files;
    for (const auto &entry : std::filesystem::directory_iterator(path, error))
      if (entry.path().extension() == ".json")
        files.push_back(entry.path().string());
    std::sort(files.begin(), files.end());
    if (files.empty())
      return notFound(path + ": no .json files");
    for (const std::string &file : files)
      MLA_RETURN_IF_ERROR(readResults(file, steps));
    return {};
  }
  MLA_ASSIGN_OR_RETURN(std::unique_ptr<JsonDocument> document,
                       JsonDocument::parseFile(path));
  std::string stem = std::filesystem::path(path).stem().string();
  JsonValue root = document->root();
  if (root.isArray())
    for (JsonValue step : root.elements())
      readStep(step, stem, steps);
  else
    readStep(root, stem, steps);
  return document->status();
}

namespace {
struct Measurement {
  const std::string *kernel; ///< null: the whole of `step`
  const MeasuredStep *step;
  double seconds;
  double count; ///< launches that were measured together
  double weight;
};

class Search {
public:
  Search(const Machine &machine, const Calibration &from,
         const std::vector<MeasuredStep> &steps)
      : machine(machine), begin(from), now(from) {
    Model model(machine, now);
    for (const MeasuredStep &step : steps) {
      bool whole = step.isModel;
      for (const MeasuredKernel &k : step.kernels) {
        if (!predict(model, k.name, step.step))
          whole = false;
        else if (comparable(k, machine))
          all.push_back({&k.name, &step, k.seconds, double(k.measured), 1});
      }
      // What lies between kernels is best seen where there are many.
      int64_t launches = 0;
      for (const MeasuredKernel &k : step.kernels)
        launches += k.launches;
      if (whole && step.step.tokens == 1)
        all.push_back({nullptr, &step, step.seconds, 1, double(launches) / 50});
    }
  }

  size_t size() const { return all.size(); }

  void run() {
    double best = loss();
    for (int round = 0; round < 3; ++round) {
      descend(best);
      wander(best);
    }
    descend(best);
  }

  void descend(double &best) {
    for (double factor : {1.5, 1.2, 1.08, 1.5, 1.15, 1.05, 1.02, 1.3, 1.01})
      for (int round = 0; round < 25; ++round) {
        double before = best;
        for (const Constant &c : constants())
          improve(c, factor, best);
        if (before - best < 1e-4 * before)
          break;
      }
  }

  void wander(double &best) {
    std::map<std::string_view, std::vector<const Constant *>> families;
    for (const Constant &c : constants())
      families[c.name.substr(0, c.name.find('.'))].push_back(&c);
    for (auto &[name, family] : families)
      if (family.size() > 1)
        for (int i = 0; i < 100 * int(family.size()); ++i) {
          Calibration before = now;
          double size = std::pow(10, -0.5 - 1.5 * uniform());
          for (const Constant *c : family)
            if (uniform() < 0.4)
              move(*c, std::exp(size * (2 * uniform() - 1) * 2));
          if (double found = loss(); found < best)
            best = found;
          else
            now = before;
        }
  }

  double error() {
    double sum = 0, weights = 0;
    Model model(machine, now);
    for (const Measurement &m : all) {
      double e = std::log(predicted(model, m) / m.seconds);
      sum += m.weight * e * e;
      weights += m.weight;
    }
    return std::sqrt(sum / std::max(weights, 1e-9));
  }

  const Calibration &result() const { return now; }

private:
  double predicted(const Model &model, const Measurement &m) const {
    const MeasuredStep &step = *m.step;
    if (m.kernel)
      return predict(model, *m.kernel, step.step)->seconds +
             now.values.at("bench.start") / m.count;
    double sum = 0;
    int64_t launches = 0;
    for (const MeasuredKernel &k : step.kernels) {
      launches += k.launches;
      sum += predict(model, k.name, step.step)->seconds * double(k.launches);
    }
    return sum + model.gaps(launches);
  }

  double loss() const {
    Model model(machine, now);
    double sum = 0;
    for (const Measurement &m : all) {
      double e = std::fabs(std::log(predicted(model, m) / m.seconds));
      // A few that are far off must not spoil all others.
      constexpr double far = 0.25;
      sum += m.weight * (e < far ? e * e : far * (2 * e - far));
    }
    // What the measurements do not tell stays where it began.
    for (const Constant &c : constants()) {
      double e = std::log((now.values.at(std::string(c.name)) + 1e-3 * c.start) /
                          (begin.values.at(std::string(c.name)) +
                           1e-3 * c.start));
      sum += 1e-4 * e * e;
    }
    return sum;
  }

  double &move(const Constant &c, double by) {
    double &value = now.values.at(std::string(c.name));
    // From about nothing, by steps of the beginning.
    double next = value * by;
    if (value < 1e-2 * c.start && by > 1)
      next = 1e-2 * c.start * by;
    return value = std::clamp(next, c.low, c.high);
  }

  double uniform() { return double(random()) / double(random.max()); }

  void improve(const Constant &c, double factor, double &best) {
    for (double by : {factor, 1 / factor}) {
      double old = now.values.at(std::string(c.name));
      double &value = move(c, by);
      double found = value == old ? best : loss();
      if (found < best) {
        best = found;
        return;
      }
      value = old;
    }
  }

  const Machine &machine;
  Calibration begin, now;
  std::vector<Measurement> all;
  std::minstd_rand random{1};
};
} // namespace

Fitted fit(const Machine &machine, const Calibration &from,
           const std::vector<MeasuredStep> &steps) {
  Search search(machine, from, steps);
  Fitted fitted;
  fitted.measurements = int(search.size());
  if (search.size() == 0)
    return fitted;
  search.run();
  fitted.calibration = search.result();
  fitted.error = search.error();
  return fitted;
}

} // namespace mla::cost
