//===- FailureTest.cpp - how collectives end that do not succeed ----------===//
//
// Part of mla. Nothing hangs, and every rank says whose fault it is.
//
//===----------------------------------------------------------------------===//
#include "Suite.h"
#include <csignal>
#include <sys/time.h>

namespace mla::testing {
namespace {

bool contains(const std::string &text, const std::string &part) {
  return text.find(part) != std::string::npos;
}

/// All ranks but `except` have an error, within `seconds`, in which each of
/// `parts` stands.
void expectErrors(const std::vector<Outcome> &outcomes, int except,
                  double seconds, const std::vector<std::string> &parts) {
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    if (static_cast<int>(rank) == except)
      continue;
    const Outcome &outcome = outcomes[rank];
    EXPECT_FALSE(outcome.died) << "rank " << rank;
    EXPECT_FALSE(outcome.status.ok()) << "rank " << rank;
    EXPECT_LT(outcome.seconds, seconds) << "rank " << rank;
    for (const std::string &part : parts)
      EXPECT_TRUE(contains(outcome.status.message(), part))
          << "rank " << rank << ": " << outcome.status.message()
          << "\nlacks: " << part;
  }
}

using Failures = Ranks;

Status reduce(Member &member, int64_t count, const std::string &what) {
  std::vector<float> x(static_cast<size_t>(count), 1.0f), y(x.size());
  return member.allReduce(x.data(), y.data(), count, what);
}

TEST_P(Failures, ALateRankIsWaitedFor) {
  runWell(atMost(3), [](Member &member) -> Status {
    for (int late = 0; late < member.size(); ++late) {
      if (member.rank() == late)
        sleepFor(150);
      MLA_RETURN_IF_ERROR(reduce(member, 5, "small"));
      if (member.rank() == late)
        sleepFor(50);
      MLA_RETURN_IF_ERROR(reduce(member, 300'000, "large"));
    }
    return {};
  });
}

TEST_P(Failures, ARankThatDoesNotComeIsNamed) {
  int ranks = atMost(4), absent = std::min(2, ranks - 1);
  auto outcomes = run(ranks, [absent](Member &member) -> Status {
    member.setTimeout(std::chrono::milliseconds(300));
    MLA_RETURN_IF_ERROR(member.barrier("begin"));
    if (member.rank() == absent) {
      sleepFor(1000);
      // The others have given up: that is what it finds, at once.
      member.setTimeout(std::chrono::seconds(60));
    }
    return reduce(member, 7, "layers.3.o_proj, step 12");
  });
  if (!backend().has(Feature::MissingNamed))
    expectErrors(outcomes, -1, 5, {"waited", "for other ranks"});
  else
    expectErrors(outcomes, -1, 5,
                 {"waited 0.3 s for rank " + std::to_string(absent),
                  "all-reduce layers.3.o_proj, step 12"});
}

TEST_P(Failures, SeveralThatDoNotComeAreNamed) {
  MLA_NEEDS(MissingNamed);
  auto outcomes = run(4, [](Member &member) -> Status {
    if (member.rank() == 2 || member.rank() == 3)
      sleepFor(600);
    else
      member.setTimeout(std::chrono::milliseconds(250));
    return reduce(member, 200'000, "x");
  });
  if (backend().has(Feature::AllMissingNamed))
    expectErrors(outcomes, -1, 5, {"for ranks 2 and 3 in all-reduce x"});
  else
    expectErrors(outcomes, -1, 5, {"s for rank ", " in all-reduce x"});
}

TEST_P(Failures, ARankThatLeavesIsNamed) {
  MLA_NEEDS(Leaving);
  for (int64_t count : {3, 500'000}) {
    auto outcomes = run(3, [count](Member &member) -> Status {
      MLA_RETURN_IF_ERROR(reduce(member, count, "first"));
      return member.rank() == 1 ? Status() : reduce(member, count, "second");
    });
    EXPECT_TRUE(outcomes[1].status.ok()) << outcomes[1].status.message();
    expectErrors(outcomes, 1, 5,
                 {"rank 1 left the group", "all-reduce second"});
  }
}

TEST_P(Failures, ARankThatGivesUpTellsWhy) {
  for (int64_t count : {3, 500'000}) {
    auto outcomes = run(atMost(4), [count](Member &member) -> Status {
      MLA_RETURN_IF_ERROR(reduce(member, count, "first"));
      if (member.rank() == 1) {
        sleepFor(100);
        member.abort(numericError("NaN in layers.7.mlp"));
        return reduce(member, count, "second");
      }
      if (member.rank() == 2)
        sleepFor(400); // It learns of it in its next call.
      return reduce(member, count, "second");
    });
    expectErrors(outcomes, -1, 5, {"rank 1 gave up: NaN in layers.7.mlp"});
    for (const Outcome &outcome : outcomes)
      EXPECT_EQ(outcome.status.code(), StatusCode::Numeric);
  }
}

TEST_P(Failures, AnErrorStays) {
  auto outcomes = run(2, [](Member &member) -> Status {
    if (member.rank() == 1)
      member.abort(exhausted("first"));
    Status first = reduce(member, 3, "x");
    member.abort(exhausted("second"));
    Status second = member.barrier("y");
    return first.ok() || first.message() != second.message()
               ? internalError("first \"" + first.message() + "\", then \"" +
                               second.message() + "\"")
               : second;
  });
  expectErrors(outcomes, -1, 5, {"rank 1 gave up: first"});
}

TEST_P(Failures, CallsThatDifferAreNamed) {
  MLA_NEEDS(DifferencesFound);
  // In size; both where memory is copied and where it is read in place.
  for (int64_t count : {3, 500'000}) {
    auto outcomes = run(3, [count](Member &member) {
      return reduce(member, count + (member.rank() == 2 ? 1 : 0), "x");
    });
    expectErrors(outcomes, -1, 5,
                 {"different calls", "rank 2", "all-reduce x", "bytes"});
  }
  // In what they are for.
  auto outcomes = run(3, [](Member &member) {
    return reduce(member, 3, member.rank() == 1 ? "a" : "b");
  });
  expectErrors(outcomes, -1, 5,
               {"different calls", "all-reduce a", "all-reduce b", "rank 1"});
  // In kind.
  outcomes = run(2, [](Member &member) -> Status {
    if (member.rank() == 1)
      return reduce(member, 8, "x");
    float x[8] = {}, y[16];
    return member.allGather(x, y, 1, 8, "x");
  });
  expectErrors(outcomes, -1, 5, {"all-gather x", "all-reduce x"});
}

TEST_P(Failures, WrongArgumentsEndTheGroup) {
  MLA_NEEDS(Bytes);
  auto outcomes = run(2, [](Member &member) -> Status {
    collectives::Collectives *host = member.onHost();
    std::byte bytes[4] = {};
    return member.rank() == 1 ? host->broadcast(bytes, 2, "x")
                              : host->broadcast(bytes, 1, "x");
  });
  expectErrors(outcomes, -1, 5, {"rank 1 gave up: there is no rank 2"});
}

/// Ends this process in some milliseconds, wherever it is then.
void killAfter(int milliseconds) {
  std::signal(SIGALRM, [](int) { kill(getpid(), SIGKILL); });
  itimerval timer{};
  timer.it_value.tv_usec = milliseconds * 1000;
  setitimer(ITIMER_REAL, &timer, nullptr);
}

TEST_P(Failures, AProcessThatIsKilledIsNamed) {
  if (!backend().hasProcesses())
    GTEST_SKIP() << "ranks are no processes";
  // In the middle of small and of large messages, and between calls.
  for (int64_t count : {100, 2'000'000}) {
    auto outcomes = run(atMost(4), [count](Member &member) -> Status {
      MLA_RETURN_IF_ERROR(member.barrier("begin"));
      if (member.rank() == 1)
        killAfter(150);
      while (true)
        MLA_RETURN_IF_ERROR(reduce(member, count, "layers.0.mlp"));
    });
    EXPECT_TRUE(outcomes[1].died);
    expectErrors(outcomes, 1, backend().secondsToNotice(),
                 {"rank 1 ended", backend().has(Feature::CallsNamed)
                                      ? "all-reduce layers.0.mlp"
                                      : "waited for it in"});
  }
  int last = atMost(3) - 1;
  auto outcomes = run(last + 1, [last](Member &member) -> Status {
    MLA_RETURN_IF_ERROR(member.barrier("begin"));
    if (member.rank() == last)
      killAfter(1);
    // Rank 0 waits for it, rank 1 is busy with something else.
    if (member.rank() != 0)
      sleepFor(300);
    return member.barrier("end");
  });
  EXPECT_TRUE(outcomes[static_cast<size_t>(last)].died);
  expectErrors(outcomes, last, 5,
               {"rank " + std::to_string(last) + " ended", "barrier end"});
}

TEST_P(Failures, WhoEndsIsSeenWithoutACall) {
  MLA_NEEDS(Bytes);
  bool killed = backend().hasProcesses();
  auto outcomes = run(3, [killed](Member &member) -> Status {
    collectives::Collectives *host = member.onHost();
    MLA_RETURN_IF_ERROR(member.barrier("begin"));
    if (member.rank() == 1) // What it sends now is for later.
      return reduce(member, 1000, "ahead");
    if (member.rank() == 2) {
      sleepFor(200);
      if (killed)
        raise(SIGKILL);
      member.abort(numericError("NaN"));
      return host->look("kernels");
    }
    for (int i = 0; i < 100; ++i) {
      MLA_RETURN_IF_ERROR(host->look("kernels"));
      sleepFor(50);
    }
    return {};
  });
  expectErrors(outcomes, 2, 4, {"rank 2"});
}

TEST_P(Failures, WhoSeesAnEndTellsTheOthersWhose) {
  MLA_NEEDS(Bytes);
  auto outcomes = run(3, [](Member &member) -> Status {
    MLA_RETURN_IF_ERROR(member.barrier("begin"));
    if (member.rank() == 1) {
      member.abort(numericError("NaN"));
      return member.barrier("end");
    }
    // Rank 2 looks when both have ended.
    sleepFor(member.rank() == 0 ? 100 : 600);
    return member.onHost()->look("kernels");
  });
  expectErrors(outcomes, -1, 4, {"rank 1 gave up: NaN"});
}

TEST_P(Failures, LookingTakesNothingAway) {
  MLA_NEEDS(Bytes);
  runWell(3, [](Member &member) -> Status {
    collectives::Collectives *host = member.onHost();
    for (int64_t count : {3, 300'000}) {
      if (member.rank() == 0)
        for (int i = 0; i < 20; ++i) {
          MLA_RETURN_IF_ERROR(host->look("kernels"));
          sleepFor(5);
        }
      MLA_RETURN_IF_ERROR(reduce(member, count, "x"));
      MLA_RETURN_IF_ERROR(host->look("kernels"));
    }
    return member.barrier("the end");
  });
}

} // namespace

INSTANTIATE_TEST_SUITE_P(All, Failures, ::testing::ValuesIn(backends()),
                         [](const auto &info) { return info.param->name(); });

} // namespace mla::testing
