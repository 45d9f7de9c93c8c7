//===- Expr.cpp - expressions over step symbols ---------------------------===//
//
// Part of mla. Parser, evaluation and printing. Expressions come from files, so
// the parser bounds what it accepts: text length, nesting (it recurses) and the
// number of nodes. The node limit also bounds the evaluation stack, which lives
// on the machine stack because the runtime evaluates thousands of expressions a
// step.
//
//===----------------------------------------------------------------------===//
#include "mla/Plan/Expr.h"
#include <algorithm>
#include <charconv>
#include <limits>

namespace mla::plan {
namespace {
// Canonical text adds at most spaces to what was parsed: 256 nodes need less
// than 9,000 characters, so parse(str()) never meets the length limit.
constexpr size_t maxTextLength = 16384;
constexpr size_t maxNodes = 256;
constexpr size_t maxDepth = 32;

constexpr std::array<std::string_view, symbolCount> symbolNames = {
    "tokens", "sequences", "outputs", "pages", "capacity", "rank"};

bool isDigit(char c) { return c >= '0' && c <= '9'; }
bool isWordChar(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         isDigit(c);
}

std::string quoteShort(std::string_view text) {
  constexpr size_t limit = 60;
  std::string out = "\"";
  for (char c : text.substr(0, limit)) {
    bool printable = static_cast<unsigned char>(c) >= 0x20 &&
                     static_cast<unsigned char>(c) < 0x7F;
    out += printable ? c : '?';
  }
  return out + (text.size() > limit ? "...\"" : "\"");
}

std::string describe(const SymbolValues &symbols) {
  std::string out;
  for (size_t i = 0; i < symbolCount; ++i)
    out += (i ? ", " : "") + std::string(symbolNames[i]) + "=" +
           std::to_string(symbols.values[i]);
  return out;
}
} // namespace

std::string_view symbolName(Symbol symbol) {
  size_t i = static_cast<size_t>(symbol);
  return i < symbolCount ? symbolNames[i] : "unknown";
}

//===----------------------------------------------------------------------===//
// Parser
//===----------------------------------------------------------------------===//

/// Recursive descent; appends to `out.postfix`. After a failure `error` is set
/// and every function returns false.
class ExprParser {
public:
  explicit ExprParser(std::string_view text) : text(text) {}

  Result<Expr> run() {
    if (text.size() > maxTextLength)
      return invalid("expression " + quoteShort(text) + ": expected at most " +
                     std::to_string(maxTextLength) + " characters, found " +
                     std::to_string(text.size()));
    out.postfix.clear();
    if (sum(0)) {
      skipSpaces();
      if (position == text.size())
        return std::move(out);
      fail("an operator or the end");
    }
    return invalid("expression " + quoteShort(text) + ": " + error);
  }

private:
  using Kind = Expr::Kind;

  bool sum(size_t depth) {
    if (!product(depth))
      return false;
    while (true) {
      Kind kind = peek() == '+' ? Kind::Add : Kind::Sub;
      if (!take('+') && !take('-'))
        return true;
      if (!product(depth) || !push(kind, 0))
        return false;
    }
  }

  bool product(size_t depth) {
    if (!primary(depth))
      return false;
    while (take('*'))
      if (!primary(depth) || !push(Kind::Mul, 0))
        return false;
    return true;
  }

  bool primary(size_t depth) {
    if (depth >= maxDepth)
      return failWith("nested deeper than " + std::to_string(maxDepth));
    char c = peek();
    if (isDigit(c) ||
        (c == '-' && position + 1 < text.size() && isDigit(text[position + 1])))
      return integer();
    if (take('('))
      return sum(depth + 1) && expect(')');
    if (isWordChar(c))
      return word(depth);
    return fail("an integer, a symbol, a function or '('");
  }

  bool integer() {
    int64_t value = 0;
    const char *begin = text.data() + position;
    auto [end, ec] = std::from_chars(begin, text.data() + text.size(), value);
    if (ec == std::errc::result_out_of_range)
      return failWith("an integer does not fit 64 bits");
    position += static_cast<size_t>(end - begin);
    if (position < text.size() && isWordChar(text[position]))
      return fail("an operator after the integer");
    return push(Kind::Constant, value);
  }

  bool word(size_t depth) {
    size_t begin = position;
    while (position < text.size() && isWordChar(text[position]))
      ++position;
    std::string_view name = text.substr(begin, position - begin);
    for (size_t i = 0; i < symbolCount; ++i)
      if (name == symbolNames[i])
        return push(Kind::Symbol, static_cast<int64_t>(i));
    Kind kind;
    if (name == "ceildiv")
      kind = Kind::CeilDiv;
    else if (name == "min")
      kind = Kind::Min;
    else if (name == "max")
      kind = Kind::Max;
    else
      return failWith("expected a symbol or a function, found " +
                      quoteShort(name));
    return expect('(') && sum(depth + 1) && expect(',') && sum(depth + 1) &&
           expect(')') && push(kind, 0);
  }

  bool push(Kind kind, int64_t value) {
    if (out.postfix.size() >= maxNodes)
      return failWith("more than " + std::to_string(maxNodes) + " terms");
    out.postfix.push_back({kind, value});
    return true;
  }

