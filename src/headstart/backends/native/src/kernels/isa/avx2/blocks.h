// Weights in blocks with AVX2.
#pragma once
#include "kernels/formats/block_rows.h"

// Sixteen columns of a block against one plane of some rows: the lower or, with a shift of 4, the upper half of every
// byte. Half bytes and signed bytes are multiplied in pairs, whose 16-bit sums hold over a block (8 pairs of at most
// 2 * 15 * 128). kAdds: `sums` have been given the lower halves of the same levels.
template <int kRows, int kStepBytes, bool kAdds>
static inline void multiply_half_bytes(const char *weights, int shift, const char *plane, int row_bytes,
                                       int32_t (*sums)[16]) {
  const __m256i low_half = _mm256_set1_epi8(15);
  __m256i sum[kRows][2];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = _mm256_setzero_si256();
  for (int step = 0; step < kBlockInputs / 4; ++step) {
    const auto *at = reinterpret_cast<const __m256i *>(weights + step * kStepBytes);
    __m256i levels[2];
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const __m256i both = _mm256_load_si256(at + i);
      levels[i] = _mm256_and_si256(shift ? _mm256_srli_epi16(both, 4) : both, low_half);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      int32_t four;
      std::memcpy(&four, plane + r * row_bytes + step * 4, 4);
      const __m256i x = _mm256_set1_epi32(four);
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) sum[r][i] = _mm256_add_epi16(sum[r][i], _mm256_maddubs_epi16(levels[i], x));
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      auto *const to = reinterpret_cast<__m256i *>(sums[r] + i * 8);
      const __m256i fours = _mm256_madd_epi16(sum[r][i], _mm256_set1_epi16(kAdds ? 16 : 1));
      _mm256_storeu_si256(to, kAdds ? _mm256_add_epi32(_mm256_loadu_si256(to), fours) : fours);
    }
}

template <int kRows>
static inline void multiply_block_half(FourBits of, const char *weights, int half, const char *plane, int row_bytes,
                                       int32_t (*sums)[16]) {
  multiply_half_bytes<kRows, of.kStepBytes, false>(weights, half * 4, plane, row_bytes, sums);
}
// Products of whole unsigned bytes would not fit 16 bits.
template <int kRows>
static inline void multiply_block_half(EightBits of, const char *weights, int half, const char *plane, int row_bytes,
                                       int32_t (*sums)[16]) {
  multiply_half_bytes<kRows, of.kStepBytes, false>(weights + half * 64, 0, plane, row_bytes, sums);
  multiply_half_bytes<kRows, of.kStepBytes, true>(weights + half * 64, 4, plane, row_bytes, sums);
}

template <class Blocks, int kRows, int kPlanes>
static inline void multiply_block_rows(const PackedLinear &linear, int pair, const char *weights, const Activations &a,
                                       int row, float *out, Prefetch prefetch) {
  constexpr int row_bytes = kPlanes * kPlaneBytes + kBlockUnitBytes;
  const char *tile = a.row(row);
  Lanes total[kRows][2];
  for (int r = 0; r < kRows; ++r) total[r][0] = total[r][1] = splat(0.f);
  for (int block = 0; block < linear.padded_inputs / kBlockInputs; ++block, weights += Blocks::kBytes) {
    for (int line = 0; line < Blocks::kBytes; line += kLine) prefetch.ask(weights + line);
    for (int half = 0; half < 2; ++half) {
      int32_t sums[kPlanes][kRows][16];
      for (int p = 0; p < kPlanes; ++p)
        multiply_block_half<kRows>(Blocks(), weights, half, tile + p * kPlaneBytes + block % 2 * kBlockInputs,
                                   row_bytes, sums[p]);
      const ColumnGrids grids = column_grids(Blocks(), weights, half);
      for (int r = 0; r < kRows; ++r) {
        const Lanes first = load_int32(sums[0][r]);
        const Lanes dots = kPlanes == 2 ? fma(first, splat(256.f), load_int32(sums[kPlanes - 1][r])) : first;
        const BlockUnits &units = units_of(tile + r * row_bytes, kPlanes);
        total[r][half] = add_block(total[r][half], dots, grids, units, block);
      }
    }
    if (block % 2) tile += a.tile_bytes;
  }
  for (int half = 0; half < 2; ++half) {
    const Lanes scale = load(&linear.scales[pair * kColumns + half * 16]);
    for (int r = 0; r < kRows; ++r) store(out + r * kColumns + half * 16, total[r][half] * scale);
  }
}
