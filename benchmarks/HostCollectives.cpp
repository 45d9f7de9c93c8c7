//===- HostCollectives.cpp - all-reduces between ranks on the host --------===//
//
// Part of mla. Times all-reduces by size, number of ranks and method, over
// threads and over processes (TCP on loopback), and prints them as JSON. A
// figure is the median over rounds of the mean of a round on rank 0; ranks do
// nothing between two all-reduces. With more ranks than cores it shows what
// waiting costs.
//
//   host_collectives [--ranks 2,8] [--rounds 9]
//
//===----------------------------------------------------------------------===//
#include "runtime/collectives/Collectives.h"
#include "runtime/collectives/host/Sockets.h"
#include "runtime/collectives/host/Threads.h"
#include <CLI/CLI.hpp>
#include <algorithm>
#include <arpa/inet.h>
#include <cstdio>
#include <iostream>
#include <netinet/in.h>
#include <nlohmann/json.hpp>
#include <sys/socket.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

using namespace mla;
using namespace mla::collectives;

namespace {

/// Rows of 7168 in f32 for a half, one, two, ... tokens, and a prompt.
constexpr int64_t sizes[] = {4096,   14336,  28672,   57344,
                             114688, 229376, 1048576, 16777216};
enum Method { OneShot, TwoShot, Default };
constexpr const char *names[] = {"one_shot", "two_shot", "default"};

struct Case {
  int64_t bytes;
  Method method;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (int64_t bytes : sizes)
    for (Method method : {OneShot, TwoShot, Default})
      if (method != OneShot || bytes <= 1 << 20)
        all.push_back({bytes, method});
  return all;
}

/// Seconds of each case, the same on all ranks but for noise.
Result<std::vector<double>> measure(Transport &transport, int rounds) {
  Collectives all(transport);
  std::vector<double> seconds;
  for (const Case &c : cases()) {
    all.setOneShotBytes(c.method == OneShot   ? INT64_MAX
                        : c.method == TwoShot ? 0
                                              : oneShotBytes);
    int64_t count = c.bytes / 4;
    std::vector<float> x(static_cast<size_t>(count), 1.0f), y(x.size());
    int inRound =
        static_cast<int>(std::clamp<int64_t>((4 << 20) / c.bytes, 2, 100));
    std::vector<double> times;
    for (int round = -1; round < rounds; ++round) {
      MLA_RETURN_IF_ERROR(all.barrier("round"));
      auto begin = Clock::now();
      for (int i = 0; i < inRound; ++i)
        MLA_RETURN_IF_ERROR(all.allReduce(x.data(), y.data(), count, "x"));
      if (round >= 0)
        times.push_back(
            std::chrono::duration<double>(Clock::now() - begin).count() /
            inRound);
    }
    auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
    std::nth_element(times.begin(), middle, times.end());
    seconds.push_back(*middle);
  }
  return seconds;
}

Result<std::vector<double>> overThreads(int ranks, int rounds) {
  MLA_ASSIGN_OR_RETURN(auto group, createThreadGroup(ranks));
  std::vector<Result<std::vector<double>>> results(
      group.size(), Result<std::vector<double>>(std::vector<double>()));
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < group.size(); ++rank)
    threads.emplace_back([&, rank, transport = std::move(group[rank])] {
      results[rank] = measure(*transport, rounds);
    });
  for (std::thread &thread : threads)
    thread.join();
  return results[0];
}

Result<std::vector<double>> overProcesses(int ranks, int rounds) {
  int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto *generic = reinterpret_cast<sockaddr *>(&address);
  if (bind(listener, generic, length) != 0 || listen(listener, ranks) != 0 ||
      getsockname(listener, generic, &length) != 0)
    return ioError("cannot listen on loopback");
  std::vector<pid_t> children;
  int rank = 0;
  for (int child = 1; child < ranks && rank == 0; ++child)
    if (pid_t process = fork(); process == 0)
      rank = child;
    else
      children.push_back(process);
  SocketOptions options;
  options.rank = rank;
  options.size = ranks;
  options.address = "127.0.0.1";
  options.port = ntohs(address.sin_port);
  options.listener = rank == 0 ? listener : -1;
  if (rank != 0)
    close(listener);
  Result<std::vector<double>> result = std::vector<double>();
  {
    auto transport = joinSocketGroup(options);
    result = transport.ok() ? measure(**transport, rounds)
                            : Result<std::vector<double>>(transport.status());
  }
  if (rank != 0)
    _exit(result.ok() ? 0 : 1);
  for (pid_t child : children)
    waitpid(child, nullptr, 0);
  return result;
}

} // namespace

int main(int argc, char **argv) {
  std::vector<int> ranks = {2, 8};
  int rounds = 9;
  CLI::App app("Times all-reduces between ranks on the host.");
  app.add_option("--ranks", ranks, "Numbers of ranks")->delimiter(',');
  app.add_option("--rounds", rounds, "Rounds a figure is the median of")
      ->check(CLI::Range(1, 10000));
  CLI11_PARSE(app, argc, argv);
  nlohmann::ordered_json output;
  output["cores"] = std::thread::hardware_concurrency();
  for (int n : ranks)
    for (bool processes : {true, false}) {
      auto seconds =
          processes ? overProcesses(n, rounds) : overThreads(n, rounds);
      if (!seconds.ok()) {
        std::cerr << "error: " << seconds.status().message() << "\n";
        return 1;
      }
      for (size_t i = 0; i < seconds->size(); ++i)
        output["all_reduces"].push_back(
            {{"transport", processes ? "sockets" : "threads"},
             {"ranks", n},
             {"bytes", cases()[i].bytes},
             {"method", names[cases()[i].method]},
             {"seconds", (*seconds)[i]}});
    }
  std::cout << output.dump(1) << "\n";
  return 0;
}
