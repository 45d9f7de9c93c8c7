//===- ProcessGroupTest.cpp - mla-run as several processes ----------------===//
//
// Part of mla. The real program on a plan made by hand: who prints, what ends whom,
// and with which code.
//
//===----------------------------------------------------------------------===//
#include "TestPlan.h"
#include "mla/Support/Json.h"
#include <algorithm>
#include <arpa/inet.h>
#include <fcntl.h>
#include <functional>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

using namespace mla;
using mla::test::TestPlan;

namespace {

/// A port of the loopback interface that was free just now.
int freePort() {
  int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  bind(socket, reinterpret_cast<sockaddr *>(&address), size);
  getsockname(socket, reinterpret_cast<sockaddr *>(&address), &size);
  close(socket);
  return ntohs(address.sin_port);
}

struct Ended {
  int code = -1;
  std::string out, err;
};

class ProcessGroupTest : public testing::Test {
protected:
  void SetUp() override {
    files.addTokenizer();
    files.addRanks(ranks);
    files.write();
  }

  using Arguments = std::vector<std::string>;
  /// Runs mla-run as `ranks` processes with arguments(rank); `input` is for rank 0.
  std::vector<Ended> run(const std::function<Arguments(int)> &arguments,
                         const std::string &input = {}) {
    auto fileOf = [&](const char *name, int rank) {
      return (files.folder() / (name + std::to_string(rank))).string();
    };
    writeText(fileOf("in", 0), input);
    std::string port = std::to_string(freePort());
    std::vector<pid_t> pids;
    for (int rank = 0; rank < ranks; ++rank) {
      Arguments environment = {"MLA_RANK=" + std::to_string(rank),
                               "MLA_WORLD_SIZE=" + std::to_string(ranks),
                               "MLA_MASTER_ADDR=127.0.0.1",
                               "MLA_MASTER_PORT=" + port};
      for (char **e = environ; *e; ++e)
        environment.push_back(*e);
      Arguments words = arguments(rank);
      words.insert(words.begin(), MLA_RUN);
      posix_spawn_file_actions_t actions;
      posix_spawn_file_actions_init(&actions);
      posix_spawn_file_actions_addopen(
          &actions, 0, rank == 0 ? fileOf("in", 0).c_str() : "/dev/null",
          O_RDONLY, 0);
      for (auto [fd, name] : {std::pair(1, "out"), {2, "err"}})
        posix_spawn_file_actions_addopen(&actions, fd,
                                         fileOf(name, rank).c_str(),
                                         O_WRONLY | O_CREAT | O_TRUNC, 0600);
      pid_t pid = 0;
      EXPECT_EQ(posix_spawn(&pid, MLA_RUN, &actions, nullptr,
                            pointers(words).data(),
                            pointers(environment).data()),
                0);
      posix_spawn_file_actions_destroy(&actions);
      pids.push_back(pid);
    }
    std::vector<Ended> ended;
    for (int rank = 0; rank < ranks; ++rank) {
      int status = 0;
      waitpid(pids[static_cast<size_t>(rank)], &status, 0);
      ended.push_back({WIFEXITED(status) ? WEXITSTATUS(status) : -1,
                       readText(fileOf("out", rank)),
                       readText(fileOf("err", rank))});
    }
    return ended;
  }

  static std::vector<char *> pointers(Arguments &texts) {
    std::vector<char *> list;
    for (std::string &text : texts)
      list.push_back(text.data());
    list.push_back(nullptr);
    return list;
  }
  static void writeText(const std::string &file, const std::string &text) {
    FILE *f = fopen(file.c_str(), "w");
    ASSERT_TRUE(f);
    fwrite(text.data(), 1, text.size(), f);
    fclose(f);
  }
  static std::string readText(const std::string &file) {
    Result<std::string> text = readFile(file);
    return text.ok() ? *text : text.status().message();
  }

  /// The token that follows `ids`.
  static std::string likeliest(std::vector<int32_t> ids) {
    std::vector<float> logits = test::expectedLogits(ids);
    return std::to_string(std::max_element(logits.begin(), logits.end()) -
                          logits.begin());
  }

