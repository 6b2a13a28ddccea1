// What one thread of the team does in a panel of a pass (see pass.h).
#pragma once
#include "pass/worker_channel.h"

class PassRunner::Worker : public PassRunner::ChannelWorker {
 public:
  using ChannelWorker::ChannelWorker;

  void run() {
    read_on_from(0);
    if (p_.context_) take_context();
    if (m_.is_head() && m_.entry != Entry::block)
      enter();
    else
      embed();
    if (p_.given_) take_inputs();
    if (p_.streams_) spread();
    for (int layer = 0; layer < pass_.layers; ++layer) {
      copy_taps(layer);
      run_layer(m_.layers[layer], layer);
    }
    copy_taps(pass_.layers);
    if (p_.streams_ && rows_) merge();
    copy_final_taps();
    p_.head_->run(
        thread_, ahead_, p_.deal_,
        [this](int row, float *out) { norm_row(m_.final_norm, x(p_.finished_.places()[row]), out); },
        [this] { barrier(); });
  }

 private:
  void embed() {
    const int size = m_.shape.hidden;
    const Lanes factor = splat(m_.shape.embedding_scale);
    my_rows(rows_, [&](int row) {
      float *to = x(row);
      if (pass_.inputs && !m_.is_head()) {
        std::memcpy(to, features(row, size), size * sizeof(float));
      } else {
        load_embedding(row, to);
        for (int k = 0; k < m_.hidden; k += 16) store(to + k, load(to + k) * factor);
        if (!m_.learned.empty()) {
          const int position = p_.text_.layout.positions()[pass_row(row)];
          const float *place = m_.learned.data() + static_cast<size_t>(position) * size;
          for (int k = 0; k < size; ++k) to[k] += place[k];
        }
      }
      if (m_.embedding_norm.present()) norm_row(m_.embedding_norm, to, to);
    });
    barrier();
  }

  void load_embedding(int row, float *to) const {
    m_.embedding.read(pass_.tokens[pass_row(row)], m_.shape.hidden, m_.precision != Precision::fp32, to);
  }

  // Context rows of a block head: the target's states, fused and normed.
  void take_context() {
    fuse(p_.context_, p_.branch_, p_.branch_stride_, [&](int row, float *scratch) { return norm_parts(row, scratch); });
    barrier();
    my_rows(p_.context_, [&](int row) {
      norm_row(m_.feature_norm, p_.branch_ + row * p_.branch_stride_, p_.row_[thread_]);
      store_block_row(m_.layers[0].linears[kQkv], row);
    });
  }

  // Packs the thread's row of scratch for attention, as row `row` of the panel.
  void store_block_row(const PackedLinear &qkv, int row) const {
    const int form = m_.form_of(qkv);
    m_.kernels[form].store_row(p_.block_input_[form], row, p_.row_[thread_], qkv.padded_inputs);
  }

  // The rows of a draft head: features, fused with whatever else they bring, become the residual stream.
  void enter() {
    const int size = m_.shape.hidden;
    if (!m_.is_beside())
      fuse(rows_, p_.x_, p_.x_stride_, [&](int row, float *scratch) {
        load_embedding(row, scratch);
        std::memcpy(scratch + size, features(row, size), size * sizeof(float));
        std::fill(scratch + 2 * size, scratch + m_.fuse.padded_inputs, 0.f);
        return scratch;
      });
    else if (pass_.true_features)
      fuse(rows_, p_.x_, p_.x_stride_, [&](int row, float *scratch) { return norm_parts(row, scratch); });
    else
      my_rows(rows_, [&](int row) { std::memcpy(x(row), features(row, size), size * sizeof(float)); });
    barrier();
    if (m_.entry != Entry::beside_normed) return;
    my_rows(rows_, [&](int row) { norm_row(m_.feature_norm, x(row), x(row)); });
    barrier();
  }

  const float *features(int row, int size) const { return pass_.inputs + static_cast<size_t>(p_.first_ + row) * size; }

