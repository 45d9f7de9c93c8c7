//===- ToolTest.cpp - mla-quantize as a program ---------------------------===//
//
// Part of mla. Command lines, exit codes, signals, and what is left in the
// folder after each of them: the new folder, or nothing.
//
//===----------------------------------------------------------------------===//
#include "Folders.h"
#include <algorithm>
#include <chrono>
#include <csignal>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

using namespace mla;
using namespace mla::test;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {
const std::string kjvTiny = MLA_KJV_TINY;

/// A running mla-quantize, its output in a file.
class Process {
public:
  Process(const TempFolder &folder, const std::string &arguments,
          const std::string &before = "")
      : log(folder / "log") {
    std::string command = before + "exec " MLA_QUANTIZE " " + arguments +
                          " > " + log.string() + " 2>&1";
    pid = ::fork();
    if (pid == 0) {
      ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      ::_exit(127);
    }
  }
  void signal(int number) const { ::kill(pid, number); }
  /// The exit code; 128 + the signal's number if one ended it.
  int wait() const {
    int status = 0;
    ::waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  std::string output() const { return readBytes(log); }

private:
  fs::path log;
  pid_t pid;
};

class Tool : public testing::Test {
protected:
  void SetUp() override { fs::create_directory(work / "out"); }
  std::string out(const std::string &name = "o") const {
    return (work / "out" / name).string();
  }
  /// Runs to the end; expects `code`, and `part` in what is printed.
  void expect(int code, const std::string &arguments, const std::string &part,
              const std::string &before = "") {
    Process process(work, arguments, before);
    EXPECT_EQ(process.wait(), code) << process.output();
    EXPECT_NE(process.output().find(part), std::string::npos)
        << process.output();
    EXPECT_TRUE(code == 0 || entries(work / "out").empty());
  }
  TempFolder work;
};

TEST_F(Tool, WritesAndSums) {
  expect(0,
         kjvTiny + " -o " + out() +
             " --weights nvfp4 --weights-for '*self_attn*=fp8-block' "
             "--exclude '*shared_experts*' --kv fp8 --shard-size 2MB "
             "--threads 2 --no-progress",
         "fp8_block                      20     2.1 MiB     1.0 MiB          "
         "8.00");
  Process again(work, kjvTiny + " -o " + out() + " --weights bf16");
  EXPECT_EQ(again.wait(), 1);
  EXPECT_NE(again.output().find("exists and is not empty"), std::string::npos);
  EXPECT_EQ(ModelFolder(out()).format("model.layers.1.mlp.experts.0.up_proj"),
            Format::NVFP4);
}

TEST_F(Tool, AnEmptyFolderIsTaken) {
  fs::create_directory(out());
  Process process(work, kjvTiny + " -o " + out() + "/ --weights keep");
  EXPECT_EQ(process.wait(), 0) << process.output();
  EXPECT_EQ(entries(work / "out")[0], "o");
  EXPECT_EQ(readBytes(out() + "/config.json"),
            readBytes(kjvTiny + "/config.json"));
}

TEST_F(Tool, WrongUsage) {
  std::string good = kjvTiny + " -o " + out();
  expect(2, good + " --weights nvfp5",
         "expected nvfp4, fp8-block, int4-g32, bf16 or keep, found 'nvfp5'");
  expect(2, good, "--weights is required");
  expect(2, kjvTiny + " --weights bf16", "--output is required");
  expect(2, good + " --weights bf16 --weights-for nvfp4",
         "expected GLOB=FORMAT, found 'nvfp4'");
  expect(2, good + " --weights bf16 --weights-for '*=fp6'", "found 'fp6'");
  expect(2, good + " --weights bf16 --kv fp4", "fp4 not in {fp8}");
  expect(2, good + " --weights bf16 --threads 0", "--threads");
  expect(2, good + " --weights bf16 --shard-size 0", "--shard-size");
  expect(0, "--help", "--weights-for");
}

TEST_F(Tool, WrongFolders) {
  expect(1, work.path.string() + "/none -o " + out() + " --weights bf16",
         "none");
  expect(1, kjvTiny + " -o " + kjvTiny + " --weights bf16",
         "lies in the input folder");
  expect(1, kjvTiny + " -o " + kjvTiny + "/../kjv-tiny/x --weights bf16",
         "lies in the input folder");
  EXPECT_FALSE(fs::exists(kjvTiny + "/x"));
  expect(1, kjvTiny + " -o " + out("no/o") + " --weights bf16",
         "cannot create");
  work.write("file", "");
  expect(1, kjvTiny + " -o " + (work / "file").string() + " --weights bf16",
         "file exists and is no folder");
  expect(1, kjvTiny + " -o " + (work / "file/o").string() + " --weights bf16",
         "file");
  EXPECT_TRUE(fs::is_regular_file(work / "file"));
  expect(1,
         kjvTiny + " -o " + out() + " --weights bf16 --kv fp8 --kv-scales " +
             (work / "none.json").string(),
         "none.json");
}

/// A limit on file sizes fails as a full disk does: in a write.
TEST_F(Tool, AWriteThatFailsLeavesNothing) {
  expect(1, kjvTiny + " -o " + out() + " --weights fp8-block", "cannot write",
         "ulimit -f 2000; ");
}

/// One file of more bytes than the disk has left, all of them a hole.
TEST_F(Tool, TooLittleSpaceIsFoundBefore) {
  TempFolder in;
  TestTensors tensors = randomTensors(smallConfig());
  uint64_t bytes = fs::space(in.path).available + (uint64_t(1) << 33);
  tensors["vision_tower.big"] = {"U8", {static_cast<int64_t>(bytes)}};
  tensors["vision_tower.big"].shard = "vision.safetensors";
  writeModel(in, smallConfig(), tensors);
  if (fs::file_size(in / "vision.safetensors") < bytes)
    GTEST_SKIP() << "the file system has no files as large as its free space";
  expect(1, in.path.string() + " -o " + out() + " --weights fp8-block",
         "the output needs ");
}

/// The input is large enough for a signal to come in time: 1.5 GB, a hole.
class Interrupted : public Tool {
protected:
  void SetUp() override {
    Tool::SetUp();
    json config = smallConfig();
    config["vocab_size"] = 4096;
    config["hidden_size"] = 8192;
    config["moe_intermediate_size"] = 1024;
    writeModel(in, config, plainTensors(*readConfig(config)));
  }
  TempFolder in;
};

TEST_F(Interrupted, LeavesNothing) {
  for (int signal : {SIGINT, SIGTERM}) {
    Process process(work, in.path.string() + " -o " + out() +
                              " --weights nvfp4 --threads 1");
    // Not before it writes: until then it has nothing to clean up.
    using namespace std::chrono;
    auto end = steady_clock::now() + seconds(60);
    bool writes = false;
    while (!writes && steady_clock::now() < end) {
      std::this_thread::sleep_for(milliseconds(1));
      std::vector<std::string> now = entries(work / "out");
      writes = std::any_of(now.begin(), now.end(), [](const std::string &name) {
        return name.ends_with(".safetensors");
      });
    }
    ASSERT_TRUE(writes) << process.output();
    process.signal(signal);
    EXPECT_EQ(process.wait(), 130) << process.output();
    EXPECT_NE(process.output().find("mla-quantize: interrupted"),
              std::string::npos)
        << process.output();
    EXPECT_EQ(entries(work / "out"), std::vector<std::string>());
  }
}

} // namespace
