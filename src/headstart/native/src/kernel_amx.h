// The matrix unit: tiles of 16 rows, so that 16 rows cost what one costs. fp32 uses the float kernel.
#pragma once
#include "tiles.h"
#include "vnni.h"

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
    TILE_ZERO(2);
    TILE_ZERO(3);
  }
  for (int tile = 0; tile < count; ++tile, a += 32) {
    const Bf16 *b = tiles(tile);
    prefetch.ask_quarter(b, 0);
    TILE_LOAD(4, a, a_bytes);
    prefetch.ask_quarter(b, 1);
    TILE_LOAD(6, b, 128);
    prefetch.ask_quarter(b, 2);
    TILE_LOAD(7, b + 32, 128);
    prefetch.ask_quarter(b, 3);
    TILE_BF16(0, 4, 6);
    TILE_BF16(1, 4, 7);
    if constexpr (kRowTiles == 2) {
      TILE_LOAD(5, a + 16 * a_stride, a_bytes);
      TILE_BF16(2, 5, 6);
      TILE_BF16(3, 5, 7);
    }
  }
  TILE_STORE(0, c, c_bytes);
  TILE_STORE(1, c + 16, c_bytes);
  if constexpr (kRowTiles == 2) {
    TILE_STORE(2, c + 16 * c_stride, c_bytes);
    TILE_STORE(3, c + 16 * c_stride + 16, c_bytes);
  }
}

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

static inline TwelveBitTiles packed_tiles(const PackedLinear &linear, int pair, const char *weights, ReadAhead *ahead) {
  const int steps = linear.padded_inputs / 2;
  const Prefetch ask = ahead ? ahead->next_block(weights, linear.pair_bytes, steps, 0, 1) : Prefetch::nearby();
  const PairCode &code = linear.codes[pair];
  return {code, &linear.listed[code.first_listed], weights, ask};
}

static void multiply_linear_bf16(const PackedLinear &linear, int pair, const char *weights, const Activations &a,
                                 int row, int rows, ReadAhead *ahead, float *out) {
  TwelveBitTiles tiles = packed_tiles(linear, pair, weights, ahead);
  multiply_pair(linear, a, row, rows, [&](int) { return tiles(); }, {}, out);
}

static void multiply_linear_unpacked(const PackedLinear &linear, int, const char *weights, const Activations &a,
                                     int row, int rows, ReadAhead *, float *out) {
  multiply_pair(linear, a, row, rows, Stream<Bf16>{reinterpret_cast<const Bf16 *>(weights)}, Prefetch::nearby(), out);
}

static void unpack_linear(const PackedLinear &linear, int pair, const char *weights, ReadAhead &ahead, char *to) {
  TwelveBitTiles tiles = packed_tiles(linear, pair, weights, &ahead);
  for (int tile = 0; tile < linear.padded_inputs / 32; ++tile)
    tiles.unpack(reinterpret_cast<Bf16 *>(to) + tile * kTileCells);
}

static void store_row_bf16(const Activations &to, int row, const float *x, int padded_inputs) {
  for (int k = 0; k < padded_inputs; k += 16) store_activation(ElementKind::bf16, to, row, k, load(x + k));
}

