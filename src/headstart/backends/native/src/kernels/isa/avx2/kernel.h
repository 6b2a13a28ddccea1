// AVX2: float arithmetic for bf16 weights, 16-bit products for those of 8 and 4 bits. The path for older processors:
// exact like the others, but the arithmetic no longer hides behind memory above three rows.
#pragma once
#include "kernels/isa/avx2/blocks.h"
#include "kernels/isa/no_unit.h"

// Sixteen int8 columns against one row, all planes. Bytes are widened to 16 bits and multiplied in pairs; a lane of a
// sum holds half of a column's four products a step, neighbours are added at the end.
template <int kPlanes>
static inline void multiply_int8_half(const char *high, size_t tile_bytes, const char *weights, int count,
                                      int32_t *sums, Prefetch prefetch) {
  __m256i sum[kPlanes][4];
  for (int p = 0; p < kPlanes; ++p)
    for (int i = 0; i < 4; ++i) sum[p][i] = _mm256_setzero_si256();
  for (int tile = 0; tile < count; ++tile, weights += 2048, high += tile_bytes) {
    for (int step = 0; step < 16; ++step) {
      prefetch.ask(weights + step * kLine);
      int32_t four[2] = {};
      std::memcpy(&four[0], high + step * 4, 4);
      if (kPlanes == 2) std::memcpy(&four[1], high + kPlaneBytes + step * 4, 4);
      const __m256i upper = _mm256_cvtepi8_epi16(_mm_set1_epi32(four[0]));
      const __m256i lower = _mm256_cvtepi8_epi16(_mm_set1_epi32(four[1]));
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const __m256i w =
            _mm256_cvtepi8_epi16(_mm_load_si128(reinterpret_cast<const __m128i *>(weights + step * kLine + i * 16)));
        sum[0][i] = _mm256_add_epi32(sum[0][i], _mm256_madd_epi16(upper, w));
        if (kPlanes == 2) sum[kPlanes - 1][i] = _mm256_add_epi32(sum[kPlanes - 1][i], _mm256_madd_epi16(lower, w));
      }
    }
  }
  for (int p = 0; p < kPlanes; ++p)
    for (int i = 0; i < 4; ++i) {
      alignas(32) int32_t lanes[8];
      _mm256_store_si256(reinterpret_cast<__m256i *>(lanes), sum[p][i]);
      for (int j = 0; j < 4; ++j) sums[p * 16 + i * 4 + j] = lanes[2 * j] + lanes[2 * j + 1];
    }
}

template <int kPlanes>
static void multiply_linear_int8(const PackedLinear &linear, int pair, const char *weights, const Activations &a,
                                 int row, int rows, ReadAhead *ahead, float *out) {
  int32_t sums[kPlanes * 16];
  const int count = linear.padded_inputs / 64;
  for (int r = 0; r < rows; ++r)
    for (int half = 0; half < 2; ++half) {
      multiply_int8_half<kPlanes>(a.row(row + r), a.tile_bytes, weights + half * 64, count, sums,
                                  next_block(ahead, weights, linear.pair_bytes, 2 * r + half, 2 * rows));
      const Lanes scale = load(&linear.scales[pair * kColumns + half * 16]);
      const float unit = a.scales[row + r];
      store(out + r * kColumns + half * 16,
            kPlanes == 2 ? dequantise(load_int32(sums), load_int32(sums + (kPlanes - 1) * 16), scale, unit)
                         : load_int32(sums) * (scale * splat(unit)));
    }
}

// What attention multiplies with cache cells: queries, and the weights of values.
template <class Cell>
struct QueryElement {
  using type = float;
};

// Of bf16 and 8-bit weights; `kernel.h` has the others.
static inline LinearKernel own_linear_kernel(Precision precision) {
  switch (precision) {
    case Precision::bf16:
      return {ElementKind::fp32, store_row_float, multiply_linear_fma<Bf16>};
    case Precision::int8:
      return {ElementKind::int8, store_row_int8<2, 0>, multiply_linear_int8<2>};
    case Precision::int8_fast:
      return {ElementKind::int8, store_row_int8<1, 0>, multiply_linear_int8<1>};
    default:
      return {};
  }
}
