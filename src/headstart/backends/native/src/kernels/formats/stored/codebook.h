// IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S: every weight's code by itself, in three or four bits, where the file has the
// numbers of points of a codebook: all weights, but in more bits than the file's (3.2 or 3.3 for 2.1 to 2.6, 4.2
// for 3.1 or 3.4). For each half the halves [column]; words of scales of four bits; then the codes.
#pragma once
#include "kernels/formats/stored/planes.h"

// Codes of three bits, for 32 inputs three lines. Of a number's sixteen four stand in each line's lower twelve bits,
// one in the next three of each; the last one's bits are the lines' highest. So each but the last is a shift away.
struct ThreeBitCodes {
  static constexpr int kInputs = 32, kBytes = 3 * kPairLine;

  static void pack(const uint8_t *codes, char *lines) {
    uint32_t words[3] = {};
    const auto two = [&](int field) { return codes[2 * field] | static_cast<uint32_t>(codes[2 * field + 1]) << 16; };
    for (int i = 0; i < 3; ++i) {
      for (int field = 0; field < 4; ++field) words[i] |= two(4 * i + field) << 3 * field;
      words[i] |= two(12 + i) << 12 | (two(15) >> i & 0x10001) << 15;
      std::memcpy(lines + i * kPairLine, words + i, 4);
    }
  }
  static void unpack(const char *lines, uint8_t *codes) {
    uint16_t numbers[3][2];
    for (int i = 0; i < 3; ++i) std::memcpy(numbers[i], lines + i * kPairLine, 4);
    for (int p = 0; p < 2; ++p) {
      unsigned last = 0;
      for (int i = 0; i < 3; ++i) {
        for (int field = 0; field < 4; ++field) codes[8 * i + 2 * field + p] = numbers[i][p] >> 3 * field & 7;
        codes[24 + 2 * i + p] = numbers[i][p] >> 12 & 7;
        last |= numbers[i][p] >> 15 << i;
      }
      codes[30 + p] = static_cast<uint8_t>(last);
    }
  }
  __attribute__((always_inline)) static void numbers(const char *lines, int group, const NumberTable &table,
                                                     Shorts (&words)[kGroupWords]) {
    if (group < 3) {
      const Shorts all = load_shorts(lines + group * kPairLine);
      for (int i = 0; i < kGroupWords; ++i) words[i] = looked_up_numbers(all >> 3 * i, table);
      return;
    }
    const Shorts first = load_shorts(lines), second = load_shorts(lines + kPairLine);
    const Shorts third = load_shorts(lines + 2 * kPairLine);
    words[0] = looked_up_numbers(first >> 12, table), words[1] = looked_up_numbers(second >> 12, table);
    words[2] = looked_up_numbers(third >> 12, table);
    words[3] = looked_up_numbers(first >> 15 | (second >> 14 & 2) | (third >> 13 & 4), table);
  }
};

// Codes of four bits, for eight inputs a line.
struct FourBitCodes {
  static constexpr int kInputs = kGroupInputs, kBytes = kPairLine;

  static void pack(const uint8_t *codes, char *line) { Plane<4>::move<true>(const_cast<uint8_t *>(codes), 0, line, 0); }
  static void unpack(const char *line, uint8_t *codes) {
    std::fill_n(codes, kInputs, uint8_t{});
    Plane<4>::move<false>(codes, 0, const_cast<char *>(line), 0);
  }
  static void numbers(const char *line, int, const NumberTable &table, Shorts (&words)[kGroupWords]) {
    const Shorts all = load_shorts(line);
    for (int i = 0; i < kGroupWords; ++i) words[i] = looked_up_numbers(all >> 4 * i, table);
  }
};

template <class TheBlock>
struct StoredCodes {
  using Block = TheBlock;
  using Codes = typename Block::Codes;
  using Lines = std::conditional_t<Codes::kBits == 3, ThreeBitCodes, FourBitCodes>;
  static constexpr int kInputs = kCodedInputs, kScaleInputs = Block::kScaleInputs;
  static constexpr int kSumInputs = Codes::kLargest < 31 ? 256 : 128;  // kLargest * 31
  static constexpr bool kOffsets = false;
  static constexpr int kScales = kInputs / kScaleInputs, kScaleWords = kScales / 8;
  static constexpr int kHalves = 2 * kColumns, kHeader = kHalves + 4 * kScaleWords * kColumns;
  static constexpr int kBytes = kHeader + kInputs / Lines::kInputs * Lines::kBytes;

  template <bool kPacks>
  static void move(const uint8_t *stored, char *block, int column) {
    static_assert(kPacks, "the way back is `read`: a code does not say which point it is of");
    CodedBlock coded;
    Block::take_apart(stored, coded);
    std::memcpy(block + 2 * column, coded.half, 2);
    for (int i = 0; i < kScaleWords; ++i) {
      uint32_t word = 0;
      for (int place = 0; place < 8; ++place) word |= static_cast<uint32_t>(coded.scales[8 * i + place]) << 4 * place;
      std::memcpy(block + scale_word(column, i), &word, sizeof word);
    }
    for (int k = 0; k < kInputs; k += Lines::kInputs) Lines::pack(coded.codes + k, block + lines_of(column, k));
  }
  // The floats that `inputs` of one column stand for.
  static void read(const char *block, int column, int inputs, float *to) {
    const float half = stored_half(reinterpret_cast<const uint8_t *>(block) + 2 * column);
    uint8_t codes[kInputs];
    for (int k = 0; k < inputs; k += Lines::kInputs) Lines::unpack(block + lines_of(column, k), codes + k);
    for (int k = 0; k < inputs; ++k) {
      const int scale = k / kScaleInputs;
      uint32_t word;
      std::memcpy(&word, block + scale_word(column, scale / 8), sizeof word);
      to[k] = unit_of_codes<Codes>(half, word >> 4 * (scale % 8) & 15) * static_cast<float>(Codes::kNumbers[codes[k]]);
    }
  }

  static Shorts scales(const char *block, int half, int index) {
    const Shorts words = load_shorts(block + scale_word(16 * half, index / 8));
    return both([&](int i) { return ((WordPart)words.part[i] >> (4 * (index % 8)) & 15) * 2 + 1; });
  }
  __attribute__((always_inline)) static void levels(const char *block, int half, int group,
                                                    Shorts (&words)[kGroupWords]) {
    constexpr int kGroups = Lines::kInputs / kGroupInputs;
    const char *const lines = block + lines_of(16 * half, group * kGroupInputs);
    Lines::numbers(lines, group % kGroups, kTable, words);
  }
  static Lanes unit(const char *block, int half, int) { return load_half(block + half * 32) * splat(Codes::kFactor); }

 private:
  static constexpr NumberTable kTable = number_table(Codes::kNumbers);

  // Where a column's words of scales, and of its codes, stand.
  static constexpr int scale_word(int column, int i) {
    return kHalves + (column / 16 * kScaleWords + i) * kHalfLine + column % 16 * 4;
  }
  static constexpr int lines_of(int column, int k) {
    return kHeader + k / Lines::kInputs * Lines::kBytes + column / 16 * kHalfLine + column % 16 * 4;
  }
};

using StoredIQ2_XXS = StoredCodes<BlockIQ2_XXS>;
using StoredIQ2_XS = StoredCodes<BlockIQ2_XS>;
using StoredIQ2_S = StoredCodes<BlockIQ2_S>;
using StoredIQ3_XXS = StoredCodes<BlockIQ3_XXS>;
using StoredIQ3_S = StoredCodes<BlockIQ3_S>;
