// Weights in 4 bits: an output's inputs in blocks of 32, each with a unit and an offset of its own,
//     weight = unit * level + offset, level 0 to 15.
//
// So do GGUF's Q4_1, Q4_0 and Q4_K keep them. Weights that stand on such a grid are found on it again, with units and
// offsets of half precision, as in those files; others are rounded to the grid that suits a block best.
#pragma once
#include <algorithm>
#include <cmath>

#include "cells.h"
#include "vector.h"

constexpr int kBlockInputs = 32;
constexpr float kTopLevel = 15.f;

// Of a pair of columns: for every four inputs 64 bytes, [column of 16][input], the first 16 columns' levels in their
// lower halves; then units and offsets [32 columns].
constexpr int kBlockStepBytes = 64, kBlockUnits = kBlockInputs / 4 * kBlockStepBytes;
constexpr int kBlockOffsets = kBlockUnits + kColumns * 2, kBlockBytes = kBlockOffsets + kColumns * 2;

static inline float rounded_to_half(float x) { return _cvtsh_ss(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT)); }

// The grid of one block, and where its weights stand on it.
class BlockGrid {
 public:
  // The best that is found for 32 weights, of magnitudes that suit half precision.
  explicit BlockGrid(const float *w) : w_(w) {
    Lanes least = load(w), most = load(w);
    least = min(least, load(w + 16)), most = max(most, load(w + 16));
    const float low = -reduce_max(splat(0.f) - least), span = reduce_max(most) - low;
    consider(0.f, low);
    if (!(span > 0.f)) return;
    const float rounding = span * 1e-6f, of_halves = span * 2e-4f;
    for (float levels = kTopLevel; levels >= 1.f && !is_within(rounding); --levels)
      if (is_on_grid(low, span / levels))
        // The lowest weight need not be on the lowest level.
        for (float below = 0.f; below <= kTopLevel - levels && !is_within(rounding); ++below)
          consider(span / levels, low - below * (span / levels));
    if (is_within(of_halves)) return;  // a grid whose unit and offset have more digits
    for (float levels = kTopLevel; levels < kTopLevel + kNarrower; ++levels) {
      const float unit = span / levels;
      suit(unit, low + (levels - kTopLevel) / 2 * unit);
    }
  }

  float unit() const { return unit_; }
  float offset() const { return offset_; }
  int level(int input) const { return static_cast<int>(levels_[input]); }

 private:
  // Grids that leave out what is beyond them, by half a unit on either side each.
  static constexpr float kNarrower = 4.f;

  static Lanes nearest(Lanes w, float unit, float offset) {
    return min(max(round((w - splat(offset)) / splat(unit)), splat(0.f)), splat(kTopLevel));
  }
  bool is_on_grid(float low, float unit) const {
    Lanes off = splat(0.f);
    for (int k = 0; k < kBlockInputs; k += 16) {
      const Lanes place = (load(w_ + k) - splat(low)) / splat(unit);
      off = max(off, abs(place - round(place)));
    }
    return reduce_max(off) < 1.f / 64;
  }
  bool is_within(float each) const { return lost_ <= kBlockInputs * each * each; }

  // Keeps a grid that is better than the best so far.
  void consider(float unit, float offset) {
    unit = rounded_to_half(unit), offset = rounded_to_half(offset);
    float levels[kBlockInputs];
    Lanes lost = splat(0.f);
    for (int k = 0; k < kBlockInputs; k += 16) {
      const Lanes w = load(w_ + k), level = unit > 0.f ? nearest(w, unit, offset) : splat(0.f);
      store(levels + k, level);
      const Lanes off = fma(level, splat(unit), splat(offset)) - w;
      lost = fma(off, off, lost);
    }
    const float sum = reduce_add(lost);
    if (!(sum < lost_)) return;
    unit_ = unit, offset_ = offset, lost_ = sum;
    std::memcpy(levels_, levels, sizeof levels);
  }

  // Considers the unit and offset that suit the levels of a grid best: least squares.
  void suit(float unit, float offset) {
    Lanes sum_w = splat(0.f), sum_l = sum_w, squares = sum_w, products = sum_w;
    for (int k = 0; k < kBlockInputs; k += 16) {
      const Lanes w = load(w_ + k), level = nearest(w, unit, offset);
      sum_w = sum_w + w, sum_l = sum_l + level;
      squares = fma(level, level, squares), products = fma(level, w, products);
    }
    const float n = kBlockInputs, of_w = reduce_add(sum_w), of_l = reduce_add(sum_l);
    const float spread = n * reduce_add(squares) - of_l * of_l;
    if (spread <= 0.f) return;
    const float slope = (n * reduce_add(products) - of_l * of_w) / spread;
    consider(slope, (of_w - slope * of_l) / n);
  }

  const float *w_;
  float unit_ = 0.f, offset_ = 0.f, lost_ = INFINITY;
  float levels_[kBlockInputs] = {};
};

// Writes one column of a pair; w has room for the padded inputs and is changed. Returns the column's scale, a power of
// two that brings its weights into the middle of what half precision can say.
static inline float pack_blocks(char *pair_at, int column, float *w, int inputs, int padded_inputs) {
  // What stands where rows have nothing does not matter, but must not spoil the grid of the last block.
  std::fill(w + inputs, w + padded_inputs, w[inputs - 1]);
  Lanes top = splat(0.f);
  for (int k = 0; k < padded_inputs; k += 16) top = max(top, abs(load(w + k)));
  const float largest = reduce_max(top);
  const float scale = largest > 0.f && largest < INFINITY ? std::exp2(std::floor(std::log2(largest)) - 8) : 1.f;
  for (int k = 0; k < padded_inputs; k += 16) store(w + k, load(w + k) / splat(scale));
  const int shift = column < 16 ? 0 : 4;
  for (int first = 0; first < padded_inputs; first += kBlockInputs, pair_at += kBlockBytes) {
    const BlockGrid grid(w + first);
    for (int k = 0; k < kBlockInputs; ++k) {
      char &two = pair_at[k / 4 * kBlockStepBytes + column % 16 * 4 + k % 4];
      two = static_cast<char>((two & ~(15 << shift)) | grid.level(k) << shift);
    }
    const uint16_t unit = _cvtss_sh(grid.unit(), _MM_FROUND_TO_NEAREST_INT);
    const uint16_t offset = _cvtss_sh(grid.offset(), _MM_FROUND_TO_NEAREST_INT);
    std::memcpy(pair_at + kBlockUnits + column * 2, &unit, 2);
    std::memcpy(pair_at + kBlockOffsets + column * 2, &offset, 2);
  }
  return scale;
}
