// The matrix unit: tiles of 16 rows, so that 16 rows cost what one costs. fp32 uses the float kernel.
//
// As few tiles as possible hold anything: while the other half of a core is at work, tile registers to rename are few,
// and a product with all eight in use takes twice to three times as long (docs/decisions/0030).
#pragma once
#include "kernels/isa/amx/block_tiles.h"
#include "kernels/isa/amx/float8_tiles.h"
#include "kernels/isa/vnni.h"

// Up to 32 rows against the tiles of one pair.
template <class Tiles>
static inline void multiply_pair(const PackedLinear &linear, const Activations &a, int row, int rows, Tiles &&tiles,
                                 Prefetch ask, float *out) {
  const Bf16 *x = reinterpret_cast<const Bf16 *>(a.row(row));
  const size_t stride = a.row_bytes / sizeof(Bf16);
  const int count = linear.padded_inputs / 32;
  if (rows <= 16)
    multiply_tile_rows<1>(x, stride, tiles, count, out, kColumns, false, ask);
  else
    multiply_tile_rows<2>(x, stride, tiles, count, out, kColumns, false, ask);
}

static void multiply_linear_bf16(const PackedLinear &linear, int pair, const char *weights, const Activations &a,
                                 int row, int rows, ReadAhead *ahead, float *out) {
  TwelveBitTiles tiles = packed_tiles(linear, pair, weights, ahead);
  alignas(64) Bf16 tile[kTileCells];
  const auto next = [&](int) {
    tiles.unpack(tile);
    return tile;
  };
  multiply_pair(linear, a, row, rows, next, {}, out);
}

static void multiply_linear_unpacked(const PackedLinear &linear, int, const char *weights, const Activations &a,
                                     int row, int rows, ReadAhead *, float *out) {
  multiply_pair(linear, a, row, rows, Stream<Bf16>{reinterpret_cast<const Bf16 *>(weights)}, Prefetch::nearby(), out);
}

// One tile of bytes, [16 rows of planes][64 inputs], against a pair, or two of them against a half of one:
// sums[2][16][16].
template <int kRowTiles>
static inline void multiply_int8_tiles(const char *a, size_t a_tile_bytes, const char *weights, int count,
                                       int32_t *sums, Prefetch prefetch) {
  constexpr int kTileBytes = 16 * kPlaneBytes;
  TILE_ZERO(0);
  TILE_ZERO(1);
  for (int tile = 0; tile < count; ++tile, weights += 2048, a += a_tile_bytes) {
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

// The planes of a row are neighbours, so that a tile holds those of 16 / kPlanes rows.
template <int kPlanes>
static void multiply_linear_int8(const PackedLinear &linear, int pair, const char *weights, const Activations &a,
                                 int row, int rows, ReadAhead *ahead, float *out) {
  if (kPlanes == 2 && rows == 1) {  // the dot product gets along with less of the core
    multiply_linear_vnni<kPlanes, kSignFlips>(linear, pair, weights, a, row, rows, ahead, out);
    return;
  }
  constexpr int kTileRows = 16 / kPlanes;
  const int tiles = ceil_div(rows, kTileRows), count = linear.padded_inputs / 64;
  int sweep = 0;
  const auto ask = [&] { return next_block(ahead, weights, linear.pair_bytes, sweep++, tiles); };
  alignas(64) int32_t sums[2 * 256];
  for (int tile = 0; tile < tiles; tile += 2) {
    const int first = tile * kTileRows;
    const char *planes = a.row(row + first);
    const float *units = a.scales + row + first;
    float *to = out + first * kColumns;
    if (tile + 1 == tiles) {
      multiply_int8_tiles<1>(planes, a.tile_bytes, weights, count, sums, ask());
      for (int half = 0; half < 2; ++half)
        finish_int8_half<kPlanes>(linear, pair, half, sums + half * 256, units, rows - first, to);
    } else {
      for (int half = 0; half < 2; ++half) {
        multiply_int8_tiles<2>(planes, a.tile_bytes, weights + half * 64, count, sums, ask());
        finish_int8_half<kPlanes>(linear, pair, half, sums, units, std::min(rows - first, 2 * kTileRows), to);
      }
    }
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
              multiply_float8_tiles,
              nullptr,
              nullptr,
              nullptr,
              multiply_pairs<multiply_float8_tiles>};
    case Precision::bf16:
      return {ElementKind::bf16, store_row_bf16, multiply_linear_bf16, unpack_linear, multiply_linear_unpacked};
    case Precision::int8:
      return {ElementKind::int8, store_row_int8<2, 0>, multiply_linear_int8<2>};
    case Precision::int8_fast:
      return {ElementKind::int8, store_row_int8<1, 0>, multiply_linear_int8<1>};
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
