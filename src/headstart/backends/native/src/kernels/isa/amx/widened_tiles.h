// Weights that bf16 has to the bit through the matrix unit, of FP8 and NVFP4: they are widened to it once for all
// rows. All rows go through tiles, whose sums of floats nothing else has to the bit.
#pragma once
#include "kernels/formats/stored/nonlinear.h"
#include "kernels/isa/amx/bf16_tiles.h"
#include "kernels/products/float8_linear.h"

constexpr int kWidenedInputs = 256;  // of a pair at a time: 16 KB in L1

struct WidenedFloat8 {
  WidenedFloat8(const PackedLinear &linear, int pair, const char *weights)
      : packed(float8_pair(linear.kinds[pair], linear.padded_inputs)),
        has_runs(packed.in_blocks),
        run(std::min(packed.run(), kWidenedInputs)),
        units(reinterpret_cast<const float *>(weights)),
        lines(weights + packed.header()) {}

  // `count` inputs of the pair from `first` on, as pair tiles of bf16.
  void widen(int first, int count, Prefetch &prefetch, Bf16 *to) const {
    const char *line = lines + static_cast<size_t>(first) * kColumns;
    for (int k = 0; k < count; k += 4, line += kPairLine, to += 4 * kColumns) {
      prefetch.ask(line);
      for (int half = 0; half < 2; ++half) {
        const Shorts four = load_shorts(line + half * kHalfLine);
        store_shorts(to + half * 32, bf16_of_float8(four << 8));
        store_shorts(to + 2 * kColumns + half * 32, bf16_of_float8(four));
      }
    }
  }
  Lanes unit(int first, int half) const {
    return has_runs ? splat(units[2 * (first / run) + half]) : load(units + 16 * half);
  }

  const Float8Pair packed;
  const bool has_runs;  // of inputs with units of their own
  const int run;
  const float *const units;
  const char *const lines;
};

// A level times its scale: six bits.
struct WidenedNVFP4 {
  static constexpr bool has_runs = false;
  static constexpr int run = StoredNVFP4::kInputs;

  WidenedNVFP4(const PackedLinear &, int, const char *weights) : blocks(weights) {}

  void widen(int first, int count, Prefetch &prefetch, Bf16 *to) const {
    const char *const block = blocks + static_cast<size_t>(first / run) * StoredNVFP4::kBytes;
    for (int group = 0; group < count / kGroupInputs; ++group, to += kGroupInputs * kColumns) {
      for (int i = 0; i < 2; ++i) prefetch.ask(block + StoredNVFP4::kHeader + group * kPairLine + i * kHalfLine);
      for (int half = 0; half < 2; ++half) {
        const int of_scale = group * kGroupInputs / StoredNVFP4::kSumInputs;
        const Lanes scale = StoredNVFP4::small_scales(block, half, of_scale) * splat(0x1p8f);
        Shorts words[kGroupWords];
        StoredNVFP4::levels(block, half, group, words);
        for (int i = 0; i < kGroupWords; ++i) store_shorts(to + 2 * i * kColumns + half * 32, scaled(words[i], scale));
      }
    }
  }
  Lanes unit(int, int half) const { return StoredNVFP4::factors(blocks, half) * splat(0.5f); }

  static Shorts scaled(Shorts levels, Lanes scale) {
    float even[16], odd[16];
    ShortSums numbers[2];
    for (int i = 0; i < kShortParts; ++i) {
      numbers[0].part[i] = (SumPart)((WordPart)levels.part[i] << 16) >> 16;
      numbers[1].part[i] = (SumPart)levels.part[i] >> 16;
    }
    store(even, to_floats(numbers[0]) * scale), store(odd, to_floats(numbers[1]) * scale);
    return by_parts([&](int i) {
      WordPart lower, upper;
      std::memcpy(&lower, even + i * (sizeof lower / 4), sizeof lower);
      std::memcpy(&upper, odd + i * (sizeof upper / 4), sizeof upper);
      return lower >> 16 | (upper & 0xffff0000u);
    });
  }

  const char *const blocks;
};

// to [rows][32] = (to, or nothing) + sums times the units of the inputs from `first` on.
template <class Weights>
static inline void add_in_units(const Weights &widened, int first, int rows, const float *sums, bool adds, float *to) {
  for (int half = 0; half < 2; ++half) {
    const Lanes unit = widened.unit(first, half);
    for (int r = 0; r < rows; ++r) {
      const int at = r * kColumns + half * 16;
      store(to + at, fma(load(sums + at), unit, adds ? load(to + at) : splat(0.f)));
    }
  }
}

template <class Weights>
static void multiply_widened(const PackedLinear &linear, int pair, const char *weights, const Activations &a, int row,
                             int rows, ReadAhead *ahead, float *out) {
  const Weights source(linear, pair, weights);
  const int inputs = linear.padded_inputs, steps = inputs / 4;
  Prefetch prefetch = ahead ? ahead->next_block(weights, linear.bytes_of(pair), steps, 0, 1) : Prefetch::nearby();
  const auto *const x = reinterpret_cast<const Bf16 *>(a.row(row));
  const size_t stride = a.row_bytes / sizeof(Bf16);
  alignas(64) Bf16 widened[kWidenedInputs * kColumns];
  alignas(64) float sums[16 * kColumns];
  if (source.has_runs) std::fill_n(out, rows * kColumns, 0.f);
  for (int first = 0; first < inputs; first += source.run) {
    const int count = std::min(source.run, inputs - first);
    source.widen(first, count, prefetch, widened);
    for (int from = 0; from < rows; from += 16) {
      float *const to = out + from * kColumns;
      multiply_tile_rows<1>(x + from * stride + first, stride, Stream<Bf16>{widened}, count / kTileInputs,
                            source.has_runs ? sums : to, kColumns, !source.has_runs && first > 0);
      if (source.has_runs) add_in_units(source, first, std::min(16, rows - from), sums, true, to);
    }
  }
  if (!source.has_runs) add_in_units(source, 0, rows, out, false, out);
}

static void multiply_widened_tiles(const PackedLinear &linear, int pair, const char *weights, const Activations &a,
                                   int row, int rows, ReadAhead *ahead, float *out) {
  if (is_float8(linear.kinds[pair]))
    multiply_widened<WidenedFloat8>(linear, pair, weights, a, row, rows, ahead, out);
  else
    multiply_widened<WidenedNVFP4>(linear, pair, weights, a, row, rows, ahead, out);
}
