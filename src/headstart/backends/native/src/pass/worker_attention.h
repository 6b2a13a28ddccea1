// One thread's share of attention: gates, heads, keys and values of the cache, what rows see.
#pragma once
#include "pass/worker_rows.h"

class WorkerAttention {
 public:
  WorkerAttention(Panel &panel, WorkerRows &rows) : t_(rows), p_(panel), m_(panel.model) {}

  // The gate of what heads will see; it reads what queries are made of.
  void run_gate(const DecoderLayer &layer, const Activations &input, bool narrows) {
    const PackedLinear &gate = layer.linears[p_.latent ? static_cast<int>(kLatentGate) : static_cast<int>(kGate)];
    t_.linear(gate, t_.input_beside(layer, gate, input), t_.rows, t_.copy_columns(p_.gates, p_.gate_stride),
              narrows ? WantedFrom{gate.pairs, t_.first_of_finished() / kRowBlock * kRowBlock} : WantedFrom{});
    t_.barrier();
  }

  // What is done with all heads of a row together, before each is turned by itself.
  void prepare_heads(const DecoderLayer &layer) {
    const float clip = m_.shape.qkv_clip;
    if (!m_.shape.joint_head_norms && clip == 0.f) return;
    t_.my_rows(t_.rows, [&](int row) {
      float *const heads = p_.qkv + row * p_.qkv_stride;
      if (m_.shape.joint_head_norms) {
        norm_heads(layer.norms[kQueryNorm], heads, layer.queries);
        norm_heads(layer.norms[kKeyNorm], heads + layer.queries, layer.kv_heads * layer.head_dim);
      }
      for (int k = 0; k < layer.projected && clip != 0.f; k += 16)
        store(heads + k, max(splat(-clip), min(splat(clip), load(heads + k))));
    });
    t_.barrier();
  }

  // Writes keys and values to the cache, unless the layer reads another one's.
  void store_keys_and_values(const DecoderLayer &layer, int index) {
    if (layer.reads >= 0) return;
    if (m_.precision == Precision::fp32)
      store_heads<float>(layer, index);
    else
      store_heads<Bf16>(layer, index);
  }

  // The rows at work look at their sequences' texts.
  void run(const DecoderLayer &layer, int index, bool narrowed) {
    if (p_.latent) take_queries(layer);
    if (p_.compressed) take_compressed_queries(layer);
    if (layer.chooses || layer.chosen) {
      if (m_.precision == Precision::fp32)
        choose<float>(layer, index);
      else
        choose<Bf16>(layer, index);
    }
    attend(p_.text, layer,
           p_.latent       ? latent_attention(index, layer, narrowed)
           : p_.compressed ? compressed_attention(index, layer, narrowed)
                           : attention(layer, index, narrowed),
           narrowed);
  }

  // Of attention to compressed keys: what groups of heads make of what they have seen.
  void lower(const DecoderLayer &layer) {
    p_.compressed->lower(
        layer, *t_.rope_of(layer), t_.rows, t_.thread, t_.ahead, p_.deal,
        [this](int row) { return text_position(row); }, [this] { t_.barrier(); },
        [&](int row, int column, const float *out) {
          for (int h = 0; h < kColumns; h += 16)
            store_activation(m_.middle_kind(), p_.attended, row, column + h, load(out + h));
        });
  }

  // Of latent attention: what heads make of what they have seen.
  void take_values(const DecoderLayer &layer) {
    p_.latent->take_values(
        layer, t_.rows, t_.thread, t_.ahead, p_.deal, [this] { t_.barrier(); },
        [&](int row, int column, const float *out) {
          const float *const gates = p_.gates + t_.panel_rows[row] * p_.gate_stride;
          const bool by_head = m_.shape.attention_gate == kHeadGates;
          for (int h = 0; h < kColumns; h += 16) {
            Lanes open = splat(1.f);
            if (p_.gates)
              open = sigmoid(by_head ? splat(gates[column / m_.shape.latent.value_dim]) : load(gates + column + h));
            store_activation(m_.middle_kind(), p_.attended, row, column + h, load(out + h) * open);
          }
        });
  }

  // The rows at work look at their sequences' encoder memories.
  void run_cross(const DecoderLayer &layer, int index, bool narrowed) {
    const PackedLinear &query = layer.linears[kCrossQuery], &output = layer.linears[kCrossOutput];
    t_.linear(query, t_.pack_norm(query, layer.norms[kCrossNorm]), t_.rows, t_.copy_columns(p_.qkv, p_.qkv_stride));
    t_.barrier();
    attend(p_.encoded, layer, cross_attention(layer, index, narrowed), narrowed);
    t_.barrier();
    t_.add_branch(output, t_.pack_quantised(output, p_.attended), kNoNorm, layer.norms[kCrossSumNorm]);
  }

