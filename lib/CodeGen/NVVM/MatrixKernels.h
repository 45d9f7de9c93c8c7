//===- MatrixKernels.h - inside the matrix kernels --------------*- C++ -*-===//
//
// Part of mla. What the kernels that multiply packed weights share: operands of a
// linear, and how packed words become fragments of mma.m16n8k16 (quant/Pack.h has
// the layout). With bf16 weights x is rounded to bf16; with the others to f16
// after a multiplication by 2^-4, clamped to +-65504, so values up to a million
// stay finite.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_CODEGEN_NVVM_MATRIXKERNELS_H
#define MLA_LIB_CODEGEN_NVVM_MATRIXKERNELS_H

#include "KernelBuilder.h"
#include "Kernels.h"
#include "mla/Quant/Pack.h"

namespace mla::nvvm {

/// A segment's rows and operands.
struct LinearSegment {
  int64_t rows;
  unsigned weight, output;
};

/// Which operand is what, in the order of Kernels.h.
struct LinearOperands {
  explicit LinearOperands(const LinearSpec &spec);
  llvm::SmallVector<llvm::StringRef> access;
  llvm::SmallVector<LinearSegment>
      segments; ///< gated: gate and up, same output
  unsigned gamma = 0, residual = 0, outputs = 0; ///< 0: not there
};

/// A name that holds all of `spec`.
std::string linearName(llvm::StringRef family, const LinearSpec &spec);

/// What 1 / x's factor and the scaled fragments leave to be multiplied in the end.
double resultFactor(Format format);

inline bool takesHalf(Format format) { return format != Format::BF16; }

/// Four values of a row from column `column` (a multiple of 4), f32, zeros from
/// `columns` on; nothing is read beyond the row. `inside`: no column is beyond.
Vs loadFour(KernelBuilder &k, Ptr row, V column, int64_t columns, Format format,
            Cached cached, bool inside);

/// Two pairs of x as the tensor cores take them: bf16, or f16 after * 2^-4.
std::array<V, 2> packX(KernelBuilder &k, llvm::ArrayRef<V> four, bool half);
/// What packX() lost, rounded alike.
std::array<V, 2> packRest(KernelBuilder &k, llvm::ArrayRef<V> four,
                          std::array<V, 2> packed, bool half);

/// fp4 codes of a packed word as 4 pairs of f16, each value times 2^-14.
Vs decodeFp4(KernelBuilder &k, V word);
/// int4 codes (unsigned) of a packed word in the pairs' lowest bits: f16
/// subnormals, the code times 2^-24 (pairs 0 and 2) or 2^-20 (1 and 3).
Vs decodeInt4(KernelBuilder &k, V word);
/// int4 codes minus 8 as 4 pairs of f16.
Vs decodeInt4Signed(KernelBuilder &k, V word);

/// Runs all columns of a packed unit for 16 rows and any number of tokens: calls
/// `step` with fragments a (4 registers) for each step of 16 columns, in order.
/// `rowA`, `rowB`: where rows g and g + 8 have their 64 bytes of the unit;
/// `scalesA`, `scalesB`: their 8 bytes of scales. Scales of nvfp4 and int4 are in
/// the fragments (resultFactor() has what is left), those of fp8_block are not.
/// int4: scales are f16 times 2^8, exact for magnitudes of 2^-22 to 32 and
/// clamped to 31.98 above.
void unitSteps(KernelBuilder &k, Format format, Ptr rowA, Ptr rowB, Ptr scalesA,
               Ptr scalesB,
               llvm::function_ref<void(unsigned, llvm::ArrayRef<V>)> step);

} // namespace mla::nvvm

#endif // MLA_LIB_CODEGEN_NVVM_MATRIXKERNELS_H
