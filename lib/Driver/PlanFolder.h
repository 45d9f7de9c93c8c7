//===- PlanFolder.h - a plan appears whole or not at all --------*- C++ -*-===//
//
// Part of mla. A plan is written into a new folder beside its place and put
// there at the end. An existing plan stays as it is until then; any other
// folder with something in it is refused, so that a mistyped -o loses nothing.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_DRIVER_PLANFOLDER_H
#define MLA_LIB_DRIVER_PLANFOLDER_H

#include "mla/Support/Status.h"
#include <filesystem>

namespace mla {

class PlanFolder {
public:
  /// Whether a plan may be put at `place`: it is free, empty or a plan.
  static Status check(const std::filesystem::path &place);
  /// Checks `place` and makes the new folder.
  static Result<PlanFolder> create(const std::filesystem::path &place);

  PlanFolder(PlanFolder &&other);
  PlanFolder &operator=(PlanFolder &&) = delete;
  /// Removes the new folder unless commit() has succeeded.
  ~PlanFolder();

  /// Where to write.
  const std::filesystem::path &path() const { return scratch; }
  /// Puts the new folder in place.
  Status commit();

private:
  PlanFolder(std::filesystem::path place, std::filesystem::path scratch)
      : place(std::move(place)), scratch(std::move(scratch)) {}
  std::filesystem::path place;
  std::filesystem::path scratch; ///< empty when there is nothing to remove
};

/// Writes `text` to `file`, whole or not at all.
Status writeFileAtomically(const std::filesystem::path &file,
                           std::string_view text);

} // namespace mla

#endif // MLA_LIB_DRIVER_PLANFOLDER_H
