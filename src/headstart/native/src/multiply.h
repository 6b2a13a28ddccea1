// The one product everything is made of:
//     C[rows][32] (+)= A[rows][32 * tiles] . B
// where B is a run of pair tiles (see cells.h) that stand one behind the other (weights) or on cache pages. Every
// element of C is one chain of operations over the inner steps in order, whatever the number of rows.
#pragma once
#include <type_traits>

#include "read_ahead.h"
#include "vector.h"

// Pair tiles one behind the other.
template <class Cell> struct Stream {
  const Cell *first;
  const Cell *operator()(int tile) const { return first + tile * TileOrder<Cell>::kPairCells; }
};

// Pair tiles at the same offset of several pages.
template <class Cell> struct Paged {
  const Cell *const *pages;
  size_t offset;
  const Cell *operator()(int tile) const { return pages[tile] + offset; }
};

// The product in float fused multiply-adds. Where the bf16 dot instruction of AVX-512 runs at half rate, this is faster
// above one row, and the same speed as memory at one.
template <class Cell, int kRows, class Tiles>
static inline void multiply_fma_rows(const float *a, size_t a_stride, Tiles tiles, int count, float *c,
                                     size_t c_stride, bool accumulate, Prefetch prefetch) {
  Lanes sum[kRows][2];  // unrolled everywhere, or it would live in memory
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    sum[r][0] = accumulate ? load(c + r * c_stride) : splat(0.f);
    sum[r][1] = accumulate ? load(c + r * c_stride + 16) : splat(0.f);
  }
  for (int tile = 0; tile < count; ++tile) {
    const Cell *b = tiles(tile);
    const float *a_tile = a + tile * 32;
    if constexpr (sizeof(Cell) == 2) {
      for (int step = 0; step < 32; step += 2) {
        prefetch.ask(b + step * 32);
        Lanes even[2], odd[2];
        load_bf16_pairs(b + step * 32, even[0], odd[0]);
        load_bf16_pairs(b + step * 32 + 32, even[1], odd[1]);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          const Lanes first = splat(a_tile[r * a_stride + step]), second = splat(a_tile[r * a_stride + step + 1]);
          sum[r][0] = fma(first, even[0], sum[r][0]);
          sum[r][1] = fma(first, even[1], sum[r][1]);
          sum[r][0] = fma(second, odd[0], sum[r][0]);
          sum[r][1] = fma(second, odd[1], sum[r][1]);
        }
      }
    } else {
      for (int step = 0; step < 32; ++step) {
        prefetch.ask(b + step * 32);
        const Lanes left = load(b + step * 32), right = load(b + step * 32 + 16);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          const Lanes value = splat(a_tile[r * a_stride + step]);
          sum[r][0] = fma(value, left, sum[r][0]);
          sum[r][1] = fma(value, right, sum[r][1]);
        }
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    store(c + r * c_stride, sum[r][0]);
    store(c + r * c_stride + 16, sum[r][1]);
  }
}

#if defined(__AVX512F__)
constexpr int kFmaRows = 12;  // 24 of 32 registers hold sums
#else
constexpr int kFmaRows = 2;
#endif

// Rows of block `index` where `rows` are cut into as few blocks of up to `most` as will do, all of about one size:
// small blocks share the loads of weights badly and keep the arithmetic units waiting for each other.
static inline int block_rows(int rows, int most, int index) {
  const int blocks = ceil_div(rows, most);
  return rows * (index + 1) / blocks - rows * index / blocks;
}

// Calls `work` with 1 <= rows <= kMost as a number that the compiler knows: kernels are unrolled for each.
template <int kMost, class Work> static inline void with_row_count(int rows, Work &&work) {
  if constexpr (kMost > 1)
    if (rows < kMost) return with_row_count<kMost - 1>(rows, work);
  work(std::integral_constant<int, kMost>{});
}

template <class Cell, class Tiles>
static inline void multiply_fma(int rows, const float *a, size_t a_stride, Tiles tiles, int count, float *c,
                                size_t c_stride, bool accumulate, bool streamed = false, ReadAhead *ahead = nullptr) {
  const int blocks = ceil_div(rows, kFmaRows);
  for (int block = 0; block < blocks; ++block) {
    const int n = block_rows(rows, kFmaRows, block);
    const size_t bytes = count * TileOrder<Cell>::kPairCells * sizeof(Cell);
    const bool paged = sizeof(Cell) == 2 && ahead && blocks == 1 && n >= kPagedRows;
    const Prefetch ask = !streamed ? Prefetch{}
                         : paged   ? ahead->by_page(tiles(0), bytes)
                                   : next_block(ahead, tiles(0), bytes, block, blocks);
    with_row_count<kFmaRows>(n, [&](auto known) {
      multiply_fma_rows<Cell, known.value>(a, a_stride, tiles, count, c, c_stride, accumulate, ask);
    });
    a += n * a_stride;
    c += n * c_stride;
  }
}

// C[rows][32] (+)= A . pair tiles, for attention. Where queries and weights are bf16, the kernel has a form of its own.
template <class Cell, class Tiles>
static inline void multiply_tiles(int rows, const float *a, size_t a_stride, Tiles tiles, int count, float *c,
                                  size_t c_stride, bool accumulate) {
  multiply_fma<Cell>(rows, a, a_stride, tiles, count, c, c_stride, accumulate);
}
