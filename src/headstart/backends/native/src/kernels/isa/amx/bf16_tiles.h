// Rows of bf16 against pair tiles of it.
#pragma once
#include "kernels/formats/packed_pairs.h"
#include HEADSTART_TILES

// C[16 * kRowTiles][32] (+)= A . pair tiles. Rows past the last are computed from whatever stands there and must be
// allocated.
template <int kRowTiles, class Tiles>
static inline void multiply_tile_rows(const Bf16 *a, size_t a_stride, Tiles tiles, int count, float *c, size_t c_stride,
                                      bool accumulate, Prefetch prefetch = {}) {
  const size_t a_bytes = a_stride * sizeof(Bf16), c_bytes = c_stride * sizeof(float);
  if (accumulate) {
    TILE_LOAD(0, c, c_bytes);
    TILE_LOAD(1, c + 16, c_bytes);
  } else {
    TILE_ZERO(0);
    TILE_ZERO(1);
  }
  if constexpr (kRowTiles == 2) {
    TILE_ZERO(4);
    TILE_ZERO(5);
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
