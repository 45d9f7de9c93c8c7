//===- Inspect.cpp - mla-run inspect --------------------------------------===//
//
// Part of mla. Plans; models are in InspectModel.cpp.
//
//===----------------------------------------------------------------------===//
#include "runtime/base/Memory.h"
#include "runtime/cli/Commands.h"
#include <map>
#include <ostream>

namespace mla::cli {
namespace {

using runtime::formatBytes;

void printCheckpoint(const plan::Checkpoint &checkpoint, std::ostream &out) {
  out << "checkpoint   ";
  switch (checkpoint.kind) {
  case plan::Checkpoint::Kind::None:
    out << "none: the plan cannot be run\n";
    return;
  case plan::Checkpoint::Kind::Synthetic:
    out << "synthetic weights, seed " << checkpoint.seed << "\n";
    return;
  case plan::Checkpoint::Kind::Safetensors:
    uint64_t bytes = 0;
    for (const plan::CheckpointFile &file : checkpoint.files)
      bytes += file.size;
    out << checkpoint.folder << ", " << checkpoint.files.size() << " files, "
        << formatBytes(bytes) << "\n";
    return;
  }
}

void printWeights(const plan::Plan &plan, std::ostream &out) {
  struct Sum {
    size_t tensors = 0;
    uint64_t bytes = 0;
  };
  std::map<std::string_view, Sum> byFormat;
  for (const plan::Weight &weight : plan.weights) {
    Sum &sum = byFormat[formatName(weight.format)];
    // Of a stack that is divided, a rank has fewer than there are sources.
    sum.tensors += weight.stacked && !weight.shape.empty()
                       ? static_cast<size_t>(weight.shape[0])
                       : 1;
    if (Result<uint64_t> bytes = weight.deviceBytes(); bytes.ok())
      sum.bytes += *bytes;
  }
  for (const auto &[format, sum] : byFormat)
    out << "weights      " << sum.tensors << " tensors of " << format << ", "
        << formatBytes(sum.bytes)
        << (plan.ranks.isOne() ? "\n" : " a rank\n");
}

/// What a kernel does among the ranks; "" for most. Kernels of GPUs that exchange rows
/// begin with what they do, before the format of the rows.
std::string collectiveOf(const plan::Plan &plan, const plan::Kernel &kernel) {
  if (kernel.collective != plan::Collective::None)
    return std::string(plan::collectiveName(kernel.collective)) +
           (plan.target.isHost() ? "" : " by NCCL");
  if (!kernel.hasPeers())
    return "";
  return kernel.name.substr(
      0, std::min(kernel.name.find("_bf16"), kernel.name.find("_f32")));
}

/// "122 (122 all_reduce)", on a GPU "123 (122 all_reduce_norm, 1 all_gather by NCCL)".
std::string collectivesText(const plan::Plan &plan,
                            const plan::Program &program) {
  std::map<std::string, size_t> counts;
  size_t all = 0;
  for (const plan::Launch &launch : program.launches)
    if (std::string name = collectiveOf(plan, plan.kernels[launch.kernel]);
        !name.empty()) {
      ++counts[name];
      ++all;
    }
  std::string kinds;
  for (const auto &[name, count] : counts)
    kinds += (kinds.empty() ? " (" : ", ") + std::to_string(count) + " " + name;
  return std::to_string(all) + kinds + (kinds.empty() ? "" : ")");
}

void printRanks(const plan::Plan &plan, std::ostream &out) {
  if (plan.ranks.isOne())
    return;
  out << "ranks        " << plan.ranks.count
      << (plan.ranks.layout.empty() ? "" : ": ") << plan.ranks.layout;
  if (plan.ranks.collectives == plan::Ranks::Collectives::Local) {
    out << "; nothing is exchanged: it can be benched, not run\n";
    return;
  }
  const plan::Program &least = plan.programs.front();
  const plan::Program &most = plan.programs.back();
  out << "\ncollectives  " << collectivesText(plan, least) << " a step of "
      << least.name;
  if (&least != &most)
    out << ", " << collectivesText(plan, most) << " of " << most.name;
  out << "\n";
}

std::string argumentText(const plan::Plan &plan, const plan::Program &program,
                         const plan::Argument &argument) {
  if (auto *ref = std::get_if<plan::WeightRef>(&argument.value))
    return plan.weights[ref->index].name;
  if (auto *ref = std::get_if<plan::CacheRef>(&argument.value))
    return plan.caches[ref->index].name;
  if (auto *ref = std::get_if<plan::WorkspaceRef>(&argument.value))
    return "%" + program.workspaces[ref->index].name;
  if (std::get_if<plan::PeersRef>(&argument.value))
    return "peers";
  if (auto *port = std::get_if<plan::Port>(&argument.value))
    return "@" + std::string(plan::portName(*port));
  return std::get<plan::Expr>(argument.value).str();
}

void printLaunches(const plan::Plan &plan, const plan::Program &program,
                   std::ostream &out) {
  for (size_t i = 0; i < program.launches.size(); ++i) {
    const plan::Launch &launch = program.launches[i];
    out << "  " << i << "  " << plan.kernels[launch.kernel].name << "["
        << launch.grid.str() << "](";
    const char *separator = "";
    for (const plan::Argument &argument : launch.arguments) {
      out << separator << argumentText(plan, program, argument);
      separator = ", ";
    }
    out << ")  " << launch.origin << "\n";
  }
}

Status inspectPlan(const InspectOptions &options, std::ostream &out) {
  MLA_ASSIGN_OR_RETURN(plan::Plan plan, plan::read(options.folder));
  out << "plan         " << options.folder.string() << ", written by "
      << plan.producer << "\n"
      << "target       " << plan.target.name
      << (plan.target.cpu.empty() ? "" : ", ") << plan.target.cpu
      << ", kernel ABI " << plan.target.kernelAbi << "\n";
  if (plan.target.isHost())
    out << "features    ";
  for (const std::string &feature : plan.target.features)
    out << " " << feature;
  out << (plan.target.isHost() ? "\n" : "") << "model        " << plan.model.architecture << ", "
      << plan.model.layers << " layers, hidden size " << plan.model.hiddenSize
      << ", vocabulary " << plan.model.vocabSize << ", context "
      << plan.model.maxPositions << "\n";
  printRanks(plan, out);
  printCheckpoint(plan.checkpoint, out);
  printWeights(plan, out);
  MLA_ASSIGN_OR_RETURN(plan::MemoryBytes memory, plan::memoryBytes(plan));
  out << "memory       " << (plan.ranks.isOne() ? "" : "of a rank: ")
      << "weights " << memory.weights << " bytes, workspace "
      << memory.workspace << " bytes, ports " << memory.ports
      << " bytes, cache " << memory.cachePerToken << " bytes a token\n"
      << "cache        " << plan.caches.size() << " caches, "
      << formatBytes(memory.cachePerToken) << " a token"
      << (plan.ranks.pageRanks > 1 ? ", on the rank that has it" : "") << "\n"
      << "kernels      " << plan.kernels.size() << " in " << plan.library
      << "\n";
  for (const plan::Program &program : plan.programs) {
    out << "program      " << program.name << ": up to " << program.maxTokens
        << " tokens, " << program.maxSequences << " sequences, "
        << program.maxOutputs << " rows of logits; " << program.launches.size()
        << " launches, workspace " << formatBytes(program.workspaceBytes)
        << "\n";
    if (options.launches)
      printLaunches(plan, program, out);
  }
  if (plan.sampling) {
    out << "sampling     on the device, up to " << plan.sampling->maxOutputs
        << " rows of logits; " << plan.sampling->launches.size()
        << " launches, workspace "
        << formatBytes(plan.sampling->workspaceBytes) << "\n";
    if (options.launches)
      printLaunches(plan, *plan.sampling, out);
  }
  return {};
}

} // namespace

Status inspect(const InspectOptions &options, std::ostream &out) {
  const std::filesystem::path &folder = options.folder;
  std::error_code ec;
  bool isPlan = std::filesystem::exists(folder / "plan.json", ec);
  if (!isPlan && !std::filesystem::exists(folder / "config.json", ec))
    return notFound(folder.string() +
                    ": expected a folder with plan.json (a plan) or "
                    "config.json (a model), found neither");
  if (isPlan ? options.json : options.launches)
    return invalid(folder.string() + (isPlan ? ": --json is for a model, found "
                                               "a plan"
                                             : ": --launches is for a plan, "
                                               "found a model"));
  return isPlan ? inspectPlan(options, out)
                : inspectModel(folder, options.json, out);
}

} // namespace mla::cli
