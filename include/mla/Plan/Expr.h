//===- Expr.h - expressions over step symbols -------------------*- C++ -*-===//
//
// Part of mla. Shapes, grids and scalar arguments of a plan are expressions
// over a closed set of symbols, which the runtime knows before each step:
//
//   tokens     query tokens of the step, over all sequences
//   sequences  sequences of the step
//   outputs    rows of logits asked for
//   pages      columns of the page table (the most pages a sequence has)
//   capacity   pages of the whole cache, fixed when the plan is loaded
//   rank       from 0 on, which of the plan's ranks runs, likewise
//
// Syntax: integers, symbols, + - * ceildiv(a, b) min(a, b) max(a, b), and
// parentheses; "min(tokens * 8, 384) * 16". An integer may be negative ("-1").
// At most 256 terms, nested at most 32 deep. All values are int64; overflow and
// division by less than one are errors, never wrapped.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_PLAN_EXPR_H
#define MLA_PLAN_EXPR_H

#include "mla/Support/Status.h"
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mla::plan {

enum class Symbol { Tokens, Sequences, Outputs, Pages, Capacity, Rank };
constexpr size_t symbolCount = 6;
std::string_view symbolName(Symbol symbol);

/// The value of every symbol in one step.
struct SymbolValues {
  std::array<int64_t, symbolCount> values{};
  int64_t &operator[](Symbol s) { return values[static_cast<size_t>(s)]; }
  int64_t operator[](Symbol s) const { return values[static_cast<size_t>(s)]; }
};

/// An immutable expression, kept in postfix form.
class Expr {
public:
  Expr() : Expr(int64_t(0)) {}
  Expr(int64_t constant);
  Expr(Symbol symbol);
  static Result<Expr> parse(std::string_view text);

  Result<int64_t> evaluate(const SymbolValues &symbols) const;
  bool isConstant() const;
  bool uses(Symbol symbol) const;
  /// Whether it can only grow when symbols grow from 1: it is a constant, or
  /// has no subtraction, no negative constant and no symbol in a divisor. The
  /// dimensions of workspaces must, so that what fits at the bounds fits always.
  bool isMonotone() const;
  /// Canonical text; parse(str()) is the same expression.
  std::string str() const;
  bool operator==(const Expr &other) const { return str() == other.str(); }

private:
  enum class Kind { Constant, Symbol, Add, Sub, Mul, CeilDiv, Min, Max };
  struct Node {
    Kind kind;
    int64_t value; // the constant, or the symbol's number
  };
  std::vector<Node> postfix;
  friend class ExprParser;
};

} // namespace mla::plan

#endif // MLA_PLAN_EXPR_H
