//===- OutputFolder.cpp - a result appears whole or not at all ------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "mla/Support/OutputFolder.h"
#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <fstream>
#include <system_error>
#include <unistd.h>

using namespace mla;
namespace fs = std::filesystem;

static Status failed(const std::string &what, const fs::path &path,
                     const std::error_code &error) {
  return ioError("cannot " + what + " " + path.string() + ": " +
                 error.message());
}

/// ".name.tmp-PID" beside `place`: on the same file system, so that it can be
/// renamed, and hidden in a listing.
static fs::path neighbour(const fs::path &place) {
  return place.parent_path() /
         ("." + place.filename().string() + ".tmp-" + std::to_string(getpid()));
}

/// The absolute path without a slash at the end; a link is followed, so that
/// what it points to is replaced and not the link.
static Result<fs::path> resolve(const fs::path &path) {
  std::error_code error;
  fs::path full = fs::absolute(path, error);
  if (!error)
    full = fs::weakly_canonical(full, error);
  if (error)
    return failed("resolve", path, error);
  if (!full.has_filename())
    full = full.parent_path();
  return full;
}

static bool isOlderResult(const fs::path &place, const std::string &marker) {
  std::error_code ignored;
  return !marker.empty() && fs::exists(place / marker, ignored);
}

static Status checkPlace(const fs::path &place, const std::string &marker) {
  std::error_code error;
  fs::file_status status = fs::status(place, error);
  if (!fs::exists(status))
    return {};
  if (!fs::is_directory(status))
    return invalid(place.string() + " exists and is no folder; not replaced");
  if (fs::is_empty(place, error) || isOlderResult(place, marker))
    return {};
  if (error)
    return failed("read", place, error);
  return invalid(place.string() +
                 (marker.empty() ? " exists and is not empty; not replaced"
                                 : " holds other files and no " + marker +
                                       "; not replaced"));
}

Status OutputFolder::check(const fs::path &path, const std::string &marker) {
  MLA_ASSIGN_OR_RETURN(fs::path place, resolve(path));
  return checkPlace(place, marker);
}

Result<OutputFolder> OutputFolder::create(const fs::path &path,
                                          const std::string &marker) {
  MLA_ASSIGN_OR_RETURN(fs::path place, resolve(path));
  MLA_RETURN_IF_ERROR(checkPlace(place, marker));
  fs::path scratch = neighbour(place);
  std::error_code error;
  fs::remove_all(scratch, error); // of a process that had this number before
  if (!fs::create_directory(scratch, error))
    return failed("create", scratch, error);
  return OutputFolder(place, scratch, marker);
}

OutputFolder::OutputFolder(OutputFolder &&other)
    : place(std::move(other.place)), scratch(std::move(other.scratch)),
      marker(std::move(other.marker)) {
  other.scratch.clear();
}

OutputFolder::~OutputFolder() {
  std::error_code ignored;
  if (!scratch.empty())
    fs::remove_all(scratch, ignored);
}

Status OutputFolder::commit() {
  std::error_code error;
  // Again, since writing took a while.
  MLA_RETURN_IF_ERROR(checkPlace(place, marker));
  // The kernel can exchange two folders in one step. The old one is then in
  // the scratch folder, and the destructor removes it.
  if (renameat2(AT_FDCWD, scratch.c_str(), AT_FDCWD, place.c_str(),
                RENAME_EXCHANGE) == 0)
    return {};
  // Nothing to exchange with, or a file system that cannot: an empty folder
  // may be renamed over, an older result has to step aside.
  fs::path old = scratch.string() + ".old";
  bool replaces = isOlderResult(place, marker);
  if (replaces) {
    fs::rename(place, old, error);
    if (error)
      return failed("move", place, error);
  }
  fs::rename(scratch, place, error);
  if (error) {
    Status status = failed("create", place, error);
    if (replaces)
      fs::rename(old, place, error);
    return status;
  }
  scratch.clear();
  if (replaces)
    fs::remove_all(old, error);
  return {};
}

Status mla::writeFileAtomically(const fs::path &file, std::string_view text) {
  MLA_ASSIGN_OR_RETURN(fs::path place, resolve(file));
  std::error_code error;
  // A device such as /dev/null is written to and not replaced.
  bool special = fs::exists(place, error) && !fs::is_regular_file(place, error);
  fs::path target = special ? place : neighbour(place);
  errno = 0;
  {
    std::ofstream stream(target, std::ios::binary | std::ios::trunc);
    stream.write(text.data(), text.size());
    stream.close();
    if (!stream) {
      error = std::error_code(errno ? errno : EIO, std::generic_category());
      Status status = failed("write", file, error);
      if (!special)
        fs::remove(target, error);
      return status;
    }
  }
  if (special)
    return {};
  fs::rename(target, place, error);
  if (!error)
    return {};
  Status status = failed("write", file, error);
  fs::remove(target, error);
  return status;
}
