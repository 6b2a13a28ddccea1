// AVX2: float arithmetic for bf16 weights, 16-bit products for those of 8 and 4 bits. The path for older processors:
// exact like the others, but the arithmetic no longer hides behind memory above three rows.
#pragma once
#include "kernels/isa/avx2/blocks.h"
#include "kernels/isa/no_unit.h"

// Rows of numbers of 16 bits against int8 columns. Sums of 32 bits hold eight tiles (512 * 32512 * 128) and are then
// split into 256 times one number and another.
template <int kRows>
static __attribute__((noinline)) void multiply_int8_words(const PackedLinear &linear, int pair, const char *weights,
                                                          const Activations &a, int row, float *out,
                                                          Prefetch prefetch) {
  constexpr int kTiles = 8;
  const int count = linear.padded_inputs / kPlaneBytes;
  const char *tile = a.row(row);
  __m256i high[kRows][4], low[kRows][4];
#pragma GCC unroll 2
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) high[r][i] = low[r][i] = _mm256_setzero_si256();
  for (int first = 0; first < count; first += kTiles) {
    __m256i sums[kRows][4];  // unrolled everywhere, or they would live in memory
#pragma GCC unroll 2
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) sums[r][i] = _mm256_setzero_si256();
    for (int last = std::min(first + kTiles, count), t = first; t < last; ++t, tile += a.tile_bytes)
#pragma GCC unroll 1
      for (int step = 0; step < kPlaneBytes / 4; ++step, weights += kLine) {
        prefetch.ask(weights);
        add_words(sums, tile + step * 8, 2 * kPlaneBytes, [&](auto parity, int i) __attribute__((always_inline)) {
          const char *line = weights + i * 32;
          hold(line);
          const __m256i bytes = load_line(line);
          return _mm256_srai_epi16(parity.value == kOdd ? bytes : _mm256_slli_epi16(bytes, 8), 8);
        });
      }
#pragma GCC unroll 2
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        high[r][i] = _mm256_add_epi32(high[r][i], _mm256_srai_epi32(sums[r][i], 8));
        low[r][i] = _mm256_add_epi32(low[r][i], _mm256_and_si256(sums[r][i], _mm256_set1_epi32(255)));
      }
  }
  const auto floats = [](const __m256i *sums) -> Lanes {
    return {_mm256_cvtepi32_ps(sums[0]), _mm256_cvtepi32_ps(sums[1])};
  };
  for (int r = 0; r < kRows; ++r)
    for (int half = 0; half < 2; ++half) {
      const Lanes scale = load(&linear.scales[pair * kColumns + half * 16]);
      store(out + r * kColumns + half * 16,
            dequantise(floats(high[r] + 2 * half), floats(low[r] + 2 * half), scale, a.scales[row + r]));
    }
}

static void multiply_linear_int8(const PackedLinear &linear, int pair, const char *weights, const Activations &a,
                                 int row, int rows, ReadAhead *ahead, float *out) {
  in_groups<2>(linear, weights, rows, ahead, [&](auto known, int first, Prefetch ask) {
    multiply_int8_words<known.value>(linear, pair, weights, a, row + first, out + first * kColumns, ask);
  });
}

// Rows of bytes against int8 columns, whose signs the bytes take over: two products then fit 16 bits (2 * 127 * 127).
template <int kRows>
static __attribute__((noinline)) void multiply_int8_bytes(const PackedLinear &linear, int pair, const char *weights,
                                                          const Activations &a, int row, float *out,
                                                          Prefetch prefetch) {
  const char *tile = a.row(row);
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i sums[kRows][4];  // unrolled everywhere, or they would live in memory
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) sums[r][i] = _mm256_setzero_si256();
  for (int t = 0; t < linear.padded_inputs / kPlaneBytes; ++t, tile += a.tile_bytes)
#pragma GCC unroll 1
    for (int step = 0; step < kPlaneBytes / 4; ++step, weights += kLine) {
      prefetch.ask(weights);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const __m256i signs = load_line(weights + i * 32), sizes = _mm256_abs_epi8(signs);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          const __m256i x = _mm256_sign_epi8(splat_word(tile + r * kPlaneBytes + step * 4), signs);
          const __m256i four = _mm256_madd_epi16(_mm256_maddubs_epi16(sizes, x), ones);
          sums[r][i] = _mm256_add_epi32(sums[r][i], four), hold(sums[r][i]);
        }
      }
    }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const Lanes all{_mm256_cvtepi32_ps(sums[r][2 * half]), _mm256_cvtepi32_ps(sums[r][2 * half + 1])};
      const Lanes scale = load(&linear.scales[pair * kColumns + half * 16]);
      store(out + r * kColumns + half * 16, all * (scale * splat(a.scales[row + r])));
    }
}

static void multiply_linear_int8_fast(const PackedLinear &linear, int pair, const char *weights, const Activations &a,
                                      int row, int rows, ReadAhead *ahead, float *out) {
  in_groups<3>(linear, weights, rows, ahead, [&](auto known, int first, Prefetch ask) {
    multiply_int8_bytes<known.value>(linear, pair, weights, a, row + first, out + first * kColumns, ask);
  });
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
      return {ElementKind::int8, store_row_int8<2, 0>, multiply_linear_int8};
    case Precision::int8_fast:
      return {ElementKind::int8, store_row_int8<1, 0>, multiply_linear_int8_fast};
    default:
      return {};
  }
}
