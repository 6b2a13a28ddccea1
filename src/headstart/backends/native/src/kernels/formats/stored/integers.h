// Whole numbers in groups, as GPTQ, AWQ and compressed-tensors keep them: levels of four or eight bits, less their
// group's zero.
#pragma once
#include "kernels/formats/stored/planes.h"

// Some of the folder's groups side by side, so that what stands before the levels fills whole lines: units
// [group][column], zeros [group][column]; of four bits, those of both halves share bytes.
template <int kEach, int kBits, int kGroups>
struct StoredIntegers {
  using Block = BlockIntegers<kEach, kBits>;
  static constexpr int kInputs = kGroups * kEach, kSumInputs = kEach, kScaleInputs = kEach;
  static constexpr bool kOffsets = false, kWide = kBits == 8;
  static constexpr int kUnitBytes = 2 * kColumns, kZeroBytes = kColumns * kBits / 8;
  static constexpr int kZeros = kGroups * kUnitBytes;
  static constexpr int kHeader = (kZeros + kGroups * kZeroBytes + kHalfLine - 1) / kHalfLine * kHalfLine;
  static constexpr int kLines = kEach / Plane<kBits>::kInputs;  // of a group
  static constexpr int kBytes = kHeader + kGroups * kLines * kPairLine;

  template <bool kPacks>
  static void move(uint8_t *stored, char *block, int column) {
    for (int group = 0; group < kGroups; ++group, stored += Block::kBytes) {
      move_bytes<kPacks>(stored, block + group * kUnitBytes + 2 * column, 2);
      move_zero<kPacks>(stored[2], block + kZeros + group * kZeroBytes, column);
      uint8_t levels[kEach] = {};
      if (kPacks)
        for (int k = 0; k < kEach; ++k) levels[k] = static_cast<uint8_t>(Block::level(stored, k));
      for (int line = 0; line < kLines; ++line)
        Plane<kBits>::template move<kPacks>(levels + line * Plane<kBits>::kInputs, 0,
                                            block + kHeader + (group * kLines + line) * kPairLine, column);
      if (!kPacks)
        for (int k = 0; k < kEach; ++k)
          move_bits<false>(stored[Block::kLevels + k * kBits / 8], k * kBits % 8, kBits, levels[k]);
    }
  }

  static Zeros scales(const char *block, int half, int index) {
    const char *const zeros = block + kZeros + index * kZeroBytes;
    return {both_of_bytes(zeros + (kBits == 8 ? half * 16 : 0), kBits == 8 ? 0 : 4 * half, (1 << kBits) - 1)};
  }
  static void levels(const char *block, int half, int group, Shorts (&words)[kGroupWords]) {
    const char *const line = block + kHeader + group * kGroupInputs / Plane<kBits>::kInputs * kPairLine;
    if (kBits == 8)
      byte_levels(line + half * kHalfLine, words);
    else
      four_bit_levels(line + half * kHalfLine, words);
  }
  static Lanes unit(const char *block, int half, int run) { return load_half(block + run * kUnitBytes + half * 32); }

 private:
  template <bool kPacks>
  static void move_zero(uint8_t &stored, char *zeros, int column) {
    auto &byte = reinterpret_cast<uint8_t &>(zeros[kBits == 8 ? column : column % 16]);
    const int shift = kBits == 8 ? 0 : column / 16 * 4, mask = ((1 << kBits) - 1) << shift;
    if (kPacks)
      byte = static_cast<uint8_t>((byte & ~mask) | stored << shift);
    else
      stored = static_cast<uint8_t>((byte & mask) >> shift);
  }
};

using StoredInt4_32 = StoredIntegers<32, 4, 4>;
using StoredInt4_64 = StoredIntegers<64, 4, 4>;
using StoredInt4_128 = StoredIntegers<128, 4, 2>;
using StoredInt4_256 = StoredIntegers<256, 4, 1>;
using StoredInt8_32 = StoredIntegers<32, 8, 2>;
using StoredInt8_128 = StoredIntegers<128, 8, 2>;

// Bytes with a sign whose units are floats: for each half the units [column], then the levels.
struct StoredBytes {
  using Block = BlockBytes;
  static constexpr int kInputs = 256, kSumInputs = 256, kScaleInputs = 256;  // 128
  static constexpr bool kOffsets = false;
  static constexpr int kHeader = 4 * kColumns, kBytes = kHeader + kInputs / Plane<8>::kInputs * kPairLine;

  template <bool kPacks>
  static void move(uint8_t *stored, char *block, int column) {
    move_bytes<kPacks>(stored, block + 4 * column, 4);
    for (int k = 0; k < kInputs; k += Plane<8>::kInputs)
      Plane<8>::move<kPacks>(stored + 4 + k, 0, block + kHeader + k / Plane<8>::kInputs * kPairLine, column);
  }
  static NoScales scales(const char *, int, int) { return {}; }
  static void levels(const char *block, int half, int group, Shorts (&words)[kGroupWords]) {
    signed_byte_levels(block + kHeader + 2 * group * kPairLine + half * kHalfLine, words);
  }
  static Lanes unit(const char *block, int half, int) {
    return load(reinterpret_cast<const float *>(block) + half * 16);
  }
};
