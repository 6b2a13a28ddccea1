// The gated delta rule: a head's state, a matrix of keys to values, decays by a step that the row chooses; what it has
// for the row's key is moved towards the row's value; it is read at the row's query (see
// headstart.models.layers.delta).
//
// Columns of a state do not see each other, so that it is computed, and stands, in bands of them: [band][key][kBand].
// A band stays in the nearest cache while it walks through the rows of a panel.
#pragma once
#include "kernels/vectors/vector_math.h"
#include "pass/state_mixer.h"

// What one row does to one band of a head's state, and what it reads there. Keys are added up in two chains, one after
// the other in each. `before` and `after` [key_dim][kDeltaBand] may be the same; `key` and `query` are [key_dim], even;
// `value` and `out` [kDeltaBand].
static inline void advance_delta(const float *before, float *after, int key_dim, float decay, float share,
                                 const float *key, const float *query, const float *value, float *out) {
  constexpr int kLanes = kDeltaBand / 16;
  Lanes found[2][kLanes], seen[2][kLanes], change[kLanes];
  for (int i = 0; i < 2 * kLanes; ++i) found[i / kLanes][i % kLanes] = seen[i / kLanes][i % kLanes] = splat(0.f);
  for (int k = 0; k < key_dim; k += 2)
    for (int chain = 0; chain < 2; ++chain) {
      const Lanes of_key = splat(key[k + chain]);
      const float *const at = before + (k + chain) * kDeltaBand;
      for (int i = 0; i < kLanes; ++i) found[chain][i] = fma(of_key, load(at + 16 * i), found[chain][i]);
    }
  const Lanes kept = splat(decay);
  for (int i = 0; i < kLanes; ++i)
    change[i] = (load(value + 16 * i) - (found[0][i] + found[1][i]) * kept) * splat(share);
  for (int k = 0; k < key_dim; k += 2)
    for (int chain = 0; chain < 2; ++chain) {
      const Lanes of_key = splat(key[k + chain]), of_query = splat(query[k + chain]);
      const int at = (k + chain) * kDeltaBand;
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

// One thread's part of a layer between its projections.
class GatedDelta {
 public:
  GatedDelta(const HeadstartDelta &of, const DecoderLayer &layer, const LayerStates &states, const MixerRows &rows,
             const MixerScratch &scratch, int thread, int threads)
      : of_(of),
        layer_(layer),
        states_(states),
        rows_(rows),
        scratch_(scratch),
        thread_(thread),
        threads_(threads),
        keys_(of.key_heads * of.key_dim),
        heads_(of.value_heads) {}

  // Numbers that a row's units share, behind what was convolved of it: decays of heads, and shares.
  static int besides(const HeadstartDelta &of) { return 2 * round_up(of.value_heads, 16); }

  template <class Meet>
  void run(Meet &&meet) const {
    convolve_projected(layer_, states_, rows_, scratch_, 0, thread_, threads_);
    meet();
    mine(2 * of_.key_heads + 1, [&](int row, int part) { part ? take_unit(row, part - 1) : take_rates(row); });
    meet();
    const int bands = of_.value_dim / kDeltaBand, shared = heads_ / of_.key_heads;
    recur(states_, thread_, threads_, scratch_.running, [&](int unit, int row, const float *before, float *after) {
      const int head = unit / bands, key_head = of_.tiled ? head % of_.key_heads : head / shared;
      float *const convolved = scratch_.convolved_of(row), *const rates = rates_of(row);
      float *const value = convolved + 2 * keys_ + unit * kDeltaBand;
      const float *const query = convolved + key_head * of_.key_dim;
      advance_delta(before, after, of_.key_dim, rates[head], rates[round_up(heads_, 16) + head], query + keys_, query,
                    value, value);
    });
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

  float *rates_of(int row) const { return scratch_.convolved_of(row) + states_.shape.channels; }

  // Queries first, then keys.
  void take_unit(int row, int head) const {
    const float factor = head < of_.key_heads ? 1.f / std::sqrt(static_cast<float>(of_.key_dim)) : 1.f;
    make_unit(scratch_.convolved_of(row) + head * of_.key_dim, of_.key_dim, factor);
  }

  void take_rates(int row) const {
    const float *const share = rows_.projected_of(row) + layer_.beside, *const step = share + heads_;
    const float *const bias = layer_.constants[kStepBias].data(), *const decay = layer_.constants[kDecay].data();
    float *const to = rates_of(row);
    for (int k = 0; k < heads_; k += 16) {
      const Lanes steps = softplus(load(step + k) + load(bias + k));
      store(to + k, exp(load(decay + k) * steps));
      store(to + round_up(heads_, 16) + k, sigmoid(load(share + k)));
    }
  }

  // What a head gives, normed and through its gate.
  void give(int row, int head) const {
    if (rows_.places[row] < 0) return;
    const int size = of_.value_dim, at = head * size;
    float *const given = scratch_.convolved_of(row) + 2 * keys_ + at;
    const float *const gate = rows_.projected_of(row) + states_.shape.channels + at;
    normalise(NormKind::rms, layer_.constants[kStateNorm].data(), nullptr, size, of_.norm_eps, given, size, given);
    for (int k = 0; k < size; k += 16)
      store_activation(rows_.kind, rows_.out, rows_.places[row], at + k,
                       load(given + k) * activate(Activation::silu, load(gate + k)));
  }

  const HeadstartDelta &of_;
  const DecoderLayer &layer_;
  const LayerStates &states_;
  const MixerRows &rows_;
  const MixerScratch &scratch_;
  const int thread_, threads_, keys_, heads_;
};
