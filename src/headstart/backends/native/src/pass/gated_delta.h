// The gated delta rule: a head's state, a matrix of keys to values, decays by a step that the row chooses; what it has
// for the row's key is moved towards the row's value; it is read at the row's query (see
// headstart.models.layers.delta).
//
// Columns of a state do not see each other, so that it is computed, and stands, in bands of them: [band][key][kBand].
// A band stays in the nearest cache while it walks through the rows of a panel.
#pragma once
#include <array>
#include <vector>

#include "kernels/vectors/vector_math.h"
#include "pass/output_head.h"
#include "pass/state_mixer.h"

// What one row does to one band of a head's state, and what it reads there. Keys are added up in two chains, one after
// the other in each. `before` and `after` [key_dim][kDeltaBand] may be the same; `key` and `query` are [key_dim], even;
// `value` and `out` [kDeltaBand]; `decays` [key_dim], or all of them are one.
template <bool kByKey>
static inline void advance_delta(const float *before, float *after, int key_dim, const float *decays, float share,
                                 const float *key, const float *query, const float *value, float *out) {
  constexpr int kLanes = kDeltaBand / 16;
  Lanes found[2][kLanes], seen[2][kLanes], change[kLanes];
  for (int i = 0; i < 2 * kLanes; ++i) found[i / kLanes][i % kLanes] = seen[i / kLanes][i % kLanes] = splat(0.f);
  for (int k = 0; k < key_dim; k += 2)
    for (int chain = 0; chain < 2; ++chain) {
      const Lanes of_key = splat(kByKey ? key[k + chain] * decays[k + chain] : key[k + chain]);
      const float *const at = before + (k + chain) * kDeltaBand;
      for (int i = 0; i < kLanes; ++i) found[chain][i] = fma(of_key, load(at + 16 * i), found[chain][i]);
    }
  Lanes kept = splat(kByKey ? 1.f : *decays);
  for (int i = 0; i < kLanes; ++i)
    change[i] = (load(value + 16 * i) - (found[0][i] + found[1][i]) * kept) * splat(share);
  for (int k = 0; k < key_dim; k += 2)
    for (int chain = 0; chain < 2; ++chain) {
      const Lanes of_key = splat(key[k + chain]), of_query = splat(query[k + chain]);
      const int at = (k + chain) * kDeltaBand;
      if (kByKey) kept = splat(decays[k + chain]);
      for (int i = 0; i < kLanes; ++i) {
        const Lanes state = fma(of_key, change[i], load(before + at + 16 * i) * kept);
        store(after + at + 16 * i, state);
        seen[chain][i] = fma(of_query, state, seen[chain][i]);
      }
    }
  for (int i = 0; i < kLanes; ++i) store(out + 16 * i, seen[0][i] + seen[1][i]);
}

// Makes a key or a query a unit vector times `factor`; `size` is a multiple of 16.
static inline void make_unit(float *x, int size, float factor) {
  constexpr float kEps = 1e-6f;  // transformers, models/qwen3_next
  Lanes squares = splat(0.f);
  for (int k = 0; k < size; k += 16) squares = fma(load(x + k), load(x + k), squares);
  const Lanes scale = splat(factor / std::sqrt(reduce_add(squares) + kEps));
  for (int k = 0; k < size; k += 16) store(x + k, load(x + k) * scale);
}

// What gates and steps are made of, where that is less than the row: it stands behind what is convolved.
class DeltaUps {
 public:
  explicit DeltaUps(const Decoder &model) : m_(model), of_(model.shape.delta) {
    const int padded = round_up(of_.rank, kPadding);
    for (int form = 0; form < Decoder::kForms; ++form)
      if (m_.has_form(form))
        for (auto *const each : {&gates_, &steps_})
          (*each)[form] =
              packed_rows(m_.precision_of_form(form), m_.kernels[form].element, memory_, kPanelRows, padded);
    for (int t = 0; t < m_.shape.threads; ++t)
      scratch_.push_back(memory_.emplace_back(padded * sizeof(float)).as<float>());
  }

