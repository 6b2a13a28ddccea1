// What a thread asks memory for before it needs it. Memory is to work all the time: while a thread multiplies, and
// while it does or waits for anything else.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/formats/cells.h"

// A function that only prefetches has no effect in the compiler's eyes: unless it is inlined first, its calls vanish.
#define HEADSTART_PREFETCHES inline __attribute__((always_inline))

constexpr int kCacheLine = 64;

template <int kWhere>
static HEADSTART_PREFETCHES void prefetch(const void *p) {
  __builtin_prefetch(p, 0, kWhere);
}

// Asks for the cache lines [0, bytes) behind p, into L2: L1 is too small for the distance.
static HEADSTART_PREFETCHES void prefetch_lines(const void *p, int bytes) {
  const char *line = static_cast<const char *>(p);
  for (int i = 0; i < bytes; i += kCacheLine) prefetch<kToL2>(line + i);
}

constexpr int kLine = 128;             // bytes of weights in a step of a pair
constexpr int kTileSteps = 16;         // of a pair tile of bf16, or of 64 inputs of bytes
constexpr int kPrefetchBytes = 12288;  // least distance between asking memory for a weight and using it
constexpr int kNearBytes = 2048;
constexpr int kPage = 4096;            // the processor's own prefetcher follows up to the end of such a page
constexpr int kPageBytesAhead = 8192;  // its beginning is asked for so far ahead
constexpr int kPagedRows = 6;          // rows from which a block of bf16 weights leaves the rest of a page to it

// What to ask for while a pair of columns is multiplied, step by step: from memory into L2 far ahead, from L2 into L1
// shortly before use.
class Prefetch {
 public:
  Prefetch() = default;

  // Nothing from memory.
  static Prefetch nearby() {
    Prefetch p;
    p.near_ = true;
    return p;
  }
  // `pace` bytes a step, from `far` on; at `turn`, `jump` bytes are left out.
  static Prefetch from(const char *far, int pace, const char *turn = nullptr, ptrdiff_t jump = 0) {
    Prefetch p = nearby();
    p.far_ = far, p.pace_ = pace, p.turn_ = turn, p.jump_ = jump;
    return p;
  }
  // Only the beginning of each page is asked for, and the processor's own prefetcher brings the rest: lines that are
  // asked for wait in the fill buffers that products need too, the more of them the longer a step takes.
  static Prefetch of_pages() {
    Prefetch p = nearby();
    p.paged_ = true;
    return p;
  }

  // For a step of so many cache lines.
  template <int kLines = kLine / kCacheLine>
  HEADSTART_PREFETCHES void ask(const void *step) {
    const char *at = static_cast<const char *>(step);
    if (paged_ && reinterpret_cast<uintptr_t>(at) % kPage < 2 * kLine) {
      prefetch<kWeightHint>(at + kPageBytesAhead);
      prefetch<kWeightHint>(at + kPageBytesAhead + kCacheLine);
    }
    if (pace_) {
      if (far_ == turn_) far_ += jump_;
      prefetch<kWeightHint>(far_);
#pragma GCC unroll 4
      for (int line = 1; line < kLines; ++line)
        if (pace_ > line * kCacheLine) prefetch<kWeightHint>(far_ + line * kCacheLine);
      far_ += pace_;
    }
    if (near_)
#pragma GCC unroll 4
      for (int line = 0; line < kLines; ++line) prefetch<kToL1>(at + kNearBytes + line * kCacheLine);
  }

  // For so many steps of one line each, one after the other, of a single pair.
  template <int kSteps>
  HEADSTART_PREFETCHES void ask_lines(const char *at) {
    if (pace_)
#pragma GCC unroll 16
      for (int i = 0; i < kSteps; ++i, far_ += pace_) prefetch<kWeightHint>(far_);
#pragma GCC unroll 16
    for (int i = 0; i < kSteps; ++i) prefetch<kToL1>(at + kNearBytes + i * kCacheLine);
  }

  // The same for line `kIndex` of a step of `kLines`, called for each of them in turn; of a single pair, and from
  // memory.
  template <int kIndex, int kLines>
  HEADSTART_PREFETCHES void ask_line(const void *step) {
    if (pace_ > kIndex * kCacheLine) prefetch<kWeightHint>(far_ + kIndex * kCacheLine);
    if (kIndex == kLines - 1) far_ += pace_;
    prefetch<kToL1>(static_cast<const char *>(step) + kNearBytes + kIndex * kCacheLine);
  }

  // The same for a quarter of the steps of a pair tile: what is asked for stands between other instructions.
  HEADSTART_PREFETCHES void ask_quarter(const void *tile, int quarter) {
    const char *at = static_cast<const char *>(tile);
    for (int step = kTileSteps / 4 * quarter; step < kTileSteps / 4 * (quarter + 1); ++step) ask(at + step * kLine);
  }

 private:
  const char *far_ = nullptr, *turn_ = nullptr;
  ptrdiff_t jump_ = 0;
  int pace_ = 0;  // bytes a step to ask memory for
  bool near_ = false, paged_ = false;
};

// Keys and values that attention reads next: pages stand anywhere, and the hardware does not guess the next one.
class PagesAhead {
 public:
  PagesAhead() = default;
  // `keys` may be null.
  PagesAhead(const void *keys, const void *values, int bytes)
      : keys_(static_cast<const char *>(keys)), values_(static_cast<const char *>(values)), bytes_(bytes) {}

