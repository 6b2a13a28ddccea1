// Keys and values in 8 bits (llama.cpp's Q8_0): a head's numbers of a token in blocks of 32, each a level of a byte
// times the block's unit. They are rounded when they are written, and whoever reads them, the same row as well as later
// ones, reads the rounded ones: widened to cells, with which attention computes as it does otherwise. So rows stay
// exact.
//
// A head's page: levels in the tile order of cells, then units [dim / 32][key]. Units are bf16, as short as halves but
// with a float's range: a level times a unit is exact in a float.
#pragma once
#include <cmath>

#include "kernels/vectors/shorts.h"

constexpr int kByteBlock = 32;  // dimensions that share a unit
constexpr float kMostLevel = 127.f;

// Of one head's keys or values in a page.
constexpr size_t byte_page_bytes(size_t dim) { return kPageKeys * (dim + dim / kByteBlock * sizeof(Bf16)); }

template <class Byte>
struct BytePage {
  Byte *levels;
  int dim;

  // [key], of a block of dimensions.
  auto *units(int block) const {
    using Unit = std::conditional_t<std::is_const_v<Byte>, const Bf16, Bf16>;
    return reinterpret_cast<Unit *>(levels + static_cast<size_t>(kPageKeys) * dim) + block * kPageKeys;
  }
};
static inline BytePage<int8_t> byte_page(char *at, int dim) { return {reinterpret_cast<int8_t *>(at), dim}; }
static inline BytePage<const int8_t> byte_page(const char *at, int dim) {
  return {reinterpret_cast<const int8_t *>(at), dim};
}

// Where a dimension of a key or of a value stands in its page, as in pages of cells, and what is kept of it.
template <class Cell>
struct KeyPlace {
  static size_t at(int key, int dimension) { return key_index<Cell>(key, dimension); }
  static Lanes kept(Lanes x) { return x; }
};
template <class Cell>
struct ValuePlace {
  static size_t at(int key, int dimension) { return value_index<Cell>(key, dimension); }
  static Lanes kept(Lanes x) { return finite_or_zero(x); }
};

// Rounds a head's numbers into their place. A block of a key with a number that is none, or infinite, is NaN.
template <class Place>
static inline void write_bytes(BytePage<int8_t> page, int key, const float *x) {
  alignas(64) uint8_t levels[kByteBlock];
  for (int d = 0; d < page.dim; d += kByteBlock) {
    const Lanes first = Place::kept(load(x + d)), second = Place::kept(load(x + d + 16));
    const float nothing = reduce_add(first * splat(0.f) + second * splat(0.f));
    const float largest = std::min(reduce_max(max(abs(first), abs(second))), 3e38f);
    const Bf16 unit = to_bf16(nothing == 0.f ? largest / kMostLevel : NAN);
    const Lanes divisor = splat(to_float(unit) > 0.f ? to_float(unit) : 1.f);
    const auto round_to = [&](uint8_t *to, Lanes numbers) {
      const Lanes level = max(splat(-kMostLevel), min(splat(kMostLevel), numbers / divisor));
      store_one_plane(to, level, 0);
    };
    round_to(levels, first), round_to(levels + 16, second);
    for (int i = 0; i < kByteBlock; ++i) page.levels[Place::at(key, d + i)] = static_cast<int8_t>(levels[i]);
    page.units(d / kByteBlock)[key] = unit;
  }
}

// Copies what a page has of one key.
template <class Place>
static inline void copy_bytes(BytePage<int8_t> page, int key, BytePage<const int8_t> from, int from_key) {
  for (int d = 0; d < page.dim; ++d) page.levels[Place::at(key, d)] = from.levels[Place::at(from_key, d)];
  for (int b = 0; b < page.dim / kByteBlock; ++b) page.units(b)[key] = from.units(b)[from_key];
}

// What a float of a level in the uppermost byte of an integer is too large by.
constexpr float kUppermost = 1.f / (1 << 24);

