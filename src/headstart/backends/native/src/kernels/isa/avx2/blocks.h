// Weights in blocks with AVX2.
#pragma once
#include "kernels/formats/block_rows.h"

// A block's 32 inputs of some rows as products take them.
template <class Blocks, int kRows, int kPlanes>
struct BlockInputs {
  BlockInputs(const char *planes, int row_bytes) : planes(planes), row_bytes(row_bytes) {}

  const char *planes;
  int row_bytes;
};
// Numbers of 16 bits, the first and the third of every four inputs before the others.
template <int kRows, int kPlanes>
struct BlockInputs<EightBits, kRows, kPlanes> {
  BlockInputs(const char *planes, int row_bytes) {
    const __m256i order =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
    for (int r = 0; r < kRows; ++r, planes += row_bytes)
#pragma GCC unroll 2
      for (int i = 0; i < kBlockInputs; i += 16) {
        __m256i numbers = widened(planes + i);
        if (kPlanes == 2) numbers = _mm256_add_epi16(_mm256_slli_epi16(numbers, 8), widened(planes + kPlaneBytes + i));
        _mm256_store_si256(reinterpret_cast<__m256i *>(of_row[r] + i), _mm256_shuffle_epi8(numbers, order));
      }
  }
  static __m256i widened(const char *bytes) {
    return _mm256_cvtepi8_epi16(_mm_load_si128(reinterpret_cast<const __m128i *>(bytes)));
  }

  alignas(32) int16_t of_row[kRows][kBlockInputs];
};

static inline __m256i splat_word(const void *at) {
  int32_t word;
  std::memcpy(&word, at, 4);
  return _mm256_set1_epi32(word);
}
static inline __m256i load_line(const char *at) { return _mm256_load_si256(reinterpret_cast<const __m256i *>(at)); }

// dots[r][h] = the levels of sixteen columns of a block times row r's inputs, of `kHalves` times sixteen from `half`
// on. Half bytes and signed bytes are multiplied in pairs, whose 16-bit sums hold over a block (8 pairs of at most 2 *
// 15 * 128).
template <int kRows, int kPlanes, int kHalves>
static inline void multiply_block(FourBits of, const char *weights, int half,
                                  const BlockInputs<FourBits, kRows, kPlanes> &inputs, Lanes (&dots)[kRows][kHalves]) {
  const __m256i low_half = _mm256_set1_epi8(15);
  __m256i sums[kRows][kPlanes][2 * kHalves];
  for (auto &row : sums)
    for (auto &plane : row)
      for (__m256i &sum : plane) sum = _mm256_setzero_si256();
  // Unrolled, all products would be made before any is added, and find no registers.
#pragma GCC unroll 1
  for (int step = 0; step < kBlockInputs / 4; ++step) {
    __m256i levels[2 * kHalves];
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const __m256i both = load_line(weights + step * of.kStepBytes + i * 32), upper = _mm256_srli_epi16(both, 4);
      levels[i] = _mm256_and_si256(kHalves == 2 || half == 0 ? both : upper, low_half);
      if (kHalves == 2) levels[2 * kHalves - 2 + i] = _mm256_and_si256(upper, low_half);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
      for (int p = 0; p < kPlanes; ++p) {
        const __m256i x = splat_word(inputs.planes + r * inputs.row_bytes + p * kPlaneBytes + step * 4);
#pragma GCC unroll 4
        for (int i = 0; i < 2 * kHalves; ++i)
          sums[r][p][i] = _mm256_add_epi16(sums[r][p][i], _mm256_maddubs_epi16(levels[i], x));
      }
  }
  const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int h = 0; h < kHalves; ++h) {
      Lanes of_plane[kPlanes];
#pragma GCC unroll 2
      for (int p = 0; p < kPlanes; ++p)
        of_plane[p] = {_mm256_cvtepi32_ps(_mm256_madd_epi16(sums[r][p][2 * h], ones)),
                       _mm256_cvtepi32_ps(_mm256_madd_epi16(sums[r][p][2 * h + 1], ones))};
      dots[r][h] = kPlanes == 2 ? fma(of_plane[0], splat(256.f), of_plane[kPlanes - 1]) : of_plane[0];
    }
}

// Pairs of whole unsigned bytes would not fit 16 bits; numbers of 16 bits give sums of 32.
template <int kRows, int kPlanes, int kHalves>
static inline void multiply_block(EightBits of, const char *weights, int half,
                                  const BlockInputs<EightBits, kRows, kPlanes> &inputs, Lanes (&dots)[kRows][kHalves]) {
  const __m256i low_byte = _mm256_set1_epi16(255);
  __m256i sums[kRows][2 * kHalves];
  for (auto &row : sums)
    for (__m256i &sum : row) sum = _mm256_setzero_si256();
#pragma GCC unroll 1
  for (int step = 0; step < kBlockInputs / 4; ++step) {
#pragma GCC unroll 4
    for (int i = 0; i < 2 * kHalves; ++i) {
      const __m256i levels = load_line(weights + step * of.kStepBytes + half * 64 + i * 32);
      const __m256i even = _mm256_and_si256(levels, low_byte), odd = _mm256_srli_epi16(levels, 8);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const int16_t *const x = inputs.of_row[r] + step * 4;
        sums[r][i] = _mm256_add_epi32(sums[r][i], _mm256_madd_epi16(even, splat_word(x)));
        sums[r][i] = _mm256_add_epi32(sums[r][i], _mm256_madd_epi16(odd, splat_word(x + 2)));
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int h = 0; h < kHalves; ++h)
      dots[r][h] = {_mm256_cvtepi32_ps(sums[r][2 * h]), _mm256_cvtepi32_ps(sums[r][2 * h + 1])};
}

template <class Blocks, int kRows, int kPlanes>
static inline void multiply_block_rows(const PackedLinear &linear, int pair, const char *weights, const Activations &a,
                                       int row, float *out, Prefetch prefetch) {
  constexpr int row_bytes = kPlanes * kPlaneBytes + kBlockUnitBytes;
  // Few rows leave registers for both halves, so that their inputs are fetched once.
  constexpr int kHalves = kRows * (std::is_same_v<Blocks, FourBits> ? kPlanes : 1) <= 2 ? 2 : 1;
  const char *tile = a.row(row);
  Lanes total[kRows][2];
  for (int r = 0; r < kRows; ++r) total[r][0] = total[r][1] = splat(0.f);
  for (int block = 0; block < linear.padded_inputs / kBlockInputs; ++block, weights += Blocks::kBytes) {
    for (int line = 0; line < Blocks::kBytes; line += kLine) prefetch.ask(weights + line);
    const BlockInputs<Blocks, kRows, kPlanes> inputs(tile + block % 2 * kBlockInputs, row_bytes);
#pragma GCC unroll 2
    for (int half = 0; half < 2; half += kHalves) {
      Lanes dots[kRows][kHalves];
      multiply_block(Blocks(), weights, half, inputs, dots);
#pragma GCC unroll 2
      for (int h = 0; h < kHalves; ++h) {
        const ColumnGrids grids = column_grids(Blocks(), weights, half + h);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          const BlockUnits &units = units_of(tile + r * row_bytes, kPlanes);
          total[r][half + h] = add_block(total[r][half + h], dots[r][h], grids, units, block);
        }
      }
    }
    if (block % 2) tile += a.tile_bytes;
  }
  for (int half = 0; half < 2; ++half) {
    const Lanes scale = load(&linear.scales[pair * kColumns + half * 16]);
    for (int r = 0; r < kRows; ++r) store(out + r * kColumns + half * 16, total[r][half] * scale);
  }
}
