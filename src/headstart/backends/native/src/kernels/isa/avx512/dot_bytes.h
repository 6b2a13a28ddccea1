// Of AVX-512 (VNNI): one register.
#pragma once
#include "kernels/vectors/vector.h"

constexpr int kHeldSums = 12;

// 32-bit sums, typed as what the instruction works on: of __m512i, whose lanes are 64 bits wide, gcc 12 copies every
// sum into a register of the other type and back around each product, and spills.
typedef int32_t Sums __attribute__((vector_size(64)));
typedef __m512i Bytes;  // [16 columns][4]

static inline Sums dot(Sums sum, Bytes unsigned_bytes, Bytes signed_bytes) {
  return (Sums)_mm512_dpbusd_epi32((__m512i)sum, unsigned_bytes, signed_bytes);
}
static inline Lanes to_floats(Sums sum) { return {_mm512_cvtepi32_ps((__m512i)sum)}; }
static inline Sums load_sums(const int32_t *p) { return (Sums)_mm512_loadu_si512(p); }

static inline Bytes load_bytes(const char *p) { return _mm512_load_si512(p); }
static inline Bytes splat_four(int32_t four) { return _mm512_set1_epi32(four); }
static inline Bytes lower_halves(Bytes b) { return _mm512_and_si512(b, _mm512_set1_epi8(15)); }
static inline Bytes upper_halves(Bytes b) { return lower_halves(_mm512_srli_epi16(b, 4)); }
