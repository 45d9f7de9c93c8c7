//===- Collectives.cpp - all-reduce by the machine's table ----------------===//
//
// Part of mla. A machine's file has times of all-reduces by method, ranks and
// bytes. Between two sizes the logarithm of the time is a line over that of the
// bytes; beyond them, latency plus bytes over the rate of the last two sizes.
//
//===----------------------------------------------------------------------===//
#include "Terms.h"
#include <cmath>

namespace mla::cost {

std::string_view collectiveName(Collective method) {
  return method == Collective::Nccl      ? "nccl"
         : method == Collective::OneShot ? "one_shot"
         : method == Collective::TwoShot ? "two_shot"
                                         : "fused";
}

namespace {
struct Point {
  double bytes, seconds;
};
} // namespace

/// Time of `bytes` by the points of one method and number of ranks, by bytes.
static double interpolate(const std::vector<Point> &points, double bytes,
                          double linkRate) {
  const Point &first = points.front(), &last = points.back();
  if (bytes <= first.bytes)
    return first.seconds; // latency: fewer bytes are no faster
  for (size_t i = 1; i < points.size(); ++i) {
    const Point &a = points[i - 1], &b = points[i];
    if (bytes > b.bytes)
      continue;
    double x = std::log(bytes / a.bytes) / std::log(b.bytes / a.bytes);
    return a.seconds * std::pow(b.seconds / a.seconds, x);
  }
  double perByte = linkRate > 0 ? 1 / linkRate : 0;
  if (points.size() > 1) {
    const Point &a = points[points.size() - 2];
    double slope = (last.seconds - a.seconds) / (last.bytes - a.bytes);
    if (slope > 0)
      perByte = slope;
  }
  return last.seconds + (bytes - last.bytes) * perByte;
}

/// How the bytes that a rank sends grow with the ranks.
static double sent(Collective method, int64_t ranks) {
  auto n = double(ranks);
  bool inParts = method == Collective::Nccl || method == Collective::TwoShot;
  return inParts ? 2 * (n - 1) / n : n - 1;
}

Result<Estimate> Model::allReduce(Collective method, int64_t ranks,
                                  int64_t bytes) const {
  Estimate e;
  if (ranks < 1 || bytes < 0)
    return invalid("all-reduce of " + std::to_string(bytes) + " bytes among " +
                   std::to_string(ranks) + " ranks");
  if (ranks == 1)
    return e;
  e.launches = 1;
  e.bound = Bound::Link;
  std::map<int64_t, std::vector<Point>> byRanks;
  for (const CollectiveTime &entry : m.collectives)
    if (entry.method == collectiveName(method) && entry.ranks > 1 &&
        entry.bytes > 0 && entry.seconds > 0)
      byRanks[entry.ranks].push_back({double(entry.bytes), entry.seconds});
  if (byRanks.empty())
    return notFound("machine " + m.name + " has no figures for all-reduce by " +
                    std::string(collectiveName(method)));
  for (auto &[n, points] : byRanks)
    std::sort(points.begin(), points.end(),
              [](const Point &a, const Point &b) { return a.bytes < b.bytes; });
  // The nearest number of ranks, rather more than fewer.
  auto nearest = byRanks.lower_bound(ranks);
  if (nearest == byRanks.end())
    --nearest;
  const std::vector<Point> &points = nearest->second;
  double rate = m.link.writeBytesPerSecond;
  double seconds = interpolate(points, double(bytes), rate);
  if (nearest->first != ranks) {
    // Latency stays (a step more or fewer is within its error); what is beyond it
    // grows with the bytes that a rank sends.
    double latency = std::min(points.front().seconds, seconds);
    seconds = latency + (seconds - latency) * sent(method, ranks) /
                            sent(method, nearest->first);
  }
  e.seconds = seconds;
  double linkBytes = double(bytes) * sent(method, ranks);
  e.floorSeconds = std::min(seconds, rate > 0 ? linkBytes / rate : 0);
  return e;
}

Result<Estimate> Model::allGather(Collective method, int64_t ranks,
                                  int64_t bytes) const {
  if (method == Collective::Fused)
    return invalid("a gather has no norm behind it");
  // One-shot passes as much as in an all-reduce of a rank's part: that to every
  // other. The others' second half is a gather.
  bool half = method != Collective::OneShot;
  auto whole = allReduce(method, ranks,
                         half ? bytes : ceilDiv(bytes, std::max<int64_t>(ranks, 1)));
  if (whole.ok() && half) {
    whole->seconds /= 2;
    whole->floorSeconds /= 2;
  }
  return whole;
}

//===----------------------------------------------------------------------===//
// Overlap
//===----------------------------------------------------------------------===//

size_t Timeline::exchange(double seconds) {
  linkFree = std::max(linkFree, now) + seconds;
  ends.push_back(linkFree);
  return ends.size() - 1;
}

void Timeline::wait(size_t exchange) { now = std::max(now, ends[exchange]); }

double Timeline::end() const { return std::max(now, linkFree); }

} // namespace mla::cost
