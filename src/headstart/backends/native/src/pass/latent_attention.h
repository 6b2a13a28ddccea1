// What latent attention does around the attention that there is (DeepSeek-V2, section 2.1). The cache keeps one small
// state of a token and a key that all heads share. A head's query is taken into the states' space, so that all heads
// read the same key; what they see there is taken back into values of their own.
//
// The heads' matrices are one: each group of its pairs reads the rows of its own head, which stand behind those of the
// head before.
#pragma once
#include <array>
#include <vector>

#include "pass/attention.h"
#include "pass/decoder.h"
#include "pass/output_head.h"

class LatentAttention {
 public:
  explicit LatentAttention(const Decoder &model) : m_(model), of_(model.shape.latent) {
    const int heads = m_.shape.heads, places = heads * kPanelRows;
    const int widest = round_up(std::max({of_.q_rank, of_.kv_rank, of_.plain_dim}), kPadding);
    for (int form = 0; form < Decoder::kForms; ++form)
      if (m_.has_form(form)) {
        const auto rows = [&](int count, int inputs) {
          return packed_rows(m_.precision_of_form(form), m_.kernels[form].element, memory_, count + 16,
                             round_up(inputs, kPadding));
        };
        of_heads_[form] = rows(places, std::max(of_.kv_rank, of_.plain_dim));
        if (of_.q_rank) lowered_[form] = rows(kPanelRows, of_.q_rank);
      }
    queries_stride_ = heads * (of_.plain_dim + of_.rope_dim) + m_.shape.indexer.heads * m_.shape.indexer.dim + 48;
    if (of_.q_rank) queries_ = floats(queries_stride_ * kPanelRows);
    taken_stride_ = heads * m_.key_dim + 16;
    taken_ = floats(taken_stride_ * kPanelRows);
    seen_.row_bytes = (heads * m_.value_dim + 16) * sizeof(float);
    seen_.data = reinterpret_cast<char *>(floats(seen_.row_bytes / sizeof(float) * kPanelRows));
    for (int t = 0; t < m_.shape.threads; ++t) scratch_.push_back(floats(widest + m_.key_dim + kPadding));
  }

  // Queries in the states' space, [row][head * key_dim].
  const float *taken() const { return taken_; }
  size_t taken_stride() const { return taken_stride_; }
  // What attention leaves in the states' space, in floats [row][head * value_dim].
  const Activations &seen() const { return seen_; }

  // What an indexer makes its queries of, of a row at work.
  const float *index_queries(int row) const {
    return queries_ + row * queries_stride_ + m_.shape.heads * (of_.plain_dim + of_.rope_dim);
  }

  // One row's key, whose first numbers are its value. `lowered`: what the layer's first product gave of it.
  const float *state(const DecoderLayer &layer, const RopeTable *rope, int position, const float *lowered,
                     int thread) const {
    float *const state = scratch_[thread], *from = state + m_.key_dim + kPadding;
    std::memcpy(from, lowered + layer.queries, of_.kv_rank * sizeof(float));
    normalise(NormKind::rms, layer.norms[kKeyNorm], of_.norm_eps, from, of_.kv_rank, state);
    turn(rope, position, lowered + layer.queries + of_.kv_rank, state + of_.kv_rank);
    return state;
  }

  // One thread's part of the queries: `lowered(row)` is what the layer's first product gave, `position(row)` where the
  // row stands; `meet()` is a barrier, and the last thing done.
  template <class Lowered, class Position, class Meet>
  void take_queries(const DecoderLayer &layer, const RopeTable *rope, int rows, int thread, ReadAhead &ahead,
                    PairDeal &deal, Lowered &&lowered, Position &&position, Meet &&meet) {
    const int threads = m_.shape.threads, size = layer.head_dim;
    if (of_.q_rank) raise(layer, rows, thread, ahead, deal, lowered, meet);
    const auto query = [&](int row, int head) {
      return (of_.q_rank ? queries_ + row * queries_stride_ : lowered(row)) + head * size;
    };
    for (int place = thread; place < m_.shape.heads * rows; place += threads) {
      const int row = place % rows, head = place / rows;
      put(layer.linears[kKeyUp], place, query(row, head), thread);
      turn(rope, position(row), query(row, head) + of_.plain_dim, taken_of(row, head) + of_.kv_rank);
    }
    meet();
    by_head(layer.linears[kKeyUp], of_.kv_rank, rows, thread, ahead, deal,
            [&](int head, int column, int row, const float *out) {
              std::memcpy(taken_of(row, head) + column, out, kColumns * sizeof(float));
            });
    meet();
  }

