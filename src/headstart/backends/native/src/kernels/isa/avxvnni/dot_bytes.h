// Of AVX2 (AVX-VNNI, or its products in 16 bits): two registers.
#pragma once
#include "kernels/vectors/vector.h"

constexpr int kHeldSums = 3;

typedef int32_t EightSums __attribute__((vector_size(32)));
struct Sums {
  EightSums lo, hi;
};
struct Bytes {
  __m256i lo, hi;
};

static inline EightSums dot(EightSums sum, __m256i unsigned_bytes, __m256i signed_bytes) {
#if defined(__AVXVNNI__)
  return (EightSums)_mm256_dpbusd_avx_epi32((__m256i)sum, unsigned_bytes, signed_bytes);
#else
  const __m256i low_byte = _mm256_set1_epi16(255);
  const __m256i even = _mm256_madd_epi16(_mm256_and_si256(unsigned_bytes, low_byte),
                                         _mm256_srai_epi16(_mm256_slli_epi16(signed_bytes, 8), 8));
  const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(unsigned_bytes, 8), _mm256_srai_epi16(signed_bytes, 8));
  return sum + (EightSums)even + (EightSums)odd;
#endif
}
static inline Sums dot(Sums sum, Bytes unsigned_bytes, Bytes signed_bytes) {
  return {dot(sum.lo, unsigned_bytes.lo, signed_bytes.lo), dot(sum.hi, unsigned_bytes.hi, signed_bytes.hi)};
}
static inline Sums operator+(Sums a, Sums b) { return {a.lo + b.lo, a.hi + b.hi}; }
static inline Sums operator-(Sums a, Sums b) { return {a.lo - b.lo, a.hi - b.hi}; }
static inline Sums operator<<(Sums a, int bits) { return {a.lo << bits, a.hi << bits}; }
static inline Lanes to_floats(Sums sum) {
  return {_mm256_cvtepi32_ps((__m256i)sum.lo), _mm256_cvtepi32_ps((__m256i)sum.hi)};
}
static inline Sums load_sums(const int32_t *p) {
  const auto *from = reinterpret_cast<const __m256i *>(p);
  return {(EightSums)_mm256_loadu_si256(from), (EightSums)_mm256_loadu_si256(from + 1)};
}

static inline Bytes load_bytes(const char *p) {
  const auto *from = reinterpret_cast<const __m256i *>(p);
  return {_mm256_load_si256(from), _mm256_load_si256(from + 1)};
}
static inline Bytes splat_four(int32_t four) {
  const __m256i all = _mm256_set1_epi32(four);
  return {all, all};
}
static inline Bytes lower_halves(Bytes b) {
  const __m256i low = _mm256_set1_epi8(15);
  return {_mm256_and_si256(b.lo, low), _mm256_and_si256(b.hi, low)};
}
static inline Bytes upper_halves(Bytes b) {
  return lower_halves({_mm256_srli_epi16(b.lo, 4), _mm256_srli_epi16(b.hi, 4)});
}
