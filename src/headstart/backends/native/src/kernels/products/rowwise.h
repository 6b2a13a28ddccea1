// Work on one row at a time: norms. A row's result depends on that row alone.
#pragma once
#include <cmath>
#include <vector>

#include "kernels/vectors/vector_math.h"

struct Norm {
  std::vector<float> weight;  // padded with zeros, offset added; empty where the model has no such norm
  std::vector<float> bias;    // layer norm only
  bool present() const { return !weight.empty(); }
};

enum class NormKind { rms, layer };

static inline Lanes load_first(const float *x, int k, int size) {
  return k + 16 <= size ? load(x + k) : select_range(load(x + k), 0, size - k, splat(0.f));
}

// out[0, stored) = norm(x[0, size)), by `stored` weights and biases, the latter of which may be null. x and out may be
// the same row; both hold as many floats.
static inline void normalise(NormKind kind, const float *weight, const float *bias, int stored, float eps,
                             const float *x, int size, float *out) {
  const int padded = round_up(size, 16);
  float mean = 0.f;
  if (kind == NormKind::layer) {
    Lanes sum = splat(0.f);
    for (int k = 0; k < padded; k += 16) sum = sum + load_first(x, k, size);
    mean = reduce_add(sum) / static_cast<float>(size);
  }
  Lanes squares = splat(0.f);
  for (int k = 0; k < padded; k += 16) {
    Lanes v = load_first(x, k, size);
    if (kind == NormKind::layer) v = select_range(v - splat(mean), 0, size - k, splat(0.f));
    squares = fma(v, v, squares);
  }
  const Lanes factor = splat(1.f / std::sqrt(reduce_add(squares) / static_cast<float>(size) + eps));
  for (int k = 0; k < stored; k += 16) {
    Lanes v = k < padded ? load_first(x, k, size) : splat(0.f);
    if (kind == NormKind::layer) v = v - splat(mean);
    v = v * factor * load(weight + k);
    if (bias) v = v + load(bias + k);
    store(out + k, v);
  }
}

// The same by a norm; columns past `size` become zero because the padded weights are.
static inline void normalise(NormKind kind, const Norm &norm, float eps, const float *x, int size, float *out) {
  normalise(kind, norm.weight.data(), norm.bias.empty() ? nullptr : norm.bias.data(),
            static_cast<int>(norm.weight.size()), eps, x, size, out);
}
