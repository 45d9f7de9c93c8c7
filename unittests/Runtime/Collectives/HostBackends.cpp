//===- HostBackends.cpp - collectives in the host's memory ----------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "Runs.h"

namespace mla::testing {
namespace {

using namespace collectives;

class HostMember final : public Member {
public:
  explicit HostMember(Transport &transport)
      : transport(transport), all(transport) {}
  int rank() const override { return transport.rank(); }
  int size() const override { return transport.size(); }
  Status allReduce(const float *x, float *y, int64_t count,
                   const std::string &what) override {
    return all.allReduce(x, y, count, what);
  }
  Status allGather(const float *x, float *y, int64_t rows, int64_t columns,
                   const std::string &what) override {
    return all.allGather(x, y, rows, columns, what);
  }
  Status reduceScatter(const float *x, float *y, int64_t rows, int64_t columns,
                       const std::string &what) override {
    return all.reduceScatter(x, y, rows, columns, what);
  }
  Status allToAll(const float *x, float *y, int64_t rows, int64_t columns,
                  const std::string &what) override {
    return all.allToAll(x, y, rows, columns, what);
  }
  Status barrier(const std::string &what) override { return all.barrier(what); }
  void setTimeout(std::chrono::milliseconds timeout) override {
    transport.setTimeout(timeout);
  }
  void abort(const Status &why) override { transport.abort(why); }
  void setOneShotBytes(int64_t bytes) override { all.setOneShotBytes(bytes); }
  Collectives *onHost() override { return &all; }

private:
  Transport &transport;
  Collectives all;
};

/// With a member over a rank's end of the group.
RankBody onHost(const Body &body) {
  return [body](Transport &transport) {
    HostMember member(transport);
    return timed(body, member);
  };
}

class Threads final : public Backend {
public:
  std::string name() const override { return "Threads"; }
  int replays() const override { return 10'000; }
  std::unique_ptr<Ongoing> start(int ranks, const Body &body) override {
    return startThreads(ranks, onHost(body));
  }
};

class Processes final : public Backend {
public:
  std::string name() const override { return "Processes"; }
  bool hasProcesses() const override { return true; }
  int replays() const override { return 1000; }
  std::unique_ptr<Ongoing> start(int ranks, const Body &body) override {
    return startProcesses(ranks, onHost(body));
  }
};

} // namespace

const std::vector<Backend *> &backends() {
  static Threads threads;
  static Processes processes;
  static const std::vector<Backend *> all = {&threads, &processes};
  return all;
}

} // namespace mla::testing