  static constexpr int ranks = 3;
  TestPlan files;
};

TEST_F(ProcessGroupTest, OnlyRankZeroReadsPrintsAndWrites) {
  std::string plan = files.folder().string();
  auto ended = run(
      [&](int) {
        return Arguments{"generate",    plan, "--prompt", "-",
                         "--print-ids", "-n", "1",        "--check-ranks"};
      },
      "ab");
  for (const Ended &e : ended)
    EXPECT_EQ(e.code, 0) << e.err;
  EXPECT_EQ(ended[0].out, likeliest({2, 4}) + "\n");
  EXPECT_NE(ended[0].err.find("prompt: 2 tokens"), std::string::npos);
  for (int rank = 1; rank < ranks; ++rank)
    EXPECT_EQ(ended[size_t(rank)].out + ended[size_t(rank)].err, "");

  ended = run([&](int rank) {
    return Arguments{"logits", plan, "--ids",
                     "3,4",    "-o", plan + "/logits" + std::to_string(rank)};
  });
  for (const Ended &e : ended)
    EXPECT_EQ(e.code, 0) << e.err;
  EXPECT_TRUE(std::filesystem::exists(plan + "/logits0"));
  EXPECT_FALSE(std::filesystem::exists(plan + "/logits1"));

  ended = run([&](int) {
    return Arguments{"bench", plan, "--steps", "1:10", "--decode-tokens", "3"};
  });
  for (const Ended &e : ended)
    EXPECT_EQ(e.code, 0) << e.err;
  EXPECT_NE(ended[0].out.find("all_reduce"), std::string::npos);
}

TEST_F(ProcessGroupTest, WhatEndsOneEndsAll) {
  std::string plan = files.folder().string();
  // Rank 0 alone finds that it cannot write.
  auto ended = run([&](int) {
    return Arguments{"logits", plan, "--ids", "3", "-o", "/absent/file"};
  });
  EXPECT_EQ(ended[0].code, 1);
  EXPECT_NE(ended[0].err.find("mla-run: "), std::string::npos);
  for (int rank = 1; rank < ranks; ++rank) {
    const Ended &e = ended[static_cast<size_t>(rank)];
    EXPECT_EQ(e.code, 1);
    // At the end, or still in the step that rank 0 has behind it.
    EXPECT_TRUE(e.err.starts_with("mla-run: rank " + std::to_string(rank)))
        << e.err;
    EXPECT_NE(e.err.find("rank 0 gave up: cannot write /absent/file"),
              std::string::npos)
        << e.err;
  }
  // One has no checkpoint.
  ended = run([&](int rank) {
    Arguments a = {"generate", plan, "--ids", "3", "--print-ids", "-n", "1"};
    if (rank == 2)
      a.insert(a.end(), {"--checkpoint", "/absent"});
    return a;
  });
  for (int rank = 0; rank < ranks; ++rank) {
    const Ended &e = ended[static_cast<size_t>(rank)];
    EXPECT_EQ(e.code, 1);
    EXPECT_NE(e.err.find("/absent"), std::string::npos) << e.err;
  }
  EXPECT_TRUE(ended[2].err.starts_with("mla-run: rank 2: ")) << ended[2].err;
  // NaN has a code of its own, on every rank.
  for (const Ended &e : run([&](int) {
         return Arguments{"generate", plan, "--ids", "11", "--print-ids"};
       }))
    EXPECT_EQ(e.code, 3) << e.err;
}

TEST_F(ProcessGroupTest, ProcessesThatDisagree) {
  std::string plan = files.folder().string();
  for (const Ended &e : run([&](int rank) {
         return Arguments{"generate",    plan, "--ids", rank == 1 ? "4" : "3",
                          "--print-ids", "-n", "1"};
       })) {
    EXPECT_EQ(e.code, 1);
    EXPECT_NE(e.err.find("rank 1 was given other tokens than rank 0"),
              std::string::npos)
        << e.err;
  }
  TestPlan other;
  other.addRanks(ranks);
  other.plan.producer = "another";
  other.write();
  for (const Ended &e : run([&](int rank) {
         return Arguments{"generate",
                          rank == 2 ? other.folder().string() : plan,
                          "--ids",
                          "3",
                          "--print-ids",
                          "-n",
                          "1"};
       })) {
    EXPECT_EQ(e.code, 1);
    EXPECT_NE(e.err.find("rank 2"), std::string::npos) << e.err;
  }
}

TEST_F(ProcessGroupTest, WhatIsOneProcess) {
  std::string plan = files.folder().string();
  for (Arguments arguments : {Arguments{"calibrate", plan, "--file",
                                        plan + "/in0", "-o", plan + "/o"},
                              {"compare", plan, plan, "--ids", "1"},
                              {"pack", plan, "-o", plan + "/o"}})
    for (const Ended &e : run([&](int) { return arguments; })) {
      EXPECT_EQ(e.code, 1);
      EXPECT_NE(e.err.find("mla-run " + arguments[0] + " is one process"),
                std::string::npos)
          << e.err;
    }
}

} // namespace
