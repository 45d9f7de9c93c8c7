//===- Quantize.cpp - a model folder in other formats ---------------------===//
//
// Part of mla. Decide, check that there is room, write into a folder beside the
// output's place, read the headers back, put it in place.
//
//===----------------------------------------------------------------------===//
#include "runtime/quantize/Quantize.h"
#include "mla/Config/KvScales.h"
#include "mla/Support/OutputFolder.h"
#include "runtime/base/Memory.h"
#include "runtime/quantize/Convert.h"
#include "runtime/quantize/OutputConfig.h"
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ostream>
#include <sys/statvfs.h>

namespace mla::quantize {
namespace fs = std::filesystem;

namespace {

/// A file of the input that is neither weights nor rewritten.
struct OtherFile {
  fs::path name; ///< relative to the folder
  uint64_t bytes;
};

/// Weights in any packaging, and what describes the input's.
bool isReplaced(const fs::path &name) {
  std::string file = name.filename().string();
  return file.ends_with(".safetensors") ||
         file.ends_with(".safetensors.index.json") ||
         (file.starts_with("pytorch_model") &&
          (file.ends_with(".bin") || file.ends_with(".bin.index.json"))) ||
         name == "config.json" || name == "hf_quant_config.json";
}

Result<std::vector<OtherFile>> otherFiles(const fs::path &folder) {
  std::vector<OtherFile> out;
  std::error_code error;
  fs::recursive_directory_iterator it(folder, error), end;
  for (; !error && it != end; it.increment(error)) {
    // Histories and download records, which may hold all weights once more.
    std::string file = it->path().filename().string();
    if (file == ".git" || file == ".cache") {
      it.disable_recursion_pending();
      continue;
    }
    fs::path name = it->path().lexically_relative(folder);
    if (!it->is_regular_file(error) || isReplaced(name))
      continue;
    out.push_back({name, it->file_size(error)});
  }
  if (error)
    return ioError("cannot list " + folder.string() + ": " + error.message());
  return out;
}

Status copyFile(const fs::path &from, const fs::path &to) {
  std::error_code error;
  fs::create_directories(to.parent_path(), error);
  if (!error)
    fs::copy_file(from, to, error);
  if (error)
    return ioError("cannot copy " + from.string() + " to " + to.string() +
                   ": " + error.message());
  return {};
}

/// Neither folder may be the other or lie in it.
Status checkApart(const fs::path &input, const fs::path &output) {
  std::error_code error;
  fs::path in = fs::weakly_canonical(input, error) / "";
  fs::path out = fs::weakly_canonical(fs::absolute(output, error), error) / "";
  auto inside = [](const fs::path &inner, const fs::path &outer) {
    return inner.string().starts_with(outer.string());
  };
  if (inside(out, in))
    return invalid("the output " + output.string() +
                   " lies in the input folder " + input.string());
  return {};
}

Status checkSpace(const fs::path &folder, uint64_t needed) {
  struct statvfs info = {};
  if (::statvfs(folder.c_str(), &info) != 0)
    return ioError("cannot tell the free space of " + folder.string() + ": " +
                   std::strerror(errno));
  uint64_t free = uint64_t(info.f_bavail) * info.f_frsize;
  if (needed <= free)
    return {};
  return exhausted("the output needs " + runtime::formatBytes(needed) +
                   ", and " + folder.parent_path().string() + " has " +
                   runtime::formatBytes(free) + " free");
}

/// The cache's scales for the output; none if those of the input stay.
Result<std::vector<float>> newCacheScales(const Options &options,
                                          const ModelConfig &config) {
  if (options.cacheScales.empty())
    return std::vector<float>();
  if (!options.fp8Cache && !config.quantization.fp8KvCache)
    return invalid("--kv-scales needs --kv fp8, since the input's cache is not "
                   "FP8");
  MLA_ASSIGN_OR_RETURN(KvScales scales,
                       readKvScales(options.cacheScales, config.layers));
  return std::move(scales.scales);
}

Status writeConfigs(const Options &options, const ModelConfig &config,
                    const Layout &layout, const fs::path &folder) {
  bool newCache = options.fp8Cache && !config.quantization.fp8KvCache;
  fs::path sidecar = "hf_quant_config.json";
  if (layout.conversions.empty() && !newCache) {
    // Nothing changes that a config speaks of.
    MLA_RETURN_IF_ERROR(copyFile(config.file, folder / "config.json"));
    std::error_code ignored;
    if (!fs::exists(options.input / sidecar, ignored))
      return {};
    return copyFile(options.input / sidecar, folder / sidecar);
  }
  MLA_ASSIGN_OR_RETURN(
      ConfigTexts texts,
      outputConfig(config.file, layout,
                   options.fp8Cache || config.quantization.fp8KvCache,
                   config.quantization.scaleUe8m0));
  MLA_RETURN_IF_ERROR(
      writeFileAtomically(folder / "config.json", texts.config));
  if (texts.hfQuantConfig)
    return writeFileAtomically(folder / sidecar, *texts.hfQuantConfig);
  return {};
}

/// Reads back what was written: every weight must be there, in its format.
Status verify(const fs::path &folder, const Layout &layout) {
  MLA_ASSIGN_OR_RETURN(ModelConfig config, ModelConfig::read(folder));
  MLA_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::open(folder));
  WeightFinder finder(config, checkpoint);
  auto module = layout.modules.begin();
  for (const ModelWeight &weight : modelWeights(config)) {
    StoredWeight stored = finder.find(weight);
    if (weight.role == WeightRole::Plain)
      continue;
    if (stored.format != module->format)
      return internalError("wrote " + module->name + " in " +
                           std::string(formatName(module->format)) +
                           " and read it back in " +
                           std::string(formatName(stored.format)));
    ++module;
  }
  return finder.status();
}

} // namespace

