// A file's own blocks through the matrix unit: the whole numbers of products/stored_linear.h, taken apart into bytes
// once for all rows, 256 inputs at a time. Sums of integers are exact, so a row has the same bits from tiles and from
// vectors, on every processor, and which of them multiplies how many rows is a matter of speed alone.
#pragma once
#include "kernels/products/stored_linear.h"
#include HEADSTART_TILES

constexpr int kTileRows = 16;
// Most rows that vectors multiply in less time. Estimated: for 32 weights vectors take four instructions and one for
// each row, tiles six.
constexpr int kVectorRows = 3;

// Behind a row's numbers and units stand their upper bytes and, with a sign too, their lower ones: [plane][256]. Each
// four are in the order in which bytes of weights come: first, third, second, fourth.
constexpr int kPlanesAt = kStoredRowBytes - 2 * kStoredTileInputs;

static void store_row_planes(const Activations &to, int row, const float *x, int padded_inputs) {
  store_row_stored(to, row, x, padded_inputs);
  char *tile = to.row(row);
  for (int first = 0; first < padded_inputs; first += kStoredTileInputs, tile += to.tile_bytes) {
    char *const upper = tile + kPlanesAt, *const lower = upper + kStoredTileInputs;
    const int count = std::min(kStoredTileInputs, padded_inputs - first);
    for (int k = 0; k < count; k += 4) {
      constexpr uint64_t kBytes = 0x00ff00ff00ff00ff, kHalf = 0x0080008000800080, kSigns = 0x8000800080008000;
      const auto gathered = [](uint64_t four) { return static_cast<uint32_t>(four | four >> 24); };
      uint64_t four;
      std::memcpy(&four, tile + 2 * k, 8);
      const uint64_t rounded = ((four & ~kSigns) + kHalf) ^ (four & kSigns);
      const uint32_t high = gathered(rounded >> 8 & kBytes), low = gathered(four & kBytes);
      std::memcpy(upper + k, &high, 4), std::memcpy(lower + k, &low, 4);
    }
  }
}

// Whether numbers of a kind go beyond a signed byte: those with scales do, unless it says so itself.
template <class Blocks, class = void>
constexpr bool is_wide = std::is_same_v<decltype(Blocks::scales(nullptr, 0, 0)), Shorts>;
template <class Blocks>
constexpr bool is_wide<Blocks, std::void_t<decltype(Blocks::kWide)>> = Blocks::kWide;

// Up to 256 inputs of a pair as tiles multiply them: bytes [four inputs][half][16 columns][4]. Where there are upper
// ones, the lower ones have no sign.
struct ByteTile : TileUnits {
  alignas(64) char lower[kStoredTileInputs / 4 * kPairLine], upper[kStoredTileInputs / 4 * kPairLine];

  template <class Blocks>
  void unpack(const char *block, int count) {
    TileUnits::unpack<Blocks>(block, count, [&](int group, int half, const Shorts(&words)[kGroupWords]) {
      const int at = group * 2 * kPairLine + half * kHalfLine;
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        const Shorts first = words[2 * i], second = words[2 * i + 1];
        store_shorts(lower + at + i * kPairLine, (first & 0xff) | second << 8);
        if constexpr (is_wide<Blocks>) store_shorts(upper + at + i * kPairLine, first >> 8 | (second & 0xff00));
      }
    });
  }
};

// What to ask memory for between products: of a pair far ahead, of its 256 inputs that come next, and of the planes of
// the tile of rows that comes next, where these have left L2.
struct AskBetween {
  Prefetch prefetch;
  const char *next;

  HEADSTART_PREFETCHES void ask() {
    prefetch.ask<4>(next - kNearBytes);
    next += 4 * kCacheLine;
  }
};
struct RowsAhead {
  const char *planes;
  int rows;

  HEADSTART_PREFETCHES void ask() {
    if (rows-- <= 0) return;
    prefetch_lines(planes, 2 * kStoredTileInputs);
    planes += kStoredRowBytes;
  }
};

// How the numbers of a run are multiplied: as bytes, in one step or in several, or as two bytes each.
enum class RunKind { step, bytes, wide };
template <class Blocks>
constexpr RunKind run_kind = is_wide<Blocks>                     ? RunKind::wide
                             : Blocks::kSumInputs <= kPlaneBytes ? RunKind::step
                                                                 : RunKind::bytes;

// Sums of a tile of rows and sixteen columns. A sum waits for the one before it as long as three others take: there are
// four, for upper and lower bytes of rows with those of weights, or for every second step of 64 inputs.
struct TileSums {
  alignas(64) int32_t of[4][kTileRows * 16];

