// 16-bit integers of NEON: four registers.
#pragma once
#include <arm_neon.h>

#include "kernels/vectors/quad.h"

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

#include "kernels/vectors/shorts_quads.h"
