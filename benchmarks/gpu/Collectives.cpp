//===- Collectives.cpp - all-reduces between GPUs -------------------------===//
//
// Part of mla. Times what ranks on GPUs do between two parts of a layer: the sum over
// the ranks with residual and norm in one kernel, the same in separate ones, NCCL, and
// a kernel that exchanges nothing and moves the same bytes; and sums alone by size.
// Each is a graph of several, replayed; a figure is the median over replays of the
// slowest rank, divided by how many the graph has. A rank is a thread; there may be
// more of them than GPUs, which then share them.
//
//   gpu_collectives [--ranks 2,8] [--path any|host] [--repeats 15] [--json FILE]
//
//===----------------------------------------------------------------------===//
#include "runtime/collectives/host/Threads.h"
#include "runtime/collectives/nccl/Group.h"
#include "unittests/Runtime/Collectives/GpuSeat.h"
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

using namespace mla;
using namespace mla::testing;
using p2p::Kernel;

namespace {

constexpr int64_t width = 7168;
constexpr int64_t rowCounts[] = {1, 4, 8, 32};
/// Of bf16: rows of 7168 for 1, 4, 8 and 32 tokens, then what prompts have.
constexpr int64_t sizes[] = {14336,   57344,   114688,  458752,
                             1 << 20, 4 << 20, 16 << 20};
/// Beyond, one-shot moves too much to be worth a look.
constexpr int64_t mostOneShot = 4 << 20;

/// One thing that is timed.
struct Case {
  std::string name;
  int64_t rows = 0, bytes = 0; ///< rows of `width`, or bytes of bf16
  int inGraph = 20;
};

std::vector<Case> casesOf(bool nccl) {
  std::vector<Case> all;
  for (int64_t rows : rowCounts) {
    for (const char *name :
         {"fused", "one_shot_residual", "one_shot_pull_residual",
          "two_shot_pull_residual", "one_shot_residual+norm",
          "one_shot+add+norm", "two_shot_residual", "two_shot_residual+norm",
          "copy", "add+norm"})
      all.push_back({name, rows, rows * width * 2});
    if (nccl)
      for (const char *name : {"nccl", "nccl+add+norm"})
        all.push_back({name, rows, rows * width * 2});
  }
  for (int64_t bytes : sizes) {
    int inGraph = bytes > 1 << 20 ? 5 : 20;
    if (bytes <= mostOneShot)
      all.push_back({"one_shot", 0, bytes, inGraph});
    all.push_back({"two_shot", 0, bytes, inGraph});
    if (nccl)
      all.push_back({"nccl", 0, bytes, inGraph});
  }
  return all;
}

class Rank {
public:
  Rank(collectives::Transport &transport, int gpus, p2p::Path path, int repeats)
      : transport(transport), ranks(transport), gpus(gpus), path(path),
        repeats(repeats) {}

  /// Seconds of each case, of this rank.
  Result<std::vector<double>> run() {
    transport.setTimeout(std::chrono::seconds(60));
    auto seconds = measureAll();
    if (!seconds.ok())
      transport.abort(seconds.status());
    return seconds;
  }

  std::string meeting, ncclVersion, whyNoNccl;
  std::vector<Case> cases;

private:
  Result<std::vector<double>> measureAll() {
    MLA_ASSIGN_OR_RETURN(seat, Seat::take(transport.rank() % gpus));
    constexpr int64_t most = 32 * width;
    for (Values *values : {&residual, &sums, &normed}) {
      MLA_ASSIGN_OR_RETURN(*values, seat->values(most));
    }
    MLA_ASSIGN_OR_RETURN(weight, seat->values(width / 2));
    MLA_ASSIGN_OR_RETURN(x, seat->values(sizes[std::size(sizes) - 1] / 2));
    for (const Values &values : {residual, weight, x})
      MLA_RETURN_IF_ERROR(seat->check(
          seat->driver->memsetD8Async(values.device, 0,
                                      static_cast<size_t>(values.count) * 4,
                                      seat->stream),
          "cuMemsetD8Async"));
    MLA_ASSIGN_OR_RETURN(peers,
                         p2p::Peers::connect(seat->place(), p2p::exchangeBytes,
                                             path, ranks));
    meeting = peers->path();
    // All ranks decide alike, or NCCL would wait.
    if (ranks.size() > gpus) {
      whyNoNccl = "needs a GPU for each rank";
    } else {
      auto loaded = nccl::Library::load();
      uint8_t mine = loaded.ok();
      MLA_ASSIGN_OR_RETURN(std::vector<uint8_t> all,
                           ranks.gatherEach(mine, "whether there is NCCL"));
      if (std::count(all.begin(), all.end(), 1) != ranks.size()) {
        whyNoNccl = loaded.ok() ? "is missing on a rank"
                                : loaded.status().message();
      } else {
        std::shared_ptr<const nccl::Library> library = *std::move(loaded);
        ncclVersion = library->version();
        MLA_ASSIGN_OR_RETURN(group,
                             nccl::Group::create(library, seat->place(), ranks,
                                                 std::chrono::seconds(60)));
      }
    }

    cases = casesOf(group != nullptr);
    std::vector<double> seconds;
    for (const Case &c : cases) {
      MLA_ASSIGN_OR_RETURN(double one, measure(c));
      seconds.push_back(one);
    }
    MLA_RETURN_IF_ERROR(ranks.barrier("the end"));
    group.reset();
    peers.reset();
    MLA_RETURN_IF_ERROR(ranks.barrier("all is closed"));
    seat->giveBack();
    return seconds;
  }

