//===- HostExchange.cpp - a plan's collectives on the host ----------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/hal/host/HostExchange.h"
#include <algorithm>

namespace mla::hal {
namespace {

/// "all_gather of model.embed_tokens: expected WHAT, found 3 and 4".
Status wrongColumns(plan::Collective collective, std::string_view what,
                    const std::string &expected, int64_t x, int64_t y) {
  return invalid(std::string(plan::collectiveName(collective)) + " of " +
                 std::string(what) + ": expected " + expected + ", found " +
                 std::to_string(x) + " and " + std::to_string(y));
}

} // namespace

Result<float *> HostExchange::scratchFor(int64_t rows, int64_t columns,
                                         std::string_view what) {
  uint64_t bytes = static_cast<uint64_t>(rows) *
                   static_cast<uint64_t>(columns) * sizeof(float);
  if (scratch.bytes().size() < bytes) {
    MLA_ASSIGN_OR_RETURN(scratch,
                         runtime::HostMemory::allocate(
                             bytes, "exchanging " + std::string(what)));
  }
  return reinterpret_cast<float *>(scratch.bytes().data());
}

Status HostExchange::run(plan::Collective collective,
                         std::span<const uint64_t> arguments,
                         std::string_view what) {
  const auto *x = reinterpret_cast<const float *>(arguments[0]);
  auto *y = reinterpret_cast<float *>(arguments[1]);
  auto rows = static_cast<int64_t>(arguments[2]);
  auto xColumns = static_cast<int64_t>(arguments[3]);
  auto yColumns = static_cast<int64_t>(arguments[4]);
  int64_t ranks = collectives.size();
  auto wrong = [&](const char *expected) {
    return wrongColumns(collective, what, expected, xColumns, yColumns);
  };
  // Beyond this no buffer can be, and nothing below overflows.
  constexpr int64_t most = int64_t(1) << 50;
  int64_t values = 0;
  if (rows < 0 || xColumns < 0 || yColumns < 0 ||
      __builtin_mul_overflow(std::max(xColumns, yColumns), ranks, &values) ||
      __builtin_mul_overflow(std::max<int64_t>(rows, 1), values, &values) ||
      values > most)
    return wrong("columns of x and y that fit memory");

  switch (collective) {
  case plan::Collective::None:
    break;
  case plan::Collective::AllReduce:
    if (xColumns != yColumns)
      return wrong("as many columns of x as of y");
    return collectives.allReduce(x, y, rows * xColumns, what);
  case plan::Collective::AllGather: {
    int64_t all = ranks * xColumns;
    if (yColumns > all)
      return wrong("columns of x that the ranks fill y with");
    if (yColumns == all)
      return collectives.allGather(x, y, rows, xColumns, what);
    MLA_ASSIGN_OR_RETURN(float *whole, scratchFor(rows, all, what));
    MLA_RETURN_IF_ERROR(collectives.allGather(x, whole, rows, xColumns, what));
    for (int64_t r = 0; r < rows; ++r)
      std::copy_n(whole + r * all, yColumns, y + r * yColumns);
    return {};
  }
  case plan::Collective::ReduceScatter: {
    int64_t all = ranks * yColumns;
    if (xColumns > all)
      return wrong("columns of x that fit the ranks' y");
    if (xColumns == all)
      return collectives.reduceScatter(x, y, rows, yColumns, what);
    MLA_ASSIGN_OR_RETURN(float *whole, scratchFor(rows, all, what));
    for (int64_t r = 0; r < rows; ++r)
      std::fill_n(std::copy_n(x + r * xColumns, xColumns, whole + r * all),
                  all - xColumns, 0.0F);
    return collectives.reduceScatter(whole, y, rows, yColumns, what);
  }
  case plan::Collective::AllToAll: {
    if (xColumns != yColumns || xColumns % ranks != 0)
      return wrong("as many columns of x as of y, divided by the ranks");
    int64_t part = xColumns / ranks;
    MLA_ASSIGN_OR_RETURN(float *byRank, scratchFor(rows, xColumns, what));
    MLA_RETURN_IF_ERROR(collectives.allToAll(x, byRank, rows, part, what));
    // From [rank, row] to [row, rank].
    for (int64_t rank = 0; rank < ranks; ++rank)
      for (int64_t r = 0; r < rows; ++r)
        std::copy_n(byRank + (rank * rows + r) * part, part,
                    y + (r * ranks + rank) * part);
    return {};
  }
  }
  return internalError("a collective that is not known");
}

} // namespace mla::hal
