// Attention to a window and to compressed keys, around the attention that there is (DeepSeek-V4, section 2.3; see
// headstart/backends/torch/compressed.py). What a compressed key is made of is kept by its tokens, and the key by the
// last of them, as that of a second head; other tokens have zeros there. Keys are values, so that what heads have seen
// turns back.
#pragma once
#include <algorithm>
#include <array>
#include <map>
#include <vector>

#include "pass/attention.h"
#include "pass/decoder.h"
#include "pass/output_head.h"
#include "pass/token_mixture.h"

class CompressedAttention {
 public:
  explicit CompressedAttention(const Decoder &model) : m_(model), of_(model.shape.compressed) {
    const int heads = m_.shape.heads * m_.key_dim;
    int given = 0, most = std::max(of_.q_rank, m_.key_dim);
    for (const DecoderLayer &layer : m_.layers) {
      given = std::max(given, mixture_of(layer).reach() * given_by(layer));
      if (layer.ratio && !closing_.count(layer.ratio)) closing_[layer.ratio] = {};
    }
    for (int form = 0; form < Decoder::kForms; ++form)
      if (m_.has_form(form)) {
        const auto rows = [&](int count, int inputs) {
          return packed_rows(m_.precision_of_form(form), m_.kernels[form].element, memory_, count + 16,
                             round_up(inputs, kPadding));
        };
        lowered_[form] = rows(kPanelRows, of_.q_rank);
        of_groups_[form] = rows(of_.groups * kPanelRows, heads / of_.groups);
      }
    queries_stride_ = heads + of_.index_heads * of_.index_dim + 48;
    queries_ = floats(queries_stride_ * kPanelRows);
    closed_stride_ = m_.key_dim + of_.index_dim + 16;
    closed_ = floats(closed_stride_ * kPanelRows);
    seen_.row_bytes = (heads + 16) * sizeof(float);
    seen_.data = reinterpret_cast<char *>(floats(seen_.row_bytes / sizeof(float) * kPanelRows));
    most = round_up(std::max(most, heads / of_.groups), kPadding) + kPadding;
    for (int t = 0; t < m_.shape.threads; ++t) scratch_.push_back(floats(most)), given_.push_back(floats(given + 16));
  }

  void begin_pass(const PassLayout &layout) {
    const int32_t *const positions = layout.positions();
    int longest = 0;
    for (const SequenceLayout &s : layout.sequences())
      longest = std::max(longest, *std::max_element(positions + s.first_row, positions + s.end_row) + 1);
    for (auto &[ratio, closing] : closing_) {
      if (closing.size() >= static_cast<size_t>(round_up(longest, kChunkKeys) + 16)) continue;
      closing.assign(round_up(longest, kChunkKeys) + 16, -INFINITY);
      for (size_t position = ratio - 1; position < closing.size(); position += ratio) closing[position] = 0.f;
    }
  }

  // What hides tokens that close no compressed key, by position 0 or -inf; null: the layer has no such keys.
  const float *closing(const DecoderLayer &layer) const {
    return layer.ratio ? closing_.at(layer.ratio).data() : nullptr;
  }

  // Queries of the rows at work [row][head * head_dim], and behind them what the indexer makes its own of.
  const float *queries() const { return queries_; }
  size_t queries_stride() const { return queries_stride_; }
  const float *index_queries(int row) const { return queries_ + row * queries_stride_ + m_.shape.heads * m_.key_dim; }
  // What attention leaves of rows at work, in floats [row][head * head_dim].
  const Activations &seen() const { return seen_; }

  // One row's key, which is its value. `projected`: what the layer's first product gave of it.
  const float *key(const DecoderLayer &layer, const RopeTable &rope, int position, const float *projected,
                   int thread) const {
    normalise(NormKind::rms, layer.norms[kKeyNorm], m_.shape.norm_eps, projected + of_.q_rank, m_.key_dim,
              scratch_[thread]);
    turn_pairs(rope, position, scratch_[thread], m_.key_dim);
    return scratch_[thread];
  }
  // What it gives to compressed keys.
  const float *given(const float *projected) const { return projected + of_.q_rank + m_.key_dim; }
  // What the indexer's heads count for.
  const float *shares(const DecoderLayer &layer, const float *projected) const {
    return given(projected) + given_by(layer);
  }

  // The compressed key that a row closes, and the indexer's behind it, or zeros: `place(position)` says in which page
  // and where there a token of its text is.
  template <class Cell, class Place>
  void close(const KvCache &cache, const DecoderLayer &layer, int index, const RopeTable &rope, int position,
             int text_position, int row, int thread, Place &&place) const {
    float *const to = closed_ + row * closed_stride_;
    if ((position + 1) % layer.ratio) {
      std::fill_n(to, m_.key_dim + (layer.chosen ? of_.index_dim : 0), 0.f);
      return;
    }
    const TokenMixture mixture = mixture_of(layer);
    const int first = std::max(position + 1 - mixture.reach(), 0), start = text_position + 1 - layer.ratio;
    float *const given = given_[thread];
    for (int token = first; token <= position; ++token) {
      const auto [page, key] = place(token);
      cache.read_given<Cell>(index, page, key, given + (token - first) * given_by(layer));
    }
    const int tokens = position + 1 - first;
    mixture.mix(layer.constants[kPlaces].data(), given, tokens, m_.key_dim, to);
    normalise(NormKind::rms, layer.norms[kCompressedNorm], m_.shape.norm_eps, to, m_.key_dim, scratch_[thread]);
    std::memcpy(to, scratch_[thread], m_.key_dim * sizeof(float));
    turn_pairs(rope, start, to, m_.key_dim);
    if (!layer.chosen) return;
    float *const small = to + m_.key_dim;
    mixture.mix(layer.constants[kIndexPlaces].data(), given + 2 * given_to_keys(layer), tokens, of_.index_dim, small);
    normalise(NormKind::rms, layer.norms[kIndexNorm], m_.shape.norm_eps, small, of_.index_dim, scratch_[thread]);
    std::memcpy(small, scratch_[thread], of_.index_dim * sizeof(float));
    turn_pairs(rope, start, small, of_.index_dim);
  }
  const float *closed(int row) const { return closed_ + row * closed_stride_; }

