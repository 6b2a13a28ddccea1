// Weights in blocks with AVX2.
#pragma once
#include "kernels/formats/block_rows.h"

static inline __m256i splat_word(const void *at) {
  int32_t word;
  std::memcpy(&word, at, 4);
  return _mm256_set1_epi32(word);
}
static inline __m256i load_line(const char *at) { return _mm256_load_si256(reinterpret_cast<const __m256i *>(at)); }

// Of every four inputs the first and the third, or the second and the fourth.
enum Parity { kEven, kOdd };

// sums[r][i] += the products of four inputs: `weights(parity, i)` says those of eight columns. Even and odd inputs come
// one after the other, since together they would not fit into registers.
template <int kRows, int kSums, class Weights>
static inline __attribute__((always_inline)) void add_words(__m256i (&sums)[kRows][kSums], const char *words,
                                                            size_t row_bytes, Weights &&weights) {
  const auto add = [&](auto parity) __attribute__((always_inline)) {
    __m256i of[kSums];
#pragma GCC unroll 4
    for (int i = 0; i < kSums; ++i) of[i] = weights(parity, i);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m256i x = splat_word(words + r * row_bytes + 4 * parity.value);
#pragma GCC unroll 4
      for (int i = 0; i < kSums; ++i)
        sums[r][i] = _mm256_add_epi32(sums[r][i], _mm256_madd_epi16(of[i], x)), hold(sums[r][i]);
    }
  };
  add(std::integral_constant<int, kEven>());
  add(std::integral_constant<int, kOdd>());
}

// The levels of eight columns and two inputs: of half `i / 2` of the columns.
template <class P>
static inline __attribute__((always_inline)) __m256i levels_of(FourBits of, const char *weights, int step, P parity,
                                                               int i) {
  const char *line = weights + step * of.kStepBytes + i % 2 * 32;
  hold(line);
  const __m256i both = load_line(line);
  constexpr bool odd = parity.value == kOdd;
  if (i >= 2 && odd) return _mm256_srli_epi16(both, 12);
  return _mm256_and_si256(_mm256_set1_epi16(15), i >= 2 ? _mm256_srli_epi16(both, 4)
                                                 : odd  ? _mm256_srli_epi16(both, 8)
                                                        : both);
}
template <class P>
static inline __attribute__((always_inline)) __m256i levels_of(EightBits of, const char *weights, int step, P parity,
                                                               int i) {
  const char *line = weights + step * of.kStepBytes + i * 32;
  hold(line);
  const __m256i levels = load_line(line);
  return parity.value == kOdd ? _mm256_srli_epi16(levels, 8) : _mm256_and_si256(levels, _mm256_set1_epi16(255));
}

// dots[r][h] = the levels of sixteen columns of a block times row r's inputs, of `kHalves` times sixteen from `half`
// on, of rows in numbers of 16 bits.
template <class Blocks, int kRows, int kHalves>
static inline __attribute__((always_inline)) void multiply_words(const char *words, size_t row_bytes,
                                                                 const char *weights, int half,
                                                                 Lanes (&dots)[kRows][kHalves]) {
  __m256i sums[kRows][2 * kHalves];  // unrolled everywhere, or they would live in memory
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int i = 0; i < 2 * kHalves; ++i) sums[r][i] = _mm256_setzero_si256();
#pragma GCC unroll 1
  for (int step = 0; step < kBlockInputs / 4; ++step)
    add_words(sums, words + step * 8, row_bytes, [&](auto parity, int i) __attribute__((always_inline)) {
      return levels_of(Blocks(), weights, step, parity, 2 * half + i);
    });
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int h = 0; h < kHalves; ++h)
      dots[r][h] = {_mm256_cvtepi32_ps(sums[r][2 * h]), _mm256_cvtepi32_ps(sums[r][2 * h + 1])};
}

// A block's 32 inputs of some rows, and their products.
template <class Blocks, int kRows, int kPlanes>
struct BlockInputs {
  BlockInputs(const char *tile, int row_bytes, int block)
      : words(tile + block % 2 * kBlockInputs * 2), row_bytes(row_bytes) {}

  template <int kHalves>
  void multiply(const char *weights, int half, Lanes (&dots)[kRows][kHalves]) const {
    multiply_words<Blocks>(words, row_bytes, weights, half, dots);
  }

