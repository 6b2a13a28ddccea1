// Several residual streams, see headstart.models.layers.streams: x is the first one, which layers compute; the others
// are here.
#pragma once
#include <cmath>

#include "pass/decoder.h"
#include "pass/output_head.h"

class ResidualStreams {
 public:
  static constexpr int kMost = 8;

  explicit ResidualStreams(const Decoder &model)
      : m_(model), count_(model.shape.streams), stride_(static_cast<size_t>(model.hidden) + 16) {
    for (int stream = 1; stream < count_; ++stream) others_.push_back(floats(kPanelRows * stride_));
    before_ = floats(kPanelRows * stride_);
    for (int t = 0; t < m_.shape.threads; ++t) normed_.push_back(floats(m_.hidden));
  }

  int others() const { return count_ - 1; }
  size_t stride() const { return stride_; }
  // Rows of the panel at work, one behind the other.
  float *other(int stream, int row = 0) const { return others_[stream] + row * stride_; }

  // A row goes to an earlier place.
  void move(int from, int to) const {
    for (int stream = 0; stream < others(); ++stream) copy(other(stream, from), other(stream, to));
    copy(before(from), before(to));
  }

  // What the streams will be, before the layer has computed the first: each gets a share of all.
  void predict(const DecoderLayer &layer, int row, float *x, int thread) const {
    float routed[kMost], shares[kMost * kMost];
    route(layer, x, thread, routed);
    take_shares(layer.constants[kStreamPredict], count_ * count_, routed, shares);
    for (int k = 0; k < m_.hidden; k += 16) {
      Lanes old[kMost];
      for (int stream = 0; stream < count_; ++stream) old[stream] = load(at(stream, row, x) + k);
      for (int stream = 0; stream < count_; ++stream) {
        Lanes mixed = splat(0.f);
        for (int from = 0; from < count_; ++from) mixed = fma(splat(shares[stream * count_ + from]), old[from], mixed);
        store(at(stream, row, x) + k, old[stream] + mixed);
      }
      store(before(row) + k, load(x + k));
    }
  }

  // The predicted streams follow what the layer made of the first.
  void correct(const DecoderLayer &layer, int row, float *x, int thread) const {
    float routed[kMost], shares[kMost];
    route(layer, x, thread, routed);
    take_shares(layer.constants[kStreamCorrect], count_, routed, shares);
    for (int k = 0; k < m_.hidden; k += 16) {
      const Lanes predicted = load(before(row) + k), moved = load(x + k) - predicted;
      store(x + k, fma(splat(shares[0] + 1.f), moved, predicted));
      for (int stream = 1; stream < count_; ++stream) {
        float *const to = at(stream, row, x) + k;
        store(to, fma(splat(shares[stream] + 1.f), moved, load(to)));
      }
    }
  }

  // Every other stream begins as strong as the first.
  void strengthen(int row, const float *x) const {
    for (int stream = 0; stream < others(); ++stream) scale(other(stream, row), strength_for(x, other(stream, row)));
  }

  // The first of a row is kept, to which `add` adds the others one by one, each as strong as it is.
  void begin_sum(int row, const float *x) const { copy(x, before(row)); }
  void add(int row, float *values, float *x) const {
    scale(values, strength_for(before(row), values));
    for (int k = 0; k < m_.hidden; k += 16) store(x + k, load(x + k) + load(values + k));
  }
  void end_sum(float *x) const { scale(x, 1.f / static_cast<float>(count_)); }

  // What is added to all streams but the first.
  void add_to_others(int row, const float *values) const {
    for (int stream = 0; stream < others(); ++stream)
      for (int k = 0; k < m_.hidden; k += 16) {
        float *const to = other(stream, row) + k;
        store(to, load(to) + load(values + k));
      }
  }

 private:
  float *floats(size_t count) { return memory_.emplace_back(count * sizeof(float)).as<float>(); }
  float *before(int row) const { return before_ + row * stride_; }
  float *at(int stream, int row, float *x) const { return stream ? other(stream - 1, row) : x; }
  void copy(const float *from, float *to) const { std::memmove(to, from, m_.hidden * sizeof(float)); }
  void scale(float *row, float factor) const {
    for (int k = 0; k < m_.hidden; k += 16) store(row + k, load(row + k) * splat(factor));
  }

  // What makes a row as strong as `first`.
  float strength_for(const float *first, const float *row) const {
    constexpr float kLeastPower = 1e-5f;
    const float power = mean_square(row);
    return std::sqrt(mean_square(first)) / std::sqrt(power < kLeastPower ? kLeastPower : power);
  }
  float mean_square(const float *row) const {
    Lanes sum = splat(0.f);
    for (int k = 0; k < m_.hidden; k += 16) {
      const Lanes v = load_first(row, k, m_.shape.hidden);
      sum = fma(v, v, sum);
    }
    return reduce_add(sum) / static_cast<float>(m_.shape.hidden);
  }

  // routed [stream] = tanh of what the router says of a row.
  void route(const DecoderLayer &layer, const float *x, int thread, float *routed) const {
    float *const normed = normed_[thread];
    normalise(m_.norm_kind, layer.norms[kStreamNorm], m_.shape.norm_eps, x, m_.shape.hidden, normed);
    const float *const router = layer.constants[kStreamRouter].data();
    alignas(64) float all[16];
    for (int stream = 0; stream < count_; ++stream) {
      Lanes sum = splat(0.f);
      for (int k = 0; k < m_.hidden; k += 16)
        sum = fma(load(normed + k) * splat(1.f / static_cast<float>(m_.shape.hidden)),
                  load(router + static_cast<size_t>(stream) * m_.hidden + k), sum);
      store(all, tanh(splat(reduce_add(sum))));
      routed[stream] = all[0];
    }
  }
  void take_shares(const std::vector<float> &matrix, int rows, const float *routed, float *shares) const {
    for (int row = 0; row < rows; ++row) {
      float sum = 0.f;
      for (int stream = 0; stream < count_; ++stream) sum += matrix[row * count_ + stream] * routed[stream];
      shares[row] = sum;
    }
  }

  const Decoder &m_;
  const int count_;
  const size_t stride_;
  std::vector<AlignedBuffer> memory_;
  std::vector<float *> others_;  // [stream - 1], [panel row]
  float *before_;                // [panel row] the first one as it was predicted
  std::vector<float *> normed_;  // [thread]
};
