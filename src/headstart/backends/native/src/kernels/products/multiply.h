// The one product everything is made of:
//     C[rows][32] (+)= A[rows][32 * tiles] . B
// where B is a run of pair tiles (see formats/cells.h) that stand one behind the other (weights) or on cache pages.
// Every element of C is one chain of operations over the inner steps in order, whatever the number of rows.
#pragma once
#include <algorithm>
#include <type_traits>

#include "kernels/products/read_ahead.h"
#include "kernels/vectors/vector.h"

// Pair tiles one behind the other.
template <class Cell>
struct Stream {
  const Cell *first;
  const Cell *operator()(int tile) const { return first + tile * TileOrder<Cell>::kPairCells; }
};

// Pair tiles at the same offset of several pages.
template <class Cell>
struct Paged {
  const Cell *const *pages;
  size_t offset;
  const Cell *operator()(int tile) const { return pages[tile] + offset; }
};

// The product in float fused multiply-adds. Where the bf16 dot instruction of AVX-512 runs at half rate, this is faster
// above one row, and the same speed as memory at one.
template <class Cell, int kRows, int kHalves, class Tiles>
static inline __attribute__((always_inline)) void multiply_fma_rows(const float *a, size_t a_stride, Tiles tiles,
                                                                    int count, int first_half, float *c,
                                                                    size_t c_stride, bool accumulate,
                                                                    Prefetch prefetch) {
  Lanes sum[kRows][kHalves];  // unrolled everywhere, or it would live in memory
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int h = 0; h < kHalves; ++h)
      sum[r][h] = accumulate ? load(c + r * c_stride + (first_half + h) * 16) : splat(0.f);
  for (int tile = 0; tile < count; ++tile) {
    const Cell *b = tiles(tile);
    const float *a_tile = a + tile * 32;
    if constexpr (sizeof(Cell) == 2) {
      for (int step = 0; step < 32; step += 2) {
        prefetch.ask(b + step * 32);
        const Bf16 *pairs = b + step * 32 + first_half * 32;
        const auto add = [&](int input, auto load_some) __attribute__((always_inline)) {
          Lanes weights[kHalves];
#pragma GCC unroll 2
          for (int h = 0; h < kHalves; ++h) weights[h] = load_some(pairs + h * 32);
#pragma GCC unroll 16
          for (int r = 0; r < kRows; ++r) {
            const Lanes value = splat(a_tile[r * a_stride + input]);
#pragma GCC unroll 2
            for (int h = 0; h < kHalves; ++h) sum[r][h] = fma(value, weights[h], sum[r][h]), hold(sum[r][h]);
          }
        };
        // One after the other: where registers are few, both would not fit.
        add(step, load_bf16_even);
        hold(pairs);
        add(step + 1, load_bf16_odd);
      }
    } else {
      for (int step = 0; step < 32; ++step) {
        prefetch.ask(b + step * 32);
        Lanes weights[kHalves];
#pragma GCC unroll 2
        for (int h = 0; h < kHalves; ++h) weights[h] = load(b + step * 32 + (first_half + h) * 16);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          const Lanes value = splat(a_tile[r * a_stride + step]);
#pragma GCC unroll 2
          for (int h = 0; h < kHalves; ++h) sum[r][h] = fma(value, weights[h], sum[r][h]);
        }
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int h = 0; h < kHalves; ++h) store(c + r * c_stride + (first_half + h) * 16, sum[r][h]);
}

// The same for one half of the columns. Not inlined: its loop has the registers for itself.
template <class Cell, int kRows, class Tiles>
static __attribute__((noinline)) void multiply_fma_half(const float *a, size_t a_stride, Tiles tiles, int count,
                                                        int half, float *c, size_t c_stride, bool accumulate,
                                                        Prefetch prefetch) {
  multiply_fma_rows<Cell, kRows, 1>(a, a_stride, tiles, count, half, c, c_stride, accumulate, prefetch);
}

// Rows of group `index` where `rows` are cut into as few groups of up to `most` as will do, all of about one size:
// small groups share the loads of weights badly and keep the arithmetic units waiting for each other.
static inline int group_rows(int rows, int most, int index) {
  const int groups = ceil_div(rows, most);
  return rows * (index + 1) / groups - rows * index / groups;
}

// Calls `work` with 1 <= rows <= kMost as a number that the compiler knows: kernels are unrolled for each.
template <int kMost, class Work>
static inline void with_row_count(int rows, Work &&work) {
  if constexpr (kMost > 1)
    if (rows < kMost) return with_row_count<kMost - 1>(rows, work);
  work(std::integral_constant<int, kMost>{});
}

// Rows of the next group where `left` are multiplied half by half: as many as registers hold, unless the last group
// would be too large for whole pairs and too small for halves.
static inline int halved_group(int left) {
  const int beyond = left - kHalvedRows;
  return beyond >= kFmaRows && beyond <= kHalvedRows ? ceil_div(left, 2) : std::min(left, kHalvedRows);
}

template <class Cell, class Tiles>
static inline void multiply_fma(int rows, const float *a, size_t a_stride, Tiles tiles, int count, float *c,
                                size_t c_stride, bool accumulate, bool streamed = false, ReadAhead *ahead = nullptr) {
  constexpr bool can_halve = sizeof(Cell) == 2 && kHalvedRows > kFmaRows;
  const bool halves = can_halve && rows > kFmaRows;
  const int groups = ceil_div(rows, halves ? kHalvedRows : kFmaRows);
  for (int group = 0, n = 0; group < groups; ++group, rows -= n, a += n * a_stride, c += n * c_stride) {
    n = halves ? halved_group(rows) : group_rows(rows, kFmaRows, 0);
    const size_t bytes = count * TileOrder<Cell>::kPairCells * sizeof(Cell);
    const bool paged = sizeof(Cell) == 2 && ahead && groups == 1 && n >= kPagedRows;
    const Prefetch ask = !streamed ? Prefetch{}
                         : paged   ? ahead->by_page(tiles(0), bytes)
                                   : next_block(ahead, tiles(0), bytes, group, groups);
    if constexpr (can_halve) {
      if (n > kFmaRows) {
        with_row_count<kHalvedRows>(n, [&](auto known) {
          for (int half = 0; half < 2; ++half)
            multiply_fma_half<Cell, known.value>(a, a_stride, tiles, count, half, c, c_stride, accumulate,
                                                 half && streamed ? Prefetch::nearby()
                                                 : half           ? Prefetch{}
                                                                  : ask);
        });
        continue;
      }
    }
    with_row_count<kFmaRows>(n, [&](auto known) {
      multiply_fma_rows<Cell, known.value, 2>(a, a_stride, tiles, count, 0, c, c_stride, accumulate, ask);
    });
  }
}

// C[rows][32] (+)= A . pair tiles, for attention, which asks for other pages meanwhile. Where queries and weights are
// bf16, the kernel has a form of its own.
template <class Cell, class Tiles>
static inline void multiply_tiles(int rows, const float *a, size_t a_stride, Tiles tiles, int count, float *c,
                                  size_t c_stride, bool accumulate, PagesAhead ahead = {}) {
  ahead.ask_all();
  multiply_fma<Cell>(rows, a, a_stride, tiles, count, c, c_stride, accumulate);
}
