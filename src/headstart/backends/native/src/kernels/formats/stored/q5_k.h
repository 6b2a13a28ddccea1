// Q5_K: levels of five bits in superblocks of 256. For every 32 inputs a line of fifth bits, then four of the others.
#pragma once
#include "kernels/formats/stored/planes.h"

struct StoredQ5_K : SixBitScales {
  using Block = BlockQ5_K;
  static constexpr int kSumInputs = 128;  // 31 * 63
  static constexpr int kPart = kFiveBitLines, kBytes = kHeader + kInputs / 32 * kPart;

  template <bool kPacks>
  static void move(uint8_t *stored, char *block, int column) {
    move_header<kPacks>(stored, block, column);
    uint8_t levels[kInputs] = {};
    if (kPacks) move_levels<kPacks>(stored, levels);
    for (int k = 0; k < kInputs; k += 32) move_five_bits<kPacks>(levels + k, block + kHeader + k / 32 * kPart, column);
    if (!kPacks) move_levels<kPacks>(stored, levels);
  }

  static void levels(const char *block, int half, int group, Shorts (&words)[kGroupWords]) {
    five_bit_levels(block + kHeader + group / 4 * kPart + half * kHalfLine, group % 4, words);
  }

 private:
  template <bool kPacks>
  static void move_levels(uint8_t *stored, uint8_t *levels) {
    for (int k = 0; k < kInputs; ++k) {
      move_bits<kPacks>(stored[48 + k / 64 * 32 + k % 32], k % 64 / 32 * 4, 4, levels[k]);
      move_bits<kPacks>(stored[16 + k % 32], k / 32, 1, levels[k], 4);
    }
  }
};
