// Mamba-2: a head's state, a matrix of what is written to where to, decays by a step that the row chooses, takes up
// what the row writes, and is read (see headstart.models.layers.mamba2).
//
// Elements of a head do not see each other, so that its state is computed, and stands, in bands of them:
// [band][number][kMamba2Band], the last one filled up. A band stays in the nearest cache while it walks through the
// rows of a panel.
#pragma once
#include "pass/state_mixer.h"

// What one row does to one band of a head's state, and what it reads there. Numbers are added up in two chains.
// `before` and `after` [size][kMamba2Band] may be the same; `scaled` and `out` are [kMamba2Band].
static inline void advance_mamba2(const float *before, float *after, int size, float decay, const float *scaled,
                                  const float *where_to, const float *from_where, float *out) {
  constexpr int kLanes = kMamba2Band / 16;
  Lanes seen[2][kLanes], given[kLanes];
  for (int i = 0; i < kLanes; ++i) seen[0][i] = seen[1][i] = splat(0.f), given[i] = load(scaled + 16 * i);
  const Lanes kept = splat(decay);
  const auto advance = [&](int n, Lanes *sum) {
    const Lanes to = splat(where_to[n]), from = splat(from_where[n]);
    for (int i = 0; i < kLanes; ++i) {
      const int at = n * kMamba2Band + 16 * i;
      const Lanes state = fma(given[i], to, load(before + at) * kept);
      store(after + at, state);
      sum[i] = fma(state, from, sum[i]);
    }
  };
  int n = 0;
  for (; n + 1 < size; n += 2) advance(n, seen[0]), advance(n + 1, seen[1]);
  if (n < size) advance(n, seen[0]);
  for (int i = 0; i < kLanes; ++i) store(out + 16 * i, seen[0][i] + seen[1][i]);
}

// One thread's part of a layer between its projections. The first one gives a row's gate [inner], what it writes
// [inner], where to and from where [groups][state_size], and its steps [heads]; what a row writes gives way to what it
// reads. What of that is convolved enters the recurrence, then steps [heads filled up] and decays.
class Mamba2 {
 public:
  Mamba2(const HeadstartMamba2 &of, const DecoderLayer &layer, const LayerStates &states, const MixerRows &rows,
         float *copies, int thread, int threads)
      : of_(of),
        layer_(layer),
        states_(states),
        rows_(rows),
        copies_(copies),
        thread_(thread),
        threads_(threads),
        inner_(of.heads * of.head_dim),
        steps_(states.shape.channels),
        decays_(steps_ + round_up(of.heads, 16)) {}

  template <class Meet>
  void run(Meet &&meet) const {
    convolve_projected(layer_, states_, rows_, inner_, thread_, threads_);
    for (int row = thread_; row < states_.layout.rows(); row += threads_) choose_steps(row);
    meet();
    const int bands = ceil_div(of_.head_dim, kMamba2Band);
    recur(states_, thread_, threads_, copies_,
          [&](int unit, int row, const float *entered, const float *before, float *after) {
            advance(unit / bands, unit % bands * kMamba2Band, row, entered, before, after);
          });
    meet();
    for (int row = thread_; row < states_.layout.rows(); row += threads_)
      if (rows_.places[row] >= 0) finish(row, rows_.places[row]);
  }

 private:
  void choose_steps(int row) const {
    const int chosen = 2 * inner_ + 2 * of_.groups * of_.state_size;
    const float *const bias = layer_.constants[kStepBias].data(), *const decay = layer_.constants[kDecay].data();
    for (int head = 0; head < of_.heads; head += 16) {
      Lanes step = softplus(load(rows_.projected_of(row) + chosen + head) + load(bias + head));
      step = min(splat(of_.most_step), max(splat(of_.least_step), step));  // what is no number stands second, and stays
      store(states_.entering(row) + steps_ + head, step);
      store(states_.entering(row) + decays_ + head, exp(step * load(decay + head)));
    }
  }

  // Elements of a head from `first` on.
  void advance(int head, int first, int row, const float *entered, const float *before, float *after) const {
    const int at = head * of_.head_dim + first;
    const float *const where_to = entered + inner_ + head / (of_.heads / of_.groups) * of_.state_size;
    const int count = std::min(kMamba2Band, of_.head_dim - first);
    alignas(64) float written[kMamba2Band] = {}, scaled[kMamba2Band], given[kMamba2Band];
    std::memcpy(written, entered + at, count * sizeof(float));
    for (int i = 0; i < kMamba2Band; i += 16) store(scaled + i, load(written + i) * splat(entered[steps_ + head]));
    advance_mamba2(before, after, of_.state_size, entered[decays_ + head], scaled, where_to,
                   where_to + of_.groups * of_.state_size, given);
    if (row < 0) return;
    const Lanes skip = splat(layer_.constants[kSkip][head]);
    for (int i = 0; i < kMamba2Band; i += 16) store(given + i, load(given + i) + load(written + i) * skip);
    std::memcpy(rows_.projected_of(row) + inner_ + at, given, count * sizeof(float));
  }

  void finish(int row, int place) const {
    float *const gate = rows_.projected_of(row), *const given = gate + inner_;
    const StateNorm norm = static_cast<StateNorm>(of_.norm);
    if (norm == StateNorm::before_gate) norm_groups(given);
    for (int k = 0; k < inner_; k += 16) store(given + k, load(given + k) * activate(Activation::silu, load(gate + k)));
    if (norm == StateNorm::after_gate) norm_groups(given);
    for (int k = 0; k < inner_; k += 16) store_activation(rows_.kind, rows_.out, place, k, load(given + k));
  }

  void norm_groups(float *given) const {
    const int size = inner_ / of_.groups;
    for (int k = 0; k < inner_; k += size)
      normalise(NormKind::rms, layer_.constants[kStateNorm].data() + k, nullptr, size, of_.norm_eps, given + k, size,
                given + k);
  }

  const HeadstartMamba2 &of_;
  const DecoderLayer &layer_;
  const LayerStates &states_;
  const MixerRows &rows_;
  float *const copies_;
  const int thread_, threads_, inner_;
  const int steps_, decays_;  // where they begin in what enters the recurrence
};
