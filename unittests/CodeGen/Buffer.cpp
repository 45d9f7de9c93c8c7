//===- Buffer.cpp - buffers between guard zones ---------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "Harness.h"
#include "llvm/ADT/APFloat.h"

namespace mla::test {

/// Long enough for the widest load, and NaN in every float format, so that a
/// value read from beyond the end is seen in the result.
static constexpr size_t guardBytes = 128;
static constexpr std::byte guardByte{0xff};

static const llvm::fltSemantics &semantics(Format format) {
  switch (format) {
  case Format::BF16:
    return llvm::APFloat::BFloat();
  case Format::F16:
    return llvm::APFloat::IEEEhalf();
  default:
    return llvm::APFloat::IEEEsingle();
  }
}

Buffer::Buffer(Format format, int64_t count)
    : format(format), elementSize(*elementBytes(format)), count(count),
      memory(new std::byte[2 * guardBytes + 128 + bytes()]) {
  memset(data() - guardBytes, int(guardByte), 2 * guardBytes + bytes());
}

size_t Buffer::bytes() const { return count * elementSize; }

std::byte *Buffer::data() const {
  uint64_t address = reinterpret_cast<uint64_t>(memory.get()) + guardBytes;
  // One element past a multiple of 64.
  address = (address + 63) / 64 * 64 + elementSize;
  return reinterpret_cast<std::byte *>(address);
}

Buffer Buffer::output(Format format, int64_t count) {
  Buffer b(format, count);
  memset(b.data(), format == Format::I32 ? 0x7f : 0xff, b.bytes());
  return b;
}

Buffer Buffer::of(Format format, const std::vector<double> &values) {
  Buffer b(format, values.size());
  for (size_t i = 0; i < values.size(); ++i)
    b.set(i, values[i]);
  return b;
}

Buffer Buffer::ints(const std::vector<int64_t> &values) {
  return of(Format::I32, {values.begin(), values.end()});
}

Buffer Buffer::uniform(Format format, int64_t count, Random &random, double low,
                       double high) {
  Buffer b(format, count);
  std::uniform_real_distribution<double> distribution(low, high);
  for (int64_t i = 0; i < count; ++i)
    b.set(i, distribution(random));
  return b;
}

double Buffer::operator[](int64_t i) const {
  if (i < 0 || i >= count)
    throw std::out_of_range("a test reads element " + std::to_string(i) +
                            " of " + std::to_string(count));
  if (format == Format::I32) {
    int32_t v;
    memcpy(&v, data() + 4 * i, 4);
    return v;
  }
  uint32_t bits = 0;
  memcpy(&bits, data() + elementSize * i, elementSize);
  if (format == Format::F32)
    return std::bit_cast<float>(bits);
  if (format == Format::BF16)
    return std::bit_cast<float>(bits << 16);
  llvm::APFloat v(semantics(format), llvm::APInt(16, bits));
  return v.convertToDouble();
}

void Buffer::set(int64_t i, double value) {
  if (format == Format::I32) {
    int32_t v = value;
    memcpy(data() + 4 * i, &v, 4);
    return;
  }
  if (format == Format::F32) {
    float v = value;
    memcpy(data() + 4 * i, &v, 4);
    return;
  }
  llvm::APFloat v(value);
  bool inexact;
  v.convert(semantics(format), llvm::APFloat::rmNearestTiesToEven, &inexact);
  uint64_t bits = v.bitcastToAPInt().getZExtValue();
  memcpy(data() + elementSize * i, &bits, elementSize);
}

std::vector<double> Buffer::values(int64_t at, int64_t n) const {
  std::vector<double> out;
  for (int64_t i = 0; i < n; ++i)
    out.push_back((*this)[at + i]);
  return out;
}

std::vector<std::byte> Buffer::snapshot() const {
  return {data(), data() + bytes()};
}

void Buffer::restore(const std::vector<std::byte> &snapshot) {
  std::copy(snapshot.begin(), snapshot.end(), data());
}

bool Buffer::guardsIntact() const {
  auto intact = [](const std::byte *from) {
    return std::all_of(from, from + guardBytes,
                       [](std::byte b) { return b == guardByte; });
  };
  return intact(data() - guardBytes) && intact(data() + bytes());
}

} // namespace mla::test
