// Rows of bf16 against pair tiles of it.
#pragma once
#include "kernels/formats/packed_pairs.h"
#include HEADSTART_TILES

// How many steps of a tile of rows sums stay in tiles, where rows are many: of 32 rows, or 16 of two planes, 32 KB that
// stay in L1, and of two pairs of columns 64 KB that come from L2.
constexpr int kPanelSteps = 16;

// C[16 * kRowTiles][32] (+)= A . pair tiles. Rows past the last are computed from whatever stands there and must be
// allocated.
template <int kRowTiles, class Tiles>
static inline void multiply_tile_rows(const Bf16 *a, size_t a_stride, Tiles tiles, int count, float *c, size_t c_stride,
                                      bool accumulate, Prefetch prefetch = {}) {
  const size_t a_bytes = a_stride * sizeof(Bf16), c_bytes = c_stride * sizeof(float);
  if (accumulate) {
    TILE_LOAD(0, c, c_bytes);
    TILE_LOAD(1, c + 16, c_bytes);
    if constexpr (kRowTiles == 2) {
      TILE_LOAD(4, c + 16 * c_stride, c_bytes);
      TILE_LOAD(5, c + 16 * c_stride + 16, c_bytes);
    }
  } else {
    TILE_ZERO(0);
    TILE_ZERO(1);
    if constexpr (kRowTiles == 2) {
      TILE_ZERO(4);
      TILE_ZERO(5);
    }
  }
  for (int tile = 0; tile < count; ++tile, a += 32) {
    const Bf16 *b = tiles(tile);
    prefetch.ask_quarter(b, 0);
    TILE_LOAD(2, a, a_bytes);
    prefetch.ask_quarter(b, 1);
    TILE_LOAD(3, b, 128);
    prefetch.ask_quarter(b, 2);
    TILE_BF16(0, 2, 3);
    if constexpr (kRowTiles == 2) {
      TILE_LOAD(2, a + 16 * a_stride, a_bytes);
      TILE_BF16(4, 2, 3);
    }
    prefetch.ask_quarter(b, 3);
    TILE_LOAD(3, b + 32, 128);
    if constexpr (kRowTiles == 2) {
      TILE_BF16(5, 2, 3);
      TILE_LOAD(2, a, a_bytes);
    }
    TILE_BF16(1, 2, 3);
  }
  TILE_STORE(0, c, c_bytes);
  TILE_STORE(1, c + 16, c_bytes);
  if constexpr (kRowTiles == 2) {
    TILE_STORE(4, c + 16 * c_stride, c_bytes);
    TILE_STORE(5, c + 16 * c_stride + 16, c_bytes);
    TILE_ZERO(4);
    TILE_ZERO(5);
  }
}

// Up to 32 rows against `count` tiles of one pair from tile `first` on; out (+)= their products.
template <class Tiles>
static inline void multiply_pair(const Activations &a, int row, int rows, int first, int count, Tiles &&tiles,
                                 Prefetch ask, float *out) {
  const Bf16 *x = reinterpret_cast<const Bf16 *>(a.row(row)) + first * kTileInputs;
  const size_t stride = a.row_bytes / sizeof(Bf16);
  if (rows <= 16)
    multiply_tile_rows<1>(x, stride, tiles, count, out, kColumns, first > 0, ask);
  else
    multiply_tile_rows<2>(x, stride, tiles, count, out, kColumns, first > 0, ask);
}

static void multiply_linear_bf16(const PackedLinear &linear, int pair, const char *weights, const Activations &a,
                                 int row, int rows, ReadAhead *ahead, float *out) {
  TwelveBitTiles tiles = packed_tiles(linear, pair, weights, ahead);
  alignas(64) Bf16 tile[kTileCells];
  const auto next = [&](int) {
    tiles.unpack(tile);
    return tile;
  };
  multiply_pair(a, row, rows, 0, linear.padded_inputs / kTileInputs, next, {}, out);
}

// Any number of rows and up to two pairs, whose weights are unpacked some steps at a time, for all rows.
static void multiply_bf16_many(const PackedLinear &linear, int pair, int pairs, const char *weights,
                               const Activations &a, int row, int rows, ReadAhead *ahead, float *out) {
  const size_t stride = static_cast<size_t>(round_up(rows, kRowBlock)) * kColumns;
  const auto packed = [&](int p) {
    return packed_tiles(linear, pair + p, weights + p * linear.pair_bytes, Prefetch::nearby());
  };
  TwelveBitTiles both[2] = {packed(0), packed(pairs - 1)};
  alignas(64) Bf16 unpacked[2][kPanelSteps * kTileCells];
  const int tiles = linear.padded_inputs / kTileInputs;
  Sweeps sweeps(ahead, weights, pairs * linear.pair_bytes,
                ceil_div(tiles, kPanelSteps) * ceil_div(rows, kRowBlock) * pairs);
  for (int first = 0; first < tiles; first += kPanelSteps) {
    const int count = std::min(kPanelSteps, tiles - first);
    for (int p = 0; p < pairs; ++p)
      for (int tile = 0; tile < count; ++tile) both[p].unpack(unpacked[p] + tile * kTileCells);
    for (int from = 0; from < rows; from += kRowBlock)
      for (int p = 0; p < pairs; ++p)
        multiply_pair(a, row + from, std::min(kRowBlock, rows - from), first, count, Stream<Bf16>{unpacked[p]},
                      sweeps.next(count * kTileSteps), out + p * stride + from * kColumns);
  }
}
