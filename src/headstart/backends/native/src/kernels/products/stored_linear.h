// Weights as a file keeps them, in its own blocks: their bits are moved, none is changed. Levels and the whole numbers
// that a superblock's units are multiples of come to whole numbers of 16 bits; rows are rounded to 14 bits, with a unit
// for every 256 inputs. Products of these are summed in integers, exactly, and then count what the superblock's unit
// says, in floats. So every instruction set has the same sums, and a row the same bits in any company.
#pragma once
#include "kernels/formats/stored/all.h"
#include "kernels/products/linear.h"

// The rows, in tiles of 256 inputs: numbers of 16 bits, behind them their unit, the sum of every 32 of them, and of the
// first half of these, whole numbers of 24 bits.
constexpr float kRowLimit = 8191.f;
struct StoredUnits {
  float unit, sum[8];
  uint8_t first[8][3], unused[4];

  void set_first(int i, float half) {
    const auto number = static_cast<int32_t>(half);
    std::memcpy(first[i], &number, 3);
  }
  float first_of(int i) const {
    uint32_t number;
    std::memcpy(&number, first[i], 4);  // and a byte behind
    return static_cast<float>(static_cast<int32_t>(number << 8) >> 8);
  }
  // Of the tile's 32 or 16 numbers from `at` on.
  template <int kInputs>
  float sum_of(int at) const {
    const int i = at / kBlockInputs;
    if (kInputs == kBlockInputs) return sum[i];
    return at % kBlockInputs ? sum[i] - first_of(i) : first_of(i);
  }
};
static_assert(kStoredTileInputs * 2 + sizeof(StoredUnits) + kBytePlanes * 2 * kStoredTileInputs == kStoredRowBytes,
              "room in `packed_rows`");

static inline const StoredUnits &stored_units(const char *row) {
  return *reinterpret_cast<const StoredUnits *>(row + kStoredTileInputs * 2);
}

static void store_row_stored(const Activations &to, int row, const float *x, int padded_inputs) {
  char *tile = to.row(row);
  for (int first = 0; first < padded_inputs; first += kStoredTileInputs, tile += to.tile_bytes) {
    const int count = std::min(kStoredTileInputs, padded_inputs - first);
    Lanes largest = splat(1e-20f);
    for (int k = 0; k < count; k += 16) largest = max(largest, abs(load(x + first + k)));
    const float top = reduce_max(largest);
    const Lanes factor = splat(kRowLimit / top);
    StoredUnits units{};
    units.unit = top / kRowLimit;
    for (int k = 0; k < count; k += kBlockInputs) {
      const Lanes left = round(load(x + first + k) * factor), right = round(load(x + first + k + 16) * factor);
      float rounded[kBlockInputs];
      int16_t numbers[kBlockInputs];
      store(rounded, left), store(rounded + 16, right);
      for (int i = 0; i < kBlockInputs; ++i) numbers[i] = static_cast<int16_t>(static_cast<int32_t>(rounded[i]));
      std::memcpy(tile + k * 2, numbers, sizeof numbers);
      units.sum[k / kBlockInputs] = reduce_add(left + right);
      units.set_first(k / kBlockInputs, reduce_add(left));
    }
    std::memcpy(tile + kStoredTileInputs * 2, &units, sizeof units);
  }
}

// Eight inputs of a block, from where they are kept, of `kHalves` halves of the columns from `half` on: x is the first
// row's. A row's numbers are fetched once for all of these.
template <class Blocks, int kRows, int kHalves, class Scales>
static HEADSTART_PREFETCHES void add_group(ShortSums (&sums)[kRows][kHalves], const char *block, int group, int half,
                                           const Scales (&scales)[kHalves], const char *x) {
  Shorts words[kHalves][kGroupWords];
#pragma GCC unroll 2
  for (int h = 0; h < kHalves; ++h) Blocks::levels(block, half + h, group, words[h]), apply(scales[h], words[h]);
#pragma GCC unroll 4
  for (int i = 0; i < kGroupWords; ++i) {
#pragma GCC unroll 2
    for (int h = 0; h < kHalves; ++h) hold(words[h][i]);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Shorts two = splat_two(x + r * kStoredRowBytes + 4 * i);
#pragma GCC unroll 2
      for (int h = 0; h < kHalves; ++h) sums[r][h] = dot(sums[r][h], words[h][i], two), hold(sums[r][h]);
    }
  }
}

