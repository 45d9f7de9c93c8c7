//===- Transport.cpp - one rank's end of a group --------------------------===//
//
// Part of mla. What all transports share: numbers of calls, the error that ends
// a group, and the words of errors.
//
//===----------------------------------------------------------------------===//
#include "runtime/collectives/Transport.h"
#include <cstdio>

namespace mla::collectives {

std::string secondsText(std::chrono::duration<double> time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", time.count());
  return text;
}

Transport::~Transport() = default;

Transport::Call Transport::begin(std::string_view what) {
  auto now = Clock::now();
  return {++calls, what.substr(0, maxWhat), now, now + patience};
}

Status Transport::end(Status status) {
  if (status.ok())
    return status;
  doAbort(status);
  over = std::move(status);
  return over;
}

Status Transport::exchange(std::span<const ConstBytes> send,
                           std::span<const Bytes> receive,
                           std::string_view what) {
  MLA_RETURN_IF_ERROR(over);
  auto ranks = static_cast<size_t>(groupSize),
       own = static_cast<size_t>(ownRank);
  if (send.size() != ranks || receive.size() != ranks ||
      send[own].size() != receive[own].size())
    return end(gaveUp(
        invalid("an exchange in a group of " + std::to_string(groupSize) +
                " takes as many ranges to send and to receive, the own ones of "
                "one size; found " +
                std::to_string(send.size()) + " and " +
                std::to_string(receive.size()) + " in " + std::string(what))));
  return end(doExchange(begin(what), send, receive));
}

Status Transport::share(ConstBytes mine, const Reader &read,
                        std::string_view what) {
  MLA_RETURN_IF_ERROR(over);
  return end(doShare(begin(what), mine, read));
}

Status Transport::look(std::string_view what) {
  MLA_RETURN_IF_ERROR(over);
  auto now = Clock::now();
  // Who learns it so tells the others, as in a call: else they see this rank end, and
  // not why.
  return end(doLook({calls, what.substr(0, maxWhat), now, now}));
}

Status Transport::doShare(const Call &call, ConstBytes mine,
                          const Reader &read) {
  auto ranks = static_cast<size_t>(groupSize),
       own = static_cast<size_t>(ownRank);
  size_t needed = mine.size() * (ranks - 1);
  if (scratch.bytes().size() < needed) {
    auto memory = runtime::HostMemory::allocate(needed, std::string(call.what));
    if (!memory.ok())
      return gaveUp(memory.status());
    scratch = *std::move(memory);
  }
  std::vector<ConstBytes> send(ranks, mine), all(ranks);
  std::vector<Bytes> receive(ranks);
  send[own] = {};
  all[own] = mine;
  Bytes rest = scratch.bytes();
  for (size_t i = 0; i < ranks; ++i) {
    if (i == own)
      continue;
    all[i] = receive[i] = rest.first(mine.size());
    rest = rest.subspan(mine.size());
  }
  MLA_RETURN_IF_ERROR(doExchange(call, send, receive));
  read(all);
  return {};
}

void Transport::abort(const Status &why) {
  if (!over.ok() || why.ok())
    return;
  over = gaveUp(why);
  doAbort(over);
}

Status Transport::timedOut(const Call &call,
                           std::span<const int> missing) const {
  std::string ranks = missing.size() > 1 ? "ranks " : "rank ";
  for (size_t i = 0; i < missing.size(); ++i)
    ranks += (i == 0                    ? ""
              : i + 1 == missing.size() ? " and "
                                        : ", ") +
             std::to_string(missing[i]);
  return ioError("rank " + std::to_string(ownRank) + " waited " +
                 secondsText(Clock::now() - call.begin) + " for " + ranks + " in " +
                 std::string(call.what) + " (call " +
                 std::to_string(call.number) + ")");
}

Status Transport::ended(const Call &call, int rank,
                        const std::string &how) const {
  return ioError("rank " + std::to_string(rank) + " " + how + " while rank " +
                 std::to_string(ownRank) + " waited for it in " +
                 std::string(call.what) + " (call " +
                 std::to_string(call.number) + ")");
}

Status Transport::gaveUp(const Status &why) const {
  return why.withContext("rank " + std::to_string(ownRank) + " gave up");
}

Status Transport::mismatch(const Side &expects, const Side &sends) {
  auto text = [](const Side &side) {
    return std::to_string(side.bytes) + " bytes in " + std::string(side.what) +
           " (call " + std::to_string(side.number) + ")";
  };
  return internalError("the ranks make different calls: rank " +
                       std::to_string(expects.rank) + " expects " +
                       text(expects) + ", rank " + std::to_string(sends.rank) +
                       " sends " + text(sends));
}

} // namespace mla::collectives
