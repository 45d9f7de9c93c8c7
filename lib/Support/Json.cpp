//===- Json.cpp - the one way to read JSON --------------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "mla/Support/Json.h"
#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory_resource>
#include <nlohmann/json.hpp>
#include <unordered_set>

namespace mla {
using nlohmann::json;

struct JsonDocument::Tree {
  json root;
};

namespace {
constexpr size_t maxDepth = 64;
constexpr int64_t maxExactInteger = int64_t(1) << 53;

std::string shorten(std::string text) {
  constexpr size_t limit = 60;
  if (text.size() <= limit)
    return text;
  size_t cut = limit; // Never cut a UTF-8 sequence.
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80)
    --cut;
  return text.substr(0, cut) + "...";
}

std::string dumpValue(const json &v) {
  return v.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string describeValue(const json &v) {
  switch (v.type()) {
  case json::value_t::null:
    return "null";
  case json::value_t::object:
    return "an object";
  case json::value_t::array:
    return "an array of " + std::to_string(v.size());
  case json::value_t::string:
    return "string " + shorten(dumpValue(v));
  case json::value_t::boolean:
    return v.get<bool>() ? "true" : "false";
  default:
    return "number " + dumpValue(v);
  }
}

std::string escapePointer(std::string_view key) {
  std::string out;
  for (char c : key) {
    if (c == '~')
      out += "~0";
    else if (c == '/')
      out += "~1";
    else
      out += c;
  }
  return out;
}

/// Builds the tree and refuses what the header lists. Every handler returns
/// false to stop; `message` then says why.
class TreeBuilder : public nlohmann::json_sax<json> {
public:
  explicit TreeBuilder(json &root) : root(root) {}
  std::string message;

  bool null() override { return add(json(nullptr)); }
  bool boolean(bool v) override { return add(json(v)); }
  bool number_integer(int64_t v) override {
    if (v < -maxExactInteger)
      return stop("an integer beyond 2^53 (" + std::to_string(v) + ")");
    return add(json(v));
  }
  bool number_unsigned(uint64_t v) override {
    if (v > uint64_t(maxExactInteger))
      return stop("an integer beyond 2^53 (" + std::to_string(v) + ")");
    return add(json(static_cast<int64_t>(v)));
  }
  bool number_float(double v, const std::string &text) override {
    // The lexer turns integers too large for 64 bits into floats.
    if (text.find_first_of(".eE") == std::string::npos)
      return stop("an integer beyond 2^53 (" + shorten(text) + ")");
    if (!std::isfinite(v))
      return stop("a number that is not finite (" + shorten(text) + ")");
    return add(json(v));
  }
  bool string(std::string &v) override { return add(json(std::move(v))); }
  bool binary(json::binary_t &) override { return false; }
  bool start_object(size_t) override { return open(json::object()); }
  bool start_array(size_t) override { return open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(std::string &k) override {
    if (seen(k))
      return stop("the key " + shorten(dumpValue(json(k))) + " twice");
    pendingKey = k;
    return true;
  }
  bool parse_error(size_t position, const std::string &,
                   const nlohmann::detail::exception &e) override {
    std::string what = e.what();
    // "[json.exception.parse_error.101] parse error at line 1, ...": keep the
    // part for people.
    if (size_t at = what.find("parse error"); at != std::string::npos)
      what = what.substr(at);
    message = "not valid JSON: " + what;
    return false;
  }

protected:
  /// Whether the object being read has the key `k` already.
  virtual bool seen(const std::string &k) { return stack.back()->contains(k); }
  /// Puts a value where it belongs.
  virtual json *place(json &&v) {
    if (stack.empty()) {
      root = std::move(v);
      return &root;
    }
    json &parent = *stack.back();
    if (parent.is_array()) {
      parent.push_back(std::move(v));
      return &parent.back();
    }
    return &(parent[pendingKey] = std::move(v));
  }
  /// `v` is complete.
  virtual void done(json *) {}

  bool stop(std::string found) {
    message = "found " + std::move(found) + ", which is refused";
    return false;
  }
  bool add(json &&v) {
    done(place(std::move(v)));
    return true;
  }
  bool open(json &&v) {
    if (stack.size() >= maxDepth)
      return stop("nesting deeper than " + std::to_string(maxDepth));
    stack.push_back(place(std::move(v)));
    return true;
  }
  bool close() {
    json *v = stack.back();
    stack.pop_back();
    done(v);
    return true;
  }

  json &root;
  std::vector<json *> stack;
  std::string pendingKey;
};

/// The same, but the members of one object go to a visitor, one at a time.
class MemberBuilder : public TreeBuilder {
public:
  using Visit = std::function<void(const std::string &, const json &)>;
  MemberBuilder(json &root, std::string_view object, Visit visit)
      : TreeBuilder(root), object(object), visit(std::move(visit)) {}

private:
  bool inside() const { return owner && stack.back() == owner; }
  bool seen(const std::string &k) override {
    return inside() ? !keys.emplace(k).second : TreeBuilder::seen(k);
  }
  json *place(json &&v) override {
    if (!stack.empty() && inside()) {
      memberKey = pendingKey;
      member = std::move(v);
      return &member;
    }
    bool here = object.empty() ? stack.empty()
                               : stack.size() == 1 && root.is_object() &&
                                     pendingKey == object;
    json *at = TreeBuilder::place(std::move(v));
    if (here && at->is_object())
      owner = at;
    return at;
  }
  void done(json *v) override {
    if (v == &member)
      visit(memberKey, member);
    else if (v == owner)
      owner = nullptr;
  }

  std::string_view object;
  Visit visit;
  json *owner = nullptr; ///< the object whose members are visited, while in it
  // Its keys, which are many, and all freed together.
  std::pmr::monotonic_buffer_resource arena;
  std::pmr::unordered_set<std::pmr::string> keys{&arena};
  std::string memberKey;
  json member;
};

const json *asJson(const void *node) { return static_cast<const json *>(node); }
} // namespace

//===----------------------------------------------------------------------===//
// JsonDocument
//===----------------------------------------------------------------------===//

JsonDocument::~JsonDocument() = default;

template <typename Builder>
Status JsonDocument::build(std::string_view text, Builder &builder) {
  // The entry point where exceptions of the JSON library end.
  try {
    if (!json::sax_parse(text.begin(), text.end(), &builder))
      return invalid(fileName + ": " + builder.message);
  } catch (const std::exception &e) {
    return invalid(fileName + ": not valid JSON: " + e.what());
  }
  return {};
}

Result<std::unique_ptr<JsonDocument>>
JsonDocument::parseText(std::string_view text, std::string name) {
  std::unique_ptr<JsonDocument> doc(new JsonDocument());
  doc->fileName = std::move(name);
  doc->tree = std::make_unique<Tree>();
  TreeBuilder builder(doc->tree->root);
  MLA_RETURN_IF_ERROR(doc->build(text, builder));
  return doc;
}

Result<std::unique_ptr<JsonDocument>>
JsonDocument::parseMembers(std::string_view text, std::string name,
                           std::string_view object,
                           const MemberVisitor &visit) {
  std::unique_ptr<JsonDocument> doc(new JsonDocument());
  doc->fileName = std::move(name);
  doc->tree = std::make_unique<Tree>();
  JsonValue owner = doc->root();
  if (!object.empty())
    owner = owner.below(nullptr, std::string(object));
  MemberBuilder builder(doc->tree->root, object,
                        [&](const std::string &key, const json &value) {
                          visit(key, owner.below(&value, key));
                        });
  MLA_RETURN_IF_ERROR(doc->build(text, builder));
  return doc;
}

Result<std::unique_ptr<JsonDocument>>
JsonDocument::parseFile(const std::filesystem::path &path, uint64_t maxBytes) {
  MLA_ASSIGN_OR_RETURN(std::string text, readFile(path, maxBytes));
  return parseText(text, path.string());
}

JsonValue JsonDocument::root() { return JsonValue(this, &tree->root, {}); }

Status JsonDocument::status() const {
  if (errors.empty())
    return {};
  std::string all;
  for (const std::string &e : errors)
    all += (all.empty() ? "" : "\n") + e;
  return invalid(std::move(all));
}

void JsonDocument::record(std::string message) {
  constexpr size_t limit = 64; // A broken file need not fill a terminal.
  if (errors.size() < limit)
    errors.push_back(std::move(message));
}

//===----------------------------------------------------------------------===//
// JsonValue
//===----------------------------------------------------------------------===//

bool JsonValue::present() const { return node && !asJson(node)->is_null(); }
bool JsonValue::isObject() const { return node && asJson(node)->is_object(); }
bool JsonValue::isArray() const { return node && asJson(node)->is_array(); }
bool JsonValue::isString() const { return node && asJson(node)->is_string(); }
bool JsonValue::isInteger() const {
  return node && asJson(node)->is_number_integer();
}
bool JsonValue::isNumber() const { return node && asJson(node)->is_number(); }
bool JsonValue::isBoolean() const { return node && asJson(node)->is_boolean(); }

JsonValue JsonValue::below(const void *child, std::string key) const {
  return JsonValue(doc, child,
                   std::make_shared<const Place>(Place{place, std::move(key)}));
}

JsonValue JsonValue::operator[](std::string_view key) const {
  std::string name(key);
  const void *child = nullptr;
  if (isObject())
    if (auto it = asJson(node)->find(name); it != asJson(node)->end())
      child = &*it;
  return below(child, std::move(name));
}

JsonValue JsonValue::at(size_t index) const {
  bool inside = isArray() && index < asJson(node)->size();
  return below(inside ? &(*asJson(node))[index] : nullptr,
               std::to_string(index));
}

std::string JsonValue::pointer() const {
  std::string text;
  for (const Place *p = place.get(); p; p = p->above.get())
    text.insert(0, "/" + escapePointer(p->key));
  return text;
}

size_t JsonValue::size() const {
  return isArray() || isObject() ? asJson(node)->size() : 0;
}

int64_t JsonValue::integer(int64_t low, int64_t high) const {
  if (isInteger()) {
    int64_t v = asJson(node)->get<int64_t>();
    if (v >= low && v <= high)
      return v;
  }
  if (high >= maxExactInteger)
    fail("an integer of at least " + std::to_string(low));
  else
    fail("an integer from " + std::to_string(low) + " to " +
         std::to_string(high));
  return std::clamp<int64_t>(0, low, high);
}

double JsonValue::number() const {
  if (isNumber())
    return asJson(node)->get<double>();
  fail("a number");
  return 0.0;
}

bool JsonValue::boolean() const {
  if (isBoolean())
    return asJson(node)->get<bool>();
  fail("true or false");
  return false;
}

std::string JsonValue::string() const {
  if (isString())
    return asJson(node)->get<std::string>();
  fail("a string");
  return {};
}

std::vector<JsonValue> JsonValue::elements() const {
  std::vector<JsonValue> out;
  if (!isArray()) {
    fail("an array");
    return out;
  }
  for (size_t i = 0, n = size(); i < n; ++i)
    out.push_back(at(i));
  return out;
}

std::vector<std::pair<std::string, JsonValue>> JsonValue::members() const {
  std::vector<std::pair<std::string, JsonValue>> out;
  if (!isObject()) {
    fail("an object");
    return out;
  }
  for (auto it = asJson(node)->begin(); it != asJson(node)->end(); ++it)
    out.emplace_back(it.key(), below(&it.value(), it.key()));
  return out;
}

void JsonValue::fail(std::string_view expected) const {
  failWith("expected " + std::string(expected) + ", found " + describe());
}

void JsonValue::failWith(std::string_view message) const {
  doc->record(doc->name() + ": at " + (place ? pointer() : "the root") + ": " +
              std::string(message));
}

std::string JsonValue::describe() const {
  return node ? describeValue(*asJson(node)) : "nothing";
}

std::string JsonValue::dump() const {
  return node ? dumpValue(*asJson(node)) : "nothing";
}

const std::string &JsonValue::file() const { return doc->name(); }

//===----------------------------------------------------------------------===//
// Files
//===----------------------------------------------------------------------===//

Result<std::string> readFile(const std::filesystem::path &path,
                             uint64_t maxBytes) {
  std::error_code ec;
  if (!std::filesystem::exists(path, ec))
    return notFound(path.string() + ": no such file");
  if (!std::filesystem::is_regular_file(path, ec))
    return invalid(path.string() + ": expected a file, found " +
                   (std::filesystem::is_directory(path, ec)
                        ? "a folder"
                        : "something that is no regular file"));
  uint64_t size = std::filesystem::file_size(path, ec);
  if (ec)
    return ioError(path.string() + ": " + ec.message());
  if (size > maxBytes)
    return invalid(path.string() + ": expected at most " +
                   std::to_string(maxBytes) + " bytes, found " +
                   std::to_string(size));
  std::ifstream in(path, std::ios::binary);
  std::string text(size, '\0');
  if (!in || !in.read(text.data(), static_cast<std::streamsize>(size)))
    return ioError(path.string() + ": cannot be read");
  return text;
}

} // namespace mla
