//===- Wire.cpp - sockets and what goes over them -------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/collectives/host/Wire.h"
#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <climits>
#include <cstring>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <system_error>
#include <unistd.h>

namespace mla::collectives::wire {
namespace {

Status waitFor(int fd, short events, Clock::time_point deadline) {
  while (true) {
    pollfd item{fd, events, 0};
    int ready = poll(&item, 1, untilDeadline(deadline));
    if (ready > 0)
      return {};
    if (ready == 0)
      return ioError("no answer in time");
    if (errno != EINTR)
      return ioError(systemError(errno));
  }
}

} // namespace

void Fd::close() {
  if (fd >= 0)
    ::close(fd);
  fd = -1;
}

Endpoint Endpoint::from(const sockaddr *address, socklen_t length) {
  Endpoint result;
  std::memcpy(result.raw, address, std::min<size_t>(length, sizeof result.raw));
  return result;
}

socklen_t Endpoint::length() const {
  switch (get()->sa_family) {
  case AF_INET:
    return sizeof(sockaddr_in);
  case AF_INET6:
    return sizeof(sockaddr_in6);
  default:
    return 0;
  }
}

void Endpoint::setPort(uint16_t port) {
  // At one place in both forms.
  static_assert(offsetof(sockaddr_in, sin_port) ==
                offsetof(sockaddr_in6, sin6_port));
  uint16_t inOrder = htons(port);
  std::memcpy(raw + offsetof(sockaddr_in, sin_port), &inOrder, sizeof inOrder);
}

std::string Endpoint::text() const {
  char host[INET6_ADDRSTRLEN] = "?";
  bool six = get()->sa_family == AF_INET6;
  const unsigned char *address = raw + (six ? offsetof(sockaddr_in6, sin6_addr)
                                            : offsetof(sockaddr_in, sin_addr));
  if (length() != 0)
    inet_ntop(get()->sa_family, address, host, sizeof host);
  uint16_t port;
  std::memcpy(&port, raw + offsetof(sockaddr_in, sin_port), sizeof port);
  return (six ? "[" + std::string(host) + "]" : std::string(host)) + ":" +
         std::to_string(ntohs(port));
}

Status errorOf(const Header &header, std::string text) {
  for (char &c : text)
    if (static_cast<unsigned char>(c) < 0x20 && c != '\n')
      c = '?';
  bool known = header.code > 0 &&
               header.code <= static_cast<uint32_t>(StatusCode::Internal);
  return {known ? static_cast<StatusCode>(header.code) : StatusCode::Internal,
          std::move(text)};
}

Header abortHeader(const Status &why) {
  Header header;
  header.kind = Kind::Abort;
  header.code = static_cast<uint32_t>(why.code());
  header.bytes = std::min(why.message().size(), maxText);
  return header;
}

std::string systemError(int code) {
  return std::generic_category().message(code);
}

int untilDeadline(Clock::time_point deadline) {
  auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  return static_cast<int>(
      std::clamp<std::chrono::milliseconds::rep>(left.count(), 0, INT_MAX));
}

Status prepare(int fd) {
  auto set = [fd](int level, int option, int value) {
    return setsockopt(fd, level, option, &value, sizeof value) == 0;
  };
  int flags = fcntl(fd, F_GETFL);
  // The probes find a machine that lost power or its cable; a process that
  // ended is told by its system.
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ||
      !set(IPPROTO_TCP, TCP_NODELAY, 1) || !set(SOL_SOCKET, SO_KEEPALIVE, 1) ||
      !set(IPPROTO_TCP, TCP_KEEPIDLE, 5) ||
      !set(IPPROTO_TCP, TCP_KEEPINTVL, 2) || !set(IPPROTO_TCP, TCP_KEEPCNT, 5))
    return ioError("cannot set up a connection: " + systemError(errno));
  return {};
}

Status sendAll(int fd, ConstBytes from, Clock::time_point deadline) {
  while (!from.empty()) {
    ssize_t sent = send(fd, from.data(), from.size(), MSG_NOSIGNAL);
    if (sent >= 0)
      from = from.subspan(static_cast<size_t>(sent));
    else if (errno == EAGAIN || errno == EWOULDBLOCK)
      MLA_RETURN_IF_ERROR(waitFor(fd, POLLOUT, deadline));
    else if (errno != EINTR)
      return ioError(systemError(errno));
  }
  return {};
}

Status receiveAll(int fd, Bytes to, Clock::time_point deadline) {
  bool any = false;
  while (!to.empty()) {
    ssize_t got = recv(fd, to.data(), to.size(), 0);
    if (got > 0) {
      to = to.subspan(static_cast<size_t>(got));
      any = true;
    } else if (got == 0) {
      return ioError(any ? "the connection was closed within a message" : "");
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      MLA_RETURN_IF_ERROR(waitFor(fd, POLLIN, deadline));
    } else if (errno != EINTR) {
      return ioError(systemError(errno));
    }
  }
  return {};
}

} // namespace mla::collectives::wire
