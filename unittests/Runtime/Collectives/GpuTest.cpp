//===- GpuTest.cpp - kernels that exchange rows, on GPUs ------------------===//
//
// Part of mla. Beside the suite: what these kernels do besides sums of f32, in graphs
// and without a wait between them.
//
//===----------------------------------------------------------------------===//
#include "GpuBackends.h"
#include "Suite.h"
#include <bit>

namespace mla::testing {
namespace {

using p2p::Kernel;

constexpr int64_t width = 7168;

class GpuRows : public Ranks {
protected:
  using GpuBody = std::function<Status(P2pMember &)>;
  void runWell(int ranks, const GpuBody &body) const {
    Ranks::runWell(ranks, [&](Member &member) {
      return body(static_cast<P2pMember &>(member));
    });
  }
};

/// As kernels round: to the nearest, ties to even.
float bf16(float value) {
  auto bits = std::bit_cast<uint32_t>(value);
  bits += 0x7FFF + ((bits >> 16) & 1);
  return std::bit_cast<float>(bits & 0xFFFF0000u);
}

/// The sum of the ranks' values, exchanged in bf16.
float roundedSum(int ranks, int64_t place, int round) {
  float sum = bf16(valueOf(0, place, round));
  for (int rank = 1; rank < ranks; ++rank)
    sum += bf16(valueOf(rank, place, round));
  return sum;
}

/// Not a rank's: the same on all.
constexpr int residualOf = 100, weightOf = 101;

/// Weights near one, in bf16, as kernels read them.
float weightAt(int64_t column) {
  return bf16(1 + valueOf(weightOf, column) * 0x1p-9f);
}
Result<Values> weights(P2pMember &member) {
  MLA_ASSIGN_OR_RETURN(Values values, member.seat.values(width / 2));
  for (int64_t i = 0; i < values.count; ++i) {
    auto low = std::bit_cast<uint32_t>(weightAt(2 * i)) >> 16;
    auto high = std::bit_cast<uint32_t>(weightAt(2 * i + 1)) & 0xFFFF0000u;
    values[i] = std::bit_cast<float>(low | high);
  }
  MLA_RETURN_IF_ERROR(member.seat.up(values));
  return values;
}

Status differs(const std::string &what, int64_t i, float expected, float found) {
  return internalError(what + ": at " + std::to_string(i) + " expected " +
                       std::to_string(expected) + ", found " +
                       std::to_string(found));
}

template <typename Expected>
Status expectAll(const std::string &what, const Values &values, int64_t count,
                 const Expected &expected) {
  for (int64_t i = 0; i < count; ++i)
    if (!(values[i] == expected(i)))
      return differs(what, i, expected(i), values[i]);
  for (int64_t i = count; i < values.count; ++i)
    if (!std::isnan(values[i]))
      return internalError(what + ": written beyond the end");
  return {};
}

/// normed against double precision, from the sums that were found.
Status expectNormed(const std::string &what, const Values &sums,
                    const Values &normed, int64_t rows) {
  for (int64_t row = 0; row < rows; ++row) {
    double squares = 0;
    for (int64_t c = 0; c < width; ++c)
      squares += double(sums[row * width + c]) * double(sums[row * width + c]);
    double factor = 1 / std::sqrt(squares / double(width) + 1e-5);
    for (int64_t c = 0; c < width; ++c) {
      int64_t i = row * width + c;
      double expected = double(sums[i]) * factor * double(weightAt(c));
      if (!(std::abs(double(normed[i]) - expected) <=
            1e-5 * std::abs(expected) + 1e-7))
        return differs(what, i, float(expected), normed[i]);
    }
  }
  return {};
}

constexpr int64_t watched = 16; ///< values behind an output

TEST_P(GpuRows, SaysWhereTheyMeet) {
  bool host = backend().name().ends_with("HostMemory");
  bool certain = gpuFacts.gpus == 1 && !backend().hasProcesses();
  runWell(2, [host, certain](P2pMember &member) -> Status {
    const std::string &path = member.peers->path();
    if (member.rank() == 0)
      std::cout << "by " << path << std::endl;
    bool onHost = path.starts_with("memory of the host");
    // Whether GPUs and processes reach each other is the machine's affair; one GPU
    // reaches itself.
    if (host ? !onHost : onHost && certain)
      return internalError("ranks meet by " + path);
    if (member.peers->sharesDevice() != (gpuFacts.gpus == 1))
      return internalError("two ranks on " + std::to_string(gpuFacts.gpus) +
                           " GPUs");
    return {};
  });
}

TEST_P(GpuRows, SumsWithResidualAndNorm) {
  for (int ranks : some({2, 3, 5, 8}))
    runWell(ranks, [](P2pMember &member) -> Status {
      Seat &seat = member.seat;
      constexpr int64_t most = 32;
      MLA_ASSIGN_OR_RETURN(Values weight, weights(member));
      MLA_ASSIGN_OR_RETURN(Values x, seat.values(most * width));
      MLA_ASSIGN_OR_RETURN(Values residual, seat.values(most * width));
      Values out[6];
      for (Values &y : out) {
        MLA_ASSIGN_OR_RETURN(y, seat.values(most * width + watched));
      }
      for (int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 32}) {
        int64_t count = rows * width;
        int round = static_cast<int>(rows);
        for (int64_t i = 0; i < count; ++i) {
          x[i] = valueOf(member.rank(), i, round);
          residual[i] = valueOf(residualOf, i, round);
        }
        auto [once, twice, sums, normed, oncePulled, twicePulled] = out;
        for (Values *y :
             {&once, &twice, &sums, &normed, &oncePulled, &twicePulled}) {
          y->count = count + watched;
          MLA_RETURN_IF_ERROR(seat.poison(*y));
        }
        MLA_RETURN_IF_ERROR(seat.up(x, count));
        MLA_RETURN_IF_ERROR(seat.up(residual, count));
        // One behind the other, in turns flagged, in bulk and pulled.
        MLA_RETURN_IF_ERROR(seat.launch(Kernel::OneShotPullRows,
                                        member.peers.get(),
                                        {x, residual, oncePulled}, rows));
        MLA_RETURN_IF_ERROR(seat.launch(Kernel::OneShotRows, member.peers.get(),
                                        {x, residual, once}, rows));
        MLA_RETURN_IF_ERROR(seat.launch(Kernel::TwoShotRows, member.peers.get(),
                                        {x, residual, twice}, rows));
        MLA_RETURN_IF_ERROR(seat.launch(Kernel::TwoShotPullRows,
                                        member.peers.get(),
                                        {x, residual, twicePulled}, rows));
        MLA_RETURN_IF_ERROR(
            seat.launch(Kernel::ReduceNorm, member.peers.get(),
                        {x, residual, sums, weight, normed}, rows));
        for (const Values &y :
             {once, twice, sums, normed, oncePulled, twicePulled})
          MLA_RETURN_IF_ERROR(seat.down(y));
        std::string what = std::to_string(rows) + " rows";
        MLA_RETURN_IF_ERROR(member.wait(what));
        std::vector<float> sum(static_cast<size_t>(count));
        for (int64_t i = 0; i < count; ++i)
          sum[static_cast<size_t>(i)] = roundedSum(member.size(), i, round);
        auto summed = [&](int64_t i) {
          return residual[i] + sum[static_cast<size_t>(i)];
        };
        auto rounded = [&](int64_t i) {
          return residual[i] + bf16(sum[static_cast<size_t>(i)]);
        };
        MLA_RETURN_IF_ERROR(expectAll(what + ", one-shot", once, count, summed));
        MLA_RETURN_IF_ERROR(expectAll(what + ", one-shot pulled", oncePulled,
                                      count, summed));
        MLA_RETURN_IF_ERROR(
            expectAll(what + ", two-shot", twice, count, rounded));
        MLA_RETURN_IF_ERROR(expectAll(what + ", two-shot pulled", twicePulled,
                                      count, rounded));
        MLA_RETURN_IF_ERROR(
            expectAll(what + ", sum of fused", sums, count, summed));
        MLA_RETURN_IF_ERROR(
            expectNormed(what + ", norm of fused", sums, normed, rows));
        for (int64_t i = count; i < normed.count; ++i)
          if (!std::isnan(normed[i]))
            return internalError(what + ": norm written beyond the end");
        normed.count = count;
        MLA_RETURN_IF_ERROR(member.sameOnAll(normed, what));
      }
      return {};
    });
}

TEST_P(GpuRows, GathersTwoAtOnce) {
  for (int ranks : some({2, 3, 8}))
    runWell(ranks, [](P2pMember &member) -> Status {
      Seat &seat = member.seat;
      constexpr int64_t most = 200, parts[] = {192, 72};
      Values x[2], y[2];
      for (size_t s = 0; s < 2; ++s) {
        MLA_ASSIGN_OR_RETURN(x[s], seat.values(most * parts[s]));
        MLA_ASSIGN_OR_RETURN(y[s], seat.values(most * parts[s] * 8 + watched));
      }
      for (int64_t rows : {1, 3, 8, 33, 200})
        for (Kernel kernel : {Kernel::GatherTwoFlagged, Kernel::GatherTwoBulk,
                              Kernel::GatherTwoPull}) {
          for (size_t s = 0; s < 2; ++s) {
            for (int64_t i = 0; i < rows * parts[s]; ++i)
              x[s][i] = valueOf(member.rank(), i, static_cast<int>(s));
            y[s].count = rows * parts[s] * 8 + watched;
            MLA_RETURN_IF_ERROR(seat.poison(y[s]));
            MLA_RETURN_IF_ERROR(seat.up(x[s], rows * parts[s]));
          }
          MLA_RETURN_IF_ERROR(seat.launch(kernel, member.peers.get(),
                                          {x[0], y[0], x[1], y[1]}, rows));
          std::string what = std::to_string(rows) + " rows of " +
                             p2p::infoOf(kernel).name;
          for (const Values &values : y)
            MLA_RETURN_IF_ERROR(seat.down(values));
          MLA_RETURN_IF_ERROR(member.wait(what));
          for (size_t s = 0; s < 2; ++s)
            for (int64_t i = 0; i < y[s].count; ++i) {
              int64_t row = i / (8 * parts[s]), column = i % (8 * parts[s]);
              auto r = static_cast<int>(column / parts[s]);
              float found = y[s][i];
              // Columns of ranks that are not there stay as they were.
              if (row == rows || r >= member.size()) {
                if (!std::isnan(found))
                  return internalError(what + ": written at " +
                                       std::to_string(i));
                continue;
              }
              float expected = valueOf(r, row * parts[s] + column % parts[s],
                                       static_cast<int>(s));
              if (found != expected)
                return differs(what, i, expected, found);
            }
        }
      return {};
    });
}

TEST_P(GpuRows, MergesAttention) {
  for (int ranks : some({2, 3, 8}))
    runWell(ranks, [](P2pMember &member) -> Status {
      Seat &seat = member.seat;
      constexpr int64_t most = 40, heads = 8, latent = 512;
      constexpr float none = -std::numeric_limits<float>::infinity();
      int64_t all = member.size() * heads;
      MLA_ASSIGN_OR_RETURN(Values x, seat.values(most * all * latent));
      MLA_ASSIGN_OR_RETURN(Values lse, seat.values(most * all));
      MLA_ASSIGN_OR_RETURN(Values y,
                           seat.values(most * heads * latent + watched));
      // Some ranks have no token of a sequence, some heads nobody's.
      auto lseOf = [&](int rank, int64_t item) {
        return item % 11 == 3 || (item * 3 + rank * 7) % 5 == 0
                   ? none
                   : valueOf(rank, item, 1) * 0.05f;
      };
      auto xOf = [&](int rank, int64_t item, int64_t column) {
        return lseOf(rank, item) == none
                   ? poison
                   : valueOf(rank, item * latent + column, 2) * 0x1p-6f;
      };
      for (int64_t rows : {1, 2, 5, 9, 40})
        for (Kernel kernel :
             {Kernel::MergeFlagged, Kernel::MergeBulk, Kernel::MergePull}) {
          for (int64_t item = 0; item < rows * all; ++item) {
            lse[item] = lseOf(member.rank(), item);
            for (int64_t c = 0; c < latent; ++c)
              x[item * latent + c] = xOf(member.rank(), item, c);
          }
          Values out = y;
          out.count = rows * heads * latent + watched;
          MLA_RETURN_IF_ERROR(seat.poison(out));
          MLA_RETURN_IF_ERROR(seat.up(x, rows * all * latent));
          MLA_RETURN_IF_ERROR(seat.up(lse, rows * all));
          MLA_RETURN_IF_ERROR(
              seat.launch(kernel, member.peers.get(), {x, lse, out}, rows));
          MLA_RETURN_IF_ERROR(seat.down(out));
          std::string what = std::to_string(rows) + " rows of " +
                             p2p::infoOf(kernel).name;
          MLA_RETURN_IF_ERROR(member.wait(what));
          for (int64_t i = 0; i < rows * heads; ++i) {
            int64_t item = i / heads * all + member.rank() * heads + i % heads;
            double largest = none, sum = 0;
            for (int r = 0; r < member.size(); ++r)
              largest = std::max(largest, double(lseOf(r, item)));
            std::vector<double> weight;
            for (int r = 0; r < member.size(); ++r) {
              float of = lseOf(r, item);
              weight.push_back(of == none ? 0 : std::exp(double(of) - largest));
              sum += weight.back();
            }
            for (int64_t c = 0; c < latent; ++c) {
              double expected = 0;
              for (int r = 0; r < member.size(); ++r)
                if (double w = weight[static_cast<size_t>(r)]; w > 0)
                  expected += w * double(bf16(xOf(r, item, c))) / sum;
              float found = out[i * latent + c];
              if (!(std::abs(double(found) - expected) <= 1e-4))
                return differs(what, i * latent + c, float(expected), found);
            }
          }
          for (int64_t i = rows * heads * latent; i < out.count; ++i)
            if (!std::isnan(out[i]))
              return internalError(what + ": written beyond the end");
        }
      return {};
    });
}

// Vectors that do not fit into the exchange memory: a block does several exchanges.
TEST_P(GpuRows, RoundsBeyondTheExchangeMemory) {
  for (int ranks : some({2, 8}))
    runWell(ranks, [](P2pMember &member) -> Status {
      Seat &seat = member.seat;
      constexpr int64_t count = 1'000'003, gathered = 200'001;
      MLA_ASSIGN_OR_RETURN(Values x, seat.values(count));
      Values y[6];
      for (Values &one : y) {
        MLA_ASSIGN_OR_RETURN(one, seat.values(count + watched));
      }
      for (int64_t i = 0; i < count; ++i)
        x[i] = valueOf(member.rank(), i);
      MLA_RETURN_IF_ERROR(seat.up(x));
      constexpr Kernel kernels[] = {Kernel::OneShotF32,     Kernel::TwoShotBf16,
                                    Kernel::OneShotBf16,    Kernel::TwoShotF32,
                                    Kernel::OneShotPullF32, Kernel::TwoShotPullF32};
      for (size_t k = 0; k < std::size(kernels); ++k) {
        MLA_RETURN_IF_ERROR(seat.poison(y[k]));
        MLA_RETURN_IF_ERROR(
            seat.launch(kernels[k], member.peers.get(), {x, y[k]}, count));
        MLA_RETURN_IF_ERROR(seat.down(y[k]));
      }
      MLA_RETURN_IF_ERROR(member.wait("large vectors"));
      int size = member.size();
      auto exact = [&](int64_t i) { return sumOf(size, i); };
      auto rounded = [&](int64_t i) { return roundedSum(size, i, 0); };
      auto twice = [&](int64_t i) { return bf16(roundedSum(size, i, 0)); };
      MLA_RETURN_IF_ERROR(expectAll("one-shot f32", y[0], count, exact));
      MLA_RETURN_IF_ERROR(expectAll("two-shot bf16", y[1], count, twice));
      MLA_RETURN_IF_ERROR(expectAll("one-shot bf16", y[2], count, rounded));
      MLA_RETURN_IF_ERROR(expectAll("two-shot f32", y[3], count, exact));
      MLA_RETURN_IF_ERROR(expectAll("one-shot f32 pulled", y[4], count, exact));
      MLA_RETURN_IF_ERROR(expectAll("two-shot f32 pulled", y[5], count, exact));
      // y[0] to y[1] lie side by side: room for rows of eight.
      Values rows = y[0];
      rows.count = gathered * 8;
      for (Kernel kernel :
           {Kernel::GatherFlagged, Kernel::GatherBulk, Kernel::GatherPull}) {
        MLA_RETURN_IF_ERROR(seat.poison(rows));
        MLA_RETURN_IF_ERROR(
            seat.launch(kernel, member.peers.get(), {x, rows}, gathered));
        MLA_RETURN_IF_ERROR(seat.down(rows));
        MLA_RETURN_IF_ERROR(member.wait("a large gather"));
        for (int64_t i = 0; i < gathered; ++i)
          for (int r = 0; r < size; ++r)
            if (rows[i * 8 + r] != valueOf(r, i))
              return differs(p2p::infoOf(kernel).name, i * 8 + r, valueOf(r, i),
                             rows[i * 8 + r]);
      }
      return {};
    });
}

/// Small whole numbers: sums of them are exact in every format and order.
float wholeOf(int rank, int64_t place, int round) {
  auto bits = static_cast<uint32_t>(place) * 2654435761u ^
              static_cast<uint32_t>(rank * 7919 + round * 104729);
  bits = (bits ^ (bits >> 15)) * 2246822507u;
  return static_cast<float>(static_cast<int>((bits >> 13) % 17) - 8);
}

// One graph again and again, with other data each time. A burst is queued before
// anything is waited for, so ranks run ahead of each other as far as the kernels let
// them; every value of every replay is looked at.
TEST_P(GpuRows, ManyReplaysOfOneGraph) {
  for (int ranks : some({2, 4, 8})) {
    bool turns = backend().hasProcesses() && gpuFacts.gpus < ranks;
    int most = some({8}).empty() ? backend().mostRanks() : 8;
    // 10,000 replays where the ranks are most and the memory is the usual one.
    bool onHost = backend().name().find("HostMemory") != std::string::npos;
    int bursts = turns ? 5 : onHost ? 20 : ranks == most ? 500 : 50;
    runWell(ranks, [bursts](P2pMember &member) -> Status {
      constexpr int burst = 20;
      constexpr int64_t gathered = 1000;
      Seat &seat = member.seat;
      const p2p::Peers *peers = member.peers.get();
      MLA_ASSIGN_OR_RETURN(Values weight, weights(member));
      MLA_ASSIGN_OR_RETURN(Values residual, seat.values(width));
      MLA_ASSIGN_OR_RETURN(Values x, seat.values(width * burst));
      // once, twice, sums, normed, pulled, and what is gathered.
      constexpr int64_t all = 5 * width + 8 * gathered;
      MLA_ASSIGN_OR_RETURN(Values out, seat.values(all * burst));
      // A place in an array's mirror for each replay, the first on the GPU for all.
      auto place = [](const Values &values, int64_t offset, int64_t count,
                      int64_t mirror) {
        return Values{values.device + static_cast<uint64_t>(offset) * 4,
                      values.host + offset + mirror, count};
      };
      Values in = place(x, 0, width, 0);
      Values y[5];
      for (int64_t i = 0; i < 5; ++i)
        y[i] = place(out, i * width, width, 0);
      Values rows = place(out, 5 * width, 8 * gathered, 0);
      for (int64_t i = 0; i < width; ++i)
        residual[i] = wholeOf(residualOf, i, 0);
      MLA_RETURN_IF_ERROR(seat.up(residual));
      MLA_RETURN_IF_ERROR(seat.poison(place(out, 0, all, 0)));
      MLA_RETURN_IF_ERROR(seat.synchronize());
      MLA_ASSIGN_OR_RETURN(
          hal::cuda::GraphExec graph, seat.record([&]() -> Status {
            MLA_RETURN_IF_ERROR(seat.launch(Kernel::OneShotRows, peers,
                                            {in, residual, y[0]}, 1, 0));
            MLA_RETURN_IF_ERROR(seat.launch(Kernel::TwoShotRows, peers,
                                            {in, residual, y[1]}, 1, 1));
            MLA_RETURN_IF_ERROR(
                seat.launch(Kernel::ReduceNorm, peers,
                            {in, residual, y[2], weight, y[3]}, 1, 2));
            MLA_RETURN_IF_ERROR(seat.launch(Kernel::TwoShotPullRows, peers,
                                            {in, residual, y[4]}, 1, 3));
            return seat.launch(Kernel::GatherFlagged, peers, {in, rows},
                               gathered, 4);
          }));
      MLA_RETURN_IF_ERROR(member.barrier("all have recorded"));
      std::vector<float> expected(width);
      for (int first = 0; first < bursts * burst; first += burst) {
        for (int k = 0; k < burst; ++k)
          for (int64_t i = 0; i < width; ++i)
            x[k * width + i] = wholeOf(member.rank(), i, first + k);
        for (int k = 0; k < burst; ++k) {
          MLA_RETURN_IF_ERROR(seat.up(place(x, 0, width, k * width)));
          MLA_RETURN_IF_ERROR(seat.replay(graph));
          MLA_RETURN_IF_ERROR(seat.down(place(out, 0, all, k * all)));
        }
        MLA_RETURN_IF_ERROR(member.wait([](uint32_t launch) {
          return "launch " + std::to_string(launch) + " of a graph";
        }));
        for (int k = 0; k < burst; ++k) {
          int round = first + k;
          std::string what = "replay " + std::to_string(round);
          double squares = 0;
          for (int64_t i = 0; i < width; ++i) {
            float sum = residual[i];
            for (int r = 0; r < member.size(); ++r)
              sum += wholeOf(r, i, round);
            expected[static_cast<size_t>(i)] = sum;
            squares += double(sum) * double(sum);
          }
          auto factor =
              static_cast<float>(1 / std::sqrt(squares / double(width) + 1e-5));
          const float *found = out.host + k * all;
          for (int64_t i = 0; i < width; ++i) {
            float sum = expected[static_cast<size_t>(i)];
            for (int64_t which : {0, 1, 2, 4})
              if (found[which * width + i] != sum)
                return differs(what + ", kernel " + std::to_string(which), i,
                               sum, found[which * width + i]);
            float normed = sum * factor * weightAt(i);
            if (!(std::abs(found[3 * width + i] - normed) <=
                  1e-5f * std::abs(normed)))
              return differs(what + ", norm", i, normed, found[3 * width + i]);
          }
          for (int64_t i = 0; i < gathered; ++i)
            for (int r = 0; r < member.size(); ++r)
              if (float value = found[5 * width + i * 8 + r];
                  value != wholeOf(r, i, round))
                return differs(what + ", gather", i * 8 + r,
                               wholeOf(r, i, round), value);
        }
      }
      MLA_RETURN_IF_ERROR(member.barrier("all have ended"));
      seat.destroy(graph);
      return {};
    });
  }
}

// A rank that is late in a graph is waited for; one that does not come ends the others,
// which say in which launch, and the GPU can be used again.
TEST_P(GpuRows, LateAndMissingInAGraph) {
  if (backend().hasProcesses() && gpuFacts.gpus < 2)
    GTEST_SKIP() << "processes on one GPU take turns of seconds while others wait";
  int ranks = atMost(backend().hasProcesses() ? std::min(gpuFacts.gpus, 4) : 4),
      absent = ranks - 2;
  for (bool comes : {true, false, true}) {
    auto outcomes = run(ranks, [=](Member &any) -> Status {
      auto &member = static_cast<P2pMember &>(any);
      Seat &seat = member.seat;
      MLA_ASSIGN_OR_RETURN(Values x, seat.values(width));
      MLA_ASSIGN_OR_RETURN(Values y, seat.values(width));
      std::fill(x.begin(), x.end(), float(member.rank() + 1));
      MLA_RETURN_IF_ERROR(seat.up(x));
      MLA_RETURN_IF_ERROR(seat.synchronize());
      MLA_ASSIGN_OR_RETURN(
          hal::cuda::GraphExec graph, seat.record([&]() -> Status {
            for (uint32_t launch : {0, 1, 2})
              MLA_RETURN_IF_ERROR(seat.launch(Kernel::OneShotBf16,
                                              member.peers.get(), {x, y}, width,
                                              launch));
            return {};
          }));
      auto replay = [&]() -> Status {
        MLA_RETURN_IF_ERROR(seat.replay(graph));
        MLA_RETURN_IF_ERROR(seat.down(y));
        return member.wait([](uint32_t launch) {
          return "launch " + std::to_string(launch) + " of a graph";
        });
      };
      member.setTimeout(std::chrono::seconds(comes ? 10 : 1));
      MLA_RETURN_IF_ERROR(member.barrier("all have recorded"));
      MLA_RETURN_IF_ERROR(replay());
      if (member.rank() == absent)
        sleepFor(comes ? 500 : 1800);
      if (comes || member.rank() != absent)
        MLA_RETURN_IF_ERROR(replay());
      else
        return member.transport.look("the end");
      float sum = float(member.size() * (member.size() + 1) / 2);
      for (float value : y)
        if (value != sum)
          return internalError("found " + std::to_string(value));
      return member.barrier("the end");
    });
    for (size_t rank = 0; rank < outcomes.size(); ++rank) {
      const Outcome &outcome = outcomes[rank];
      EXPECT_FALSE(outcome.died);
      EXPECT_LT(outcome.seconds, 5);
      std::string message = outcome.status.message();
      EXPECT_EQ(outcome.status.ok(), comes) << message;
      if (comes)
        continue;
      EXPECT_EQ(outcome.status.code(), StatusCode::Io);
      EXPECT_NE(message.find("waited 1.0 s for rank " + std::to_string(absent) +
                             " in launch 0 of a graph"),
                std::string::npos)
          << "rank " << rank << ": " << message;
      if (static_cast<int>(rank) != absent) {
        EXPECT_LT(outcome.seconds, 3.5);
      }
    }
  }
}

} // namespace

INSTANTIATE_TEST_SUITE_P(All, GpuRows, ::testing::ValuesIn(p2pBackends()),
                         [](const auto &info) { return info.param->name(); });

} // namespace mla::testing