 private:
  QueryGrowth growth(const DecoderLayer &layer) const {
    const bool grows = m_.shape.growth_everywhere || layer.rope < 0;
    return grows ? QueryGrowth{m_.shape.growth, m_.shape.growth_trained, m_.shape.growth_everywhere ? 0 : 1}
                 : QueryGrowth{};
  }

  void norm_heads(const Norm &norm, float *heads, int size) const {
    float *const scratch = t_.scratch();
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
            t_.rope_of(layer),
            layer.head_dim};
  }

  // A head's keys or values are one thread's: values of neighbours share words.
  template <class Cell>
  void store_heads(const DecoderLayer &layer, int index) {
    if (p_.latent) return store_states<Cell>(layer, index);
    if (p_.compressed) return store_compressed<Cell>(layer, index);
    const int written = 2 * layer.kv_heads;
    const HeadRotation of_keys = rotation(layer, kKeyNorm);
    for (int head = written * t_.thread / t_.threads; head < written * (t_.thread + 1) / t_.threads; ++head)
      for (int row = 0; row < p_.rows; ++row) {
        t_.ahead.ask(kLinesAUnit);
        store_head<Cell>(layer, of_keys, index, head, row);
      }
  }

  // One of the key and value heads, of one row of the panel.
  template <class Cell>
  void store_head(const DecoderLayer &layer, const HeadRotation &of_keys, int index, int head, int panel_row) {
    const int kv_heads = layer.kv_heads, d = layer.head_dim, row = p_.first + panel_row;
    const bool apart = head >= kv_heads && !layer.values_are_keys;  // a value, behind all keys
    const float *from = p_.qkv + panel_row * p_.qkv_stride + layer.queries +
                        (apart ? kv_heads * d + (head - kv_heads) * layer.value_dim : head % kv_heads * d);
    const SequenceLayout &s = p_.text.layout.sequence_of(row);
    const int slot = s.slot(row), page = p_.text.layout.page(s, slot / kPageKeys);
    alignas(64) float to[HeadRotation::kMostDimensions];
    if (head >= kv_heads) {
      const Norm &norm = layer.norms[kValueNorm];
      if (norm.present()) normalise(NormKind::rms, norm, m_.shape.norm_eps, from, layer.value_dim, to);
      p_.cache->keys_values.write_value<Cell>(index, page, head - kv_heads, slot % kPageKeys,
                                              norm.present() ? to : from);
      return;
    }
    of_keys.apply(head, from, p_.text.layout.text_positions()[row], to);
    p_.cache->keys_values.write_key<Cell>(index, page, head, slot % kPageKeys, to);
  }

  // The same of latent attention. Keys whose values share words are one thread's.
  template <class Cell>
  void store_states(const DecoderLayer &layer, int index) {
    const KvCache &cache = p_.cache->keys_values;
    const RopeTable *const rope = t_.rope_of(layer);
    my_places([&](int panel_row, int page, int key) {
      const int row = p_.first + panel_row;
      t_.ahead.ask(kLinesAUnit);
      const int position = p_.text.layout.text_positions()[row];
      const float *const state = p_.latent->state(layer, rope, position, p_.qkv + panel_row * p_.qkv_stride, t_.thread);
      cache.write_key<Cell>(index, page, 0, key, state), cache.write_value<Cell>(index, page, 0, key, state);
      if (!layer.chooses) return;
      const float *const small = index_columns(layer, panel_row);
      if (p_.indexer->pools())
        cache.write_given<Cell>(index, page, key, p_.indexer->given(layer, rope, position, small, t_.thread));
      else
        cache.write_index<Cell>(index, page, key, p_.indexer->key(layer, rope, position, small, t_.thread));
    });
    if (!layer.chooses || !p_.indexer->pools()) return;
    t_.barrier();
    t_.my_rows(t_.rows, [&](int row) {
      p_.indexer->close<Cell>(cache, layer, index, p_.text.layout.positions()[p_.first + row], row, t_.thread,
                              places_along(p_.first + row));
    });
    t_.barrier();
    my_places([&](int row, int page, int key) { cache.write_index<Cell>(index, page, key, p_.indexer->mixed(row)); });
  }

  // In which page, and where there, tokens of a row's path are.
  auto places_along(int pass_row) const {
    const PassLayout &layout = p_.text.layout;
    const SequenceLayout &s = layout.sequence_of(pass_row);
    const int32_t *const path = s.straight ? nullptr : layout.path(pass_row);
    return [&layout, &s, path](int position) {
      const int slot = !path || position < s.cached ? position : path[position - s.cached];
      return std::pair(layout.page(s, slot / kPageKeys), slot % kPageKeys);
    };
  }

  // Calls `work(panel row, page, key)` for the rows whose values share words with no other thread's.
  template <class Work>
  void my_places(Work &&work) const {
    for (int panel_row = 0; panel_row < t_.rows; ++panel_row) {
      const SequenceLayout &s = p_.text.layout.sequence_of(p_.first + panel_row);
      const int slot = s.slot(p_.first + panel_row);
      if (slot / 2 % t_.threads == t_.thread)
        work(panel_row, p_.text.layout.page(s, slot / kPageKeys), slot % kPageKeys);
    }
  }

  // The same of attention to compressed keys: what they are made of has to be there before they are.
  template <class Cell>
  void store_compressed(const DecoderLayer &layer, int index) {
    const KvCache &cache = p_.cache->keys_values;
    const PassLayout &layout = p_.text.layout;
    const RopeTable &rope = *t_.rope_of(layer);
    my_places([&](int row, int page, int key) {
      const float *const projected = p_.qkv + row * p_.qkv_stride;
      const float *const own =
          p_.compressed->key(layer, rope, layout.text_positions()[p_.first + row], projected, t_.thread);
      cache.write_key<Cell>(index, page, 0, key, own), cache.write_value<Cell>(index, page, 0, key, own);
      if (layer.ratio) cache.write_given<Cell>(index, page, key, p_.compressed->given(projected));
    });
    if (!layer.ratio) return;
    t_.barrier();
    t_.my_rows(t_.rows, [&](int row) {
      const int pass_row = p_.first + row;
      p_.compressed->close<Cell>(cache, layer, index, rope, layout.positions()[pass_row],
                                 layout.text_positions()[pass_row], row, t_.thread, places_along(pass_row));
    });
    t_.barrier();
    my_places([&](int row, int page, int key) {
      const float *const closed = p_.compressed->closed(row);
      cache.write_key<Cell>(index, page, 1, key, closed), cache.write_value<Cell>(index, page, 1, key, closed);
      if (layer.chosen) cache.write_index<Cell>(index, page, key, closed + layer.head_dim);
    });
  }

  // Where a row at work stands in its text.
  int text_position(int row) const { return p_.text.layout.text_positions()[p_.first + t_.panel_rows[row]]; }

  // What the layer's first product gave of a row for its indexer: a key, and what heads count for.
  const float *index_columns(const DecoderLayer &layer, int panel_row) const {
    return p_.qkv + panel_row * p_.qkv_stride + layer.queries + m_.key_dim;
  }

  template <class Cell>
  void choose(const DecoderLayer &layer, int index) {
    p_.indexer->choose<Cell>(
        p_.cache->keys_values, layer, index, p_.text.layout, t_.rope_of(layer), t_.panel_rows, t_.rows, t_.thread,
        [&](int row) { return p_.latent ? p_.latent->index_queries(row) : p_.compressed->index_queries(row); },
        [&](int row) {
          const int of = t_.panel_rows[row];
          return p_.latent ? index_columns(layer, of) + m_.shape.indexer.dim * (p_.indexer->pools() ? 2 : 1)
                           : p_.compressed->shares(layer, p_.qkv + of * p_.qkv_stride);
        },
        [this] { t_.barrier(); });
  }

  void take_compressed_queries(const DecoderLayer &layer) {
    p_.compressed->take_queries(
        layer, *t_.rope_of(layer), t_.rows, t_.thread, t_.ahead, p_.deal,
        [&](int row) { return p_.qkv + t_.panel_rows[row] * p_.qkv_stride; },
        [this](int row) { return text_position(row); }, [this] { t_.barrier(); });
  }

  // The queries of the rows at work, in the space of latent attention's states.
  void take_queries(const DecoderLayer &layer) {
    p_.latent->take_queries(
        layer, t_.rope_of(layer), t_.rows, t_.thread, t_.ahead, p_.deal,
        [&](int row) { return p_.qkv + t_.panel_rows[row] * p_.qkv_stride; },
        [this](int row) { return text_position(row); }, [this] { t_.barrier(); });
  }

  // Of the text: queries are those of all rows of the panel.
  AttentionLayer attention(const DecoderLayer &layer, int index, bool narrowed) {
    return {p_.cache->keys_values,
            p_.text.layout,
            p_.text.layout.positions(),
            layer.looks_back ? p_.text.layout.positions() : p_.text.layout.sights(),
            Decoder::source_of(layer, index),
            layer.window,
            layer.chunk,
            layer.head_dim,
            layer.value_dim,
            m_.shape.attention_scale,
            m_.shape.attention_softcap,
            layer.distance_bias,
            rotation(layer, kQueryNorm),
            p_.qkv,
            p_.qkv_stride,
            p_.all_rows.data() + p_.context,
            p_.first + p_.context,
            p_.attended,
            t_.places(narrowed),
            m_.middle_kind(),
            t_.ahead,
            layer.sinks.empty() ? nullptr : layer.sinks.data(),
            p_.gates,
            p_.gate_stride,
            m_.shape.attention_gate == kHeadGates,
            growth(layer),
            m_.shape.value_scale};
  }

  // Of encoder memories: queries are those of the rows at work, and no place is told.
  AttentionLayer cross_attention(const DecoderLayer &layer, int index, bool narrowed) {
    return {p_.cache->keys_values,
            p_.encoded.layout,
            p_.encoded.layout.positions(),
            p_.encoded.layout.sights(),
            index,
            0,
            0,
            layer.head_dim,
            layer.value_dim,
            m_.shape.attention_scale,
            m_.shape.attention_softcap,
            kNoBias,
            no_rotation(layer.head_dim),
            p_.qkv,
            p_.qkv_stride,
            t_.places(narrowed),
            p_.first,
            p_.attended,
            t_.places(narrowed),
            m_.middle_kind(),
            t_.ahead};
  }

  // Queries are those of the rows at work, which have been turned.
  AttentionLayer latent_attention(int index, const DecoderLayer &layer, bool narrowed) {
    return {p_.cache->keys_values,
            p_.text.layout,
            p_.text.layout.positions(),
            p_.text.layout.sights(),
            index,
            layer.window,
            layer.chunk,
            m_.key_dim,
            m_.value_dim,
            m_.shape.attention_scale,
            m_.shape.attention_softcap,
            layer.distance_bias,
            no_rotation(m_.key_dim),
            p_.latent->taken(),
            p_.latent->taken_stride(),
            t_.places(narrowed),
            p_.first,
            p_.latent->seen(),
            t_.places(narrowed),
            ElementKind::fp32,
            t_.ahead,
            layer.sinks.empty() ? nullptr : layer.sinks.data(),
            nullptr,
            0,
            false,
            growth(layer),
            1.f,
            p_.indexer ? p_.indexer->chosen() : nullptr};
  }

  // The same of attention to compressed keys.
  AttentionLayer compressed_attention(int index, const DecoderLayer &layer, bool narrowed) {
    return {p_.cache->keys_values,
            p_.text.layout,
            p_.text.layout.positions(),
            p_.text.layout.sights(),
            index,
            layer.window,
            layer.chunk,
            layer.head_dim,
            layer.value_dim,
            m_.shape.attention_scale,
            m_.shape.attention_softcap,
            layer.distance_bias,
            no_rotation(layer.head_dim),
            p_.compressed->queries(),
            p_.compressed->queries_stride(),
            t_.places(narrowed),
            p_.first,
            p_.compressed->seen(),
            t_.places(narrowed),
            ElementKind::fp32,
            t_.ahead,
            layer.sinks.empty() ? nullptr : layer.sinks.data(),
            nullptr,
            0,
            false,
            growth(layer),
            1.f,
            layer.chosen ? p_.indexer->chosen() : nullptr,
            p_.compressed->closing(layer)};
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
    AttentionScratch<Cell> &scratch = p_.scratch<Cell>(t_.thread);
    const int parts = static_cast<int>(work.parts.size());
    const size_t size = p_.part_size();
    for (int n = 0; n < parts; ++n) {
      const int i = PassLayout::goes_backwards(t_.thread) ? parts - 1 - n : n;
      const AttentionPart &part = work.parts[i];
      if (part.thread != t_.thread) continue;
      AttentionTile<Cell> tile(attention, work.items[part.item], part.ask, scratch);
      if (part.chunk < 0)
        tile.run();
      else
        tile.run_part(part.chunk, p_.part_memory.as<float>() + i * size);
    }
    if (!work.are_chunks()) return;
    t_.barrier();
    for (int i = 0; i < parts;) {
      const int item = work.parts[i].item, first = i;
      while (i < parts && work.parts[i].item == item) ++i;
      if (item % t_.threads == t_.thread)
        AttentionTile<Cell>(attention, work.items[item], -1, scratch)
            .merge_parts(p_.part_memory.as<float>() + first * size, i - first, size);
    }
  }

  WorkerRows &t_;
  Panel &p_;
  Decoder &m_;
};
