//===- FolderTest.cpp - plans as folders ----------------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "SamplePlan.h"
#include "unittests/TempFolder.h"
#include <fstream>
#include <gtest/gtest.h>
#include <sys/stat.h>

using namespace mla;
using namespace mla::plan;
namespace fs = std::filesystem;

namespace {

class PlanFolder : public testing::Test {
protected:
  void SetUp() override {
    folder = base / "plan";
    fs::create_directory(folder);
    put(folder / "kernels.so", "machine code");
    put(folder / "tokenizer.json", "{}");
    put(folder / "tokenizer_config.json", "{}");
    plan = samplePlan();
    Result<uint64_t> hash = hashFile(folder / "kernels.so");
    ASSERT_TRUE(hash.ok());
    plan.libraryHash = *hash;
  }

  static void put(const fs::path &file, const std::string &text) {
    std::ofstream(file, std::ios::binary) << text;
  }
  void written() {
    Status status = write(plan, folder);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  void refused(StatusCode code, const std::string &message) {
    Result<Plan> result = read(folder);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.status().code(), code);
    EXPECT_NE(result.status().message().find(message), std::string::npos)
        << result.status().message();
  }

  test::TempFolder base;
  fs::path folder;
  Plan plan;
};

TEST_F(PlanFolder, RoundTrip) {
  written();
  Result<Plan> result = read(folder);
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(print(*result), print(plan));
  written(); // over the old one
  EXPECT_TRUE(read(folder).ok());
  EXPECT_FALSE(fs::exists(folder / "plan.json.partial"));
}

TEST_F(PlanFolder, FolderMayBeALink) {
  written();
  fs::create_directory_symlink(folder, base / "link");
  EXPECT_TRUE(read(base / "link").ok());
}

TEST_F(PlanFolder, MissingFolder) {
  EXPECT_EQ(read(base / "nothing").status().code(), StatusCode::NotFound);
  EXPECT_EQ(write(plan, base / "nothing").code(), StatusCode::NotFound);
  EXPECT_FALSE(read("").ok());
  EXPECT_FALSE(read(folder / "kernels.so").ok());
  EXPECT_FALSE(write(plan, folder / "kernels.so").ok());
}

TEST_F(PlanFolder, MissingFiles) {
  refused(StatusCode::NotFound, "plan.json: expected a file, found none");
  written();
  fs::remove(folder / "tokenizer.json");
  refused(StatusCode::NotFound, "tokenizer.json: expected a file, found none");
  fs::remove(folder / "kernels.so");
  refused(StatusCode::NotFound, "kernels.so: expected a file, found none");
}

TEST_F(PlanFolder, LibraryWithOtherBytes) {
  written();
  put(folder / "kernels.so", "machine cod3");
  refused(StatusCode::Invalid, "kernels.so: expected the file that the plan "
                               "was written with");
}

TEST_F(PlanFolder, LinkOut) {
  written();
  put(base / "elsewhere.so", "machine code");
  fs::remove(folder / "kernels.so");
  fs::create_symlink(base / "elsewhere.so", folder / "kernels.so");
  refused(StatusCode::Invalid, "kernels.so: expected a file inside the plan's "
                               "folder, found a link to ");
  // A folder whose name merely begins alike is outside too.
  fs::create_directory(base / "plan2");
  put(base / "plan2" / "kernels.so", "machine code");
  fs::remove(folder / "kernels.so");
  fs::create_symlink("../plan2/kernels.so", folder / "kernels.so");
  refused(StatusCode::Invalid, "expected a file inside the plan's folder");
}

TEST_F(PlanFolder, LinkInside) {
  written();
  fs::rename(folder / "kernels.so", folder / "kernels-1.so");
  fs::create_symlink("kernels-1.so", folder / "kernels.so");
  EXPECT_TRUE(read(folder).ok());
}

TEST_F(PlanFolder, LinkToNothingAndLoop) {
  written();
  fs::remove(folder / "kernels.so");
  fs::create_symlink("nothing", folder / "kernels.so");
  refused(StatusCode::NotFound, "kernels.so: expected a file");
  fs::remove(folder / "kernels.so");
  fs::create_symlink("kernels.so", folder / "kernels.so");
  refused(StatusCode::NotFound, "kernels.so: expected a file");
}

TEST_F(PlanFolder, PlanLinkOut) {
  written();
  fs::rename(folder / "plan.json", base / "plan.json");
  fs::create_symlink(base / "plan.json", folder / "plan.json");
  refused(StatusCode::Invalid, "plan.json: expected a file inside");
}

TEST_F(PlanFolder, NotAFile) {
  written();
  fs::remove(folder / "tokenizer.json");
  fs::create_directory(folder / "tokenizer.json");
  refused(StatusCode::Invalid, "tokenizer.json: expected a file");
  fs::remove(folder / "tokenizer.json");
  // A pipe without a writer would block whoever opens it.
  ASSERT_EQ(mkfifo((folder / "tokenizer.json").c_str(), 0600), 0);
  refused(StatusCode::Invalid, "tokenizer.json: expected a file");
  fs::remove(folder / "plan.json");
  fs::create_directory(folder / "plan.json");
  refused(StatusCode::Invalid, "plan.json: expected a file");
}

TEST_F(PlanFolder, TruncatedPlan) {
  written();
  fs::resize_file(folder / "plan.json", 100);
  refused(StatusCode::Invalid, "plan.json: not valid JSON");
  fs::resize_file(folder / "plan.json", (uint64_t(64) << 20) + 1); // sparse
  refused(StatusCode::Invalid, "plan.json: expected at most 67108864 bytes");
}

TEST_F(PlanFolder, WriteRefusesAndLeavesTheOldPlan) {
  written();
  Plan broken = plan;
  broken.library = "../kernels.so";
  Status status = write(broken, folder);
  EXPECT_EQ(status.code(), StatusCode::Invalid);
  EXPECT_NE(status.message().find("plan.json: at /library/file: "),
            std::string::npos)
      << status.message();
  EXPECT_TRUE(read(folder).ok());

  fs::create_directory(folder / "plan.json.partial");
  EXPECT_EQ(write(plan, folder).code(), StatusCode::Io);
  EXPECT_TRUE(read(folder).ok());
}

TEST_F(PlanFolder, HashFile) {
  put(base / "empty", "");
  EXPECT_EQ(*hashFile(base / "empty"), 0xcbf29ce484222325u);
  put(base / "a", "a");
  EXPECT_EQ(*hashFile(base / "a"), 0xaf63dc4c8601ec8cu);
  put(base / "long", std::string(200000, 'x'));
  EXPECT_TRUE(hashFile(base / "long").ok());
  EXPECT_EQ(hashFile(base / "nothing").status().code(), StatusCode::Io);
  EXPECT_EQ(hashFile(base.path).status().code(), StatusCode::Io);
}

} // namespace
