//===- Wire.h - sockets and what goes over them -----------------*- C++ -*-===//
//
// Part of mla. Internal to the socket transport. Processes of a group run on
// machines of one byte order, the little one; a greeting of the other has
// another magic number.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_COLLECTIVES_HOST_WIRE_H
#define MLA_RUNTIME_COLLECTIVES_HOST_WIRE_H

#include "runtime/collectives/Transport.h"
#include <netinet/in.h>
#include <sys/socket.h>
#include <utility>

namespace mla::collectives::wire {

/// A file descriptor that is closed.
class Fd {
public:
  Fd() = default;
  explicit Fd(int fd) : fd(fd) {}
  Fd(Fd &&other) noexcept : fd(std::exchange(other.fd, -1)) {}
  Fd &operator=(Fd &&other) noexcept {
    std::swap(fd, other.fd);
    return *this;
  }
  ~Fd() { close(); }
  void close();
  int get() const { return fd; }
  explicit operator bool() const { return fd >= 0; }

private:
  int fd = -1;
};

constexpr uint32_t magic = 0x31616c6d; ///< "mla1", of messages.
constexpr size_t maxText = 4096;       ///< Bytes of an error's text.

enum class Kind : uint32_t {
  Data = 1, ///< `bytes` of a call.
  Abort,    ///< An error: `code`, and a text of `bytes`.
  Leave,    ///< Nothing comes any more.
  Table,    ///< Where all listen, of `bytes`.
  Ready,    ///< To rank 0: connected to all.
  Go        ///< From rank 0: all are.
};

/// Before every message. Of one size, so that a message is read in one go.
struct Header {
  uint32_t magicNumber = magic;
  Kind kind = Kind::Data;
  uint64_t number = 0; ///< Of the call.
  uint64_t bytes = 0;  ///< What follows.
  uint32_t code = 0;   ///< StatusCode
  uint32_t whatBytes = 0;
  char what[Transport::maxWhat] = {};
};
static_assert(sizeof(Header) == 32 + Transport::maxWhat);

constexpr uint32_t greetingMagic = 0x48616c6d; ///< "mlaH"
constexpr uint32_t version = 1;

/// An IPv4 or IPv6 address with its port, as the system has it.
struct Endpoint {
  alignas(sockaddr_in6) unsigned char raw[sizeof(sockaddr_in6)] = {};

  static Endpoint from(const sockaddr *address, socklen_t length);
  const sockaddr *get() const {
    return reinterpret_cast<const sockaddr *>(raw);
  }
  /// 0 if it is no address.
  socklen_t length() const;
  void setPort(uint16_t port);
  /// "127.0.0.1:29500"
  std::string text() const;
};

/// What a rank says first on a connection.
struct Greeting {
  uint32_t magicNumber = greetingMagic;
  uint32_t protocol = version;
  uint32_t size = 0, rank = 0;
  uint64_t group = 0;
  /// 0 to rank 0; else what rank 0 gave to all who belong.
  uint64_t token = 0;
  Endpoint listens; ///< To rank 0: where others reach this one.
  uint32_t unused = 0;
};

static_assert(sizeof(Greeting) == 64);

/// The error of a Header of kind Abort with its text; nothing in it is trusted.
Status errorOf(const Header &header, std::string text);
Header abortHeader(const Status &why);

/// "connection refused"
std::string systemError(int code);
/// Milliseconds for poll(), rounded up; 0 when it is past.
int untilDeadline(Clock::time_point deadline);

/// No delay of small messages, non-blocking, and a machine that is gone is
/// found out.
Status prepare(int fd);

/// All of `from` or an error, by the deadline. For small messages.
Status sendAll(int fd, ConstBytes from, Clock::time_point deadline);
/// Io with "" if the other end closed before the first byte.
Status receiveAll(int fd, Bytes to, Clock::time_point deadline);

template <typename T> ConstBytes bytesOf(const T &value) {
  return std::as_bytes(std::span(&value, 1));
}
template <typename T> Bytes writableBytesOf(T &value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

} // namespace mla::collectives::wire

#endif // MLA_RUNTIME_COLLECTIVES_HOST_WIRE_H
