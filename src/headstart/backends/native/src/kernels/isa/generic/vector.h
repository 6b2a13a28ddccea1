// Sixteen lanes in plain operations: a sum of products rounds twice, on every processor, so that a library of this
// instruction set has the same bits on all of them.
#pragma once
#include "kernels/vectors/quad.h"

static inline Quad multiply_add(Quad a, Quad b, Quad c) { return a * b + c; }

// At 2^23 and beyond a float has no room for fractions; the sign is kept, of zeros too.
static inline Quad to_nearest(Quad x) {
  const Quad size = magnitude(x), whole = size + 8388608.f - 8388608.f;
  return (Quad)((QuadWords)(size < 8388608.f ? whole : size) | ((QuadWords)x & 0x80000000u));
}

// As from_half.
static inline Quad load_half_quad(const void *p) {
  const QuadWords bits = __builtin_convertvector(load_quad<QuadHalves>(p), QuadWords);
  const QuadWords shifted = (bits & 0x7fff) << 13;
  const QuadWords whole = (QuadWords)((Quad)shifted * 0x1p112f);
  const QuadWords beyond = (QuadWords)(shifted >= 0x0f800000u) & 0x7f800000u;
  return (Quad)(whole | beyond | (bits & 0x8000) << 16);
}

#include "kernels/vectors/vector_quads.h"
