//===- LLVMError.h - Status as llvm::Error ----------------------*- C++ -*-===//
//
// Part of mla. For the parts that link LLVM and call parts that do not.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_SUPPORT_LLVMERROR_H
#define MLA_SUPPORT_LLVMERROR_H

#include "mla/Support/Status.h"
#include "llvm/Support/Error.h"

namespace mla {

inline llvm::Error toError(const Status &status) {
  return status.ok() ? llvm::Error::success()
                     : llvm::createStringError(status.message());
}

} // namespace mla

#endif // MLA_SUPPORT_LLVMERROR_H
