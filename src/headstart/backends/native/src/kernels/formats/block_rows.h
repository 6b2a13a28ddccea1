// Rows against weights in blocks: 8-bit planes as for 8-bit weights, but with a unit for every 32 inputs. One plane
// says a row to within half a 127th of the largest of 32, two planes to almost 16 bits.
#pragma once
#include "kernels/products/linear.h"

// Behind the planes of a row in a tile of 64 inputs: for each of its two blocks the unit, and what the weights' offsets
// multiply, the sum of the rounded inputs.
struct BlockUnits {
  float unit[2], sum[2];
};
static_assert(sizeof(BlockUnits) == kBlockUnitBytes, "room in `packed_rows`");

static inline const BlockUnits &units_of(const char *planes, int count) {
  return *reinterpret_cast<const BlockUnits *>(planes + count * kPlaneBytes);
}

template <int kPlanes>
static void store_row_blocks(const Activations &to, int row, const float *x, int padded_inputs) {
  constexpr float limit = kPlanes == 2 ? 32512.f : 127.f;
  char *tile = to.row(row);
  for (int first = 0; first < padded_inputs; first += kPlaneBytes, tile += to.tile_bytes) {
    auto *planes = reinterpret_cast<uint8_t *>(tile);
    BlockUnits units;
    for (int block = 0; block < 2; ++block) {
      const Lanes left = load(x + first + block * kBlockInputs), right = load(x + first + block * kBlockInputs + 16);
      const float top = std::fmax(reduce_max(max(abs(left), abs(right))), 1e-20f);
      const Lanes factor = splat(limit / top);
      const Lanes rounded[2] = {round(left * factor), round(right * factor)};
      for (int half = 0; half < 2; ++half)
        store_planes<kPlanes, 0>(planes, block * kBlockInputs + half * 16, rounded[half]);
      units.unit[block] = top / limit;
      units.sum[block] = units.unit[block] * reduce_add(rounded[0] + rounded[1]);
    }
    std::memcpy(tile + kPlanes * kPlaneBytes, &units, sizeof units);
  }
}

// Of sixteen columns of a block. What the offset of 8-bit levels adds and takes away costs floats a millionth or two,
// where rounding a row to 16 bits costs ten.
struct ColumnGrids {
  Lanes unit, offset;
};
static inline ColumnGrids column_grids(FourBits of, const char *block, int half) {
  return {load_half(block + of.kUnits + half * 32), load_half(block + of.kOffsets + half * 32)};
}
static inline ColumnGrids column_grids(EightBits of, const char *block, int half) {
  const Lanes unit = load_half(block + of.kUnits + half * 32);
  return {unit, unit * splat(-of.kZero)};
}

// sum + a block's products: `dots` of levels and rounded inputs.
static inline Lanes add_block(Lanes sum, Lanes dots, const ColumnGrids &grids, const BlockUnits &row, int block) {
  return fma(grids.offset, splat(row.sum[block % 2]), fma(dots * splat(row.unit[block % 2]), grids.unit, sum));
}

// out[kRows][32] = rows from `row` on times the pair's columns, scales applied: each instruction set has its own.
template <class Blocks, int kRows, int kPlanes>
static inline void multiply_block_rows(const PackedLinear &linear, int pair, const char *weights, const Activations &a,
                                       int row, float *out, Prefetch prefetch);

// The same for any number of rows.
template <class Blocks, int kPlanes>
static inline void multiply_blocks(const PackedLinear &linear, int pair, const char *weights, const Activations &a,
                                   int row, int rows, ReadAhead *ahead, float *out) {
  in_groups<kBlockRows[kPlanes - 1]>(linear, weights, rows, ahead, [&](auto known, int first, Prefetch ask) {
    float *const to = out + first * kColumns;
    multiply_block_rows<Blocks, known.value, kPlanes>(linear, pair, weights, a, row + first, to, ask);
  });
}

// The same for blocks of either kind.
template <int kPlanes>
static void multiply_linear_blocks(const PackedLinear &linear, int pair, const char *weights, const Activations &a,
                                   int row, int rows, ReadAhead *ahead, float *out) {
  if (linear.level_bits == 8)
    multiply_blocks<EightBits, kPlanes>(linear, pair, weights, a, row, rows, ahead, out);
  else
    multiply_blocks<FourBits, kPlanes>(linear, pair, weights, a, row, rows, ahead, out);
}

template <int kPlanes>
static inline LinearKernel block_kernel() {
  return {ElementKind::int8, store_row_blocks<kPlanes>, multiply_linear_blocks<kPlanes>};
}
