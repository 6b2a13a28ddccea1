// The gated delta rule: a head's state, a matrix of keys to values, decays by a step that the row chooses; what it has
// for the row's key is moved towards the row's value; it is read at the row's query (see headstart.layers.delta).
//
// Columns of a state do not see each other, so that it is computed, and stands, in bands of them: [band][key][kBand].
// A band stays in the nearest cache while it walks through the rows of a panel.
#pragma once
#include "../kernels/vector_math.h"

constexpr int kDeltaBand = 32;

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