// Of sixteen columns two levels each, times units, as cells side by side. Rounds to nearest, halves away from zero.
static inline void widen_pairs(const int8_t *levels, Lanes lower_units, Lanes upper_units, Bf16 *to) {
  const Shorts both = load_wide(levels);
  SumPart lower[kShortParts], upper[kShortParts];
#pragma GCC unroll 4
  for (int i = 0; i < kShortParts; ++i) {
    const WordPart bits = (WordPart)both.part[i];
    lower[i] = (SumPart)(bits << 24), upper[i] = (SumPart)(bits << 16 & 0xff000000u);
  }
  const Lanes products[2] = {floats_of(lower) * lower_units, floats_of(upper) * upper_units};
  WordPart words[2][kShortParts];
  static_assert(sizeof words == sizeof products);
  std::memcpy(words, products, sizeof words);
  store_shorts(to,
               by_parts([&](int i) { return (words[0][i] + 0x8000) >> 16 | ((words[1][i] + 0x8000) & 0xffff0000u); }));
}

// Sixteen levels times units.
static inline void widen(const int8_t *levels, Lanes units, float *to) {
  typedef int8_t Narrow __attribute__((vector_size(sizeof(ShortPart) / 4)));
  SumPart wide[kShortParts];
#pragma GCC unroll 4
  for (int i = 0; i < kShortParts; ++i) {
    Narrow some;
    std::memcpy(&some, levels + i * sizeof some, sizeof some);
    wide[i] = __builtin_convertvector(some, SumPart);
  }
  store(to, floats_of(wide) * units);
}

// A page of keys as cells: columns are keys, each with its unit.
static inline void widen_keys(BytePage<const int8_t> page, Bf16 *to) {
  for (int block = 0; block < page.dim / kByteBlock; ++block)
    for (int half = 0; half < 2; ++half) {
      const Lanes units = load_bf16(page.units(block) + half * 16) * splat(kUppermost);
      for (int step = 0; step < kByteBlock; step += 2) {
        const size_t at = block * TileOrder<Bf16>::kPairCells + TileOrder<Bf16>::index(half * 16, step);
        widen_pairs(page.levels + at, units, units, to + at);
      }
    }
}
static inline void widen_keys(BytePage<const int8_t> page, float *to) {
  for (int block = 0; block < page.dim / kByteBlock; ++block)
    for (int half = 0; half < 2; ++half) {
      const Lanes units = load_bf16(page.units(block) + half * 16);
      for (int step = 0; step < kByteBlock; ++step) {
        const size_t at = block * TileOrder<float>::kPairCells + TileOrder<float>::index(half * 16, step);
        widen(page.levels + at, units, to + at);
      }
    }
}

// A page of values as cells: steps are keys.
static inline void widen_values(BytePage<const int8_t> page, Bf16 *to) {
  for (int block = 0; block < page.dim / kByteBlock; ++block)
    for (int key = 0; key < kPageKeys; key += 2) {
      const Lanes lower = splat(to_float(page.units(block)[key]) * kUppermost);
      const Lanes upper = splat(to_float(page.units(block)[key + 1]) * kUppermost);
      for (int half = 0; half < 2; ++half) {
        const size_t at = block * TileOrder<Bf16>::kPairCells + TileOrder<Bf16>::index(half * 16, key);
        widen_pairs(page.levels + at, lower, upper, to + at);
      }
    }
}
static inline void widen_values(BytePage<const int8_t> page, float *to) {
  for (int block = 0; block < page.dim / kByteBlock; ++block)
    for (int key = 0; key < kPageKeys; ++key) {
      const Lanes unit = splat(to_float(page.units(block)[key]));
      for (int half = 0; half < 2; ++half) {
        const size_t at = block * TileOrder<float>::kPairCells + TileOrder<float>::index(half * 16, key);
        widen(page.levels + at, unit, to + at);
      }
    }
}
