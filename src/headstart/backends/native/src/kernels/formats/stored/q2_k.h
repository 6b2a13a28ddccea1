// Q2_K: levels of two bits in superblocks of 256, a unit and an offset of four bits each for every 16 inputs. For each
// half d and dmin, [column]; words of sixteen bytes, as the file has them; then the levels.
#pragma once
#include "kernels/formats/stored/planes.h"

struct StoredQ2_K {
  using Block = BlockQ2_K;
  static constexpr int kInputs = 256, kSumInputs = 256, kScaleInputs = 16, kOffsetInputs = 16;  // 3 * 15
  static constexpr bool kOffsets = true, kWide = false;
  static constexpr int kHalves = 4 * kColumns, kHeader = kHalves + 16 * kColumns;
  static constexpr int kBytes = kHeader + kInputs / Plane<2>::kInputs * kPairLine;

  template <bool kPacks>
  static void move(uint8_t *stored, char *block, int column) {
    move_bytes<kPacks>(stored + 80, block + 2 * column, 2);
    move_bytes<kPacks>(stored + 82, block + kPairLine / 2 + 2 * column, 2);
    move_words<kPacks>(stored, block + kHalves, column, 4);
    uint8_t levels[kInputs] = {};
    if (kPacks) move_levels<kPacks>(stored, levels);
    for (int k = 0; k < kInputs; k += Plane<2>::kInputs)
      Plane<2>::move<kPacks>(levels + k, 0, block + kHeader + k / Plane<2>::kInputs * kPairLine, column);
    if (!kPacks) move_levels<kPacks>(stored, levels);
  }

  static Shorts scales(const char *block, int half, int index) {
    return both_of(bytes(block, half, index / 4) & 0x0f0f, index % 4);
  }
  static void levels(const char *block, int half, int group, Shorts (&words)[kGroupWords]) {
    const Shorts all = load_shorts(block + kHeader + group / 2 * kPairLine + half * kHalfLine) >> (group % 2 * 8);
    for (int i = 0; i < kGroupWords; ++i) words[i] = all >> 2 * i & 3;
  }
  static Lanes unit(const char *block, int half, int) { return load_half(block + half * 32); }
  static Lanes offset(const char *block, int half, int index) {
    const Lanes least = splat(0.f) - load_half(block + kPairLine / 2 + half * 32);
    return least * floats_of(bytes(block, half, index / 4) >> 4 & 0x0f0f, index % 4);
  }

 private:
  static Shorts bytes(const char *block, int half, int four) {
    return load_shorts(block + kHalves + (half * 4 + four) * kHalfLine);
  }
  template <bool kPacks>
  static void move_levels(uint8_t *stored, uint8_t *levels) {
    for (int k = 0; k < kInputs; ++k)
      move_bits<kPacks>(stored[16 + k / 128 * 32 + k % 32], k % 128 / 32 * 2, 2, levels[k]);
  }
};
