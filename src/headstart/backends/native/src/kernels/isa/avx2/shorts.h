// 16-bit integers of AVX2: two registers.
#pragma once
#include <immintrin.h>

#include "kernels/isa/no_bf16_dot.h"
#include "kernels/vectors/vector.h"

constexpr int kShortParts = 2;
typedef uint16_t ShortPart __attribute__((vector_size(32)));
typedef uint32_t WordPart __attribute__((vector_size(32)));
typedef int32_t SumPart __attribute__((vector_size(32)));

static inline void hold(SumPart &x) { asm("" : "+x"(x)); }
static inline void hold(ShortPart &x) { asm("" : "+x"(x)); }
static inline SumPart dot_part(SumPart sum, ShortPart x, ShortPart y) {
#if defined(__AVXVNNI__)
  return (SumPart)_mm256_dpwssd_avx_epi32((__m256i)sum, (__m256i)x, (__m256i)y);
#else
  return sum + (SumPart)_mm256_madd_epi16((__m256i)x, (__m256i)y);
#endif
}
static inline Lanes floats_of(const SumPart *sums) {
  return {_mm256_cvtepi32_ps((__m256i)sums[0]), _mm256_cvtepi32_ps((__m256i)sums[1])};
}
static inline Lanes lanes_of(const WordPart *bits) { return {(__m256)bits[0], (__m256)bits[1]}; }
static inline ShortPart looked_up_part(ShortPart bytes, const int8_t *table) {
  const __m128i all = _mm_loadu_si128(reinterpret_cast<const __m128i *>(table));
  return (ShortPart)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(all), (__m256i)bytes);
}