  // One thread's rows, before all threads meet.
  void pack(const DecoderLayer &layer, const LayerStates &states, const MixerRows &rows, int thread) {
    float *const scratch = scratch_[thread];
    for (int row = thread; row < states.layout.rows(); row += m_.shape.threads) {
      const float *from = rows.projected_of(row) + states.shape.channels;
      for (const int which : {kGateUp, kStepUp}) {
        std::memcpy(scratch, from, of_.rank * sizeof(float));
        const PackedLinear &linear = layer.linears[which];
        const int form = m_.form_of(linear);
        m_.kernels[form].store_row((which == kGateUp ? gates_ : steps_)[form], row, scratch, linear.padded_inputs);
        from += of_.rank;
      }
    }
  }

  // One thread's columns: gates take the place of what they are made of, steps go to where decays will be.
  template <class Meet>
  void raise(const DecoderLayer &layer, const LayerStates &states, const MixerRows &rows, int thread, ReadAhead &ahead,
             PairDeal &deal, Meet &&meet) const {
    const auto multiply = [&](int which, const auto &packed, auto &&to) {
      const PackedLinear &linear = layer.linears[which];
      const int form = m_.form_of(linear);
      run_linear(m_.kernels[form], linear, packed[form], states.layout.rows(), thread, ahead, deal,
                 [&](int pair, int row, int n, const float *out) {
                   for (int r = 0; r < n; ++r)
                     std::memcpy(to(row + r) + pair * kColumns, out + r * kColumns, kColumns * sizeof(float));
                 });
      meet();
    };
    multiply(kGateUp, gates_, [&](int row) { return rows.projected_of(row) + states.shape.channels; });
    multiply(kStepUp, steps_, [&](int row) { return states.entering(row) + states.shape.channels; });
  }

 private:
  const Decoder &m_;
  const HeadstartDelta &of_;
  std::vector<AlignedBuffer> memory_;
  std::array<Activations, Decoder::kForms> gates_, steps_;
  std::vector<float *> scratch_;  // [thread], zeros behind the rank
};

// One thread's part of a layer between its projections.
class GatedDelta {
 public:
  GatedDelta(const HeadstartDelta &of, const DecoderLayer &layer, const LayerStates &states, const MixerRows &rows,
             float *copies, int thread, int threads)
      : of_(of),
        layer_(layer),
        states_(states),
        rows_(rows),
        copies_(copies),
        thread_(thread),
        threads_(threads),
        keys_(of.key_heads * of.key_dim),
        heads_(of.value_heads),
        shares_(states.shape.channels + (of.by_key ? keys_ : round_up(heads_, 16))) {}

  // `pack()` and `raise()`: see DeltaUps, where there is a rank.
  template <class Meet, class Pack, class Raise>
  void run(Meet &&meet, Pack &&pack, Raise &&raise) const {
    convolve_projected(layer_, states_, rows_, 0, thread_, threads_);
    if (of_.rank) pack();
    meet();
    if (of_.rank) raise();
    if (of_.by_key)
      mine(3 * heads_,
           [&](int row, int part) { part < heads_ ? take_decays(row, part) : take_unit(row, part - heads_); });
    else
      mine(2 * of_.key_heads + 1, [&](int row, int part) { part ? take_unit(row, part - 1) : take_rates(row); });
    meet();
    const int bands = of_.value_dim / kDeltaBand, shared = heads_ / of_.key_heads;
    const auto advance = [&](int unit, int row, const float *entered, const float *before, float *after) {
      const int head = unit / bands, key_head = of_.tiled ? head % of_.key_heads : head / shared;
      const float *const query = entered + key_head * of_.key_dim, *const decays = entered + states_.shape.channels;
      float unread[kDeltaBand], *const given = row < 0 ? unread : rows_.projected_of(row) + unit * kDeltaBand;
      const float *const value = entered + 2 * keys_ + unit * kDeltaBand, share = entered[shares_ + head];
      if (of_.by_key)
        advance_delta<true>(before, after, of_.key_dim, decays + head * of_.key_dim, share, query + keys_, query, value,
                            given);
      else
        advance_delta<false>(before, after, of_.key_dim, decays + head, share, query + keys_, query, value, given);
    };
    recur(states_, thread_, threads_, copies_, advance);
    meet();
    mine(heads_, [&](int row, int head) { give(row, head); });
  }

