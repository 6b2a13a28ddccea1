// 16-bit integers of AVX-512 (VNNI): one register.
#pragma once
#include <immintrin.h>

#include "kernels/formats/number_table.h"
#include "kernels/vectors/vector.h"
#if !defined(__AVX512BF16__)
#include "kernels/isa/no_bf16_dot.h"
#endif

constexpr int kShortParts = 1;
typedef uint16_t ShortPart __attribute__((vector_size(64)));
typedef uint32_t WordPart __attribute__((vector_size(64)));
typedef int32_t SumPart __attribute__((vector_size(64)));

static inline SumPart dot_part(SumPart sum, ShortPart x, ShortPart y) {
  return (SumPart)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)x, (__m512i)y);
}
static inline Lanes floats_of(const SumPart *sums) { return {_mm512_cvtepi32_ps((__m512i)sums[0])}; }
static inline Lanes lanes_of(const WordPart *bits) { return {(__m512)bits[0]}; }
static inline ShortPart looked_up_part(ShortPart bytes, const int8_t *table) {
  const __m128i all = _mm_loadu_si128(reinterpret_cast<const __m128i *>(table));
  return (ShortPart)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(all), (__m512i)bytes);
}
// What a table has for each number's lowest four bits; the others may be anything.
static inline ShortPart looked_up_numbers_part(ShortPart numbers, const NumberTable &table) {
  return (ShortPart)_mm512_permutexvar_epi16((__m512i)numbers, _mm512_load_si512(table.numbers));
}

// sum + two bf16 weights of each column times the two of a row: one dot product, where there is one.
#if defined(__AVX512BF16__)
constexpr bool kDotsBf16 = true;
static inline Lanes dot_bf16(Lanes sum, const ShortPart *weights, uint32_t two) {
  return {_mm512_dpbf16_ps(sum.v, (__m512bh)_mm512_set1_epi32(static_cast<int>(two)), (__m512bh)weights[0])};
}
#endif
