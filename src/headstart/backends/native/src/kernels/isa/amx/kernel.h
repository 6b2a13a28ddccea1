// The matrix unit: tiles of 16 rows, so that 16 rows cost what one costs. fp32 uses the float kernel.
//
// As few tiles as possible hold anything: while the other half of a core is at work, tile registers to rename are few,
// and a product with all eight in use takes twice to three times as long (docs/decisions/0030).
#pragma once
#include "kernels/isa/amx/block_tiles.h"
#include "kernels/isa/amx/widened_tiles.h"
#include "kernels/isa/vnni.h"

constexpr int kInt8TileBytes = kPlaneBytes * kColumns;  // of a pair

// One tile of bytes, [16 rows of planes][64 inputs], against a pair, or two of them against a half of one:
// sums[2][16][16], of what they were and the products, or of these alone.
template <int kRowTiles>
static inline void multiply_int8_tiles(const char *a, size_t a_tile_bytes, const char *weights, int count,
                                       int32_t *sums, bool accumulate, Prefetch prefetch) {
  constexpr int kTileBytes = 16 * kPlaneBytes;
  if (accumulate) {
    TILE_LOAD(0, sums, 64);
    TILE_LOAD(1, sums + 256, 64);
  } else {
    TILE_ZERO(0);
    TILE_ZERO(1);
  }
  for (int tile = 0; tile < count; ++tile, weights += kInt8TileBytes, a += a_tile_bytes) {
    prefetch.ask_quarter(weights, 0);
    TILE_LOAD(2, a, kPlaneBytes);
    prefetch.ask_quarter(weights, 1);
    TILE_LOAD(3, weights, 128);
    prefetch.ask_quarter(weights, 2);
    TILE_S8_S8(0, 2, 3);
    if constexpr (kRowTiles == 2)
      TILE_LOAD(2, a + kTileBytes, kPlaneBytes);
    else
      TILE_LOAD(3, weights + 64, 128);
    prefetch.ask_quarter(weights, 3);
    TILE_S8_S8(1, 2, 3);
  }
  TILE_STORE(0, sums, 64);
  TILE_STORE(1, sums + 256, 64);
}

// out[rows][32], columns of one half, from the sums of their planes.
template <int kPlanes>
static inline void finish_int8_half(const PackedLinear &linear, int pair, int half, const int32_t *sums,
                                    const float *units, int rows, float *out) {
  const Lanes scale = load(&linear.scales[pair * kColumns + half * 16]);
  for (int r = 0; r < rows; ++r) {
    const int32_t *sum = sums + r * kPlanes * 16;
    store(out + r * kColumns + half * 16, kPlanes == 2
                                              ? dequantise(load_int32(sum), load_int32(sum + 16), scale, units[r])
                                              : load_int32(sum) * (scale * splat(units[r])));
  }
}

// Four signed bytes xor this carry the dot product's offset.
constexpr int kSignFlips = static_cast<int>(0x80808080);

// Up to two tiles of rows against `count` tiles of a pair from tile `first` on: sums [half of the
// columns][tile][16][16] are kept where more tiles come, else out [rows][32] gets what they stand for.
template <int kPlanes>
static inline void multiply_int8_rows(const PackedLinear &linear, int pair, const char *weights, const Activations &a,
                                      int row, int rows, int first, int count, int32_t *sums, Sweeps &sweeps,
                                      float *out) {
  const char *const planes = a.row(row) + first * a.tile_bytes;
  const bool is_single = rows <= 16 / kPlanes, is_last = first + count == linear.padded_inputs / kPlaneBytes;
  const int steps = count * kTileSteps;
  weights += first * kInt8TileBytes;
  if (is_single) multiply_int8_tiles<1>(planes, a.tile_bytes, weights, count, sums, first > 0, sweeps.next(steps));
  for (int half = 0; half < 2; ++half) {
    int32_t *const of = sums + half * (is_single ? 256 : 512);
    if (!is_single)
      multiply_int8_tiles<2>(planes, a.tile_bytes, weights + half * 64, count, of, first > 0, sweeps.next(steps));
    if (is_last) finish_int8_half<kPlanes>(linear, pair, half, of, a.scales + row, rows, out);
  }
}

