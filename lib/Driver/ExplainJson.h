//===- ExplainJson.h - reports as JSON --------------------------*- C++ -*-===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_DRIVER_EXPLAINJSON_H
#define MLA_LIB_DRIVER_EXPLAINJSON_H

#include "Explain.h"
#include "llvm/Support/JSON.h"

namespace mla::explain {

/// Of the JSON of --explain and --compare.
constexpr int64_t explainVersion = 1;

/// The members of an object for `report`.
void writeReport(llvm::json::OStream &json, const Report &report);

} // namespace mla::explain

#endif // MLA_LIB_DRIVER_EXPLAINJSON_H
