// NF4 and FP4 of bitsandbytes: a level of four bits stands for one of sixteen numbers, which products have as whole
// numbers of 13 bits. FP4's are multiples of a 192nd. NF4's are not of anything: the unit is the one that suits them
// best, so that a weight is off by 1e-4 of its block's mean magnitude, where bf16 takes 1.7e-3. Rows are read with all
// bits.
#pragma once
#include "kernels/formats/stored/planes.h"

struct Level {
  int16_t of[16];
  float unit;  // what 1 of these counts, of a block's largest magnitude
};
constexpr Level kNormalLevels = {
    {-3735, -2600, -1961, -1475, -1062, -690, -340, 0, 297, 601, 919, 1262, 1646, 2101, 2700, 3735}, 1.f / 3734.662f};
constexpr Level kFourBitLevels = {{0, 1, 128, 192, 64, 96, 32, 48, 0, -1, -128, -192, -64, -96, -32, -48}, 1.f / 192};

struct LevelBytes {
  int8_t of[16];
};
constexpr LevelBytes level_bytes(const Level &levels, int shift) {
  LevelBytes all{};
  for (int i = 0; i < 16; ++i) all.of[i] = static_cast<int8_t>(levels.of[i] >> shift & 0xff);
  return all;
}

// For each half the largest magnitudes [column]; then the levels.
template <class TheBlock, const Level &kLevels>
struct StoredFourBitFloats {
  using Block = TheBlock;
  static constexpr int kInputs = 64, kSumInputs = 64, kScaleInputs = 64;  // 3735: a little less than 2^12
  static constexpr bool kOffsets = false, kWide = true;
  static constexpr int kHeader = 4 * kColumns, kBytes = kHeader + kInputs / kGroupInputs * kPairLine;

  template <bool kPacks>
  static void move(uint8_t *stored, char *block, int column) {
    move_bytes<kPacks>(stored, block + 4 * column, 4);
    uint8_t levels[kInputs] = {};
    if (kPacks)
      for (int k = 0; k < kInputs; ++k) levels[k] = static_cast<uint8_t>(Block::level(stored, k));
    for (int k = 0; k < kInputs; k += kGroupInputs)
      Plane<4>::move<kPacks>(levels + k, 0, block + kHeader + k / kGroupInputs * kPairLine, column);
    if (!kPacks)
      for (int k = 0; k < kInputs; ++k) move_bits<false>(stored[4 + k / 2], 4 - k % 2 * 4, 4, levels[k]);
  }
  static NoScales scales(const char *, int, int) { return {}; }
  static void levels(const char *block, int half, int group, Shorts (&words)[kGroupWords]) {
    const Shorts all = load_shorts(block + kHeader + group * kPairLine + half * kHalfLine);
    const Shorts even = all & 0x0f0f, odd = all >> 4 & 0x0f0f;
    const Shorts even_low = looked_up(even, kLowBytes.of), even_high = looked_up(even, kHighBytes.of);
    const Shorts odd_low = looked_up(odd, kLowBytes.of), odd_high = looked_up(odd, kHighBytes.of);
    words[0] = (even_low & 0xff) | even_high << 8, words[1] = (odd_low & 0xff) | odd_high << 8;
    words[2] = even_low >> 8 | (even_high & 0xff00), words[3] = odd_low >> 8 | (odd_high & 0xff00);
  }
  static Lanes unit(const char *block, int half, int) {
    return load(reinterpret_cast<const float *>(block) + half * 16) * splat(kLevels.unit);
  }

 private:
  static constexpr LevelBytes kLowBytes = level_bytes(kLevels, 0), kHighBytes = level_bytes(kLevels, 8);
};

using StoredNF4 = StoredFourBitFloats<BlockFourBitFloats<kNormalFloats>, kNormalLevels>;
using StoredFP4 = StoredFourBitFloats<BlockFourBitFloats<kFourBitFloats>, kFourBitLevels>;
