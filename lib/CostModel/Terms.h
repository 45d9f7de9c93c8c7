//===- Terms.h - what the estimates are made of -----------------*- C++ -*-===//
//
// Part of mla. The parts of a kernel's time, as docs/cost-model.md explains them,
// and how they are put together.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_COSTMODEL_TERMS_H
#define MLA_LIB_COSTMODEL_TERMS_H

#include "mla/CostModel/CostModel.h"
#include "mla/Quant/Pack.h"
#include <algorithm>

namespace mla::cost {

/// Shapes below 1 count as 1.
constexpr int64_t ceilDiv(int64_t a, int64_t b) {
  return (a + b - 1) / std::max<int64_t>(b, 1);
}
constexpr int64_t roundUp(int64_t a, int64_t b) { return ceilDiv(a, b) * b; }

/// Flops of one mma.sync m16n8k16, the instruction that all products are made of.
constexpr double flopsOfMma = 2 * 16 * 8 * 16;

/// Parts of the time of a kernel. Reading, decoding and products overlap, the
/// largest counts; what is latency is waited for.
struct Parts {
  double latency = 0, memory = 0, decode = 0, matrix = 0;
};

class Terms {
public:
  Terms(const Machine &m, const Calibration &c) : m(m), c(c) {}

  /// A constant by name; each is there, as Calibration::parse() saw to it.
  double operator()(std::string_view name) const;
  double operator()(std::string_view family, std::string_view format,
                    std::string_view what) const;

  double multiprocessors() const { return double(m.multiprocessors); }
  /// Of cycles of one multiprocessor.
  double cycles(double n) const { return n / m.clockHz; }
  /// Reading `all` bytes, of which the busiest multiprocessor reads `busiest`.
  double reading(double all, double busiest) const;
  /// Rows of activations read and written: from L2 if they are few.
  double moving(double bytes) const;
  /// Products of `all` flops, of which the busiest multiprocessor has `busiest`:
  /// what tensor cores do at most, and what issuing instructions takes, at
  /// `cyclesOfMma` each.
  double products(double all, double busiest, double cyclesOfMma) const;

  /// Sum of latency and the largest of the others, a little more where two are
  /// about equal. Sets seconds and bound.
  void finish(Estimate &e, const Parts &parts) const;
  /// On the host: bytes over bandwidth or flops over rate.
  Estimate onHost(Estimate e) const;

  const Machine &m;
  const Calibration &c;
};

/// How constants of a weight format are called; formats that no kernel takes as
/// they are count as bf16.
std::string_view weightName(Format format);
std::string_view cacheName(Format format);
/// Bytes of a matrix in device memory.
double matrixBytes(const Matrix &matrix);
/// Of a row of the latent cache.
double cacheRowBytes(const Attention &shape);
/// Experts that `tokens` tokens choose among, each once, if all are as likely.
double distinctExperts(int64_t experts, int64_t topk, int64_t tokens);
/// Tokens of the program that runs a step of so many (lib/Target: 1, 8, 64, more).
int64_t programTokens(int64_t tokens);

/// The work of a kernel that streams weights for one token (lib/CodeGen/NVVM/
/// StreamCore.h): quads of 4 rows are dealt out to blocks.
struct StreamWork {
  Format format = Format::BF16;
  double bytes = 0;        ///< of all weights
  double busiestBytes = 0; ///< of the busiest multiprocessor
  /// The same, with quads that are computed for nothing: an instruction has four.
  double busiestDecoded = 0;
  double columns = 0; ///< of x, which each block converts for itself
};
/// Quads that are computed for so many of a block: an instruction has four, or its
/// half where there are never more than two.
int64_t decodedQuads(int64_t quads);
/// Parts of its time; `latency` is what it takes with nothing to read.
Parts streamParts(const Terms &t, const StreamWork &work, double latency);

} // namespace mla::cost

#endif // MLA_LIB_COSTMODEL_TERMS_H
