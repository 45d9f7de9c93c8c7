//===- ProcessGroup.cpp - a process a rank --------------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/cli/ProcessGroup.h"
#include "runtime/collectives/Collectives.h"
#include "runtime/collectives/host/Sockets.h"
#include <cstdlib>
#include <iostream>
#include <streambuf>

namespace mla::cli {
namespace {

/// How long ranks wait for one that works by itself: reads its input, writes its
/// output. One that ends is noticed at once.
constexpr std::chrono::hours patience(24);

const char *fromEnvironment(const char *name) { return std::getenv(name); }

/// Takes everything.
class Nowhere final : public std::streambuf {
  int_type overflow(int_type c) override { return traits_type::not_eof(c); }
  std::streamsize xsputn(const char *, std::streamsize count) override {
    return count;
  }
};

} // namespace

Result<std::unique_ptr<ProcessGroup>>
ProcessGroup::join(const std::filesystem::path &plan,
                   std::chrono::milliseconds timeout,
                   collectives::Lookup lookup) {
  MLA_ASSIGN_OR_RETURN(std::optional<collectives::World> world,
                       collectives::worldFromEnvironment(lookup));
  if (!world)
    return std::unique_ptr<ProcessGroup>();
  collectives::SocketOptions options;
  options.rank = world->rank;
  options.size = world->size;
  options.address = world->address;
  options.port = world->port;
  options.timeout = timeout;
  MLA_ASSIGN_OR_RETURN(options.group, plan::hashFile(plan / "plan.json"));
  MLA_ASSIGN_OR_RETURN(std::unique_ptr<collectives::Transport> link,
                       collectives::joinSocketGroup(options));
  return std::unique_ptr<ProcessGroup>(
      new ProcessGroup(std::move(link), world->localRank.value_or(-1)));
}

Status ProcessGroup::share(std::string &text) {
  auto before = link->timeout();
  link->setTimeout(patience);
  collectives::Collectives all(*link);
  uint64_t size = text.size();
  MLA_RETURN_IF_ERROR(all.broadcast(std::as_writable_bytes(std::span(&size, 1)),
                                    0, "the size of the input"));
  text.resize(size);
  MLA_RETURN_IF_ERROR(
      all.broadcast(std::as_writable_bytes(std::span(text)), 0, "the input"));
  link->setTimeout(before);
  return {};
}

Status ProcessGroup::finish(const Status &status) {
  if (!status.ok()) {
    link->abort(status);
    return status;
  }
  link->setTimeout(patience);
  return collectives::Collectives(*link).barrier("the end");
}

Status runInGroup(PlanOptions &options,
                  const std::function<Status(ProcessGroup *, std::ostream &,
                                             std::ostream &)> &command) {
  MLA_ASSIGN_OR_RETURN(std::unique_ptr<ProcessGroup> group,
                       ProcessGroup::join(options.plan,
                                          options.engine.collectiveTimeout,
                                          fromEnvironment));
  if (!group)
    return command(nullptr, std::cout, std::cerr);
  options.engine.group = &group->transport();
  options.engine.localRank = group->localRank();
  if (group->isFirst())
    return group->finish(command(group.get(), std::cout, std::cerr));
  Nowhere nowhere;
  std::ostream silent(&nowhere);
  return group->finish(command(group.get(), silent, silent))
      .withContext("rank " + std::to_string(group->rank()));
}

Status checkAlone(const char *command) {
  MLA_ASSIGN_OR_RETURN(std::optional<collectives::World> world,
                       collectives::worldFromEnvironment(fromEnvironment));
  if (!world)
    return {};
  return unsupported(std::string("mla-run ") + command +
                     " is one process, with a thread for each rank; found "
                     "process " +
                     std::to_string(world->rank) + " of " +
                     std::to_string(world->size) + " (" + world->source + ")");
}

} // namespace mla::cli
