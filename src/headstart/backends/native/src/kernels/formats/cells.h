// Element types and the tile order shared by weights and cache pages.
//
// A *pair tile* holds 32 columns by 32 inner steps: side by side the two tiles of 16 columns that are multiplied
// together, so that memory is read in one direction. In bf16 two inner steps of a column are neighbours
// ([step / 2][column][2], what the matrix instructions read); in float the order is [step][column]. Weights: column =
// output, step = input. Key page: column = key, step = dimension. Value page: column = dimension, step = key.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/traits.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "pairs of bf16 are read as words, the even one first");

struct Bf16 {
  uint16_t bits;
};

static inline float to_float(Bf16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
static inline float to_float(float x) { return x; }

// Rounds to nearest even; a NaN stays a NaN.
static inline Bf16 to_bf16(float x) {
  if (x != x) return {0x7fc0};
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return {static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}

constexpr int kColumns = 32;     // columns of a pair tile
constexpr int kPageKeys = 32;    // keys of a cache page
constexpr int kChunkKeys = 512;  // attention merges partial results at multiples of this position
constexpr int kChunkPages = kChunkKeys / kPageKeys;

template <class Cell>
struct TileOrder;
template <>
struct TileOrder<Bf16> {
  static constexpr int kSteps = 32;  // inner steps of a tile
  static constexpr size_t kPairCells = 2 * 16 * kSteps;
  static constexpr size_t index(int column, int step) {  // within a pair tile, in cells
    return (step >> 1) * 64 + column * 2 + (step & 1);
  }
};
template <>
struct TileOrder<float> {
  static constexpr int kSteps = 32;
  static constexpr size_t kPairCells = 2 * 16 * kSteps;
  static constexpr size_t index(int column, int step) { return step * 32 + column; }
};

// Where a dimension of a key or value stands in its page.
template <class Cell>
static inline size_t key_index(int key, int dimension) {
  return (dimension >> 5) * TileOrder<Cell>::kPairCells + TileOrder<Cell>::index(key, dimension & 31);
}
template <class Cell>
static inline size_t value_index(int key, int dimension) {
  return (dimension >> 5) * TileOrder<Cell>::kPairCells + TileOrder<Cell>::index(dimension & 31, key);
}

static inline int round_up(int n, int multiple) { return (n + multiple - 1) / multiple * multiple; }
static inline int ceil_div(int n, int d) { return (n + d - 1) / d; }
