//===- Rendezvous.cpp - how the connections of a group come about ---------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/collectives/host/Rendezvous.h"
#include "runtime/collectives/host/Lobby.h"
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/random.h>
#include <thread>

namespace mla::collectives::wire {
namespace {

std::string hexadecimal(uint64_t value) {
  char text[20];
  std::snprintf(text, sizeof text, "%016llx",
                static_cast<unsigned long long>(value));
  return text;
}

Result<std::vector<Endpoint>> resolve(const std::string &name, uint16_t port) {
  addrinfo hints{}, *list = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  int code =
      getaddrinfo(name.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (code != 0)
    return ioError(
        "there is no address " + name + ": " +
        (code == EAI_SYSTEM ? systemError(errno) : gai_strerror(code)));
  std::vector<Endpoint> endpoints;
  for (addrinfo *entry = list; entry; entry = entry->ai_next)
    if (entry->ai_family == AF_INET || entry->ai_family == AF_INET6)
      endpoints.push_back(Endpoint::from(entry->ai_addr, entry->ai_addrlen));
  freeaddrinfo(list);
  if (endpoints.empty())
    return ioError(name + " has no IP address");
  return endpoints;
}

/// With port 0 the system chooses one.
Result<Fd> listenAt(const Endpoint &endpoint) {
  Fd fd(socket(endpoint.get()->sa_family,
               SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  int yes = 1;
  if (!fd ||
      setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
      bind(fd.get(), endpoint.get(), endpoint.length()) != 0 ||
      listen(fd.get(), Transport::maxRanks) != 0)
    return ioError("cannot listen at " + endpoint.text() + ": " +
                   systemError(errno));
  return fd;
}

Endpoint localEndOf(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  getsockname(fd, reinterpret_cast<sockaddr *>(&address), &length);
  return Endpoint::from(reinterpret_cast<sockaddr *>(&address), length);
}

/// One attempt.
Result<Fd> connectTo(const Endpoint &endpoint, Clock::time_point deadline) {
  Fd fd(socket(endpoint.get()->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd)
    return ioError(systemError(errno));
  MLA_RETURN_IF_ERROR(prepare(fd.get()));
  if (connect(fd.get(), endpoint.get(), endpoint.length()) != 0) {
    if (errno != EINPROGRESS)
      return ioError(systemError(errno));
    pollfd item{fd.get(), POLLOUT, 0};
    int ready;
    do
      ready = poll(&item, 1, untilDeadline(deadline));
    while (ready < 0 && errno == EINTR);
    int code = 0;
    socklen_t length = sizeof code;
    if (ready <= 0 ||
        getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &code, &length) != 0)
      return ioError("no answer in time");
    if (code != 0)
      return ioError(systemError(code));
  }
  // Who connects again and again to a port that nobody listens at is at some
  // time given that port for the own end, and is connected to itself.
  Endpoint own = localEndOf(fd.get());
  if (std::memcmp(own.raw, endpoint.raw, sizeof own.raw) == 0)
    return ioError(systemError(ECONNREFUSED));
  return fd;
}

void refuse(int fd, const Status &why) {
  auto soon = Clock::now() + std::chrono::seconds(1);
  Header header = abortHeader(why);
  Status sent = sendAll(fd, bytesOf(header), soon);
  if (sent.ok())
    sent = sendAll(
        fd, std::as_bytes(std::span(why.message())).first(header.bytes), soon);
  // Who cannot be told finds the connection closed.
  (void)sent;
}

class Meeting {
public:
  explicit Meeting(const SocketOptions &options)
      : options(options), begin(Clock::now()),
        deadline(begin + options.timeout),
        links(static_cast<size_t>(options.size)),
        place(options.address + ":" + std::to_string(options.port)) {}

  Result<std::vector<Fd>> run() {
    Status status = options.rank == 0 ? host() : join();
    if (status.ok())
      return std::move(links);
    for (const Fd &link : links)
      if (link && mayTell)
        refuse(link.get(), status);
    return status;
  }

private:
  // Rank 0.

  Status host() {
    MLA_ASSIGN_OR_RETURN(Fd listener, openListener());
    MLA_ASSIGN_OR_RETURN(std::vector<Endpoint> table,
                         gather(Lobby(std::move(listener))));
    uint64_t token = 0;
    if (getrandom(&token, sizeof token, 0) != sizeof token)
      return ioError("no random numbers: " + systemError(errno));
    token |= 1; // 0 is none.
    Header header;
    header.kind = Kind::Table;
    header.number = token;
    header.bytes = table.size() * sizeof(Endpoint);
    for (size_t rank = 1; rank < links.size(); ++rank) {
      MLA_RETURN_IF_ERROR(send(rank, bytesOf(header)));
      MLA_RETURN_IF_ERROR(send(rank, std::as_bytes(std::span(table))));
    }
    MLA_RETURN_IF_ERROR(awaitReady());
    header = {};
    header.kind = Kind::Go;
    for (size_t rank = 1; rank < links.size(); ++rank)
      MLA_RETURN_IF_ERROR(send(rank, bytesOf(header)));
    return {};
  }

  /// In the order in which they get ready: one that fails may be what the
  /// others wait for.
  Status awaitReady() {
    std::vector<pollfd> items;
    for (const Fd &link : links)
      items.push_back({link.get(), POLLIN, 0});
    for (size_t missing = links.size() - 1; missing > 0;) {
      int ready = poll(items.data(), items.size(), untilDeadline(deadline));
      if (ready < 0 && errno != EINTR)
        return ioError("cannot wait for the ranks: " + systemError(errno));
      if (ready == 0)
        return ioError("rank 0 waited " + waited() +
                       " for the ranks to connect to each other");
      for (size_t rank = 0; rank < items.size(); ++rank) {
        if (items[rank].revents == 0)
          continue;
        MLA_RETURN_IF_ERROR(
            receiveHeader(rank, Kind::Ready, deadline).status());
        items[rank].fd = -1;
        --missing;
      }
    }
    return {};
  }

  Result<Fd> openListener() {
    if (options.listener >= 0) {
      Fd listener(options.listener);
      int flags = fcntl(listener.get(), F_GETFL);
      if (flags < 0 || fcntl(listener.get(), F_SETFL, flags | O_NONBLOCK) < 0 ||
          fcntl(listener.get(), F_SETFD, FD_CLOEXEC) < 0)
        return ioError("cannot use the socket that listens: " +
                       systemError(errno));
      place = localEndOf(listener.get()).text();
      return listener;
    }
    MLA_ASSIGN_OR_RETURN(std::vector<Endpoint> endpoints,
                         resolve(options.address, options.port));
    Result<Fd> listener = listenAt(endpoints[0]);
    if (!listener.ok())
      return ioError("rank 0 " + listener.status().message());
    return listener;
  }

  /// Where all listen. If something is wrong with one, the others are awaited
  /// for a moment all the same, so that they learn what it is.
  Result<std::vector<Endpoint>> gather(Lobby lobby) {
    std::vector<Endpoint> table(links.size());
    std::vector<Fd> refused;
    Status wrong;
    auto until = deadline;
    std::vector<int> watched(links.size(), -1);
    for (size_t missing = links.size() - 1; missing > 0;) {
      MLA_ASSIGN_OR_RETURN(Lobby::Event event, lobby.next(watched, until));
      Status found;
      if (event.what == Lobby::Event::Late) {
        if (!wrong.ok())
          break;
        return late();
      }
      if (event.what == Lobby::Event::Watched) {
        found = stopped(event.index);
        watched[event.index] = -1;
      } else {
        --missing;
        const Greeting &greeting = event.greeting;
        found = judge(greeting);
        if (found.ok()) {
          table[greeting.rank] = greeting.listens;
          watched[greeting.rank] = event.connection.get();
          links[greeting.rank] = std::move(event.connection);
        } else {
          refused.push_back(std::move(event.connection));
        }
      }
      if (wrong.ok() && !found.ok()) {
        wrong = found;
        until = std::min(deadline, Clock::now() + std::chrono::seconds(1));
      }
    }
    for (const Fd &connection : refused)
      refuse(connection.get(), wrong);
    if (!wrong.ok())
      return wrong;
    return table;
  }

  Status judge(const Greeting &greeting) const {
    std::string who = "rank " + std::to_string(greeting.rank);
    auto differ = [&](const char *what, const std::string &theirs,
                      const std::string &ours) {
      return invalid(who + " has " + what + " " + theirs + ", rank 0 has " +
                     ours);
    };
    if (greeting.protocol != version)
      return differ("version", std::to_string(greeting.protocol),
                    std::to_string(version));
    if (greeting.size != static_cast<uint32_t>(options.size))
      return differ("a group of size", std::to_string(greeting.size),
                    std::to_string(options.size));
    if (greeting.group != options.group)
      return differ("the plan", hexadecimal(greeting.group),
                    hexadecimal(options.group));
    if (greeting.rank >= links.size())
      return invalid("there is no " + who + " in a group of " +
                     std::to_string(options.size));
    if (greeting.rank == 0 || links[greeting.rank])
      return invalid("two processes say that they are " + who);
    if (greeting.listens.length() == 0)
      return invalid(who + " listens nowhere");
    return {};
  }

  // The others.

  Status join() {
    MLA_RETURN_IF_ERROR(reachRankZero());
    Endpoint own = localEndOf(links[0].get());
    own.setPort(0);
    MLA_ASSIGN_OR_RETURN(Fd listener, listenAt(own));
    Greeting greeting;
    greeting.size = static_cast<uint32_t>(options.size);
    greeting.rank = static_cast<uint32_t>(options.rank);
    greeting.group = options.group;
    greeting.listens = localEndOf(listener.get());
    MLA_RETURN_IF_ERROR(send(0, bytesOf(greeting)));

    MLA_ASSIGN_OR_RETURN(Header header,
                         receiveHeader(0, Kind::Table, deadline));
    std::vector<Endpoint> table(links.size());
    if (header.bytes != table.size() * sizeof(Endpoint))
      return invalid("rank 0 knows of another number of ranks");
    MLA_RETURN_IF_ERROR(
        receive(0, std::as_writable_bytes(std::span(table)), deadline));

    greeting.token = header.number;
    for (size_t rank = 1; rank < static_cast<size_t>(options.rank); ++rank) {
      if (table[rank].length() == 0)
        return invalid("rank 0 does not know where rank " +
                       std::to_string(rank) + " listens");
      Result<Fd> link = connectTo(table[rank], deadline);
      if (!link.ok())
        return link.status().withContext(
            "rank " + std::to_string(options.rank) + " cannot reach rank " +
            std::to_string(rank) + " at " + table[rank].text());
      links[rank] = *std::move(link);
      MLA_RETURN_IF_ERROR(send(rank, bytesOf(greeting)));
    }
    MLA_RETURN_IF_ERROR(acceptOthers(Lobby(std::move(listener)), greeting));

    Header message;
    message.kind = Kind::Ready;
    MLA_RETURN_IF_ERROR(send(0, bytesOf(message)));
    return receiveHeader(0, Kind::Go, deadline).status();
  }

  Status reachRankZero() {
    MLA_ASSIGN_OR_RETURN(std::vector<Endpoint> endpoints,
                         resolve(options.address, options.port));
    std::chrono::milliseconds pauseFor{5};
    while (true) {
      Status last;
      for (const Endpoint &endpoint : endpoints) {
        // A host that does not answer must not use up the time of the next.
        auto until = std::min(deadline, Clock::now() + std::chrono::seconds(5));
        Result<Fd> link = connectTo(endpoint, until);
        if (link.ok()) {
          links[0] = *std::move(link);
          return {};
        }
        last = link.status();
      }
      if (Clock::now() + pauseFor >= deadline)
        return ioError("rank " + std::to_string(options.rank) + " waited " +
                       waited() + " for rank 0 at " + place + ": " +
                       last.message());
      std::this_thread::sleep_for(pauseFor);
      pauseFor = std::min(2 * pauseFor, std::chrono::milliseconds(200));
    }
  }

  Status acceptOthers(Lobby lobby, const Greeting &own) {
    auto first = static_cast<size_t>(options.rank) + 1;
    int rankZero = links[0].get();
    for (size_t missing = links.size() - first; missing > 0;) {
      MLA_ASSIGN_OR_RETURN(Lobby::Event event,
                           lobby.next({&rankZero, 1}, deadline));
      if (event.what == Lobby::Event::Late)
        return late();
      // Rank 0 speaks only when all are ready, or when something is wrong.
      if (event.what == Lobby::Event::Watched)
        return stopped(0);
      const Greeting &greeting = event.greeting;
      if (greeting.token != own.token || greeting.rank < first ||
          greeting.rank >= links.size() || links[greeting.rank])
        continue; // A stranger.
      links[greeting.rank] = std::move(event.connection);
      --missing;
    }
    return {};
  }

  // Both.

  Status send(size_t rank, ConstBytes bytes) {
    Status status = sendAll(links[rank].get(), bytes, deadline);
    // What it said last is more than that it is gone.
    return status.ok() ? status : stopped(rank);
  }

  Status receive(size_t rank, Bytes bytes, Clock::time_point until) {
    Status status = receiveAll(links[rank].get(), bytes, until);
    if (status.ok())
      return status;
    std::string who = "rank " + std::to_string(rank) +
                      (rank == 0 ? " at " + place : std::string());
    if (Clock::now() >= until)
      return ioError("rank " + std::to_string(options.rank) + " waited " +
                     waited() + " for an answer of " + who +
                     " during the rendezvous");
    mayTell &= rank != 0;
    return ioError(who + " ended during the rendezvous" +
                   (status.message().empty() ? "" : ": ") + status.message());
  }

  /// Of kind `expected`, or an error: what a rank that gives up says.
  Result<Header> receiveHeader(size_t rank, Kind expected,
                               Clock::time_point until) {
    Header header;
    MLA_RETURN_IF_ERROR(receive(rank, writableBytesOf(header), until));
    if (header.magicNumber == magic && header.kind == Kind::Abort &&
        header.bytes <= maxText) {
      std::string text(header.bytes, '\0');
      MLA_RETURN_IF_ERROR(
          receive(rank, std::as_writable_bytes(std::span(text)), until));
      // Rank 0 tells everybody.
      mayTell &= rank != 0;
      return errorOf(header, std::move(text));
    }
    if (header.magicNumber != magic || header.kind != expected)
      return invalid("rank " + std::to_string(rank) + " at " + place +
                     " does not speak the language of a group of mla");
    return header;
  }

  /// Why a rank that should be silent is not.
  Status stopped(size_t rank) {
    auto soon = std::min(deadline, Clock::now() + std::chrono::seconds(1));
    auto header = receiveHeader(rank, Kind::Abort, soon);
    links[rank] = Fd();
    return header.status();
  }

  Status late() const {
    std::string ranks;
    for (size_t rank = 0; rank < links.size(); ++rank)
      if (rank != static_cast<size_t>(options.rank) && !links[rank])
        ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
    return ioError("rank " + std::to_string(options.rank) + " waited " +
                   waited() + " at " + place + " for ranks to join: " + ranks +
                   " of " + std::to_string(options.size));
  }

  std::string waited() const {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f s",
                  std::chrono::duration<double>(Clock::now() - begin).count());
    return text;
  }

  const SocketOptions &options;
  const Clock::time_point begin, deadline;
  std::vector<Fd> links;
  std::string place; ///< Of rank 0.
  bool mayTell = true;
};

} // namespace

Result<std::vector<Fd>> rendezvous(const SocketOptions &options) {
  return Meeting(options).run();
}

} // namespace mla::collectives::wire
