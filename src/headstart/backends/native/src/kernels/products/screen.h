// The highest logit of a row without all of its logits.
//
// A copy of the output head in 8 bits, half the bytes of bf16, gives every logit to within a bound that holds whatever
// the row: the Cauchy-Schwarz inequality over what rounding took from the token's weights. Almost all tokens fall short
// of the best by more than that; the head itself decides between the others. So the answer is the head's own, always.
#pragma once
#include <cmath>
#include <vector>

#include "kernels/products/linear.h"

constexpr Precision kScreenPrecision = Precision::int8;  // two planes: a row's own rounding hardly counts

// |logit - screened logit| <= |x| times the token's radius, with |x| at least kLeastNorm; `reach` times |x| bounds
// every magnitude on the way.
struct HeadScreen {
  PackedLinear linear;
  std::vector<float> radii;  // [pairs * 32], NaN for padding, which no comparison finds
  float reach = 0.f;

  bool present() const { return linear.outputs > 0; }
};
constexpr float kLeastNorm = 1e-15f;    // its square is a normal number
constexpr float kLargestLogit = 1e37f;  // anything nearer to overflow is left to the head

// A token's radius for weights w, of which the screen keeps unit * rounded, over `inputs` of a row: what rounding took
// from the weights, what it takes from the row (to 16 bits, so never more than a rounded half of its unit and that is
// top / 32512), and what float sums may lose, in the head (Higham 2002, section 3.1, for any order of adding) as here.
static inline double screen_radius(const float *w, const float *rounded, double unit, int inputs) {
  double lost = 0, kept = 0, all = 0;
  for (int k = 0; k < inputs; ++k) {
    if (!(std::fabs(rounded[k]) <= 127.f)) return INFINITY;  // not a number, or too small for a unit
    const double near = unit * rounded[k], rest = w[k] - near;
    lost += rest * rest, kept += near * near, all += static_cast<double>(w[k]) * w[k];
  }
  const double of_row = 0.52 * std::sqrt(inputs) / 32512, of_sums = (2.0 * inputs + 64) * 0x1p-24;
  // A thousandth for the roundings of norm and product, and more than subnormal numbers that count as zero.
  return 1.001 * (std::sqrt(lost) + of_row * std::sqrt(kept) + of_sums * std::sqrt(all)) + 1e-12;
}

// Packs the copy of a head that computes in `precision` (bf16 or fp32).
static inline void pack_screen(HeadScreen &screen, Precision precision, const StoredMatrix &weight, const float *bias) {
  PackedLinear &linear = screen.linear;
  const size_t columns = static_cast<size_t>(linear.pairs) * kColumns;
  linear.scales.assign(columns, 1.f), linear.column_sums.assign(columns, 0);
  if (bias) linear.bias.assign(columns, 0.f), std::copy_n(bias, linear.outputs, linear.bias.begin());
  screen.radii.assign(columns, NAN);
  const int threads = static_cast<int>(linear.weights.size());
  float reach = 0.f;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(max : reach)
  for (int t = 0; t < threads; ++t) {
    std::vector<float> w(linear.padded_inputs), rounded(linear.padded_inputs);
    PackingLoss unused;
    for (int pair = linear.first_pair[t]; pair < linear.first_pair[t + 1]; ++pair)
      for (int column = 0; column < kColumns; ++column) {
        const int output = pair * kColumns + column;
        if (output >= linear.outputs) break;
        weight.read(output, w.data());
        if (precision == Precision::bf16)
          for (float &x : w) x = to_float(to_bf16(x));
        rounded = w;
        char *to = const_cast<char *>(linear.weights[t]) + (pair - linear.first_pair[t]) * linear.pair_bytes;
        pack_column_int8(linear, to, pair, column, rounded.data(), unused);
        const double radius = screen_radius(w.data(), rounded.data(), linear.scales[output], linear.padded_inputs);
        double squares = 0;
        for (const float x : w) squares += static_cast<double>(x) * x;
        // |w| |x| bounds a sum of products (Cauchy-Schwarz); four times that leaves room for its parts and roundings.
        const double most = 4 * std::sqrt(squares) + radius;
        const bool fits = most < kLargestLogit && (!bias || std::fabs(bias[output]) < kLargestLogit);
        screen.radii[output] = static_cast<float>(radius);
        reach = std::max(reach, fits ? static_cast<float>(most) : INFINITY);
      }
  }
  screen.reach = reach;
}

// A token, and what its logit cannot exceed.
struct Contender {
  float upper;
  int32_t id;
};

// What one thread's tokens leave of a row: those whose upper bound reaches the highest lower bound.
class ScreenedRow {
 public:
  void reset() { floor_ = -INFINITY, count_ = 0, full_ = false; }

  // 32 columns of screened logits; `bias` may be null.
  void take_columns(const float *x, float norm, const float *radii, const float *bias, int32_t first) {
    for (int h = 0; h < kColumns; h += 16) {
      const Lanes value = load(x + h), error = splat(norm) * load(radii + h);
      // Rounding keeps order, so the bounds outlast the bias.
      const Lanes offset = bias ? load(bias + h) : splat(0.f);
      const Lanes high = value + error + offset;
      uint32_t above = at_most(splat(floor_), high);
      if (!above) continue;  // neither do their lower bounds reach the floor
      raise(value - error + offset);
      alignas(64) float upper[16];
      store(upper, high);
      for (; above; above &= above - 1) {
        const int column = __builtin_ctz(above);
        if (upper[column] >= floor_) push({upper[column], first + h + column});
      }
    }
  }

  float floor() const { return floor_; }
  bool full() const { return full_; }
  const Contender *begin() const { return contenders_; }
  const Contender *end() const { return contenders_ + count_; }

 private:
  static constexpr int kCapacity = 1024;

  void raise(Lanes lower) {
    alignas(64) float each[16];
    store(each, lower);
    for (const float x : each)
      if (x > floor_) floor_ = x;  // never a NaN
  }
  void push(Contender contender) {
    if (count_ == kCapacity) {
      count_ = 0;
      for (const Contender &old : contenders_)
        if (old.upper >= floor_) contenders_[count_++] = old;
      full_ |= count_ == kCapacity;
    }
    if (!full_) contenders_[count_++] = contender;
  }

  float floor_;
  int count_;
  bool full_;
  Contender contenders_[kCapacity];
};
