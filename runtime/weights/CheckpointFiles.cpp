//===- CheckpointFiles.cpp - the files that a plan was compiled from ------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/weights/CheckpointFiles.h"
#include "mla/Support/Hash.h"

namespace mla::runtime {
namespace {

/// What is wrong with `file`; empty if it is the one of the plan.
std::string difference(const MappedFile &file,
                       const plan::CheckpointFile &expected) {
  uint64_t size = file.bytes().size();
  if (size != expected.size)
    return (size < expected.size ? "is too short: " : "is too long: ") +
           std::to_string(size) + " bytes instead of " +
           std::to_string(expected.size);
  if (expected.headerBytes > size)
    return "has no room for a header of " +
           std::to_string(expected.headerBytes) + " bytes";
  if (fnv1a64(file.text().substr(0, expected.headerBytes)) !=
      expected.headerHash)
    return "has another header than when the plan was compiled";
  return {};
}

} // namespace

Result<std::vector<MappedFile>>
openCheckpointFiles(const plan::Checkpoint &checkpoint,
                    const std::filesystem::path &folder) {
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error))
    return notFound("the checkpoint's folder " + folder.string() +
                    " does not exist; give its place with --checkpoint");
  std::vector<MappedFile> files;
  std::string problems;
  size_t count = 0;
  for (const plan::CheckpointFile &expected : checkpoint.files) {
    Result<MappedFile> file = MappedFile::open(folder / expected.name);
    std::string problem;
    if (file.ok())
      problem = difference(*file, expected);
    else if (file.status().code() == StatusCode::NotFound)
      problem = "is missing";
    else
      problem = "cannot be read: " + file.status().message();
    if (problem.empty()) {
      files.push_back(*std::move(file));
      continue;
    }
    problems += "\n  " + expected.name + " " + problem;
    ++count;
  }
  if (count != 0)
    return invalid(
        "checkpoint " + folder.string() + ": " + std::to_string(count) +
        " of " + std::to_string(checkpoint.files.size()) +
        " files are not those that the plan was compiled from:" + problems);
  return files;
}

} // namespace mla::runtime
