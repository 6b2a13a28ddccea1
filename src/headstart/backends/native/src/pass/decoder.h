// A decoder's packed weights.
#pragma once
#include <algorithm>
#include <array>

#include "api.h"
#include "kernels/kernel.h"
#include "kernels/openmp.h"
#include "kernels/products/screen.h"
#include "pass/decoder_layer.h"
#include "pass/decoder_layout.h"
#include "pass/kv_cache.h"
#include "pass/rotation.h"
#include "pass/states.h"

// What the first layer reads of a row; further ones read the residual stream.
enum class Entry {
  token,   // the token's embedding
  fused,   // a linear layer over embedding and feature, side by side (EAGLE-1); its output is the residual stream
  beside,  // attention reads both side by side, each normed; the feature is the residual stream (EAGLE-3)
  beside_normed,         // the same, and the normed feature is the residual stream
  block,                 // the token's embedding; of features every layer makes keys and values (DFlash)
  module,                // as fused, embedding and feature each normed first (multi-token modules)
  module_feature_first,  // the same, the feature before the embedding
};

class Decoder {
 public:
  // See headstart_create.
  Decoder(const HeadstartShape &s, const HeadstartLayer *of_layers, const uint8_t *forms)
      : shape(s),
        precision(static_cast<Precision>(s.precision)),
        head_precision(precision_of(
            forms[s.layers * kLinears * kMatrixParts],
            is_in_blocks(precision) && is_of_target(static_cast<Entry>(s.entry)) ? Precision::int4 : precision)),
        norm_kind(static_cast<NormKind>(s.norm)),
        activation(static_cast<Activation>(s.activation)),
        entry(static_cast<Entry>(s.entry)),
        kernel(linear_kernel(precision)),
        kernels{kernel, linear_kernel(Precision::bf16), linear_kernel(Precision::stored),
                linear_kernel(Precision::float8), linear_kernel(Precision::fp32)},
        head_kernel(linear_kernel(head_precision)),
        hidden(round_up(s.hidden, kPadding)),
        expert_size(round_up(s.experts.size, kPadding)),
        layers(s.layers) {
    const DecoderLayout layout(shape, precision);
    const uint8_t *of_experts = forms + (s.layers * kLinears + 1) * kMatrixParts;
    for (DecoderLayer &layer : layers) {
      const auto index = &layer - layers.data();
      static_cast<HeadstartLayer &>(layer) = of_layers[index];
      if (layer.is(Channel::experts) || layer.is(Channel::mlp_experts)) layer.experts = layout.experts(of_experts);
      of_experts += s.experts.count * kExpertLinears * kMatrixParts;
      const uint8_t *const own = forms + index * kLinears * kMatrixParts;
      projected = std::max(projected, layout.lay_out(layer, own, is_beside() && index == 0 ? 2 * s.hidden : s.hidden));
      const KeptKeys seen = seen_by(layer);
      // Compressed keys stand as those of a second head, which all read behind those of the first.
      note_heads(layer, {layer.heads, layer.is(Mixer::compressed) ? 1 : seen.kv_heads});
      key_dim = std::max(key_dim, seen.key_dim), value_dim = std::max(value_dim, seen.value_dim);
      for (const PackedLinear &linear : layer.linears) widest = std::max(widest, linear.padded_inputs);
      const bool gates = s.attention_gate && layer.is(Mixer::attention);
      for (int which = 0; which < kOwnLinears + gates; ++which)
        layer.linears[which].number = static_cast<int>(index) * kAdapted + which;
    }
    const uint8_t *const of_ends = of_experts + kMatrixParts;
    const int ends = 2 * std::max(s.streams - 1, 0);
    for (int i = 0; i < ends; ++i)
      (i < s.streams - 1 ? spread : merge)
          .push_back(layout.lay_out(of_ends + i * kMatrixParts, {s.hidden}, s.hidden, hidden));
    inputs.projection =
        layout.lay_out(of_experts, {s.inputs.count * s.inputs.size}, s.inputs.count ? s.hidden : 0, hidden);
    if (is_head()) {
      const int inputs = entry == Entry::fused || is_module() ? 2 * s.hidden : s.features;
      fuse = layout.lay_out(of_ends + ends * kMatrixParts, {s.hidden}, inputs, round_up(inputs, kPadding));
    }
    widest = std::max({widest, hidden, fuse.padded_inputs});
    head = layout.lay_out(&forms[s.layers * kLinears * kMatrixParts], {s.vocab}, s.hidden, hidden, 0, head_precision);
    // Soft caps round, so that they need not keep the order of logits.
    if (!is_head() && !is_quantised(head_precision) && !is_kept(head_precision) && s.logit_softcap == 0.f)
      screen.linear = linear_layout(kScreenPrecision, s.vocab, s.hidden, hidden, head.pairs, s.threads);
  }

