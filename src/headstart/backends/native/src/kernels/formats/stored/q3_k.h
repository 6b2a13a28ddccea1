// Q3_K: levels of three bits in superblocks of 256, a unit of six bits for every 16 inputs. For each half d, [column];
// words of twelve bytes, as the file has them; for every 32 inputs a line of third bits, then two of the others.
#pragma once
#include "kernels/formats/stored/planes.h"

struct StoredQ3_K : UnitsAlone {
  using Block = BlockQ3_K;
  static constexpr int kInputs = 256, kSumInputs = 256;  // 4 * 32
  static constexpr int kScaleInputs = 16, kUnits = 2 * kColumns, kHeader = kUnits + 12 * kColumns;
  static constexpr int kPart = 3 * kPairLine, kBytes = kHeader + kInputs / 32 * kPart;

  template <bool kPacks>
  static void move(uint8_t *stored, char *block, int column) {
    move_bytes<kPacks>(stored + 108, block + 2 * column, 2);
    move_words<kPacks>(stored + 96, block + kUnits, column, 3);
    uint8_t levels[kInputs] = {};
    if (kPacks) move_levels<kPacks>(stored, levels);
    for (int k = 0; k < kInputs; k += 32) {
      char *const part = block + kHeader + k / 32 * kPart;
      Plane<1>::move<kPacks>(levels + k, 2, part, column);
      for (int i = 0; i < 2; ++i) Plane<2>::move<kPacks>(levels + k + 16 * i, 0, part + (1 + i) * kPairLine, column);
    }
    if (!kPacks) move_levels<kPacks>(stored, levels);
  }

  static Shorts scales(const char *block, int half, int index) {
    const char *const lines = block + kUnits + half * 3 * kHalfLine;
    const Shorts lower = load_shorts(lines + index / 4 % 2 * kHalfLine), upper = load_shorts(lines + 2 * kHalfLine);
    const int byte = 8 * (index % 4);
    return both([&](int i) {
      const WordPart four = (WordPart)lower.part[i] >> (byte + index / 8 * 4) & 15;
      return (four | ((WordPart)upper.part[i] >> (byte + index / 4 * 2) & 3) << 4) - 32;
    });
  }
  static void levels(const char *block, int half, int group, Shorts (&words)[kGroupWords]) {
    const char *const part = block + kHeader + group / 4 * kPart + half * kHalfLine;
    const Shorts two = load_shorts(part + (1 + group % 4 / 2) * kPairLine) >> (group % 2 * 8);
    const Shorts third = load_shorts(part) >> (group % 4 * 4);
    words[0] = (two & 3) | (third << 2 & 4), words[1] = (two >> 2 & 3) | (third << 1 & 4);
    words[2] = (two >> 4 & 3) | (third & 4), words[3] = (two >> 6 & 3) | (third >> 1 & 4);
    for (Shorts &each : words) each = each - 4;
  }

 private:
  template <bool kPacks>
  static void move_levels(uint8_t *stored, uint8_t *levels) {
    for (int k = 0; k < kInputs; ++k) {
      move_bits<kPacks>(stored[32 + k / 128 * 32 + k % 32], k % 128 / 32 * 2, 2, levels[k]);
      move_bits<kPacks>(stored[k % 32], k / 32, 1, levels[k], 2);
    }
  }
};
