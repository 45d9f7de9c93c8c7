//===- BenchStep.cpp - mla-run bench --context ----------------------------===//
//
// Part of mla. A step at a context that was not computed: the caches are filled
// with random values. The step is measured as a whole, by the wall clock
// and by the device, and then each kernel by itself: all its launches of the
// step one behind the other, so that every one reads other weights and the same
// ones come back only after all others.
//
// A kernel alone finds in the scratch memory what the step left there, and what
// it takes for indices must be indices. So the step is run up to the kernel's
// first launch, and only launches that take their indices from the same place
// are measured.
//
//===----------------------------------------------------------------------===//
#include "runtime/cli/Commands.h"
#include "runtime/cli/ProcessGroup.h"
#include "runtime/cli/Support.h"
#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <ostream>
#include <sstream>

namespace mla::cli {
namespace {
using Json = nlohmann::ordered_json;

constexpr const char *ceilingKernel = "read_ceiling";
/// Read at a time for the ceiling: far more than any cache on the device holds.
constexpr int64_t ceilingBytes = int64_t(1) << 30;
constexpr int ceilingParts = 4;

struct KernelCost {
  std::string name;
  size_t launches = 0, measured = 0; ///< In the step; of which were measured.
  double seconds = 0;                ///< Of one launch.
  double bytes = 0;                  ///< Weights and cache that one reads.
  bool atMost = false;               ///< It may read fewer.
};

struct StepCost {
  double wall = 0, device = 0; ///< Seconds of a step.
  double bytes = 0;            ///< Weights and cache that it reads.
  bool atMost = false;         ///< It may read fewer.
  double ceiling = 0;          ///< Bytes a second; 0 if not measured.
  std::vector<KernelCost> kernels;
};

/// Rows of the caches that a step attends to, its own included.
int64_t attendedRows(const BenchSetting &setting) {
  return setting.sequences * (setting.context + setting.tokens);
}

/// Whether a launch may read fewer weights than its plan says: of experts that several
/// tokens choose the plan counts as many as if all choices differed.
bool readsAtMost(const plan::Launch &launch, const BenchSetting &setting) {
  return !launch.weightBytes.isConstant() &&
         setting.sequences * setting.tokens > 1;
}

/// Bytes of weights and cache rows that a launch reads, at most.
Result<double> launchBytes(const plan::Plan &plan, const plan::Launch &launch,
                           const plan::SymbolValues &symbols, int64_t rows) {
  MLA_ASSIGN_OR_RETURN(int64_t weights, launch.weightBytes.evaluate(symbols));
  auto bytes = static_cast<double>(weights);
  const std::vector<plan::Parameter> &parameters =
      plan.kernels[launch.kernel].parameters;
  for (size_t i = 0; i < parameters.size(); ++i) {
    auto *ref = std::get_if<plan::CacheRef>(&launch.arguments[i].value);
    if (!ref || parameters[i].access != plan::Access::Read)
      continue;
    const plan::Cache &cache = plan.caches[ref->index];
    bytes += static_cast<double>(rows * cache.width) *
             static_cast<double>(elementBytes(cache.format).value_or(0));
  }
  return bytes;
}

/// Where a launch's indices are in the scratch memory.
std::vector<uint64_t> indexPlaces(const plan::Plan &plan,
                                  const plan::Program &program,
                                  const plan::Launch &launch) {
  std::vector<uint64_t> places;
  for (size_t i = 0; i < launch.arguments.size(); ++i) {
    auto *ref = std::get_if<plan::WorkspaceRef>(&launch.arguments[i].value);
    if (ref && program.workspaces[ref->index].format == Format::I32 &&
        plan.kernels[launch.kernel].parameters[i].access !=
            plan::Access::Write)
      places.push_back(program.workspaces[ref->index].offset);
  }
  return places;
}

/// Bytes a second of the plan's kernel that does nothing but read, at the best
/// of some grids; 0 if the plan has none.
Result<double> readCeiling(runtime::Engine &engine, int repeats) {
  const plan::Plan &plan = engine.plan();
  auto found = std::find_if(
      plan.kernels.begin(), plan.kernels.end(),
      [](const plan::Kernel &kernel) { return kernel.name == ceilingKernel; });
  if (found == plan.kernels.end())
    return 0.0;
  if (found->parameters.size() != 3)
    return invalid("kernel read_ceiling: expected three parameters (buffer, "
                   "sink, bytes), found " +
                   std::to_string(found->parameters.size()));
  MLA_ASSIGN_OR_RETURN(hal::DeviceFacts facts, engine.facts());
  auto part = std::min<int64_t>(
      ceilingBytes / ceilingParts,
      static_cast<int64_t>(facts.freeMemory / (2 * ceilingParts)) / 4096 *
          4096);
  if (part < (1 << 20))
    return 0.0; // No memory is left to read.
  MLA_ASSIGN_OR_RETURN(
      std::unique_ptr<hal::Buffer> buffer,
      engine.allocate(static_cast<uint64_t>(part) * ceilingParts,
                      "the read ceiling"));
  MLA_ASSIGN_OR_RETURN(std::unique_ptr<hal::Buffer> sink,
                       engine.allocate(uint64_t(4) << 20, "a sink"));
  std::vector<std::array<uint64_t, 3>> arguments;
  for (int i = 0; i < ceilingParts; ++i)
    arguments.push_back({buffer->address() + static_cast<uint64_t>(i * part),
                         sink->address(), static_cast<uint64_t>(part)});
  double best = 0;
  for (int64_t blocks : {1, 2, 4}) {
    std::vector<hal::Dispatch> list;
    for (const auto &a : arguments)
      list.push_back({static_cast<uint32_t>(found - plan.kernels.begin()),
                      blocks * facts.units, a});
    MLA_ASSIGN_OR_RETURN(std::vector<double> seconds,
                         engine.time(list, repeats));
    best = std::max(best, static_cast<double>(part * ceilingParts) /
                              median(std::move(seconds)));
  }
  return best;
}

Status measureKernels(runtime::Engine &engine,
                      const runtime::Engine::PreparedStep &step,
                      const BenchOptions &options, const BenchSetting &setting,
                      StepCost &cost) {
  const plan::Plan &plan = engine.plan();
  const plan::Program &program = *step.program;
  for (uint32_t k = 0; k < plan.kernels.size(); ++k) {
    KernelCost kernel;
    kernel.name = plan.kernels[k].name;
    std::vector<hal::Dispatch> list;
    std::vector<uint64_t> places;
    size_t first = 0;
    for (size_t l = 0; l < program.launches.size(); ++l) {
      if (program.launches[l].kernel != k || step.launches[l].grid == 0)
        continue;
      std::vector<uint64_t> own = indexPlaces(plan, program,
                                              program.launches[l]);
      if (kernel.launches++ == 0) {
        first = l;
        places = own;
      }
      MLA_ASSIGN_OR_RETURN(double bytes,
                           launchBytes(plan, program.launches[l], step.symbols,
                                       attendedRows(setting)));
      bool atMost = readsAtMost(program.launches[l], setting);
      cost.bytes += bytes;
      cost.atMost |= atMost;
      if (own != places)
        continue;
      kernel.bytes += bytes;
      kernel.atMost |= atMost;
      list.push_back(step.launches[l]);
    }
    if (list.empty())
      continue;
    MLA_RETURN_IF_ERROR(engine.run(step.launches.first(first)));
    MLA_ASSIGN_OR_RETURN(std::vector<double> seconds,
                         engine.time(list, options.kernelRepeats));
    kernel.measured = list.size();
    auto count = static_cast<double>(list.size());
    kernel.seconds = median(std::move(seconds)) / count;
    kernel.bytes /= count;
    cost.kernels.push_back(std::move(kernel));
  }
  std::sort(cost.kernels.begin(), cost.kernels.end(),
            [](const KernelCost &a, const KernelCost &b) {
              return a.seconds * static_cast<double>(a.launches) >
                     b.seconds * static_cast<double>(b.launches);
            });
  return {};
}

Result<StepCost> measureStep(runtime::Engine &engine,
                             const BenchOptions &options,
                             const BenchSetting &setting) {
  std::vector<runtime::Sequence> sequences;
  std::vector<int32_t> ids =
      spreadIds(setting.sequences * setting.tokens,
                engine.plan().model.vocabSize, 1);
  std::vector<runtime::StepSequence> step;
  for (int64_t s = 0; s < setting.sequences; ++s) {
    sequences.push_back(engine.newSequence());
    MLA_RETURN_IF_ERROR(sequences.back().extend(setting.context));
  }
  for (size_t s = 0; s < sequences.size(); ++s)
    step.push_back({&sequences[s],
                    std::span(ids).subspan(
                        s * static_cast<size_t>(setting.tokens),
                        static_cast<size_t>(setting.tokens))});
  StepCost cost;
  MLA_ASSIGN_OR_RETURN(bool onDevice,
                       samplesOnDevice(engine, options.sampleOn));
  // Whole steps, with what the host does for them. The first launches, the
  // second records.
  constexpr int64_t warmUp = 3;
  std::vector<double> wall;
  for (int64_t i = 0; i < warmUp + options.decodeTokens; ++i) {
    Stopwatch watch;
    MLA_RETURN_IF_ERROR(stepAndChoose(engine, step, onDevice));
    if (i >= warmUp)
      wall.push_back(watch.seconds());
    for (runtime::Sequence &sequence : sequences)
      sequence.truncate(setting.context); // The same step again.
  }
  cost.wall = median(std::move(wall));
  for (runtime::Sequence &sequence : sequences)
    MLA_RETURN_IF_ERROR(sequence.extend(setting.tokens));
  MLA_ASSIGN_OR_RETURN(runtime::Engine::PreparedStep prepared,
                       engine.prepareStep(step));
  MLA_ASSIGN_OR_RETURN(
      std::vector<double> seconds,
      engine.time(prepared.launches, static_cast<int>(options.decodeTokens)));
  cost.device = median(std::move(seconds));
  MLA_ASSIGN_OR_RETURN(cost.ceiling,
                       readCeiling(engine, options.kernelRepeats));
  MLA_RETURN_IF_ERROR(measureKernels(engine, prepared, options, setting, cost));
  return cost;
}

double gigabytes(double bytes, double seconds) {
  return seconds > 0 ? bytes / seconds * 1e-9 : 0;
}

Json toJson(runtime::Engine &engine, const BenchSetting &setting,
            const hal::DeviceFacts &facts, const StepCost &cost) {
  runtime::MemoryUse memory = engine.memory();
  Json json = {
      {"architecture", engine.plan().model.architecture},
      {"target", engine.plan().target.name},
      {"device",
       {{"name", facts.name},
        {"architecture", facts.architecture},
        {"driver", facts.driver},
        {"units", facts.units},
        {"memory_bytes", facts.totalMemory}}},
      {"layers", engine.plan().model.layers},
      {"sequences", setting.sequences},
      {"context", setting.context},
      {"tokens", setting.sequences * setting.tokens},
      {"step_seconds_wall", cost.wall},
      {"step_seconds_device", cost.device},
      {"step_bytes", cost.bytes},
      {"bytes_at_most", cost.atMost},
      {"read_ceiling_bytes_per_second", cost.ceiling}};
  if (!engine.plan().ranks.isOne())
    json["ranks"] = engine.plan().ranks.count;
  if (!facts.exchange.empty())
    json["exchange"] = facts.exchange;
  if (cost.ceiling > 0 && !cost.atMost) {
    json["floor_seconds"] = cost.bytes / cost.ceiling;
    json["device_over_floor"] = cost.device * cost.ceiling / cost.bytes;
  }
  Json &kernels = json["kernels"] = Json::array();
  for (const KernelCost &k : cost.kernels) {
    Json entry = {{"name", k.name},
                  {"launches", k.launches},
                  {"measured", k.measured},
                  {"seconds", k.seconds},
                  {"bytes", k.bytes},
                  {"bytes_at_most", k.atMost},
                  {"bytes_per_second", k.seconds > 0 ? k.bytes / k.seconds : 0}};
    if (cost.ceiling > 0 && k.seconds > 0 && !k.atMost)
      entry["share_of_ceiling"] = k.bytes / k.seconds / cost.ceiling;
    kernels.push_back(std::move(entry));
  }
  json["memory_bytes"] = {{"weights", memory.weights},
                          {"cache", memory.cache},
                          {"workspace", memory.workspace},
                          {"ports", memory.ports}};
  return json;
}

void print(const BenchSetting &setting, const hal::DeviceFacts &facts,
           const StepCost &cost, std::ostream &out) {
  auto right = [](const std::string &text, size_t width) {
    return std::string(width - std::min(width, text.size()), ' ') + text;
  };
  out << facts.name << ", " << facts.units << " units"
      << (facts.driver.empty() ? "" : ", ") << facts.driver
      << (facts.exchange.empty() ? "" : ", ranks by ") << facts.exchange << "\n"
      << "step: " << setting.sequences << " x " << setting.tokens
      << (setting.tokens == 1 ? " token" : " tokens") << " at context "
      << setting.context << " in " << formatNumber(cost.device * 1e3, 3)
      << " ms on the device, " << formatNumber(cost.wall * 1e3, 3)
      << " ms in all, " << (cost.atMost ? "at most " : "")
      << formatNumber(cost.bytes * 1e-9, 3) << " GB, "
      << formatNumber(gigabytes(cost.bytes, cost.device), 0) << " GB/s\n";
  if (cost.atMost)
    out << "experts that several tokens choose are counted as if all choices "
           "differed: their kernels are marked <, and there is no floor\n";
  else if (cost.ceiling > 0)
    out << "read ceiling: " << formatNumber(cost.ceiling * 1e-9, 0)
        << " GB/s, so at least "
        << formatNumber(cost.bytes / cost.ceiling * 1e3, 3) << " ms: step is "
        << formatNumber(cost.device * cost.ceiling / cost.bytes, 2)
        << " times that\n";
  double sum = 0;
  for (const KernelCost &k : cost.kernels)
    sum += k.seconds * static_cast<double>(k.launches);
  out << "  share  launches       us      MB     GB/s  ceiling  kernel alone\n";
  for (const KernelCost &k : cost.kernels)
    out << right(formatNumber(k.seconds * static_cast<double>(k.launches) /
                                  sum * 100,
                              1) + "%",
                 7)
        << right(std::to_string(k.launches), 10)
        << right(formatNumber(k.seconds * 1e6, 2), 9)
        << right((k.atMost ? "<" : "") + formatNumber(k.bytes * 1e-6, 2), 8)
        << right((k.atMost ? "<" : "") +
                     formatNumber(gigabytes(k.bytes, k.seconds), 0),
                 9)
        << right(cost.ceiling > 0 && !k.atMost
                     ? formatNumber(gigabytes(k.bytes, k.seconds) /
                                        (cost.ceiling * 1e-9) * 100,
                                    0) +
                           "%"
                     : "",
                 9)
        << "  " << k.name
        << (k.measured < k.launches
                ? " (" + std::to_string(k.measured) + " measured)"
                : "")
        << "\n";
  out << "kernels one by one: " << formatNumber(sum * 1e3, 3) << " ms\n";
}

} // namespace

Status benchStep(const BenchOptions &options, std::ostream &out) {
  runtime::EngineOptions engineOptions = options.engine;
  engineOptions.measureOnly = true;
  if (engineOptions.cacheTokens == 0)
    for (const BenchSetting &step : options.steps) {
      engineOptions.cacheTokens =
          std::max(engineOptions.cacheTokens,
                   step.sequences * (step.context + step.tokens));
      engineOptions.extraPages =
          std::max<int64_t>(engineOptions.extraPages, 2 * step.sequences);
    }
  MLA_ASSIGN_OR_RETURN(std::unique_ptr<runtime::Engine> engine,
                       runtime::Engine::load(options.plan, engineOptions));
  MLA_ASSIGN_OR_RETURN(hal::DeviceFacts facts, engine->facts());
  Json json = Json::array();
  std::ostringstream text;
  for (const BenchSetting &setting : options.steps) {
    // Steps write their own rows over the random ones.
    MLA_RETURN_IF_ERROR(engine->fillCaches(1));
    MLA_ASSIGN_OR_RETURN(StepCost cost, measureStep(*engine, options, setting));
    json.push_back(toJson(*engine, setting, facts, cost));
    print(setting, facts, cost, text);
  }
  if (json.size() == 1)
    json = Json(json[0]);
  if (!options.jsonFile.empty() && writesFiles(options)) {
    std::ofstream file(options.jsonFile);
    file << json.dump(2) << "\n";
    file.close();
    if (!file)
      return ioError(options.jsonFile.string() + ": cannot be written");
  }
  if (options.json)
    out << json.dump(2) << "\n";
  else
    out << text.str();
  return {};
}

} // namespace mla::cli
