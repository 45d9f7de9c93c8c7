//===- Plan.cpp - names, sizes and bounds ---------------------------------===//
//
// Part of mla. The small functions over the structure that both sides use.
//
//===----------------------------------------------------------------------===//
#include "mla/Plan/Plan.h"
#include "Internal.h"
#include "mla/Quant/Pack.h"
#include "mla/Support/Hash.h"
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>

namespace mla::plan {

std::string_view portName(Port port) {
  constexpr std::array<std::string_view, portCount> names = {
      "ids",     "positions", "sequence", "page_table",
      "outputs", "saturated", "logits",   "sampling",
      "top_k",   "sampled"};
  size_t i = static_cast<size_t>(port);
  return i < portCount ? names[i] : "unknown";
}

Format portFormat(Port port) {
  return port == Port::Logits || port == Port::Sampling ? Format::F32
                                                        : Format::I32;
}

std::string_view collectiveName(Collective collective) {
  constexpr std::array<std::string_view, collectiveCount> names = {
      "none", "all_reduce", "all_gather", "reduce_scatter", "all_to_all"};
  size_t i = static_cast<size_t>(collective);
  return i < collectiveCount ? names[i] : "unknown";
}

std::optional<Collective> parseCollective(std::string_view name) {
  for (size_t i = 1; i < collectiveCount; ++i)
    if (auto collective = static_cast<Collective>(i);
        name == collectiveName(collective))
      return collective;
  return std::nullopt;
}

std::optional<Access> portAccess(Port port, bool sampling) {
  switch (port) {
  case Port::Logits:
    return sampling ? Access::Read : Access::Write;
  case Port::Sampling:
  case Port::TopK:
    return sampling ? std::optional(Access::Read) : std::nullopt;
  case Port::Sampled:
    return sampling ? std::optional(Access::Write) : std::nullopt;
  case Port::Saturated:
    return sampling ? std::nullopt : std::optional(Access::ReadWrite);
  default:
    return sampling ? std::nullopt : std::optional(Access::Read);
  }
}

bool Kernel::hasPeers() const {
  return std::any_of(
      parameters.begin(), parameters.end(),
      [](const Parameter &p) { return p.kind == Parameter::Kind::Peers; });
}

int64_t Weight::matrixColumns() const {
  return shape.size() > (stacked ? 1 : 0) ? shape.back() : 1;
}

int64_t Weight::matrixRows() const {
  int64_t rows = 1;
  for (size_t i = stacked ? 1 : 0; i + 1 < shape.size(); ++i)
    rows *= shape[i];
  return rows;
}

int64_t Weight::storedRows() const {
  if (shard) {
    size_t n = shard->whole.size();
    return n < (stacked ? 3 : 2) ? 1 : shard->whole[n - 2];
  }
  return slice.rows != 0 ? slice.rows : matrixRows();
}

int64_t Weight::storedColumns() const {
  if (shard)
    return shard->whole.empty() ? 1 : shard->whole.back();
  return slice.rows != 0 ? slice.columns : matrixColumns();
}

std::vector<StoragePart> Weight::parts() const {
  return storageParts(storedFormat(), storedRows(), storedColumns());
}

Result<uint64_t> Weight::deviceBytes() const {
  auto tooLarge = [&] {
    return invalid("weight " + name + ": its size overflows 64 bits");
  };
  // The sizes below are products of these three and of small numbers.
  uint64_t tensors = stacked && !shape.empty() ? uint64_t(shape[0]) : 1;
  uint64_t elements = 1;
  for (int64_t n : shape)
    if (n < 1 || __builtin_mul_overflow(elements, uint64_t(n), &elements) ||
        elements > detail::maxInteger)
      return tooLarge();
  switch (layout) {
  case Layout::Checkpoint: {
    uint64_t bytes = 0;
    for (const StoragePart &part :
         storageParts(format, matrixRows(), matrixColumns()))
      bytes += part.bytes();
    return bytes * tensors;
  }
  case Layout::Rows:
    if (std::optional<uint64_t> element = elementBytes(format))
      return elements * *element;
    return unsupported("weight " + name + ": rows of " +
                       std::string(formatName(format)) +
                       " have no elements that stand alone");
  case Layout::Packed: {
    if (!quant::canPack(format))
      return unsupported("weight " + name + ": matrices of " +
                         std::string(formatName(format)) +
                         " cannot be packed");
    // Padding can make a matrix of one row or column 16 * 128 times as large.
    uint64_t bytes = 0;
    int64_t rows = matrixRows(), columns = matrixColumns();
    if (__builtin_mul_overflow(uint64_t(rows + 128), uint64_t(columns + 128),
                               &bytes) ||
        bytes > detail::maxInteger ||
        __builtin_mul_overflow(
            uint64_t(quant::packedBytes(format, rows, columns)), tensors,
            &bytes))
      return tooLarge();
    return bytes;
  }
  }
  return internalError("a layout that is not known");
}

Result<uint64_t> bufferBytes(Format format, const std::vector<Expr> &shape,
                             const SymbolValues &symbols) {
  std::optional<uint64_t> element = elementBytes(format);
  if (!element)
    return unsupported("a buffer cannot be of format " +
                       std::string(formatName(format)));
  uint64_t bytes = *element;
  for (const Expr &dimension : shape) {
    MLA_ASSIGN_OR_RETURN(int64_t n, dimension.evaluate(symbols));
    if (n < 0)
      return invalid("expected a dimension of at least 0, found " +
                     dimension.str() + " = " + std::to_string(n));
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(n), &bytes))
      return invalid("the size of a buffer overflows 64 bits");
  }
  return bytes;
}

