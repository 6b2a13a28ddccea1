// The one product everything is made of:
//     C[rows][32] (+)= A[rows][32 * tiles] . B
// where B is a run of pair tiles (see cells.h) that stand one behind the other (weights) or on cache pages. Every
// element of C is one chain of operations over the inner steps in order, whatever the number of rows.
#pragma once
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

// A function that only prefetches has no effect in the compiler's eyes: unless it is inlined first, its calls vanish.
#define HEADSTART_PREFETCHES inline __attribute__((always_inline))

// Asks for the cache lines [0, bytes) behind p, into L2: L1 is too small for the distance.
static HEADSTART_PREFETCHES void prefetch_lines(const void *p, int bytes) {
  const char *line = static_cast<const char *>(p);
  for (int i = 0; i < bytes; i += 64) _mm_prefetch(line + i, _MM_HINT_T1);
}

constexpr int kLine = 128;             // bytes of weights in a step of a pair
constexpr int kPrefetchBytes = 12288;  // least distance between asking memory for a weight and using it
constexpr int kNearBytes = 2048;
constexpr int kPage = 4096;              // the processor's own prefetcher follows up to the end of such a page
constexpr int kPageBytesAhead = 8192;    // its beginning is asked for so far ahead
constexpr int kPagedRows = 6;            // rows from which a block of bf16 weights leaves the rest of a page to it

// What to ask for while a pair of columns is multiplied, step by step: from memory into L2 far ahead, from L2 into L1
// shortly before use.
class Prefetch {
 public:
  Prefetch() = default;

  // Where several row blocks multiply a pair, each asks for its share of what lies a pair ahead: memory works all the
  // time, not only during the first block. `from_memory` is false where other rows have asked already.
  static Prefetch of_block(const void *weights, bool from_memory, size_t pair_bytes, int block, int blocks) {
    Prefetch p;
    p.near_ = true;
    if (!from_memory) return p;
    const size_t distance = blocks > 1 && pair_bytes > kPrefetchBytes ? pair_bytes : kPrefetchBytes;
    p.far_ = static_cast<const char *>(weights) + distance + pair_bytes * block / blocks;
    p.pace_ = (kLine + blocks - 1) / blocks;
    return p;
  }

  // Only the beginning of each page is asked for, and the processor's own prefetcher brings the rest: lines that are
  // asked for wait in the fill buffers that products need too, the more of them the longer a step takes.
  static Prefetch of_pages() {
    Prefetch p;
    p.near_ = p.paged_ = true;
    return p;
  }

  HEADSTART_PREFETCHES void ask(const void *line) {
    const char *at = static_cast<const char *>(line);
    if (paged_ && reinterpret_cast<uintptr_t>(at) % kPage < 2 * kLine) {
      _mm_prefetch(at + kPageBytesAhead, _MM_HINT_T1);
      _mm_prefetch(at + kPageBytesAhead + 64, _MM_HINT_T1);
    }
    if (pace_) {
      _mm_prefetch(far_, _MM_HINT_T1);
      if (pace_ > 64) _mm_prefetch(far_ + 64, _MM_HINT_T1);
      far_ += pace_;
    }
    if (near_) {
      _mm_prefetch(at + kNearBytes, _MM_HINT_T0);
      _mm_prefetch(at + kNearBytes + 64, _MM_HINT_T0);
    }
  }

 private:
  const char *far_ = nullptr;
  int pace_ = 0;  // bytes a step to ask memory for
  bool near_ = false, paged_ = false;
};

// The product in float fused multiply-adds. Faster than the bf16 dot instruction of AVX-512 (half rate on the server
// cores it was measured on) above one row, and the same speed as memory at one.
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

// Rows of block `index` where `rows` are cut into as few blocks of up to `most` as will do, all of about one size: small
// blocks share the loads of weights badly and keep the arithmetic units waiting for each other.
static inline int block_rows(int rows, int most, int index) {
  const int blocks = ceil_div(rows, most);
  return rows * (index + 1) / blocks - rows * index / blocks;
}

template <class Cell, class Tiles>
static inline void multiply_fma(int rows, const float *a, size_t a_stride, Tiles tiles, int count, float *c,
                                size_t c_stride, bool accumulate, bool streamed = false, bool prefetch = false) {
  const int blocks = ceil_div(rows, kFmaRows);
  for (int block = 0; block < blocks; ++block) {
    const int n = block_rows(rows, kFmaRows, block);
    const size_t bytes = count * TileOrder<Cell>::kPairCells * sizeof(Cell);
    const bool paged = sizeof(Cell) == 2 && prefetch && blocks == 1 && n >= kPagedRows;
    const Prefetch ask = !streamed ? Prefetch{}
                         : paged   ? Prefetch::of_pages()
                                   : Prefetch::of_block(tiles(0), prefetch, bytes, block, blocks);
#define HEADSTART_ROWS(R)                                                                                \
  case R:                                                                                                \
    multiply_fma_rows<Cell, R>(a, a_stride, tiles, count, c, c_stride, accumulate, ask); \
    break;
    switch (n) {
      HEADSTART_ROWS(1)
      HEADSTART_ROWS(2)
#if defined(__AVX512F__)
      HEADSTART_ROWS(3)
      HEADSTART_ROWS(4)
      HEADSTART_ROWS(5)
      HEADSTART_ROWS(6)
      HEADSTART_ROWS(7)
      HEADSTART_ROWS(8)
      HEADSTART_ROWS(9)
      HEADSTART_ROWS(10)
      HEADSTART_ROWS(11)
      HEADSTART_ROWS(12)
#endif
    }
#undef HEADSTART_ROWS
    a += n * a_stride;
    c += n * c_stride;
  }
}
