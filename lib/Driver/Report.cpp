//===- Report.cpp - what a compile tells at its end -----------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "Report.h"
#include "mla/Dialect/MLA.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/Support/Format.h"

using namespace mlir;
using namespace mla;

std::string mla::bytesText(uint64_t bytes) {
  static constexpr const char *units[] = {"B", "kB", "MB", "GB", "TB"};
  double value = bytes;
  unsigned unit = 0;
  for (; value >= 1000 && unit + 1 < std::size(units); ++unit)
    value /= 1000;
  std::string text;
  llvm::raw_string_ostream(text)
      << llvm::format(unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
  return text;
}

/// Bytes of a weight with its scales.
static uint64_t weightBytes(WeightType type) {
  ArrayRef<int64_t> shape = type.getShape();
  uint64_t copies = shape.size() == 3 ? shape.front() : 1;
  int64_t rows = shape.size() == 1 ? 1 : shape[shape.size() - 2];
  uint64_t bytes = 0;
  for (const StoragePart &part :
       storageParts(type.getFormat(), rows, shape.back()))
    bytes += part.bytes();
  return copies * bytes;
}

void mla::printReport(ModuleOp module, const ModelConfig &config,
                      const CacheChoice &cacheChoice, raw_ostream &out) {
  llvm::MapVector<Format, uint64_t> byFormat;
  uint64_t total = 0, cacheBytes = 0, launches = 0, workspace = 0;
  for (Operation &op : module.getOps()) {
    if (auto weight = dyn_cast<WeightOp>(op)) {
      auto type = cast<WeightType>(weight.getType());
      byFormat[type.getFormat()] += weightBytes(type);
      total += weightBytes(type);
    } else if (auto cache = dyn_cast<CacheOp>(op)) {
      auto type = cast<CacheType>(cache.getType());
      cacheBytes +=
          type.getWidth() * elementBytes(type.getFormat()).value_or(0);
    } else if (auto program = dyn_cast<ProgramOp>(op);
               program && !program.getSampling()) {
      auto body = program.getBody().getOps<LaunchOp>();
      // Programs differ in their bounds, not in what they launch.
      launches = std::distance(body.begin(), body.end());
      workspace = std::max<uint64_t>(workspace,
                                     program.getWorkspaceBytes().value_or(0));
    }
  }
  size_t kernels = 0;
  if (auto inner = module.lookupSymbol<ModuleOp>("kernels"))
    kernels = llvm::count_if(inner.getOps(), [](Operation &op) {
      return op.hasAttr("mla.access");
    });

  out << "model    " << config.architectureName << ", " << config.layers
      << " layers, hidden " << config.hiddenSize << ", vocabulary "
      << config.vocabSize << "\n";
  if (auto ranks = module->getAttrOfType<IntegerAttr>(ranksAttr))
    out << "ranks    " << ranks.getInt() << ": "
        << module->getAttrOfType<StringAttr>(layoutAttr).getValue()
        << "; what follows is of one of them\n";
  out << "weights  " << bytesText(total) << " (";
  llvm::interleaveComma(byFormat, out, [&](const auto &entry) {
    out << llvm::StringRef(formatName(entry.first)) << " "
        << bytesText(entry.second);
  });
  out << ")\n";
  out << "cache    " << bytesText(cacheBytes) << " a token, "
      << llvm::StringRef(formatName(cacheChoice.format)) << " ("
      << cacheChoice.reason << ")";
  if (!cacheChoice.scales.empty()) {
    auto [low, high] = std::minmax_element(cacheChoice.scales.begin(),
                                           cacheChoice.scales.end());
    out << llvm::format(", scales %.4g to %.4g (", *low, *high)
        << cacheChoice.scaleSource << ")";
  }
  out << "\n";
  out << "scratch  " << bytesText(workspace) << "\n";
  out << "kernels  " << kernels << " in " << launches << " launches a step\n";
}
