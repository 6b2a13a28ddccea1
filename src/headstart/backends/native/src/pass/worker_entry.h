// One thread's share of what the first layer reads: embeddings, features of a head, what layers read beside their
// stream.
#pragma once
#include "pass/worker_rows.h"

class WorkerEntry {
 public:
  WorkerEntry(Panel &panel, WorkerRows &rows) : t_(rows), p_(panel), m_(panel.model) {}

  void run() {
    if (p_.context) take_context();
    if (m_.is_head() && m_.entry != Entry::block)
      enter();
    else
      embed();
    if (p_.given) take_inputs();
  }

  // What a layer's mixer reads of the rows.
  const Activations &pack_attention_input(const DecoderLayer &layer, int index) {
    const PackedLinear &qkv = layer.linears[kQkv];
    if (m_.entry == Entry::block) {
      t_.my_rows(t_.rows, [&](int row) {
        t_.norm_row(layer.norms[kAttentionNorm], t_.x(row), t_.scratch());
        store_block_row(qkv, p_.context + row, t_.scratch());
      });
      t_.barrier();
      return p_.block_input[m_.form_of(qkv)];
    }
    if (index > 0 || !m_.is_beside()) return t_.pack_norm(qkv, layer.norms[kAttentionNorm]);
    return t_.pack(qkv, t_.rows,
                   [&](int row, float *scratch) { return beside(layer.norms[kAttentionNorm], row, scratch); });
  }

  // Packs a row of floats for attention of a block head, as row `row` of the panel.
  void store_block_row(const PackedLinear &qkv, int row, const float *from) const {
    const int form = m_.form_of(qkv);
    m_.kernels[form].store_row(p_.block_input[form], row, from, qkv.padded_inputs);
  }

 private:
  void embed() {
    const int size = m_.shape.hidden;
    const Lanes factor = splat(m_.shape.embedding_scale);
    t_.my_rows(t_.rows, [&](int row) {
      float *to = t_.x(row);
      if (p_.pass->inputs && !m_.is_head()) {
        std::memcpy(to, features(row, size), size * sizeof(float));
      } else {
        load_embedding(row, to);
        for (int k = 0; k < m_.hidden; k += 16) store(to + k, load(to + k) * factor);
        if (!m_.learned.empty()) {
          const int position = p_.text.layout.text_positions()[t_.pass_row(row)];
          const float *place = m_.learned.data() + static_cast<size_t>(position) * size;
          for (int k = 0; k < size; ++k) to[k] += place[k];
        }
      }
      if (m_.embedding_norm.present()) t_.norm_row(m_.embedding_norm, to, to);
    });
    t_.barrier();
  }

  void load_embedding(int row, float *to) const {
    m_.embedding.read(p_.pass->tokens[t_.pass_row(row)], m_.shape.hidden, m_.precision != Precision::fp32, to);
  }

  // Context rows of a block head: the target's states, fused and normed.
  void take_context() {
    fuse(p_.context, p_.branch, p_.branch_stride, [&](int row, float *scratch) { return norm_parts(row, scratch); });
    t_.barrier();
    t_.my_rows(p_.context, [&](int row) {
      t_.norm_row(m_.feature_norm, p_.branch + row * p_.branch_stride, t_.scratch());
      store_block_row(m_.layers[0].linears[kQkv], row, t_.scratch());
    });
  }

  // The rows of a draft head: features, fused with whatever else they bring, become the residual stream.
  void enter() {
    const int size = m_.shape.hidden;
    if (m_.is_module() && p_.hyper) return enter_streams();
    if (m_.is_module())
      fuse(t_.rows, p_.x, p_.x_stride, [&](int row, float *scratch) { return normed_pair(row, 0, scratch); });
    else if (!m_.is_beside())
      fuse(t_.rows, p_.x, p_.x_stride, [&](int row, float *scratch) {
        load_embedding(row, scratch);
        std::memcpy(scratch + size, features(row, size), size * sizeof(float));
        std::fill(scratch + 2 * size, scratch + m_.fuse.padded_inputs, 0.f);
        return scratch;
      });
    else if (p_.pass->true_features)
      fuse(t_.rows, p_.x, p_.x_stride, [&](int row, float *scratch) { return norm_parts(row, scratch); });
    else
      t_.my_rows(t_.rows, [&](int row) { std::memcpy(t_.x(row), features(row, size), size * sizeof(float)); });
    t_.barrier();
    if (m_.entry != Entry::beside_normed) return;
    t_.my_rows(t_.rows, [&](int row) { t_.norm_row(m_.feature_norm, t_.x(row), t_.x(row)); });
    t_.barrier();
  }

