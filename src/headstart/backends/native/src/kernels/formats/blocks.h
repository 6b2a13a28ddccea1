// Weights in blocks: an output's inputs 32 by 32, each block with a grid of its own, of half precision:
//     4 bits: weight = unit * level + offset, level 0 to 15
//     8 bits: weight = unit * (level - 128); where dot products are of signed bytes, levels are 128 less
//
// So do GGUF's Q4_1, Q4_0 and Q4_K keep them, and Q8_0. Where a file says which grid weights stand on, they are put on
// that one; else they are found on theirs again, with units and offsets of half precision, as in those files. Others
// are rounded to the grid that suits a block best. A unit may be negative: Q4_0's is for half of the blocks, and 7 of
// them have more digits than half precision.
#pragma once
#include <algorithm>
#include <cmath>

#include "kernels/formats/cells.h"
#include "kernels/formats/stored_rows.h"
#include "kernels/vectors/vector.h"

constexpr int kBlockInputs = 32;
static_assert(kBlockInputs == 2 * kGridInputs, "a block has two of a file's grids");

// What packing has changed: sums over weights. `by_bf16` is what rounding them to bf16 would come to.
struct PackingLoss {
  double lost = 0, by_bf16 = 0, squares = 0;

  // `other` of weights that were divided by `scale`.
  void add(const PackingLoss &other, double scale = 1) {
    const double square = scale * scale;
    lost += other.lost * square, by_bf16 += other.by_bf16 * square, squares += other.squares * square;
  }
};

static inline float rounded_to_half(float x) { return from_half(to_half(x)); }
static inline void store_half(char *to, float x) {
  const uint16_t half = to_half(x);
  std::memcpy(to, &half, 2);
}

// The best grid found so far for the 32 weights of a block, and where they stand on it.
class BlockGrid {
 public:
  float unit() const { return unit_; }
  float offset() const { return offset_; }
  // The 32 levels as bytes, `zero` added.
  void store_levels(uint8_t *to, int zero) const {
    for (int k = 0; k < kBlockInputs; k += 16) store_one_plane(to + k, load(levels_ + k), zero);
  }
  float lost() const { return lost_; }

 protected:
  // Weights of magnitudes that suit half precision; levels from `least` to `most`.
  BlockGrid(const float *w, float least, float most) : w_(w), least_(least), most_(most) {}

  bool is_within(float each) const { return lost_ <= kBlockInputs * each * each; }
  Lanes nearest(Lanes w, float unit, float offset) const {
    return min(max(round((w - splat(offset)) / splat(unit)), splat(least_)), splat(most_));
  }

  // Keeps a grid that is better than the best so far.
  void consider(float unit, float offset) {
    unit = rounded_to_half(unit), offset = rounded_to_half(offset);
    float levels[kBlockInputs];
    Lanes lost = splat(0.f);
    for (int k = 0; k < kBlockInputs; k += 16) {
      const Lanes w = load(w_ + k), level = unit != 0.f ? nearest(w, unit, offset) : splat(0.f);
      store(levels + k, level);
      const Lanes off = fma(level, splat(unit), splat(offset)) - w;
      lost = fma(off, off, lost);
    }
    const float sum = reduce_add(lost);
    if (!(sum < lost_)) return;
    unit_ = unit, offset_ = offset, lost_ = sum;
    std::memcpy(levels_, levels, sizeof levels);
  }

  const float *w_;

 private:
  const float least_, most_;
  float unit_ = 0.f, offset_ = 0.f, lost_ = INFINITY;
  float levels_[kBlockInputs] = {};
};

class FourBitGrid : public BlockGrid {
 public:
  FourBitGrid(const float *w, StoredGrid known) : BlockGrid(w, 0.f, kTopLevel) {
    // Of a grid whose unit and offset have more digits than a half has, something is lost.
    if (known.unit != 0.f) {
      consider(known.unit, known.offset);
      if (is_within(std::fabs(known.unit) * 3e-3f)) return;
    }
    Lanes least = load(w), most = load(w);
    least = min(least, load(w + 16)), most = max(most, load(w + 16));
    const float low = -reduce_max(splat(0.f) - least), span = reduce_max(most) - low;
    consider(0.f, low);
    if (!(span > 0.f)) return;
    const float rounding = span * 1e-6f, of_halves = span * 2e-4f;
    for (float levels = kTopLevel; levels >= 1.f && !is_within(rounding); --levels)
      if (is_on_grid(low, span / levels))
        // The lowest weight need not be on the lowest level.
        for (float below = 0.f; below <= kTopLevel - levels && !is_within(rounding); ++below) {
          consider(span / levels, low - below * (span / levels));
          if (!is_within(rounding)) consider(-span / levels, low + span + below * (span / levels));
        }
    if (is_within(of_halves)) return;  // a grid whose unit and offset have more digits
    for (float levels = kTopLevel; levels < kTopLevel + kNarrower; ++levels) {
      const float unit = span / levels;
      suit(unit, low + (levels - kTopLevel) / 2 * unit);
    }
  }

 private:
  static constexpr float kTopLevel = 15.f;
  // Grids that leave out what is beyond them, by half a unit on either side each.
  static constexpr float kNarrower = 4.f;