 private:
  // `work(row, part)` for this thread's share of all rows' parts.
  template <class Work>
  void mine(int parts, Work &&work) const {
    const int64_t all = static_cast<int64_t>(states_.layout.rows()) * parts;
    for (int64_t i = all * thread_ / threads_; i < all * (thread_ + 1) / threads_; ++i)
      work(static_cast<int>(i / parts), static_cast<int>(i % parts));
  }

  // Queries first, then keys.
  void take_unit(int row, int head) const {
    const float factor = head < of_.key_heads ? 1.f / std::sqrt(static_cast<float>(of_.key_dim)) : 1.f;
    make_unit(states_.entering(row) + head * of_.key_dim, of_.key_dim, factor);
  }

  // Behind what is convolved: decays of heads, and shares.
  void take_rates(int row) const {
    const float *const share = rows_.projected_of(row) + layer_.beside, *const step = share + heads_;
    const float *const bias = layer_.constants[kStepBias].data(), *const decay = layer_.constants[kDecay].data();
    float *const to = states_.entering(row) + states_.shape.channels;
    for (int k = 0; k < heads_; k += 16) {
      const Lanes steps = softplus(load(step + k) + load(bias + k));
      store(to + k, exp(load(decay + k) * steps));
      store(states_.entering(row) + shares_ + k, sigmoid(load(share + k)));
    }
  }

  // Likewise one head's decays, of each number of its key, and its share.
  void take_decays(int row, int head) const {
    const int at = head * of_.key_dim;
    float *const to = states_.entering(row) + states_.shape.channels + at;
    // What was raised stands there already.
    const float *const step =
        of_.rank ? to : rows_.projected_of(row) + states_.shape.channels + heads_ * of_.value_dim + at;
    const float *const bias = layer_.constants[kStepBias].data() + at, *const decay =
                                                                           layer_.constants[kDecay].data() + at;
    for (int k = 0; k < of_.key_dim; k += 16) {
      const Lanes whole = load(step + k) + load(bias + k), fast = load(decay + k);
      const Lanes logarithm =
          of_.least != 0.f ? splat(of_.least) * sigmoid(splat(0.f) - fast * whole) : fast * softplus(whole);
      store(to + k, exp(logarithm));
    }
    const float share = rows_.projected_of(row)[layer_.beside + head];
    alignas(64) float written[16];
    store(written, sigmoid(splat(share)));
    states_.entering(row)[shares_ + head] = written[0];
  }

  // What a head gives, normed and through its gate.
  void give(int row, int head) const {
    if (rows_.places[row] < 0) return;
    const int size = of_.value_dim, at = head * size;
    float *const given = rows_.projected_of(row) + at;
    const float *const gate = rows_.projected_of(row) + states_.shape.channels + at;
    normalise(NormKind::rms, layer_.constants[kStateNorm].data(), nullptr, size, of_.norm_eps, given, size, given);
    for (int k = 0; k < size; k += 16) {
      const Lanes open = of_.by_key ? sigmoid(load(gate + k)) : activate(Activation::silu, load(gate + k));
      store_activation(rows_.kind, rows_.out, rows_.places[row], at + k, load(given + k) * open);
    }
  }

  const HeadstartDelta &of_;
  const DecoderLayer &layer_;
  const LayerStates &states_;
  const MixerRows &rows_;
  float *const copies_;
  const int thread_, threads_, keys_, heads_;
  const int shares_;  // where they begin in what enters the recurrence
};
