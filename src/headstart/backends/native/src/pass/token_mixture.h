// Keys that are made of several tokens each: for every dimension a mixture of what tokens give as values, by the
// softmax of what they give as weights. A key is a row's own: it is made in order of its tokens along the row's path.
#pragma once
#include "kernels/vectors/vector_math.h"

struct TokenMixture {
  int ratio;      // tokens to one key
  bool overlaps;  // each gives one half to its own key and, before it, one to the key behind
  int stride;     // floats from what one token gives to what the next one does

  int reach() const { return overlaps ? 2 * ratio : ratio; }

  // to[size], of what the last `tokens` give: [token][stride] values, then weights, to which `places` [ratio] adds.
  void mix(const float *places, const float *given, int tokens, int size, float *to) const {
    const int width = overlaps ? 2 * size : size;
    for (int k = 0; k < size; k += 16) {
      const auto column = [&](int token) { return overlaps && token >= tokens - ratio ? size + k : k; };
      const auto weight = [&](int token) {
        const int place = (token + reach() - tokens) % ratio;
        return load(given + token * stride + width + column(token)) + load(places + place * width + column(token));
      };
      Lanes largest = splat(-INFINITY);
      for (int token = 0; token < tokens; ++token) largest = max(largest, weight(token));
      Lanes total = splat(0.f), sum = splat(0.f);
      for (int token = 0; token < tokens; ++token) {
        const Lanes share = exp(weight(token) - largest);
        total = total + share;
        sum = fma(load(given + token * stride + column(token)), share, sum);
      }
      store(to + k, sum / total);
    }
  }
};
