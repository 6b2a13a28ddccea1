// AVX2: float arithmetic for bf16 weights, 16-bit products for int8. The path for older processors: exact like the
// others, but the arithmetic no longer hides behind memory above one or two rows.
#pragma once
#include "block_rows.h"
#include "no_unit.h"

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
        const __m256i w = _mm256_cvtepi8_epi16(
            _mm_load_si128(reinterpret_cast<const __m128i *>(weights + step * kLine + i * 16)));
        sum[0][i] = _mm256_add_epi32(sum[0][i], _mm256_madd_epi16(upper, w));
        if (kPlanes == 2)
          sum[kPlanes - 1][i] = _mm256_add_epi32(sum[kPlanes - 1][i], _mm256_madd_epi16(lower, w));
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

// Sixteen columns of a block against one plane of a row: levels and signed bytes are multiplied in pairs, whose 16-bit
// sums hold over a block (8 pairs of at most 2 * 15 * 128).
static inline void multiply_block_half(const char *weights, int half, const char *plane, int32_t *sums) {
  const __m256i low_half = _mm256_set1_epi8(15);
  __m256i sum[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
  for (int step = 0; step < kBlockInputs / 4; ++step) {
    int32_t four;
    std::memcpy(&four, plane + step * 4, 4);
    const __m256i x = _mm256_set1_epi32(four);
    const auto *levels = reinterpret_cast<const __m256i *>(weights + step * kBlockStepBytes);
    for (int i = 0; i < 2; ++i) {
      const __m256i both = _mm256_load_si256(levels + i);
      const __m256i w = _mm256_and_si256(half ? _mm256_srli_epi16(both, 4) : both, low_half);
      sum[i] = _mm256_add_epi16(sum[i], _mm256_maddubs_epi16(w, x));
    }
  }
  for (int i = 0; i < 2; ++i)
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(sums + i * 8), _mm256_madd_epi16(sum[i], _mm256_set1_epi16(1)));
}

template <int kPlanes>
static void multiply_linear_blocks(const PackedLinear &linear, int pair, const char *weights, const Activations &a,
                                   int row, int rows, ReadAhead *ahead, float *out) {
  const int count = linear.padded_inputs / kBlockInputs;
  int32_t sums[2][16];
  for (int r = 0; r < rows; ++r) {
    Prefetch prefetch = next_block(ahead, weights, linear.pair_bytes, r, rows);
    Lanes total[2] = {splat(0.f), splat(0.f)};
    for (int block = 0; block < count; ++block) {
      const char *const tile = a.row(row + r) + block / 2 * a.tile_bytes, *const at = weights + block * kBlockBytes;
      for (int line = 0; line < kBlockBytes; line += kLine) prefetch.ask(at + line);
      const BlockUnits &units = units_of(tile, kPlanes);
      for (int half = 0; half < 2; ++half) {
        for (int p = 0; p < kPlanes; ++p)
          multiply_block_half(at, half, tile + p * kPlaneBytes + block % 2 * kBlockInputs, sums[p]);
        const Lanes first = load_int32(sums[0]);
        const Lanes dots = kPlanes == 2 ? fma(first, splat(256.f), load_int32(sums[1])) : first;
        total[half] = add_block(total[half], dots, load_half(at + kBlockUnits + half * 32),
                                load_half(at + kBlockOffsets + half * 32), units.unit[block % 2], units.sum[block % 2]);
      }
    }
    for (int half = 0; half < 2; ++half)
      store(out + r * kColumns + half * 16, total[half] * load(&linear.scales[pair * kColumns + half * 16]));
  }
}

// Most rows of a pass whose screened logits take less time than the head's own.
constexpr int kScreenedRows = 2;

// What attention multiplies with cache cells: queries, and the weights of values.
template <class Cell> struct QueryElement { using type = float; };

static inline LinearKernel linear_kernel(Precision precision) {
  switch (precision) {
    case Precision::bf16: return {ElementKind::fp32, store_row_float, multiply_linear_fma<Bf16>};
    case Precision::int8: return {ElementKind::int8, store_row_int8<2, 0>, multiply_linear_int8<2>};
    case Precision::int8_fast: return {ElementKind::int8, store_row_int8<1, 0>, multiply_linear_int8<1>};
    case Precision::fp32: return {ElementKind::fp32, store_row_float, multiply_linear_fma<float>};
    case Precision::int4: return {ElementKind::int8, store_row_blocks<2>, multiply_linear_blocks<2>};
    case Precision::int4_fast: return {ElementKind::int8, store_row_blocks<1>, multiply_linear_blocks<1>};
  }
  return {};
}