  bool is_on_grid(float low, float unit) const {
    Lanes off = splat(0.f);
    for (int k = 0; k < kBlockInputs; k += 16) {
      const Lanes place = (load(w_ + k) - splat(low)) / splat(unit);
      off = max(off, abs(place - round(place)));
    }
    return reduce_max(off) < 1.f / 64;
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
};

// Symmetric: levels count from the one that stands for zero.
class EightBitGrid : public BlockGrid {
 public:
  EightBitGrid(const float *w, StoredGrid known) : BlockGrid(w, -128.f, 127.f) {
    const float largest = reduce_max(max(abs(load(w)), abs(load(w + 16))));
    if (known.unit != 0.f) consider(known.unit, 0.f);
    // Where the largest magnitude stands in Q8_0, Q5_0 and Q4_0.
    for (const float level : {127.f, 16.f, 8.f})
      if (!is_within(largest * 1e-6f)) consider(largest / level, 0.f);
  }
};

// How a pair of columns keeps a block in 4 bits: for every four inputs 64 bytes, [column of 16][input], the first 16
// columns' levels in their lower halves; then units and offsets [32 columns].
struct FourBits {
  static constexpr int kStepBytes = 64, kUnits = kBlockInputs / 4 * kStepBytes;
  static constexpr int kOffsets = kUnits + kColumns * 2, kBytes = kOffsets + kColumns * 2;

  static float pack(char *block, int column, const float *w, StoredGrid known) {
    const FourBitGrid grid(w, known);
    const int shift = column < 16 ? 0 : 4;
    uint8_t levels[kBlockInputs];
    grid.store_levels(levels, 0);
    for (int k = 0; k < kBlockInputs; k += 4) {
      char *const at = block + k / 4 * kStepBytes + column % 16 * 4;
      uint32_t both, four;
      std::memcpy(&both, at, 4), std::memcpy(&four, levels + k, 4);
      both = (both & ~(0x0f0f0f0fu << shift)) | four << shift;
      std::memcpy(at, &both, 4);
    }
    store_half(block + kUnits + column * 2, grid.unit());
    store_half(block + kOffsets + column * 2, grid.offset());
    return grid.lost();
  }
};

// In 8 bits: for every four inputs 128 bytes, [32 columns][input]; then units [32 columns].
struct EightBits {
  static constexpr int kStepBytes = 128, kUnits = kBlockInputs / 4 * kStepBytes;
  static constexpr int kBytes = kUnits + kColumns * 2;
  static constexpr int kZero = kSignedBytes ? 0 : 128;  // the level that stands for it

  static float pack(char *block, int column, const float *w, StoredGrid known) {
    const EightBitGrid grid(w, known);
    uint8_t levels[kBlockInputs];
    grid.store_levels(levels, kZero);
    for (int k = 0; k < kBlockInputs; k += 4) std::memcpy(block + k / 4 * kStepBytes + column * 4, levels + k, 4);
    store_half(block + kUnits + column * 2, grid.unit());
    return grid.lost();
  }
  // The floats of some inputs of a column whose units count in `scale`.
  static void read(const char *block, int column, float scale, int inputs, float *to) {
    uint16_t half;
    std::memcpy(&half, block + kUnits + column * 2, 2);
    const float unit = from_half(half) * scale;
    for (int k = 0; k < inputs; ++k) {
      const auto level = static_cast<uint8_t>(block[k / 4 * kStepBytes + column * 4 + k % 4] + (128 - kZero));
      to[k] = static_cast<float>(level - 128) * unit;
    }
  }
};

// The squares of some weights, and what bf16 would take of them.
static inline void weigh(const float *w, int count, PackingLoss &loss) {
  Lanes squares = splat(0.f), lost = splat(0.f);
  for (int k = 0; k < count; k += 16) {
    Bf16 rounded[16];
    const Lanes all = load(w + k);
    store_bf16(rounded, all);
    const Lanes off = load_bf16(rounded) - all;
    squares = fma(all, all, squares), lost = fma(off, off, lost);
  }
  loss.squares += reduce_add(squares), loss.by_bf16 += reduce_add(lost);
}

// Brings a column into its scale, a power of two that puts its weights into the middle of what half precision can say;
// w has the padded inputs, zeros behind a row's own. Returns the scale.
static inline float prepare_column(float *w, int inputs, int padded_inputs, PackingLoss &scaled) {
  Lanes top = splat(0.f);
  for (int k = 0; k < padded_inputs; k += 16) top = max(top, abs(load(w + k)));
  const float largest = reduce_max(top);
  const float scale = largest > 0.f && largest < INFINITY ? std::exp2(std::floor(std::log2(largest)) - 8) : 1.f;
  for (int k = 0; k < padded_inputs; k += 16) store(w + k, load(w + k) / splat(scale));
  weigh(w, padded_inputs, scaled);
  // What stands where rows have nothing does not matter, but must not spoil the grid of the last block.
  std::fill(w + inputs, w + padded_inputs, w[inputs - 1]);
  return scale;
}

// Writes one column of a pair; w as `prepare_column` takes it, and is changed. Returns the column's scale. `grids`: of
// its inputs, or null.
template <class Blocks>
static inline float pack_blocks(char *pair_at, int column, float *w, int inputs, int padded_inputs,
                                const StoredGrid *grids, PackingLoss &loss) {
  PackingLoss own;
  const float scale = prepare_column(w, inputs, padded_inputs, own);
  for (int first = 0; first < padded_inputs; first += kBlockInputs, pair_at += Blocks::kBytes) {
    StoredGrid known;
    if (const StoredGrid *two = grids + first / kGridInputs; grids && first < inputs && two[0] == two[1])
      known = two[0];
    const float lost = Blocks::pack(pair_at, column, w + first, {known.unit / scale, known.offset / scale});
    if (first < inputs) own.lost += lost;
  }
  loss.add(own, scale);
  return scale;
}