// The planes of a row are neighbours, so that a tile holds those of 16 / kPlanes rows.
template <int kPlanes>
static void multiply_linear_int8(const PackedLinear &linear, int pair, const char *weights, const Activations &a,
                                 int row, int rows, ReadAhead *ahead, float *out) {
  if (kPlanes == 2 && rows == 1) {  // the dot product gets along with less of the core
    multiply_linear_vnni<kPlanes, kSignFlips>(linear, pair, weights, a, row, rows, ahead, out);
    return;
  }
  constexpr int kTwoTiles = 32 / kPlanes;
  Sweeps sweeps(ahead, weights, linear.pair_bytes, ceil_div(rows, kTwoTiles / 2));
  alignas(64) int32_t sums[4 * 256];
  for (int from = 0; from < rows; from += kTwoTiles)
    multiply_int8_rows<kPlanes>(linear, pair, weights, a, row + from, std::min(kTwoTiles, rows - from), 0,
                                linear.padded_inputs / kPlaneBytes, sums, sweeps, out + from * kColumns);
}

// Any number of rows and up to two pairs, some steps at a time for all rows; between them sums are kept.
template <int kPlanes>
static void multiply_int8_many(const PackedLinear &linear, int pair, int pairs, const char *weights,
                               const Activations &a, int row, int rows, ReadAhead *ahead, float *out) {
  constexpr int kTwoTiles = 32 / kPlanes;
  const size_t stride = static_cast<size_t>(round_up(rows, kRowBlock)) * kColumns;
  const int tiles = linear.padded_inputs / kPlaneBytes, turns = ceil_div(rows, kTwoTiles) * pairs;
  auto *const sums = reinterpret_cast<int32_t *>(memory_for<Use::sums>(turns * 4 * 256 * sizeof(int32_t)));
  Sweeps sweeps(ahead, weights, pairs * linear.pair_bytes,
                ceil_div(tiles, kPanelSteps) * ceil_div(rows, kTwoTiles / 2) * pairs);
  for (int first = 0; first < tiles; first += kPanelSteps) {
    int32_t *of = sums;
    for (int from = 0; from < rows; from += kTwoTiles)
      for (int p = 0; p < pairs; ++p, of += 4 * 256)
        multiply_int8_rows<kPlanes>(linear, pair + p, weights + p * linear.pair_bytes, a, row + from,
                                    std::min(kTwoTiles, rows - from), first, std::min(kPanelSteps, tiles - first), of,
                                    sweeps, out + p * stride + from * kColumns);
  }
}

// What attention multiplies with cache cells: queries, and the weights of values.
template <class Cell>
struct QueryElement {
  using type = Cell;
};

// Of whatever has tiles; `kernel.h` has the others.
static inline LinearKernel own_linear_kernel(Precision precision) {
  switch (precision) {
    case Precision::stored:
      return {ElementKind::int8, store_row_planes, multiply_stored_unit, nullptr,
              nullptr,           nullptr,          multiply_stored_many};
    case Precision::int4:
      return block_unit_kernel<2>();
    case Precision::int4_fast:
      return block_unit_kernel<1>();
    case Precision::float8:
      return {ElementKind::bf16,
              store_row_bf16,
              multiply_widened_tiles,
              nullptr,
              nullptr,
              nullptr,
              multiply_pairs<multiply_widened_tiles>};
    case Precision::bf16:
      return {ElementKind::bf16, store_row_bf16, multiply_linear_bf16, nullptr, nullptr, nullptr, multiply_bf16_many};
    case Precision::int8:
      return {ElementKind::int8, store_row_int8<2, 0>, multiply_linear_int8<2>, nullptr, nullptr,
              nullptr,           multiply_int8_many<2>};
    case Precision::int8_fast:
      return {ElementKind::int8, store_row_int8<1, 0>, multiply_linear_int8<1>, nullptr, nullptr,
              nullptr,           multiply_int8_many<1>};
    default:
      return {};
  }
}

// `multiply_tiles` of bf16 rows. It writes 16 rows of C unless it accumulates.
template <class Cell, class Tiles>
static inline void multiply_tiles(int rows, const Bf16 *a, size_t a_stride, Tiles tiles, int count, float *c,
                                  size_t c_stride, bool accumulate, PagesAhead ahead = {}) {
  ahead.ask_all();
  if (!accumulate) {
    multiply_tile_rows<1>(a, a_stride, tiles, count, c, c_stride, false);
    return;
  }
  // The rows of C behind these belong to others.
  alignas(64) float own[16 * kColumns];
  for (int r = 0; r < rows; ++r) std::memcpy(own + r * kColumns, c + r * c_stride, kColumns * sizeof(float));
  multiply_tile_rows<1>(a, a_stride, tiles, count, own, kColumns, true);
  for (int r = 0; r < rows; ++r) std::memcpy(c + r * c_stride, own + r * kColumns, kColumns * sizeof(float));
}
