// How the matrices of a decoder are laid out, before they are packed.
#pragma once
#include <algorithm>
#include <array>
#include <memory>
#include <numeric>

#include "api.h"
#include "kernels/kernel.h"
#include "pass/decoder_layer.h"

constexpr int kMatrixParts = 7;  // of a matrix that may have forms of their own
constexpr int kHeadGates = 2;    // `attention_gate` of one for each head
constexpr int kPadding = 64;     // inputs of a linear are padded to whole tiles of every precision

// Channels of a convolution. Of the delta rule: queries, keys, values.
static inline int convolved(const HeadstartDelta &of) {
  return 2 * of.key_heads * of.key_dim + of.value_heads * of.value_dim;
}
// Of Mamba-2: what is written, where to and from where.
static inline int convolved(const HeadstartMamba2 &of) {
  return of.heads * of.head_dim + 2 * of.groups * of.state_size;
}

// What a token gives to compressed keys, and to those of their indexer, as values; as weights as much.
static inline int given_to_keys(const HeadstartLayer &of) { return of.ratio ? (of.chosen ? 2 : 1) * of.head_dim : 0; }
static inline int given_to_index(const HeadstartShape &shape, const HeadstartLayer &of) {
  return of.chosen ? 2 * shape.compressed.index_dim : 0;
}

// What changes the convolutions around a part of a block head's layer: of both, of each tap, of each group of channels.
static inline int tap_changes(const HeadstartShape &shape) {
  const HeadstartBlockConvolution &of = shape.block_convolution;
  return of.taps ? 2 * of.taps * (shape.hidden / of.group) : 0;
}

class DecoderLayout {
 public:
  // `precision`: what layers compute in.
  DecoderLayout(const HeadstartShape &shape, Precision precision)
      : shape_(shape), precision_(precision), hidden_(round_up(shape.hidden, kPadding)) {}

  // A layer's matrices but its experts', by their forms [matrix][part]; `inputs`: of its first one. Columns of what the
  // mixer's first products give.
  int lay_out(DecoderLayer &layer, const uint8_t *forms, int inputs) const {
    const int columns = lay_out_mixer(layer, forms, inputs);
    layer.linears[kUp] = lay_out_up(forms + kUp * kMatrixParts, layer.mlp, shape_.gated);
    lay_out(layer, kDown, forms, {layer.mlp ? shape_.hidden : 0}, layer.mlp);
    if (layer.input) {
      layer.linears[kInputGate] = lay_out_narrow(forms + kInputGate * kMatrixParts, shape_.inputs.size);
      lay_out(layer, kInputOutput, forms, {shape_.hidden}, shape_.inputs.size);
    }
    if (shape_.block_convolution.taps)
      for (const int which : {kAttentionTaps, kMlpTaps})
        lay_out(layer, which, forms, {tap_changes(shape_)}, shape_.hidden);
    if (shape_.side_rank) {
      layer.linears[kSideDown] = lay_out_narrow(forms + kSideDown * kMatrixParts, shape_.side_rank);
      lay_out(layer, kSideUp, forms, {shape_.hidden}, shape_.side_rank);
    }
    return columns;
  }

  // `forms` [expert][matrix][part]
  std::unique_ptr<ExpertsLayer> experts(const uint8_t *forms) const {
    const HeadstartExperts &of = shape_.experts;
    auto layer = std::make_unique<ExpertsLayer>();
    const int scores = of.count + of.idle + of.shared_gate;
    layer->router =
        linear_layout(Precision::fp32, scores, shape_.hidden, hidden_, ceil_div(scores, kColumns), shape_.threads);
    for (int expert = 0; expert < of.count; ++expert, forms += kExpertLinears * kMatrixParts) {
      layer->linears[kExpertUp].push_back(lay_out_up(forms + kExpertUp * kMatrixParts, of.size, of.gated));
      layer->linears[kExpertDown].push_back(
          lay_out(forms + kExpertDown * kMatrixParts, {shape_.hidden}, of.size, round_up(of.size, kPadding)));
    }
    return layer;
  }

