//===- CheckpointFiles.h - the files that a plan was compiled from -*- C++
//-*-===//
//
// Part of mla. Maps the checkpoint's files after checking all of them against
// the fingerprint in the plan: names, sizes, hashes of the headers. Tensor data
// is not hashed; the header fixes where each tensor lies.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_WEIGHTS_CHECKPOINTFILES_H
#define MLA_RUNTIME_WEIGHTS_CHECKPOINTFILES_H

#include "mla/Plan/Plan.h"
#include "runtime/base/Memory.h"
#include <vector>

namespace mla::runtime {

/// The mapped files, in the order of `checkpoint.files`. If any is missing,
/// short, long or of another header, the error lists every such file and none
/// is used.
Result<std::vector<MappedFile>>
openCheckpointFiles(const plan::Checkpoint &checkpoint,
                    const std::filesystem::path &folder);

} // namespace mla::runtime

#endif // MLA_RUNTIME_WEIGHTS_CHECKPOINTFILES_H