  void skipSpaces() {
    while (position < text.size() && text[position] == ' ')
      ++position;
  }
  char peek() {
    skipSpaces();
    return position < text.size() ? text[position] : '\0';
  }
  bool take(char c) {
    // A NUL inside the text must not be taken for the end.
    if (peek() != c || position >= text.size())
      return false;
    ++position;
    return true;
  }
  bool expect(char c) { return take(c) || fail(std::string{'\'', c, '\''}); }
  bool fail(const std::string &expected) {
    skipSpaces();
    return failWith("expected " + expected + ", found " +
                    (position < text.size()
                         ? quoteShort(text.substr(position, 1))
                         : std::string("the end")) +
                    " at column " + std::to_string(position + 1));
  }
  bool failWith(std::string message) {
    if (error.empty())
      error = std::move(message);
    return false;
  }

  std::string_view text;
  size_t position = 0;
  Expr out;
  std::string error;
};

Result<Expr> Expr::parse(std::string_view text) {
  return ExprParser(text).run();
}

//===----------------------------------------------------------------------===//
// Expr
//===----------------------------------------------------------------------===//

Expr::Expr(int64_t constant) : postfix{{Kind::Constant, constant}} {}
Expr::Expr(Symbol symbol)
    : postfix{{Kind::Symbol, static_cast<int64_t>(symbol)}} {}

Result<int64_t> Expr::evaluate(const SymbolValues &symbols) const {
  std::array<int64_t, maxNodes> stack;
  size_t top = 0;
  auto error = [&](const char *what) {
    return invalid("expression " + quoteShort(str()) + ": " + what + " at " +
                   describe(symbols));
  };
  for (const Node &node : postfix) {
    if (node.kind == Kind::Constant || node.kind == Kind::Symbol) {
      if (top == stack.size())
        return internalError("an expression has too many terms");
      if (node.kind == Kind::Symbol &&
          static_cast<size_t>(node.value) >= symbolCount)
        return internalError("an expression uses an unknown symbol");
      stack[top++] = node.kind == Kind::Constant
                         ? node.value
                         : symbols.values[static_cast<size_t>(node.value)];
      continue;
    }
    if (top < 2)
      return internalError("an expression lacks an operand");
    int64_t b = stack[--top], &a = stack[top - 1];
    switch (node.kind) {
    case Kind::Add:
      if (__builtin_add_overflow(a, b, &a))
        return error("overflow");
      break;
    case Kind::Sub:
      if (__builtin_sub_overflow(a, b, &a))
        return error("overflow");
      break;
    case Kind::Mul:
      if (__builtin_mul_overflow(a, b, &a))
        return error("overflow");
      break;
    case Kind::CeilDiv:
      if (b < 1)
        return error("division by less than one");
      a = a / b + (a % b > 0 ? 1 : 0);
      break;
    case Kind::Min:
      a = std::min(a, b);
      break;
    default:
      a = std::max(a, b);
      break;
    }
  }
  if (top != 1)
    return internalError("an expression does not end in one value");
  return stack[0];
}

bool Expr::isConstant() const {
  return std::none_of(postfix.begin(), postfix.end(),
                      [](const Node &n) { return n.kind == Kind::Symbol; });
}

bool Expr::uses(Symbol symbol) const {
  return std::any_of(postfix.begin(), postfix.end(), [&](const Node &n) {
    return n.kind == Kind::Symbol && n.value == static_cast<int64_t>(symbol);
  });
}

bool Expr::isMonotone() const {
  if (isConstant())
    return true;
  // Whether the operand on the stack has symbols; a divisor must have none.
  std::vector<bool> symbolic;
  for (const Node &node : postfix) {
    switch (node.kind) {
    case Kind::Constant:
      if (node.value < 0)
        return false;
      symbolic.push_back(false);
      continue;
    case Kind::Symbol:
      symbolic.push_back(true);
      continue;
    case Kind::Sub:
      return false;
    default:
      break;
    }
    if (symbolic.size() < 2)
      return false;
    bool b = symbolic.back();
    symbolic.pop_back();
    if (node.kind == Kind::CeilDiv && b)
      return false;
    symbolic.back() = symbolic.back() || b;
  }
  return true;
}

std::string Expr::str() const {
  // Binding strength: 0 sum, 1 product, 2 everything else.
  struct Piece {
    std::string text;
    int strength;
  };
  std::vector<Piece> stack;
  auto wrapped = [](const Piece &p, int least) {
    return p.strength < least ? "(" + p.text + ")" : p.text;
  };
  for (const Node &node : postfix) {
    if (node.kind == Kind::Constant) {
      stack.push_back({std::to_string(node.value), 2});
      continue;
    }
    if (node.kind == Kind::Symbol) {
      stack.push_back(
          {std::string(symbolName(static_cast<Symbol>(node.value))), 2});
      continue;
    }
    if (stack.size() < 2)
      return "0"; // Moved from; no other way leads here.
    Piece b = std::move(stack.back());
    stack.pop_back();
    Piece &a = stack.back();
    // All three operators associate to the left: the right operand needs
    // parentheses at equal strength, so that the tree survives a round trip.
    switch (node.kind) {
    case Kind::Add:
      a = {wrapped(a, 0) + " + " + wrapped(b, 1), 0};
      break;
    case Kind::Sub:
      a = {wrapped(a, 0) + " - " + wrapped(b, 1), 0};
      break;
    case Kind::Mul:
      a = {wrapped(a, 1) + " * " + wrapped(b, 2), 1};
      break;
    default: {
      const char *name = node.kind == Kind::CeilDiv ? "ceildiv("
                         : node.kind == Kind::Min   ? "min("
                                                    : "max(";
      a = {name + a.text + ", " + b.text + ")", 2};
      break;
    }
    }
  }
  return stack.size() == 1 ? std::move(stack.back().text) : "0";
}

} // namespace mla::plan
