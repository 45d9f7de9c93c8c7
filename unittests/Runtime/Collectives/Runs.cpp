//===- Runs.cpp - ranks that are threads, or processes --------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "Runs.h"
#include "runtime/collectives/Launch.h"
#include "runtime/collectives/host/Sockets.h"
#include "runtime/collectives/host/Threads.h"
#include <arpa/inet.h>
#include <cstdlib>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace mla::testing {
namespace {

using namespace collectives;

class ThreadRun final : public Ongoing {
public:
  ThreadRun(int ranks, const RankBody &body)
      : body(body), outcomes(static_cast<size_t>(ranks)) {
    auto group = createThreadGroup(ranks);
    if (!group.ok()) {
      outcomes.assign(outcomes.size(), {group.status()});
      return;
    }
    for (size_t i = 0; i < group->size(); ++i)
      threads.emplace_back(
          [this, i](std::unique_ptr<Transport> transport) {
            outcomes[i] = this->body(*transport);
          },
          std::move((*group)[i]));
  }
  std::vector<Outcome> wait() override {
    for (std::thread &thread : threads)
      thread.join();
    return outcomes;
  }

private:
  const RankBody body;
  std::vector<Outcome> outcomes;
  std::vector<std::thread> threads;
};

/// What a process says at its end.
struct Report {
  uint32_t code;
  double seconds;
  char message[1000];
};

class ProcessRun final : public Ongoing {
public:
  ProcessRun(int ranks, const RankBody &body) {
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto *generic = reinterpret_cast<sockaddr *>(&address);
    if (bind(listener, generic, length) != 0 || listen(listener, 64) != 0 ||
        getsockname(listener, generic, &length) != 0)
      std::abort();
    for (int rank = 0; rank < ranks; ++rank)
      fork(rank, ranks, ntohs(address.sin_port), body);
    close(listener);
  }

  std::vector<Outcome> wait() override {
    std::vector<Outcome> outcomes;
    auto deadline = Clock::now() + std::chrono::seconds(120);
    for (Child &child : children) {
      Report report{};
      size_t have = 0;
      while (have < sizeof report) {
        pollfd item{child.pipe, POLLIN, 0};
        auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
            deadline - Clock::now());
        if (poll(&item, 1, std::max(0, static_cast<int>(left.count()))) <= 0)
          kill(child.process, SIGKILL);
        ssize_t got = read(child.pipe, reinterpret_cast<char *>(&report) + have,
                           sizeof report - have);
        if (got <= 0)
          break;
        have += static_cast<size_t>(got);
      }
      close(child.pipe);
      int how = 0;
      waitpid(child.process, &how, 0);
      // A sanitizer's verdict comes with the exit code.
      bool died =
          have < sizeof report || !WIFEXITED(how) || WEXITSTATUS(how) != 0;
      outcomes.push_back(
          {{static_cast<StatusCode>(report.code), std::string(report.message)},
           report.seconds,
           died});
    }
    return outcomes;
  }

private:
  struct Child {
    pid_t process;
    int pipe;
  };

  void fork(int rank, int ranks, int port, const RankBody &body) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
      std::abort();
    pid_t process = ::fork();
    if (process < 0)
      std::abort();
    if (process > 0) {
      close(ends[1]);
      children.push_back({process, ends[0]});
      return;
    }
    for (const Child &child : children)
      close(child.pipe);
    close(ends[0]);
    if (rank != 0)
      close(listener);
    auto set = [](const char *name, int value) {
      setenv(name, std::to_string(value).c_str(), 1);
    };
    set("MLA_RANK", rank);
    set("MLA_WORLD_SIZE", ranks);
    set("MLA_MASTER_PORT", port);
    setenv("MLA_MASTER_ADDR", "127.0.0.1", 1);
    Outcome outcome = runChild(body);
    Report report{};
    report.code = static_cast<uint32_t>(outcome.status.code());
    report.seconds = outcome.seconds;
    outcome.status.message().copy(report.message, sizeof report.message - 1);
    bool written = write(ends[1], &report, sizeof report) == sizeof report;
    _exit(written ? 0 : 1);
  }

  Outcome runChild(const RankBody &body) const {
    auto world = worldFromEnvironment(
        [](const char *name) -> const char * { return std::getenv(name); });
    if (!world.ok())
      return {world.status()};
    SocketOptions options;
    if (world->has_value()) { // Which a single process has not.
      options.rank = (*world)->rank;
      options.size = (*world)->size;
      options.address = (*world)->address;
      options.port = (*world)->port;
      options.listener = options.rank == 0 ? listener : -1;
    }
    auto transport = joinSocketGroup(options);
    if (!transport.ok())
      return {transport.status()};
    return body(**transport);
  }

  int listener;
  std::vector<Child> children;
};

} // namespace

Outcome timed(const Body &body, Member &member) {
  auto begin = Clock::now();
  Status status = body(member);
  return {status, std::chrono::duration<double>(Clock::now() - begin).count()};
}

std::unique_ptr<Ongoing> startThreads(int ranks, const RankBody &body) {
  return std::make_unique<ThreadRun>(ranks, body);
}

std::unique_ptr<Ongoing> startProcesses(int ranks, const RankBody &body) {
  return std::make_unique<ProcessRun>(ranks, body);
}

} // namespace mla::testing
