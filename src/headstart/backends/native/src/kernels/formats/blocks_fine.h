// Weights in blocks whose 16 inputs have a grid of their own, weight = unit * level + offset, level 0 to 255: whatever
// GGUF keeps in blocks of 16 or 32, but in ten bits a weight. Rows are those of other blocks in 16 bits, with a sum for
// every 16 inputs.
#pragma once
#include "kernels/formats/block_rows.h"
#include "kernels/vectors/dot_bytes.h"

// For every four inputs of 32 columns 128 bytes, [column][input]; then units [16 inputs][column], and offsets. Where
// dot products are of signed bytes, levels are stored 128 less.
struct FineBits {
  static constexpr int kZero = kSignedBytes ? 128 : 0, kInputs = 16, kStepBytes = 128,
                       kUnits = kBlockInputs / 4 * kStepBytes;
  static constexpr int kUnitsBytes = kColumns * 2, kOffsets = kUnits + 2 * kUnitsBytes;
  static_assert(kFineBlockBytes == kOffsets + 2 * kUnitsBytes, "room in `linear_layout`");
};

// Sixteen inputs of a column, `known`: the grid that they stand on. What is lost, squared.
static inline float pack_fine_grid(char *block, int half, int column, const float *w, StoredGrid known) {
  float unit = rounded_to_half(known.unit), offset = rounded_to_half(known.offset);
  if (known.unit == 0.f || !(std::fabs(unit) < INFINITY && std::fabs(offset) < INFINITY)) {
    const auto ends = std::minmax_element(w, w + FineBits::kInputs);
    known = {(*ends.second - *ends.first) / 255.f, *ends.first};
    unit = rounded_to_half(known.unit), offset = rounded_to_half(known.offset);
  }
  const Lanes all = load(w), place = (all - splat(known.offset)) / splat(known.unit);
  const Lanes level = known.unit != 0.f ? min(max(round(place), splat(0.f)), splat(255.f)) : splat(0.f);
  const Lanes off = fma(level, splat(unit), splat(offset)) - all;
  uint8_t levels[FineBits::kInputs];
  store_one_plane(levels, level, -FineBits::kZero);
  for (int k = 0; k < FineBits::kInputs; k += 4)
    std::memcpy(block + (half * 4 + k / 4) * FineBits::kStepBytes + column * 4, levels + k, 4);
  store_half(block + FineBits::kUnits + half * FineBits::kUnitsBytes + column * 2, unit);
  store_half(block + FineBits::kOffsets + half * FineBits::kUnitsBytes + column * 2, offset);
  return reduce_add(off * off);
}

// As `pack_blocks`.
static inline float pack_fine(char *pair_at, int column, float *w, int inputs, int padded_inputs,
                              const StoredGrid *grids, PackingLoss &loss) {
  PackingLoss own;
  const float scale = prepare_column(w, inputs, padded_inputs, own);
  for (int first = 0; first < padded_inputs; first += kGridInputs) {
    char *const block = pair_at + first / kBlockInputs * kFineBlockBytes;
    const StoredGrid known = grids && first < inputs ? grids[first / kGridInputs] : StoredGrid{};
    const int half = first % kBlockInputs / kGridInputs;
    const float lost = pack_fine_grid(block, half, column, w + first, {known.unit / scale, known.offset / scale});
    if (first < inputs) own.lost += lost;
  }
  loss.add(own, scale);
  return scale;
}

// Behind the planes of a row in a tile of 64 inputs.
struct FineUnits {
  float unit[2], sum[4], unused[2];
};
static_assert(sizeof(FineUnits) == kFineUnitBytes, "room in `packed_rows`");

static void store_row_fine(const Activations &to, int row, const float *x, int padded_inputs) {
  constexpr float limit = 32512.f;
  char *tile = to.row(row);
  for (int first = 0; first < padded_inputs; first += kPlaneBytes, tile += to.tile_bytes) {
    auto *planes = reinterpret_cast<uint8_t *>(tile);
    FineUnits units{};
    for (int block = 0; block < 2; ++block) {
      const Lanes left = load(x + first + block * kBlockInputs), right = load(x + first + block * kBlockInputs + 16);
      const float top = std::fmax(reduce_max(max(abs(left), abs(right))), 1e-20f);
      const Lanes factor = splat(limit / top);
      const Lanes rounded[2] = {round(left * factor), round(right * factor)};
      units.unit[block] = top / limit;
      for (int half = 0; half < 2; ++half) {
        uint8_t *const at = planes + block * kBlockInputs + half * 16;
        store_two_planes(at, at + kPlaneBytes, rounded[half], 0);
        units.sum[block * 2 + half] = units.unit[block] * reduce_add(rounded[half]);
      }
    }
    std::memcpy(tile + 2 * kPlaneBytes, &units, sizeof units);
  }
}

// The offset of 16 columns, as it goes with the levels that are stored.
static inline Lanes fine_offset(const char *at, Lanes unit) {
  const Lanes offset = load_half(at);
  return FineBits::kZero ? fma(unit, splat(static_cast<float>(FineBits::kZero)), offset) : offset;
}

