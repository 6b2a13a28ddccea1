// Q6_K: levels of six bits in superblocks of 256, a unit of eight bits with a sign for every 16 inputs. For each half
// d, [column]; words of sixteen units; for every 16 inputs three lines of levels, 32 less, which have a sign so:
//
//     bits 10 to 15   4 to 9    0 to 3
//     level 1         level 0   upper bits of level 6
//     level 3         level 2   lower bits of 7 and of 6
//     level 5         level 4   upper bits of level 7
//
// of the eight of a number. Shifts alone bring them out; taking levels apart is what a pass of some rows waits for
// here.
#pragma once
#include "kernels/formats/stored/planes.h"

struct StoredQ6_K : UnitsAlone {
  using Block = BlockQ6_K;
  static constexpr int kInputs = 256, kSumInputs = 64;  // 32 * 128
  static constexpr int kScaleInputs = 16, kUnits = 2 * kColumns, kHeader = kUnits + 16 * kColumns;
  static constexpr int kPart = 3 * kPairLine, kBytes = kHeader + kInputs / 16 * kPart;

  template <bool kPacks>
  static void move(uint8_t *stored, char *block, int column) {
    move_bytes<kPacks>(stored + 208, block + 2 * column, 2);
    move_words<kPacks>(stored + 192, block + kUnits, column, 4);
    uint8_t levels[kInputs] = {};
    if (kPacks) move_levels<kPacks>(stored, levels);
    for (int k = 0; k < kInputs; k += 16) {
      char *const lines = block + kHeader + k / 16 * kPart + column / 16 * kHalfLine + column % 16 * 4;
      for (int p = 0; p < 2; ++p) move_number<kPacks>(levels + k + p, lines + 2 * p);
    }
    if (!kPacks) move_levels<kPacks>(stored, levels);
  }

  static Shorts scales(const char *block, int half, int index) {
    const char *const lines = block + kUnits + half * 4 * kHalfLine;
    return both_of_signed(load_shorts(lines + index / 4 * kHalfLine), index % 4);
  }
  static void levels(const char *block, int half, int group, Shorts (&words)[kGroupWords]) {
    const char *const part = block + kHeader + group / 2 * kPart + half * kHalfLine;
    if (group % 2 == 0) {
      both_levels(load_shorts(part), words[0], words[1]);
      both_levels(load_shorts(part + kPairLine), words[2], words[3]);
    } else {
      const Shorts first = load_shorts(part), second = load_shorts(part + kPairLine);
      const Shorts third = load_shorts(part + 2 * kPairLine);
      both_levels(third, words[0], words[1]);
      words[2] = shifted_signed(first << 12, 10) | (second & 3);
      words[3] = shifted_signed(third << 12, 10) | (second >> 2 & 3);
    }
  }

 private:
  static void both_levels(Shorts number, Shorts &lower, Shorts &upper) {
    lower = shifted_signed(number << 6, 10), upper = shifted_signed(number, 10);
  }
  // The eight levels of one number, at every second place, to or from where its parts stand in three lines.
  template <bool kPacks>
  static void move_number(uint8_t *levels, char *at) {
    uint16_t numbers[3] = {};
    uint8_t level[8] = {};
    if (kPacks) {
      for (int i = 0; i < 8; ++i) level[i] = levels[2 * i] ^ 32;
      const int rest[3] = {level[6] >> 2, (level[7] & 3) << 2 | (level[6] & 3), level[7] >> 2};
      for (int i = 0; i < 3; ++i)
        numbers[i] = static_cast<uint16_t>(level[2 * i + 1] << 10 | level[2 * i] << 4 | rest[i]);
    }
    for (int i = 0; i < 3; ++i)
      kPacks ? std::memcpy(at + i * kPairLine, numbers + i, 2) : std::memcpy(numbers + i, at + i * kPairLine, 2);
    if (kPacks) return;
    for (int i = 0; i < 3; ++i)
      level[2 * i] = numbers[i] >> 4 & 63, level[2 * i + 1] = static_cast<uint8_t>(numbers[i] >> 10);
    level[6] = static_cast<uint8_t>((numbers[0] & 15) << 2 | (numbers[1] & 3));
    level[7] = static_cast<uint8_t>((numbers[2] & 15) << 2 | (numbers[1] >> 2 & 3));
    for (int i = 0; i < 8; ++i) levels[2 * i] = level[i] ^ 32;
  }
  template <bool kPacks>
  static void move_levels(uint8_t *stored, uint8_t *levels) {
    for (int k = 0; k < kInputs; ++k) {
      move_bits<kPacks>(stored[k / 128 * 64 + k % 64], k % 128 / 64 * 4, 4, levels[k]);
      move_bits<kPacks>(stored[128 + k / 128 * 32 + k % 32], k % 128 / 32 * 2, 2, levels[k], 4);
    }
  }
};
