// Several residual streams that parts of layers are connected to, see headstart.models.layers.hyper. A part works on x,
// which is the mixture that it reads; between layers x is the mean of all streams.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "pass/decoder.h"

class HyperConnections {
 public:
  static constexpr int kMost = 8, kMostTold = kMost * (2 + kMost);

  explicit HyperConnections(const Decoder &model)
      : m_(model),
        of_(model.shape.hyper),
        stride_(static_cast<size_t>(of_.count + 1) * model.hidden + kSharesStride + 16),
        rows_(kPanelRows * stride_ * sizeof(float)) {}

  // All streams begin alike.
  void begin(int row, const float *x) const {
    for (int stream = 0; stream < of_.count; ++stream) copy(x, at(row, stream));
  }

  // One stream begins so.
  void begin(int row, int stream, const float *x) const { copy(x, at(row, stream)); }

  const float *stream(int row, int stream) const { return at(row, stream); }

  // A row goes to an earlier place.
  void move(int from, int to) const { std::memmove(at(to, 0), at(from, 0), (stride_ - 16) * sizeof(float)); }

  // x becomes what a part reads; how it will be connected is kept.
  void enter(const DecoderLayer &layer, ConstantIndex mix, ConstantIndex base, int row, float *x) const {
    float told[kMostTold];
    const int count = of_.count;
    tell(layer.constants[mix], layer.constants[base], count * (2 + (of_.rounds ? count : 0)), row, told);
    float *const shares = shares_of(row);
    for (int i = 0; i < count; ++i) shares[i] = of_.most * told[count + i] + (of_.rounds ? 0.f : of_.eps);
    if (of_.rounds) {
      make_stochastic(told + 2 * count);
      std::copy_n(told + 2 * count, count * count, shares + count);
    }
    mix_streams(told, row, x);
    copy(x, at(row, count));
  }

  // The streams after the part has been added to x, which becomes their mean.
  void leave(int row, float *x) const {
    const int count = of_.count;
    const float *const give = shares_of(row), *const mixture = give + count;
    for (int k = 0; k < m_.hidden; k += 16) {
      Lanes old[kMost], mean = splat(0.f);
      for (int stream = 0; stream < count; ++stream) old[stream] = load(at(row, stream) + k);
      const Lanes given = load(x + k) - load(at(row, count) + k);
      for (int to = 0; to < count; ++to) {
        Lanes mixed = given * splat(give[to]);
        if (!of_.rounds) mixed = mixed + old[to];
        for (int from = 0; from < count && of_.rounds; ++from)
          mixed = fma(splat(mixture[from * count + to]), old[from], mixed);
        store(at(row, to) + k, mixed);
        mean = mean + mixed;
      }
      store(x + k, mean * splat(1.f / static_cast<float>(count)));
    }
  }

  // x becomes what the streams are behind the last layer, where that is learnt.
  bool merges() const { return !m_.ends[kEndMix].empty(); }
  void merge(int row, float *x) const {
    float told[kMost];
    tell(m_.ends[kEndMix], m_.ends[kEndBase], of_.count, row, told);
    mix_streams(told, row, x);
  }

 private:
  static constexpr size_t kSharesStride = kMost * (1 + kMost);

  // A row's streams, then what the part at work reads, then how it is connected.
  float *at(int row, int stream) const {
    return rows_.as<float>() + row * stride_ + static_cast<size_t>(stream) * m_.hidden;
  }
  float *shares_of(int row) const { return at(row, of_.count + 1); }
  void copy(const float *from, float *to) const { std::memcpy(to, from, m_.hidden * sizeof(float)); }

  // The streams with as many shares.
  void mix_streams(const float *shares, int row, float *x) const {
    for (int k = 0; k < m_.hidden; k += 16) {
      Lanes sum = splat(0.f);
      for (int stream = 0; stream < of_.count; ++stream)
        sum = fma(splat(shares[stream] + of_.eps), load(at(row, stream) + k), sum);
      store(x + k, sum);
    }
  }

  // What all streams together, normed, tell: shares, behind sigmoids, and what is left of `numbers`.
  void tell(const std::vector<float> &mixes, const std::vector<float> &base, int numbers, int row, float *told) const {
    const float *const all = at(row, 0);
    const int size = of_.count * m_.hidden;
    Lanes squares = splat(0.f);
    for (int k = 0; k < size; k += 16) squares = fma(load(all + k), load(all + k), squares);
    const float mean = reduce_add(squares) / static_cast<float>(of_.count * m_.shape.hidden);
    const float factor = 1.f / std::sqrt(mean + m_.shape.norm_eps);
    const float *mix = mixes.data();
    for (int i = 0; i < numbers; ++i, mix += size) {
      Lanes sum = splat(0.f);
      for (int k = 0; k < size; k += 16) sum = fma(load(all + k), load(mix + k), sum);
      const int kind = std::min(i / of_.count, 2);
      told[i] = reduce_add(sum) * factor * base[numbers + kind] + base[i];
      if (kind < 2) told[i] = 1.f / (1.f + std::exp(-told[i]));
    }
  }

  // Rows and columns that sum to 1 (Sinkhorn and Knopp).
  void make_stochastic(float *matrix) const {
    const int count = of_.count;
    const auto divide = [&](int along, int across, bool exactly) {
      for (int i = 0; i < count; ++i) {
        float sum = exactly ? 0.f : of_.eps;
        for (int j = 0; j < count; ++j) sum += matrix[i * across + j * along];
        for (int j = 0; j < count; ++j) matrix[i * across + j * along] /= sum;
      }
    };
    for (int i = 0; i < count; ++i) {
      float *const row = matrix + i * count, most = *std::max_element(row, row + count);
      for (int j = 0; j < count; ++j) row[j] = std::exp(row[j] - most);
    }
    divide(1, count, true);
    for (int i = 0; i < count * count; ++i) matrix[i] += of_.eps;
    divide(count, 1, false);
    for (int round = 1; round < of_.rounds; ++round) divide(1, count, false), divide(count, 1, false);
  }

  const Decoder &m_;
  const HeadstartHyper &of_;
  const size_t stride_;
  AlignedBuffer rows_;  // [panel row][stride_]
};
