// One thread's share of attention: gates, heads, keys and values of the cache, what rows see.
#pragma once
#include "pass/worker_rows.h"

class PassRunner::AttentionWorker : public PassRunner::RowWorker {
 public:
  using RowWorker::RowWorker;

  // The rows at work look at their sequences' encoder memories.
  void run_cross_attention(const DecoderLayer &layer, int index, bool narrowed) {
    const PackedLinear &query = layer.linears[kCrossQuery], &output = layer.linears[kCrossOutput];
    linear(query, pack_norm(query, layer.norms[kCrossNorm], p_.input_, p_.private_input_[thread_]), rows_,
           copy_columns(p_.qkv_, p_.qkv_stride_));
    barrier();
    attend(p_.encoded_, layer, cross_attention(layer, index, narrowed), narrowed);
    barrier();
    add_branch(output, pack_quantised(output, p_.attended_), kNoNorm, layer.norms[kCrossSumNorm]);
  }

  // The gate of what heads will see; it reads what queries are made of.
  void run_gate(const DecoderLayer &layer, const Activations &input, bool narrows) {
    const PackedLinear &gate = layer.linears[kGate];
    linear(gate, input_beside(layer, gate, input), rows_, copy_columns(p_.gates_, p_.gate_stride_),
           narrows ? WantedFrom{gate.pairs, first_of_finished() / kRowBlock * kRowBlock} : WantedFrom{});
    barrier();
  }

  QueryGrowth growth(const DecoderLayer &layer) const {
    const bool grows = m_.shape.growth_everywhere || layer.rope < 0;
    return grows ? QueryGrowth{m_.shape.growth, m_.shape.growth_trained, m_.shape.growth_everywhere ? 0 : 1}
                 : QueryGrowth{};
  }

  // What is done with all heads of a row together, before each is turned by itself.
  void prepare_heads(const DecoderLayer &layer) {
    const float clip = m_.shape.qkv_clip;
    if (!m_.shape.joint_head_norms && clip == 0.f) return;
    my_rows(rows_, [&](int row) {
      float *const heads = p_.qkv_ + row * p_.qkv_stride_;
      if (m_.shape.joint_head_norms) {
        norm_heads(layer.norms[kQueryNorm], heads, layer.queries);
        norm_heads(layer.norms[kKeyNorm], heads + layer.queries, layer.kv_heads * layer.head_dim);
      }
      for (int k = 0; k < layer.projected && clip != 0.f; k += 16)
        store(heads + k, max(splat(-clip), min(splat(clip), load(heads + k))));
    });
    barrier();
  }

  void norm_heads(const Norm &norm, float *heads, int size) const {
    float *const scratch = p_.row_[thread_];
    normalise(NormKind::rms, norm, m_.shape.norm_eps, heads, size, scratch);
    std::memcpy(heads, scratch, size * sizeof(float));
  }

  // Of heads that have been prepared.
  static HeadRotation no_rotation(int head_dim) {
    return {{kNoNorm, NormKind::rms, 0.f, false, false}, nullptr, head_dim};
  }

  HeadRotation rotation(const DecoderLayer &layer, NormIndex norm) const {
    return {{m_.shape.joint_head_norms ? kNoNorm : layer.norms[norm], static_cast<NormKind>(m_.shape.head_norm),
             m_.shape.norm_eps, m_.shape.own_head_norms != 0, m_.shape.rotated_head_norms != 0},
            rope_of(layer),
            layer.head_dim};
  }

  // Writes keys and values to the cache. A head's are one thread's: values of neighbours share words.
  template <class Cell>
  void store_keys_and_values(const DecoderLayer &layer, int index) {
    if (layer.reads >= 0) return;
    if (p_.latent_) return store_states<Cell>(layer, index);
    const int written = 2 * layer.kv_heads;
    const HeadRotation of_keys = rotation(layer, kKeyNorm);
    for (int head = written * thread_ / threads_; head < written * (thread_ + 1) / threads_; ++head)
      for (int row = 0; row < p_.rows_; ++row) {
        ahead_.ask(kLinesAUnit);
        store_head<Cell>(layer, of_keys, index, head, row);
      }
  }

  // One of the key and value heads, of one row of the panel.
  template <class Cell>
  void store_head(const DecoderLayer &layer, const HeadRotation &of_keys, int index, int head, int panel_row) {
    const int kv_heads = layer.kv_heads, d = layer.head_dim, row = p_.first_ + panel_row;
    const int place = layer.values_are_keys ? head % kv_heads : head;
    const float *from = p_.qkv_ + panel_row * p_.qkv_stride_ + layer.queries + place * d;
    const SequenceLayout &s = p_.text_.layout.sequence_of(row);
    const int slot = s.slot(row), page = p_.text_.layout.page(s, slot / kPageKeys);
    alignas(64) float to[HeadRotation::kMostDimensions];
    if (head >= kv_heads) {
      const Norm &norm = layer.norms[kValueNorm];
      if (norm.present()) normalise(NormKind::rms, norm, m_.shape.norm_eps, from, d, to);
      write_value(p_.cache_->keys_values.values<Cell>(index, page, head - kv_heads), slot % kPageKeys,
                  norm.present() ? to : from, d);
      return;
    }
    of_keys.apply(head, from, p_.text_.layout.positions()[row], to);
    write_key(p_.cache_->keys_values.keys<Cell>(index, page, head), slot % kPageKeys, to, d);
  }