#ifdef HEADSTART_DOT_BYTES

constexpr int kFineRows = kBlockRows[1];

template <int kRows>
static inline void multiply_fine_rows(const PackedLinear &linear, int pair, const char *weights, const Activations &a,
                                      int row, float *out, Prefetch prefetch) {
  constexpr int row_bytes = 2 * kPlaneBytes + kFineUnitBytes;
  Lanes total[kRows][2];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) total[r][0] = total[r][1] = splat(0.f);
  const char *tile = a.row(row);
  for (int block = 0; block < linear.padded_inputs / kBlockInputs; ++block, weights += kFineBlockBytes) {
    for (int part = 0; part < 2; ++part) {
      Sums sum[kRows][2][2];
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
        for (int p = 0; p < 2; ++p) sum[r][p][0] = sum[r][p][1] = Sums{};
      const char *bytes = tile + block % 2 * kBlockInputs + part * FineBits::kInputs;
#pragma GCC unroll 2
      for (int step = 0; step < FineBits::kInputs / 4; ++step) {
        const char *const at = weights + (part * 4 + step) * FineBits::kStepBytes;
        prefetch.ask(at);
        const Bytes left = load_bytes(at), right = load_bytes(at + 64);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
          for (int p = 0; p < 2; ++p) {
            int32_t four;
            std::memcpy(&four, bytes + r * row_bytes + p * kPlaneBytes + step * 4, 4);
            const Bytes x = splat_four(four);
            sum[r][p][0] = dot(sum[r][p][0], left, x);
            sum[r][p][1] = dot(sum[r][p][1], right, x);
          }
      }
      prefetch.ask(weights + FineBits::kUnits + part * kLine);
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const int place = part * FineBits::kUnitsBytes + half * 32;
        const Lanes unit = load_half(weights + FineBits::kUnits + place);
        const Lanes offset = fine_offset(weights + FineBits::kOffsets + place, unit);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          const Sums dots = (sum[r][0][half] << 8) + sum[r][1][half];
          const auto &of_row = *reinterpret_cast<const FineUnits *>(tile + r * row_bytes + 2 * kPlaneBytes);
          const Lanes scaled = to_floats(dots) * splat(of_row.unit[block % 2]);
          total[r][half] = fma(offset, splat(of_row.sum[block % 2 * 2 + part]), fma(scaled, unit, total[r][half]));
        }
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

#else

constexpr int kFineRows = 1;

// The same sums where there is no dot product of bytes: nobody chooses these blocks there, but they are understood.
template <int kRows>
static inline void multiply_fine_rows(const PackedLinear &linear, int pair, const char *weights, const Activations &a,
                                      int row, float *out, Prefetch) {
  static_assert(kRows == 1, "one row at a time");
  const char *tile = a.row(row);
  Lanes total[2] = {splat(0.f), splat(0.f)};
  for (int block = 0; block < linear.padded_inputs / kBlockInputs; ++block, weights += kFineBlockBytes) {
    const auto &of_row = *reinterpret_cast<const FineUnits *>(tile + 2 * kPlaneBytes);
    for (int part = 0; part < 2; ++part) {
      const auto *high = reinterpret_cast<const int8_t *>(tile) + block % 2 * kBlockInputs + part * FineBits::kInputs;
      int32_t dots[kColumns] = {};
      for (int k = 0; k < FineBits::kInputs; ++k) {
        const int x = 256 * high[k] + high[k + kPlaneBytes];
        const auto *levels =
            reinterpret_cast<const uint8_t *>(weights) + (part * 4 + k / 4) * FineBits::kStepBytes + k % 4;
        for (int column = 0; column < kColumns; ++column) dots[column] += levels[column * 4] * x;
      }
      for (int half = 0; half < 2; ++half) {
        const int place = part * FineBits::kUnitsBytes + half * 32;
        const Lanes unit = load_half(weights + FineBits::kUnits + place);
        const Lanes offset = fine_offset(weights + FineBits::kOffsets + place, unit);
        const Lanes scaled = load_int32(dots + half * 16) * splat(of_row.unit[block % 2]);
        total[half] = fma(offset, splat(of_row.sum[block % 2 * 2 + part]), fma(scaled, unit, total[half]));
      }
    }
    if (block % 2) tile += a.tile_bytes;
  }
  for (int half = 0; half < 2; ++half)
    store(out + half * 16, total[half] * load(&linear.scales[pair * kColumns + half * 16]));
}

#endif

static void multiply_linear_fine(const PackedLinear &linear, int pair, const char *weights, const Activations &a,
                                 int row, int rows, ReadAhead *ahead, float *out) {
  in_groups<kFineRows>(linear, weights, rows, ahead, [&](auto known, int first, Prefetch ask) {
    multiply_fine_rows<known.value>(linear, pair, weights, a, row + first, out + first * kColumns, ask);
  });
}
