//===- Status.h - errors as values ------------------------------*- C++ -*-===//
//
// Part of mla. The error type of every part that does not link MLIR: a code
// and one message for the user. Nothing here throws; nothing aborts on data.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_SUPPORT_STATUS_H
#define MLA_SUPPORT_STATUS_H

#include <optional>
#include <string>
#include <utility>

namespace mla {

enum class StatusCode {
  Ok,
  Invalid,     ///< The input is wrong: a bad file, key, shape or argument.
  Unsupported, ///< The input is well formed, but this build cannot do it.
  NotFound,    ///< A file or a named thing does not exist.
  Io,          ///< The operating system refused to read or write.
  Exhausted,   ///< Memory, cache pages or another fixed supply ran out.
  Numeric,     ///< A result is NaN or infinite.
  Internal     ///< An invariant of ours is broken: a bug.
};

/// The outcome of an operation without a value.
class [[nodiscard]] Status {
public:
  Status() = default;
  Status(StatusCode code, std::string message)
      : statusCode(code), text(std::move(message)) {}

  bool ok() const { return statusCode == StatusCode::Ok; }
  StatusCode code() const { return statusCode; }
  const std::string &message() const { return text; }

  /// The same error with "context: " before its message.
  Status withContext(const std::string &context) const {
    return ok() ? *this : Status(statusCode, context + ": " + text);
  }

private:
  StatusCode statusCode = StatusCode::Ok;
  std::string text;
};

inline Status invalid(std::string m) {
  return {StatusCode::Invalid, std::move(m)};
}
inline Status unsupported(std::string m) {
  return {StatusCode::Unsupported, std::move(m)};
}
inline Status notFound(std::string m) {
  return {StatusCode::NotFound, std::move(m)};
}
inline Status ioError(std::string m) { return {StatusCode::Io, std::move(m)}; }
inline Status exhausted(std::string m) {
  return {StatusCode::Exhausted, std::move(m)};
}
inline Status numericError(std::string m) {
  return {StatusCode::Numeric, std::move(m)};
}
inline Status internalError(std::string m) {
  return {StatusCode::Internal, std::move(m)};
}

/// A value or the Status that says why there is none.
template <typename T> class [[nodiscard]] Result {
public:
  Result(T v) : held(std::move(v)) {}
  Result(Status s) : failure(std::move(s)) {
    if (failure.ok())
      failure = internalError("a Result without a value was given no error");
  }

  bool ok() const { return held.has_value(); }
  explicit operator bool() const { return ok(); }
  const Status &status() const { return failure; }

  /// Only to be called when ok().
  T &operator*() & { return *held; }
  const T &operator*() const & { return *held; }
  T &&operator*() && { return std::move(*held); }
  T *operator->() { return &*held; }
  const T *operator->() const { return &*held; }

private:
  std::optional<T> held;
  Status failure;
};

} // namespace mla

#define MLA_CONCAT_IMPL(a, b) a##b
#define MLA_CONCAT(a, b) MLA_CONCAT_IMPL(a, b)

/// Returns from the enclosing function if `expr` is an error.
#define MLA_RETURN_IF_ERROR(expr)                                              \
  do {                                                                         \
    if (::mla::Status mlaStatus = (expr); !mlaStatus.ok())                     \
      return mlaStatus;                                                        \
  } while (false)

/// Declares or assigns `lhs` from a Result, or returns its error.
#define MLA_ASSIGN_OR_RETURN(lhs, expr)                                        \
  MLA_ASSIGN_OR_RETURN_IMPL(MLA_CONCAT(mlaResult, __LINE__), lhs, expr)
#define MLA_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr)                              \
  auto tmp = (expr);                                                           \
  if (!tmp.ok())                                                               \
    return tmp.status();                                                       \
  lhs = *std::move(tmp)

#endif // MLA_SUPPORT_STATUS_H