  // Of a matrix whose parts stand one below the other. `pairs`: 0 for as many as its outputs need; `of`: what the
  // model, or its head, computes in.
  PackedLinear lay_out(const uint8_t *forms, std::array<int, kMatrixParts> parts, int inputs, int padded_inputs,
                       int pairs = 0) const {
    return lay_out(forms, parts, inputs, padded_inputs, pairs, precision_);
  }
  PackedLinear lay_out(const uint8_t *forms, std::array<int, kMatrixParts> parts, int inputs, int padded_inputs,
                       int pairs, Precision of) const {
    const int outputs = std::accumulate(parts.begin(), parts.end(), 0);
    if (pairs == 0) pairs = ceil_div(outputs, kColumns);
    of = precision_of(forms[0], of);
    if (!is_kept(of)) return linear_layout(of, outputs, inputs, padded_inputs, pairs, shape_.threads, forms[0]);
    return stored_layout(of, outputs, inputs, padded_inputs, pairs, shape_.threads, [&](int pair) {
      int part = 0;
      for (int end = parts[0]; part + 1 < kMatrixParts && pair * kColumns >= end; end += parts[part]) ++part;
      return forms[part] - kStoredForm;
    });
  }

 private:
  int lay_out_mixer(DecoderLayer &layer, const uint8_t *forms, int inputs) const {
    if (layer.is(Mixer::latent))
      lay_out_latent(layer, forms);
    else if (layer.is(Mixer::compressed))
      lay_out_compressed(layer, forms);
    else if (layer.is(Mixer::convolution))
      lay_out_convolution(layer, forms);
    else if (layer.is(Mixer::delta))
      lay_out_delta(layer, forms);
    else if (layer.is(Mixer::mamba))
      lay_out_mamba(layer, forms);
    else if (layer.is(Mixer::mamba2))
      layer.projected = lay_out_mamba2(layer, forms, kQkv, kOutput);
    else if (!layer.is(Mixer::none))
      lay_out_attention(layer, forms, inputs);
    if (!layer.is(Mixer::attention_mamba2)) return layer.projected;
    layer.beside = round_up(layer.projected, kColumns);
    return layer.beside + lay_out_mamba2(layer, forms, kStateInput, kStateOutput);
  }

  void lay_out_attention(DecoderLayer &layer, const uint8_t *forms, int inputs) const {
    const int heads = layer.heads * layer.head_dim, seen = layer.heads * layer.value_dim;
    const int kept = layer.reads < 0 ? layer.kv_heads : 0, keys = kept * layer.head_dim;
    const int values = layer.values_are_keys ? 0 : kept * layer.value_dim;
    layer.queries = heads, layer.projected = heads + keys + values;
    lay_out(layer, kQkv, forms, {heads, keys, values}, inputs);
    lay_out(layer, kOutput, forms, {shape_.hidden}, seen);
    const int gates = shape_.attention_gate == kHeadGates ? layer.heads : seen;
    if (shape_.attention_gate) lay_out(layer, kGate, forms, {gates}, shape_.hidden);
    if (!shape_.cross) return;
    lay_out(layer, kCrossQuery, forms, {heads}, shape_.hidden);
    lay_out(layer, kCrossOutput, forms, {shape_.hidden}, heads);
  }

  void lay_out_convolution(DecoderLayer &layer, const uint8_t *forms) const {
    layer.projected = 3 * shape_.hidden;
    lay_out(layer, kQkv, forms, {layer.projected}, shape_.hidden);
    lay_out(layer, kOutput, forms, {shape_.hidden}, shape_.hidden);
  }

  void lay_out_delta(DecoderLayer &layer, const uint8_t *forms) const {
    const HeadstartDelta &of = shape_.delta;
    const int keys = of.key_heads * of.key_dim, values = of.value_heads * of.value_dim;
    const int rates = of.by_key ? of.value_heads : 2 * of.value_heads;
    if (of.by_key) {
      const int gates = of.rank ? of.rank : values, steps = of.rank ? of.rank : keys;
      layer.beside = convolved(of) + std::max(gates + steps, values);
      lay_out(layer, kQkv, forms, {keys, keys, values, gates, steps}, shape_.hidden);
      lay_out(layer, kGateUp, forms, {of.rank ? values : 0}, of.rank);
      lay_out(layer, kStepUp, forms, {of.rank ? keys : 0}, of.rank);
    } else {
      layer.beside = convolved(of) + values;
      lay_out(layer, kQkv, forms, {convolved(of), values}, shape_.hidden);
    }
    layer.beside = round_up(layer.beside, kColumns);
    layer.projected = layer.beside + rates;
    uint8_t full[kMatrixParts];
    std::fill_n(full, kMatrixParts, kFullBits);
    layer.linears[kRates] = lay_out(full, {rates}, shape_.hidden, hidden_);
    lay_out(layer, kOutput, forms, {shape_.hidden}, values);
  }

