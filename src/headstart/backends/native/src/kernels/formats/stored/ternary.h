// IQ1_S, IQ1_M: of every weight -1, 0 or 1 in two bits, where the file has the numbers of points of a codebook: 2.2 or
// 2.4 bits for 1.6 or 1.75. A weight counts 8 g + delta, delta 1 or -1; that is delta (8 delta g + 1). So levels are
// kept times a delta, which is the sign of their scale. IQ1_M has two for each scale: every second eight inputs are
// kept times the first delta, too, and a bit says whether their own is another.
//
// For each half the halves [column]; IQ1_M's bits for every second eight, 16 [column]; words of scales of four bits,
// which are odd numbers from -15 on; then the levels.
#pragma once
#include "kernels/formats/stored/planes.h"

template <class TheBlock>
struct StoredTernary {
  using Block = TheBlock;
  using Codes = typename Block::Codes;
  static constexpr int kInputs = kCodedInputs, kSumInputs = kInputs, kScaleInputs = Block::kScaleInputs;  // 9 * 15
  static constexpr bool kOffsets = false, kTwoDeltas = Block::kSignInputs < kScaleInputs;
  static constexpr int kScaleWords = kInputs / kScaleInputs / 8;
  static constexpr int kSecond = 2 * kColumns, kWords = kSecond + kTwoDeltas * 2 * kColumns;
  static constexpr int kHeader = kWords + 4 * kScaleWords * kColumns;
  static constexpr int kBytes = kHeader + kInputs / Plane<2>::kInputs * kPairLine;

  template <bool kPacks>
  static void move(const uint8_t *stored, char *block, int column) {
    static_assert(kPacks, "the way back is `read`: levels do not say which point they are of");
    CodedBlock coded;
    Block::take_apart(stored, coded);
    unsigned others = 0;
    uint32_t words[2] = {};
    for (int i = 0; i < kInputs / kScaleInputs; ++i) {
      uint8_t *const codes = coded.codes + i * kScaleInputs;
      const bool minus = codes[0] >> 2;
      if (kTwoDeltas) others |= (codes[kGroupInputs] >> 2 ^ minus) << i;
      const int scale = minus ? 7 - coded.scales[i] : 8 + coded.scales[i];
      words[i / 8] |= static_cast<uint32_t>(scale) << 4 * (i % 8);
      for (int k = 0; k < kScaleInputs; ++k) codes[k] = static_cast<uint8_t>(minus ? 2 - (codes[k] & 3) : codes[k] & 3);
    }
    std::memcpy(block + 2 * column, coded.half, 2);
    if (kTwoDeltas) std::memcpy(block + kSecond + 2 * column, &others, 2);
    for (int i = 0; i < kScaleWords; ++i) std::memcpy(block + scale_word(column, i), words + i, 4);
    for (int k = 0; k < kInputs; k += Plane<2>::kInputs)
      Plane<2>::template move<true>(coded.codes + k, 0, block + line_of(k), column);
  }
  // The floats that `inputs` of one column stand for.
  static void read(const char *block, int column, int inputs, float *to) {
    const auto *const at = reinterpret_cast<const uint8_t *>(block);
    const float unit = stored_half(at + 2 * column) * Codes::kFactor;
    const unsigned others = kTwoDeltas ? stored_number(at + kSecond + 2 * column, 2) : 0;
    uint8_t codes[kInputs] = {};
    for (int k = 0; k < inputs; k += Plane<2>::kInputs)
      Plane<2>::template move<false>(codes + k, 0, const_cast<char *>(block) + line_of(k), column);
    for (int k = 0; k < inputs; ++k) {
      const int i = k / kScaleInputs;
      const auto scale =
          static_cast<int>(stored_number(at + scale_word(column, i / 8), 4) >> 4 * (i % 8) & 15) * 2 - 15;
      const int less = is_second(k / kGroupInputs) && others >> i & 1 ? 9 : 7;
      to[k] = unit * static_cast<float>(scale * (8 * codes[k] - less));
    }
  }

  static Shorts scales(const char *block, int half, int index) {
    const Shorts words = load_shorts(block + scale_word(16 * half, index / 8));
    return both([&](int i) { return ((WordPart)words.part[i] >> (4 * (index % 8)) & 15) * 2 - 15; });
  }
  __attribute__((always_inline)) static void levels(const char *block, int half, int group,
                                                    Shorts (&words)[kGroupWords]) {
    const Shorts all = load_shorts(block + line_of(group * kGroupInputs) + half * kHalfLine) >> group % 2 * 8;
    words[0] = all << 3 & 24, words[1] = all << 1 & 24, words[2] = all >> 1 & 24, words[3] = all >> 3 & 24;
    if (is_second(group)) {
      const Shorts less = below(load_wide(block + kSecond + half * 32), group / 2);
      for (Shorts &each : words) each = each - less;
    } else {
      for (Shorts &each : words) each = each - 7;
    }
  }
  static Lanes unit(const char *block, int half, int) { return load_half(block + half * 32) * splat(Codes::kFactor); }

 private:
  // Whether eight inputs have a delta of their own.
  static constexpr bool is_second(int group) { return kTwoDeltas && group % 2 != 0; }
  static Shorts below(Shorts bits, int at) {
    return both([&](int i) { return ((WordPart)bits.part[i] >> at & 1) * 2 + 7; });
  }

  // Where a column's words of scales stand, and lines.
  static constexpr int scale_word(int column, int i) {
    return kWords + (column / 16 * kScaleWords + i) * kHalfLine + column % 16 * 4;
  }
  static constexpr int line_of(int k) { return kHeader + k / Plane<2>::kInputs * kPairLine; }
};

using StoredIQ1_S = StoredTernary<BlockIQ1_S>;
using StoredIQ1_M = StoredTernary<BlockIQ1_M>;
