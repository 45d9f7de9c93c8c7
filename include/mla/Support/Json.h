//===- Json.h - the one way to read JSON ------------------------*- C++ -*-===//
//
// Part of mla. Every JSON file that a user or another program wrote is read
// through JsonValue: a cursor that knows the file, the pointer inside it, what
// was expected and what was found. A wrong value is recorded in the document
// and a neutral value is returned, so that reading code stays straight and all
// mistakes of a file are reported together; check JsonDocument::status() once
// at the end. Exceptions of the JSON library do not leave Json.cpp.
//
// Refused while parsing: duplicate keys, nesting deeper than 64, integers
// beyond 2^53 (JSON numbers are doubles to many writers), files over a size
// limit, trailing text, invalid UTF-8.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_SUPPORT_JSON_H
#define MLA_SUPPORT_JSON_H

#include "mla/Support/Status.h"
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace mla {

class JsonDocument;

/// A place in a document. Cheap to copy; valid while its document lives. It may
/// point at nothing (an absent key): then present() is false and every typed
/// read records "expected X, found nothing".
class JsonValue {
public:
  /// False when the key is absent or its value is null.
  bool present() const;
  /// True when the key is absent altogether (null is not absent).
  bool absent() const { return node == nullptr; }
  bool isObject() const;
  bool isArray() const;
  bool isString() const;
  bool isInteger() const;
  bool isNumber() const;
  bool isBoolean() const;

  /// The member `key`; points at nothing if this is no object or has no such
  /// member. Does not record an error by itself.
  JsonValue operator[](std::string_view key) const;
  /// Element `index`; points at nothing if out of range.
  JsonValue at(size_t index) const;
  /// Number of elements or members; 0 for scalars and for nothing.
  size_t size() const;

  /// Typed reads. On a mismatch they record an error and return a neutral value
  /// (`low` clamped to the range, 0.0, false, "", empty).
  int64_t integer(int64_t low, int64_t high) const;
  double number() const;
  bool boolean() const;
  std::string string() const;
  /// The elements of an array, or an error if this is none.
  std::vector<JsonValue> elements() const;
  /// The members of an object in the order of their keys, or an error.
  std::vector<std::pair<std::string, JsonValue>> members() const;

  /// Records "file: at <pointer>: expected <expected>, found <found>".
  void fail(std::string_view expected) const;
  /// Records "file: at <pointer>: <message>".
  void failWith(std::string_view message) const;

  /// JSON pointer (RFC 6901) of this place, "" for the root.
  std::string pointer() const;
  /// What stands here, shortened for a message: "string \"yarn\"", "nothing".
  std::string describe() const;
  /// The text of the value, for printing.
  std::string dump() const;
  const std::string &file() const;

private:
  friend class JsonDocument;
  /// The pointer in pieces: messages are rare, places are many.
  struct Place {
    std::shared_ptr<const Place> above; ///< null for the root
    std::string key;
  };
  JsonValue(JsonDocument *doc, const void *node,
            std::shared_ptr<const Place> place)
      : doc(doc), node(node), place(std::move(place)) {}
  JsonValue below(const void *child, std::string key) const;
  JsonDocument *doc;
  const void *node; // const nlohmann::json *
  std::shared_ptr<const Place> place;
};

/// A parsed document and the errors found while reading it.
class JsonDocument {
public:
  static Result<std::unique_ptr<JsonDocument>>
  parseFile(const std::filesystem::path &path, uint64_t maxBytes = uint64_t(1)
                                                                   << 30);
  /// `name` stands for the file in messages.
  static Result<std::unique_ptr<JsonDocument>> parseText(std::string_view text,
                                                         std::string name);
  /// Called with each member of an object, in the order of the text. The value
  /// is gone when it returns.
  using MemberVisitor =
      std::function<void(const std::string &key, const JsonValue &value)>;
  /// As parseText, but with bounded memory: the members of one large object are
  /// passed to `visit` as they are read, and are not kept. `object` is the key
  /// of that object in the root, or "" for the root itself. Where no object
  /// stands, nothing is visited; reading its members() then records that. A
  /// fault in the text is only found when the members before it were visited.
  static Result<std::unique_ptr<JsonDocument>>
  parseMembers(std::string_view text, std::string name, std::string_view object,
               const MemberVisitor &visit);
  ~JsonDocument();

  JsonValue root();
  const std::string &name() const { return fileName; }
  /// All recorded errors, one a line; ok if there are none.
  Status status() const;
  bool failed() const { return !errors.empty(); }

private:
  friend class JsonValue;
  JsonDocument() = default;
  template <typename Builder>
  Status build(std::string_view text, Builder &builder);
  void record(std::string message);
  std::string fileName;
  struct Tree;
  std::unique_ptr<Tree> tree;
  std::vector<std::string> errors;
};

/// Reads a whole file. `what` names it in messages ("config", "tokenizer").
Result<std::string> readFile(const std::filesystem::path &path,
                             uint64_t maxBytes = uint64_t(1) << 30);

} // namespace mla

#endif // MLA_SUPPORT_JSON_H
