// In plain operations.
#pragma once
#include "kernels/vectors/quad.h"

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

#include "kernels/vectors/dot_bytes_quads.h"
