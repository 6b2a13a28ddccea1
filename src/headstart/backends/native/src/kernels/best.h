// The likeliest tokens of a row of logits.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "vector_math.h"

// The log of the sum of exp(x); NaN where any x is.
static inline float log_sum_exp(const float *x, int size) {
  const int whole = size & ~15;
  alignas(64) float tail[16];
  std::fill(std::copy(x + whole, x + size, tail), tail + 16, -INFINITY);
  Lanes largest = load(tail);
  for (int k = 0; k < whole; k += 16) largest = max(largest, load(x + k));
  const Lanes top = splat(reduce_max(largest));
  // exp never gets as low as zero, so what is no logit is taken out.
  Lanes total = select_range(exp(load(tail) - top), 0, size - whole, splat(0.f));
  for (int k = 0; k < whole; k += 16) total = total + exp(load(x + k) - top);
  return reduce_max(largest) + std::log(reduce_add(total));
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
  constexpr int kBlock = 64;
  int k = 0;
  for (; k + kBlock <= size; k += kBlock) {
    const Lanes left = max(load(x + k), load(x + k + 16)), right = max(load(x + k + 32), load(x + k + 48));
    if (reduce_max(max(left, right)) <= log_probs[ranks - 1]) continue;
    for (int i = k; i < k + kBlock; ++i)
      if (x[i] > log_probs[ranks - 1]) insert(i);
  }
  for (; k < size; ++k)
    if (x[k] > log_probs[ranks - 1]) insert(k);
  const float total = log_sum_exp(x, size);
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
