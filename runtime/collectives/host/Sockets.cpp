//===- Sockets.cpp - a group whose ranks are processes --------------------===//
//
// Part of mla. A call sends one message to every rank and receives one from
// every rank, all at once: whatever can move moves.
//
//===----------------------------------------------------------------------===//
#include "runtime/collectives/host/Sockets.h"
#include "runtime/collectives/host/Rendezvous.h"
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <poll.h>
#include <sys/uio.h>

namespace mla::collectives {
namespace {

using namespace wire;

constexpr const char *closed = "ended, its connection was closed,";

/// A header and what follows it, on its way out or in.
struct Message {
  Header header;
  Bytes payload;
  size_t done = sizeof(Header);

  void start(Bytes bytes) {
    payload = bytes;
    done = 0;
  }
  bool finished() const { return done == sizeof(Header) + payload.size(); }
  bool hasHeader() const { return done >= sizeof(Header); }

  /// What remains, as the system wants it; returns the number of parts.
  size_t remaining(iovec (&parts)[2]) {
    size_t count = 0;
    if (done < sizeof(Header))
      parts[count++] = {reinterpret_cast<char *>(&header) + done,
                        sizeof(Header) - done};
    size_t paid = done < sizeof(Header) ? 0 : done - sizeof(Header);
    if (paid < payload.size())
      parts[count++] = {payload.data() + paid, payload.size() - paid};
    return count;
  }
};

enum class Progress { Moved, Blocked, Ended };

struct Peer {
  Fd fd;
  Message out, in;
  /// It cannot be sent anything more. It may have said why before.
  bool deaf = false;
  /// Nothing comes from it in this call that would matter.
  bool quiet = false;
  /// What is still to be said when the group is over.
  std::string farewell;

  Progress push() {
    iovec parts[2];
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = out.remaining(parts);
    ssize_t sent = sendmsg(fd.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    return account(out, sent);
  }

  Progress pull() {
    iovec parts[2];
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = in.remaining(parts);
    ssize_t got = recvmsg(fd.get(), &message, MSG_DONTWAIT);
    return got == 0 ? Progress::Ended : account(in, got);
  }

private:
  static Progress account(Message &message, ssize_t moved) {
    if (moved >= 0) {
      message.done += static_cast<size_t>(moved);
      return Progress::Moved;
    }
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR
               ? Progress::Blocked
               : Progress::Ended;
  }
};

class SocketTransport final : public Transport {
public:
  SocketTransport(int rank, std::vector<Fd> links)
      : Transport(rank, static_cast<int>(links.size())), peers(links.size()),
        items(links.size()) {
    for (size_t i = 0; i < links.size(); ++i)
      peers[i].fd = std::move(links[i]);
  }

