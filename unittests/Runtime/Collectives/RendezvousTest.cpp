//===- RendezvousTest.cpp - how a group of processes comes about ----------===//
//
// Part of mla. The ranks are threads here, each with its sockets.
//
//===----------------------------------------------------------------------===//
#include "runtime/collectives/Collectives.h"
#include "runtime/collectives/host/Sockets.h"
#include "runtime/collectives/host/Wire.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <numeric>
#include <thread>

using namespace mla;
using namespace mla::collectives;
using namespace std::chrono_literals;

namespace {

struct Listener {
  wire::Fd fd;
  uint16_t port = 0;
};

sockaddr_in loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

Listener listenSomewhere() {
  Listener result{wire::Fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0))};
  sockaddr_in address = loopback(0);
  auto *generic = reinterpret_cast<sockaddr *>(&address);
  socklen_t length = sizeof address;
  EXPECT_EQ(bind(result.fd.get(), generic, length), 0);
  EXPECT_EQ(listen(result.fd.get(), 64), 0);
  EXPECT_EQ(getsockname(result.fd.get(), generic, &length), 0);
  result.port = ntohs(address.sin_port);
  return result;
}

wire::Fd connectAs(uint16_t port) {
  wire::Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = loopback(port);
  EXPECT_EQ(
      connect(fd.get(), reinterpret_cast<sockaddr *>(&address), sizeof address),
      0);
  return fd;
}

void say(const wire::Fd &fd, std::string_view text) {
  (void)send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL);
}

using Joined = Result<std::unique_ptr<Transport>>;

std::vector<Joined> nobody(int size) {
  std::vector<Joined> results;
  for (int rank = 0; rank < size; ++rank)
    results.emplace_back(notFound("did not come"));
  return results;
}

/// `change` makes ranks different; those for which it returns false do not
/// come.
std::vector<Joined>
join(int size, const std::function<bool(SocketOptions &)> &change,
     const std::function<void(uint16_t port)> &meanwhile = {}) {
  Listener listener = listenSomewhere();
  int fd = fcntl(listener.fd.get(), F_DUPFD_CLOEXEC, 0);
  listener.fd.close();
  std::vector<Joined> results = nobody(size);
  std::vector<std::thread> threads;
  if (meanwhile)
    meanwhile(listener.port);
  for (int rank = 0; rank < size; ++rank) {
    SocketOptions options;
    options.rank = rank;
    options.size = size;
    options.address = "127.0.0.1";
    options.port = listener.port;
    options.timeout = 10s;
    options.listener = rank == 0 ? fd : -1;
    if (change(options))
      threads.emplace_back([&results, rank, options] {
        results[static_cast<size_t>(rank)] = joinSocketGroup(options);
      });
  }
  for (std::thread &thread : threads)
    thread.join();
  return results;
}

bool as(SocketOptions &) { return true; }

/// All say what is wrong.
void expectAll(const std::vector<Joined> &results, const std::string &part,
               int except = -1) {
  for (size_t rank = 0; rank < results.size(); ++rank) {
    if (static_cast<int>(rank) == except)
      continue;
    EXPECT_FALSE(results[rank].ok()) << "rank " << rank;
    EXPECT_NE(results[rank].status().message().find(part), std::string::npos)
        << "rank " << rank << ": " << results[rank].status().message()
        << "\nlacks: " << part;
  }
}

