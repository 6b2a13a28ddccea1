// 16-bit integers of sixteen columns, two for each: [column][2]. Weights of a file's blocks are multiplied in these:
// whole numbers, a level times the whole number that its block's unit is of a superblock's, so that nothing is rounded.
#pragma once
#include <cstring>

#include "kernels/formats/number_table.h"
#include "kernels/traits.h"
#include HEADSTART_SHORTS

struct Shorts {
  ShortPart part[kShortParts];
};
struct ShortSums {  // 32 bits, one for each column
  SumPart part[kShortParts] = {};
};

// Calls `f` for each part.
template <class F>
static inline __attribute__((always_inline)) Shorts by_parts(F &&f) {
  Shorts all;
#pragma GCC unroll 4
  for (int i = 0; i < kShortParts; ++i) all.part[i] = (ShortPart)f(i);
  return all;
}

// Part by part: as a whole they are copied in smaller pieces, and a register that is loaded from several stores waits.
static inline Shorts load_shorts(const void *p) {
  return by_parts([&](int i) {
    ShortPart part;
    std::memcpy(&part, static_cast<const char *>(p) + i * sizeof part, sizeof part);
    return part;
  });
}
static inline void store_shorts(void *p, Shorts x) {
#pragma GCC unroll 4
  for (int i = 0; i < kShortParts; ++i)
    std::memcpy(static_cast<char *>(p) + i * sizeof x.part[i], &x.part[i], sizeof x.part[i]);
}
static inline Shorts operator&(Shorts x, int bits) {
  return by_parts([&](int i) { return x.part[i] & static_cast<uint16_t>(bits); });
}
static inline Shorts operator|(Shorts x, Shorts y) {
  return by_parts([&](int i) { return x.part[i] | y.part[i]; });
}
static inline Shorts operator-(Shorts x, int other) {
  return by_parts([&](int i) { return x.part[i] - static_cast<uint16_t>(other); });
}
static inline Shorts operator-(Shorts x, Shorts y) {
  return by_parts([&](int i) { return x.part[i] - y.part[i]; });
}
static inline Shorts operator*(Shorts x, Shorts y) {
  return by_parts([&](int i) { return x.part[i] * y.part[i]; });
}
static inline Shorts operator>>(Shorts x, int bits) {
  return by_parts([&](int i) { return x.part[i] >> bits; });
}
static inline Shorts operator<<(Shorts x, int bits) {
  return by_parts([&](int i) { return x.part[i] << bits; });
}

// What `f` says for each column of a part, as both numbers of the column.
template <class F>
static inline __attribute__((always_inline)) Shorts both(F &&f) {
  return by_parts([&](int i) {
    const WordPart one = (WordPart)f(i);
    return (one & 0xffff) | one << 16;
  });
}
// Of bytes [column][4] one.
static inline Shorts both_of(Shorts bytes, int which) {
  return both([&](int i) { return (WordPart)bytes.part[i] >> (8 * which) & 0xff; });
}
static inline Shorts both_of_signed(Shorts bytes, int which) {
  return both([&](int i) { return (SumPart)((WordPart)bytes.part[i] << (24 - 8 * which)) >> 24; });
}
// Sixteen bytes, [column]: those of part `i`.
static inline WordPart wide_bytes(const void *p, int i) {
  typedef uint8_t Narrow __attribute__((vector_size(sizeof(ShortPart) / 4)));
  Narrow some;
  std::memcpy(&some, static_cast<const char *>(p) + i * sizeof some, sizeof some);
  return __builtin_convertvector(some, WordPart);
}
// Some bits of these.
static inline Shorts both_of_bytes(const void *p, int shift, unsigned mask) {
  return both([&](int i) { return wide_bytes(p, i) >> shift & mask; });
}
// Sixteen numbers of 16 bits, [column]; the second of each column is zero.
static inline Shorts load_wide(const void *p) {
  typedef uint16_t Narrow __attribute__((vector_size(sizeof(ShortPart) / 2)));
  return by_parts([&](int i) {
    Narrow some;
    std::memcpy(&some, static_cast<const char *>(p) + i * sizeof some, sizeof some);
    return __builtin_convertvector(some, WordPart);
  });
}
// The same as floats, of bytes without a sign.
static inline Lanes floats_of(Shorts bytes, int which) {
  SumPart one[kShortParts];
#pragma GCC unroll 4
  for (int i = 0; i < kShortParts; ++i) one[i] = (SumPart)((WordPart)bytes.part[i] >> (8 * which) & 0xff);
  return floats_of(one);
}
// Numbers that have a sign, shifted to the right; their lower and their upper bytes, likewise.
static inline Shorts shifted_signed(Shorts x, int bits) {
  typedef int16_t Signed __attribute__((vector_size(sizeof(ShortPart))));
  return by_parts([&](int i) { return (Signed)x.part[i] >> bits; });
}
static inline Shorts lower_signed(Shorts x) { return shifted_signed(x << 8, 8); }
static inline Shorts upper_signed(Shorts x) { return shifted_signed(x, 8); }
// What a table of sixteen has for each byte, 0 to 15.
static inline Shorts looked_up(Shorts bytes, const int8_t *table) {
  return by_parts([&](int i) { return looked_up_part(bytes.part[i], table); });
}
// What a table has for each number's lowest four bits, looked up as bytes; an instruction set that can look up numbers
// has a function of its own, which is no template and goes first.
template <class Table>
static inline ShortPart looked_up_numbers_part(ShortPart numbers, const Table &table) {
  typedef int16_t Signed __attribute__((vector_size(sizeof(ShortPart))));
  return (ShortPart)((Signed)(looked_up_part(numbers & 15, table.bytes) << 8) >> 8);
}
static inline Shorts looked_up_numbers(Shorts numbers, const NumberTable &table) {
  return by_parts([&](int i) { return looked_up_numbers_part(numbers.part[i], table); });
}

// The two numbers of a row that every column is multiplied with.
static inline Shorts splat_two(const void *p) {
  uint32_t both;
  std::memcpy(&both, p, 4);
  return by_parts([&](int) { return (ShortPart)(WordPart{} + both); });
}
static inline ShortSums dot(ShortSums sums, Shorts x, Shorts y) {
#pragma GCC unroll 4
  for (int i = 0; i < kShortParts; ++i) sums.part[i] = dot_part(sums.part[i], x.part[i], y.part[i]);
  return sums;
}
static inline ShortSums operator+(ShortSums sums, const ShortSums &others) {
#pragma GCC unroll 4
  for (int i = 0; i < kShortParts; ++i) sums.part[i] += others.part[i];
  return sums;
}
template <class Parts>
static inline void hold_parts(Parts &x) {
#pragma GCC unroll 4
  for (int i = 0; i < kShortParts; ++i) hold(x.part[i]);
}
static inline void hold(Shorts &x) { hold_parts(x); }
static inline void hold(ShortSums &x) { hold_parts(x); }
// sums += others, each times its column's number, which stands there twice.
static inline void add_scaled(ShortSums &sums, const ShortSums &others, Shorts scale) {
#pragma GCC unroll 4
  for (int i = 0; i < kShortParts; ++i) sums.part[i] += others.part[i] * ((SumPart)scale.part[i] >> 16);
}
static inline Lanes to_floats(const ShortSums &sums) { return floats_of(sums.part); }
