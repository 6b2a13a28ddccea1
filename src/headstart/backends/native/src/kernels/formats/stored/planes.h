// How a pair of columns keeps blocks that a file has: the file's own bits, put into the order in which they are read.
//
// A *plane* is some bits of every level. For each half of the pair, 16 columns, it has lines of 64 bytes,
// [column][2 numbers of 16 bits]: field f of number p belongs to input 2 f + p. So one shift and one mask bring the
// levels of two inputs of sixteen columns to where they are multiplied. A kind of block says in a file of its own
//
// - Block, kInputs, kBytes: what it is in the file (formats/stored_rows.h); its inputs, and bytes for 32 columns.
// - kSumInputs: inputs whose products are summed in integers; with rows up to kRowLimit they fit 32 bits.
// - kOffsets: whether its weights have an offset beside their level, one for 32 inputs, or for kOffsetInputs.
// - move(...): brings a column's block from the file's order into this one, or back. Where there is no way back:
//   read(...), the floats that a column's block stands for.
// - levels(...): those of eight inputs of one half.
// - scales(...), kScaleInputs: what levels are multiplied with, or counted from, whole numbers; of how many inputs each
//   is.
// - kWide, where it is not so: numbers, levels times their scale, go beyond a signed byte if there are scales.
// - unit(...), and with kOffsets offset(...): what sums of products with these, and of a row's inputs, count.
#pragma once
#include <type_traits>

#include "kernels/formats/cells.h"
#include "kernels/formats/stored_rows.h"
#include "kernels/vectors/shorts.h"

constexpr int kHalfLine = 64, kPairLine = 2 * kHalfLine;  // bytes of a line of one half, of both
constexpr int kGroupInputs = 8, kGroupWords = kGroupInputs / 2;

// Brings bytes from the file's order into the pair's, or back.
template <bool kPacks>
static inline void move_bytes(uint8_t *stored, char *packed, int count) {
  kPacks ? std::memcpy(packed, stored, count) : std::memcpy(stored, packed, count);
}
// Words of four bytes, one after the other: line `i` has word i of each column.
template <bool kPacks>
static inline void move_words(uint8_t *stored, char *lines, int column, int count) {
  char *const at = lines + column / 16 * count * kHalfLine + column % 16 * 4;
  for (int i = 0; i < count; ++i) move_bytes<kPacks>(stored + 4 * i, at + i * kHalfLine, 4);
}

// `bits` of a byte of the file from bit `at` on are those of a level from `shift` on. What they are moved to is zero.
template <bool kPacks>
static inline void move_bits(uint8_t &stored, int at, int bits, uint8_t &level, int shift = 0) {
  const unsigned mask = (1u << bits) - 1;
  if (kPacks)
    level = static_cast<uint8_t>(level | (stored >> at & mask) << shift);
  else
    stored = static_cast<uint8_t>(stored | (level >> shift & mask) << at);
}

// Of `kBits` of each level.
template <int kBits>
struct Plane {
  static constexpr int kFields = 16 / kBits, kInputs = 2 * kFields;  // of a number; of a line
  static constexpr unsigned kMask = (1u << kBits) - 1;

  // Bits of `levels` from `shift` on, of a line's inputs, to or from the lines of both halves.
  template <bool kPacks>
  static void move(uint8_t *levels, int shift, char *lines, int column) {
    char *const at = lines + column / 16 * kHalfLine + column % 16 * 4;
    for (int p = 0; p < 2; ++p) {
      unsigned all = 0;
      uint16_t number;
      std::memcpy(&number, at + 2 * p, 2);
      for (int f = 0; f < kFields; ++f) {
        uint8_t &level = levels[2 * f + p];
        if (kPacks)
          all |= (level >> shift & kMask) << (kBits * f);
        else
          level = static_cast<uint8_t>(level | (number >> (kBits * f) & kMask) << shift);
      }
      number = static_cast<uint16_t>(all);
      if (kPacks) std::memcpy(at + 2 * p, &number, 2);
    }
  }
};

// Levels of four bits: field `i` of a line's numbers.
static inline void four_bit_levels(const char *line, Shorts (&words)[kGroupWords]) {
  const Shorts all = load_shorts(line);
  words[0] = all & 15, words[1] = all >> 4 & 15, words[2] = all >> 8 & 15, words[3] = all >> 12;
}

