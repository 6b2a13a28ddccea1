// Q1_0, Q2_0, TQ1_0, TQ2_0: levels of one or two bits, one unit for 64 inputs or more. For each half the units
// [column], then the levels.
#pragma once
#include "kernels/formats/stored/planes.h"

template <class TheBlock>
struct FewBits : UnitsAlone {
  using Block = TheBlock;
  static constexpr int kBits = Block::kBits, kInputs = Block::kInputs, kSumInputs = kInputs, kScaleInputs = kInputs;
  static constexpr int kLineInputs = Plane<kBits>::kInputs, kHeader = 2 * kColumns;
  static constexpr int kBytes = kHeader + kInputs / kLineInputs * kPairLine;

  template <bool kPacks>
  static void move(const uint8_t *stored, char *block, int column) {
    static_assert(kPacks, "the way back is `read`: several bytes of TQ1_0 say the same");
    std::memcpy(block + 2 * column, stored + Block::kUnit, 2);
    uint8_t levels[kInputs];
    for (int k = 0; k < kInputs; ++k) levels[k] = static_cast<uint8_t>(Block::level(stored, k));
    move_levels<true>(levels, block, column);
  }
  // The floats that `inputs` of one column stand for.
  static void read(const char *block, int column, int inputs, float *to) {
    const float unit = stored_half(reinterpret_cast<const uint8_t *>(block) + 2 * column);
    uint8_t levels[kInputs] = {};
    move_levels<false>(levels, const_cast<char *>(block), column);
    for (int k = 0; k < inputs; ++k) to[k] = Block::value(unit, levels[k]);
  }

  static NoScales scales(const char *, int, int) { return {}; }
  static void levels(const char *block, int half, int group, Shorts (&words)[kGroupWords]) {
    constexpr int kGroups = kLineInputs / kGroupInputs;  // of a line
    const char *const line = block + kHeader + group / kGroups * kPairLine + half * kHalfLine;
    const Shorts all = load_shorts(line) >> (group % kGroups * kGroupWords * kBits);
    for (int i = 0; i < kGroupWords; ++i) words[i] = level_of(all >> (i * kBits));
  }

 private:
  static Shorts level_of(Shorts field) {
    if (kBits == 1) return ((field & 1) << 1) - 1;
    return (field & 3) - 1;
  }
  template <bool kPacks>
  static void move_levels(uint8_t *levels, char *block, int column) {
    for (int k = 0; k < kInputs; k += kLineInputs)
      Plane<kBits>::template move<kPacks>(levels + k, 0, block + kHeader + k / kLineInputs * kPairLine, column);
  }
};

using StoredQ1_0 = FewBits<BlockQ1_0>;
using StoredQ2_0 = FewBits<BlockQ2_0>;
using StoredQ2_0_128 = FewBits<BlockQ2_0_128>;
using StoredTQ1_0 = FewBits<BlockTQ1_0>;
using StoredTQ2_0 = FewBits<BlockTQ2_0>;
