//===- Pack.cpp - mla-run pack --------------------------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/base/Memory.h"
#include "runtime/cli/Commands.h"
#include <ostream>

namespace mla::cli {

Status pack(const PackOptions &options, std::ostream &err) {
  MLA_ASSIGN_OR_RETURN(plan::Plan plan, plan::read(options.plan));
  MLA_ASSIGN_OR_RETURN(std::unique_ptr<runtime::ThreadPool> pool,
                       runtime::ThreadPool::create(options.threads));
  runtime::WeightOptions weights;
  weights.checkpoint = options.checkpoint;
  weights.progress = true;
  for (int64_t rank = 0; rank < plan.ranks.count; ++rank) {
    std::filesystem::path file =
        runtime::packedFile(options.output, plan.ranks, rank);
    Status status = runtime::WeightStore::pack(
        plan.ranks.isOne() ? plan : plan::localized(plan, rank), *pool, weights,
        file);
    if (!status.ok())
      return plan.ranks.isOne() ? status : runtime::ofRank(rank, status);
    std::error_code error;
    err << "wrote " << file.string() << ", "
        << runtime::formatBytes(std::filesystem::file_size(file, error))
        << "\n";
  }
  return {};
}

} // namespace mla::cli
