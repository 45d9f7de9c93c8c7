//===- Folder.cpp - plans as folders --------------------------------------===//
//
// Part of mla. The file names of a plan are plain, so that a file can leave the
// folder only as a symbolic link; those are resolved and compared.
//
//===----------------------------------------------------------------------===//
#include "Internal.h"
#include "mla/Support/Json.h"
#include <algorithm>
#include <fstream>

namespace mla::plan {
namespace {

/// `name` as a file of `folder` that cannot lie anywhere else. `root` is the
/// folder without symbolic links.
Status checkFile(const std::filesystem::path &folder,
                 const std::filesystem::path &root, const std::string &name) {
  namespace fs = std::filesystem;
  std::error_code ec;
  fs::path path = folder / name;
  fs::file_status status = fs::symlink_status(path, ec);
  if (!fs::exists(status))
    return notFound(path.string() + ": expected a file, found none");
  fs::path real = fs::canonical(path, ec);
  if (ec)
    return notFound(path.string() + ": expected a file, found " + ec.message());
  // Plain names: the file's parent must be the folder, or one inside it.
  auto [rootEnd, realAt] =
      std::mismatch(root.begin(), root.end(), real.begin(), real.end());
  if (rootEnd != root.end())
    return invalid(path.string() +
                   ": expected a file inside the plan's "
                   "folder, found a link to " +
                   real.string());
  if (!fs::is_regular_file(real, ec))
    return invalid(path.string() + ": expected a file, found something else");
  return {};
}

Status writeText(const std::filesystem::path &file, const std::string &text) {
  // A reader sees the old plan or the new one, never half of one.
  std::filesystem::path partial = file;
  partial += ".partial";
  std::error_code ec;
  {
    std::ofstream out(partial, std::ios::binary | std::ios::trunc);
    out.write(text.data(), static_cast<std::streamsize>(text.size()));
    out.close();
    if (!out) {
      std::filesystem::remove(partial, ec);
      return ioError(file.string() + ": cannot be written");
    }
  }
  std::filesystem::rename(partial, file, ec);
  if (!ec)
    return {};
  Status status = ioError(file.string() + ": " + ec.message());
  std::filesystem::remove(partial, ec);
  return status;
}

} // namespace

Result<Plan> read(const std::filesystem::path &folder) {
  try {
    std::error_code ec;
    std::filesystem::path root = std::filesystem::canonical(folder, ec);
    if (ec || !std::filesystem::is_directory(root, ec))
      return notFound(folder.string() + ": expected the folder of a plan, "
                                        "found none");
    MLA_RETURN_IF_ERROR(checkFile(folder, root, detail::planFile));
    std::filesystem::path file = folder / detail::planFile;
    MLA_ASSIGN_OR_RETURN(std::string text,
                         readFile(file, detail::maxPlanBytes));
    MLA_ASSIGN_OR_RETURN(Plan plan, parse(text, file.string()));
    MLA_RETURN_IF_ERROR(checkFile(folder, root, plan.library));
    for (const std::string &name : plan.tokenizerFiles)
      MLA_RETURN_IF_ERROR(checkFile(folder, root, name));
    MLA_ASSIGN_OR_RETURN(uint64_t hash, hashFile(folder / plan.library));
    if (hash != plan.libraryHash)
      return invalid((folder / plan.library).string() +
                     ": expected the file that the plan was written with, "
                     "found other bytes (the hash differs)");
    if (plan.binary.empty())
      return plan;
    MLA_RETURN_IF_ERROR(checkFile(folder, root, plan.binary));
    MLA_ASSIGN_OR_RETURN(uint64_t binaryHash, hashFile(folder / plan.binary));
    if (binaryHash != plan.binaryHash)
      return invalid((folder / plan.binary).string() +
                     ": expected the file that the plan was written with, "
                     "found other bytes (the hash differs)");
    return plan;
  } catch (const std::exception &e) { // Memory ran out.
    return exhausted(folder.string() +
                     ": the plan cannot be read: " + e.what());
  }
}

Status write(const Plan &plan, const std::filesystem::path &folder) {
  try {
    std::filesystem::path file = folder / detail::planFile;
    std::error_code ec;
    if (!std::filesystem::is_directory(folder, ec))
      return notFound(folder.string() + ": expected a folder for the plan, "
                                        "found none");
    MLA_RETURN_IF_ERROR(detail::verify(plan, file.string()));
    std::string text = print(plan);
    if (text.size() > detail::maxPlanBytes)
      return invalid(file.string() + ": expected at most " +
                     std::to_string(detail::maxPlanBytes) + " bytes, found " +
                     std::to_string(text.size()));
    return writeText(file, text);
  } catch (const std::exception &e) { // Memory ran out.
    return exhausted(folder.string() +
                     ": the plan cannot be written: " + e.what());
  }
}

} // namespace mla::plan
