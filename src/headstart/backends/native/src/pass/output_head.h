// The end of a pass: logits of some rows, the best token of others.
#pragma once
#include <algorithm>
#include <array>
#include <vector>

#include "kernels/products/best.h"
#include "pass/decoder.h"

// Rows run together; longer passes run in panels, whose rows see the keys of the panels before.
constexpr int kPanelRows = 256;

class OutputHead {
 public:
  explicit OutputHead(const Decoder &model) : m_(model), best_(model.shape.threads), scratch_(model.shape.threads) {
    const auto rows = [&](int count) {
      return packed_rows(m_.head_precision, m_.head_kernel.element, memory_, count, m_.hidden);
    };
    input_ = rows(kPanelRows);
    for (std::vector<float> &scratch : scratch_) scratch.resize(m_.hidden), own_.push_back(rows(kRowBlock));
    if (!m_.screen.present()) return;
    screen_input_ = packed_rows(kScreenPrecision, ElementKind::int8, memory_, kPanelRows, m_.hidden);
    screened_.assign(m_.shape.threads, std::vector<ScreenedRow>(kPanelRows));
  }

  void begin_pass(const HeadstartPass &pass) { pass_ = &pass, logits_ = best_rows_ = {}; }

  // The panel of rows [first, first + rows).
  void begin_panel(int first, int rows) {
    first_ = first;
    logits_.advance(pass_->logit_rows, pass_->wanted, first + rows);
    best_rows_.advance(pass_->best_rows, pass_->best, first + rows);
    // Not beside rows that need the head anyway, nor where the tokens of a head lie too close for its screen.
    screens_ = m_.screen.present() && logits_.count == 0 && best_rows_.count > 0 && best_rows_.count <= kScreenedRows &&
               undecided_ <= 16 + screened_count_ / 8;
  }
  void end_panel() {
    if (!screens_) return;
    screened_count_ += best_rows_.count;
    undecided_ += std::count(decided_.begin(), decided_.begin() + best_rows_.count, false);
  }

  // One thread's part. `state(row, out)` writes a row of the panel as the final norm leaves it, padded; `meet()` is a
  // barrier.
  template <class State, class Meet>
  void run(int thread, ReadAhead &ahead, PairDeal &deal, State &&state, Meet &&meet) {
    if (screens_) screen(thread, ahead, deal, state, meet);
    std::vector<int> places;  // best row i of the panel, or -1 - i for logit row i
    for (int i = 0; i < logits_.count; ++i) places.push_back(-1 - i);
    for (int i = 0; i < best_rows_.count; ++i)
      if (!screens_ || !decided_[i]) places.push_back(i);
    if (!places.empty()) multiply(places, thread, ahead, deal, state, meet);
  }

 private:
  // Rows of one kind in the panel: entries [first, first + count) of the pass's list.
  struct Share {
    int first = 0, count = 0;

    void advance(const int32_t *rows, int size, int end_row) {
      first += count, count = 0;
      while (first + count < size && rows[first + count] < end_row) ++count;
    }
  };

  int best_row(int i) const { return pass_->best_rows[best_rows_.first + i] - first_; }
  int row_of(int place) const {
    return place < 0 ? pass_->logit_rows[logits_.first - 1 - place] - first_ : best_row(place);
  }
  int32_t &best_id(int i) const { return pass_->best_ids[best_rows_.first + i]; }

  // This thread's rows of `count`.
  template <class Work>
  void my_rows(int count, int thread, Work &&work) const {
    for (int i = thread; i < count; i += m_.shape.threads) work(i);
  }

  template <class State>
  void pack(const Activations &to, int at, int row, int thread, State &&state) {
    state(row, scratch_[thread].data());
    m_.head_kernel.store_row(to, at, scratch_[thread].data(), m_.hidden);
  }

  // All of the head for these rows.
  template <class State, class Meet>
  void multiply(const std::vector<int> &places, int thread, ReadAhead &ahead, PairDeal &deal, State &&state,
                Meet &&meet) {
    ahead.begin(m_.head.weights[thread], m_.streams[thread].data() + m_.streams[thread].size());
    const int rows = static_cast<int>(places.size());
    // Up to two rows every thread packs for itself: cheaper than one more barrier.
    const bool alone = rows <= 2;
    const Activations &input = alone ? own_[thread] : input_;
    for (int i = alone ? 0 : thread; i < rows; i += alone ? 1 : m_.shape.threads)
      pack(input, i, row_of(places[i]), thread, state);
    if (!alone) meet();
    std::vector<BestLogit> &best = best_[thread];
    best.assign(best_rows_.count, {});
    const int size = m_.shape.vocab;
    const size_t stride = pass_->logit_stride ? pass_->logit_stride : size;
    const float cap = m_.shape.logit_softcap;
    const auto take = [&](int pair, int row, int count, const float *out) {
      const int column = pair * kColumns, columns = std::min(kColumns, size - column);
      for (int r = 0; r < count; ++r) {
        alignas(64) float capped[kColumns];
        for (int h = 0; h < kColumns; h += 16) {
          const Lanes v = load(out + r * kColumns + h);
          store(capped + h, cap != 0.f ? splat(cap) * tanh(v / splat(cap)) : v);
        }
        if (const int place = places[row + r]; place >= 0)
          best[place].take_columns(capped, column, columns);
        else
          std::memcpy(pass_->logits + (logits_.first - 1 - place) * stride + column, capped, columns * sizeof(float));
      }
    };
    run_linear(m_.head_kernel, m_.head, input, rows, thread, ahead, deal, take);
    if (best_rows_.count == 0) return;
    meet();
    my_rows(rows, thread, [&](int i) {
      if (places[i] < 0) return;
      BestLogit all;
      for (const std::vector<BestLogit> &each : best_) all.take(each[places[i]].value, each[places[i]].id);
      best_id(places[i]) = all.answer();
    });
  }

