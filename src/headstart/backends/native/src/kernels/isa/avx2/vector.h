// Sixteen float lanes in two AVX2 registers; see isa/avx512/vector.h for what each function promises.
#pragma once
#include <immintrin.h>

#include "kernels/formats/cells.h"

struct Lanes {
  __m256 lo, hi;
};

static inline void hold(__m256i &x) { asm("" : "+x"(x)); }
// The compiler no longer knows where it points: what was loaded from there is loaded again.
template <class T>
static inline void hold(const T *&x) {
  asm("" : "+r"(x));
}
static inline void hold(Lanes &x) { asm("" : "+x"(x.lo), "+x"(x.hi)); }

static inline Lanes load(const float *p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
static inline void store(float *p, Lanes a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
// Past the caches, to an aligned place; other threads see it behind `finish_streams`.
static inline void stream(float *p, Lanes a) {
  _mm256_stream_ps(p, a.lo);
  _mm256_stream_ps(p + 8, a.hi);
}
static inline void finish_streams() { _mm_sfence(); }
static inline Lanes splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
static inline Lanes operator+(Lanes a, Lanes b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
static inline Lanes operator-(Lanes a, Lanes b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
static inline Lanes operator*(Lanes a, Lanes b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
static inline Lanes operator/(Lanes a, Lanes b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
static inline Lanes fma(Lanes a, Lanes b, Lanes c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
static inline Lanes max(Lanes a, Lanes b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
static inline Lanes min(Lanes a, Lanes b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
static inline Lanes abs(Lanes a) {
  const __m256 sign = _mm256_set1_ps(-0.f);
  return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
static inline Lanes round(Lanes a) {
  constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.lo, mode), _mm256_round_ps(a.hi, mode)};
}

static inline Lanes power_of_two(Lanes a) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a.lo), 23)),
          _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a.hi), 23))};
}

static inline __m256 select_range8(__m256 a, int begin, int end, __m256 other) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i inside = _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(begin), lane),
                                             _mm256_cmpgt_epi32(_mm256_set1_epi32(end), lane));
  return _mm256_blendv_ps(other, a, _mm256_castsi256_ps(inside));
}
static inline Lanes select_range(Lanes a, int begin, int end, Lanes other) {
  return {select_range8(a.lo, begin, end, other.lo), select_range8(a.hi, begin - 8, end - 8, other.hi)};
}

static inline Lanes finite_or_zero(Lanes a) {
  const Lanes size = abs(a);
  const __m256 limit = _mm256_set1_ps(3.4028234e38f);
  return {_mm256_and_ps(a.lo, _mm256_cmp_ps(size.lo, limit, _CMP_LE_OQ)),
          _mm256_and_ps(a.hi, _mm256_cmp_ps(size.hi, limit, _CMP_LE_OQ))};
}

static inline float reduce_add(Lanes a) {
  const __m256 eight = _mm256_add_ps(a.lo, a.hi);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
static inline float reduce_max(Lanes a) {
  const __m256 eight = _mm256_max_ps(a.lo, a.hi);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

static inline __m256 load_bf16x8(const Bf16 *p) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i *>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
static inline Lanes load_bf16(const Bf16 *p) { return {load_bf16x8(p), load_bf16x8(p + 8)}; }

static inline Lanes load_half(const void *p) {
  const auto *source = static_cast<const __m128i *>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(source)), _mm256_cvtph_ps(_mm_loadu_si128(source + 1))};
}

static inline __m256i round_bf16x8(__m256 a) {
  const __m256i bits = _mm256_castps_si256(a);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded =
      _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd), 16);
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0), nan);
}
static inline void store_bf16(Bf16 *p, Lanes a) {
  const __m256i packed = _mm256_packus_epi32(round_bf16x8(a.lo), round_bf16x8(a.hi));  // quarters 0 2 1 3
  _mm256_storeu_si256(reinterpret_cast<__m256i *>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}

static inline Lanes load_bf16_even(const Bf16 *p) {
  const auto *const pairs = reinterpret_cast<const __m256i *>(p);
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(pairs), 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(pairs + 1), 16))};
}
static inline Lanes load_bf16_odd(const Bf16 *p) {
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  const auto *const pairs = reinterpret_cast<const __m256i *>(p);
  return {_mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(pairs), upper)),
          _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(pairs + 1), upper))};
}

