// Q8_0: levels of eight bits with a sign in blocks of 32. For each half the units [column]; then the levels.
#pragma once
#include "kernels/formats/stored/planes.h"

struct StoredQ8_0 : UnitsAlone {
  using Block = BlockQ8_0;
  static constexpr int kInputs = 32, kSumInputs = 32, kScaleInputs = 32;
  static constexpr int kHeader = 2 * kColumns, kBytes = kHeader + 8 * kPairLine;

  template <bool kPacks>
  static void move(uint8_t *stored, char *block, int column) {
    move_bytes<kPacks>(stored, block + 2 * column, 2);
    for (int k = 0; k < kInputs; k += Plane<8>::kInputs)
      Plane<8>::move<kPacks>(stored + 2 + k, 0, block + kHeader + k / Plane<8>::kInputs * kPairLine, column);
  }

  static NoScales scales(const char *, int, int) { return {}; }
  static void levels(const char *block, int half, int group, Shorts (&words)[kGroupWords]) {
    signed_byte_levels(block + kHeader + 2 * group * kPairLine + half * kHalfLine, words);
  }
};