int64_t Shard::first(int64_t dim, int64_t rank) const {
  for (const Split &split : splits)
    if (split.dim == dim)
      return rank / split.stride % split.count * part[size_t(dim)];
  return 0;
}

Plan localized(const Plan &plan, int64_t rank) {
  Plan local = plan;
  for (Weight &w : local.weights) {
    if (!w.shard)
      continue;
    const Shard shard = *std::exchange(w.shard, std::nullopt);
    auto dims = static_cast<int64_t>(shard.whole.size());
    auto at = [&](const std::vector<int64_t> &shape, int64_t fromLast) {
      int64_t dim = dims - fromLast;
      return dim < int64_t(w.stacked) ? 1 : shape[size_t(dim)];
    };
    Slice &s = w.slice;
    if (w.layout == Layout::Checkpoint) {
      s.format = w.format;
      s.blockRows = at(shard.part, 2);
    }
    s.rows = at(shard.whole, 2);
    s.columns = at(shard.whole, 1);
    if (dims >= (w.stacked ? 3 : 2))
      s.firstRow += shard.first(dims - 2, rank);
    s.firstColumn += shard.first(dims - 1, rank);
    if (!w.stacked)
      continue;
    int64_t first = shard.first(0, rank);
    auto keep = [&](std::vector<TensorSource> &sources) {
      std::vector<TensorSource> own(size_t(shard.part[0]));
      for (int64_t i = 0; i < shard.part[0] && first + i < shard.whole[0]; ++i)
        own[size_t(i)] = sources[size_t(first + i)];
      sources = std::move(own);
    };
    keep(w.sources);
    for (WeightScales &scales : w.scales)
      keep(scales.sources);
  }
  return local;
}

SymbolValues bounds(const Plan &plan, const Program &program) {
  SymbolValues values;
  values[Symbol::Tokens] = program.maxTokens;
  values[Symbol::Sequences] = program.maxSequences;
  values[Symbol::Outputs] = program.maxOutputs;
  values[Symbol::Pages] = plan.maxPages;
  values[Symbol::Rank] = plan.ranks.count - 1;
  int64_t capacity = 0;
  if (__builtin_mul_overflow(program.maxSequences, plan.maxPages, &capacity))
    capacity = detail::maxCapacity;
  values[Symbol::Capacity] = std::min(capacity, detail::maxCapacity);
  return values;
}

Status verify(const Plan &plan) { return detail::verify(plan, ""); }

Result<uint64_t> hashFile(const std::filesystem::path &file) {
  // In pieces: kernels of a large model need not fit memory twice.
  std::ifstream in(file, std::ios::binary);
  if (!in)
    return ioError(file.string() +
                   ": cannot be opened: " + std::strerror(errno));
  uint64_t hash = fnv1a64("");
  std::array<char, 65536> piece;
  while (in) {
    in.read(piece.data(), piece.size());
    hash = fnv1a64({piece.data(), static_cast<size_t>(in.gcount())}, hash);
  }
  if (in.bad())
    return ioError(file.string() + ": cannot be read");
  return hash;
}

} // namespace mla::plan
