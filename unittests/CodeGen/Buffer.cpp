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
  case Format::FP8E4M3:
    return llvm::APFloat::Float8E4M3FN();
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

Buffer Buffer::codes(const std::vector<uint8_t> &values) {
  Buffer b(Format::FP8E4M3, values.size());
  memcpy(b.data(), values.data(), values.size());
  return b;
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
  llvm::APFloat v(semantics(format), llvm::APInt(8 * elementSize, bits));
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
  if (format == Format::FP8E4M3) // As kernels do; the conversion gives NaN.
    value = std::isnan(value) ? value : std::clamp(value, -448.0, 448.0);
  llvm::APFloat v(value);
  bool inexact;
  v.convert(semantics(format), llvm::APFloat::rmNearestTiesToEven, &inexact);
  uint64_t bits = v.bitcastToAPInt().getZExtValue();
  memcpy(data() + elementSize * i, &bits, elementSize);
}

//===----------------------------------------------------------------------===//
// Matrices
//===----------------------------------------------------------------------===//

static std::vector<uint8_t> randomBytes(int64_t n, Random &random) {
  std::vector<uint8_t> out;
  for (int64_t i = 0; i < n; ++i)
    out.push_back(randomInt(random, 0, 255));
  return out;
}

/// Scales around 1; now and then 0 or a large one.
static std::vector<double> randomScales(int64_t n, Random &random) {
  std::vector<double> out;
  for (int64_t i = 0; i < n; ++i)
    switch (randomInt(random, 0, 19)) {
    case 0:
      out.push_back(0);
      break;
    case 1:
      out.push_back(1000);
      break;
    default:
      out.push_back(std::ldexp(1 + randomInt(random, 0, 255) / 256.0,
                               randomInt(random, -3, 2)));
    }
  return out;
}

Matrix::Matrix(host::MatrixShape s, Random &random) : shape(s) {
  int64_t n = s.rows * s.columns;
  auto each = [&](auto value) {
    for (int64_t r = 0; r < s.rows; ++r)
      for (int64_t c = 0; c < s.columns; ++c)
        values.push_back(value(r, c));
  };
  switch (s.format) {
  case Format::FP8Block: {
    int64_t across = (s.columns + 127) / 128, down = (s.rows + 127) / 128;
    std::vector<uint8_t> codes = randomBytes(n, random);
    for (uint8_t &code : codes)
      code = (code & 0x7f) == 0x7f ? 0x80 : code;
    parts.push_back(Buffer::codes(codes));
    parts.push_back(
        Buffer::of(Format::F32, randomScales(across * down, random)));
    each([&](int64_t r, int64_t c) {
      return parts[0][r * s.columns + c] *
             parts[1][r / 128 * across + c / 128];
    });
    break;
  }
  case Format::NVFP4: {
    std::vector<uint8_t> codes = randomBytes(n / 2, random);
    parts.push_back(Buffer::codes(codes));
    std::vector<uint8_t> scales = randomBytes(n / 16, random);
    for (uint8_t &scale : scales) // Not negative, not NaN; 0 and 448 may be.
      scale = std::min(scale & 0x7f, 0x7e);
    parts.push_back(Buffer::codes(scales));
    parts.push_back(Buffer::of(Format::F32, {1 / 293.0}));
    const double magnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    each([&](int64_t r, int64_t c) {
      int64_t i = r * s.columns + c;
      int code = i % 2 ? codes[i / 2] >> 4 : codes[i / 2] & 15;
      double value = magnitudes[code & 7] * (code & 8 ? -1 : 1);
      return value * parts[1][i / 16] * parts[2][0];
    });
    break;
  }
  case Format::Int4G32: {
    std::vector<int64_t> words;
    for (int64_t i = 0; i < n / 8; ++i)
      words.push_back(static_cast<int32_t>(random()));
    parts.push_back(Buffer::ints(words));
    parts.push_back(Buffer::of(Format::BF16, randomScales(n / 32, random)));
    each([&](int64_t r, int64_t c) {
      int64_t i = r * s.columns + c;
      auto word = static_cast<uint32_t>(words[i / 8]);
      return (int(word >> 4 * (c % 8) & 15) - 8) * parts[1][i / 32];
    });
    break;
  }
  default:
    parts.push_back(Buffer::uniform(s.format, n, random));
    values = parts[0].values();
  }
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