  void lay_out_mamba(DecoderLayer &layer, const uint8_t *forms) const {
    const HeadstartMamba &of = shape_.mamba;
    layer.projected = 2 * of.inner;
    lay_out(layer, kQkv, forms, {layer.projected}, shape_.hidden);
    lay_out(layer, kSelection, forms, {of.step_rank + 2 * of.state_size}, of.inner);
    lay_out(layer, kStep, forms, {of.inner}, of.step_rank);
    lay_out(layer, kOutput, forms, {shape_.hidden}, of.inner);
  }

  // Columns of its first product.
  int lay_out_mamba2(DecoderLayer &layer, const uint8_t *forms, int input, int output) const {
    const HeadstartMamba2 &of = shape_.mamba2;
    const int inner = of.heads * of.head_dim, columns = inner + convolved(of) + of.heads;
    lay_out(layer, input, forms, {columns}, shape_.hidden);
    lay_out(layer, output, forms, {shape_.hidden}, inner);
    return columns;
  }

  // Heads' matrices stand one below the other in one, an indexer's below all.
  void lay_out_latent(DecoderLayer &layer, const uint8_t *forms) const {
    const HeadstartLatent &of = shape_.latent;
    const int heads = shape_.heads * layer.head_dim, keys = of.kv_rank + of.rope_dim;
    const HeadstartIndexer index = layer.chooses ? shape_.indexer : HeadstartIndexer{};
    layer.queries = of.q_rank ? of.q_rank : heads;
    const int weights = index.pool > 1 ? index.dim : 0;
    layer.projected = layer.queries + keys + index.dim + weights + index.heads;
    lay_out(layer, kQkv, forms, {layer.queries, keys, index.dim, weights, index.heads}, shape_.hidden);
    lay_out(layer, kOutput, forms, {shape_.hidden}, shape_.heads * of.value_dim);
    lay_out(layer, kKeyUp, forms, {shape_.heads * of.kv_rank}, of.plain_dim);
    lay_out(layer, kValueUp, forms, {shape_.heads * of.value_dim}, of.kv_rank);
    lay_out(layer, kQueryUp, forms, {of.q_rank ? heads : 0, index.heads * index.dim}, of.q_rank);
    const int gates = shape_.heads * (shape_.attention_gate == kHeadGates ? 1 : of.value_dim);
    if (shape_.attention_gate) lay_out(layer, kLatentGate, forms, {gates}, shape_.hidden);
  }

  // What tokens give to compressed keys, as values and as weights, stands behind their own key, then what the
  // indexer's heads count for.
  void lay_out_compressed(DecoderLayer &layer, const uint8_t *forms) const {
    const HeadstartCompressed &of = shape_.compressed;
    const int heads = layer.heads * layer.head_dim, lowered = of.groups * of.output_rank;
    const int made = given_to_keys(layer), index = given_to_index(shape_, layer);
    const int shares = layer.chosen ? of.index_heads : 0;
    layer.queries = of.q_rank;
    layer.projected = of.q_rank + layer.head_dim + 2 * (made + index) + shares;
    lay_out(layer, kQkv, forms, {of.q_rank, layer.head_dim, made, made, index, index, shares}, shape_.hidden);
    lay_out(layer, kRaise, forms, {heads, shares * of.index_dim}, of.q_rank);
    lay_out(layer, kLower, forms, {lowered}, heads / of.groups);
    lay_out(layer, kOutput, forms, {shape_.hidden}, lowered);
  }

  // Of the stream, with few outputs, all that its reader pads them to.
  PackedLinear lay_out_narrow(const uint8_t *forms, int outputs) const {
    return lay_out(forms, {outputs}, shape_.hidden, hidden_, round_up(outputs, kPadding) / kColumns);
  }

  // A layer's matrix, of the forms of all of them.
  void lay_out(DecoderLayer &layer, int which, const uint8_t *forms, std::array<int, kMatrixParts> parts,
               int inputs) const {
    layer.linears[which] = lay_out(forms + which * kMatrixParts, parts, inputs, round_up(inputs, kPadding));
  }

  PackedLinear lay_out_up(const uint8_t *forms, int size, bool gated) const {
    const int padded = round_up(size, kPadding), pairs = padded / (gated ? 16 : kColumns);
    const bool apart = gated && forms[0] != forms[1];
    PackedLinear up = lay_out(forms, {apart ? padded : size, gated ? size : 0}, shape_.hidden, hidden_, pairs);
    up.apart = apart, up.outputs = gated ? 2 * size : size;
    return up;
  }

  const HeadstartShape &shape_;
  const Precision precision_;
  const int hidden_;  // padded
};
