//===- Threads.cpp - a group whose ranks are threads ----------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/collectives/host/Threads.h"
#include "runtime/base/Pause.h"
#include <algorithm>
#include <atomic>
#include <climits>
#include <cstring>
#include <linux/futex.h>
#include <mutex>
#include <sched.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

namespace mla::collectives {
namespace {

/// Up to here a rank's part of a call is copied into its mailbox. One copy of
/// as much takes less time than a second meeting of all ranks.
constexpr size_t mailboxBytes = 64 << 10;

/// Pauses of 40 to 140 cycles: some microseconds, what falling asleep and
/// waking up takes. Longer ones cost more than they gain as soon as others want
/// the core.
constexpr int spinsWithCores = 300;
constexpr int spinsWithout = 20;

int coresOfThisProcess() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0)
    return CPU_COUNT(&set);
  return static_cast<int>(std::thread::hardware_concurrency());
}

// A std::atomic can be waited on, but not with a deadline.
void sleepOn(const std::atomic<uint32_t> &word, uint32_t value,
             Clock::duration atMost) {
  auto whole = std::chrono::duration_cast<std::chrono::seconds>(atMost);
  timespec time{};
  time.tv_sec = static_cast<time_t>(whole.count());
  time.tv_nsec = static_cast<long>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(atMost - whole)
          .count());
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, &time, nullptr, 0);
}

