// IQ4_NL, IQ4_XS, MXFP4, NVFP4: levels of four bits that stand for others.
#pragma once
#include "kernels/formats/stored/planes.h"

// Eight inputs: a table's numbers for the levels of a line.
static inline void looked_up_levels(const char *line, const int8_t *table, Shorts (&words)[kGroupWords]) {
  const Shorts all = load_shorts(line);
  const Shorts even = looked_up(all & 0x0f0f, table), odd = looked_up(all >> 4 & 0x0f0f, table);
  words[0] = lower_signed(even), words[1] = lower_signed(odd);
  words[2] = upper_signed(even), words[3] = upper_signed(odd);
}

// Levels of 32 inputs, 16 bytes of the file: the first sixteen inputs' in the lower halves of bytes.
template <bool kPacks>
static inline void move_32_levels(uint8_t *stored, char *lines, int column) {
  uint8_t levels[32] = {};
  const auto all = [&] {
    for (int k = 0; k < 32; ++k) move_bits<kPacks>(stored[k % 16], k / 16 * 4, 4, levels[k]);
  };
  if (kPacks) all();
  for (int k = 0; k < 32; k += kGroupInputs)
    Plane<4>::move<kPacks>(levels + k, 0, lines + k / kGroupInputs * kPairLine, column);
  if (!kPacks) all();
}

// For each half the units [column]; then the levels.
struct StoredIQ4_NL : UnitsAlone {
  using Block = BlockIQ4_NL;
  static constexpr int kInputs = 32, kSumInputs = 32, kScaleInputs = 32;
  static constexpr int kHeader = 2 * kColumns, kBytes = kHeader + 4 * kPairLine;

  template <bool kPacks>
  static void move(uint8_t *stored, char *block, int column) {
    move_bytes<kPacks>(stored, block + 2 * column, 2);
    move_32_levels<kPacks>(stored + 2, block + kHeader, column);
  }
  static NoScales scales(const char *, int, int) { return {}; }
  static void levels(const char *block, int half, int group, Shorts (&words)[kGroupWords]) {
    looked_up_levels(block + kHeader + group * kPairLine + half * kHalfLine, kNonlinear, words);
  }
};

// Superblocks of 256 with eight units of six bits: for each half d [column], the upper bits of the eight [column], then
// words of their lower ones.
struct StoredIQ4_XS : UnitsAlone {
  using Block = BlockIQ4_XS;
  static constexpr int kInputs = 256, kSumInputs = 64, kScaleInputs = 32;  // 127 * 32
  static constexpr int kUpper = 2 * kColumns, kLower = 4 * kColumns, kHeader = 8 * kColumns;
  static constexpr int kBytes = kHeader + kInputs / kGroupInputs * kPairLine;

  template <bool kPacks>
  static void move(uint8_t *stored, char *block, int column) {
    move_bytes<kPacks>(stored, block + 2 * column, 2);
    move_bytes<kPacks>(stored + 2, block + kUpper + 2 * column, 2);
    move_words<kPacks>(stored + 4, block + kLower, column, 1);
    for (int i = 0; i < 8; ++i)
      move_32_levels<kPacks>(stored + 8 + 16 * i, block + kHeader + 4 * i * kPairLine, column);
  }
  static Shorts scales(const char *block, int half, int index) {
    const Shorts lower = load_shorts(block + kLower + half * kHalfLine), upper = load_wide(block + kUpper + half * 32);
    return both([&](int i) {
      const WordPart four = (WordPart)lower.part[i] >> (4 * index) & 15;
      return (four | ((WordPart)upper.part[i] >> (2 * index) & 3) << 4) - 32;
    });
  }
  static void levels(const char *block, int half, int group, Shorts (&words)[kGroupWords]) {
    looked_up_levels(block + kHeader + group * kPairLine + half * kHalfLine, kNonlinear, words);
  }
};

// Two of the file's blocks side by side: their powers of two [block][column], then the levels.
struct StoredMXFP4 : UnitsAlone {
  using Block = BlockMXFP4;
  static constexpr int kInputs = 64, kSumInputs = 32, kScaleInputs = 32;
  static constexpr int kHeader = 2 * kColumns, kBytes = kHeader + 8 * kPairLine;

