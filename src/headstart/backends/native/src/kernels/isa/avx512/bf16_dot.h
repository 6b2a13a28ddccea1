// bf16 rows against bf16 pair tiles with the dot product of AVX-512 (BF16), where it runs at full rate: each
// instruction multiplies twice as many numbers as one of float does, and no weight has to be widened.
//
// It adds the two products of a pair to a float sum one after the other, each rounded to nearest even, subnormals
// taken for zero: one chain of operations per element, whatever the number of rows.
#pragma once
#include "kernels/formats/packed_pairs.h"

constexpr int kGroupSteps = kPackedCells / kColumns;  // inner steps that are packed together

// Rows as linear layers read them, tile by tile.
struct TiledRows {
  const Bf16 *first;
  size_t tile_cells;

  TiledRows from(int row) const { return {first + row * kTileInputs, tile_cells}; }
  TiledRows tile(int index) const { return {first + index * tile_cells, tile_cells}; }
  const Bf16 *row(int r) const { return first + r * kTileInputs; }
};
// Rows one behind the other, as in attention.
struct StridedRows {
  const Bf16 *first;
  size_t stride;

  StridedRows from(int row) const { return {first + row * stride, stride}; }
  StridedRows tile(int index) const { return {first + index * kTileInputs, stride}; }
  const Bf16 *row(int r) const { return first + r * stride; }
};

template <int kRows, class Rows, class Tiles, class Ask>
static inline void multiply_dot_rows(Rows a, Tiles tiles, int count, float *c, size_t c_stride, bool accumulate,
                                     Ask &prefetch) {
  __m512 sum[kRows][2];  // unrolled everywhere, or it would live in memory
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    sum[r][0] = accumulate ? _mm512_loadu_ps(c + r * c_stride) : _mm512_setzero_ps();
    sum[r][1] = accumulate ? _mm512_loadu_ps(c + r * c_stride + 16) : _mm512_setzero_ps();
  }
  for (int tile = 0; tile < count; ++tile) {
    const Bf16 *b = tiles(tile);
    const Rows x = a.tile(tile);
#pragma GCC unroll 2
    for (int step = 0; step < kTileInputs; step += 2) {
      prefetch.ask(b + step * 32);
      const __m512bh left = (__m512bh)_mm512_load_si512(b + step * 32);
      const __m512bh right = (__m512bh)_mm512_load_si512(b + step * 32 + 32);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        int32_t two;
        std::memcpy(&two, x.row(r) + step, 4);
        const __m512bh both = (__m512bh)_mm512_set1_epi32(two);
        sum[r][0] = _mm512_dpbf16_ps(sum[r][0], both, left);
        sum[r][1] = _mm512_dpbf16_ps(sum[r][1], both, right);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    _mm512_storeu_ps(c + r * c_stride, sum[r][0]);
    _mm512_storeu_ps(c + r * c_stride + 16, sum[r][1]);
  }
}

// Any number of rows against tiles that stand in memory.
template <class Rows, class Tiles, class Ask>
static inline void multiply_dot(int rows, Rows a, Tiles tiles, int count, float *c, size_t c_stride, bool accumulate,
                                Ask prefetch) {
  const int blocks = ceil_div(rows, kFmaRows);
  for (int block = 0; block < blocks; ++block) {
    const int n = group_rows(rows, kFmaRows, block);
    with_row_count<kFmaRows>(
        n, [&](auto known) { multiply_dot_rows<known.value>(a, tiles, count, c, c_stride, accumulate, prefetch); });
    a = a.from(n);
    c += n * c_stride;
  }
}

static inline TiledRows rows_from(const Activations &a, int row) {
  return {reinterpret_cast<const Bf16 *>(a.row(row)), a.tile_bytes / sizeof(Bf16)};
}

// Rows against packed pairs whose weights, once unpacked, stay in registers; to out[kPairs][kRowBlock][32].
template <int kRows, int kPairs>
static inline void multiply_packed_rows(TiledRows a, TwelveBitTiles (&pairs)[kPairs], int count, float *out) {
  __m512 sum[kPairs][kRows][2];
#pragma GCC unroll 2
  for (int p = 0; p < kPairs; ++p)
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) sum[p][r][0] = sum[p][r][1] = _mm512_setzero_ps();
  for (int tile = 0; tile < count; ++tile) {
    const TiledRows x = a.tile(tile);
    for (int group = 0; group < kTileGroups; ++group) {
      __m512i weights[kPairs][4];
#pragma GCC unroll 2
      for (int p = 0; p < kPairs; ++p) pairs[p].next_group(weights[p]);
#pragma GCC unroll 2
      for (int step = 0; step < kGroupSteps; step += 2)
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          int32_t two;
          std::memcpy(&two, x.row(r) + group * kGroupSteps + step, 4);
          const __m512bh both = (__m512bh)_mm512_set1_epi32(two);
#pragma GCC unroll 2
          for (int p = 0; p < kPairs; ++p) {
            sum[p][r][0] = _mm512_dpbf16_ps(sum[p][r][0], both, (__m512bh)weights[p][step]);
            sum[p][r][1] = _mm512_dpbf16_ps(sum[p][r][1], both, (__m512bh)weights[p][step + 1]);
          }
        }
    }
  }
#pragma GCC unroll 2
  for (int p = 0; p < kPairs; ++p)
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      float *const to = out + (p * kRowBlock + r) * kColumns;
      _mm512_storeu_ps(to, sum[p][r][0]);
      _mm512_storeu_ps(to + 16, sum[p][r][1]);
    }
}

static void multiply_linear_unpacked(const PackedLinear &linear, int, const char *weights, const Activations &a,
                                     int row, int rows, ReadAhead *, float *out) {
  const Stream<Bf16> tiles{reinterpret_cast<const Bf16 *>(weights)};
  multiply_dot(rows, rows_from(a, row), tiles, linear.padded_inputs / 32, out, kColumns, false, Prefetch::nearby());
}

// Each group of rows unpacks by itself: that takes less time than to keep for all what the first has unpacked.
static void multiply_linear_dot(const PackedLinear &linear, int pair, const char *weights, const Activations &a,
                                int row, int rows, ReadAhead *ahead, float *out) {
  const int groups = ceil_div(rows, kFmaRows);
  for (int group = 0, first = 0; group < groups; ++group) {
    const int n = group_rows(rows, kFmaRows, group);
    TwelveBitTiles tiles[1] = {packed_tiles(linear, pair, weights, ahead, group, groups)};
    with_row_count<kFmaRows>(n, [&](auto known) {
      multiply_packed_rows<known.value>(rows_from(a, row + first), tiles, linear.padded_inputs / 32,
                                        out + first * kColumns);
    });
    first += n;
  }
}

// Sums wait for each other, six cycles each time: one pair of columns has too few of them, where rows are few, to keep
// the units at work meanwhile; two have enough.
static void multiply_two_dot(const PackedLinear &linear, int pair, const char *weights, const Activations &a, int rows,
                             ReadAhead &ahead, float *out) {
  const auto tiles = [&](int which) {
    const Prefetch ask = ahead.next_of_two(weights, linear.pair_bytes, packed_steps(linear), which);
    return packed_tiles(linear, pair + which, weights + which * linear.pair_bytes, ask);
  };
  TwelveBitTiles both[2] = {tiles(0), tiles(1)};
  with_row_count<kFewRows>(rows, [&](auto known) {
    multiply_packed_rows<known.value>(rows_from(a, 0), both, linear.padded_inputs / 32, out);
  });
}
