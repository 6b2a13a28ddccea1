// FP8 weights against rows as those of bf16 are: every number of FP8 is one of bf16, so that nothing of the weights is
// rounded. Sums are in floats, units come in afterwards, for all rows alike: a row has the same bits in any company.
#pragma once
#include "kernels/products/linear.h"

// Rows of bf16 or of floats, whatever bf16 weights are multiplied with here.
template <bool kHalves>
struct Float8Rows {
  static constexpr int kElement = kHalves ? sizeof(Bf16) : sizeof(float);

  Float8Rows(const Activations &a, int row)
      : first(a.row(row)), row_bytes(a.row_bytes), tile_bytes(kHalves && kTiledBf16 ? a.tile_bytes : 0) {}
  const char *tile(int k) const { return tile_bytes ? first + k / kTileInputs * tile_bytes : first + k * kElement; }
  size_t stride() const { return kHalves && kTiledBf16 ? kTileInputs * sizeof(Bf16) : row_bytes; }

  const char *first;
  const size_t row_bytes, tile_bytes;
};

// sum + a row's two inputs times their weights.
template <bool kHalves>
static inline Lanes add_two_products(Lanes sum, const Shorts &weights, const char *x) {
  float two[2];
  if constexpr (kHalves) {
    uint32_t both;
    std::memcpy(&both, x, 4);
    if constexpr (kDotsBf16) return dot_bf16(sum, weights.part, both);
    const uint32_t bits[2] = {both << 16, both & 0xffff0000u};
    std::memcpy(two, bits, sizeof two);
  } else {
    std::memcpy(two, x, sizeof two);
  }
  WordPart even[kShortParts], odd[kShortParts];
#pragma GCC unroll 4
  for (int i = 0; i < kShortParts; ++i)
    even[i] = (WordPart)weights.part[i] << 16, odd[i] = (WordPart)weights.part[i] & 0xffff0000u;
  return fma(splat(two[1]), lanes_of(odd), fma(splat(two[0]), lanes_of(even), sum));
}

// out[kRows][32] = rows times the pair's columns.
template <bool kHalves, int kRows>
static inline void multiply_float8_rows(Float8Pair pair, const char *weights, Float8Rows<kHalves> rows, float *out,
                                        Prefetch prefetch) {
  const auto *units = reinterpret_cast<const float *>(weights);
  const char *line = weights + pair.header();
  std::fill_n(out, kRows * kColumns, 0.f);
  for (int first = 0, run = 0; first < pair.inputs; first += pair.run(), ++run) {
    const int end = std::min(first + pair.run(), pair.inputs);
    Lanes sums[kRows][2];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = splat(0.f);
    for (int tile = first; tile < end; tile += kTileInputs) {
      const char *x = rows.tile(tile);
      for (int k = 0; k < kTileInputs; k += 4, line += kPairLine, x += 4 * rows.kElement) {
        prefetch.ask(line);
        const Shorts left = load_shorts(line), right = load_shorts(line + kHalfLine);
#pragma GCC unroll 2
        for (int two = 0; two < 2; ++two) {
          const Shorts of_left = bf16_of_float8(two ? left : left << 8);
          const Shorts of_right = bf16_of_float8(two ? right : right << 8);
#pragma GCC unroll 16
          for (int r = 0; r < kRows; ++r) {
            const char *const at = x + r * rows.stride() + 2 * two * rows.kElement;
            sums[r][0] = add_two_products<kHalves>(sums[r][0], of_left, at);
            sums[r][1] = add_two_products<kHalves>(sums[r][1], of_right, at);
          }
        }
      }
    }
    for (int half = 0; half < 2; ++half) {
      const Lanes unit = pair.in_blocks ? splat(units[2 * run + half]) : load(units + 16 * half);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        float *const to = out + r * kColumns + half * 16;
        store(to, fma(sums[r][half], unit, load(to)));
      }
    }
  }
}

template <bool kHalves>
static void multiply_linear_float8(const PackedLinear &linear, int pair, const char *weights, const Activations &a,
                                   int row, int rows, ReadAhead *ahead, float *out) {
  const Float8Pair packed = float8_pair(linear.kinds[pair], linear.padded_inputs);
  const size_t bytes = linear.bytes_of(pair);
  const int groups = ceil_div(rows, kFmaRows), steps = linear.padded_inputs / 4;
  for (int group = 0, first = 0; group < groups; ++group) {
    const int n = group_rows(rows, kFmaRows, group);
    const Prefetch ask = ahead ? ahead->next_block(weights, bytes, steps, group, groups) : Prefetch::nearby();
    with_row_count<kFmaRows>(n, [&](auto known) {
      multiply_float8_rows<kHalves, known.value>(packed, weights, {a, row + first}, out + first * kColumns, ask);
    });
    first += n;
  }
}

// Beside the kernel of bf16 weights, whose rows it reads.
static inline LinearKernel float8_kernel(const LinearKernel &of_bf16) {
  const bool halves = of_bf16.element == ElementKind::bf16;
  return {of_bf16.element, of_bf16.store_row, halves ? multiply_linear_float8<true> : multiply_linear_float8<false>};
}
