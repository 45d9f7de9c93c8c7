//===- GpuBackends.h - ranks on GPUs ----------------------------*- C++ -*-===//
//
// Part of mla. Ranks share GPUs where there are more of them: rank r is on GPU r
// modulo their number.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_UNITTESTS_RUNTIME_COLLECTIVES_GPUBACKENDS_H
#define MLA_UNITTESTS_RUNTIME_COLLECTIVES_GPUBACKENDS_H

#include "GpuSeat.h"
#include "Runs.h"

namespace mla::testing {

/// What every wait of a test's ranks has, unless it says something else.
constexpr std::chrono::milliseconds gpuPatience{10'000};

/// Found out by the program before anything else.
struct GpuFacts {
  int gpus = 0;
  std::string whyNone;
  bool forked = false; ///< Ranks are processes: this one may not use CUDA itself.
};
inline GpuFacts gpuFacts;

/// A rank whose kernels write to the other ranks' memory.
class P2pMember final : public Member {
public:
  P2pMember(collectives::Transport &transport, Seat &seat, p2p::Path path)
      : seat(seat), transport(transport), ranks(transport), path(path) {}
  /// By all ranks at once.
  Status connect();

  int rank() const override { return ranks.rank(); }
  int size() const override { return ranks.size(); }
  Status allReduce(const float *x, float *y, int64_t count,
                   const std::string &what) override;
  Status allGather(const float *x, float *y, int64_t rows, int64_t columns,
                   const std::string &what) override;
  Status reduceScatter(const float *, float *, int64_t, int64_t,
                       const std::string &) override;
  Status allToAll(const float *, float *, int64_t, int64_t,
                  const std::string &) override;
  Status barrier(const std::string &what) override {
    return ranks.barrier(what);
  }
  /// Of kernels too, from the next one on.
  void setTimeout(std::chrono::milliseconds timeout) override;
  void abort(const Status &why) override { transport.abort(why); }
  void setOneShotBytes(int64_t bytes) override { oneShot = bytes; }

  /// Whether the other ranks have the same, to the bit.
  Status sameOnAll(const Values &values, const std::string &what);
  /// Waits for what is in the stream, whose kernels are part of `what`, or have names
  /// by number. An error ends the group.
  Status wait(const std::string &what) {
    return wait([&](uint32_t) { return what; });
  }
  Status wait(const p2p::LaunchName &name) { return finish(peers->wait(name)); }
  /// Nothing runs in the stream any more, also after an error.
  void settle();

  Seat &seat;
  std::unique_ptr<p2p::Peers> peers;
  collectives::Transport &transport;
  collectives::Collectives ranks;

private:
  Status finish(Status status);

  const p2p::Path path;
  int64_t oneShot = collectives::oneShotBytes;
  Values from, to, word;
};

/// Those whose members are P2pMember.
std::vector<Backend *> p2pBackends();

} // namespace mla::testing

#endif // MLA_UNITTESTS_RUNTIME_COLLECTIVES_GPUBACKENDS_H