  // Room for the packed matrices; nothing can be set before.
  void allocate() {
    for (int t = 0; t < shape.threads; ++t) streams.push_back(allocate_stream(linears(), t));
    if (!screen.present()) return;
    for (int t = 0; t < shape.threads; ++t) screen_streams.push_back(allocate_stream({&screen.linear}, t));
  }

  void set_linear(int layer, int which, const StoredMatrix &weight, const float *bias) {
    PackedLinear &linear = this->linear(layer, which);
    pack(linear, layer >= 0 && which == kUp && shape.gated, weight, bias);
    if (&linear == &head && screen.present()) pack_screen(screen, head_precision, weight, bias);
  }

  // Layer -1: of the model, as ModelLinearIndex has them.
  PackedLinear &linear(int layer, int which) {
    if (layer >= 0) return layers[layer].linears[which];
    if (which < kStreamLinears) return which == kOutputHead ? head : which == kFuse ? fuse : inputs.projection;
    const int end = which - kStreamLinears, others = shape.streams - 1;
    return end < others ? spread[end] : merge[end - others];
  }

  static void pack(PackedLinear &linear, bool gated, const StoredMatrix &weight, const float *bias) {
    pack_linear(linear, weight, bias, [&](int column) { return output_of(linear, gated, column); });
  }

  void set_norm(int layer, int which, const float *weight, const float *bias, int size) {
    if (layer < 0 && which >= kPartNorms)
      part_norms.resize(std::max<size_t>(part_norms.size(), which - kPartNorms + 1));
    Norm &norm = layer >= 0                ? layers[layer].norms[which]
                 : which >= kPartNorms     ? part_norms[which - kPartNorms]
                 : which == kFeatureNorm   ? feature_norm
                 : which == kEmbeddingNorm ? embedding_norm
                 : which == kInputsNorm    ? inputs.norm
                                           : final_norm;
    norm.weight.assign(round_up(size, kPadding), 0.f);
    std::copy_n(weight, size, norm.weight.begin());
    if (!bias) return;
    norm.bias.assign(norm.weight.size(), 0.f);
    std::copy_n(bias, size, norm.bias.begin());
  }

  // The output that a packed column holds, -1 for padding. Gated layers put 16 gates beside their 16 ups, so that one
  // thread has both, or all gates before all ups.
  static int output_of(const PackedLinear &linear, bool gated, int column) {
    if (!gated) return column < linear.outputs ? column : -1;
    const int half = linear.pairs / 2 * kColumns, units = linear.outputs / 2;
    const int unit = linear.apart ? column % half : (column / kColumns) * 16 + (column & 15);
    const bool is_up = linear.apart ? column >= half : (column & 16) != 0;
    return unit < units ? unit + (is_up ? units : 0) : -1;
  }

  // Positions that every layer has a rope row (or a learned embedding) for.
  int positions() const {
    int most = learned.empty() ? INT32_MAX : static_cast<int>(learned.size() / shape.hidden);
    for (const DecoderLayer &layer : layers)
      if (layer.rope >= 0) most = std::min(most, ropes[layer.rope].positions);
    return most;
  }

  bool is_head() const { return entry != Entry::token; }
  bool is_module() const { return entry == Entry::module || entry == Entry::module_feature_first; }
  bool is_beside() const { return entry == Entry::beside || entry == Entry::beside_normed; }

  // In a model in blocks, some matrices may be kept in other forms, and in any model in float32, each with rows and a
  // kernel of its own.
  int form_of(const PackedLinear &linear) const {
    for (int form = 1; form < kForms; ++form)
      if (linear.precision == precision_of_form(form) && linear.precision != precision) return form;
    return 0;
  }
  Precision precision_of_form(int form) const {
    constexpr Precision kOthers[] = {Precision::bf16, Precision::stored, Precision::float8, Precision::fp32};
    return form == 0 ? precision : kOthers[form - 1];
  }
  bool has_form(int form) const {
    const auto is = [&](const PackedLinear &linear) { return form_of(linear) == form; };
    if ((fuse.pairs && is(fuse)) || (inputs.projection.pairs && is(inputs.projection))) return true;
    if (std::any_of(spread.begin(), spread.end(), is) || std::any_of(merge.begin(), merge.end(), is)) return true;
    return form == 0 || std::any_of(layers.begin(), layers.end(), [&](const DecoderLayer &layer) {
             const auto any = [&](const std::vector<PackedLinear> &all) {
               return std::any_of(all.begin(), all.end(), is);
             };
             const ExpertsLayer *experts = layer.experts.get();
             const auto there_is = [&](const PackedLinear &linear) { return linear.pairs && is(linear); };
             return std::any_of(layer.linears, layer.linears + kLinears, there_is) ||
                    (experts && (any(experts->linears[kExpertUp]) || any(experts->linears[kExpertDown])));
           });
  }