  // One thread's part of what heads make of what they have seen: `finish(row, column, out)` gets 32 columns of all
  // heads' values.
  template <class Meet, class Finish>
  void take_values(const DecoderLayer &layer, int rows, int thread, ReadAhead &ahead, PairDeal &deal, Meet &&meet,
                   Finish &&finish) {
    for (int place = thread; place < m_.shape.heads * rows; place += m_.shape.threads)
      put(layer.linears[kValueUp], place,
          reinterpret_cast<const float *>(seen_.row(place % rows)) + place / rows * m_.value_dim, thread);
    meet();
    by_head(layer.linears[kValueUp], of_.value_dim, rows, thread, ahead, deal,
            [&](int head, int column, int row, const float *out) { finish(row, head * of_.value_dim + column, out); });
    meet();
  }

 private:
  float *floats(size_t count) { return memory_.emplace_back(count * sizeof(float)).as<float>(); }
  float *taken_of(int row, int head) const { return taken_ + row * taken_stride_ + head * m_.key_dim; }

  void turn(const RopeTable *rope, int position, const float *from, float *to) const {
    std::memcpy(to, from, of_.rope_dim * sizeof(float));
    if (rope) rope->turn(position, to);
  }

  // All heads' queries from the rows' small states.
  template <class Lowered, class Meet>
  void raise(const DecoderLayer &layer, int rows, int thread, ReadAhead &ahead, PairDeal &deal, Lowered &&lowered,
             Meet &&meet) {
    const PackedLinear &linear = layer.linears[kQueryUp];
    const int form = m_.form_of(linear);
    for (int row = thread; row < rows; row += m_.shape.threads) {
      float *const scratch = scratch_[thread];
      normalise(NormKind::rms, layer.norms[kQueryNorm], of_.norm_eps, lowered(row), of_.q_rank, scratch);
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
  }

  // A head's row as its matrix reads it.
  void put(const PackedLinear &linear, int place, const float *from, int thread) {
    float *const scratch = scratch_[thread];
    std::memcpy(scratch, from, linear.inputs * sizeof(float));
    std::fill(scratch + linear.inputs, scratch + linear.padded_inputs, 0.f);
    const int form = m_.form_of(linear);
    m_.kernels[form].store_row(of_heads_[form], place, scratch, linear.padded_inputs);
  }

  // The products of all heads, `outputs` each: `finish(head, column, row, out)` gets 32 columns of a row.
  template <class Finish>
  void by_head(const PackedLinear &linear, int outputs, int rows, int thread, ReadAhead &ahead, PairDeal &deal,
               Finish &&finish) {
    const int form = m_.form_of(linear), pairs = outputs / kColumns;
    run_linear(m_.kernels[form], linear, of_heads_[form], rows, thread, ahead, deal,
               [&](int pair, int row, int count, const float *out) {
                 for (int r = 0; r < count; ++r)
                   finish(pair / pairs, pair % pairs * kColumns, row + r, out + r * kColumns);
               },
               {}, {pairs, rows});
  }

  const Decoder &m_;
  const HeadstartLatent &of_;
  std::vector<AlignedBuffer> memory_;
  std::array<Activations, Decoder::kForms> of_heads_, lowered_;  // [head * rows + row]; [row]
  Activations seen_;
  float *queries_ = nullptr, *taken_ = nullptr;  // [row], where they come from a small state; [row]
  size_t queries_stride_ = 0, taken_stride_ = 0;
  std::vector<float *> scratch_;  // [thread]
};