// Whether the sums of a whole tile of rows are taken in integers.
template <class Blocks>
constexpr bool is_tile = Blocks::kSumInputs == kStoredTileInputs;

// Whether few rows' sums are multiplied with a scale, instead of all levels. All are whole numbers: the sums are the
// same. Where a level fills two registers, sums of 16 inputs are worth it, too.
template <class Blocks, int kRows>
constexpr bool scales_sums = std::is_same_v<decltype(Blocks::scales(nullptr, 0, 0)), Shorts> &&
                             (Blocks::kScaleInputs == kBlockInputs || kShortParts == 2) && kRows <= 8;

// sums += `some`, times their scale if levels were not.
template <class Blocks, int kRows, class Scales>
static HEADSTART_PREFETCHES void add_sums(ShortSums &sums, const ShortSums &some, const Scales &scale) {
  if constexpr (scales_sums<Blocks, kRows>)
    add_scaled(sums, some, scale);
  else
    sums = sums + some;
}

// Whether levels take a shift and a mask, or less. Where registers are few, rows come in two parts, and others are not
// made twice.
template <class Blocks>
constexpr bool only_shifts = kShortParts != 2;
template <>
constexpr bool only_shifts<StoredQ4_K> = true;
template <>
constexpr bool only_shifts<StoredQ8_0> = true;
template <class Block, bool kOffset, int kZero>
constexpr bool only_shifts<SmallBlocks<Block, 4, kOffset, kZero>> = true;

// Most rows whose weights go from the blocks straight into products. Where registers are few, they do not hold more
// than so many rows' sums between short runs, or beside what looks numbers up.
template <class Blocks>
constexpr int fused_rows = kShortParts != 2 || Blocks::kSumInputs > kBlockInputs
                               ? kFusedRows
                               : std::min(kFusedRows, Blocks::kSumInputs < kBlockInputs ? 1 : 3);
template <class Block, const Level &kLevels>
constexpr int fused_rows<StoredFourBitFloats<Block, kLevels>> = kShortParts != 2 ? kFusedRows : 2;

// out[rows of a tile][32] += sums of products that count in the rows' units.
template <int kRows>
static HEADSTART_PREFETCHES void finish_tile(const Lanes (&total)[kRows], int half, const char *tile, float *out) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    float *const to = out + r * kColumns + half * 16;
    store(to, fma(total[r], splat(stored_units(tile + r * kStoredRowBytes).unit), load(to)));
  }
}

// total += the products of one run of a block's inputs, which stands `place` inputs behind the begin of the rows' tile,
// with one half of the columns; out += them where they are all of the tile.
template <class Blocks, int kRows, int kHalves>
static HEADSTART_PREFETCHES void finish_sums(const ShortSums (&sums)[kRows][kHalves], int h, const char *block,
                                             int half, int run, const char *tile, int place, Lanes (&total)[kRows],
                                             float *out) {
  constexpr int kEach = offset_inputs<Blocks>, kParts = Blocks::kSumInputs / kEach;
  const Lanes unit = Blocks::unit(block, half, run);
  Lanes all[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    const Lanes products = to_floats(sums[r][h]);
    all[r] = is_tile<Blocks> ? products * unit : fma(products, unit, total[r]);
  }
  if constexpr (Blocks::kOffsets)
    for (int part = 0; part < kParts; ++part) {
      const Lanes offset = Blocks::offset(block, half, run * kParts + part);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const float sum = stored_units(tile + r * kStoredRowBytes).template sum_of<kEach>(place + part * kEach);
        all[r] = fma(offset, splat(sum), all[r]);
      }
    }
  if constexpr (is_tile<Blocks>) {
    finish_tile(all, half, tile, out);
  } else {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) total[r] = all[r];
  }
}
template <int kRows>
static HEADSTART_PREFETCHES void clear(Lanes (&total)[2][kRows]) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) total[0][r] = total[1][r] = splat(0.f);
}

// sums += the products of the groups that share scale `index`, with levels times `by`. `ask` goes before each.
template <class Blocks, int kRows, int kHalves, class Scales, class Ask>
static HEADSTART_PREFETCHES void add_groups(ShortSums (&sums)[kRows][kHalves], const char *block, int index, int half,
                                            const Scales (&by)[kHalves], const char *x, Ask &&ask) {
  constexpr int kGroups = Blocks::kScaleInputs / kGroupInputs;
  const auto add = [&](int group) __attribute__((always_inline)) {
    ask();
    add_group<Blocks>(sums, block, index * kGroups + group, half, by, x + 2 * kGroupInputs * group);
  };
  // Where groups differ in how levels are made, the compiler is to know which it is.
  if constexpr (kGroups == 2 && kShortParts == 2)
    add(0), add(1);
  else if constexpr (kGroups == 4 && !only_shifts<Blocks>)
    add(0), add(1), add(2), add(3);
  else
    for (int group = 0; group < kGroups; ++group) add(group);
}