  // In the order of use.
  std::vector<PackedLinear *> linears() {
    std::vector<PackedLinear *> in_order;
    if (fuse.outputs) in_order.push_back(&fuse);
    if (inputs.projection.pairs) in_order.push_back(&inputs.projection);
    for (PackedLinear &linear : spread) in_order.push_back(&linear);
    for (DecoderLayer &layer : layers) {
      const auto add = [&](std::initializer_list<int> all) {
        for (const int which : all)
          if (layer.linears[which].pairs) in_order.push_back(&layer.linears[which]);
      };
      if (shape.block_convolution.taps) add({kAttentionTaps});
      add({kQkv});
      if (layer.is(Mixer::attention_mamba2)) add({kStateInput});
      if (layer.is(Mixer::mamba)) add({kSelection, kStep});
      if (layer.is(Mixer::latent) && shape.attention_gate) add({kLatentGate});
      if (layer.is(Mixer::latent)) add({kQueryUp, kKeyUp, kValueUp});
      if (layer.is(Mixer::compressed)) add({kRaise, kLower});
      if (layer.is(Mixer::attention) && shape.attention_gate) add({kGate});
      if (shape.side_rank) add({kSideDown, kSideUp});
      if (layer.is(Mixer::delta)) add({kRates, kGateUp, kStepUp});
      add({kOutput});
      if (layer.is(Mixer::attention_mamba2)) add({kStateOutput});
      if (shape.cross) add({kCrossQuery, kCrossOutput});
      if (shape.block_convolution.taps) add({kMlpTaps});
      add({kUp, kDown});
      if (layer.input) add({kInputGate, kInputOutput});
      if (!layer.experts) continue;
      in_order.push_back(&layer.experts->router);
      for (std::vector<PackedLinear> &all : layer.experts->linears)
        for (PackedLinear &linear : all) in_order.push_back(&linear);
    }
    for (PackedLinear &linear : merge) in_order.push_back(&linear);
    in_order.push_back(&head);
    return in_order;
  }

  // What attention and the MLP leave their rows in: elements that the next layer reads, or floats to quantise.
  ElementKind middle_kind() const { return kernel.element == ElementKind::int8 ? ElementKind::fp32 : kernel.element; }

  // What each layer keeps of a token.
  std::vector<KeptKeys> kept_keys() const {
    std::vector<KeptKeys> kept;
    for (const DecoderLayer &layer : layers) kept.push_back(layer.reads < 0 ? seen_by(layer) : KeptKeys{});
    return kept;
  }
  // What each layer keeps in a slot of states.
  std::vector<StateShape> kept_states() const {
    std::vector<StateShape> kept;
    for (const DecoderLayer &layer : layers) kept.push_back(state_of(layer));
    return kept;
  }
  bool keeps_states() const {
    return std::any_of(layers.begin(), layers.end(), [&](const DecoderLayer &layer) { return keeps_state(layer); });
  }
  bool keeps_state(const DecoderLayer &layer) const { return state_of(layer).size() > 0; }
  // Floats of what a row feeds back to the next pass of a head: of a module with several streams all of them.
  int state_size() const { return shape.hidden * (is_module() && shape.hyper.count ? shape.hyper.count : 1); }
  // Taps are no less: -1 is behind the last norm, then come the streams before they are merged, then all side by side.
  int least_tap() const { return shape.hyper.count ? -2 - shape.hyper.count : -1; }
  // Whether tokens say which experts some rows go through.
  bool has_expert_tables() const {
    return std::any_of(layers.begin(), layers.end(), [](const DecoderLayer &layer) { return layer.by_token; });
  }
  // Most gates of a layer that cuts some off, or has them apart from ups, padded.
  int widest_raised() const {
    int most = 0;
    for (const DecoderLayer &layer : layers)
      if (layer.cuts || layer.linears[kUp].apart)
        most = std::max(most, static_cast<int>(layer.linears[kDown].padded_inputs));
    return most;
  }
  // The layer whose keys and values a layer reads.
  static int source_of(const DecoderLayer &layer, int index) { return layer.reads < 0 ? index : layer.reads; }

  int64_t bytes() const {
    const auto packed = packed_bytes();
    return packed[0] + packed[1] + packed[2] + embedding.bytes() + static_cast<int64_t>(learned.size() * sizeof(float));
  }

  // Of the packed matrices, allocated or not: layers (with what fuses features), output head, its screen.
  std::array<int64_t, 3> packed_bytes() const {
    const auto of = [](const PackedLinear &linear) { return static_cast<int64_t>(linear.bytes()); };
    int64_t total = of(fuse) + of(inputs.projection);
    for (const auto *ends : {&spread, &merge})
      for (const PackedLinear &linear : *ends) total += of(linear);
    for (const DecoderLayer &layer : layers) {
      for (const PackedLinear &linear : layer.linears) total += of(linear);
      if (!layer.experts) continue;
      total += of(layer.experts->router);
      for (const std::vector<PackedLinear> &all : layer.experts->linears)
        for (const PackedLinear &linear : all) total += of(linear);
    }
    return {total, of(head), screen.present() ? of(screen.linear) : 0};
  }

