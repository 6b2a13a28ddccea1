// Q4_0, Q4_1, Q5_0, Q5_1: levels of four or five bits in blocks of 32. For each half the units [column], where there
// are any the offsets, then the levels.
#pragma once
#include "kernels/formats/stored/planes.h"

// kZero: the level that stands for zero.
template <class TheBlock, int kBits, bool kHasOffsets, int kZero>
struct SmallBlocks {
  using Block = TheBlock;
  static constexpr int kInputs = 32, kSumInputs = 32, kScaleInputs = 32;
  static constexpr bool kOffsets = kHasOffsets;
  static constexpr int kHeader = (1 + kHasOffsets) * 2 * kColumns, kBytes = kHeader + kBits * kPairLine;

  template <bool kPacks>
  static void move(uint8_t *stored, char *block, int column) {
    move_bytes<kPacks>(stored, block + 2 * column, 2);
    if (kHasOffsets) move_bytes<kPacks>(stored + 2, block + 2 * kColumns + 2 * column, 2);
    uint8_t levels[kInputs] = {};
    if (kPacks) move_levels<kPacks>(stored, levels);
    if (kBits == 5)
      move_five_bits<kPacks>(levels, block + kHeader, column);
    else
      for (int k = 0; k < kInputs; k += kGroupInputs)
        Plane<4>::move<kPacks>(levels + k, 0, block + kHeader + k / kGroupInputs * kPairLine, column);
    if (!kPacks) move_levels<kPacks>(stored, levels);
  }

  static NoScales scales(const char *, int, int) { return {}; }
  static void levels(const char *block, int half, int group, Shorts (&words)[kGroupWords]) {
    const char *const lines = block + kHeader + half * kHalfLine;
    if (kBits == 5)
      five_bit_levels(lines, group, words);
    else
      four_bit_levels(lines + group * kPairLine, words);
    if (kZero)
      for (Shorts &each : words) each = each - kZero;
  }
  static Lanes unit(const char *block, int half, int) { return load_half(block + half * 32); }
  static Lanes offset(const char *block, int half, int) { return load_half(block + 2 * kColumns + half * 32); }

 private:
  template <bool kPacks>
  static void move_levels(uint8_t *stored, uint8_t *levels) {
    constexpr int kFifth = 2 + 2 * kHasOffsets, kLower = kFifth + (kBits == 5 ? 4 : 0);
    for (int k = 0; k < kInputs; ++k) {
      move_bits<kPacks>(stored[kLower + k % 16], k / 16 * 4, 4, levels[k]);
      if (kBits == 5) move_bits<kPacks>(stored[kFifth + k / 8], k % 8, 1, levels[k], 4);
    }
  }
};

using StoredQ4_0 = SmallBlocks<BlockQ4_0, 4, false, 8>;
using StoredQ4_1 = SmallBlocks<BlockQ4_1, 4, true, 0>;
using StoredQ5_0 = SmallBlocks<BlockQ5_0, 5, false, 16>;
using StoredQ5_1 = SmallBlocks<BlockQ5_1, 5, true, 0>;
