// Low-rank changes of a decoder's matrices for the rows of some sequences (LoRA): y += B (A x).
#pragma once
#include <vector>

#include "pass/decoder.h"

// The change of one matrix, in float32. Each sum is one chain of a row by itself, over inputs and then over ranks in
// order, so that a row's bits do not depend on the rows beside it.
class AdaptedMatrix {
 public:
  AdaptedMatrix() = default;
  // `down` [ranks][inputs] is A, `up` [outputs][ranks] is B times the adapter's scale.
  AdaptedMatrix(const PackedLinear &linear, bool gated, int ranks, const float *down, const float *up)
      : ranks_(ranks), inputs_(linear.padded_inputs), down_(static_cast<size_t>(ranks) * inputs_, 0.f) {
    for (int rank = 0; rank < ranks; ++rank)
      std::copy_n(down + static_cast<size_t>(rank) * linear.inputs, linear.inputs, &down_[rank * inputs_]);
    for (int pair = 0; pair < linear.pairs; ++pair) pairs_.push_back(take_pair(linear, gated, pair, up));
  }

  int ranks() const { return ranks_; }

  // sums [ranks] = A x of one padded row.
  void lower(const float *x, float *sums) const {
    constexpr int kAtOnce = 4;  // whose chains run beside each other
    int rank = 0;
    for (; rank + kAtOnce <= ranks_; rank += kAtOnce) lower_some<kAtOnce>(x, rank, sums);
    for (; rank < ranks_; ++rank) lower_some<1>(x, rank, sums);
  }

  // Adds to a row's 32 columns of a pair what comes of its sums.
  void add(int pair, const float *sums, float *out) const {
    const Pair &its = pairs_[pair];
    Lanes left = load(out), right = load(out + 16);
    const float *up = up_.data() + its.begin;
    for (int rank = its.first; rank < its.end; ++rank, up += kColumns) {
      left = fma(splat(sums[rank]), load(up), left);
      right = fma(splat(sums[rank]), load(up + 16), right);
    }
    store(out, left), store(out + 16, right);
  }

 private:
  // Which ranks change its columns, and where their part of B [rank][32] stands.
  struct Pair {
    int first, end;
    size_t begin;
  };

  Pair take_pair(const PackedLinear &linear, bool gated, int pair, const float *up) {
    int outputs[kColumns], first = ranks_, end = 0;
    for (int column = 0; column < kColumns; ++column) {
      const int output = outputs[column] = Decoder::output_of(linear, gated, pair * kColumns + column);
      for (int rank = 0; output >= 0 && rank < ranks_; ++rank)
        if (up[static_cast<size_t>(output) * ranks_ + rank] != 0.f)
          first = std::min(first, rank), end = std::max(end, rank + 1);
    }
    const Pair found{first, end, up_.size()};
    for (int rank = first; rank < end; ++rank)
      for (const int output : outputs)
        up_.push_back(output < 0 ? 0.f : up[static_cast<size_t>(output) * ranks_ + rank]);
    return found;
  }

  template <int kCount>
  void lower_some(const float *x, int rank, float *sums) const {
    const float *const from = down_.data() + static_cast<size_t>(rank) * inputs_;
    Lanes sum[kCount];
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) sum[i] = splat(0.f);
    for (int k = 0; k < inputs_; k += 16) {
      const Lanes read = load(x + k);
#pragma GCC unroll 4
      for (int i = 0; i < kCount; ++i) sum[i] = fma(read, load(from + static_cast<size_t>(i) * inputs_ + k), sum[i]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) sums[rank + i] = reduce_add(sum[i]);
  }

  int ranks_ = 0, inputs_ = 0;
  std::vector<float> down_, up_;
  std::vector<Pair> pairs_;
};

// What one adapter changes of a decoder, which has to outlive it.
class Adapter {
 public:
  explicit Adapter(const Decoder &decoder) : decoder_(decoder), matrices_(decoder.layers.size() * kAdapted) {}

  void set(int layer, int which, int ranks, const float *down, const float *up) {
    matrices_[layer * kAdapted + which] = {decoder_.layers[layer].linears[which],
                                           which == kUp && decoder_.shape.gated != 0, ranks, down, up};
    most_ranks_ = std::max(most_ranks_, ranks);
  }

  bool is_of(const Decoder &decoder) const { return &decoder_ == &decoder; }
  int most_ranks() const { return most_ranks_; }
  // Null: it leaves this matrix as it is.
  const AdaptedMatrix *of(const PackedLinear &linear) const {
    if (linear.number < 0 || !matrices_[linear.number].ranks()) return nullptr;
    return &matrices_[linear.number];
  }

 private:
  const Decoder &decoder_;
  int most_ranks_ = 0;
  std::vector<AdaptedMatrix> matrices_;  // [layer][which]
};

// The adapters of a panel's rows, and what these have come to on their way through them.
class AdaptedRows {
 public:
  // Null on success, else what is wrong.
  const char *begin_pass(const HeadstartPass &pass, const Decoder &decoder, int most_rows, int most_alone) {
    any_ = false;
    if (!pass.adapters) return nullptr;
    int ranks = 0;
    for (int i = 0; i < pass.sequences; ++i)
      if (const auto *adapter = static_cast<const Adapter *>(pass.adapters[i])) {
        if (!adapter->is_of(decoder)) return "an adapter is of another model";
        ranks = std::max(ranks, adapter->most_ranks()), any_ = true;
      }
    if (!any_) return nullptr;
    of_rows_.assign(most_rows, nullptr);
    stride_ = round_up(ranks, 16), alone_ = most_alone;
    const size_t common = static_cast<size_t>(kAdapted) * most_rows * stride_;
    own_ = static_cast<size_t>(kAdapted) * most_alone * stride_, rows_ = most_rows;
    sums_.resize(std::max(sums_.size(), common + own_ * decoder.shape.threads));
    return nullptr;
  }

  // Those of the rows [first, first + rows) of the pass.
  void begin_panel(const HeadstartPass &pass, int first, int rows) {
    if (!any_) return;
    for (int i = 0; i < pass.sequences; ++i)
      for (int row = std::max(pass.row_starts[i], first); row < std::min(pass.row_starts[i + 1], first + rows); ++row)
        of_rows_[row - first] = static_cast<const Adapter *>(pass.adapters[i]);
  }

  // Whether any row of the pass has one.
  bool any() const { return any_; }

  // The change of a matrix for a row of the panel; null: there is none.
  const AdaptedMatrix *change(const PackedLinear &linear, int panel_row) const {
    const Adapter *const adapter = of_rows_[panel_row];
    return adapter ? adapter->of(linear) : nullptr;
  }

  // Where the sums of a row at work stand; those that `thread` has for itself, or for -1 what all share.
  float *sums(const PackedLinear &linear, int row, int thread) {
    const int which = linear.number % kAdapted;
    const size_t common = static_cast<size_t>(kAdapted) * rows_ * stride_;
    if (thread < 0) return sums_.data() + (static_cast<size_t>(which) * rows_ + row) * stride_;
    return sums_.data() + common + thread * own_ + (static_cast<size_t>(which) * alone_ + row) * stride_;
  }

 private:
  bool any_ = false;
  int rows_ = 0, alone_ = 0, stride_ = 0;
  size_t own_ = 0;
  std::vector<const Adapter *> of_rows_;  // [panel row]
  std::vector<float> sums_;
};
