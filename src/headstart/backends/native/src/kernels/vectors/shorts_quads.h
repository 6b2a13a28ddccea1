// 16-bit integers in four vectors. HEADSTART_QUADS says what dot_part(sum, a, b) adds to four sums, and what
// looked_up_part(bytes, table) finds for sixteen bytes.
#pragma once
#include "kernels/isa/no_bf16_dot.h"
#include "kernels/vectors/vector.h"

constexpr int kShortParts = 4;

static inline Lanes floats_of(const SumPart *sums) {
  const auto convert = [](SumPart part) { return __builtin_convertvector(part, Quad); };
  return {convert(sums[0]), convert(sums[1]), convert(sums[2]), convert(sums[3])};
}
static inline Lanes lanes_of(const WordPart *bits) {
  return {(Quad)bits[0], (Quad)bits[1], (Quad)bits[2], (Quad)bits[3]};
}
