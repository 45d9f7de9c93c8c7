//===- CudaExchange.cpp - what ranks on GPUs exchange ---------------------===//
//
// Part of mla. Most is exchanged by the plan's kernels themselves, which get a table of
// the ranks' memory (collectives/p2p/Peers.h); what the plan leaves to the runtime,
// NCCL does in the stream.
//
//===----------------------------------------------------------------------===//
#include "runtime/hal/cuda/CudaDevice.h"
#include "runtime/hal/cuda/CudaModule.h"
#include <algorithm>
#include <cstdlib>

namespace mla::hal {
using namespace cuda;

namespace {

constexpr const char *connections = "CUDA_DEVICE_MAX_CONNECTIONS";
/// As many as the driver has at most.
constexpr int64_t maxConnections = 32;

/// Bytes of what the ranks gather in one launch, at most.
Result<uint64_t> gatheredBytes(const plan::Plan &plan) {
  uint64_t most = 0;
  auto look = [&](const plan::Program &program) -> Status {
    for (const plan::Launch &launch : program.launches) {
      if (plan.kernels[launch.kernel].collective != plan::Collective::AllGather)
        continue;
      plan::SymbolValues largest = plan::bounds(plan, program);
      uint64_t values = static_cast<uint64_t>(plan.ranks.count);
      for (size_t argument : {2, 3}) {
        auto *expr =
            std::get_if<plan::Expr>(&launch.arguments[argument].value);
        if (!expr)
          return invalid(launch.origin + ": gathers rows of unknown size");
        MLA_ASSIGN_OR_RETURN(int64_t value, expr->evaluate(largest));
        values *= static_cast<uint64_t>(std::max<int64_t>(value, 0));
      }
      most = std::max(most, values * sizeof(float));
    }
    return {};
  };
  for (const plan::Program &program : plan.programs)
    MLA_RETURN_IF_ERROR(look(program));
  return most;
}

} // namespace

Status CudaDevice::prepareSharedGpu(int64_t ranks) {
  if (ranks > maxConnections)
    return unsupported("one GPU runs at most " +
                       std::to_string(maxConnections) + " ranks, found " +
                       std::to_string(ranks));
  const char *set = std::getenv(connections);
  if (!set) {
    setenv(connections, std::to_string(maxConnections).c_str(), 0);
    return {};
  }
  if (std::strtol(set, nullptr, 10) < ranks)
    return invalid(std::to_string(ranks) + " ranks on one GPU need " +
                   connections + " of " + std::to_string(ranks) + " to " +
                   std::to_string(maxConnections) + ", found " + set);
  return {};
}

Status CudaDevice::connect(const plan::Plan &plan) {
  bool byRuntime = std::any_of(
      plan.kernels.begin(), plan.kernels.end(), [](const plan::Kernel &kernel) {
        return kernel.collective != plan::Collective::None;
      });
  if (!byRuntime && plan.exchangeBytes == 0)
    return {};
  if (!ranks)
    return unsupported("the plan's " + std::to_string(plan.ranks.count) +
                       " ranks exchange data, and this is one alone");
  p2p::Place place{*driver, device, context, stream};
  if (plan.exchangeBytes != 0) {
    MLA_ASSIGN_OR_RETURN(
        peers, p2p::Peers::connect(place, plan.exchangeBytes, path, *ranks));
  }
  if (byRuntime) {
    MLA_ASSIGN_OR_RETURN(std::shared_ptr<const nccl::Library> library,
                         nccl::Library::load(ncclFile));
    MLA_ASSIGN_OR_RETURN(
        group, nccl::Group::create(library, place, *ranks, ranks->timeout()));
    MLA_ASSIGN_OR_RETURN(uint64_t bytes, gatheredBytes(plan));
    MLA_ASSIGN_OR_RETURN(
        gathered, allocate(bytes, Access::Device, "rows of all ranks"));
    ncclVersion = library->version();
  }
  return {};
}

std::string CudaDevice::exchangeText() const {
  std::string text = peers ? peers->path() : "";
  if (group) {
    text += (peers ? ", NCCL " : "NCCL ") + ncclVersion;
    const char *off = std::getenv("NCCL_P2P_DISABLE");
    if (off && std::strtol(off, nullptr, 10) != 0)
      text += std::string(" in memory of the host (NCCL_P2P_DISABLE=") + off + ")";
  }
  return text;
}

Status CudaDevice::launchCollective(plan::Collective collective,
                                    const Dispatch &dispatch) {
  std::span<const uint64_t> arguments = dispatch.arguments;
  Address x = arguments[0], y = arguments[1];
  auto rows = static_cast<int64_t>(arguments[2]);
  auto xColumns = static_cast<int64_t>(arguments[3]);
  auto yColumns = static_cast<int64_t>(arguments[4]);
  if (collective == plan::Collective::AllReduce)
    return group->allReduce(x, y, rows * xColumns);
  // What NCCL gathers is each rank's rows, one rank behind the other.
  int64_t all = group->size() * xColumns;
  if (yColumns > all)
    return invalid("all_gather: expected columns of x that the ranks fill y with, "
                   "found " + std::to_string(xColumns) + " and " +
                   std::to_string(yColumns));
  if (rows == 1 && yColumns == all)
    return group->allGather(x, y, xColumns);
  MLA_RETURN_IF_ERROR(
      group->allGather(x, gathered->address(), rows * xColumns));
  for (int64_t r = 0; r < group->size(); ++r) {
    int64_t columns = std::min(xColumns, yColumns - r * xColumns);
    if (columns <= 0)
      break;
    Copy2D copy;
    copy.from = gathered->address() +
                static_cast<uint64_t>(r * rows * xColumns) * sizeof(float);
    copy.fromPitch = static_cast<size_t>(xColumns) * sizeof(float);
    copy.to = y + static_cast<uint64_t>(r * xColumns) * sizeof(float);
    copy.toPitch = static_cast<size_t>(yColumns) * sizeof(float);
    copy.widthBytes = static_cast<size_t>(columns) * sizeof(float);
    copy.height = static_cast<size_t>(rows);
    MLA_RETURN_IF_ERROR(check(driver->memcpy2DAsync(&copy, stream),
                              "cuMemcpy2DAsync", "to put gathered rows in order"));
  }
  return {};
}

bool CudaDevice::exchanges(const Module &module,
                           std::span<const Dispatch> list) {
  const auto &kernels = static_cast<const CudaModule &>(module).kernels;
  return std::any_of(list.begin(), list.end(), [&](const Dispatch &dispatch) {
    const CudaModule::Kernel &kernel = kernels[dispatch.kernel];
    return kernel.exchanges || kernel.collective != plan::Collective::None;
  });
}

Status CudaDevice::meet(const char *what) {
  return sharesDevice() ? ranks->barrier(what) : Status();
}

Status CudaDevice::finish(const std::string &attempt) {
  if (!peers && !group)
    return check(driver->streamSynchronize(stream), "cuStreamSynchronize",
                 attempt);
  p2p::Place place{*driver, device, context, stream};
  auto giveUp = [&] {
    if (peers)
      peers->abort();
    forgetGraphs();
    if (group)
      group->abort(ioError("another rank has ended"));
  };
  // Kernels of the plan have a time-out of their own.
  std::optional<std::chrono::milliseconds> patience;
  if (group)
    patience = ranks->timeout();
  Status status = p2p::waitForStream(place, *ranks, giveUp, patience);
  if (peers) {
    // What a kernel says comes first: others may have ended because of it.
    Status own = peers->check([&](uint32_t launch) {
      return launch < running.size() && running[launch].launch
                 ? running[launch].launch->origin
                 : "launch " + std::to_string(launch);
    });
    if (status.ok() || peers->timedOut())
      status = own;
  }
  running = {};
  if (status.ok())
    return {};
  if (Code code = driver->streamQuery(stream); Driver::isSticky(code))
    return check(code, "cuStreamQuery", attempt);
  // What the ranks have exchanged so far differs from now on.
  lost = status;
  return lost;
}

} // namespace mla::hal
