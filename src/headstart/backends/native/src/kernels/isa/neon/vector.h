// Sixteen lanes in four registers of NEON; a sum of products rounds once, as with AVX2, so that both have the same
// bits.
#pragma once
#include <arm_neon.h>

#include "kernels/vectors/quad.h"

static inline Quad multiply_add(Quad a, Quad b, Quad c) { return vfmaq_f32(c, a, b); }
static inline Quad to_nearest(Quad x) { return vrndnq_f32(x); }
static inline Quad load_half_quad(const void *p) {
  return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(static_cast<const uint8_t *>(p))));
}

#include "kernels/vectors/vector_quads.h"