// The same for `kCount` of the rows, from `kFrom` on.
template <class Blocks, int kFrom, int kCount, int kRows, int kHalves, class Scales, class Ask>
static HEADSTART_PREFETCHES void add_rows(ShortSums (&sums)[kRows][kHalves], const char *block, int index, int half,
                                          const Scales (&scales)[kHalves], const char *x, Ask &&ask) {
  ShortSums some[kCount][kHalves];
  x += kFrom * kStoredRowBytes;
  if constexpr (scales_sums<Blocks, kRows>) {
    const NoScales none[kHalves];
    add_groups<Blocks>(some, block, index, half, none, x, ask);
  } else {
    add_groups<Blocks>(some, block, index, half, scales, x, ask);
  }
#pragma GCC unroll 2
  for (int h = 0; h < kHalves; ++h)
#pragma GCC unroll 16
    for (int r = 0; r < kCount; ++r) add_sums<Blocks, kRows>(sums[kFrom + r][h], some[r][h], scales[h]);
}

// out[kRows][32] = rows from `row` on times the pair's columns: weights go from their blocks straight into products.
// Not inlined: its loop has the registers for itself. What takes levels apart is: as calls, these cost more than the
// products.
template <class Blocks, int kRows>
__attribute__((noinline, flatten)) static void multiply_stored_rows(const PackedLinear &linear, const char *block,
                                                                    const Activations &a, int row, float *out,
                                                                    Prefetch prefetch) {
  constexpr int kGroups = Blocks::kInputs / kGroupInputs, kLines = Blocks::kBytes / kCacheLine;
  constexpr int kGroupLines = kLines / kGroups;
  // Where registers are few, they hold the sums of one half after the other, and of so many rows at first.
  constexpr int kHalves = kShortParts == 1 || kRows == 1 ? 2 : 1;
  constexpr int kFirst = kShortParts == 2 && kRows > kFusedRows ? kRows / 2 : kRows;
  std::fill_n(out, kRows * kColumns, 0.f);
  const char *tile = a.row(row);
  for (int first = 0; first < linear.padded_inputs; first += kStoredTileInputs, tile += a.tile_bytes) {
    const int count = std::min(kStoredTileInputs, linear.padded_inputs - first);
    Lanes total[2][kRows];
    clear(total);
    for (int at = 0; at < count; at += Blocks::kInputs, block += Blocks::kBytes) {
      const char *line = block;
      prefetch.ask_lines<kLines - kGroups * kGroupLines>(line);
      line += (kLines - kGroups * kGroupLines) * kCacheLine;
      for (int run = 0; run < Blocks::kInputs / Blocks::kSumInputs; ++run)
#pragma GCC unroll 2
        for (int half = 0; half < 2; half += kHalves) {
          ShortSums sums[kRows][kHalves];
          const int place = at + run * Blocks::kSumInputs;
          const char *x = tile + 2 * place;
          for (int scale = 0; scale < Blocks::kSumInputs / Blocks::kScaleInputs; ++scale) {
            const int index = run * (Blocks::kSumInputs / Blocks::kScaleInputs) + scale;
            decltype(Blocks::scales(block, 0, 0)) scales[kHalves];
#pragma GCC unroll 2
            for (int h = 0; h < kHalves; ++h) scales[h] = Blocks::scales(block, half + h, index);
            const auto ask = [&]() __attribute__((always_inline)) {
              if (half == 0) prefetch.ask_lines<kGroupLines>(line), line += kGroupLines * kCacheLine;
            };
            if constexpr (kFirst == kRows && !scales_sums<Blocks, kRows>) {
              add_groups<Blocks>(sums, block, index, half, scales, x, ask);
            } else {
              add_rows<Blocks, 0, kFirst>(sums, block, index, half, scales, x, ask);
              if constexpr (kFirst < kRows)
                add_rows<Blocks, kFirst, kRows - kFirst>(sums, block, index, half, scales, x, [] {});
            }
            x += 2 * Blocks::kScaleInputs;
          }
#pragma GCC unroll 2
          for (int h = 0; h < kHalves; ++h)
            finish_sums<Blocks>(sums, h, block, half + h, run, tile, place, total[half + h], out);
        }
    }
    if constexpr (!is_tile<Blocks>)
      for (int half = 0; half < 2; ++half) finish_tile(total[half], half, tile, out);
  }
}