  /// A launch of ours. It may begin early unless ranks share a GPU, as in plans.
  Status launch(Kernel kernel, std::initializer_list<Values> buffers,
                int64_t rows) {
    bool early = !first && (!peers->sharesDevice() || !exchanged);
    first = false;
    exchanged = p2p::infoOf(kernel).exchanges;
    return seat->launch(kernel, peers.get(), buffers, rows, 0, early);
  }
  Status ncclSum(int64_t values) {
    first = true; // Its kernels do not say when the next may begin.
    return group->allReduce(x.device, x.device, values, nccl::BFloat16);
  }
  Status addAndNorm(int64_t rows) {
    MLA_RETURN_IF_ERROR(launch(Kernel::Add, {residual, x, sums}, rows));
    return launch(Kernel::RmsNorm, {sums, weight, normed}, rows);
  }

  Status enqueue(const Case &c) {
    int64_t rows = c.rows, values = c.bytes / 2;
    if (c.name == "nccl")
      return ncclSum(values);
    if (rows == 0) // In place: the largest is as large as the seat allows.
      return launch(c.name == "one_shot" ? Kernel::OneShotBf16
                                         : Kernel::TwoShotBf16,
                    {x, x}, values);
    if (c.name == "copy")
      return launch(Kernel::Copy, {x, sums}, rows);
    if (c.name == "add+norm")
      return addAndNorm(rows);
    if (c.name == "fused")
      return launch(Kernel::ReduceNorm, {x, residual, sums, weight, normed},
                    rows);
    if (c.name == "nccl+add+norm") {
      MLA_RETURN_IF_ERROR(ncclSum(values));
      return addAndNorm(rows);
    }
    if (c.name == "one_shot+add+norm") {
      MLA_RETURN_IF_ERROR(launch(Kernel::OneShotBf16, {x, sums}, values));
      return addAndNorm(rows);
    }
    bool once = c.name.starts_with("one_shot");
    bool pull = c.name.find("_pull") != std::string::npos;
    Kernel kernel = once ? (pull ? Kernel::OneShotPullRows : Kernel::OneShotRows)
                         : (pull ? Kernel::TwoShotPullRows : Kernel::TwoShotRows);
    MLA_RETURN_IF_ERROR(launch(kernel, {x, residual, sums}, rows));
    if (c.name.ends_with("+norm"))
      return launch(Kernel::RmsNorm, {sums, weight, normed}, rows);
    return {};
  }

  Status finish(const Case &c) {
    Status status = p2p::waitForStream(
        seat->place(), ranks,
        [&] {
          peers->abort();
          if (group)
            group->abort(ioError("another rank has ended"));
        },
        std::chrono::seconds(30));
    return status.ok() ? peers->check([&](uint32_t) { return c.name; })
                       : status;
  }

  Result<double> measure(const Case &c) {
    const hal::cuda::Driver &driver = *seat->driver;
    first = true;
    exchanged = false;
    MLA_ASSIGN_OR_RETURN(hal::cuda::GraphExec graph,
                         seat->record([&]() -> Status {
                           for (int i = 0; i < c.inGraph; ++i)
                             MLA_RETURN_IF_ERROR(enqueue(c));
                           return {};
                         }));
    std::vector<hal::cuda::Event> events(static_cast<size_t>(repeats) + 1);
    for (hal::cuda::Event &event : events)
      MLA_RETURN_IF_ERROR(
          seat->check(driver.eventCreate(&event, 0), "cuEventCreate"));
    // Nothing is made or freed while a kernel waits for a rank.
    MLA_RETURN_IF_ERROR(ranks.barrier("all have recorded"));
    MLA_RETURN_IF_ERROR(seat->replay(graph));
    MLA_RETURN_IF_ERROR(finish(c));
    MLA_RETURN_IF_ERROR(ranks.barrier("all are warm"));
    MLA_RETURN_IF_ERROR(seat->replay(graph));
    for (size_t i = 0; i < events.size(); ++i) {
      if (i > 0)
        MLA_RETURN_IF_ERROR(seat->replay(graph));
      MLA_RETURN_IF_ERROR(seat->check(
          driver.eventRecord(events[i], seat->stream), "cuEventRecord"));
    }
    MLA_RETURN_IF_ERROR(finish(c));
    std::vector<double> times;
    for (size_t i = 0; i + 1 < events.size(); ++i) {
      float milliseconds = 0;
      MLA_RETURN_IF_ERROR(seat->check(
          driver.eventElapsedTime(&milliseconds, events[i], events[i + 1]),
          "cuEventElapsedTime"));
      times.push_back(double(milliseconds) * 1e-3 / c.inGraph);
    }
    MLA_RETURN_IF_ERROR(ranks.barrier("all have ended"));
    for (hal::cuda::Event event : events)
      driver.eventDestroy(event);
    seat->destroy(graph);
    auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
    std::nth_element(times.begin(), middle, times.end());
    return *middle;
  }

