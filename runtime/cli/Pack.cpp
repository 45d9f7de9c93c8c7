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
  MLA_RETURN_IF_ERROR(
      runtime::WeightStore::pack(plan, *pool, weights, options.output));
  std::error_code error;
  err << "wrote " << options.output.string() << ", "
      << runtime::formatBytes(
             std::filesystem::file_size(options.output, error))
      << "\n";
  return {};
}

} // namespace mla::cli
