//===- TempFolder.h - a folder for a test's files ---------------*- C++ -*-===//
//
// Part of mla. Tests run in several processes at once, so none has a name that another
// may have.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_UNITTESTS_TEMPFOLDER_H
#define MLA_UNITTESTS_TEMPFOLDER_H

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>

namespace mla::test {

/// A folder of its own for each test; gone with the object.
class TempFolder {
public:
  TempFolder() {
    std::string name =
        (std::filesystem::temp_directory_path() / "mla-test-XXXXXX").string();
    if (mkdtemp(name.data()))
      path = name;
  }
  ~TempFolder() {
    std::error_code error;
    if (!path.empty())
      std::filesystem::remove_all(path, error);
  }
  TempFolder(const TempFolder &) = delete;

  std::filesystem::path operator/(const std::string &name) const {
    return path / name;
  }
  void write(const std::string &name, std::string_view bytes) const {
    std::ofstream(path / name, std::ios::binary)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }

  std::filesystem::path path; ///< Empty if it cannot be made.
};

} // namespace mla::test

#endif // MLA_UNITTESTS_TEMPFOLDER_H