  collectives::Transport &transport;
  collectives::Collectives ranks;
  const int gpus;
  const p2p::Path path;
  const int repeats;
  Seat *seat = nullptr;
  std::unique_ptr<p2p::Peers> peers;
  std::unique_ptr<nccl::Group> group;
  Values x, residual, sums, weight, normed;
  bool first = true, exchanged = false;
};

Result<nlohmann::ordered_json> measure(int ranks, int gpus, p2p::Path path,
                                       int repeats) {
  MLA_ASSIGN_OR_RETURN(auto transports, collectives::createThreadGroup(ranks));
  std::vector<std::unique_ptr<Rank>> all;
  for (auto &transport : transports)
    all.push_back(std::make_unique<Rank>(*transport, gpus, path, repeats));
  std::vector<Result<std::vector<double>>> results(
      all.size(), Result<std::vector<double>>(std::vector<double>()));
  std::vector<std::thread> threads;
  for (size_t r = 0; r < all.size(); ++r)
    threads.emplace_back([&, r] { results[r] = all[r]->run(); });
  for (std::thread &thread : threads)
    thread.join();
  for (const auto &result : results)
    MLA_RETURN_IF_ERROR(result.status());
  const Rank &rank = *all[0];
  nlohmann::ordered_json output;
  output["ranks"] = ranks;
  output["gpus"] = std::min(gpus, ranks);
  output["meet_by"] = rank.meeting;
  output["nccl"] = rank.ncclVersion.empty() ? "none: " + rank.whyNoNccl
                                            : rank.ncclVersion;
  std::printf("%d ranks on %d GPUs, %s; NCCL %s\n", ranks,
              std::min(gpus, ranks), rank.meeting.c_str(),
              output["nccl"].get<std::string>().c_str());
  for (size_t i = 0; i < rank.cases.size(); ++i) {
    const Case &c = rank.cases[i];
    double slowest = 0;
    for (const auto &result : results)
      slowest = std::max(slowest, (*result)[i]);
    nlohmann::ordered_json entry{{"case", c.name}};
    if (c.rows)
      entry["rows"] = c.rows;
    entry["bytes"] = c.bytes;
    entry["in_graph"] = c.inGraph;
    entry["seconds"] = slowest;
    output["times"].push_back(entry);
    std::string what = c.rows ? std::to_string(c.rows) + " x 7168"
                              : std::to_string(c.bytes) + " bytes";
    std::printf("  %-24s %-16s %9.2f us\n", c.name.c_str(), what.c_str(),
                slowest * 1e6);
  }
  return output;
}

} // namespace

int main(int argc, char **argv) {
  std::vector<int> ranks;
  std::string path = "any", file;
  int repeats = 15;
  CLI::App app("Times all-reduces between GPUs.");
  app.add_option("--ranks", ranks, "Numbers of ranks (default: 2, 4, 8)")
      ->delimiter(',')
      ->check(CLI::Range(2, 8));
  app.add_option("--path", path, "Where ranks meet")
      ->check(CLI::IsMember({"any", "host"}));
  app.add_option("--repeats", repeats, "Replays a figure is the median of")
      ->check(CLI::Range(1, 10000));
  app.add_option("--json", file, "Where the figures go, too");
  CLI11_PARSE(app, argc, argv);
  prepareEnvironment();
  std::string why;
  int gpus = countGpus(why);
  if (gpus == 0) {
    std::cerr << "error: there is no GPU: " << why << "\n";
    return 1;
  }
  if (ranks.empty())
    ranks = {2, 4, 8};
  nlohmann::ordered_json output;
  for (int n : ranks) {
    auto group = measure(
        n, gpus, path == "host" ? p2p::Path::Host : p2p::Path::Any, repeats);
    if (!group.ok()) {
      std::cerr << "error: " << group.status().message() << "\n";
      return 1;
    }
    output["groups"].push_back(*group);
  }
  if (!file.empty() && !(std::ofstream(file) << output.dump(1) << "\n")) {
    std::cerr << "error: cannot write " << file << "\n";
    return 1;
  }
  return 0;
}
