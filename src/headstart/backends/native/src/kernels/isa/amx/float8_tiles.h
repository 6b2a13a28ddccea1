// FP8 weights through the matrix unit: every number of FP8 is one of bf16, and is widened to it once for all rows. All
// rows go through tiles, whose sums of floats nothing else has to the bit.
#pragma once
#include "kernels/isa/amx/bf16_tiles.h"
#include "kernels/products/float8_linear.h"

constexpr int kWidenedInputs = 256;  // of a pair at a time: 16 KB in L1

// Up to so many inputs of a pair, as pair tiles of bf16.
static inline void widen_float8(const char *lines, int count, Prefetch &prefetch, Bf16 *to) {
  for (int k = 0; k < count; k += 4, lines += kPairLine, to += 4 * kColumns) {
    prefetch.ask(lines);
    for (int half = 0; half < 2; ++half) {
      const Shorts four = load_shorts(lines + half * kHalfLine);
      store_shorts(to + half * 32, bf16_of_float8(four << 8));
      store_shorts(to + 2 * kColumns + half * 32, bf16_of_float8(four));
    }
  }
}

// to [rows][32] = (to, or nothing) + sums times their units.
static inline void add_in_units(const Float8Pair &packed, const float *units, int run, int rows, const float *sums,
                                bool adds, float *to) {
  for (int half = 0; half < 2; ++half) {
    const Lanes unit = packed.in_blocks ? splat(units[2 * run + half]) : load(units + 16 * half);
    for (int r = 0; r < rows; ++r) {
      const int at = r * kColumns + half * 16;
      store(to + at, fma(load(sums + at), unit, adds ? load(to + at) : splat(0.f)));
    }
  }
}

static void multiply_float8_tiles(const PackedLinear &linear, int pair, const char *weights, const Activations &a,
                                  int row, int rows, ReadAhead *ahead, float *out) {
  const Float8Pair packed = float8_pair(linear.kinds[pair], linear.padded_inputs);
  const auto *const units = reinterpret_cast<const float *>(weights);
  const int steps = linear.padded_inputs / 4, each = std::min(packed.run(), kWidenedInputs);
  Prefetch prefetch = ahead ? ahead->next_block(weights, linear.bytes_of(pair), steps, 0, 1) : Prefetch::nearby();
  const auto *const x = reinterpret_cast<const Bf16 *>(a.row(row));
  const size_t stride = a.row_bytes / sizeof(Bf16);
  const char *const lines = weights + packed.header();
  alignas(64) Bf16 widened[kWidenedInputs * kColumns];
  alignas(64) float sums[16 * kColumns];
  if (packed.in_blocks) std::fill_n(out, rows * kColumns, 0.f);
  for (int first = 0; first < packed.inputs; first += each) {
    const int count = std::min(each, packed.inputs - first);
    widen_float8(lines + static_cast<size_t>(first) * kColumns, count, prefetch, widened);
    for (int from = 0; from < rows; from += 16) {
      float *const to = out + from * kColumns;
      multiply_tile_rows<1>(x + from * stride + first, stride, Stream<Bf16>{widened}, count / kTileInputs,
                            packed.in_blocks ? sums : to, kColumns, !packed.in_blocks && first > 0);
      if (packed.in_blocks) add_in_units(packed, units, first / each, std::min(16, rows - from), sums, true, to);
    }
  }
  if (!packed.in_blocks) add_in_units(packed, units, 0, rows, out, false, out);
}