  // What layers read beside their stream, of all rows: made of their embeddings, and looked up by their tokens.
  void take_inputs() {
    const PackedLinear &projection = m_.inputs.projection;
    linear(projection, pack_norm(projection, kNoNorm, p_.input_, p_.private_input_[thread_]), rows_,
           copy_columns(p_.given_, p_.given_stride_));
    barrier();
    const HeadstartInputs &of = m_.shape.inputs;
    const float shrunk = 1.f / std::sqrt(static_cast<float>(m_.shape.hidden));
    const float grown = std::sqrt(static_cast<float>(of.size));
    my_rows(rows_, [&](int row) {
      float *const given = p_.given_ + row * p_.given_stride_, *const scratch = p_.row_[thread_];
      float *const looked_up = p_.looked_up_[thread_];
      const int32_t token = pass_.tokens[pass_row(row)];
      m_.inputs.table.read(token < of.tokens ? token : 0, of.count * of.size, false, looked_up);
      for (int input = 0; input < of.count; ++input) {
        float *const to = given + input * of.size;
        for (int k = 0; k < of.size; ++k) scratch[k] = to[k] * shrunk;
        normalise(m_.norm_kind, m_.inputs.norm, m_.shape.norm_eps, scratch, of.size, scratch);
        for (int k = 0; k < of.size; ++k) to[k] = (scratch[k] + looked_up[input * of.size + k] * grown) * kHalfPower;
      }
    });
    barrier();
  }

  // to = the fusing layer over what `source` gives for `rows` rows.
  template <class Source>
  void fuse(int rows, float *to, size_t stride, Source &&source) {
    linear(m_.fuse, pack(m_.fuse, p_.input_, p_.private_input_[thread_], rows, source), rows, copy_columns(to, stride));
  }

  const float *norm_parts(int row, float *scratch) const {
    const int all = m_.shape.features, parts = static_cast<int>(m_.part_norms.size()), size = parts ? all / parts : all;
    float *from = parts ? scratch + m_.widest : scratch;
    std::memcpy(from, features(row, all), all * sizeof(float));
    for (int part = 0; part < parts; ++part)
      normalise(m_.norm_kind, m_.part_norms[part], m_.shape.norm_eps, from + part * size, size, scratch + part * size);
    std::fill(scratch + all, scratch + m_.fuse.padded_inputs, 0.f);
    return scratch;
  }

  // Embedding and feature side by side, each normed.
  const float *beside(const Norm &norm, int row, float *scratch) const {
    const int size = m_.shape.hidden;
    load_embedding(row, scratch);
    norm_row(norm, scratch, scratch);
    if (m_.entry == Entry::beside)
      norm_row(m_.feature_norm, x(row), scratch + size);
    else
      std::memcpy(scratch + size, x(row), size * sizeof(float));
    std::fill(scratch + 2 * size, scratch + m_.layers[0].linears[kQkv].padded_inputs, 0.f);
    return scratch;
  }

  const Activations &pack_attention_input(const DecoderLayer &layer, int index) {
    const PackedLinear &qkv = layer.linears[kQkv];
    if (m_.entry == Entry::block) {
      my_rows(rows_, [&](int row) {
        norm_row(layer.norms[kAttentionNorm], x(row), p_.row_[thread_]);
        store_block_row(qkv, p_.context_ + row);
      });
      barrier();
      return p_.block_input_[m_.form_of(qkv)];
    }
    if (index > 0 || !m_.is_beside())
      return pack_norm(qkv, layer.norms[kAttentionNorm], p_.input_, p_.private_input_[thread_]);
    return pack(qkv, p_.input_, p_.private_input_[thread_], rows_,
                [&](int row, float *scratch) { return beside(layer.norms[kAttentionNorm], row, scratch); });
  }