// Sixteen integers to bytes, modulo 256.
static inline __m128i low_bytes(__m256i a, __m256i b) {
  const __m256i byte = _mm256_set1_epi32(0xff);
  const __m256i words =
      _mm256_permute4x64_epi64(_mm256_packus_epi32(_mm256_and_si256(a, byte), _mm256_and_si256(b, byte)), 0xd8);
  return _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}
static inline void store_two_planes(uint8_t *high, uint8_t *low, Lanes a, int offset) {
  const __m256i first = _mm256_cvtps_epi32(a.lo), second = _mm256_cvtps_epi32(a.hi);
  const __m256i shift = _mm256_set1_epi32(offset), half = _mm256_set1_epi32(128);
  const auto upper = [&](__m256i v) {
    return _mm256_add_epi32(_mm256_srai_epi32(_mm256_add_epi32(v, half), 8), shift);
  };
  _mm_storeu_si128(reinterpret_cast<__m128i *>(high), low_bytes(upper(first), upper(second)));
  _mm_storeu_si128(reinterpret_cast<__m128i *>(low),
                   low_bytes(_mm256_add_epi32(first, shift), _mm256_add_epi32(second, shift)));
}
static inline void store_one_plane(uint8_t *plane, Lanes a, int offset) {
  const __m256i shift = _mm256_set1_epi32(offset);
  _mm_storeu_si128(reinterpret_cast<__m128i *>(plane), low_bytes(_mm256_add_epi32(_mm256_cvtps_epi32(a.lo), shift),
                                                                 _mm256_add_epi32(_mm256_cvtps_epi32(a.hi), shift)));
}
static inline Lanes load_int32(const int32_t *p) {
  const __m256i *source = reinterpret_cast<const __m256i *>(p);
  return {_mm256_cvtepi32_ps(_mm256_loadu_si256(source)), _mm256_cvtepi32_ps(_mm256_loadu_si256(source + 1))};
}

static inline void gather_halves(uint32_t *out, const uint32_t *first, bool first_odd, const uint32_t *second,
                                 bool second_odd) {
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  for (int i = 0; i < 16; i += 8) {
    __m256i low = _mm256_setzero_si256(), high = _mm256_setzero_si256();
    if (first) {
      low = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(first + i));
      low = first_odd ? _mm256_srli_epi32(low, 16) : _mm256_andnot_si256(upper, low);
    }
    if (second) {
      high = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(second + i));
      high = second_odd ? _mm256_and_si256(high, upper) : _mm256_slli_epi32(high, 16);
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(out + i), _mm256_or_si256(low, high));
  }
}

struct Words {
  __m256i lo, hi;
};

static inline Words load_words(const uint32_t *p) {
  const __m256i *source = reinterpret_cast<const __m256i *>(p);
  return {_mm256_loadu_si256(source), _mm256_loadu_si256(source + 1)};
}
static inline void store_words(uint32_t *p, Words a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i *>(p), a.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i *>(p) + 1, a.hi);
}
static inline Words splat_words(uint32_t x) {
  const __m256i all = _mm256_set1_epi32(static_cast<int>(x));
  return {all, all};
}
static inline Words operator^(Words a, Words b) { return {_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi)}; }
static inline void multiply8(__m256i a, __m256i b, __m256i &high, __m256i &low) {
  const __m256i even = _mm256_mul_epu32(a, b);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), b);
  high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
  low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
}
static inline void multiply(Words a, Words b, Words &high, Words &low) {
  multiply8(a.lo, b.lo, high.lo, low.lo);
  multiply8(a.hi, b.hi, high.hi, low.hi);
}
static inline Lanes half(Words a) {
  return {_mm256_cvtepi32_ps(_mm256_srli_epi32(a.lo, 1)), _mm256_cvtepi32_ps(_mm256_srli_epi32(a.hi, 1))};
}
static inline uint32_t at_most(Lanes a, Lanes b) {
  const int low = _mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_LE_OQ));
  return static_cast<uint32_t>(low | _mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_LE_OQ)) << 8);
}
