// 8-bit weights with the 8-bit dot product (VNNI).
//
// Where it multiplies unsigned by signed bytes, those of the rows carry an offset, taken back by the column sums. Sums
// of integers are exact, so whatever else multiplies the same bytes has the same results.
#pragma once
#include "kernels/products/linear.h"
#include "kernels/vectors/dot_bytes.h"

constexpr int kRowOffset = kSignedBytes ? 0 : 128;

// Four bytes of a row, as they are stored, xor `kFlip` carry the offset.
template <int kRows, int kPlanes, int kFlip>
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
      const Bytes left = load_bytes(weights + step * kLine), right = load_bytes(weights + step * kLine + 64);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
        for (int p = 0; p < kPlanes; ++p) {
          int32_t four;
          std::memcpy(&four, bytes + r * row_bytes + p * kPlaneBytes + step * 4, 4);
          const Bytes x = splat_four(four ^ kFlip);
          sum[r][p][0] = dot(sum[r][p][0], x, left);
          sum[r][p][1] = dot(sum[r][p][1], x, right);
        }
    }
  }
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const int column = pair * kColumns + half * 16;
    const Lanes scale = load(&linear.scales[column]);
    const Sums offset = kRowOffset ? load_sums(&linear.column_sums[column]) << 7 : Sums{};
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Lanes high = to_floats(sum[r][0][half] - offset), low = to_floats(sum[r][kPlanes - 1][half] - offset);
      const float unit = a.scales[row + r];
      store(out + r * kColumns + half * 16,
            kPlanes == 2 ? dequantise(high, low, scale, unit) : high * (scale * splat(unit)));
    }
  }
}

template <int kPlanes, int kFlip>
static void multiply_linear_vnni(const PackedLinear &linear, int pair, const char *weights, const Activations &a,
                                 int row, int rows, ReadAhead *ahead, float *out) {
  in_groups<kHeldSums / kPlanes>(linear, weights, rows, ahead, [&](auto known, int first, Prefetch ask) {
    float *const to = out + first * kColumns;
    multiply_vnni_rows<known.value, kPlanes, kFlip>(linear, pair, weights, a, row + first, to, ask);
  });
}
