// With NEON: the dot product that processors have since Armv8.2, mostly, else two products and two sums in its place.
#pragma once
#include <arm_neon.h>

#include "kernels/vectors/quad.h"

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

#include "kernels/vectors/dot_bytes_quads.h"