Status quantize(const Options &options, std::ostream &out) {
  MLA_RETURN_IF_ERROR(checkApart(options.input, options.output));
  MLA_RETURN_IF_ERROR(OutputFolder::check(options.output));
  MLA_ASSIGN_OR_RETURN(ModelConfig config, ModelConfig::read(options.input));
  MLA_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::open(options.input));
  MLA_ASSIGN_OR_RETURN(std::vector<float> cacheScales,
                       newCacheScales(options, config));
  MLA_ASSIGN_OR_RETURN(Layout layout, makeLayout(config, checkpoint,
                                                 options.recipe, cacheScales));
  MLA_ASSIGN_OR_RETURN(std::vector<OtherFile> others,
                       otherFiles(options.input));
  MLA_ASSIGN_OR_RETURN(std::unique_ptr<runtime::ThreadPool> pool,
                       runtime::ThreadPool::create(options.threads));

  MLA_ASSIGN_OR_RETURN(OutputFolder folder,
                       OutputFolder::create(options.output));
  MLA_ASSIGN_OR_RETURN(SafetensorsWriter writer,
                       SafetensorsWriter::create(folder.path(), layout.outputs,
                                                 options.shardBytes));
  uint64_t needed = writer.totalBytes();
  for (const OtherFile &file : others)
    needed += file.bytes;
  MLA_RETURN_IF_ERROR(checkSpace(folder.path(), needed));

  for (const OtherFile &file : others)
    MLA_RETURN_IF_ERROR(
        copyFile(options.input / file.name, folder.path() / file.name));
  MLA_RETURN_IF_ERROR(writeConfigs(options, config, layout, folder.path()));
  {
    runtime::Progress progress("quantizing", bytesToConvert(layout),
                               options.progress);
    MLA_RETURN_IF_ERROR(
        convert(layout, checkpoint, writer, *pool, progress,
                {config.quantization.scaleUe8m0, options.interrupted}));
  }
  MLA_RETURN_IF_ERROR(writer.finish());
  MLA_RETURN_IF_ERROR(verify(folder.path(), layout));
  MLA_RETURN_IF_ERROR(folder.commit());
  printSummary(layout, out);
  if (config.quantization.fp8KvCache || options.fp8Cache)
    out << "FP8 cache: " << (layout.hasCacheScales ? "with" : "without")
        << " calibrated scales\n";
  out << "wrote " << options.output.string() << ": " << writer.shards()
      << (writer.shards() == 1 ? " shard, " : " shards, ")
      << runtime::formatBytes(needed) << "\n";
  return {};
}

} // namespace mla::quantize