// What products of up to 256 inputs of a pair count, of whatever blocks: for every `run` inputs the units, and for
// every `each` the offsets, of the columns.
struct TileUnits {
  float units[kStoredTileInputs / 16][kColumns], offsets[kStoredTileInputs / 16][kColumns];
  int run, each;
  bool has_offsets;

  // `put(group, half, words)` gets the numbers of eight inputs of one half, from the tile's first group on.
  template <class Blocks, class Put>
  __attribute__((flatten)) void unpack(const char *block, int count, Put &&put) {
    constexpr int kScaleGroups = Blocks::kScaleInputs / kGroupInputs;
    constexpr int kEach = offset_inputs<Blocks>;
    run = Blocks::kSumInputs, each = kEach, has_offsets = Blocks::kOffsets;
    int of_tile = 0;
    for (int at = 0; at < count; at += Blocks::kInputs, block += Blocks::kBytes) {
      for (int half = 0; half < 2; ++half) {
        for (int i = 0; i < Blocks::kInputs / Blocks::kSumInputs; ++i)
          store(units[at / Blocks::kSumInputs + i] + half * 16, Blocks::unit(block, half, i));
        if constexpr (Blocks::kOffsets)
          for (int i = 0; i < Blocks::kInputs / kEach; ++i)
            store(offsets[at / kEach + i] + half * 16, Blocks::offset(block, half, i));
      }
      for (int index = 0; index < Blocks::kInputs / Blocks::kScaleInputs; ++index) {
        const decltype(Blocks::scales(block, 0, 0)) scales[2] = {Blocks::scales(block, 0, index),
                                                                 Blocks::scales(block, 1, index)};
        for (int group = 0; group < kScaleGroups; ++group, ++of_tile)
#pragma GCC unroll 2
          for (int half = 0; half < 2; ++half) {
            Shorts some[kGroupWords];
            Blocks::levels(block, half, index * kScaleGroups + group, some), apply(scales[half], some);
            put(of_tile, half, some);
          }
      }
    }
  }
};

// The same with the numbers as they are multiplied: words [two inputs][half][64 bytes].
struct UnpackedTile : TileUnits {
  alignas(64) char words[kStoredTileInputs / 2 * kPairLine];

  template <class Blocks>
  void unpack(const char *block, int count) {
    TileUnits::unpack<Blocks>(block, count, [&](int group, int half, const Shorts(&some)[kGroupWords]) {
      char *const to = words + group * kGroupWords * kPairLine + half * kHalfLine;
#pragma GCC unroll 4
      for (int i = 0; i < kGroupWords; ++i) store_shorts(to + i * kPairLine, some[i]);
    });
  }
};

// out += up to 256 inputs of rows in `tile` times an unpacked tile: in the order of `finish_sums`. `near`: where its
// blocks stand. Where registers are few, they hold the sums of one half after the other.
template <int kRows>
static inline void add_unpacked(const UnpackedTile &weights, int count, const char *near, const char *tile, float *out,
                                Prefetch &prefetch) {
  constexpr int kAtOnce = kShortParts == 2 ? 1 : 2;
  for (int first = 0; first < 2; first += kAtOnce) {
    Lanes total[kAtOnce][kRows];
#pragma GCC unroll 2
    for (int h = 0; h < kAtOnce; ++h)
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) total[h][r] = splat(0.f);
    const char *words = weights.words + first * kHalfLine, *x = tile;
    for (int place = 0, run = 0, part = 0; place < count; place += weights.run, ++run) {
      ShortSums sums[kRows][kAtOnce];
#pragma GCC unroll 1
      for (const char *const end = x + 2 * weights.run; x < end; x += 2 * kGroupInputs) {
        if (first == 0) prefetch.ask<4>(near);
#pragma GCC unroll kGroupWords
        for (int i = 0; i < kGroupWords; ++i, words += kPairLine) {
          Shorts line[kAtOnce];
#pragma GCC unroll 2
          for (int h = 0; h < kAtOnce; ++h) line[h] = load_shorts(words + h * kHalfLine);
#pragma GCC unroll 16
          for (int r = 0; r < kRows; ++r) {
            const Shorts two = splat_two(x + r * kStoredRowBytes + 4 * i);
#pragma GCC unroll 2
            for (int h = 0; h < kAtOnce; ++h) sums[r][h] = dot(sums[r][h], line[h], two), hold(sums[r][h]);
          }
        }
      }
#pragma GCC unroll 2
      for (int h = 0; h < kAtOnce; ++h) {
        const Lanes unit = load(weights.units[run] + (first + h) * 16);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) total[h][r] = fma(to_floats(sums[r][h]), unit, total[h][r]);
      }
      if (weights.has_offsets)
        for (int at = place; at < place + weights.run; at += weights.each, ++part) {
#pragma GCC unroll 2
          for (int h = 0; h < kAtOnce; ++h) {
            const Lanes offset = load(weights.offsets[part] + (first + h) * 16);
#pragma GCC unroll 16
            for (int r = 0; r < kRows; ++r) {
              const StoredUnits &units = stored_units(tile + r * kStoredRowBytes);
              const float sum = weights.each == kBlockInputs ? units.sum[part] : units.sum_of<16>(at);
              total[h][r] = fma(offset, splat(sum), total[h][r]);
            }
          }
        }
    }
