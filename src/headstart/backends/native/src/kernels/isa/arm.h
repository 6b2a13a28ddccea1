// What the instruction sets of 64-bit Arm processors share.
#pragma once
#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#include "kernels/isa/cache_levels.h"

static inline void pause_core() { __asm__ volatile("yield"); }

// Rounds to nearest even.
static inline uint16_t to_half(float x) {
  const __fp16 half = static_cast<__fp16>(x);
  uint16_t bits;
  std::memcpy(&bits, &half, sizeof bits);
  return bits;
}
static inline float from_half(uint16_t bits) {
  __fp16 half;
  std::memcpy(&half, &bits, sizeof half);
  return static_cast<float>(half);
}

// out[i][j] = words[j][i].
static inline void interleave(uint32_t *out, const uint32_t (&words)[4][16]) {
  for (int i = 0; i < 16; i += 4) {
    const uint32x4x4_t four = {
        {vld1q_u32(words[0] + i), vld1q_u32(words[1] + i), vld1q_u32(words[2] + i), vld1q_u32(words[3] + i)}};
    vst4q_u32(out + 4 * i, four);
  }
}