// One row tile against one pair, all planes: high bytes signed, low bytes unsigned.
template <int kPlanes>
static inline void multiply_int8_tile(const char *high, size_t tile_bytes, const char *weights, int count,
                                      int32_t *sums, Prefetch prefetch) {
  constexpr int row_bytes = kPlanes * kPlaneBytes;
  TILE_ZERO(0);
  TILE_ZERO(1);
  if constexpr (kPlanes == 2) {
    TILE_ZERO(2);
    TILE_ZERO(3);
  }
  for (int tile = 0; tile < count; ++tile, weights += 2048, high += tile_bytes) {
    prefetch.ask_quarter(weights, 0);
    TILE_LOAD(4, high, row_bytes);
    prefetch.ask_quarter(weights, 1);
    TILE_LOAD(6, weights, 128);
    prefetch.ask_quarter(weights, 2);
    TILE_LOAD(7, weights + 64, 128);
    prefetch.ask_quarter(weights, 3);
    TILE_S8_S8(0, 4, 6);
    TILE_S8_S8(1, 4, 7);
    if constexpr (kPlanes == 2) {
      TILE_LOAD(5, high + kPlaneBytes, row_bytes);
      TILE_U8_S8(2, 5, 6);
      TILE_U8_S8(3, 5, 7);
    }
  }
  TILE_STORE(0, sums, 64);
  TILE_STORE(1, sums + 256, 64);
  if constexpr (kPlanes == 2) {
    TILE_STORE(2, sums + 512, 64);
    TILE_STORE(3, sums + 768, 64);
  }
}

// Up to so many rows of two planes the dot product is faster: a tile takes as long for one row as for sixteen.
constexpr int kFewRows = 6;

template <int kPlanes>
static void multiply_linear_int8(const PackedLinear &linear, int pair, const char *weights, const Activations &a,
                                 int row, int rows, ReadAhead *ahead, float *out) {
  if (kPlanes == 2 && rows <= kFewRows) {
    multiply_linear_vnni<kPlanes, static_cast<int>(0x80808080)>(linear, pair, weights, a, row, rows, ahead, out);
    return;
  }
  alignas(64) int32_t sums[kPlanes * 512];
  for (int first = 0; first < rows; first += 16) {
    const char *high = a.row(row + first);
    multiply_int8_tile<kPlanes>(high, a.tile_bytes, weights, linear.padded_inputs / 64, sums,
                                next_block(ahead, weights, linear.pair_bytes, first / 16, ceil_div(rows, 16)));
    const int count = rows - first < 16 ? rows - first : 16;
    for (int half = 0; half < 2; ++half) {
      const Lanes scale = load(&linear.scales[pair * kColumns + half * 16]);
      for (int r = 0; r < count; ++r) {
        const int32_t *sum = sums + half * 256 + r * 16;
        const float unit = a.scales[row + first + r];
        store(out + (first + r) * kColumns + half * 16,
              kPlanes == 2 ? dequantise(load_int32(sum), load_int32(sum + 512), scale, unit)
                           : load_int32(sum) * (scale * splat(unit)));
      }
    }
  }
}

// Most rows of a pass whose screened logits take less time than the head's own.
constexpr int kScreenedRows = 256;

// What attention multiplies with cache cells: queries, and the weights of values.
template <class Cell> struct QueryElement { using type = Cell; };

static inline LinearKernel linear_kernel(Precision precision) {
  switch (precision) {
    case Precision::bf16:
      return {ElementKind::bf16, store_row_bf16, multiply_linear_bf16, unpack_linear, multiply_linear_unpacked};
    case Precision::int8: return {ElementKind::int8, store_row_int8<2, 0>, multiply_linear_int8<2>};
    case Precision::int8_fast: return {ElementKind::int8, store_row_int8<1, 0>, multiply_linear_int8<1>};
    case Precision::fp32: return {ElementKind::fp32, store_row_float, multiply_linear_fma<float>};
  }
  return {};
}

// C[rows][32] (+)= A . pair tiles, for attention. The bf16 form writes 16 rows of C unless it accumulates.
template <class Cell, class Tiles>
static inline void multiply_tiles(int rows, const float *a, size_t a_stride, Tiles tiles, int count, float *c,
                                  size_t c_stride, bool accumulate) {
  multiply_fma<Cell>(rows, a, a_stride, tiles, count, c, c_stride, accumulate);
}
template <class Cell, class Tiles>
static inline void multiply_tiles(int rows, const Bf16 *a, size_t a_stride, Tiles tiles, int count, float *c,
                                  size_t c_stride, bool accumulate) {
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
