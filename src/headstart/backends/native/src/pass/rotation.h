// What a head's query or key goes through before they meet: its norm, where the model has one, and its position.
#pragma once
#include "../kernels/rowwise.h"

struct RopeTable {
  const float *cosines = nullptr, *sines = nullptr;  // [position][dimensions / 2]
  int positions = 0, dimensions = 0;
};

struct HeadRotation {
  const Norm &norm;
  float norm_eps;
  const RopeTable *rope;  // null: positions are not rotated
  int head_dim;

  static constexpr int kMostDimensions = 256 + 64;  // of what is written: a norm pads

  // to[0, head_dim) = the head at `position`; `to` holds kMostDimensions floats.
  void apply(const float *from, int position, float *to) const {
    if (norm.present())
      normalise(NormKind::rms, norm, norm_eps, from, head_dim, to);
    else
      std::memcpy(to, from, head_dim * sizeof(float));
    if (rope) rotate(position, to);
  }

 private:
  // Rotate-half: dimension i turns with i + dimensions / 2.
  void rotate(int position, float *head) const {
    const int half = rope->dimensions / 2;
    const float *cosines = rope->cosines + static_cast<size_t>(position) * half;
    const float *sines = rope->sines + static_cast<size_t>(position) * half;
    for (int k = 0; k < half; k += 16) {
      const Lanes a = load(head + k), b = load(head + half + k), c = load(cosines + k), s = load(sines + k);
      store(head + k, a * c - b * s);
      store(head + half + k, b * c + a * s);
    }
  }
};
