// Four lanes in plain operations: a sum of products rounds twice, on every processor, so that a library of this
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

// 16-bit integers.
typedef uint16_t ShortPart __attribute__((vector_size(16)));
typedef QuadWords WordPart;
typedef QuadInts SumPart;

static inline SumPart dot_part(SumPart sum, ShortPart x, ShortPart y) {
  const auto even = [](ShortPart part) { return (SumPart)part << 16 >> 16; };
  const auto odd = [](ShortPart part) { return (SumPart)part >> 16; };
  return sum + even(x) * even(y) + odd(x) * odd(y);
}
static inline ShortPart looked_up_part(ShortPart bytes, const int8_t *table) {
  uint8_t each[16];
  std::memcpy(each, &bytes, 16);
  for (uint8_t &byte : each) byte = static_cast<uint8_t>(table[byte]);
  std::memcpy(&bytes, each, 16);
  return bytes;
}

// Dot products of bytes.
constexpr int kHeldSums = 2;

typedef int8_t SignedBytes __attribute__((vector_size(16)));
typedef int16_t PairSums __attribute__((vector_size(16)));

// Bytes of a row and of a column are never both -128, so that two of their products fit 16 bits.
static inline QuadInts dot_quad(QuadInts sum, SignedBytes x, SignedBytes y) {
  const auto even = [](SignedBytes q) { return ((PairSums)q << 8) >> 8; };
  const auto odd = [](SignedBytes q) { return (PairSums)q >> 8; };
  const QuadInts two = (QuadInts)(even(x) * even(y) + odd(x) * odd(y));
  return sum + (two << 16 >> 16) + (two >> 16);
}
