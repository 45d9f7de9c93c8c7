//===- Stripes.cpp - arranged weights on their way ------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/weights/Stripes.h"
#include <algorithm>
#include <cstring>
#include <future>
#include <mutex>

namespace mla::runtime {
namespace {
constexpr uint64_t usualBytes = uint64_t(64) << 20;

/// Items [first, last) and the bytes that they fill, with the gap behind.
struct Stripe {
  size_t first = 0, last = 0;
  uint64_t offset = 0, bytes = 0;
};

uint64_t endOf(const Arrangement &all, size_t item) {
  return item + 1 < all.items.size() ? all.items[item + 1].offset : all.bytes;
}

std::vector<Stripe> stripesOf(const Arrangement &all) {
  std::vector<Stripe> stripes;
  for (size_t i = 0; i < all.items.size(); ++i) {
    uint64_t end = endOf(all, i);
    if (stripes.empty() || end - stripes.back().offset > usualBytes)
      stripes.push_back({i, i, all.items[i].offset, 0});
    stripes.back().last = i + 1;
    stripes.back().bytes = end - stripes.back().offset;
  }
  return stripes;
}
} // namespace

uint64_t stripeBytes(const Arrangement &arrangement) {
  uint64_t longest = 0;
  for (const Stripe &stripe : stripesOf(arrangement))
    longest = std::max(longest, stripe.bytes);
  return longest;
}

Status
makeStripes(const Arrangement &arrangement, const Arranger &arranger,
            std::span<const std::byte> packed, ThreadPool &pool,
            Progress &progress,
            const std::array<std::span<std::byte>, 2> &stagings,
            const std::function<Status(uint64_t offset,
                                       std::span<const std::byte> bytes)> &write) {
  std::future<Status> writing;
  auto written = [&] { return writing.valid() ? writing.get() : Status(); };
  Status failure; // Of the item that comes first, so that runs agree.
  size_t failed = arrangement.items.size();
  std::mutex mutex;
  size_t turn = 0;
  for (const Stripe &stripe : stripesOf(arrangement)) {
    std::span<std::byte> staging = stagings[turn++ % 2].first(stripe.bytes);
    // Rows first: tails are made of what making them has found.
    for (bool tails : {false, true})
      pool.parallelFor(
          static_cast<int64_t>(stripe.last - stripe.first),
          [&](int64_t begin, int64_t end) {
            Arranger::Scratch scratch;
            for (int64_t i = begin; i < end; ++i) {
              size_t index = stripe.first + static_cast<size_t>(i);
              const ArrangedItem &item = arrangement.items[index];
              if (item.tail != tails)
                continue;
              std::span<std::byte> out = staging.subspan(
                  item.offset - stripe.offset, endOf(arrangement, index) -
                                                   item.offset);
              std::fill(out.begin() + static_cast<int64_t>(item.bytes),
                        out.end(), std::byte{});
              Status status;
              if (packed.empty())
                status = arranger.make(item, out.first(item.bytes), scratch);
              else
                std::memcpy(out.data(), packed.data() + item.offset,
                            item.bytes);
              progress.add(item.bytes);
              if (status.ok())
                continue;
              std::lock_guard lock(mutex);
              if (index < failed) {
                failed = index;
                failure = status;
              }
            }
          });
    MLA_RETURN_IF_ERROR(written());
    MLA_RETURN_IF_ERROR(failure);
    writing = std::async(std::launch::async, [&write, stripe, staging] {
      return write(stripe.offset, staging);
    });
  }
  return written();
}

} // namespace mla::runtime
