//===- OutputFolder.h - a result appears whole or not at all ----*- C++ -*-===//
//
// Part of mla. A plan or a checkpoint is written into a new folder beside its
// place and put there at the end. What stands there stays as it is until then;
// a folder with something else in it is refused, so that a mistyped -o loses
// nothing.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_SUPPORT_OUTPUTFOLDER_H
#define MLA_SUPPORT_OUTPUTFOLDER_H

#include "mla/Support/Status.h"
#include <filesystem>
#include <string>
#include <string_view>

namespace mla {

class OutputFolder {
public:
  /// Whether a folder may be put at `place`: it is free, empty, or has a file
  /// `marker`, by which an older result of the same program is known. Without a
  /// marker nothing is replaced.
  static Status check(const std::filesystem::path &place,
                      const std::string &marker = "");
  /// Checks `place` and makes the new folder.
  static Result<OutputFolder> create(const std::filesystem::path &place,
                                     const std::string &marker = "");

  OutputFolder(OutputFolder &&other);
  OutputFolder &operator=(OutputFolder &&) = delete;
  /// Removes the new folder unless commit() has succeeded.
  ~OutputFolder();

  /// Where to write.
  const std::filesystem::path &path() const { return scratch; }
  /// Puts the new folder in place.
  Status commit();

private:
  OutputFolder(std::filesystem::path place, std::filesystem::path scratch,
               std::string marker)
      : place(std::move(place)), scratch(std::move(scratch)),
        marker(std::move(marker)) {}
  std::filesystem::path place;
  std::filesystem::path scratch; ///< empty when there is nothing to remove
  std::string marker;
};

/// Writes `text` to `file`, whole or not at all.
Status writeFileAtomically(const std::filesystem::path &file,
                           std::string_view text);

} // namespace mla

#endif // MLA_SUPPORT_OUTPUTFOLDER_H