  void run_layer(const DecoderLayer &layer, int index) {
    const bool narrows = index == pass_.layers - 1 && !p_.finished_.are_all();
    if (layer.is(Mixer::none)) {
      if (narrows && !narrow_between_layers()) return;
      run_channel(layer, index);
      return;
    }
    if (p_.streams_) predict_streams(layer);
    const Activations input = pack_attention_input(layer, index);
    Activations mlp_input;
    const auto pack_beside = [&] {
      if (m_.shape.parallel_residual)
        mlp_input = pack_norm(layer.linears[kUp], layer.norms[kMlpNorm], p_.mlp_input_, p_.private_mlp_input_[thread_]);
    };
    if (!narrows) pack_beside();
    linear(layer.linears[kQkv], input, p_.rows_, copy_columns(p_.qkv_, p_.qkv_stride_),
           queries_from(layer, narrows ? first_of_finished() : p_.context_));
    barrier();
    const bool has_two = layer.is(Mixer::attention_mamba2), keeps_state = m_.keeps_state(layer);
    if (has_two) project_beside(layer, layer.linears[kStateInput], input);
    if (layer.is(Mixer::delta)) project_beside(layer, layer.linears[kRates], input);
    if (keeps_state)
      p_.states_->run(layer, index,
                      {p_.qkv_ + (has_two ? layer.beside : 0), p_.qkv_stride_, places(narrows),
                       has_two ? p_.middle_ : p_.attended_, m_.middle_kind()},
                      thread_, ahead_, p_.deal_, [this] { barrier(); });
    if (keeps_state && !has_two) {
      if (narrows && !narrow()) return;
    } else {
      if (m_.shape.attention_gate) run_gate(layer, input, narrows);
      if (p_.side_) run_side(layer, input);
      prepare_heads(layer);
      if (m_.precision == Precision::fp32)
        store_keys_and_values<float>(layer, index);
      else
        store_keys_and_values<Bf16>(layer, index);
      barrier();
      if (!rows_ || (narrows && !narrow())) return;
      if (p_.latent_) take_queries(layer);
      attend(p_.text_, layer, p_.latent_ ? latent_attention(index, layer, narrows) : attention(layer, index, narrows),
             narrows);
    }
    clear_padding(layer.linears[kOutput], p_.attended_);
    if (has_two) clear_padding(layer.linears[kStateOutput], p_.middle_);
    barrier();
    if (p_.latent_) take_values(layer);
    if (narrows) {
      pack_beside();
      if (m_.shape.parallel_residual && packs_alone(rows_)) barrier();  // others still read x, which is added to next
    }
    const PackedLinear &output = layer.linears[kOutput];
    add_branch(output, pack_quantised(output, p_.attended_), layer.norms[kAttentionPostNorm],
               layer.norms[kAttentionSumNorm]);
    if (has_two)
      add_branch(layer.linears[kStateOutput], pack_quantised(layer.linears[kStateOutput], p_.middle_), kNoNorm,
                 kNoNorm);
    if (m_.shape.cross) run_cross_attention(layer, index, narrows);
    if (p_.side_) add_side();
    if (m_.shape.parallel_residual)
      run_mlp(layer, mlp_input);
    else if (!layer.is(Channel::none))
      run_channel(layer, index);
    if (p_.streams_) correct_streams(layer);
    if (layer.input) run_input(layer);
  }

  // All streams of embeddings, of which the first is there.
  void spread() {
    const ResidualStreams &streams = *p_.streams_;
    for (int stream = 0; stream < streams.others(); ++stream) {
      const PackedLinear &projection = m_.spread[stream];
      linear(projection, pack_norm(projection, kNoNorm, p_.input_, p_.private_input_[thread_]), rows_,
             copy_columns(streams.other(stream), streams.stride()));
      barrier();
    }
    my_rows(rows_, [&](int row) { streams.strengthen(row, x(row)); });
    barrier();
  }

  // x becomes the mean of all streams.
  void merge() {
    const ResidualStreams &streams = *p_.streams_;
    my_rows(rows_, [&](int row) { streams.begin_sum(row, x(row)); });
    for (int stream = 0; stream < streams.others(); ++stream) {
      const PackedLinear &projection = m_.merge[stream];
      linear(projection,
             pack(projection, p_.input_, p_.private_input_[thread_], rows_,
                  [&](int row, float *) { return streams.other(stream, row); }),
             rows_, copy_columns(p_.branch_, p_.branch_stride_));
      barrier();
      my_rows(rows_, [&](int row) { streams.add(row, p_.branch_ + row * p_.branch_stride_, x(row)); });
      barrier();
    }
    my_rows(rows_, [&](int row) { streams.end_sum(x(row)); });
    barrier();
  }

  void predict_streams(const DecoderLayer &layer) {
    my_rows(rows_, [&](int row) { p_.streams_->predict(layer, row, x(row), thread_); });
    barrier();
  }

  void correct_streams(const DecoderLayer &layer) {
    my_rows(rows_, [&](int row) { p_.streams_->correct(layer, row, x(row), thread_); });
    barrier();
  }

  void copy_taps(int layer) {
    for (int i = 0; i < pass_.taps; ++i)
      if (pass_.tap_layers[i] == layer) my_rows(rows_, [&](int row) { copy_tap(i, row, x(row), m_.shape.tap_scale); });
  }

  void copy_final_taps() {
    for (int i = 0; i < pass_.taps; ++i)
      if (pass_.tap_layers[i] == -1)
        my_rows(rows_, [&](int row) {
          float *scratch = p_.row_[thread_];
          norm_row(m_.final_norm, x(row), scratch);
          copy_tap(i, row, scratch, 1.f);
        });
  }

  void copy_tap(int tap, int row, const float *from, float scale) {
    const size_t size = m_.shape.hidden;
    float *to = pass_.tap_rows[tap] + (p_.first_ + panel_rows_[row]) * size;
    for (size_t k = 0; k < size; ++k) to[k] = from[k] * scale;
  }
};