  template <RunKind kKind>
  ShortSums joined(int row) const {
    ShortSums all;
#pragma GCC unroll 4
    for (int i = 0; i < kShortParts; ++i) {
      WordPart part[4]{};
      for (int k = kKind == RunKind::step ? 2 : 0; k < 4; ++k)
        std::memcpy(part + k, of[k] + row * 16 + i * (sizeof part[k] / 4), sizeof part[k]);
      all.part[i] = (SumPart)(kKind == RunKind::wide ? (part[0] << 16) + ((part[1] + part[2]) << 8) + part[3]
                                                     : ((part[0] + part[2]) << 8) + part[1] + part[3]);
    }
    return all;
  }
};

// The products of a tile of rows, from the upper bytes `x` on, and `steps` times 64 inputs of one half.
template <RunKind kKind>
static inline void multiply_bytes(const char *x, const char *lower, const char *upper, int steps, TileSums &sums,
                                  AskBetween &between, RowsAhead &rows) {
  constexpr int kStepLines = kPlaneBytes / 4 * kPairLine;
  TILE_ZERO(2);
  TILE_ZERO(5);
  if constexpr (kKind != RunKind::step) {
    TILE_ZERO(0);
    TILE_ZERO(1);
  }
  for (int step = 0; step < steps; ++step, x += kPlaneBytes, lower += kStepLines, upper += kStepLines) {
    TILE_LOAD(3, x, kStoredRowBytes);
    TILE_LOAD(4, lower, kPairLine);
    between.ask(), rows.ask();
    if constexpr (kKind == RunKind::wide) {
      TILE_S8_U8(1, 3, 4);
      TILE_LOAD(4, upper, kPairLine);
      between.ask();
      TILE_S8_S8(0, 3, 4);
      TILE_LOAD(3, x + kStoredTileInputs, kStoredRowBytes);
      between.ask();
      TILE_S8_S8(2, 3, 4);
      TILE_LOAD(4, lower, kPairLine);
      between.ask();
      TILE_S8_U8(5, 3, 4);
    } else if (kKind == RunKind::bytes && step % 2 == 0) {
      between.ask();
      TILE_S8_S8(0, 3, 4);
      TILE_LOAD(3, x + kStoredTileInputs, kStoredRowBytes);
      between.ask(), between.ask();
      TILE_S8_S8(1, 3, 4);
    } else {
      between.ask();
      TILE_S8_S8(2, 3, 4);
      TILE_LOAD(3, x + kStoredTileInputs, kStoredRowBytes);
      between.ask(), between.ask();
      TILE_S8_S8(5, 3, 4);
    }
  }
  if constexpr (kKind != RunKind::step) {
    TILE_STORE(0, sums.of[0], 64);
    TILE_STORE(1, sums.of[1], 64);
  }
  TILE_STORE(2, sums.of[2], 64);
  TILE_STORE(5, sums.of[3], 64);
}

// The same with 32 inputs.
template <RunKind kKind>
static inline void multiply_few_bytes(const char *x, const char *lower, const char *upper, TileSums &sums,
                                      AskBetween &between, RowsAhead &rows) {
  TILE_ZERO(2);
  TILE_ZERO(5);
  TILE_LOAD(6, x, kStoredRowBytes);
  TILE_LOAD(7, lower, kPairLine);
  between.ask(), rows.ask();
  if constexpr (kKind == RunKind::wide) {
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_S8_U8(1, 6, 7);
    TILE_LOAD(7, upper, kPairLine);
    TILE_S8_S8(0, 6, 7);
    TILE_LOAD(6, x + kStoredTileInputs, kStoredRowBytes);
    between.ask();
    TILE_S8_S8(2, 6, 7);
    TILE_LOAD(7, lower, kPairLine);
    TILE_S8_U8(5, 6, 7);
    TILE_STORE(0, sums.of[0], 64);
    TILE_STORE(1, sums.of[1], 64);
  } else {
    TILE_S8_S8(2, 6, 7);
    TILE_LOAD(6, x + kStoredTileInputs, kStoredRowBytes);
    between.ask();
    TILE_S8_S8(5, 6, 7);
  }
  TILE_STORE(2, sums.of[2], 64);
  TILE_STORE(5, sums.of[3], 64);
}

// total [row][16] += the products of one run of inputs, which stands at `place` in the rows' tile; behind the last one
// out [row][32] += the total. In the order of `add_unpacked`.
template <RunKind kKind>
static inline void add_run(const TileUnits &weights, int place, int half, bool is_last, int rows, const char *tile,
                           const TileSums &sums, float *total, float *out) {
  const Lanes unit = load(weights.units[place / weights.run] + half * 16);
  for (int r = 0; r < rows; ++r) {
    const StoredUnits &of_row = stored_units(tile + r * kStoredRowBytes);
    Lanes all = fma(to_floats(sums.joined<kKind>(r)), unit, place ? load(total + r * 16) : splat(0.f));
    for (int at = place; weights.has_offsets && at < place + weights.run; at += weights.each) {
      const float sum = weights.each == kBlockInputs ? of_row.sum[at / kBlockInputs] : of_row.sum_of<16>(at);
      all = fma(load(weights.offsets[at / weights.each] + half * 16), splat(sum), all);
    }
    float *const to = out + r * kColumns + half * 16;
    if (is_last)
      store(to, fma(all, splat(of_row.unit), load(to)));
    else
      store(total + r * 16, all);
  }
}