  ~SocketTransport() override {
    Header leave;
    leave.kind = Kind::Leave;
    for (Peer &peer : peers) {
      if (!peer.fd)
        continue;
      if (!told && !peer.deaf)
        (void)send(peer.fd.get(), &leave, sizeof leave,
                   MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    // Closing a connection with something unread resets it, and what was said
    // last may be lost: read until the others have ended too.
    if (told)
      flush(Clock::now() + std::chrono::seconds(1), true);
  }

protected:
  Status doExchange(const Call &call, std::span<const ConstBytes> send,
                    std::span<const Bytes> receive) override {
    auto own = static_cast<size_t>(rank());
    for (size_t i = 0; i < peers.size(); ++i) {
      Peer &peer = peers[i];
      if (i == own)
        continue;
      Header header;
      header.number = call.number;
      header.bytes = send[i].size();
      header.whatBytes = static_cast<uint32_t>(call.what.size());
      std::copy(call.what.begin(), call.what.end(), header.what);
      peer.out.header = header;
      // The system's interface has no const.
      peer.out.start({const_cast<std::byte *>(send[i].data()), send[i].size()});
      peer.in.start(receive[i]);
      peer.quiet = false;
    }
    if (!receive[own].empty())
      std::memcpy(receive[own].data(), send[own].data(), send[own].size());
    return move(call);
  }

  Status doLook(const Call &call) override {
    for (size_t i = 0; i < peers.size(); ++i)
      items[i] = {peers[i].fd ? peers[i].fd.get() : -1, POLLIN, 0};
    if (poll(items.data(), items.size(), 0) <= 0)
      return {};
    for (size_t i = 0; i < peers.size(); ++i) {
      Peer &peer = peers[i];
      if (items[i].revents == 0)
        continue;
      MLA_RETURN_IF_ERROR(lookAhead(call, i));
      if (peer.deaf)
        return ended(call, static_cast<int>(i), closed);
    }
    return {};
  }

  void doAbort(const Status &why) override { tell(why); }

private:
  Status move(const Call &call) {
    MLA_RETURN_IF_ERROR(listenFirst(call));
    // Most messages fit into what the system takes at once.
    for (size_t i = 0; i < peers.size(); ++i)
      if (peers[i].fd)
        MLA_RETURN_IF_ERROR(push(call, i));
    while (true) {
      bool waiting = false;
      for (size_t i = 0; i < peers.size(); ++i) {
        Peer &peer = peers[i];
        short events = 0;
        if (peer.fd) {
          bool sending = !peer.out.finished() && !peer.deaf;
          waiting |= sending || !peer.in.finished();
          events = static_cast<short>((sending ? POLLOUT : 0) |
                                      (peer.quiet ? 0 : POLLIN));
        }
        items[i] = {events ? peer.fd.get() : -1, events, 0};
      }
      if (!waiting)
        return {};
      int ready =
          poll(items.data(), items.size(), untilDeadline(call.deadline));
      if (ready < 0 && errno != EINTR)
        return gaveUp(
            ioError("cannot wait for other ranks: " + systemError(errno)));
      if (ready == 0)
        return timedOut(call, missing());
      for (size_t i = 0; i < peers.size(); ++i) {
        if (items[i].revents == 0 || items[i].fd < 0)
          continue;
        if (items[i].revents & (POLLOUT | POLLERR | POLLHUP))
          MLA_RETURN_IF_ERROR(push(call, i));
        if (items[i].revents & (POLLIN | POLLERR | POLLHUP))
          MLA_RETURN_IF_ERROR(pull(call, i));
      }
    }
  }

  /// A rank that has given up said so before it ended. To send it something
  /// first could be answered by a reset of the connection, which loses that.
  Status listenFirst(const Call &call) {
    for (int round = 0; round < 2; ++round) {
      for (size_t i = 0; i < peers.size(); ++i)
        items[i] = {peers[i].fd.get(), POLLIN, 0};
      if (poll(items.data(), items.size(), 0) <= 0)
        break;
      for (size_t i = 0; i < peers.size(); ++i)
        if (items[i].revents != 0 && !peers[i].quiet)
          MLA_RETURN_IF_ERROR(pull(call, i));
    }
    return {};
  }

  Status push(const Call &call, size_t i) {
    Peer &peer = peers[i];
    if (peer.out.finished() || peer.deaf || peer.push() != Progress::Ended)
      return {};
    // Its last words come after what it sent.
    peer.deaf = true;
    return peer.in.finished() ? lookAhead(call, i) : Status();
  }

  Status pull(const Call &call, size_t i) {
    Peer &peer = peers[i];
    if (peer.in.finished())
      return lookAhead(call, i);
    bool hadHeader = peer.in.hasHeader();
    switch (peer.pull()) {
    case Progress::Blocked:
      return {};
    case Progress::Ended:
      peer.deaf = true;
      return ended(call, static_cast<int>(i), closed);
    case Progress::Moved:
      break;
    }
    if (!hadHeader && peer.in.hasHeader())
      MLA_RETURN_IF_ERROR(examine(call, i));
    // It sent its part, but did not take the one that was for it.
    if (peer.in.finished() && peer.deaf && !peer.out.finished())
      return lookAhead(call, i);
    return {};
  }

  /// The header of what came, and maybe some of the payload, are there.
  Status examine(const Call &call, size_t i) {
    Peer &peer = peers[i];
    const Header &header = peer.in.header;
    if (header.magicNumber != magic)
      return gaveUp(ioError("what rank " + std::to_string(i) +
                            " sends is no message, in " +
                            std::string(call.what)));
    switch (header.kind) {
    case Kind::Data:
      break;
    case Kind::Abort:
      return lastWords(i);
    case Kind::Leave:
      peer.deaf = true;
      return ended(call, static_cast<int>(i), "left the group");
    default:
      return gaveUp(
          internalError("rank " + std::to_string(i) + " is in the rendezvous"));
    }
    std::string_view what(header.what,
                          std::min<size_t>(header.whatBytes, maxWhat));
    if (header.number != call.number || what != call.what ||
        header.bytes != peer.in.payload.size())
      return mismatch({rank(), call.number, peer.in.payload.size(), call.what},
                      {static_cast<int>(i), header.number, header.bytes, what});
    return {};
  }

  /// What comes from a rank that has sent its part in this call: its next
  /// message, which stays where it is, or that it gave up, which matters now.
  Status lookAhead(const Call &call, size_t i) {
    Peer &peer = peers[i];
    Header header;
    ssize_t got =
        recv(peer.fd.get(), &header, sizeof header, MSG_PEEK | MSG_DONTWAIT);
    bool nothing =
        got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
    if (nothing && !peer.deaf)
      return {};
    bool whole = got == static_cast<ssize_t>(sizeof header);
    if (whole && header.kind == Kind::Abort) {
      peer.in.start({});
      if (peer.pull() == Progress::Moved && peer.in.finished())
        return examine(call, i);
    }
    // It may end, or leave, when it has all that it needs. Part of a header is
    // not worth a state of its own: the next call reads it.
    peer.deaf |= got <= 0 || (whole && header.kind == Kind::Leave);
    peer.quiet = true;
    return peer.deaf && !peer.out.finished()
               ? ended(call, static_cast<int>(i), closed)
               : Status();
  }

  /// The error that a rank sent.
  Status lastWords(size_t i) {
    Peer &peer = peers[i];
    peer.deaf = true;
    const Header &header = peer.in.header;
    std::string text(std::min<uint64_t>(header.bytes, maxText), '\0');
    // The first of it went where the payload was to go.
    size_t have = std::min(peer.in.done - sizeof(Header), text.size());
    if (have > 0)
      std::memcpy(text.data(), peer.in.payload.data(), have);
    Status status = receiveAll(
        peer.fd.get(), std::as_writable_bytes(std::span(text)).subspan(have),
        Clock::now() + std::chrono::seconds(1));
    if (!status.ok())
      text = "rank " + std::to_string(i) + " gave up";
    return errorOf(header, std::move(text));
  }

  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (size_t i = 0; i < peers.size(); ++i)
      if (peers[i].fd && (!peers[i].in.finished() || !peers[i].out.finished()))
        ranks.push_back(static_cast<int>(i));
    return ranks;
  }

  /// Sends `why` to all who hear. Those who do not listen for a second find the
  /// connection closed.
  void tell(const Status &why) {
    if (told)
      return;
    told = true;
    Header header = abortHeader(why);
    std::string text = why.message().substr(0, maxText);
    for (Peer &peer : peers) {
      if (!peer.fd)
        continue;
      // A message that was begun is sent to its end, of one that was not
      // nothing.
      iovec parts[2];
      size_t count = peer.out.done > 0 ? peer.out.remaining(parts) : 0;
      for (size_t i = 0; i < count; ++i)
        peer.farewell.append(static_cast<char *>(parts[i].iov_base),
                             parts[i].iov_len);
      peer.farewell.append(reinterpret_cast<char *>(&header), sizeof header);
      peer.farewell += text;
    }
    flush(Clock::now() + std::chrono::seconds(1), false);
    for (Peer &peer : peers) {
      if (peer.fd)
        shutdown(peer.fd.get(), SHUT_WR);
      peer.farewell.clear();
    }
  }

  /// Sends what is to be said last, and reads, to no purpose but that the
  /// others get on; if `toTheEnd`, until they have closed their ends.
  void flush(Clock::time_point deadline, bool toTheEnd) {
    char buffer[16384];
    std::vector<bool> silent(peers.size());
    auto blocked = [] { return errno == EAGAIN || errno == EINTR; };
    while (true) {
      bool waiting = false;
      for (size_t i = 0; i < peers.size(); ++i) {
        Peer &peer = peers[i];
        short events = 0;
        if (peer.fd) {
          bool sending = !peer.farewell.empty() && !peer.deaf;
          waiting |= sending || (toTheEnd && !silent[i]);
          events = static_cast<short>((sending ? POLLOUT : 0) |
                                      (silent[i] ? 0 : POLLIN));
        }
        items[i] = {events ? peer.fd.get() : -1, events, 0};
      }
      if (!waiting ||
          poll(items.data(), items.size(), untilDeadline(deadline)) <= 0)
        return;
      for (size_t i = 0; i < peers.size(); ++i) {
        Peer &peer = peers[i];
        short happened = items[i].fd < 0 ? 0 : items[i].revents;
        if (happened & ~POLLIN && !peer.farewell.empty() && !peer.deaf) {
          ssize_t sent =
              send(peer.fd.get(), peer.farewell.data(), peer.farewell.size(),
                   MSG_NOSIGNAL | MSG_DONTWAIT);
          if (sent > 0)
            peer.farewell.erase(0, static_cast<size_t>(sent));
          else
            peer.deaf |= !blocked();
        }
        if (happened & ~POLLOUT && !silent[i]) {
          ssize_t got =
              recv(peer.fd.get(), buffer, sizeof buffer, MSG_DONTWAIT);
          silent[i] = got == 0 || (got < 0 && !blocked());
        }
      }
    }
  }

  std::vector<Peer> peers; ///< The own one has no connection.
  std::vector<pollfd> items;
  bool told = false;
};

} // namespace

Result<std::unique_ptr<Transport>>
joinSocketGroup(const SocketOptions &options) {
  if (options.size < 1 || options.size > Transport::maxRanks ||
      options.rank < 0 || options.rank >= options.size)
    return invalid("a group has 1 to " + std::to_string(Transport::maxRanks) +
                   " ranks, numbered from 0; found rank " +
                   std::to_string(options.rank) + " of " +
                   std::to_string(options.size));
  std::vector<Fd> links(1);
  if (options.size > 1) {
    MLA_ASSIGN_OR_RETURN(links, rendezvous(options));
  }
  std::unique_ptr<Transport> transport =
      std::make_unique<SocketTransport>(options.rank, std::move(links));
  transport->setTimeout(options.timeout);
  return transport;
}

} // namespace mla::collectives
