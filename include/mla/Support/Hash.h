//===- Hash.h - the hash of fingerprints ------------------------*- C++ -*-===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_SUPPORT_HASH_H
#define MLA_SUPPORT_HASH_H

#include <cstdint>
#include <string_view>

namespace mla {

/// FNV-1a 64: fingerprints of files and names of synthetic weights. Continue a
/// hash by passing the last value as `state`.
inline uint64_t fnv1a64(std::string_view bytes,
                        uint64_t state = 0xcbf29ce484222325u) {
  for (char c : bytes)
    state = (state ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return state;
}

} // namespace mla

#endif // MLA_SUPPORT_HASH_H
