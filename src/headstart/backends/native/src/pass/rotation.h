// What a head's query or key goes through before they meet: its norm, where the model has one, and its position.
#pragma once
#include "kernels/products/rowwise.h"

struct RopeTable {
  const float *cosines = nullptr, *sines = nullptr;  // [position][dimensions / 2]
  int positions = 0, dimensions = 0;

  // Rotate-half: dimension i turns with i + dimensions / 2.
  void turn(int position, float *head) const {
    const int half = dimensions / 2;
    const float *cosine = cosines + static_cast<size_t>(position) * half;
    const float *sine = sines + static_cast<size_t>(position) * half;
    int k = 0;
    for (; k + 16 <= half; k += 16) {
      const Lanes a = load(head + k), b = load(head + half + k), c = load(cosine + k), s = load(sine + k);
      store(head + k, a * c - b * s);
      store(head + half + k, b * c + a * s);
    }
    for (; k < half; ++k) {
      const float a = head[k], b = head[half + k];
      head[k] = a * cosine[k] - b * sine[k], head[half + k] = b * cosine[k] + a * sine[k];
    }
  }
};

// The last dimensions of a head turn in neighbouring pairs, or back where `direction` is -1.
static inline void turn_pairs(const RopeTable &rope, int position, float *head, int size, float direction = 1.f) {
  const int half = rope.dimensions / 2;
  const float *cosine = rope.cosines + static_cast<size_t>(position) * half;
  const float *sine = rope.sines + static_cast<size_t>(position) * half;
  float *const pairs = head + size - rope.dimensions;
  for (int k = 0; k < half; ++k) {
    const float a = pairs[2 * k], b = pairs[2 * k + 1], s = sine[k] * direction;
    pairs[2 * k] = a * cosine[k] - b * s, pairs[2 * k + 1] = b * cosine[k] + a * s;
  }
}

// Norms of heads, each by itself, see headstart.models.config.HeadNorms.
struct HeadNorm {
  const Norm &norm;
  NormKind kind;
  float eps;
  bool own;      // each head has weights of its own
  bool rotated;  // after the rotation, not before it

  // Both may be the same.
  void apply(int head, const float *from, int size, float *to) const {
    const size_t at = own ? static_cast<size_t>(head) * size : 0;
    normalise(kind, &norm.weight[at], norm.bias.empty() ? nullptr : &norm.bias[at], size, eps, from, size, to);
  }
};

struct HeadRotation {
  HeadNorm norm;
  const RopeTable *rope;  // null: positions are not rotated
  int head_dim;

  static constexpr int kMostDimensions = 1024;

  // to[0, head_dim) = head number `head`, of queries or of keys, at `position`; `to` holds kMostDimensions floats.
  void apply(int head, const float *from, int position, float *to) const {
    const bool normed = norm.norm.present();
    if (normed && !norm.rotated)
      norm.apply(head, from, head_dim, to);
    else
      std::memcpy(to, from, head_dim * sizeof(float));
    if (rope) rope->turn(position, to);
    if (normed && norm.rotated) norm.apply(head, to, head_dim, to);
  }
};