void expectWorks(std::vector<Joined> &results) {
  std::vector<std::thread> threads;
  for (Joined &result : results) {
    ASSERT_TRUE(result.ok()) << result.status().message();
    threads.emplace_back([&transport = **result] {
      Collectives all(transport);
      for (int64_t count : {1, 5000, 100'000}) {
        std::vector<float> x(static_cast<size_t>(count)), y(x.size());
        std::iota(x.begin(), x.end(), static_cast<float>(transport.rank()));
        Status status = all.allReduce(x.data(), y.data(), count, "x");
        ASSERT_TRUE(status.ok()) << status.message();
        auto n = static_cast<float>(transport.size());
        for (size_t i = 0; i < y.size(); ++i)
          ASSERT_EQ(y[i], static_cast<float>(i) * n + n * (n - 1) / 2);
      }
    });
  }
  for (std::thread &thread : threads)
    thread.join();
}

TEST(Rendezvous, RanksMeet) {
  for (int size : {2, 3, 6}) {
    auto results = join(size, as);
    expectWorks(results);
  }
}

TEST(Rendezvous, RankZeroMayComeLast) {
  Listener chosen = listenSomewhere();
  uint16_t port = chosen.port;
  chosen.fd.close(); // Nobody listens for a while.
  std::vector<Joined> results = nobody(3);
  std::vector<std::thread> threads;
  for (int rank : {2, 1, 0}) {
    threads.emplace_back([&results, rank, port] {
      SocketOptions options{rank, 3, "localhost", port};
      if (rank == 0) {
        options.address = "127.0.0.1";
        std::this_thread::sleep_for(200ms);
      }
      results[static_cast<size_t>(rank)] = joinSocketGroup(options);
    });
  }
  for (std::thread &thread : threads)
    thread.join();
  expectWorks(results);
}

TEST(Rendezvous, StrangersAreDropped) {
  std::vector<wire::Fd> strangers;
  auto results = join(3, as, [&](uint16_t port) {
    // One says nothing, one too little, others something else; one leaves.
    for (int i = 0; i < 6; ++i)
      strangers.push_back(connectAs(port));
    say(strangers[1], "ml");
    say(strangers[2], "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    say(strangers[3], std::string(100'000, '\xff'));
    say(strangers[4], std::string(3, '\0'));
    strangers[5].close();
    // A greeting that lacks the rest.
    say(strangers[0], "mlaH");
  });
  expectWorks(results);
  // The one who said something else was not kept until the end.
  char c;
  EXPECT_LE(recv(strangers[2].get(), &c, 1, 0), 0);
}

TEST(Rendezvous, NobodyListensAfterwards) {
  uint16_t port = 0;
  auto results = join(3, as, [&](uint16_t p) { port = p; });
  wire::Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = loopback(port);
  EXPECT_NE(
      connect(fd.get(), reinterpret_cast<sockaddr *>(&address), sizeof address),
      0);
  expectWorks(results);
}

TEST(Rendezvous, AnotherPlanIsRefused) {
  auto results = join(3, [](SocketOptions &options) {
    options.group = options.rank == 2 ? 0xabc : 0xdef;
    return true;
  });
  expectAll(results, "rank 2 has the plan 0000000000000abc, rank 0 has "
                     "0000000000000def");
}

TEST(Rendezvous, AnotherSizeIsRefused) {
  auto results = join(3, [](SocketOptions &options) {
    options.size += options.rank == 1 ? 5 : 0;
    return true;
  });
  expectAll(results, "rank 1 has a group of size 8, rank 0 has 3");
}

TEST(Rendezvous, TwoOfOneRankAreRefused) {
  auto results = join(4, [](SocketOptions &options) {
    if (options.rank == 3)
      options.rank = 1;
    return true;
  });
  expectAll(results, "two processes say that they are rank 1");
}

TEST(Rendezvous, AnotherVersionIsRefused) {
  wire::Fd other;
  auto results = join(
      3, [](SocketOptions &options) { return options.rank != 1; },
      [&](uint16_t port) {
        other = connectAs(port);
        wire::Greeting greeting;
        greeting.protocol = wire::version + 1;
        greeting.rank = 1;
        say(other,
            {reinterpret_cast<const char *>(&greeting), sizeof greeting});
      });
  expectAll(results, "rank 1 has version 2, rank 0 has 1", 1);
}

TEST(Rendezvous, RanksThatDoNotComeAreNamed) {
  auto results = join(4, [](SocketOptions &options) {
    if (options.rank == 0)
      options.timeout = 300ms;
    return options.rank < 2;
  });
  EXPECT_FALSE(results[0].ok());
  EXPECT_FALSE(results[1].ok());
  for (int rank : {0, 1}) {
    const std::string &message =
        results[static_cast<size_t>(rank)].status().message();
    EXPECT_NE(message.find("rank 0 waited 0.3 s at 127.0.0.1:"),
              std::string::npos)
        << message;
    EXPECT_NE(message.find("for ranks to join: 2, 3 of 4"), std::string::npos)
        << message;
  }
}

TEST(Rendezvous, ARankThatEndsMeanwhileIsNamed) {
  wire::Fd other;
  std::thread later;
  auto results = join(
      3, [](SocketOptions &options) { return options.rank != 1; },
      [&](uint16_t port) {
        other = connectAs(port);
        wire::Greeting greeting;
        greeting.size = 3;
        greeting.rank = 1;
        sockaddr_in address = loopback(1);
        greeting.listens = wire::Endpoint::from(
            reinterpret_cast<sockaddr *>(&address), sizeof address);
        say(other,
            {reinterpret_cast<const char *>(&greeting), sizeof greeting});
        later = std::thread([&other] {
          std::this_thread::sleep_for(200ms);
          other.close();
        });
      });
  later.join();
  // Rank 0 finds that it is gone, or rank 2 that it cannot be reached.
  expectAll(results, "rank 1", 1);
}

TEST(Rendezvous, NobodyAtTheAddress) {
  Listener chosen = listenSomewhere();
  uint16_t port = chosen.port;
  chosen.fd.close();
  SocketOptions options{1, 2, "127.0.0.1", port};
  options.timeout = 300ms;
  auto result = joinSocketGroup(options);
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.status().message().find("rank 1 waited 0."),
            std::string::npos)
      << result.status().message();
  EXPECT_NE(result.status().message().find(
                "for rank 0 at 127.0.0.1:" + std::to_string(port) +
                ": Connection refused"),
            std::string::npos)
      << result.status().message();
}

TEST(Rendezvous, SomethingElseAtTheAddress) {
  Listener other = listenSomewhere();
  for (bool answers : {true, false}) {
    SocketOptions options{1, 2, "127.0.0.1", other.port};
    options.timeout = 5s;
    std::thread server([&] {
      wire::Fd guest(accept(other.fd.get(), nullptr, nullptr));
      if (answers)
        say(guest, std::string(1000, 'x'));
      char buffer[100];
      (void)recv(guest.get(), buffer, sizeof buffer, 0);
    });
    auto result = joinSocketGroup(options);
    server.join();
    ASSERT_FALSE(result.ok());
    EXPECT_NE(
        result.status().message().find(answers ? "does not speak the language"
                                               : "ended during the rendezvous"),
        std::string::npos)
        << result.status().message();
  }
}

TEST(Rendezvous, ThePortIsTaken) {
  Listener other = listenSomewhere();
  SocketOptions options{0, 2, "127.0.0.1", other.port};
  auto result = joinSocketGroup(options);
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.status().message().find(
                "rank 0 cannot listen at 127.0.0.1:" +
                std::to_string(other.port) + ": Address already in use"),
            std::string::npos)
      << result.status().message();
}

TEST(Rendezvous, WrongArguments) {
  for (auto [rank, size] : {std::pair{-1, 2}, {2, 2}, {0, 0}, {0, 2000}}) {
    SocketOptions options{rank, size, "127.0.0.1", 1};
    auto result = joinSocketGroup(options);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.status().code(), StatusCode::Invalid);
  }
  SocketOptions options{0, 2, "no such host.invalid", 1};
  auto result = joinSocketGroup(options);
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.status().message().find("there is no address"),
            std::string::npos);
}

} // namespace
