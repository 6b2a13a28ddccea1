// Q4_K: levels of four bits in superblocks of 256.
#pragma once
#include "kernels/formats/stored/planes.h"

struct StoredQ4_K : SixBitScales {
  using Block = BlockQ4_K;
  static constexpr int kSumInputs = 256;  // 15 * 63
  static constexpr int kBytes = kHeader + kInputs / kGroupInputs * kPairLine;

  template <bool kPacks>
  static void move(uint8_t *stored, char *block, int column) {
    move_header<kPacks>(stored, block, column);
    uint8_t levels[kInputs] = {};
    if (kPacks) move_levels<kPacks>(stored, levels);
    for (int k = 0; k < kInputs; k += kGroupInputs)
      Plane<4>::move<kPacks>(levels + k, 0, block + kHeader + k / kGroupInputs * kPairLine, column);
    if (!kPacks) move_levels<kPacks>(stored, levels);
  }

  static void levels(const char *block, int half, int group, Shorts (&words)[kGroupWords]) {
    four_bit_levels(block + kHeader + group * kPairLine + half * kHalfLine, words);
  }

 private:
  template <bool kPacks>
  static void move_levels(uint8_t *stored, uint8_t *levels) {
    for (int k = 0; k < kInputs; ++k)
      move_bits<kPacks>(stored[16 + k / 64 * 32 + k % 32], k % 64 / 32 * 4, 4, levels[k]);
  }
};
