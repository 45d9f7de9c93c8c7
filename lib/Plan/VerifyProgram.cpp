//===- VerifyProgram.cpp - checks of a plan's programs --------------------===//
//
// Part of mla. What makes a program safe to run: arguments fit signatures,
// sizes hold at the bounds, and no launch reads scratch memory that nothing
// wrote or that another live buffer shares.
//
// The sizes are computed once, at the bounds. That is enough for smaller steps
// because dimensions of workspaces must be monotone (Expr::isMonotone).
//
//===----------------------------------------------------------------------===//
#include "Verifier.h"
#include <algorithm>
#include <map>
#include <queue>
#include <tuple>

namespace mla::plan::detail {
namespace {
constexpr uint64_t alignment = 64;

SymbolValues smallestStep() {
  SymbolValues values;
  values.values.fill(1);
  values[Symbol::Rank] = 0;
  return values;
}

bool reads(Access access) { return access != Access::Write; }
bool writes(Access access) { return access != Access::Read; }
} // namespace

void Verifier::programs() {
  range(plan.maxPages, 1, maxSequencePages, "/max_pages");
  if (plan.programs.empty())
    fail("/programs", "expected at least one program, found none");
  std::unordered_set<std::string_view> seen;
  for (size_t i = 0; i < plan.programs.size(); ++i) {
    const Program &p = plan.programs[i];
    std::string at = "/programs/" + std::to_string(i);
    uniqueName(p.name, at + "/name", seen);
    if (i > 0) {
      const Program &q = plan.programs[i - 1];
      if (std::tie(p.maxTokens, p.maxSequences, p.maxOutputs) <=
          std::tie(q.maxTokens, q.maxSequences, q.maxOutputs))
        fail(at, "expected bounds above those of " + quote(q.name) +
                     " (max_tokens, then max_sequences, then max_outputs), "
                     "found " +
                     quote(p.name) + " with " + std::to_string(p.maxTokens) +
                     ", " + std::to_string(p.maxSequences) + ", " +
                     std::to_string(p.maxOutputs));
    }
    program(p, at, /*sampling=*/false);
  }
}

void Verifier::sampling() {
  if (!plan.sampling)
    return;
  const Program &p = *plan.sampling;
  if (!isName(p.name))
    fail("/sampling/name", "expected a name, found " + quote(p.name));
  for (const Program &step : plan.programs)
    if (step.maxOutputs > p.maxOutputs)
      return fail("/sampling/max_outputs",
                  "expected at least the " + std::to_string(step.maxOutputs) +
                      " of program " + quote(step.name) + ", found " +
                      std::to_string(p.maxOutputs));
  program(p, "/sampling", /*sampling=*/true);
}

void Verifier::program(const Program &p, const std::string &at,
                       bool sampling) {
  size_t before = count;
  range(p.maxTokens, 1, maxStep, at + "/max_tokens");
  if (p.maxTokens >= 1) {
    range(p.maxSequences, 1, std::min(p.maxTokens, maxStep),
          at + "/max_sequences");
    range(p.maxOutputs, 1, std::min(p.maxTokens, maxStep), at + "/max_outputs");
  }
  if (p.workspaceBytes > maxInteger)
    fail(at + "/workspace_bytes", "expected less than 2^53 bytes, found " +
                                      std::to_string(p.workspaceBytes));
  if (count != before || plan.maxPages < 1 || plan.maxPages > maxSequencePages)
    return; // Nothing can be evaluated.

  ProgramState state{p, at, sampling, {}, {}};
  state.points[0] = {"the bounds", bounds(plan, p)};
  state.points[1] = {"the smallest step", smallestStep()};
  state.points[2] = {"the bounds and the largest cache", bounds(plan, p)};
  state.points[2].symbols[Symbol::Capacity] = maxCapacity;

  std::unordered_set<std::string_view> seen;
  state.usage.resize(p.workspaces.size());
  for (size_t i = 0; i < p.workspaces.size(); ++i) {
    uniqueName(p.workspaces[i].name,
               at + "/workspaces/" + std::to_string(i) + "/name", seen);
    workspace(state, i);
  }
  for (size_t i = 0; i < p.launches.size(); ++i)
    launch(state, i);
  overlaps(state);
  if (!state.resultWritten)
    fail(at + "/launches",
         std::string("expected a launch that writes the port ") +
             (sampling ? "sampled" : "logits") + ", found none");
}

void Verifier::workspace(ProgramState &state, size_t index) {
  const Workspace &w = state.program.workspaces[index];
  std::string at = state.at + "/workspaces/" + std::to_string(index);
  size_t before = count;
  if (!elementBytes(w.format))
    fail(at + "/format", "expected a format without block scales, found " +
                             std::string(formatName(w.format)));
  if (w.offset % alignment != 0)
    fail(at + "/offset", "expected a multiple of " + std::to_string(alignment) +
                             ", found " + std::to_string(w.offset));
  if (w.shape.size() > maxRank)
    fail(at + "/shape", "expected at most " + std::to_string(maxRank) +
                            " dimensions, found " +
                            std::to_string(w.shape.size()));
  for (size_t i = 0; i < w.shape.size(); ++i) {
    std::string where = at + "/shape/" + std::to_string(i);
    const Expr &d = w.shape[i];
    if (d.uses(Symbol::Capacity) || d.uses(Symbol::Rank))
      fail(where, "expected neither capacity nor rank in the shape of a "
                  "workspace, found " +
                      quote(d.str()));
    else if (!d.isMonotone())
      fail(where, "expected a dimension that grows with the symbols (no "
                  "subtraction, no negative constant, no symbol in a divisor), "
                  "found " +
                      quote(d.str()));
    else if (auto least = evaluate(state, d, where); least && *least < 1)
      fail(where, "expected a dimension of at least 1, found " +
                      quote(d.str()) + " = " + std::to_string(*least));
  }
  if (count != before)
    return;
  Result<uint64_t> bytes =
      bufferBytes(w.format, w.shape, state.points[0].symbols);
  if (!bytes.ok())
    return fail(at + "/shape", bytes.status().message());
  if (w.offset > state.program.workspaceBytes ||
      *bytes > state.program.workspaceBytes - w.offset)
    return fail(at + "/offset",
                "expected " + quote(w.name) + " to end within the arena of " +
                    std::to_string(state.program.workspaceBytes) +
                    " bytes, found offset " + std::to_string(w.offset) +
                    " and " + std::to_string(*bytes) + " bytes at the bounds");
  state.usage[index].bytes = *bytes;
}

std::optional<int64_t> Verifier::evaluate(const ProgramState &state,
                                          const Expr &expr,
                                          const std::string &at) {
  std::optional<int64_t> least;
  for (const Point &point : state.points) {
    Result<int64_t> value = expr.evaluate(point.symbols);
    if (!value.ok()) {
      fail(at, "expected a value at " + std::string(point.where) + ", found " +
                   value.status().message());
      return std::nullopt;
    }
    least = least ? std::min(*least, *value) : *value;
  }
  return least;
}

void Verifier::launch(ProgramState &state, size_t index) {
  const Launch &l = state.program.launches[index];
  std::string at = state.at + "/launches/" + std::to_string(index);
  text(l.origin, at + "/origin");
  if (auto least = evaluate(state, l.grid, at + "/grid"); least && *least < 0)
    fail(at + "/grid", "expected a grid of at least 0, found " +
                           quote(l.grid.str()) + " = " +
                           std::to_string(*least));
  if (auto least = evaluate(state, l.weightBytes, at + "/weight_bytes");
      least && *least < 0)
    fail(at + "/weight_bytes", "expected at least 0 bytes, found " +
                                   quote(l.weightBytes.str()) + " = " +
                                   std::to_string(*least));
  if (l.kernel >= plan.kernels.size())
    return fail(at + "/kernel", "expected a kernel from 0 to " +
                                    std::to_string(plan.kernels.size()) +
                                    " (exclusive), found " +
                                    std::to_string(l.kernel));
  const Kernel &k = plan.kernels[l.kernel];
  if (k.collective != Collective::None && !(l.grid == Expr(1)))
    fail(at + "/grid", "expected 1 for the collective " + quote(k.name) +
                           ", found " + quote(l.grid.str()));
  if (l.arguments.size() != k.parameters.size())
    return fail(at + "/arguments",
                "expected " + std::to_string(k.parameters.size()) +
                    " arguments for kernel " + quote(k.name) + ", found " +
                    std::to_string(l.arguments.size()));
  // Counted as written only after the whole launch: its items run in any order.
  std::vector<uint32_t> written;
  for (size_t i = 0; i < l.arguments.size(); ++i)
    argument(state, l, index, i, written);
  for (uint32_t w : written)
    state.usage[w].written = true;
}

void Verifier::argument(ProgramState &state, const Launch &launch,
                        size_t launchIndex, size_t index,
                        std::vector<uint32_t> &written) {
  const Argument &argument = launch.arguments[index];
  const Kernel &kernel = plan.kernels[launch.kernel];
  const Parameter &parameter = kernel.parameters[index];
  auto complain = [&](const std::string &expected, const std::string &found) {
    fail(state.at + "/launches/" + std::to_string(launchIndex) + "/arguments/" +
             std::to_string(index),
         "expected " + expected + ", found " + found + " (kernel " +
             quote(kernel.name) + " for " + quote(launch.origin) + ")");
  };
  auto outOfRange = [&](const char *what, size_t size, uint32_t found) {
    complain(std::string("a ") + what + " from 0 to " + std::to_string(size) +
                 " (exclusive)",
             std::to_string(found));
  };
  /// Compares with the parameter; true if the argument fits.
  auto fits = [&](Parameter::Kind kind, Format format,
                  const std::string &what) {
    if (kind == parameter.kind && format == parameter.format)
      return true;
    std::string found =
        what +
        (kind == Parameter::Kind::Table ? ", a table of " : ", a buffer of ");
    complain("an argument for \"" + parameterText(parameter) + "\"",
             found + std::string(formatName(format)));
    return false;
  };

  if (auto *scalar = std::get_if<Expr>(&argument.value)) {
    if (parameter.kind != Parameter::Kind::Scalar)
      return complain("an argument for \"" + parameterText(parameter) + "\"",
                      "scalar " + quote(scalar->str()));
    evaluate(state, *scalar,
             state.at + "/launches/" + std::to_string(launchIndex) +
                 "/arguments/" + std::to_string(index) + "/scalar");
  } else if (std::get_if<PeersRef>(&argument.value)) {
    if (parameter.kind != Parameter::Kind::Peers)
      complain("an argument for \"" + parameterText(parameter) + "\"", "peers");
  } else if (auto *ref = std::get_if<WeightRef>(&argument.value)) {
    if (ref->index >= plan.weights.size())
      return outOfRange("weight", plan.weights.size(), ref->index);
    const Weight &w = plan.weights[ref->index];
    if (!fits(w.isTable() ? Parameter::Kind::Table : Parameter::Kind::Buffer,
              w.format, "weight " + quote(w.name)))
      return;
    if (!w.isTable() && writes(parameter.access))
      complain("weights to be only read", "weight " + quote(w.name) +
                                              " for \"" +
                                              parameterText(parameter) + "\"");
  } else if (auto *ref = std::get_if<CacheRef>(&argument.value)) {
    if (ref->index >= plan.caches.size())
      return outOfRange("cache", plan.caches.size(), ref->index);
    const Cache &c = plan.caches[ref->index];
    fits(Parameter::Kind::Buffer, c.format, "cache " + quote(c.name));
  } else if (auto *ref = std::get_if<WorkspaceRef>(&argument.value)) {
    if (ref->index >= state.usage.size())
      return outOfRange("workspace", state.usage.size(), ref->index);
    const Workspace &w = state.program.workspaces[ref->index];
    if (!fits(Parameter::Kind::Buffer, w.format, "workspace " + quote(w.name)))
      return;
    Usage &usage = state.usage[ref->index];
    if (!usage.touched)
      usage.first = launchIndex;
    usage.touched = true;
    usage.last = launchIndex;
    if (reads(parameter.access) && !usage.written)
      complain("an earlier launch that writes workspace " + quote(w.name),
               "none before \"" + parameterText(parameter) + "\"");
    if (writes(parameter.access))
      written.push_back(ref->index);
  } else if (auto *port = std::get_if<Port>(&argument.value)) {
    if (static_cast<size_t>(*port) >= portCount)
      return outOfRange("port", portCount, static_cast<uint32_t>(*port));
    std::string what = "port " + std::string(portName(*port));
    if (!fits(Parameter::Kind::Buffer, portFormat(*port), what))
      return;
    std::optional<Access> usual = portAccess(*port, state.sampling);
    if (!usual)
      return complain(state.sampling ? "a port of sampling" : "a port of a step",
                      what);
    if (parameter.access != *usual)
      complain(what + (usual == Access::Write       ? " to be only written"
                       : usual == Access::ReadWrite ? " to be read and written"
                                                    : " to be only read"),
               "\"" + parameterText(parameter) + "\"");
    state.resultWritten |= *port == (state.sampling ? Port::Sampled : Port::Logits) &&
                           writes(parameter.access);
  }
}

/// Sweeps over the launches with the set of live workspaces in order of offset.
/// As long as those do not overlap, a newcomer can only meet its neighbours.
void Verifier::overlaps(const ProgramState &state) {
  const std::vector<Workspace> &spaces = state.program.workspaces;
  const std::vector<Usage> &usage = state.usage;
  std::vector<size_t> order;
  for (size_t i = 0; i < usage.size(); ++i)
    if (usage[i].touched && usage[i].bytes > 0)
      order.push_back(i);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(usage[a].first, a) < std::pair(usage[b].first, b);
  });

  using End = std::pair<size_t, size_t>; // last launch, workspace
  std::priority_queue<End, std::vector<End>, std::greater<End>> ends;
  std::map<uint64_t, size_t> live;
  auto end = [&](size_t i) { return spaces[i].offset + usage[i].bytes; };
  for (size_t i : order) {
    while (!ends.empty() && ends.top().first < usage[i].first) {
      live.erase(spaces[ends.top().second].offset);
      ends.pop();
    }
    std::optional<size_t> other;
    auto next = live.lower_bound(spaces[i].offset);
    if (next != live.end() && next->first < end(i))
      other = next->second;
    else if (next != live.begin() &&
             end(std::prev(next)->second) > spaces[i].offset)
      other = std::prev(next)->second;
    if (other) {
      auto show = [&](size_t w) {
        return quote(spaces[w].name) + " at bytes " +
               std::to_string(spaces[w].offset) + " to " +
               std::to_string(end(w)) + " in launches " +
               std::to_string(usage[w].first) + " to " +
               std::to_string(usage[w].last);
      };
      fail(state.at + "/workspaces/" + std::to_string(i),
           "expected no overlap of live workspaces, found " + show(i) +
               " and " + show(*other));
      continue;
    }
    live.emplace(spaces[i].offset, i);
    ends.emplace(usage[i].last, i);
  }
}

} // namespace mla::plan::detail
