//===- Lobby.cpp - who connects, and what they say ------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/collectives/host/Lobby.h"
#include <algorithm>
#include <cerrno>
#include <poll.h>

namespace mla::collectives::wire {
namespace {

constexpr size_t maxGuests = 256;
/// A rank greets at once.
constexpr std::chrono::seconds patience{5};

} // namespace

Result<Lobby::Event> Lobby::next(std::span<const int> watched,
                                 Clock::time_point deadline) {
  std::vector<pollfd> items;
  while (true) {
    auto now = Clock::now();
    std::erase_if(guests, [&](const Guest &g) { return g.deadline <= now; });
    for (auto guest = guests.begin(); guest != guests.end(); ++guest) {
      if (guest->received < sizeof(Greeting))
        continue;
      Event event;
      event.what = Event::Arrival;
      event.connection = std::move(guest->connection);
      event.greeting = guest->greeting;
      guests.erase(guest);
      return event;
    }

    auto wake = deadline;
    items.assign(1, {listener.get(), POLLIN, 0});
    for (const Guest &guest : guests) {
      items.push_back({guest.connection.get(), POLLIN, 0});
      wake = std::min(wake, guest.deadline);
    }
    size_t firstWatched = items.size();
    for (int fd : watched)
      items.push_back({fd, POLLIN, 0});
    int ready = poll(items.data(), items.size(), untilDeadline(wake));
    if (ready < 0 && errno != EINTR)
      return ioError("cannot wait for connections: " + systemError(errno));
    if (ready <= 0) {
      if (Clock::now() >= deadline)
        return Event{};
      continue;
    }

    for (size_t i = firstWatched; i < items.size(); ++i)
      if (items[i].revents != 0) {
        Event event;
        event.what = Event::Watched;
        event.index = i - firstWatched;
        return event;
      }
    auto guest = guests.begin();
    for (size_t i = 1; i < firstWatched; ++i)
      if (items[i].revents != 0 && !listen(*guest))
        guest = guests.erase(guest);
      else
        ++guest;
    if (items[0].revents != 0)
      admit();
  }
}

void Lobby::admit() {
  Fd connection(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  // Whoever came may be gone already.
  if (!connection || !prepare(connection.get()).ok())
    return;
  if (guests.size() == maxGuests)
    guests.pop_front();
  guests.push_back({std::move(connection), {}, 0, Clock::now() + patience});
}

bool Lobby::listen(Guest &guest) {
  Bytes to = writableBytesOf(guest.greeting).subspan(guest.received);
  ssize_t got = recv(guest.connection.get(), to.data(), to.size(), 0);
  if (got < 0)
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
  if (got == 0)
    return false;
  guest.received += static_cast<size_t>(got);
  return guest.received < sizeof(uint32_t) ||
         guest.greeting.magicNumber == greetingMagic;
}

} // namespace mla::collectives::wire