  // Two lines of either, between products: many at once would wait in the fill buffers that products need too.
  HEADSTART_PREFETCHES void ask(const void *) {
    if (asked_ >= bytes_) return;
    for (const char *p : {keys_, values_})
      if (p) prefetch_lines(p + asked_, 2 * kCacheLine);
    asked_ += 2 * kCacheLine;
  }
  void ask_all() const {
    for (const char *p : {keys_, values_})
      if (p) prefetch_lines(p, bytes_);
  }

 private:
  const char *keys_ = nullptr, *values_ = nullptr;
  int bytes_ = 0, asked_ = 0;  // of either
};

// How far one thread has asked memory for its stream of weights.
class ReadAhead {
 public:
  ReadAhead() = default;
  ReadAhead(const char *from, size_t bytes) : at_(from), asked_(from), end_(from + bytes) {}

  // The weights [from, end) come next.
  void begin(const char *from, const char *end) { at_ = asked_ = from, end_ = end; }

  // Asks for some more lines, wherever the thread has time for it: into L2, for they may be used much later.
  HEADSTART_PREFETCHES void ask(int lines) {
    const char *to = std::min(std::min(asked_ + lines * kCacheLine, at_ + kMostAhead), end_);
    for (; asked_ < to; asked_ += kCacheLine) prefetch<kToL2>(asked_);
  }

  // While a pair is multiplied in `steps`, of which `block` of `blocks` row blocks comes now: each asks for its share
  // of what lies some way ahead, a pair where there are several blocks.
  Prefetch next_block(const char *weights, size_t pair_bytes, int steps, int block, int blocks) {
    const size_t least = blocks > 1 && pair_bytes > kPrefetchBytes ? pair_bytes : kPrefetchBytes;
    if (block == 0) at_ = weights, asked_ = std::max(asked_, weights + least);
    // What was asked for elsewhere, beyond that, is multiplied faster than memory delivers: memory is not waited for.
    const ptrdiff_t beyond = asked_ - (at_ + least + pair_bytes * block / blocks);
    const int slower = beyond > kFarBeyond ? 2 : beyond > kWellBeyond ? 1 : 0;
    const int pace = ceil_div(static_cast<int>(pair_bytes / steps), blocks) >> slower;
    const Prefetch next = Prefetch::from(asked_, pace);
    asked_ += pace * steps;
    return next;
  }
  // The same for pair `which` of two that are multiplied at once: each asks for its own weights, some way ahead, and
  // behind its end for those of the pair that comes next in its place.
  Prefetch next_of_two(const char *both, size_t pair_bytes, int steps, int which) {
    const char *const end = both + 2 * pair_bytes, *const own = both + which * pair_bytes;
    const int step = static_cast<int>(pair_bytes / steps);
    if (which == 0) at_ = both, is_beyond_ = asked_ > end;
    if (is_beyond_) {
      // Of what was asked for elsewhere some is used up with each pair: memory works meanwhile, but only half as much.
      const Prefetch next = Prefetch::from(asked_, step / 2);
      asked_ += step / 2 * steps;
      if (which == 1) in_step_ = nullptr;
      return next;
    }
    const ptrdiff_t distance = std::min<ptrdiff_t>(kTwoBytesAhead / step * step, pair_bytes);
    if (both != in_step_)
      for (const char *at = std::max(own, std::min(asked_, own + distance)); at < own + distance; at += kCacheLine)
        prefetch<kToL2>(at);
    if (which == 1) in_step_ = end, asked_ = std::max(asked_, end);
    return Prefetch::from(own + distance, step, own + pair_bytes, pair_bytes);
  }
  Prefetch by_page(const void *weights, size_t pair_bytes) {
    at_ = static_cast<const char *>(weights), asked_ = std::max(asked_, at_ + pair_bytes);
    return Prefetch::of_pages();
  }

 private:
  static constexpr ptrdiff_t kMostAhead = 1 << 20, kFarBeyond = 116 << 10, kWellBeyond = 36 << 10;

  const char *at_ = nullptr, *asked_ = nullptr, *end_ = nullptr;
  const char *in_step_ = nullptr;  // where two pairs may begin whose beginnings have been asked for
  bool is_beyond_ = false;         // more has been asked for than the two pairs at work
};

// The same for a thread that may not ask memory (`ahead` is null), because other rows have asked already.
static inline Prefetch next_block(ReadAhead *ahead, const void *weights, size_t pair_bytes, int block, int blocks) {
  if (!ahead) return Prefetch::nearby();
  return ahead->next_block(static_cast<const char *>(weights), pair_bytes, static_cast<int>(pair_bytes / kLine), block,
                           blocks);
}

// Weights that are gone over several times, or part by part: each time asks for its share.
class Sweeps {
 public:
  Sweeps(ReadAhead *ahead, const char *weights, size_t bytes, int count)
      : ahead_(ahead), weights_(weights), bytes_(bytes), count_(count) {}

  Prefetch next(int steps) {
    return ahead_ ? ahead_->next_block(weights_, bytes_, steps, done_++, count_) : Prefetch::nearby();
  }

 private:
  ReadAhead *ahead_;
  const char *weights_;
  size_t bytes_;
  int count_, done_ = 0;
};
