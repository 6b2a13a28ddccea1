// Weights in blocks of 32 inputs through the matrix unit: levels are its unsigned bytes, the planes of rows its signed
// ones. Sums are those of isa/vnni_blocks.h, and so are the bits of rows.
#pragma once
#include "kernels/isa/amx/stored_tiles.h"
#include "kernels/isa/vnni_blocks.h"

constexpr int kTileBlocks = kStoredTileInputs / kBlockInputs;  // whose levels stand ready for all rows

constexpr int kBlockVectorRows[] = {4, 2};  // [planes - 1] most rows that vectors multiply in less time: estimated

// Levels of a block as tiles read them: where, and how far from one four inputs to the next.
struct BlockLevels {
  const char *halves[2];
  int stride;
};

// Takes levels of 4 bits apart, to `to` [half][8][64 bytes]; those of 8 bits stand in the file's order already.
static inline BlockLevels block_levels(FourBits of, const char *block, char *to) {
  constexpr int kHalf = kBlockInputs / 4 * kHalfLine;
  for (int step = 0; step < kBlockInputs / 4; ++step) {
    const Shorts both = load_shorts(block + step * of.kStepBytes);
    store_shorts(to + step * kHalfLine, both & 0x0f0f);
    store_shorts(to + kHalf + step * kHalfLine, both >> 4 & 0x0f0f);
  }
  return {{to, to + kHalf}, kHalfLine};
}
static inline BlockLevels block_levels(EightBits of, const char *block, char *) {
  return {{block, block + kHalfLine}, of.kStepBytes};
}

// The products of a tile of rows, whose planes of a block begin at `x`, and the levels of both halves.
template <int kPlanes>
static inline void multiply_levels(const char *x, size_t row_bytes, const BlockLevels &levels, TileSums (&sums)[2]) {
  TILE_ZERO(0);
  TILE_ZERO(2);
  TILE_LOAD(6, x, row_bytes);
  TILE_LOAD(7, levels.halves[0], levels.stride);
  TILE_S8_U8(0, 6, 7);
  if constexpr (kPlanes == 2) {
    TILE_ZERO(1);
    TILE_ZERO(3);
    TILE_LOAD(6, x + kPlaneBytes, row_bytes);
    TILE_S8_U8(1, 6, 7);
    TILE_LOAD(7, levels.halves[1], levels.stride);
    TILE_S8_U8(3, 6, 7);
    TILE_LOAD(6, x, row_bytes);
    TILE_S8_U8(2, 6, 7);
    TILE_STORE(0, sums[0].of[2], 64);
    TILE_STORE(1, sums[0].of[3], 64);
    TILE_STORE(2, sums[1].of[2], 64);
    TILE_STORE(3, sums[1].of[3], 64);
  } else {
    TILE_LOAD(7, levels.halves[1], levels.stride);
    TILE_S8_U8(2, 6, 7);
    TILE_STORE(0, sums[0].of[3], 64);
    TILE_STORE(2, sums[1].of[3], 64);
  }
}

// out [rows][32] += rows of a tile times a block, in its columns' scales.
template <class Blocks, int kPlanes>
static inline void add_level_products(const char *block, int index, const char *tile, size_t row_bytes, int rows,
                                      const TileSums (&sums)[2], float *out) {
  for (int half = 0; half < 2; ++half) {
    const ColumnGrids grids = column_grids(Blocks(), block, half);
    for (int r = 0; r < rows; ++r) {
      float *const to = out + r * kColumns + half * 16;
      const Lanes dots = kPlanes == 2 ? to_floats(sums[half].template joined<RunKind::step>(r))
                                      : load_int32(sums[half].of[3] + r * 16);
      store(to, add_block(load(to), dots, grids, units_of(tile + r * row_bytes, kPlanes), index));
    }
  }
}

template <class Blocks, int kPlanes>
static inline void multiply_block_tiles(const PackedLinear &linear, int pair, const char *weights, const Activations &a,
                                        int row, int rows, ReadAhead *ahead, float *out) {
  constexpr int kAsks = kBlockInputs / 4 * Blocks::kStepBytes / kLine + 1;  // of a block
  Prefetch prefetch = next_block(ahead, weights, linear.pair_bytes, 0, 1);
  std::fill_n(out, rows * kColumns, 0.f);
  alignas(64) char levels[kTileBlocks][2 * kBlockInputs / 4 * kHalfLine];
  TileSums sums[2];
  const int blocks = linear.padded_inputs / kBlockInputs;
  for (int first = 0; first < blocks; first += kTileBlocks) {
    const int count = std::min(kTileBlocks, blocks - first);
    BlockLevels all[kTileBlocks];
    for (int i = 0; i < count; ++i) {
      const char *const block = weights + static_cast<size_t>(first + i) * Blocks::kBytes;
      for (int k = 0; k < kAsks; ++k) prefetch.ask(block + k * kLine);
      all[i] = block_levels(Blocks(), block, levels[i]);
    }
    for (int from = 0; from < rows; from += kTileRows)
      for (int i = 0; i < count; ++i) {
        const int index = first + i;
        const char *const tile = a.row(row + from) + index / 2 * a.tile_bytes;
        multiply_levels<kPlanes>(tile + index % 2 * kBlockInputs, a.row_bytes, all[i], sums);
        add_level_products<Blocks, kPlanes>(weights + static_cast<size_t>(index) * Blocks::kBytes, index, tile,
                                            a.row_bytes, std::min(kTileRows, rows - from), sums, out + from * kColumns);
      }
  }
  for (int half = 0; half < 2; ++half) {
    const Lanes scale = load(&linear.scales[pair * kColumns + half * 16]);
    for (int r = 0; r < rows; ++r) {
      float *const to = out + r * kColumns + half * 16;
      store(to, load(to) * scale);
    }
  }
}

template <int kPlanes>
static void multiply_blocks_many(const PackedLinear &linear, int pair, const char *weights, const Activations &a,
                                 int row, int rows, ReadAhead *ahead, float *out) {
  if (linear.level_bits == 8)
    multiply_block_tiles<EightBits, kPlanes>(linear, pair, weights, a, row, rows, ahead, out);
  else
    multiply_block_tiles<FourBits, kPlanes>(linear, pair, weights, a, row, rows, ahead, out);
}

template <int kPlanes>
static void multiply_blocks_unit(const PackedLinear &linear, int pair, const char *weights, const Activations &a,
                                 int row, int rows, ReadAhead *ahead, float *out) {
  const auto multiply =
      rows <= kBlockVectorRows[kPlanes - 1] ? multiply_linear_blocks<kPlanes> : multiply_blocks_many<kPlanes>;
  multiply(linear, pair, weights, a, row, rows, ahead, out);
}

template <int kPlanes>
static inline LinearKernel block_unit_kernel() {
  return {ElementKind::int8,
          store_row_blocks<kPlanes>,
          multiply_blocks_unit<kPlanes>,
          nullptr,
          nullptr,
          nullptr,
          multiply_pairs<multiply_blocks_many<kPlanes>>};
}