  // Decides all best rows, but for those where too much is left.
  template <class State, class Meet>
  void screen(int thread, ReadAhead &ahead, PairDeal &deal, State &&state, Meet &&meet) {
    const HugeBuffer &stream = m_.screen_streams[thread];
    ahead.begin(stream.data(), stream.data() + stream.size());
    const int rows = best_rows_.count;
    const LinearKernel kernel = linear_kernel(kScreenPrecision);
    const HeadScreen &screen = m_.screen;
    my_rows(rows, thread, [&](int i) {
      float *x = scratch_[thread].data();
      state(best_row(i), x);
      // What the head multiplies is what is to be bounded.
      if (m_.head_kernel.element == ElementKind::bf16)
        for (int k = 0; k < m_.hidden; ++k) x[k] = to_float(to_bf16(x[k]));
      kernel.store_row(screen_input_, i, x, m_.hidden);
      norms_[i] = norm_of(x);
    });
    meet();
    std::vector<ScreenedRow> &screened = screened_[thread];
    for (int i = 0; i < rows; ++i) screened[i].reset();
    const auto take = [&](int pair, int row, int count, const float *out) {
      const int column = pair * kColumns;
      const float *bias = screen.linear.bias.empty() ? nullptr : &screen.linear.bias[column];
      for (int r = 0; r < count; ++r)
        screened[row + r].take_columns(out + r * kColumns, norms_[row + r], &screen.radii[column], bias, column);
    };
    run_products(kernel, screen.linear, screen_input_, rows, thread, ahead, deal, {}, {}, take);
    meet();
    my_rows(rows, thread, [&](int i) { decided_[i] = decide(i, thread, state); });
    meet();
  }

  float norm_of(const float *x) const {
    Lanes squares = splat(0.f);
    for (int k = 0; k < m_.hidden; k += 16) squares = fma(load(x + k), load(x + k), squares);
    const float norm = std::sqrt(reduce_add(squares));
    return norm < kLeastNorm ? kLeastNorm : norm;
  }

  // The best token among those that the screen leaves of a row, by their own logits; false where these are too many or
  // the bounds do not hold.
  template <class State>
  bool decide(int i, int thread, State &&state) {
    if (!(norms_[i] * m_.screen.reach < kLargestLogit)) return false;
    float floor = -INFINITY;
    for (const std::vector<ScreenedRow> &each : screened_) {
      if (each[i].full()) return false;
      floor = std::max(floor, each[i].floor());
    }
    std::vector<Contender> left;
    for (const std::vector<ScreenedRow> &each : screened_)
      std::copy_if(each[i].begin(), each[i].end(), std::back_inserter(left),
                   [&](const Contender &c) { return c.upper >= floor; });
    if (left.size() > kMostDecided) return false;
    if (left.size() == 1) {
      best_id(i) = left[0].id;
      return true;
    }
    pack(own_[thread], 0, best_row(i), thread, state);
    std::sort(left.begin(), left.end(), [](const Contender &a, const Contender &b) { return a.upper > b.upper; });
    BestLogit best;
    for (const Contender &contender : left) {
      if (contender.upper < best.value) break;
      const float value = logit(contender.id, thread);
      if (value == best.value && contender.id < best.id) best.id = contender.id;
      best.take(value, contender.id);
    }
    best_id(i) = best.answer();
    return true;
  }

  // One logit of the row that the thread has packed for itself, as a pass over all of the head computes it.
  float logit(int token, int thread) const {
    alignas(64) float out[kRowBlock * kColumns];
    const int pair = token / kColumns;
    m_.head_kernel.multiply(m_.head, pair, m_.head.pair_weights(pair), own_[thread], 0, 1, nullptr, out);
    add_bias(m_.head, pair, 1, out);
    return out[token % kColumns];
  }

  static constexpr size_t kMostDecided = 256;  // logits one by one: all of the head costs no more than so many

  const Decoder &m_;
  const HeadstartPass *pass_ = nullptr;
  int first_ = 0;
  Share logits_, best_rows_;
  bool screens_ = false;
  int64_t screened_count_ = 0, undecided_ = 0;  // rows so far
  std::vector<AlignedBuffer> memory_;
  // Where rows are packed for the head: for the team, and by a thread for itself [thread].
  Activations input_;
  std::vector<Activations> own_;
  std::vector<std::vector<BestLogit>> best_;        // [thread][best row], among the thread's tokens
  std::vector<std::vector<float>> scratch_;         // [thread]
  std::vector<std::vector<ScreenedRow>> screened_;  // [thread][best row]
  Activations screen_input_;
  std::array<float, kPanelRows> norms_;   // [best row]
  std::array<bool, kPanelRows> decided_;  // [best row]
};