// Levels of bytes, in two lines: without a sign, and with one.
static inline void byte_levels(const char *lines, Shorts (&words)[kGroupWords]) {
  const Shorts first = load_shorts(lines), second = load_shorts(lines + kPairLine);
  words[0] = first & 0xff, words[1] = first >> 8;
  words[2] = second & 0xff, words[3] = second >> 8;
}
static inline void signed_byte_levels(const char *lines, Shorts (&words)[kGroupWords]) {
  const Shorts first = load_shorts(lines), second = load_shorts(lines + kPairLine);
  words[0] = lower_signed(first), words[1] = upper_signed(first);
  words[2] = lower_signed(second), words[3] = upper_signed(second);
}

// Of types that have any, how many inputs share an offset.
template <class Blocks, class = void>
constexpr int offset_inputs = 32;
template <class Blocks>
constexpr int offset_inputs<Blocks, std::void_t<decltype(Blocks::kOffsetInputs)>> = Blocks::kOffsetInputs;

// What makes weights of levels: nothing, what is taken from them, or what they are multiplied with.
struct NoScales {};
struct Zeros {
  Shorts zero;
};
static inline void apply(NoScales, Shorts (&)[kGroupWords]) {}
static inline void apply(Zeros scales, Shorts (&words)[kGroupWords]) {
  for (Shorts &each : words) each = each - scales.zero;
}
static inline void apply(Shorts scale, Shorts (&words)[kGroupWords]) {
  for (Shorts &each : words) each = each * scale;
}

// Of types without offsets: a column's unit is what its block begins with.
struct UnitsAlone {
  static constexpr bool kOffsets = false;
  static Lanes unit(const char *block, int half, int) { return load_half(block + half * 32); }
};

// Of 32 levels of five bits: a line of the fifth ones, then four of the others.
constexpr int kFiveBitLines = 5 * kPairLine;
template <bool kPacks>
static inline void move_five_bits(uint8_t *levels, char *lines, int column) {
  Plane<1>::move<kPacks>(levels, 4, lines, column);
  for (int group = 0; group < 4; ++group)
    Plane<4>::move<kPacks>(levels + group * kGroupInputs, 0, lines + (1 + group) * kPairLine, column);
}
// Inlined even where the compiler would rather not: a call costs more than the products.
static inline __attribute__((always_inline)) void five_bit_levels(const char *lines, int group,
                                                                  Shorts (&words)[kGroupWords]) {
  four_bit_levels(lines + (1 + group) * kPairLine, words);
  const Shorts fifth = load_shorts(lines) >> 4 * group;
  words[0] = words[0] | (fifth << 4 & 16), words[1] = words[1] | (fifth << 3 & 16);
  words[2] = words[2] | (fifth << 2 & 16), words[3] = words[3] | (fifth << 1 & 16);
}

// The file's superblocks of 256 with eight units and offsets of six bits: what Q4_K and Q5_K have in common. For each
// half d and dmin, [column]; then words of twelve bytes, as the file has them.
struct SixBitScales {
  static constexpr int kInputs = 256, kScaleInputs = 32, kHeader = 4 * kColumns + 12 * kColumns;
  static constexpr bool kOffsets = true;

  template <bool kPacks>
  static void move_header(uint8_t *stored, char *block, int column) {
    move_bytes<kPacks>(stored, block + 2 * column, 2);
    move_bytes<kPacks>(stored + 2, block + kPairLine / 2 + 2 * column, 2);
    move_words<kPacks>(stored + 4, block + kPairLine, column, 3);
  }

  // Of four inputs of 32: bytes [column][4]. The upper bits of the last four stand above the first four's.
  static Shorts bytes(const char *block, int half, bool offsets, int four) {
    const char *const lines = block + kPairLine + half * 3 * kHalfLine;
    const Shorts first = load_shorts(lines + offsets * kHalfLine);
    if (four == 0) return first & 0x3f3f;
    const Shorts last = load_shorts(lines + 2 * kHalfLine);
    return ((offsets ? last >> 4 : last) & 0x0f0f) | (first >> 2 & 0x3030);
  }

  static Shorts scales(const char *block, int half, int index) {
    return both_of(bytes(block, half, false, index / 4), index % 4);
  }
  static Lanes unit(const char *block, int half, int) { return load_half(block + half * 32); }
  static Lanes offset(const char *block, int half, int index) {
    const Lanes least = splat(0.f) - load_half(block + kPairLine / 2 + half * 32);
    return least * floats_of(bytes(block, half, true, index / 4), index % 4);
  }
};