  template <bool kPacks>
  static void move(uint8_t *stored, char *block, int column) {
    for (int i = 0; i < 2; ++i) {
      move_bytes<kPacks>(stored + Block::kBytes * i, block + kColumns * i + column, 1);
      move_32_levels<kPacks>(stored + Block::kBytes * i + 1, block + kHeader + 4 * i * kPairLine, column);
    }
  }
  static NoScales scales(const char *, int, int) { return {}; }
  static void levels(const char *block, int half, int group, Shorts (&words)[kGroupWords]) {
    looked_up_levels(block + kHeader + group * kPairLine + half * kHalfLine, kMicroscaled, words);
  }
  static Lanes unit(const char *block, int half, int run) {
    WordPart bits[kShortParts];
#pragma GCC unroll 4
    for (int i = 0; i < kShortParts; ++i) {  // as Block::unit
      const WordPart exponent = wide_bytes(block + kColumns * run + half * 16, i);
      bits[i] = exponent < 2 ? (WordPart{} + 0x00200000u) << exponent : (exponent - 1) << 23;
    }
    return lanes_of(bits);
  }
};

// Four of the folder's blocks side by side: the matrix's float [column], the scales of each 16 inputs [scale][column],
// then the levels.
struct StoredNVFP4 {
  using Block = BlockNVFP4;
  static constexpr int kInputs = 256, kSumInputs = Block::kEach, kScaleInputs = Block::kEach;
  static constexpr bool kOffsets = false;
  static constexpr int kScales = 4 * kColumns, kHeader = kScales + kInputs / Block::kEach * kColumns;
  static constexpr int kBytes = kHeader + kInputs / kGroupInputs * kPairLine;

  template <bool kPacks>
  static void move(uint8_t *stored, char *block, int column) {
    if (kPacks) std::memcpy(block + 4 * column, stored, 4);  // the others have the same
    for (int k = 0; k < kInputs; k += Block::kInputs, stored += Block::kBytes) {
      if (!kPacks) std::memcpy(stored, block + 4 * column, 4);
      for (int i = 0; i < Block::kInputs / Block::kEach; ++i)
        move_bytes<kPacks>(stored + Block::kScales + i, scale(block, k / Block::kEach + i) + column, 1);
      for (int i = 0; i < Block::kInputs; i += kGroupInputs)
        move_eight<kPacks>(stored + Block::kLevels + i / 2, lines(block, (k + i) / kGroupInputs), column);
    }
  }
  static NoScales scales(const char *, int, int) { return {}; }
  static void levels(const char *block, int half, int group, Shorts (&words)[kGroupWords]) {
    looked_up_levels(block + kHeader + group * kPairLine + half * kHalfLine, kMicroscaled, words);
  }
  static Lanes unit(const char *block, int half, int run) {
    return factors(block, half) * splat(0x1p7f) * small_scales(block, half, run);
  }
  // What all weights of a column count, and a 256th of the scales of 16 inputs: as halves, their exponents are too
  // small.
  static Lanes factors(const char *block, int half) { return load(reinterpret_cast<const float *>(block) + half * 16); }
  static Lanes small_scales(const char *block, int half, int run) {
    const auto *const bytes = reinterpret_cast<const uint8_t *>(block) + kScales + run * kColumns + half * 16;
    uint16_t halves[16];
    for (int i = 0; i < 16; ++i) halves[i] = static_cast<uint16_t>(bytes[i] << 7);
    return load_half(halves);
  }

 private:
  static char *scale(char *block, int i) { return block + kScales + i * kColumns; }
  static char *lines(char *block, int group) { return block + kHeader + group * kPairLine; }
  template <bool kPacks>
  static void move_eight(uint8_t *stored, char *line, int column) {
    uint8_t levels[kGroupInputs] = {};
    if (kPacks)
      for (int k = 0; k < kGroupInputs; ++k) move_bits<true>(stored[k / 2], k % 2 * 4, 4, levels[k]);
    Plane<4>::move<kPacks>(levels, 0, line, column);
    if (!kPacks)
      for (int k = 0; k < kGroupInputs; ++k) move_bits<false>(stored[k / 2], k % 2 * 4, 4, levels[k]);
  }
};
