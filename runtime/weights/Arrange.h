//===- Arrange.h - weights as a GPU has them --------------------*- C++ -*-===//
//
// Part of mla. A plan for a GPU asks for parts of matrices, converted, packed,
// one buffer for each weight (plan::Layout), and of a localized plan what one
// rank has. All of them lie in one block of device memory. It is made in items,
// runs of rows of one tensor, which threads make in any order, from the mapped
// checkpoint or from the formula of synthetic weights.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_WEIGHTS_ARRANGE_H
#define MLA_RUNTIME_WEIGHTS_ARRANGE_H

#include "mla/Plan/Plan.h"
#include "mla/Quant/Matrix.h"
#include "runtime/weights/Cut.h"
#include <span>
#include <vector>

namespace mla::runtime {

/// `value` up to a multiple of `step`, both above 0.
inline int64_t roundUp(int64_t value, int64_t step) {
  return (value + step - 1) / step * step;
}

/// Rows [firstRow, firstRow + rows) of a tensor's matrix, or what stands behind
/// a packed matrix, and their place.
struct ArrangedItem {
  uint32_t weight = 0, tensor = 0;
  int64_t firstRow = 0, rows = 0;
  bool tail = false;
  uint64_t offset = 0, bytes = 0; ///< In the block.
};

struct Arrangement {
  /// Where each weight of the plan begins, a multiple of 256; not of use for
  /// those that lie as in the checkpoint.
  std::vector<uint64_t> offsets;
  std::vector<ArrangedItem> items; ///< By offset; a tail behind its rows.
  uint64_t bytes = 0;              ///< Of the block, gaps included.
  uint64_t contentBytes = 0;       ///< Of the weights.

  /// Of the weights whose layout is not the checkpoint's. `plan` must have
  /// passed plan::verify().
  static Result<Arrangement> of(const plan::Plan &plan);
};

/// What identifies the content of the block: the checkpoint, or the seed, and
/// how weights are cut and laid out. Kernels have no part in it.
uint64_t arrangementFingerprint(const plan::Plan &plan);

/// Makes items. Threads: make() from several at once, but a tail only when the
/// rows of its tensor have been made.
class Arranger {
public:
  /// The parts of the tensors of a weight, as WeightStore::tensors(); not called
  /// for synthetic weights.
  using Parts =
      std::span<const std::span<const std::byte>> (*)(const void *context,
                                                      uint32_t weight);
  /// `plan`, `arrangement` and `context` must outlive it.
  Arranger(const plan::Plan &plan, const Arrangement &arrangement, Parts parts,
           const void *context);

  /// Memory that a thread uses again from item to item.
  class Scratch {
    friend class Arranger;
    struct Piece {
      MatrixStore generated, cut;
      float global = 1;
      quant::ConstMatrixParts parts; ///< Of the rows and columns it has.
      int64_t firstRow = 0, firstColumn = 0;
    };
    std::vector<Piece> pieces;
    std::vector<float> generated, converted, rows;
    std::vector<std::byte> stored;
  };

  /// Fills `out`, item.bytes long. Invalid, with the tensor's name, if the
  /// checkpoint has NaN or infinity where kernels do not look for it.
  Status make(const ArrangedItem &item, std::span<std::byte> out,
              Scratch &scratch) const;

private:
  bool synthetic() const {
    return plan.checkpoint.kind == plan::Checkpoint::Kind::Synthetic;
  }
  Status readPiece(const ArrangedItem &item, int64_t begin, int64_t end,
                   Scratch::Piece &piece, Scratch &scratch) const;
  Status makeRows(const ArrangedItem &item, std::span<std::byte> out,
                  Scratch &scratch) const;
  Status makeTail(const ArrangedItem &item, std::span<std::byte> out) const;
  Status checkNumbers(const ArrangedItem &item, const Rectangle &taken) const;
  Result<float> globalScale(const plan::Weight &weight, uint32_t tensor) const;

  const plan::Plan &plan;
  Parts parts;
  const void *context;
  /// Scales of synthetic fp8_block matrices, by weight: made with the rows,
  /// wanted by the tail.
  mutable std::vector<std::vector<float>> tailScales;
};

} // namespace mla::runtime

#endif // MLA_RUNTIME_WEIGHTS_ARRANGE_H
