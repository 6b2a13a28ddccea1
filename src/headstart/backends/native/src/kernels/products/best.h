// The likeliest tokens of a row of logits.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/vectors/vector_math.h"

// The log of the sum of exp(x), the largest of which is `largest`; NaN where any x is.
static inline float log_sum_exp(const float *x, int size, float largest) {
  const int whole = size & ~15;
  alignas(64) float tail[16];
  std::fill(std::copy(x + whole, x + size, tail), tail + 16, -INFINITY);
  const Lanes top = splat(largest);
  // exp never gets as low as zero, so what is no logit is taken out.
  Lanes total = select_range(exp(load(tail) - top), 0, size - whole, splat(0.f));
  for (int k = 0; k < whole; k += 16) total = total + exp(load(x + k) - top);
  return largest + std::log(reduce_add(total));
}

// Calls `insert(i)` for every x[i] > bar(), in order; that may raise the bar.
template <class Bar, class Insert>
static inline void above_bar(const float *x, int size, Bar &&bar, Insert &&insert) {
  constexpr int kBlock = 64;
  int k = 0;
  for (; k + kBlock <= size; k += kBlock) {
    const Lanes left = max(load(x + k), load(x + k + 16)), right = max(load(x + k + 32), load(x + k + 48));
    if (reduce_max(max(left, right)) <= bar()) continue;
    for (int i = k; i < k + kBlock; ++i)
      if (x[i] > bar()) insert(i);
  }
  for (; k < size; ++k)
    if (x[k] > bar()) insert(k);
}

// Where the largest of a row stands, the first of equals; 0 where it holds no number.
static inline int largest_of_row(const float *x, int size) {
  float largest = -INFINITY;
  int at = 0;
  above_bar(x, size, [&] { return largest; }, [&](int i) { largest = x[at = i]; });
  return at;
}

// The `ranks` largest of a row, the first of equals first; ids and log-probabilities. Ranks past its size have id 0
// and log-probability -inf; a row that holds a NaN has no other log-probabilities.
static inline void best_of_row(const float *x, int size, int ranks, float *log_probs, int32_t *ids) {
  for (int rank = 0; rank < ranks; ++rank) log_probs[rank] = -INFINITY, ids[rank] = 0;
  const auto insert = [&](int id) {
    int rank = ranks - 1;
    for (; rank > 0 && x[id] > log_probs[rank - 1]; --rank)
      log_probs[rank] = log_probs[rank - 1], ids[rank] = ids[rank - 1];
    log_probs[rank] = x[id], ids[rank] = id;
  };
  above_bar(x, size, [&] { return log_probs[ranks - 1]; }, insert);
  const float total = log_sum_exp(x, size, log_probs[0]);
  for (int rank = 0; rank < ranks; ++rank) log_probs[rank] -= total;
}

// The highest logit seen so far, the first of equals. Not finite: the row has no such thing.
struct BestLogit {
  float value = -INFINITY;
  int32_t id = -1;

  void take(float other, int32_t other_id) {
    if (other != other) other = INFINITY;
    if (other > value || (other == value && other_id < id)) value = other, id = other_id;
  }
  // Of 32 columns the first `count`.
  void take_columns(const float *x, int32_t first, int count) {
    const Lanes top = splat(value);
    if (first > id && (at_most(load(x), top) & at_most(load(x + 16), top)) == 0xffff) return;
    for (int i = 0; i < count; ++i) take(x[i], first + i);
  }
  int32_t answer() const { return std::isfinite(value) ? id : -1; }
};