void wakeAll(const std::atomic<uint32_t> &word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

/// What a rank shows in a call.
struct Post {
  uint64_t number = 0;
  /// Whether the ranges are the caller's memory, which it wants back.
  bool inPlace = false;
  std::vector<ConstBytes> ranges; ///< One for each rank, or one for all.
  std::string what;
};

struct Slot {
  /// One for calls of even number and one for those of odd number.
  Post posts[2];
  std::unique_ptr<std::byte[]> mailboxes[2];
  /// Meetings that the rank has come to.
  alignas(64) std::atomic<uint64_t> meetings{0};
  std::atomic<bool> left{false};
  /// Whether the memory that is posted in place may be read, and by how many it
  /// is: a rank that leaves a call early takes its memory back by clearing
  /// `open` and waiting for the readers.
  alignas(64) std::atomic<uint32_t> readers{0};
};
constexpr uint32_t open = 1u << 31;

struct Group {
  explicit Group(int ranks)
      : slots(static_cast<size_t>(ranks)),
        spins(ranks <= coresOfThisProcess() ? spinsWithCores : spinsWithout) {}

  std::vector<Slot> slots;
  const int spins;
  /// Sum of all ranks' meetings.
  alignas(64) std::atomic<uint64_t> arrived{0};
  /// Changes when a meeting is complete, a rank leaves or the group is over.
  alignas(64) std::atomic<uint32_t> events{0};
  std::atomic<int> sleepers{0};
  std::atomic<bool> isOver{false};
  std::mutex mutex;
  Status why; ///< Guarded by `mutex`; what isOver is about.

  void announce() {
    events.fetch_add(1);
    if (sleepers.load() > 0)
      wakeAll(events);
  }

  void finish(const Status &status) {
    {
      std::lock_guard lock(mutex);
      if (!isOver.load()) {
        why = status;
        isOver.store(true);
      }
    }
    announce();
  }

  Status reason() {
    std::lock_guard lock(mutex);
    return why;
  }
};

class ThreadTransport final : public Transport {
public:
  ThreadTransport(std::shared_ptr<Group> shared, int rank, int size)
      : Transport(rank, size), group(std::move(shared)),
        own(group->slots[static_cast<size_t>(rank)]) {}
  ~ThreadTransport() override {
    own.left.store(true);
    group->announce();
  }

  bool sharesMemory() const override { return true; }

protected:
  Status doExchange(const Call &call, std::span<const ConstBytes> send,
                    std::span<const Bytes> receive) override {
    return perform(call, send, [&]() -> Status {
      for (size_t step = 0; step < receive.size(); ++step) {
        // Everybody begins with another rank.
        size_t from = (static_cast<size_t>(rank()) + step) % receive.size();
        Bytes to = receive[from];
        const Post &post = postOf(call, from);
        ConstBytes bytes = post.ranges.size() == receive.size()
                               ? post.ranges[static_cast<size_t>(rank())]
                               : ConstBytes();
        if (post.ranges.size() != receive.size() || bytes.size() != to.size() ||
            post.what != call.what)
          return differ(call, from, to.size(), bytes.size());
        if (!to.empty())
          std::memcpy(to.data(), bytes.data(), to.size());
      }
      return {};
    });
  }

  Status doShare(const Call &call, ConstBytes mine,
                 const Reader &read) override {
    return perform(call, {&mine, 1}, [&]() -> Status {
      std::vector<ConstBytes> all(group->slots.size());
      for (size_t i = 0; i < all.size(); ++i) {
        const Post &post = postOf(call, i);
        all[i] = post.ranges[0];
        if ((post.ranges.size() != 1 && all.size() != 1) ||
            all[i].size() != mine.size() || post.what != call.what)
          return differ(call, i, mine.size(), all[i].size());
      }
      read(all);
      return {};
    });
  }

  Status doLook(const Call &call) override {
    if (group->isOver.load())
      return group->reason();
    for (size_t i = 0; i < group->slots.size(); ++i)
      if (group->slots[i].left.load())
        return ended(call, static_cast<int>(i), "left the group");
    return {};
  }

  void doAbort(const Status &why) override {
    group->finish(why);
    takeBack();
  }

private:
  template <typename Take>
  Status perform(const Call &call, std::span<const ConstBytes> ranges,
                 const Take &take) {
    post(call, ranges);
    MLA_RETURN_IF_ERROR(meet(call));
    size_t ranks = group->slots.size(), inPlace = 0;
    for (size_t i = 0; i < ranks; ++i)
      inPlace += postOf(call, i).inPlace;
    if (inPlace == 0)
      return take();

    // Memory in mailboxes is the group's; only that of callers can be taken
    // back, by a rank that has ended the group before.
    size_t held = 0;
    while (held < ranks &&
           (!postOf(call, held).inPlace || beginReading(group->slots[held])))
      ++held;
    Status status = held < ranks ? group->reason() : take();
    while (held-- > 0)
      if (postOf(call, held).inPlace)
        group->slots[held].readers.fetch_sub(1, std::memory_order_release);
    if (status.ok())
      status = meet(call);
    if (status.ok())
      own.readers.store(0, std::memory_order_relaxed);
    return status;
  }

  void post(const Call &call, std::span<const ConstBytes> ranges) {
    Post &post = own.posts[call.number % 2];
    std::unique_ptr<std::byte[]> &mailbox = own.mailboxes[call.number % 2];
    size_t total = 0;
    for (ConstBytes range : ranges)
      total += range.size();
    post.number = call.number;
    post.what.assign(call.what);
    post.ranges.assign(ranges.begin(), ranges.end());
    post.inPlace = total > mailboxBytes;
    if (post.inPlace) {
      own.readers.store(open, std::memory_order_relaxed);
      return;
    }
    if (total > 0 && !mailbox)
      mailbox = std::make_unique_for_overwrite<std::byte[]>(mailboxBytes);
    std::byte *to = mailbox.get();
    for (ConstBytes &range : post.ranges) {
      if (!range.empty())
        std::memcpy(to, range.data(), range.size());
      range = {to, range.size()};
      to += range.size();
    }
  }

  /// Whether a slot's memory may be read from now on, until `readers` is one
  /// less.
  static bool beginReading(Slot &slot) {
    uint32_t before = slot.readers.fetch_add(1, std::memory_order_acquire);
    if (before & open)
      return true;
    slot.readers.fetch_sub(1, std::memory_order_release);
    return false;
  }

  void takeBack() {
    own.readers.fetch_and(~open);
    // They are copying, or in a Reader that calls nothing that waits.
    while (own.readers.load(std::memory_order_acquire) != 0)
      std::this_thread::yield();
  }

  /// Waits until all ranks are here as often as this one.
  Status meet(const Call &call) {
    uint64_t count = own.meetings.load(std::memory_order_relaxed) + 1;
    uint64_t all = count * group->slots.size();
    own.meetings.store(count, std::memory_order_relaxed);
    if (group->arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == all) {
      group->announce();
      return group->isOver.load() ? group->reason() : Status();
    }
    int spins = 0;
    while (true) {
      uint32_t event = group->events.load();
      // First what has happened, then whose fault it is that it has not.
      if (group->arrived.load(std::memory_order_acquire) >= all)
        return {};
      if (group->isOver.load())
        return group->reason();
      if (++spins < group->spins) {
        runtime::pause();
        continue;
      }
      std::vector<int> missing;
      for (size_t i = 0; i < group->slots.size(); ++i) {
        const Slot &slot = group->slots[i];
        // `left` first: who has left comes to no more meetings.
        bool left = slot.left.load();
        if (slot.meetings.load() >= count)
          continue;
        if (left)
          return ended(call, static_cast<int>(i), "left the group");
        missing.push_back(static_cast<int>(i));
      }
      auto now = Clock::now();
      if (now >= call.deadline && !missing.empty())
        return timedOut(call, missing);
      group->sleepers.fetch_add(1);
      sleepOn(group->events, event,
              std::max<Clock::duration>(call.deadline - now,
                                        std::chrono::milliseconds(1)));
      group->sleepers.fetch_sub(1);
    }
  }

  const Post &postOf(const Call &call, size_t rank) const {
    return group->slots[rank].posts[call.number % 2];
  }

  Status differ(const Call &call, size_t other, uint64_t expected,
                uint64_t found) const {
    const Post &post = postOf(call, other);
    return mismatch({rank(), call.number, expected, call.what},
                    {static_cast<int>(other), post.number, found, post.what});
  }

  const std::shared_ptr<Group> group;
  Slot &own;
};

} // namespace

Result<std::vector<std::unique_ptr<Transport>>> createThreadGroup(int ranks) {
  if (ranks < 1 || ranks > Transport::maxRanks)
    return invalid("a group has 1 to " + std::to_string(Transport::maxRanks) +
                   " ranks, not " + std::to_string(ranks));
  auto group = std::make_shared<Group>(ranks);
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < ranks; ++rank)
    transports.push_back(std::make_unique<ThreadTransport>(group, rank, ranks));
  return transports;
}

} // namespace mla::collectives