  const char *words;
  int row_bytes;
};

// Pairs of whole unsigned bytes would not fit 16 bits.
template <int kRows>
struct BlockInputs<EightBits, kRows, 1> {
  BlockInputs(const char *tile, int row_bytes, int block) {
    const __m256i order =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
    const char *bytes = tile + block % 2 * kBlockInputs;
    for (int r = 0; r < kRows; ++r, bytes += row_bytes)
#pragma GCC unroll 2
      for (int i = 0; i < kBlockInputs; i += 16) {
        const __m128i narrow = _mm_load_si128(reinterpret_cast<const __m128i *>(bytes + i));
        _mm256_store_si256(reinterpret_cast<__m256i *>(words[r] + i),
                           _mm256_shuffle_epi8(_mm256_cvtepi8_epi16(narrow), order));
      }
  }

  template <int kHalves>
  void multiply(const char *weights, int half, Lanes (&dots)[kRows][kHalves]) const {
    multiply_words<EightBits>(reinterpret_cast<const char *>(words), sizeof words[0], weights, half, dots);
  }

  alignas(32) int16_t words[kRows][kBlockInputs];
};

// Half bytes and signed bytes are multiplied in pairs, whose 16-bit sums hold over a block (8 pairs of at most 2 * 15 *
// 128).
template <int kRows>
struct BlockInputs<FourBits, kRows, 1> {
  BlockInputs(const char *tile, int row_bytes, int block)
      : bytes(tile + block % 2 * kBlockInputs), row_bytes(row_bytes) {}

  template <int kHalves>
  void multiply(const char *weights, int half, Lanes (&dots)[kRows][kHalves]) const {
    const __m256i low_half = _mm256_set1_epi8(15);
    __m256i sums[kRows][2 * kHalves];  // unrolled everywhere, or they would live in memory
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int i = 0; i < 2 * kHalves; ++i) sums[r][i] = _mm256_setzero_si256();
#pragma GCC unroll 1
    for (int step = 0; step < kBlockInputs / 4; ++step) {
      __m256i levels[2 * kHalves];
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        const __m256i both = load_line(weights + step * FourBits::kStepBytes + i * 32);
        const __m256i upper = _mm256_srli_epi16(both, 4);
        levels[i] = _mm256_and_si256(kHalves == 2 || half == 0 ? both : upper, low_half);
        if (kHalves == 2) levels[2 * kHalves - 2 + i] = _mm256_and_si256(upper, low_half);
      }
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const __m256i x = splat_word(bytes + r * row_bytes + step * 4);
#pragma GCC unroll 4
        for (int i = 0; i < 2 * kHalves; ++i)
          sums[r][i] = _mm256_add_epi16(sums[r][i], _mm256_maddubs_epi16(levels[i], x)), hold(sums[r][i]);
      }
    }
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
      for (int h = 0; h < kHalves; ++h)
        dots[r][h] = {_mm256_cvtepi32_ps(_mm256_madd_epi16(sums[r][2 * h], ones)),
                      _mm256_cvtepi32_ps(_mm256_madd_epi16(sums[r][2 * h + 1], ones))};
  }

  const char *bytes;
  int row_bytes;
};

template <class Blocks, int kRows, int kPlanes>
static __attribute__((noinline)) void multiply_block_rows(const PackedLinear &linear, int pair, const char *weights,
                                                          const Activations &a, int row, float *out,
                                                          Prefetch prefetch) {
  constexpr int row_bytes = kPlanes * kPlaneBytes + kBlockUnitBytes;
  // One row leaves registers for both halves, so that its inputs are fetched once.
  constexpr int kHalves = kRows <= 1 ? 2 : 1;
  const char *tile = a.row(row);
  Lanes total[kRows][2];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) total[r][0] = total[r][1] = splat(0.f);
  for (int block = 0; block < linear.padded_inputs / kBlockInputs; ++block, weights += Blocks::kBytes) {
    for (int line = 0; line < Blocks::kBytes; line += kLine) prefetch.ask(weights + line);
    const BlockInputs<Blocks, kRows, kPlanes> inputs(tile, row_bytes, block);
#pragma GCC unroll 2
    for (int half = 0; half < 2; half += kHalves) {
      Lanes dots[kRows][kHalves];
      inputs.multiply(weights, half, dots);
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
