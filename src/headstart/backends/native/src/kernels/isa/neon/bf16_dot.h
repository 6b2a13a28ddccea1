// bf16 rows against bf16 pair tiles with NEON's dot product of bf16 pairs: each instruction multiplies twice as many
// numbers as one of float does, and no weight has to be widened.
//
// It adds the sum of a pair's two products to a float sum, in a rounding of its own (to odd), subnormals taken for
// zero: one chain of operations per element, whatever the number of rows.
#pragma once
#include <arm_neon.h>

#include "kernels/formats/bf16_rows.h"

// C[kRows][32] (+)= A . pair tiles.
template <int kRows, class Tiles>
static inline void multiply_dot_rows(const Bf16 *a, size_t a_stride, Tiles tiles, int count, float *c, size_t c_stride,
                                     bool accumulate, Prefetch prefetch) {
  float32x4_t sum[kRows][8];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) sum[r][i] = accumulate ? vld1q_f32(c + r * c_stride + 4 * i) : vdupq_n_f32(0.f);
  for (int tile = 0; tile < count; ++tile, a += kTileInputs) {
    const Bf16 *b = tiles(tile);
    for (int step = 0; step < kTileInputs; step += 2) {
      prefetch.ask(b + step * kColumns);
      bfloat16x8_t two[kRows];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        uint32_t bits;
        std::memcpy(&bits, a + r * a_stride + step, sizeof bits);
        two[r] = vreinterpretq_bf16_u32(vdupq_n_u32(bits));
      }
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        const auto *at = reinterpret_cast<const uint16_t *>(b + step * kColumns + 8 * i);
        const bfloat16x8_t weights = vreinterpretq_bf16_u16(vld1q_u16(at));
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) sum[r][i] = vbfdotq_f32(sum[r][i], two[r], weights);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) vst1q_f32(c + r * c_stride + 4 * i, sum[r][i]);
}

static void multiply_linear_dot(const PackedLinear &linear, int, const char *weights, const Activations &a, int row,
                                int rows, ReadAhead *ahead, float *out) {
  const size_t stride = a.row_bytes / sizeof(Bf16);
  const Stream<Bf16> tiles{reinterpret_cast<const Bf16 *>(weights)};
  in_groups<kFmaRows>(linear, weights, rows, ahead, [&](auto known, int first, Prefetch ask) {
    const Bf16 *x = reinterpret_cast<const Bf16 *>(a.row(row + first));
    float *const to = out + first * kColumns;
    multiply_dot_rows<known.value>(x, stride, tiles, linear.padded_inputs / kTileInputs, to, kColumns, false, ask);
  });
}