// out [pair][whole blocks of rows][32] = rows times up to two pairs of one kind, any number of rows. Two share what is
// read of rows: those of many inputs have left L2 when they are read again.
template <class Blocks>
static inline void multiply_stored_tiles(const PackedLinear &linear, int pair, int pairs, const char *block,
                                         const Activations &a, int row, int rows, ReadAhead *ahead, float *out) {
  constexpr int kRun = Blocks::kSumInputs;
  constexpr RunKind kKind = run_kind<Blocks>;
  static_assert(kRun % kPlaneBytes == 0 || kRun == kBlockInputs, "what there are tiles for");
  const int steps = linear.padded_inputs / kGroupInputs;
  const size_t bytes = linear.bytes_of(pair), stride = static_cast<size_t>(round_up(rows, kRowBlock)) * kColumns;
  Prefetch asks[2] = {Prefetch::nearby(), Prefetch::nearby()};
  if (ahead)
    for (int p = 0; p < pairs; ++p)
      asks[p] = pairs == 2 ? ahead->next_of_two(block, bytes, steps, p) : ahead->next_block(block, bytes, steps, 0, 1);
  for (int p = 0; p < pairs; ++p) std::fill_n(out + p * stride, rows * kColumns, 0.f);
  ByteTile weights[2];
  TileSums sums;
  alignas(64) float total[kTileRows * 16];
  for (int first = 0; first < linear.padded_inputs; first += kStoredTileInputs) {
    const int count = std::min(kStoredTileInputs, linear.padded_inputs - first);
    for (int p = 0; p < pairs; ++p) weights[p].template unpack<Blocks>(block + p * bytes, count);
    block += count / Blocks::kInputs * Blocks::kBytes;
    for (int from = 0; from < rows; from += kTileRows) {
      const int n = std::min(kTileRows, rows - from);
      const char *const tile = a.row(row + from) + first / kStoredTileInputs * a.tile_bytes;
      RowsAhead next{tile + kTileRows * kStoredRowBytes + kPlanesAt, std::min(kTileRows, rows - from - n)};
      for (int p = 0; p < pairs; ++p) {
        // The first rows ask for all.
        AskBetween between{from == 0 ? asks[p] : Prefetch{}, block + p * bytes};
        float *const to = out + p * stride + from * kColumns;
        for (int half = 0; half < 2; ++half)
          for (int place = 0; place < count; place += kRun) {
            const char *const x = tile + kPlanesAt + place;
            const int at = place / 4 * kPairLine + half * kHalfLine;
            const char *const lower = weights[p].lower + at, *const upper = weights[p].upper + at;
            if constexpr (kRun == kBlockInputs)
              multiply_few_bytes<kKind>(x, lower, upper, sums, between, next);
            else
              multiply_bytes<kKind>(x, lower, upper, kRun / kPlaneBytes, sums, between, next);
            add_run<kKind>(weights[p], place, half, place + kRun >= count, n, tile, sums, total, to);
          }
        if (from == 0) asks[p] = between.prefetch;
      }
    }
  }
}

static void multiply_stored_many(const PackedLinear &linear, int pair, int pairs, const char *weights,
                                 const Activations &a, int row, int rows, ReadAhead *ahead, float *out) {
  const int each = pairs == 2 && linear.kinds[pair] == linear.kinds[pair + 1] ? 2 : 1;
  for (int p = 0; p < pairs; p += each) {
    with_stored(linear.kinds[pair + p], [&](auto blocks) {
      using Blocks = decltype(blocks);
      if constexpr (!std::is_same_v<Blocks, StoredNVFP4>)  // see `is_widened`
        multiply_stored_tiles<Blocks>(linear, pair + p, each, weights, a, row, rows, ahead, out);
    });
    weights += linear.bytes_of(pair + p), out += static_cast<size_t>(round_up(rows, kRowBlock)) * kColumns;
  }
}

// One pair after the other by a kernel that multiplies any number of rows.
template <auto kMultiply>
static void multiply_pairs(const PackedLinear &linear, int pair, int pairs, const char *weights, const Activations &a,
                           int row, int rows, ReadAhead *ahead, float *out) {
  for (int p = 0; p < pairs; ++p) {
    kMultiply(linear, pair + p, weights, a, row, rows, ahead, out);
    weights += linear.bytes_of(pair + p), out += static_cast<size_t>(round_up(rows, kRowBlock)) * kColumns;
  }
}

static void multiply_stored_unit(const PackedLinear &linear, int pair, const char *weights, const Activations &a,
                                 int row, int rows, ReadAhead *ahead, float *out) {
  if (rows <= kVectorRows)
    multiply_linear_stored(linear, pair, weights, a, row, rows, ahead, out);
  else
    multiply_stored_many(linear, pair, 1, weights, a, row, rows, ahead, out);
}
