//===- Lobby.h - who connects, and what they say ----------------*- C++ -*-===//
//
// Part of mla. Internal to the socket transport. A listening socket with the
// connections that have not said who they are. Anybody may connect: who says
// something else than a greeting, or nothing for long, is dropped and not
// missed.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_COLLECTIVES_HOST_LOBBY_H
#define MLA_RUNTIME_COLLECTIVES_HOST_LOBBY_H

#include "runtime/collectives/host/Wire.h"
#include <list>

namespace mla::collectives::wire {

class Lobby {
public:
  /// `listener` must listen and not block.
  explicit Lobby(Fd listener) : listener(std::move(listener)) {}

  struct Event {
    enum {
      Arrival, ///< `connection` has sent `greeting`.
      Watched, ///< watched[index] can be read.
      Late     ///< The deadline is past.
    } what = Late;
    Fd connection;
    Greeting greeting;
    size_t index = 0;
  };

  /// Blocks until one of these. Entries of `watched` below 0 are passed over.
  Result<Event> next(std::span<const int> watched, Clock::time_point deadline);

private:
  struct Guest {
    Fd connection;
    Greeting greeting;
    size_t received = 0;
    Clock::time_point deadline;
  };
  void admit();
  /// Whether the guest may stay.
  static bool listen(Guest &guest);

  Fd listener;
  std::list<Guest> guests; ///< The oldest first.
};

} // namespace mla::collectives::wire

#endif // MLA_RUNTIME_COLLECTIVES_HOST_LOBBY_H
