// Rows of a matrix as a quantised folder defines it (GPTQ, AWQ, compressed-tensors, bitsandbytes, FP8), which
// `headstart.models.quantised.rows` brings into blocks along the inputs. Every value has the bits that the folder's
// reader in Python gives: the same operations on floats.
#pragma once
#include "kernels/formats/stored_numbers.h"

// Groups of whole numbers: weight = (level - zero) * unit. A half, the zero, then levels; of four bits two in a byte,
// the first in its lower half.
template <int kEach, int kBits>
struct BlockIntegers {
  static constexpr int kInputs = kEach, kLevels = 3, kBytes = kLevels + kEach * kBits / 8;
  static int level(const uint8_t *b, int k) {
    return kBits == 8 ? b[kLevels + k] : b[kLevels + k / 2] >> (k % 2 * 4) & 15;
  }
  static void read(const uint8_t *b, float *to) {
    const float unit = stored_half(b);
    for (int k = 0; k < kEach; ++k) to[k] = static_cast<float>(level(b, k) - b[2]) * unit;
  }
  static void grids(const uint8_t *b, StoredGrid *to) {
    fill_all(to, kEach / 16, stored_half(b), -static_cast<float>(b[2]) * stored_half(b));
  }
};

// Levels of eight bits with a sign, whose unit is a float, the same for a whole row as a rule.
struct BlockBytes {
  static constexpr int kInputs = 256, kBytes = 4 + kInputs;
  static void read(const uint8_t *b, float *to) {
    const float unit = stored_float(b);
    for (int k = 0; k < kInputs; ++k) to[k] = static_cast<float>(static_cast<int8_t>(b[4 + k])) * unit;
  }
  static void grids(const uint8_t *b, StoredGrid *to) {
    fill_all(to, kInputs / 16, stored_float(b), -128.f * stored_float(b));
  }
};

// bitsandbytes: a level of four bits stands for one of sixteen numbers of at most 1. The largest magnitude of a block,
// a float; then levels, two in a byte, the first in its upper half.
constexpr float kNormalFloats[16] = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};
constexpr float kFourBitFloats[16] = {
    0.f,  0.0625f / 12,  8.f / 12,  1.f,  4.f / 12,  6.f / 12,  2.f / 12,  3.f / 12,
    -0.f, -0.0625f / 12, -8.f / 12, -1.f, -4.f / 12, -6.f / 12, -2.f / 12, -3.f / 12,
};

template <const float (&kNumbers)[16]>
struct BlockFourBitFloats {
  static constexpr int kInputs = 64, kBytes = 4 + kInputs / 2;
  static int level(const uint8_t *b, int k) { return b[4 + k / 2] >> (4 - k % 2 * 4) & 15; }
  static void read(const uint8_t *b, float *to) {
    for (int k = 0; k < kInputs; ++k) to[k] = kNumbers[level(b, k)] * stored_float(b);
  }
  static void grids(const uint8_t *, StoredGrid *to) { fill_all(to, kInputs / 16, 0.f, 0.f); }  // none
};

// FP8 (E4M3 without infinities): a row's units, floats, one for the whole of it or for every 128 inputs; then its
// numbers.
constexpr int kFloat8BlockInputs = 128;
static inline int float8_run(bool in_blocks, int inputs) { return in_blocks ? kFloat8BlockInputs : inputs; }
static inline float from_float8(uint8_t bits) {
  const int exponent = bits >> 3 & 15, digits = bits & 7;
  float value;
  if ((bits & 0x7f) == 0x7f) {
    value = __builtin_nanf("");
  } else if (exponent == 0) {
    value = static_cast<float>(digits) * 0x1p-9f;
  } else {
    const uint32_t all = static_cast<uint32_t>(exponent + 120) << 23 | static_cast<uint32_t>(digits) << 20;
    std::memcpy(&value, &all, sizeof value);
  }
  return bits & 0x80 ? -value : value;
}
static inline void read_float8_row(bool in_blocks, const uint8_t *row, int inputs, float *to) {
  const int run = float8_run(in_blocks, inputs);
  const uint8_t *const numbers = row + (inputs + run - 1) / run * sizeof(float);
  for (int k = 0; k < inputs; ++k) to[k] = from_float8(numbers[k]) * stored_float(row + k / run * sizeof(float));
}