  // The token beside each of the streams that a module reads.
  void enter_streams() {
    for (int stream = 0; stream < m_.shape.hyper.count; ++stream) {
      fuse(t_.rows, p_.x, p_.x_stride, [&](int row, float *scratch) { return normed_pair(row, stream, scratch); });
      t_.barrier();
      t_.my_rows(t_.rows, [&](int row) { p_.hyper->begin(row, stream, t_.x(row)); });
      t_.barrier();
    }
  }

  const float *features(int row, int size) const {
    return p_.pass->inputs + static_cast<size_t>(p_.first + row) * size;
  }

  // What layers read beside their stream, of all rows: made of their embeddings, and looked up by their tokens.
  void take_inputs() {
    const PackedLinear &projection = m_.inputs.projection;
    t_.linear(projection, t_.pack_norm(projection, kNoNorm), t_.rows, t_.copy_columns(p_.given, p_.given_stride));
    t_.barrier();
    const HeadstartInputs &of = m_.shape.inputs;
    const float shrunk = 1.f / std::sqrt(static_cast<float>(m_.shape.hidden));
    const float grown = std::sqrt(static_cast<float>(of.size));
    t_.my_rows(t_.rows, [&](int row) {
      float *const given = p_.given + row * p_.given_stride, *const scratch = t_.scratch();
      float *const looked_up = p_.looked_up[t_.thread];
      const int32_t token = p_.pass->tokens[t_.pass_row(row)];
      m_.inputs.table.read(token < of.tokens ? token : 0, of.count * of.size, false, looked_up);
      for (int input = 0; input < of.count; ++input) {
        float *const to = given + input * of.size;
        for (int k = 0; k < of.size; ++k) scratch[k] = to[k] * shrunk;
        normalise(m_.norm_kind, m_.inputs.norm, m_.shape.norm_eps, scratch, of.size, scratch);
        for (int k = 0; k < of.size; ++k) to[k] = (scratch[k] + looked_up[input * of.size + k] * grown) * kHalfPower;
      }
    });
    t_.barrier();
  }

  // to = the fusing layer over what `source` gives for `rows` rows.
  template <class Source>
  void fuse(int rows, float *to, size_t stride, Source &&source) {
    t_.linear(m_.fuse, t_.pack(m_.fuse, rows, source), rows, t_.copy_columns(to, stride));
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
    t_.norm_row(norm, scratch, scratch);
    if (m_.entry == Entry::beside)
      t_.norm_row(m_.feature_norm, t_.x(row), scratch + size);
    else
      std::memcpy(scratch + size, t_.x(row), size * sizeof(float));
    std::fill(scratch + 2 * size, scratch + m_.layers[0].linears[kQkv].padded_inputs, 0.f);
    return scratch;
  }

  // Of a module likewise, by norms of its own, in the order that its projection has.
  const float *normed_pair(int row, int stream, float *scratch) const {
    const int size = m_.shape.hidden;
    const bool feature_first = m_.entry == Entry::module_feature_first;
    float *const part = scratch + m_.widest;
    load_embedding(row, part);
    for (int k = 0; k < size; ++k) part[k] *= m_.shape.embedding_scale;
    t_.norm_row(m_.embedding_norm, part, part);
    std::memcpy(scratch + (feature_first ? size : 0), part, size * sizeof(float));
    std::memcpy(part, features(row, m_.state_size()) + stream * size, size * sizeof(float));
    t_.norm_row(m_.feature_norm, part, part);
    std::memcpy(scratch + (feature_first ? 0 : size), part, size * sizeof(float));
    std::fill(scratch + 2 * size, scratch + m_.fuse.padded_inputs, 0.f);
    return scratch;
  }

  WorkerRows &t_;
  Panel &p_;
  Decoder &m_;
};
