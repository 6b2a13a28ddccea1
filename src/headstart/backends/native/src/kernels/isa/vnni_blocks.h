// Weights in blocks with the 8-bit dot product (VNNI): levels are its unsigned bytes, rows its signed ones.
#pragma once
#include "kernels/formats/block_rows.h"
#include "kernels/isa/vnni.h"

// Of 32 columns, for four inputs.
struct StepLevels {
  Bytes left, right;
};
static inline StepLevels step_levels(FourBits, const char *at) {
  const Bytes both = load_bytes(at);
  return {lower_halves(both), upper_halves(both)};
}
static inline StepLevels step_levels(EightBits, const char *at) { return {load_bytes(at), load_bytes(at + 64)}; }

template <class Blocks, int kRows, int kPlanes>
static inline void multiply_block_rows(const PackedLinear &linear, int pair, const char *weights, const Activations &a,
                                       int row, float *out, Prefetch prefetch) {
  constexpr int row_bytes = kPlanes * kPlaneBytes + kBlockUnitBytes;
  Lanes total[kRows][2];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) total[r][0] = total[r][1] = splat(0.f);
  const char *tile = a.row(row);
  for (int block = 0; block < linear.padded_inputs / kBlockInputs; ++block, weights += Blocks::kBytes) {
    Sums sum[kRows][kPlanes][2];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
      for (int p = 0; p < kPlanes; ++p) sum[r][p][0] = sum[r][p][1] = Sums{};
    const char *bytes = tile + block % 2 * kBlockInputs;
#pragma GCC unroll 2
    for (int step = 0; step < kBlockInputs / 4; ++step) {
      const char *const at = weights + step * Blocks::kStepBytes;
      if (step * Blocks::kStepBytes % kLine == 0) prefetch.ask(at);
      const StepLevels levels = step_levels(Blocks(), at);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
        for (int p = 0; p < kPlanes; ++p) {
          int32_t four;
          std::memcpy(&four, bytes + r * row_bytes + p * kPlaneBytes + step * 4, 4);
          const Bytes x = splat_four(four);
          sum[r][p][0] = dot(sum[r][p][0], levels.left, x);
          sum[r][p][1] = dot(sum[r][p][1], levels.right, x);
        }
    }
    prefetch.ask(weights + Blocks::kUnits);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const ColumnGrids grids = column_grids(Blocks(), weights, half);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        // 256 * high + low stays below 2^24 with levels of 4 bits, below 2^28 with those of 8.
        const Sums dots = kPlanes == 2 ? (sum[r][0][half] << 8) + sum[r][kPlanes - 1][half] : sum[r][0][half];
        const BlockUnits &units = units_of(tile + r * row_bytes, kPlanes);
        total[r][half] = add_block(total[r][half], to_floats(dots), grids, units, block);
      }
    }
    if (block % 2) tile += a.tile_bytes;
  }
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const Lanes scale = load(&linear.scales[pair * kColumns + half * 16]);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) store(out + r * kColumns + half * 16, total[r][half] * scale);
  }
}
