// Mamba: every channel has a state of its own, whose numbers decay each at its own rate, by a step that the row chooses
// (see headstart.models.layers.mamba).
//
// States stand in bands of sixteen channels: [band][number][16].
#pragma once
#include <array>
#include <vector>

#include "pass/output_head.h"
#include "pass/state_mixer.h"

// What one row does to one band's states, and what it reads there. `before` and `after` [size][16] may be the same;
// `decay` [size][16], below 0: for a step of 1.
static inline Lanes advance_mamba(const float *before, float *after, int size, const float *decay, Lanes step,
                                  Lanes written, const float *where_to, const float *from_where) {
  const Lanes scaled = step * written;
  Lanes seen = splat(0.f);
  for (int n = 0; n < size; ++n) {
    const Lanes kept = exp(step * load(decay + 16 * n));
    const Lanes state = fma(scaled, splat(where_to[n]), load(before + 16 * n) * kept);
    store(after + 16 * n, state);
    seen = fma(state, splat(from_where[n]), seen);
  }
  return seen;
}

// A layer between its projections. The first one gives what a row writes [inner], and its gate. What is convolved of it
// enters the recurrence, and chooses what steps are made of, where to and from where: each stands by itself, filled up
// with zeros. These follow, then the steps.
class Mamba {
 public:
  explicit Mamba(const Decoder &model)
      : m_(model),
        of_(model.shape.mamba),
        chosen_(of_.inner + kPadding),
        where_to_(chosen_ + round_up(of_.step_rank, kPadding)),
        from_where_(where_to_ + round_up(of_.state_size, 16)),
        steps_(from_where_ + round_up(of_.state_size, 16)) {
    const int widest = round_up(std::max(of_.inner, of_.step_rank), kPadding);
    for (int form = 0; form < Decoder::kForms; ++form)
      if (m_.has_form(form))
        input_[form] = packed_rows(m_.precision_of_form(form), m_.kernels[form].element, memory_, kPanelRows, widest);
    selected_stride_ = round_up(of_.step_rank + 2 * of_.state_size, kColumns) + 16;
    selected_ = memory_.emplace_back(kPanelRows * selected_stride_ * sizeof(float)).as<float>();
  }

  // One thread's part; `meet()` is a barrier.
  template <class Meet>
  void run(const DecoderLayer &layer, const LayerStates &states, const MixerRows &rows, float *copies, int thread,
           ReadAhead &ahead, PairDeal &deal, Meet &&meet) const {
    const int threads = m_.shape.threads, count = states.layout.rows();
    const auto multiply = [&](const PackedLinear &linear, auto &&source, auto &&to) {
      const int form = m_.form_of(linear);
      for (int row = thread; row < count; row += threads)
        m_.kernels[form].store_row(input_[form], row, source(row), linear.padded_inputs);
      meet();
      run_linear(m_.kernels[form], linear, input_[form], count, thread, ahead, deal,
                 [&](int pair, int row, int n, const float *out) {
                   for (int r = 0; r < n; ++r)
                     std::memcpy(to(row + r) + pair * kColumns, out + r * kColumns, kColumns * sizeof(float));
                 });
      meet();
    };
    convolve_projected(layer, states, rows, 0, thread, threads);
    meet();
    multiply(
        layer.linears[kSelection], [&](int row) { return states.entering(row); },
        [this](int row) { return selected_ + row * selected_stride_; });
    multiply(
        layer.linears[kStep],
        [&](int row) {
          choose(layer, selected_ + row * selected_stride_, states.entering(row));
          return states.entering(row) + chosen_;
        },
        [&](int row) { return states.entering(row) + steps_; });
    const auto advance = [&](int unit, int row, const float *entered, const float *before, float *after) {
      const int channel = 16 * unit;
      const Lanes written = load(entered + channel);
      const Lanes step = softplus(load(entered + steps_ + channel) + load(layer.constants[kStepBias].data() + channel));
      const float *const decay = layer.constants[kDecay].data() + channel * of_.state_size;
      const Lanes seen = advance_mamba(before, after, of_.state_size, decay, step, written, entered + where_to_,
                                       entered + from_where_);
      if (row < 0 || rows.places[row] < 0) return;
      const Lanes given = seen + written * load(layer.constants[kSkip].data() + channel);
      const Lanes gate = load(rows.projected_of(row) + of_.inner + channel);
      store_activation(rows.kind, rows.out, rows.places[row], channel, given * activate(Activation::silu, gate));
    };
    recur(states, thread, threads, copies, advance);
  }

 private:
  // What steps are made of, where to and from where, normed where the model does that.
  void choose(const DecoderLayer &layer, const float *from, float *entering) const {
    const std::vector<float> &norms = layer.constants[kStateNorm];
    const float *norm = norms.data();
    const auto take = [&](int size, int at) {
      float *const to = entering + at;
      if (norms.empty())
        std::memcpy(to, from, size * sizeof(float));
      else
        normalise(NormKind::rms, norm, nullptr, size, of_.norm_eps, from, size, to);
      from += size, norm += round_up(size, 16);
    };
    take(of_.step_rank, chosen_), take(of_.state_size, where_to_), take(of_.state_size, from_where_);
  }

  const Decoder &m_;
  const HeadstartMamba &of_;
  const int chosen_, where_to_, from_where_, steps_;  // where they begin in what enters the recurrence
  std::vector<AlignedBuffer> memory_;
  std::array<Activations, Decoder::kForms> input_;
  float *selected_;  // [panel row][selected_stride_]
  size_t selected_stride_;
};
