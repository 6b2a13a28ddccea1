// A decoder's packed weights.
#pragma once
#include <memory>
#include <omp.h>

#include "api.h"
#include "kernel.h"
#include "rowwise.h"

enum LinearIndex { kQkv, kOutput, kUp, kDown, kLinears };
enum NormIndex { kAttentionNorm, kMlpNorm, kQueryNorm, kKeyNorm, kAttentionPostNorm, kMlpPostNorm, kNorms };

struct RopeTable {
  const float *cosines = nullptr, *sines = nullptr;  // [position][dimensions / 2]
  int positions = 0, dimensions = 0;
};

struct DecoderLayer {
  Norm norms[kNorms];
  PackedLinear linears[kLinears];
  int window = 0, rope = 0;
};

class Decoder {
 public:
  explicit Decoder(const HeadstartShape &s)
      : shape(s), precision(static_cast<Precision>(s.precision)), norm_kind(static_cast<NormKind>(s.norm)),
        activation(static_cast<Activation>(s.activation)), kernel(linear_kernel(precision)),
        hidden(round_up(s.hidden, kPadding)), attention(round_up(s.heads * s.head_dim, kPadding)),
        mlp(round_up(s.mlp, kPadding)), qkv((s.heads + 2 * s.kv_heads) * s.head_dim), layers(s.layers) {
    for (DecoderLayer &layer : layers) {
      layer.linears[kQkv] = plan(qkv, s.hidden, hidden, ceil_div(qkv, kColumns));
      layer.linears[kOutput] = plan(s.hidden, s.heads * s.head_dim, attention, ceil_div(s.hidden, kColumns));
      layer.linears[kUp] = plan(s.gated ? 2 * s.mlp : s.mlp, s.hidden, hidden, s.gated ? mlp / 16 : mlp / kColumns);
      layer.linears[kDown] = plan(s.hidden, s.mlp, mlp, ceil_div(s.hidden, kColumns));
    }
    head = plan(s.vocab, s.hidden, hidden, ceil_div(s.vocab, kColumns));
    allocate_streams();
  }

  void set_linear(int layer, int which, const void *weight, bool is_bf16, const float *bias) {
    PackedLinear &linear = layer < 0 ? head : layers[layer].linears[which];
    const bool gated = layer >= 0 && which == kUp && shape.gated;
    const size_t columns = static_cast<size_t>(linear.pairs) * kColumns;
    if (is_quantised(precision)) linear.scales.assign(columns, 1.f), linear.column_sums.assign(columns, 0);
    if (bias) {
      linear.bias.assign(columns, 0.f);
      for (size_t c = 0; c < columns; ++c)
        if (const int output = output_of(linear, gated, static_cast<int>(c)); output >= 0) linear.bias[c] = bias[output];
    }
    const int threads = shape.threads;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int t = 0; t < threads; ++t) {
      std::vector<float> floats(linear.padded_inputs);
      std::vector<Bf16> halves(linear.padded_inputs);
      for (int pair = linear.first_pair[t]; pair < linear.first_pair[t + 1]; ++pair) {
        char *to = const_cast<char *>(linear.weights[t]) + (pair - linear.first_pair[t]) * linear.pair_bytes;
        for (int column = 0; column < kColumns; ++column) {
          const int output = output_of(linear, gated, pair * kColumns + column);
          if (output < 0) continue;
          const size_t at = static_cast<size_t>(output) * linear.inputs;
          const Bf16 *half_row = static_cast<const Bf16 *>(weight) + at;
          const float *float_row = static_cast<const float *>(weight) + at;
          if (precision == Precision::bf16) {
            for (int k = 0; k < linear.inputs; ++k) halves[k] = is_bf16 ? half_row[k] : to_bf16(float_row[k]);
            pack_column(linear, to, column, halves.data());
            continue;
          }
          for (int k = 0; k < linear.inputs; ++k) floats[k] = is_bf16 ? to_float(half_row[k]) : float_row[k];
          if (precision == Precision::fp32)
            pack_column(linear, to, column, floats.data());
          else
            pack_column_int8(linear, to, pair, column, floats.data());
          std::fill(floats.begin() + linear.inputs, floats.end(), 0.f);
        }
      }
    }
  }

  void set_norm(int layer, int which, const float *weight, const float *bias, int size) {
    Norm &norm = layer < 0 ? final_norm : layers[layer].norms[which];
    norm.weight.assign(round_up(size, kPadding), 0.f);
    std::copy_n(weight, size, norm.weight.begin());
    if (!bias) return;
    norm.bias.assign(norm.weight.size(), 0.f);
    std::copy_n(bias, size, norm.bias.begin());
  }

  // Positions that every layer has a rope row (or a learned embedding) for.
  int positions() const {
    int most = learned ? learned_positions : INT32_MAX;
    for (const DecoderLayer &layer : layers)
      if (layer.rope >= 0) most = std::min(most, ropes[layer.rope].positions);
    return most;
  }

  int64_t stream_bytes() const {
    int64_t total = 0;
    for (const HugeBuffer &stream : streams) total += static_cast<int64_t>(stream.size());
    return total;
  }

  static constexpr int kPadding = 64;  // inputs of a linear are padded to whole tiles of every precision

  const HeadstartShape shape;
  const Precision precision;
  const NormKind norm_kind;
  const Activation activation;
  const LinearKernel kernel;
  const int hidden, attention, mlp;  // padded
  const int qkv;
  std::vector<DecoderLayer> layers;
  PackedLinear head;
  Norm final_norm;
  std::vector<RopeTable> ropes;
  const void *embedding = nullptr;
  bool embedding_bf16 = false;
  const float *learned = nullptr;
  int learned_positions = 0;
  std::vector<HugeBuffer> streams;  // [thread], weights in order of use

 private:
  PackedLinear plan(int outputs, int inputs, int padded_inputs, int pairs) const {
    return plan_linear(precision, outputs, inputs, padded_inputs, pairs, shape.threads);
  }

  // The output that a packed column holds, -1 for padding. Gated layers put 16 gates beside their 16 ups, so that one
  // thread has both.
  int output_of(const PackedLinear &linear, bool gated, int column) const {
    if (!gated) return column < linear.outputs ? column : -1;
    const int unit = (column / kColumns) * 16 + (column & 15);
    return unit < shape.mlp ? unit + (column & 16 ? shape.mlp : 0) : -1;
  }

  void allocate_streams() {
    for (int t = 0; t < shape.threads; ++t) {
      std::vector<PackedLinear *> in_order;
      for (DecoderLayer &layer : layers)
        for (PackedLinear &linear : layer.linears) in_order.push_back(&linear);
      in_order.push_back(&head);
      size_t bytes = 0;
      const auto run_bytes = [t](const PackedLinear &l) { return (l.first_pair[t + 1] - l.first_pair[t]) * l.pair_bytes; };
      for (const PackedLinear *linear : in_order) bytes += run_bytes(*linear);
      streams.emplace_back(bytes);
      const char *at = streams.back().data();
      for (PackedLinear *linear : in_order) {
        linear->weights[t] = at;
        at += run_bytes(*linear);
      }
    }
  }
};