#pragma GCC unroll 2
    for (int h = 0; h < kAtOnce; ++h) finish_tile(total[h], first + h, tile, out);
  }
}

// The same as `multiply_stored_rows` for more rows: weights are made once for all of them, 256 inputs at a time.
template <class Blocks>
static inline void multiply_stored_groups(const PackedLinear &linear, int pair, const char *block, const Activations &a,
                                          int row, int rows, ReadAhead *ahead, float *out) {
  const int groups = ceil_div(rows, kStoredRows), steps = linear.padded_inputs / kGroupInputs;
  Prefetch asks[kRowBlock];
  for (int group = 0; group < groups; ++group)
    asks[group] = ahead ? ahead->next_block(block, linear.bytes_of(pair), steps, group, groups) : Prefetch::nearby();
  std::fill_n(out, rows * kColumns, 0.f);
  UnpackedTile weights;
  for (int first = 0; first < linear.padded_inputs; first += kStoredTileInputs) {
    const int count = std::min(kStoredTileInputs, linear.padded_inputs - first);
    weights.unpack<Blocks>(block, count);
    for (int group = 0, from = 0; group < groups; ++group) {
      const int n = group_rows(rows, kStoredRows, group);
      const char *const tile = a.row(row + from) + first / kStoredTileInputs * a.tile_bytes;
      with_row_count<kStoredRows>(n, [&](auto known) {
        add_unpacked<known.value>(weights, count, block, tile, out + from * kColumns, asks[group]);
      });
      from += n;
    }
    block += count / Blocks::kInputs * Blocks::kBytes;
  }
}

static void multiply_linear_stored(const PackedLinear &linear, int pair, const char *weights, const Activations &a,
                                   int row, int rows, ReadAhead *ahead, float *out) {
  with_stored(linear.kinds[pair], [&](auto blocks) {
    using Blocks = decltype(blocks);
    // Two small groups from registers take less time than two from memory. Where registers are few, they come at once.
    constexpr bool kTwo = only_shifts<Blocks> && 2 * kFusedRows > kStoredRows, kAtOnce = kTwo && kShortParts == 2;
    constexpr int kMost = kAtOnce ? 2 * kFusedRows : fused_rows<Blocks>;
    const bool two = kTwo && !kAtOnce && rows > kStoredRows && rows <= 2 * kFusedRows;
    const int groups = rows <= kMost ? 1 : two ? 2 : 0;
    if (groups == 0) {
      multiply_stored_groups<Blocks>(linear, pair, weights, a, row, rows, ahead, out);
      return;
    }
    const size_t bytes = linear.bytes_of(pair);
    for (int group = 0, first = 0; group < groups; ++group) {
      const int n = group_rows(rows, kMost, group), lines = static_cast<int>(bytes / kCacheLine);
      const Prefetch ask = ahead ? ahead->next_block(weights, bytes, lines, group, groups) : Prefetch::nearby();
      with_row_count<kMost>(n, [&](auto known) {
        multiply_stored_rows<Blocks, known.value>(linear, weights, a, row + first, out + first * kColumns, ask);
      });
      first += n;
    }
  });
}
