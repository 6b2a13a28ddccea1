// 16-bit integers in plain operations.
#pragma once
#include "kernels/vectors/quad.h"

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

#include "kernels/vectors/shorts_quads.h"
