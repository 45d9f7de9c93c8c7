//===- GpuMain.cpp - tests of collectives between GPUs --------------------===//
//
// Part of mla. Ranks that are processes are forked by the tests, and who has used CUDA
// cannot be forked: so these tests run in a process of their own, before the others.
// Without a GPU nothing is tested, which is said.
//
//===----------------------------------------------------------------------===//
#include "GpuBackends.h"
#include <cstdio>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace mla::testing;

int main(int argc, char **argv) {
  prepareEnvironment();
  gpuFacts.gpus = countGpus(gpuFacts.whyNone);
  bool listing = false;
  for (int i = 1; i < argc; ++i)
    listing |= std::string(argv[i]) == "--gtest_list_tests";
  if (listing) {
    testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
  }
  if (gpuFacts.gpus == 0) {
    std::printf("skipped: there is no GPU: %s\n", gpuFacts.whyNone.c_str());
    return 0;
  }
  std::printf("%d GPUs\n", gpuFacts.gpus);
  std::fflush(stdout);
  pid_t child = fork();
  if (child < 0) {
    std::perror("fork");
    return 1;
  }
  gpuFacts.forked = child == 0;
  testing::InitGoogleTest(&argc, argv);
  // What the other run does is no line of this one's report.
  std::string others = gpuFacts.forked ? "*Threads*" : "*Processes*";
  std::string &filter = ::testing::GTEST_FLAG(filter);
  filter += (filter.find('-') == std::string::npos ? "-" : ":") + others;
  int how = 0;
  if (child > 0 && waitpid(child, &how, 0) < 0)
    return 1;
  int own = RUN_ALL_TESTS();
  bool theirs = child == 0 || (WIFEXITED(how) && WEXITSTATUS(how) == 0);
  return own != 0 || !theirs;
}
