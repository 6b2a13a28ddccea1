// bf16 weights that come packed in twelve bits: what the matrix unit and the dot product of AVX-512 have in common.
#pragma once
#include "kernels/formats/bf16_rows.h"
#include HEADSTART_TWELVE_BITS

static inline int packed_steps(const PackedLinear &linear) {
  return static_cast<int>(linear.pair_bytes / kPackedBytes);
}

// The tiles of a pair as they come out of their packing.
static inline TwelveBitTiles packed_tiles(const PackedLinear &linear, int pair, const char *weights, Prefetch ask) {
  const PairCode &code = linear.codes[pair];
  return {code, &linear.listed[code.first_listed], weights, ask};
}
// For group `group` of `groups` that rows are cut into.
static inline TwelveBitTiles packed_tiles(const PackedLinear &linear, int pair, const char *weights, ReadAhead *ahead,
                                          int group = 0, int groups = 1) {
  const int steps = packed_steps(linear);
  const Prefetch ask = ahead ? ahead->next_block(weights, linear.pair_bytes, steps, group, groups) : Prefetch::nearby();
  return packed_tiles(linear, pair, weights, ask);
}

static void unpack_linear(const PackedLinear &linear, int pair, const char *weights, ReadAhead &ahead, char *to) {
  TwelveBitTiles tiles = packed_tiles(linear, pair, weights, &ahead);
  for (int tile = 0; tile < linear.padded_inputs / 32; ++tile)
    tiles.unpack(reinterpret_cast<Bf16 *>(to) + tile * kTileCells);
}
