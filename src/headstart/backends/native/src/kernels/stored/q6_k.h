// Q6_K: levels of six bits in superblocks of 256, a unit of eight bits with a sign for every 16 inputs. For each half
// d, [column]; words of sixteen units; for every 16 inputs two lines of four bits and one of two.
#pragma once
#include "planes.h"

struct StoredQ6_K {
  using Block = BlockQ6_K;
  static constexpr int kInputs = 256, kSumInputs = 64;  // 32 * 128
  static constexpr int kScaleInputs = 16, kUnits = 2 * kColumns, kHeader = kUnits + 16 * kColumns;
  static constexpr int kPart = 3 * kPairLine, kBytes = kHeader + kInputs / 16 * kPart;
  static constexpr bool kOffsets = false;

  template <bool kPacks>
  static void move(uint8_t *stored, char *block, int column) {
    move_bytes<kPacks>(stored + 208, block + 2 * column, 2);
    move_words<kPacks>(stored + 192, block + kUnits, column, 4);
    uint8_t levels[kInputs] = {};
    if (kPacks) move_levels<kPacks>(stored, levels);
    for (int k = 0; k < kInputs; k += 16) {
      char *const part = block + kHeader + k / 16 * kPart;
      for (int group = 0; group < 2; ++group)
        Plane<4>::move<kPacks>(levels + k + group * kGroupInputs, 0, part + group * kPairLine, column);
      Plane<2>::move<kPacks>(levels + k, 4, part + 2 * kPairLine, column);
    }
    if (!kPacks) move_levels<kPacks>(stored, levels);
  }

  static Shorts scales(const char *block, int half, int index) {
    const char *const lines = block + kUnits + half * 4 * kHalfLine;
    return both_of_signed(load_shorts(lines + index / 4 * kHalfLine), index % 4);
  }
  static void words(const char *block, int half, int group, Shorts scale, Shorts (&words)[kGroupWords]) {
    const char *const part = block + kHeader + group / 2 * kPart + half * kHalfLine;
    four_bit_levels(part + group % 2 * kPairLine, words);
    const Shorts upper = load_shorts(part + 2 * kPairLine) >> (group % 2 * 8);
    words[0] = words[0] | (upper << 4 & 0x30), words[1] = words[1] | (upper << 2 & 0x30);
    words[2] = words[2] | (upper & 0x30), words[3] = words[3] | (upper >> 2 & 0x30);
    for (Shorts &each : words) each = (each - 32) * scale;
  }
  static Lanes unit(const char *block, int half, int) { return load_half(block + half * 32); }
  static Lanes offset(const char *, int, int) { return splat(0.f); }

 private:
  template <bool kPacks>
  static void move_levels(uint8_t *stored, uint8_t *levels) {
    for (int k = 0; k < kInputs; ++k) {
      move_bits<kPacks>(stored[k / 128 * 64 + k % 64], k % 128 / 64 * 4, 4, levels[k]);
      move_bits<kPacks>(stored[128 + k / 128 * 32 + k % 32], k % 128 / 32 * 2, 2, levels[k], 4);
    }
  }
};
