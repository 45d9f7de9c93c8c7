//===- Wide.h - loops that are compiled twice -------------------*- C++ -*-===//
//
// Part of mla. The libraries are compiled for any x86-64. The few loops that
// pass over whole models are compiled a second time for AVX-512, by the same
// text: the body is MLA_WIDE_BODY, a function with MLA_WIDE_TARGET calls it, and
// wideVectors() says at run time which to take. The files must be compiled with
// -ffp-contract=off, so that both give the same bits.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_SUPPORT_WIDE_H
#define MLA_SUPPORT_WIDE_H

#if defined(__x86_64__) && defined(__GNUC__)
#define MLA_WIDE_TARGET                                                        \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define MLA_WIDE_BODY inline __attribute__((always_inline))
#else
#define MLA_WIDE_TARGET
#define MLA_WIDE_BODY inline
#endif

namespace mla {

inline bool wideVectors() {
#if defined(__x86_64__) && defined(__GNUC__)
  static const bool has = __builtin_cpu_supports("avx512f") &&
                          __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512vl");
  return has;
#else
  return false;
#endif
}

} // namespace mla

#endif // MLA_SUPPORT_WIDE_H
