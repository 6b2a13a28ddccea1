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

// What to ask memory for between products: of a pair far ahead, and of the 256 inputs that come next.
struct AskBetween {
  Prefetch prefetch;
  const char *next;

  HEADSTART_PREFETCHES void ask() {
    prefetch.ask<4>(next - kNearBytes);
    next += 4 * kCacheLine;
  }
};

// Sums of a tile of rows and sixteen columns, by how many bits they count for: [16 or 8 or none][row][column].
struct TileSums {
  alignas(64) int32_t of[3][kTileRows * 16];

  template <bool kWide>
  ShortSums joined(int row) const {
    ShortSums all;
#pragma GCC unroll 4
    for (int i = 0; i < kShortParts; ++i) {
      WordPart high{}, middle, low;
      const size_t at = row * 16 + i * (sizeof low / 4);
      if (kWide) std::memcpy(&high, of[0] + at, sizeof high);
      std::memcpy(&middle, of[1] + at, sizeof middle), std::memcpy(&low, of[2] + at, sizeof low);
      all.part[i] = (SumPart)((high << 16) + (middle << 8) + low);
    }
    return all;
  }
};

// The products of a tile of rows, from the upper bytes `x` on, and `steps` times 64 inputs of one half.
template <bool kWide>
static inline void multiply_bytes(const char *x, const char *lower, const char *upper, int steps, TileSums &sums,
                                  AskBetween &between) {
  if (kWide) TILE_ZERO(0);
  TILE_ZERO(1);
  TILE_ZERO(2);
  for (int step = 0; step < steps; ++step, x += 64, lower += 16 * kPairLine, upper += 16 * kPairLine) {
    TILE_LOAD(3, x, kStoredRowBytes);
    TILE_LOAD(4, lower, kPairLine);
    between.ask();
    if constexpr (kWide) {
      TILE_S8_U8(1, 3, 4);
      TILE_LOAD(4, upper, kPairLine);
      between.ask();
      TILE_S8_S8(0, 3, 4);
      TILE_LOAD(3, x + kStoredTileInputs, kStoredRowBytes);
      between.ask();
      TILE_S8_S8(1, 3, 4);
      TILE_LOAD(4, lower, kPairLine);
      between.ask();
      TILE_S8_U8(2, 3, 4);
    } else {
      between.ask();
      TILE_S8_S8(1, 3, 4);
      TILE_LOAD(3, x + kStoredTileInputs, kStoredRowBytes);
      between.ask(), between.ask();
      TILE_S8_S8(2, 3, 4);
    }
  }
  if (kWide) TILE_STORE(0, sums.of[0], 64);
  TILE_STORE(1, sums.of[1], 64);
  TILE_STORE(2, sums.of[2], 64);
}

// The same with 32 inputs.
template <bool kWide>
static inline void multiply_few_bytes(const char *x, const char *lower, const char *upper, TileSums &sums,
                                      AskBetween &between) {
  if (kWide) TILE_ZERO(0);
  TILE_ZERO(1);
  TILE_ZERO(2);
  TILE_LOAD(6, x, kStoredRowBytes);
  TILE_LOAD(7, lower, kPairLine);
  between.ask();
  if constexpr (kWide) {
    TILE_S8_U8(1, 6, 7);
    TILE_LOAD(7, upper, kPairLine);
    TILE_S8_S8(0, 6, 7);
    TILE_LOAD(6, x + kStoredTileInputs, kStoredRowBytes);
    between.ask();
    TILE_S8_S8(1, 6, 7);
    TILE_LOAD(7, lower, kPairLine);
    TILE_S8_U8(2, 6, 7);
    TILE_STORE(0, sums.of[0], 64);
  } else {
    TILE_S8_S8(1, 6, 7);
    TILE_LOAD(6, x + kStoredTileInputs, kStoredRowBytes);
    between.ask();
    TILE_S8_S8(2, 6, 7);
  }
  TILE_STORE(1, sums.of[1], 64);
  TILE_STORE(2, sums.of[2], 64);
}

// total [row][16] += the products of one run of inputs, which stands at `place` in the rows' tile; behind the last one
// out [row][32] += the total. In the order of `add_unpacked`.
template <bool kWide>
static inline void add_run(const TileUnits &weights, int place, int half, bool is_last, int rows, const char *tile,
                           const TileSums &sums, float *total, float *out) {
  const Lanes unit = load(weights.units[place / weights.run] + half * 16);
  for (int r = 0; r < rows; ++r) {
    const StoredUnits &of_row = stored_units(tile + r * kStoredRowBytes);
    Lanes all = fma(to_floats(sums.joined<kWide>(r)), unit, place ? load(total + r * 16) : splat(0.f));
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

// out [rows][32] = rows times a pair, any number of them.
template <class Blocks>
static inline void multiply_stored_tiles(const PackedLinear &linear, int pair, const char *block, const Activations &a,
                                         int row, int rows, ReadAhead *ahead, float *out) {
  constexpr int kRun = Blocks::kSumInputs;
  constexpr bool kWide = is_wide<Blocks>;
  static_assert(kRun % kPlaneBytes == 0 || kRun == kBlockInputs, "what there are tiles for");
  const int steps = linear.padded_inputs / kGroupInputs;
  Prefetch prefetch = ahead ? ahead->next_block(block, linear.bytes_of(pair), steps, 0, 1) : Prefetch::nearby();
  std::fill_n(out, rows * kColumns, 0.f);
  ByteTile weights;
  TileSums sums;
  alignas(64) float total[kTileRows * 16];
  for (int first = 0; first < linear.padded_inputs; first += kStoredTileInputs) {
    const int count = std::min(kStoredTileInputs, linear.padded_inputs - first);
    weights.unpack<Blocks>(block, count);
    block += count / Blocks::kInputs * Blocks::kBytes;
    AskBetween between{prefetch, block};
    for (int from = 0; from < rows; from += kTileRows) {
      const int n = std::min(kTileRows, rows - from);
      const char *const tile = a.row(row + from) + first / kStoredTileInputs * a.tile_bytes;
      for (int half = 0; half < 2; ++half)
        for (int place = 0; place < count; place += kRun) {
          const char *const x = tile + kPlanesAt + place;
          const int at = place / 4 * kPairLine + half * kHalfLine;
          if constexpr (kRun == kBlockInputs)
            multiply_few_bytes<kWide>(x, weights.lower + at, weights.upper + at, sums, between);
          else
            multiply_bytes<kWide>(x, weights.lower + at, weights.upper + at, kRun / kPlaneBytes, sums, between);
          add_run<kWide>(weights, place, half, place + kRun >= count, n, tile, sums, total, out + from * kColumns);
        }
      if (from == 0) prefetch = between.prefetch, between.prefetch = {};  // the first rows have asked for all
    }
  }
}

static void multiply_stored_many(const PackedLinear &linear, int pair, const char *weights, const Activations &a,
                                 int row, int rows, ReadAhead *ahead, float *out) {
  with_stored(linear.kinds[pair], [&](auto blocks) {
    multiply_stored_tiles<decltype(blocks)>(linear, pair, weights, a, row, rows, ahead, out);
  });
}

static void multiply_stored_unit(const PackedLinear &linear, int pair, const char *weights, const Activations &a,
                                 int row, int rows, ReadAhead *ahead, float *out) {
  const auto multiply = rows <= kVectorRows ? multiply_linear_stored : multiply_stored_many;
  multiply(linear, pair, weights, a, row, rows, ahead, out);
}
