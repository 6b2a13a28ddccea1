// Four lanes of NEON; a sum of products rounds once, as with AVX2, so that both have the same bits. The dot product of
// bytes is the one that processors have since Armv8.2, mostly, else two products and two sums in its place.
#pragma once
#include <arm_neon.h>

#include "kernels/vectors/quad.h"

static inline Quad multiply_add(Quad a, Quad b, Quad c) { return vfmaq_f32(c, a, b); }
static inline Quad to_nearest(Quad x) { return vrndnq_f32(x); }
static inline Quad load_half_quad(const void *p) {
  return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(static_cast<const uint8_t *>(p))));
}

// 16-bit integers.
typedef uint16_t ShortPart __attribute__((vector_size(16)));
typedef QuadWords WordPart;
typedef QuadInts SumPart;

static inline SumPart dot_part(SumPart sum, ShortPart x, ShortPart y) {
  const int16x8_t a = (int16x8_t)x, b = (int16x8_t)y;
  const int32x4_t first = vmull_s16(vget_low_s16(a), vget_low_s16(b)), second = vmull_high_s16(a, b);
  return (SumPart)vaddq_s32((int32x4_t)sum, vpaddq_s32(first, second));
}
static inline ShortPart looked_up_part(ShortPart bytes, const int8_t *table) {
  return (ShortPart)vqtbl1q_s8(vld1q_s8(table), (uint8x16_t)bytes);
}

// Dot products of bytes.
constexpr int kHeldSums = 3;

typedef int8_t SignedBytes __attribute__((vector_size(16)));

static inline QuadInts dot_quad(QuadInts sum, SignedBytes x, SignedBytes y) {
#if defined(__ARM_FEATURE_DOTPROD)
  return vdotq_s32(sum, x, y);
#else
  // Bytes of a row and of a column are never both -128, so that two of their products fit 16 bits.
  const int16x8_t first = vmull_s8(vget_low_s8(x), vget_low_s8(y)), second = vmull_high_s8(x, y);
  return vpadalq_s16(sum, vpaddq_s16(first, second));
#endif
}