  // The same of latent attention. Keys whose values share words are one thread's.
  template <class Cell>
  void store_states(const DecoderLayer &layer, int index) {
    for (int panel_row = 0; panel_row < rows_; ++panel_row) {
      const int row = p_.first_ + panel_row;
      const SequenceLayout &s = p_.text_.layout.sequence_of(row);
      const int slot = s.slot(row), page = p_.text_.layout.page(s, slot / kPageKeys);
      if (slot / 2 % threads_ != thread_) continue;
      ahead_.ask(kLinesAUnit);
      p_.latent_->store(layer, rope_of(layer), p_.text_.layout.positions()[row], p_.qkv_ + panel_row * p_.qkv_stride_,
                        p_.cache_->keys_values.keys<Cell>(index, page, 0),
                        p_.cache_->keys_values.values<Cell>(index, page, 0), slot % kPageKeys, thread_);
    }
  }

  // The queries of the rows at work, in the space of latent attention's states.
  void take_queries(const DecoderLayer &layer) {
    p_.latent_->take_queries(
        layer, rope_of(layer), rows_, thread_, ahead_, p_.deal_,
        [&](int row) { return p_.qkv_ + panel_rows_[row] * p_.qkv_stride_; },
        [&](int row) { return p_.text_.layout.positions()[p_.first_ + panel_rows_[row]]; }, [this] { barrier(); });
  }

  void take_values(const DecoderLayer &layer) {
    p_.latent_->take_values(
        layer, rows_, thread_, ahead_, p_.deal_, [this] { barrier(); },
        [&](int row, int column, const float *out) {
          for (int h = 0; h < kColumns; h += 16)
            store_activation(m_.middle_kind(), p_.attended_, row, column + h, load(out + h));
        });
  }

  // Of the text: queries are those of all rows of the panel.
  AttentionLayer attention(const DecoderLayer &layer, int index, bool narrowed) {
    return {p_.cache_->keys_values,
            p_.text_.layout,
            p_.text_.layout.positions(),
            p_.text_.layout.sights(),
            Decoder::source_of(layer, index),
            layer.window,
            layer.chunk,
            layer.head_dim,
            layer.head_dim,
            m_.shape.attention_scale,
            m_.shape.attention_softcap,
            layer.distance_bias,
            rotation(layer, kQueryNorm),
            p_.qkv_,
            p_.qkv_stride_,
            p_.all_rows_.data() + p_.context_,
            p_.first_ + p_.context_,
            p_.attended_,
            places(narrowed),
            m_.middle_kind(),
            ahead_,
            layer.sinks.empty() ? nullptr : layer.sinks.data(),
            p_.gates_,
            p_.gate_stride_,
            m_.shape.attention_gate == Decoder::kHeadGates,
            growth(layer)};
  }

  // Of encoder memories: queries are those of the rows at work, and no place is told.
  AttentionLayer cross_attention(const DecoderLayer &layer, int index, bool narrowed) {
    return {p_.cache_->keys_values,
            p_.encoded_.layout,
            p_.encoded_.layout.positions(),
            p_.encoded_.layout.sights(),
            index,
            0,
            0,
            layer.head_dim,
            layer.head_dim,
            m_.shape.attention_scale,
            m_.shape.attention_softcap,
            kNoBias,
            no_rotation(layer.head_dim),
            p_.qkv_,
            p_.qkv_stride_,
            places(narrowed),
            p_.first_,
            p_.attended_,
            places(narrowed),
            m_.middle_kind(),
            ahead_};
  }

  // Queries are those of the rows at work, which have been turned.
  AttentionLayer latent_attention(int index, const DecoderLayer &layer, bool narrowed) {
    return {p_.cache_->keys_values,
            p_.text_.layout,
            p_.text_.layout.positions(),
            p_.text_.layout.sights(),
            index,
            layer.window,
            layer.chunk,
            m_.key_dim,
            m_.value_dim,
            m_.shape.attention_scale,
            m_.shape.attention_softcap,
            layer.distance_bias,
            no_rotation(m_.key_dim),
            p_.latent_->taken(),
            p_.latent_->taken_stride(),
            places(narrowed),
            p_.first_,
            p_.latent_->seen(),
            places(narrowed),
            ElementKind::fp32,
            ahead_,
            nullptr,
            nullptr,
            0,
            false,
            growth(layer)};
  }

  void attend(const Sight &sight, const DecoderLayer &layer, const AttentionLayer &attention, bool narrowed) {
    const AttentionWork &work = (narrowed ? sight.last_work : sight.work)[layer.head_count];
    if (m_.precision == Precision::fp32)
      attend<float>(attention, work);
    else
      attend<Bf16>(attention, work);
  }

  template <class Cell>
  void attend(const AttentionLayer &attention, const AttentionWork &work) {
    AttentionScratch<Cell> &scratch = p_.scratch<Cell>(thread_);
    const int parts = static_cast<int>(work.parts.size());
    const size_t size = p_.part_size();
    for (int n = 0; n < parts; ++n) {
      const int i = PassLayout::goes_backwards(thread_) ? parts - 1 - n : n;
      const AttentionPart &part = work.parts[i];
      if (part.thread != thread_) continue;
      AttentionTile<Cell> tile(attention, work.items[part.item], part.ask, scratch);
      if (part.chunk < 0)
        tile.run();
      else
        tile.run_part(part.chunk, p_.part_memory_.as<float>() + i * size);
    }
    if (!work.are_chunks()) return;
    barrier();
    for (int i = 0; i < parts;) {
      const int item = work.parts[i].item, first = i;
      while (i < parts && work.parts[i].item == item) ++i;
      if (item % threads_ == thread_)
        AttentionTile<Cell>(attention, work.items[item], -1, scratch)
            .merge_parts(p_.part_memory_.as<float>() + first * size, i - first);
    }
  }
};