  // One thread's part of the queries: `projected(row)` is what the layer's first product gave, `position(row)` where
  // the row stands; `meet()` is a barrier, and the last thing done.
  template <class Projected, class Position, class Meet>
  void take_queries(const DecoderLayer &layer, const RopeTable &rope, int rows, int thread, ReadAhead &ahead,
                    PairDeal &deal, Projected &&projected, Position &&position, Meet &&meet) {
    const PackedLinear &linear = layer.linears[kRaise];
    const int form = m_.form_of(linear), size = m_.key_dim, threads = m_.shape.threads;
    float *const scratch = scratch_[thread];
    for (int row = thread; row < rows; row += threads) {
      normalise(NormKind::rms, layer.norms[kQueryNorm], m_.shape.norm_eps, projected(row), of_.q_rank, scratch);
      m_.kernels[form].store_row(lowered_[form], row, scratch, linear.padded_inputs);
    }
    meet();
    run_linear(m_.kernels[form], linear, lowered_[form], rows, thread, ahead, deal,
               [&](int pair, int row, int count, const float *out) {
                 for (int r = 0; r < count; ++r)
                   std::memcpy(queries_ + (row + r) * queries_stride_ + pair * kColumns, out + r * kColumns,
                               kColumns * sizeof(float));
               });
    meet();
    for (int place = thread; place < m_.shape.heads * rows; place += threads) {
      float *const head = queries_ + place % rows * queries_stride_ + place / rows * size;
      scale_to_one(head, size);
      turn_pairs(rope, position(place % rows), head, size);
    }
    meet();
  }

  // One thread's part of lowering what heads have seen, group by group: `finish(row, column, out)` gets 32 columns.
  template <class Position, class Meet, class Finish>
  void lower(const DecoderLayer &layer, const RopeTable &rope, int rows, int thread, ReadAhead &ahead, PairDeal &deal,
             Position &&position, Meet &&meet, Finish &&finish) {
    const PackedLinear &linear = layer.linears[kLower];
    const int form = m_.form_of(linear), size = m_.key_dim, pairs = of_.output_rank / kColumns;
    for (int place = thread; place < of_.groups * rows; place += m_.shape.threads) {
      const int row = place % rows;
      const float *const from = reinterpret_cast<const float *>(seen_.row(row)) + place / rows * linear.inputs;
      float *const scratch = scratch_[thread];
      std::memcpy(scratch, from, linear.inputs * sizeof(float));
      for (int at = 0; at < linear.inputs; at += size) turn_pairs(rope, position(row), scratch + at, size, -1.f);
      std::fill(scratch + linear.inputs, scratch + linear.padded_inputs, 0.f);
      m_.kernels[form].store_row(of_groups_[form], place, scratch, linear.padded_inputs);
    }
    meet();
    run_linear(m_.kernels[form], linear, of_groups_[form], rows, thread, ahead, deal,
               [&](int pair, int row, int count, const float *out) {
                 for (int r = 0; r < count; ++r) finish(row + r, pair * kColumns, out + r * kColumns);
               },
               {}, {pairs, rows});
    meet();
  }

 private:
  float *floats(size_t count) { return memory_.emplace_back(count * sizeof(float)).as<float>(); }

  TokenMixture mixture_of(const DecoderLayer &layer) const { return {layer.ratio, layer.chosen != 0, given_by(layer)}; }
  // What a token gives to compressed keys.
  int given_by(const DecoderLayer &layer) const { return 2 * (given_to_keys(layer) + given_to_index(m_.shape, layer)); }

  void scale_to_one(float *head, int size) const {
    Lanes squares = splat(0.f);
    for (int k = 0; k < size; k += 16) squares = fma(load(head + k), load(head + k), squares);
    const float mean = reduce_add(squares) / static_cast<float>(size);
    const Lanes factor = splat(1.f / std::sqrt(mean + m_.shape.norm_eps));
    for (int k = 0; k < size; k += 16) store(head + k, load(head + k) * factor);
  }

  const Decoder &m_;
  const HeadstartCompressed &of_;
  std::vector<AlignedBuffer> memory_;
  std::array<Activations, Decoder::kForms> lowered_, of_groups_;  // [row]; [group * rows + row]
  Activations seen_;
  float *queries_, *closed_;  // [row at work]; [panel row]
  size_t queries_stride_, closed_stride_;
  std::vector<float *> scratch_, given_;       // [thread]
  std::map<int, std::vector<float>> closing_;  // by ratio
};
