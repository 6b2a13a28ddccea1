// AVX-512: float arithmetic for bf16 weights, the 8-bit dot product (VNNI) for int8.
#pragma once
#include "linear.h"

// The instruction multiplies unsigned by signed bytes: high bytes carry an offset of 128, taken back by the column
// sums; low bytes are unsigned as they are.
constexpr int kHighOffset = 128;

// 32-bit sums, typed as what the instruction works on: of __m512i, whose lanes are 64 bits wide, gcc 12 copies every
// sum into a register of the other type and back around each product, and spills.
typedef int32_t Sums __attribute__((vector_size(64)));

static inline Sums dot(Sums sum, __m512i unsigned_bytes, __m512i signed_bytes) {
  return (Sums)_mm512_dpbusd_epi32((__m512i)sum, unsigned_bytes, signed_bytes);
}
static inline Lanes to_floats(Sums sum) { return {_mm512_cvtepi32_ps((__m512i)sum)}; }

template <int kRows, int kPlanes>
static inline void multiply_vnni_rows(const PackedLinear &linear, int pair, const char *weights, const Activations &a,
                                      int row, float *out, Prefetch prefetch) {
  Sums sum[kRows][kPlanes][2];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int p = 0; p < kPlanes; ++p) sum[r][p][0] = sum[r][p][1] = Sums{};
  constexpr int row_bytes = kPlanes * kPlaneBytes;
  const char *bytes = a.row(row);
  for (int tile = 0; tile < linear.padded_inputs / 64; ++tile, weights += 2048, bytes += a.tile_bytes) {
    for (int step = 0; step < 16; ++step) {
      prefetch.ask(weights + step * kLine);
      const __m512i left = _mm512_load_si512(weights + step * kLine);
      const __m512i right = _mm512_load_si512(weights + step * kLine + 64);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
        for (int p = 0; p < kPlanes; ++p) {
          int32_t four;
          std::memcpy(&four, bytes + r * row_bytes + p * kPlaneBytes + step * 4, 4);
          const __m512i x = _mm512_set1_epi32(four);
          sum[r][p][0] = dot(sum[r][p][0], x, left);
          sum[r][p][1] = dot(sum[r][p][1], x, right);
        }
    }
  }
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const int column = pair * kColumns + half * 16;
    const Lanes scale = load(&linear.scales[column]);
    const Sums offset = (Sums)_mm512_slli_epi32(_mm512_loadu_si512(&linear.column_sums[column]), 7);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Lanes high = to_floats(sum[r][0][half] - offset);
      const float unit = a.scales[row + r];
      store(out + r * kColumns + half * 16,
            kPlanes == 2 ? dequantise(high, to_floats(sum[r][kPlanes - 1][half]), scale, unit)
                         : high * (scale * splat(unit)));
    }
  }
}

template <int kPlanes>
static void multiply_linear_int8(const PackedLinear &linear, int pair, const char *weights, const Activations &a,
                                 int row, int rows, ReadAhead *ahead, float *out) {
  constexpr int most = 12 / kPlanes;
  const int blocks = ceil_div(rows, most);
  for (int block = 0; block < blocks; ++block) {
    const int n = block_rows(rows, most, block);
    const Prefetch ask = next_block(ahead, weights, linear.pair_bytes, block, blocks);
#define HEADSTART_ROWS(R)                                                                      \
  case R:                                                                                      \
    if constexpr (R <= most) multiply_vnni_rows<R, kPlanes>(linear, pair, weights, a, row, out, ask); \
    break;
    switch (n) {
      HEADSTART_ROWS(1)
      HEADSTART_ROWS(2)
      HEADSTART_ROWS(3)
      HEADSTART_ROWS(4)
      HEADSTART_ROWS(5)
      HEADSTART_ROWS(6)
      HEADSTART_ROWS(7)
      HEADSTART_ROWS(8)
      HEADSTART_ROWS(9)
      HEADSTART_ROWS(10)
      HEADSTART_ROWS(11)
      HEADSTART_ROWS(12)
    }
#undef HEADSTART_ROWS
    row += n;
    out += n * kColumns;
  }
}

// Most rows of a pass whose screened logits take less time than the head's own.
constexpr int kScreenedRows = 256;

// What attention multiplies with cache cells: queries, and the weights of values.
template <class Cell> struct QueryElement { using type = float; };

static inline LinearKernel linear_kernel(Precision precision) {
  switch (precision) {
    case Precision::bf16: return {ElementKind::fp32, store_row_float, multiply_linear_fma<Bf16>};
    case Precision::int8: return {ElementKind::int8, store_row_int8<2, kHighOffset>, multiply_linear_int8<2>};
    case Precision::int8_fast: return {ElementKind::int8, store_row_int8<1, kHighOffset>, multiply_linear_int8<1>};
    case Precision::fp32: return {ElementKind::fp32, store_row_float, multiply_linear_fma<float>};
  }
  return {};
}

// C[rows][32] (+)= A . pair tiles, for attention.
template <class Cell, class Tiles>
static inline void multiply_tiles(int rows, const float *a, size_t a_stride, Tiles tiles, int count, float *c,
                                  size_t c_stride, bool accumulate) {
  multiply_fma<Cell>(rows, a, a_stride, tiles, count, c, c_stride, accumulate);
}

// Nothing to ask for, nothing to set up on a thread.
static inline bool enable_unit() { return true; }
struct UnitScope {
  UnitScope() {}
};
