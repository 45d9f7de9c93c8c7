//===- BoundProgram.cpp - a program of the plan with its addresses --------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/executor/BoundProgram.h"
#include <algorithm>

namespace mla::runtime {
namespace {

/// The address that `argument` stands for; 0 for an expression.
uint64_t resolve(const plan::Argument &argument, const plan::Program &program,
                 const Addresses &addresses) {
  if (auto *ref = std::get_if<plan::WeightRef>(&argument.value))
    return addresses.weights[ref->index];
  if (auto *ref = std::get_if<plan::CacheRef>(&argument.value))
    return addresses.caches[ref->index];
  if (auto *ref = std::get_if<plan::WorkspaceRef>(&argument.value))
    return addresses.workspace + program.workspaces[ref->index].offset;
  if (std::get_if<plan::PeersRef>(&argument.value))
    return addresses.peers;
  if (auto *port = std::get_if<plan::Port>(&argument.value))
    return addresses.ports[static_cast<size_t>(*port)];
  return 0;
}

} // namespace

BoundProgram::BoundProgram(const plan::Plan &plan, const plan::Program &program,
                           const Addresses &addresses)
    : program(program) {
  size_t total = 0;
  for (const plan::Launch &launch : program.launches)
    total += launch.arguments.size();
  arguments.reserve(total); // Dispatches keep views of it.
  for (const plan::Launch &launch : program.launches) {
    size_t first = arguments.size();
    for (const plan::Argument &argument : launch.arguments) {
      if (auto *expr = std::get_if<plan::Expr>(&argument.value))
        scalars.push_back({intern(*expr), arguments.size()});
      arguments.push_back(resolve(argument, program, addresses));
    }
    grids.push_back({intern(launch.grid), dispatches.size()});
    dispatches.push_back({launch.kernel, 0,
                          std::span<const uint64_t>(arguments).subspan(first),
                          &launch});
  }
}

size_t BoundProgram::intern(const plan::Expr &expr) {
  auto known = std::find(expressions.begin(), expressions.end(), expr);
  if (known == expressions.end())
    known = expressions.insert(known, expr);
  return static_cast<size_t>(known - expressions.begin());
}

Result<std::span<const hal::Dispatch>>
BoundProgram::prepare(const plan::SymbolValues &symbols) {
  if (current && current->values == symbols.values)
    return std::span<const hal::Dispatch>(dispatches);
  current.reset();
  std::vector<int64_t> values;
  for (const plan::Expr &expr : expressions) {
    Result<int64_t> value = expr.evaluate(symbols);
    if (!value.ok())
      return value.status().withContext("program " + program.name + ", '" +
                                        expr.str() + "'");
    values.push_back(*value);
  }
  for (const Use &use : scalars)
    arguments[use.target] = static_cast<uint64_t>(values[use.expression]);
  for (const Use &use : grids) {
    if (values[use.expression] < 0)
      return invalid("program " + program.name + ", " +
                     program.launches[use.target].origin + ": the grid '" +
                     expressions[use.expression].str() + "' is negative");
    dispatches[use.target].grid = values[use.expression];
  }
  current = symbols;
  return std::span<const hal::Dispatch>(dispatches);
}

} // namespace mla::runtime
