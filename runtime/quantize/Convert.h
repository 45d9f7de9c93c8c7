//===- Convert.h - reads, converts and writes every tensor ------*- C++ -*-===//
//
// Part of mla. In stripes of 128 rows: each is read, brought to f32, quantized
// and written by one thread, so that memory is a few stripes a thread, whatever
// the size of a tensor, and threads share tensors and experts alike.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_QUANTIZE_CONVERT_H
#define MLA_RUNTIME_QUANTIZE_CONVERT_H

#include "runtime/base/Progress.h"
#include "runtime/base/ThreadPool.h"
#include "runtime/quantize/Layout.h"
#include <atomic>

namespace mla::quantize {

struct ConvertOptions {
  bool ue8m0 = false; ///< scales of fp8_block are powers of two
  /// Becomes true when the user wants to stop.
  const std::atomic<bool> *interrupted = nullptr;
};

/// Bytes of the input that convert() reports as progress.
uint64_t bytesToConvert(const Layout &layout);

/// Writes all tensors of `layout`; the caller finishes `writer`. Numeric, with
/// the tensor's name, for a NaN or an infinity in what is converted.
Status convert(const Layout &layout, const Checkpoint &checkpoint,
               SafetensorsWriter &writer, runtime::ThreadPool &pool,
               runtime::Progress &progress, const ConvertOptions &options);

} // namespace mla::quantize

#endif // MLA_RUNTIME_QUANTIZE_CONVERT_H
