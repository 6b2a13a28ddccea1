// By no processor's own means: for the generic instruction set, and whatever else has nothing better.
#pragma once
#include <cstdint>
#include <cstring>

#include "kernels/isa/cache_levels.h"

static inline void pause_core() {}

// Rounds to nearest even; a NaN stays a NaN. What is below the least normal half is counted in the least subnormal one:
// a float of the magnitude of 1/2 has no room for less.
static inline uint16_t to_half(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const uint32_t sign = bits >> 16 & 0x8000;
  bits &= 0x7fffffff;
  uint32_t half;
  if (bits > 0x7f800000) {
    half = 0x7e00;
  } else if (bits >= 0x477ff000) {  // rounds to 65536 or more
    half = 0x7c00;
  } else if (bits < 0x38800000) {
    float magnitude;
    std::memcpy(&magnitude, &bits, sizeof bits);
    magnitude += 0.5f;
    std::memcpy(&half, &magnitude, sizeof half);
    half -= 0x3f000000;
  } else {
    half = (bits - 0x38000000 + 0xfff + (bits >> 13 & 1)) >> 13;
  }
  return static_cast<uint16_t>(sign | half);
}
static inline float from_half(uint16_t bits) {
  // Where the exponent stands for a float, counted from another number.
  const uint32_t shifted = static_cast<uint32_t>(bits & 0x7fff) << 13;
  float x;
  std::memcpy(&x, &shifted, sizeof x);
  x *= 0x1p112f;
  uint32_t whole;
  std::memcpy(&whole, &x, sizeof x);
  if (shifted >= 0x0f800000) whole |= 0x7f800000;
  whole |= static_cast<uint32_t>(bits & 0x8000) << 16;
  std::memcpy(&x, &whole, sizeof x);
  return x;
}

// out[i][j] = words[j][i].
static inline void interleave(uint32_t *out, const uint32_t (&words)[4][16]) {
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 4; ++j) out[4 * i + j] = words[j][i];
}
