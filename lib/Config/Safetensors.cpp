//===- Safetensors.cpp - one safetensors header ---------------------------===//
//
// Part of mla. A file is 8 bytes of length, that many bytes of JSON, and the
// tensors. As the format's specification demands, the tensors cover what
// follows the header exactly: no gap, no overlap, nothing behind the last.
//
//===----------------------------------------------------------------------===//
#include "mla/Config/Checkpoint.h"
#include "mla/Support/Json.h"
#include <algorithm>
#include <array>

namespace mla {

uint64_t safetensorsElementBytes(const std::string &dtype) {
  static constexpr std::array<std::pair<std::string_view, uint64_t>, 17> sizes =
      {{{"BF16", 2},
        {"F32", 4},
        {"U8", 1},
        {"F8_E4M3", 1},
        {"I32", 4},
        {"F16", 2},
        {"I64", 8},
        {"F8_E5M2", 1},
        {"F8_E8M0", 1},
        {"I8", 1},
        {"BOOL", 1},
        {"U16", 2},
        {"I16", 2},
        {"U32", 4},
        {"U64", 8},
        {"F64", 8},
        {"C64", 8}}};
  for (const auto &[name, bytes] : sizes)
    if (name == dtype)
      return bytes;
  return 0;
}

/// Reads one member of the header. Mistakes are recorded in its document.
static TensorInfo readTensor(const std::string &name, const JsonValue &v,
                             uint64_t headerBytes) {
  constexpr int64_t maxInteger = int64_t(1) << 53;
  TensorInfo tensor;
  tensor.name = name;
  if (!v.isObject()) {
    v.fail("an object");
    return tensor;
  }
  JsonValue dtype = v["dtype"];
  tensor.dtype = dtype.string();
  uint64_t elementBytes = safetensorsElementBytes(tensor.dtype);
  if (elementBytes == 0 && dtype.isString())
    dtype.fail("a dtype of safetensors");

  JsonValue shape = v["shape"];
  uint64_t bytes = elementBytes;
  bool overflow = false, readable = shape.isArray() && elementBytes != 0;
  for (const JsonValue &dim : shape.elements()) {
    readable &= dim.isInteger();
    tensor.shape.push_back(dim.integer(0, maxInteger));
    overflow |= __builtin_mul_overflow(
        bytes, static_cast<uint64_t>(tensor.shape.back()), &bytes);
  }
  // A zero further on makes the size 0, but no honest file has such a shape.
  if (overflow) {
    shape.fail("a shape of fewer than 2^64 bytes");
    return tensor;
  }

  JsonValue offsets = v["data_offsets"];
  if (!offsets.isArray() || offsets.size() != 2) {
    offsets.fail("an array of 2");
    return tensor;
  }
  JsonValue first = offsets.at(0), second = offsets.at(1);
  int64_t begin = first.integer(0, maxInteger);
  int64_t end = second.integer(0, maxInteger);
  if (!first.isInteger() || !second.isInteger())
    return tensor;
  if (end < begin) {
    offsets.failWith("expected an end behind the begin, found " +
                     offsets.dump());
    return tensor;
  }
  tensor.offset = headerBytes + static_cast<uint64_t>(begin);
  tensor.bytes = static_cast<uint64_t>(end - begin);
  if (readable && tensor.bytes != bytes)
    offsets.failWith("expected " + std::to_string(bytes) + " bytes (" +
                     tensor.dtype + " " + shape.dump() + "), found " +
                     std::to_string(tensor.bytes));
  return tensor;
}

/// Checks that `tensors`, sorted by offset, cover the file behind its header.
static Status checkCoverage(const std::vector<TensorInfo> &tensors,
                            uint64_t headerBytes, uint64_t fileSize,
                            const std::string &name) {
  uint64_t end = headerBytes;
  for (const TensorInfo &tensor : tensors)
    end = std::max(end, tensor.offset + tensor.bytes);
  if (end > fileSize)
    return invalid(name + ": expected a file of " + std::to_string(end) +
                   " bytes, as its header says, found " +
                   std::to_string(fileSize) + " (cut off?)");
  uint64_t at = headerBytes;
  const TensorInfo *last = nullptr;
  for (const TensorInfo &tensor : tensors) {
    if (tensor.offset < at)
      return invalid(name + ": tensors " + last->name + " and " + tensor.name +
                     " overlap");
    if (tensor.offset > at)
      return invalid(name + ": expected tensor " + tensor.name +
                     " at data offset " + std::to_string(at - headerBytes) +
                     ", found a gap up to " +
                     std::to_string(tensor.offset - headerBytes));
    at += tensor.bytes;
    last = &tensor;
  }
  if (at != fileSize)
    return invalid(name + ": expected a file of " + std::to_string(at) +
                   " bytes, as its header says, found " +
                   std::to_string(fileSize));
  return {};
}

Result<std::vector<TensorInfo>>
parseSafetensorsHeader(std::string_view json, uint64_t headerBytes,
                       uint64_t fileSize, const std::string &name) {
  // The format pads the header with spaces; JSON allows them.
  std::vector<TensorInfo> tensors;
  auto visit = [&](const std::string &key, const JsonValue &value) {
    if (key == "__metadata__")
      for (const auto &[unused, text] : value.members())
        text.string();
    else
      tensors.push_back(readTensor(key, value, headerBytes));
  };
  MLA_ASSIGN_OR_RETURN(std::unique_ptr<JsonDocument> document,
                       JsonDocument::parseMembers(json, name, "", visit));
  document->root().members(); // Records if the root is no object.
  MLA_RETURN_IF_ERROR(document->status());
  // Empty tensors share their offset with the next one and must come first.
  std::sort(tensors.begin(), tensors.end(),
            [](const TensorInfo &a, const TensorInfo &b) {
              return std::tie(a.offset, a.bytes, a.name) <
                     std::tie(b.offset, b.bytes, b.name);
            });
  MLA_RETURN_IF_ERROR(checkCoverage(tensors, headerBytes, fileSize, name));
  return tensors;
}

} // namespace mla
