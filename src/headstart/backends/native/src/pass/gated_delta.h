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
             float *copies, int thread, int threads)
      : of_(of),
        layer_(layer),
        states_(states),
        rows_(rows),
        copies_(copies),
        thread_(thread),
        threads_(threads),
        keys_(of.key_heads * of.key_dim),
        heads_(of.value_heads) {}

  template <class Meet>
  void run(Meet &&meet) const {
    convolve_projected(layer_, states_, rows_, 0, thread_, threads_);
    meet();
    mine(2 * of_.key_heads + 1, [&](int row, int part) { part ? take_unit(row, part - 1) : take_rates(row); });
    meet();
    const int bands = of_.value_dim / kDeltaBand, shared = heads_ / of_.key_heads;
    const auto advance = [&](int unit, int row, const float *entered, const float *before, float *after) {
      const int head = unit / bands, key_head = of_.tiled ? head % of_.key_heads : head / shared;
      const float *const query = entered + key_head * of_.key_dim, *const rates = entered + states_.shape.channels;
      float unread[kDeltaBand], *const given = row < 0 ? unread : rows_.projected_of(row) + unit * kDeltaBand;
      advance_delta(before, after, of_.key_dim, rates[head], rates[round_up(heads_, 16) + head], query + keys_, query,
                    entered + 2 * keys_ + unit * kDeltaBand, given);
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
      store(to + round_up(heads_, 16) + k, sigmoid(load(share + k)));
    }
  }

  // What a head gives, normed and through its gate.
  void give(int row, int head) const {
    if (rows_.places[row] < 0) return;
    const int size = of_.value_dim, at = head * size;
    float *const given = rows_.projected_of(row) + at;
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
  float *const copies_;
  const int thread_, threads_, keys_, heads_;
};
