// Numbers as files keep them, anywhere in memory; grids that weights stand on.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>

static inline float stored_half(const uint8_t *p) {
  uint16_t half;
  std::memcpy(&half, p, 2);
  // Exponents of halves count from 15, those of floats from 127; the product is exact, for subnormal numbers, too.
  uint32_t bits = (half & 0x7fffu) << 13;
  float value;
  std::memcpy(&value, &bits, 4);
  value *= 0x1p112f;
  if ((half & 0x7c00u) == 0x7c00u) bits |= 0x7f800000u, std::memcpy(&value, &bits, 4);
  return half & 0x8000u ? -value : value;
}

static inline float stored_float(const uint8_t *p) {
  float value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

// The grid that 16 weights stand on: weight = unit * level + offset, level 0 to 255. Unit 0: none is known.
struct StoredGrid {
  float unit = 0.f, offset = 0.f;

  bool operator==(const StoredGrid &other) const { return unit == other.unit && offset == other.offset; }
};

constexpr int kGridInputs = 16;

// Of 32 weights with one grid, and of 16 times `count`.
static inline void fill_two(StoredGrid *to, float unit, float offset) { to[0] = to[1] = {unit, offset}; }
static inline void fill_all(StoredGrid *to, int count, float unit, float offset) {
  std::fill_n(to, count, StoredGrid{unit, offset});
}
