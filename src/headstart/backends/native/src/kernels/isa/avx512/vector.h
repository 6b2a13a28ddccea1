// Sixteen float lanes in one AVX-512 register.
//
// isa/avx2/vector.h offers the same names on two AVX2 registers. Both do the same operations lane by lane and reduce
// in the same order, so that code written against them gives the same bits on either.
#pragma once
#include <immintrin.h>

#include "kernels/formats/cells.h"

struct Lanes {
  __m512 v;
};

static inline Lanes load(const float *p) { return {_mm512_loadu_ps(p)}; }
static inline void store(float *p, Lanes a) { _mm512_storeu_ps(p, a.v); }
// Past the caches, to an aligned place; other threads see it behind `finish_streams`.
static inline void stream(float *p, Lanes a) { _mm512_stream_ps(p, a.v); }
static inline void finish_streams() { _mm_sfence(); }
static inline Lanes splat(float x) { return {_mm512_set1_ps(x)}; }
static inline Lanes operator+(Lanes a, Lanes b) { return {_mm512_add_ps(a.v, b.v)}; }
static inline Lanes operator-(Lanes a, Lanes b) { return {_mm512_sub_ps(a.v, b.v)}; }
static inline Lanes operator*(Lanes a, Lanes b) { return {_mm512_mul_ps(a.v, b.v)}; }
static inline Lanes operator/(Lanes a, Lanes b) { return {_mm512_div_ps(a.v, b.v)}; }
static inline Lanes fma(Lanes a, Lanes b, Lanes c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
static inline Lanes max(Lanes a, Lanes b) { return {_mm512_max_ps(a.v, b.v)}; }
static inline Lanes min(Lanes a, Lanes b) { return {_mm512_min_ps(a.v, b.v)}; }
static inline Lanes abs(Lanes a) { return {_mm512_abs_ps(a.v)}; }
static inline Lanes round(Lanes a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

// 2^n, where the lowest nine bits of a float hold n + 127; n in [-126, 127].
static inline Lanes power_of_two(Lanes a) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a.v), 23))};
}

// Lanes [begin, end) of `a`, `other` elsewhere. Bounds may lie outside 0..16.
static inline Lanes select_range(Lanes a, int begin, int end, Lanes other) {
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __mmask16 inside = _mm512_cmp_epi32_mask(lane, _mm512_set1_epi32(begin), _MM_CMPINT_NLT) &
                           _mm512_cmp_epi32_mask(lane, _mm512_set1_epi32(end), _MM_CMPINT_LT);
  return {_mm512_mask_mov_ps(other.v, inside, a.v)};
}

// Zero where a lane is an infinity or not a number.
static inline Lanes finite_or_zero(Lanes a) {
  const __mmask16 ok = _mm512_cmp_ps_mask(_mm512_abs_ps(a.v), _mm512_set1_ps(3.4028234e38f), _CMP_LE_OQ);
  return {_mm512_maskz_mov_ps(ok, a.v)};
}

// Pairwise: halves of 8, then 4, 2, 1.
static inline float reduce_add(Lanes a) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
static inline float reduce_max(Lanes a) { return _mm512_reduce_max_ps(a.v); }

static inline Lanes load_bf16(const Bf16 *p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}

static inline Lanes load_half(const void *p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i *>(p)))};
}

// Rounds to nearest even; a NaN stays a NaN.
static inline void store_bf16(Bf16 *p, Lanes a) {
#if defined(__AVX512BF16__)
  const __m256bh halves = _mm512_cvtneps_pbh(a.v);
  std::memcpy(p, &halves, sizeof halves);
#else
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded =
      _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  const __m512i result = _mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc0));
  _mm256_storeu_si256(reinterpret_cast<__m256i *>(p), _mm512_cvtepi32_epi16(result));
#endif
}

// Even and odd members of 16 interleaved bf16 pairs, as floats.
static inline Lanes load_bf16_even(const Bf16 *p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16))};
}
static inline Lanes load_bf16_odd(const Bf16 *p) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), upper))};
}

// Sixteen lanes rounded to integers and split into two signed bytes: value = 256 * high + low. Both are stored with
// `offset` added, modulo 256.
static inline void store_two_planes(uint8_t *high, uint8_t *low, Lanes a, int offset) {
  const __m512i value = _mm512_cvtps_epi32(a.v), shift = _mm512_set1_epi32(offset);
  const __m512i upper = _mm512_srai_epi32(_mm512_add_epi32(value, _mm512_set1_epi32(128)), 8);
  _mm_storeu_si128(reinterpret_cast<__m128i *>(high), _mm512_cvtepi32_epi8(_mm512_add_epi32(upper, shift)));
  _mm_storeu_si128(reinterpret_cast<__m128i *>(low), _mm512_cvtepi32_epi8(_mm512_add_epi32(value, shift)));
}
static inline void store_one_plane(uint8_t *plane, Lanes a, int offset) {
  const __m512i value = _mm512_add_epi32(_mm512_cvtps_epi32(a.v), _mm512_set1_epi32(offset));
  _mm_storeu_si128(reinterpret_cast<__m128i *>(plane), _mm512_cvtepi32_epi8(value));
}
static inline Lanes load_int32(const int32_t *p) { return {_mm512_cvtepi32_ps(_mm512_loadu_si512(p))}; }

// Sixteen 32-bit words, each made of one 16-bit half of `first` (low half of the result) and one of `second`;
// `first_odd` and `second_odd` say which half of each source word is taken. A null source gives zeros.
static inline void gather_halves(uint32_t *out, const uint32_t *first, bool first_odd, const uint32_t *second,
                                 bool second_odd) {
  __m512i low = _mm512_setzero_si512(), high = _mm512_setzero_si512();
  if (first) {
    low = _mm512_loadu_si512(first);
    low = first_odd ? _mm512_srli_epi32(low, 16) : _mm512_and_si512(low, _mm512_set1_epi32(0xffff));
  }
  if (second) {
    high = _mm512_loadu_si512(second);
    high = second_odd ? _mm512_and_si512(high, _mm512_set1_epi32(static_cast<int>(0xffff0000u)))
                      : _mm512_slli_epi32(high, 16);
  }
  _mm512_storeu_si512(out, _mm512_or_si512(low, high));
}

// Sixteen 32-bit words.
struct Words {
  __m512i v;
};

static inline Words load_words(const uint32_t *p) { return {_mm512_loadu_si512(p)}; }
static inline void store_words(uint32_t *p, Words a) { _mm512_storeu_si512(p, a.v); }
static inline Words splat_words(uint32_t x) { return {_mm512_set1_epi32(static_cast<int>(x))}; }
static inline Words operator^(Words a, Words b) { return {_mm512_xor_si512(a.v, b.v)}; }
// Upper and lower halves of the products of two words.
static inline void multiply(Words a, Words b, Words &high, Words &low) {
  const __m512i even = _mm512_mul_epu32(a.v, b.v);
  const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(a.v, 32), b.v);
  high.v = _mm512_mask_mov_epi32(_mm512_srli_epi64(even, 32), 0xaaaa, odd);
  low.v = _mm512_mask_mov_epi32(even, 0xaaaa, _mm512_slli_epi64(odd, 32));
}
// Half of each word, as a float.
static inline Lanes half(Words a) { return {_mm512_cvtepi32_ps(_mm512_srli_epi32(a.v, 1))}; }
// Bit i: whether lane i of `a` is at most lane i of `b`.
static inline uint32_t at_most(Lanes a, Lanes b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_LE_OQ); }