  static constexpr int kForms = 5;

  const HeadstartShape shape;
  // Files of 4 bits keep the output head in more, and it gets rows of 16 bits; a trained head's guesses get along with
  // less.
  const Precision precision, head_precision;
  const NormKind norm_kind;
  const Activation activation;
  const Entry entry;
  const LinearKernel kernel;
  const std::array<LinearKernel, kForms> kernels;  // [form]
  const LinearKernel head_kernel;
  const int hidden, expert_size;       // padded
  int widest = 0;                      // most padded inputs of a matrix of the layers
  int key_dim = 0, value_dim = 0;      // of the largest keys and values
  int projected = 0;                   // most columns of a layer's first product
  std::vector<HeadCount> head_counts;  // each that some layers have
  std::vector<DecoderLayer> layers;
  PackedLinear head, fuse;
  HeadScreen screen;  // of the head; absent where it would not help
  Norm final_norm, feature_norm, embedding_norm;
  std::vector<Norm> part_norms;  // of equal parts of a row's true features; empty: none
  std::vector<RopeTable> ropes;
  EmbeddingTable embedding;
  InputsOfLayers inputs;
  std::vector<float> ends[kEnds];           // of no layer; empty where there is no such part
  std::vector<PackedLinear> spread, merge;  // [stream - 1]: of embeddings; to where the first stream is
  std::vector<float> learned;               // [position][hidden], or empty
  std::vector<HugeBuffer> streams;          // [thread], weights in order of use
  std::vector<HugeBuffer> screen_streams;   // [thread]

 private:
  // Whether the output head is the target's own, and is to be as good.
  static bool is_of_target(Entry entry) {
    return entry == Entry::token || entry == Entry::module || entry == Entry::module_feature_first;
  }

  // The keys and values that a layer's rows see.
  KeptKeys seen_by(const DecoderLayer &layer) const {
    if (layer.is(Mixer::latent))
      return {1, shape.latent.kv_rank + shape.latent.rope_dim, shape.latent.kv_rank,
              layer.chooses ? shape.indexer.dim : 0,
              layer.chooses && shape.indexer.pool > 1 ? 2 * shape.indexer.dim : 0};
    if (layer.is(Mixer::compressed))
      return {layer.ratio ? 2 : 1, layer.head_dim, layer.head_dim, layer.chosen ? shape.compressed.index_dim : 0,
              2 * (given_to_keys(layer) + given_to_index(shape, layer))};
    if (layer.is(Mixer::attention) || layer.is(Mixer::attention_mamba2))
      return {layer.kv_heads, layer.head_dim, layer.value_dim};
    return {};
  }

  StateShape state_of(const DecoderLayer &layer) const {
    if (layer.is(Mixer::convolution)) return {shape.convolution.length - 1, shape.hidden};
    const HeadstartDelta &delta = shape.delta;
    if (layer.is(Mixer::delta))
      return {delta.length - 1, convolved(shape.delta), delta.value_heads * delta.value_dim / kDeltaBand,
              delta.key_dim * kDeltaBand,
              convolved(delta) + (delta.by_key ? delta.key_heads * delta.key_dim : round_up(delta.value_heads, 16)) +
                  round_up(delta.value_heads, 16)};
    const HeadstartMamba &mamba = shape.mamba;
    if (layer.is(Mixer::mamba))
      return {mamba.length - 1, mamba.inner, mamba.inner / 16, mamba.state_size * 16,
              mamba.inner + kPadding + round_up(mamba.step_rank, kPadding) + 2 * round_up(mamba.state_size, 16) +
                  round_up(mamba.inner, kColumns)};
    if (layer.is(Mixer::mamba2) || layer.is(Mixer::attention_mamba2)) {
      const HeadstartMamba2 &of = shape.mamba2;
      const int bands = of.heads * ceil_div(of.head_dim, kMamba2Band);
      const int channels = round_up(convolved(of), 16);
      return {of.length - 1, channels, bands, of.state_size * kMamba2Band, channels + 2 * round_up(of.heads, 16)};
    }
    return {};
  }

  void note_heads(DecoderLayer &layer, HeadCount heads) {
    if (!heads.of_keys) return;
    const auto found = std::find(head_counts.begin(), head_counts.end(), heads);
    layer.head_count = static_cast<int>(found - head_counts.begin());
    if (found == head_counts.end()) head_counts.push_back(heads);
  }
};
