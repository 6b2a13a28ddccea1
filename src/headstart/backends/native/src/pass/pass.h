// One pass of the decoder over the rows of many sequences.
//
// The team runs the same sequence of phases; every phase is cut by columns, rows or heads, and a barrier ends it where
// the next one reads what other threads wrote. How the work is cut never changes the arithmetic of a row.
#pragma once
#include <array>
#include <numeric>

#include "pass/attention.h"
#include "pass/cache.h"
#include "pass/decoder.h"
#include "pass/experts_channel.h"
#include "pass/finished_rows.h"
#include "pass/latent_attention.h"
#include "pass/output_head.h"
#include "pass/state_mixers.h"
#include "pass/streams.h"

class PassRunner {
 public:
  explicit PassRunner(Decoder &model)
      : m_(model), scratch_bf16_(model.shape.threads), scratch_fp32_(model.shape.threads) {
    x_ = floats(m_.hidden, x_stride_);
    qkv_ = floats(round_up(m_.projected, kColumns), qkv_stride_);
    input_ = packed(kPanelRows);
    mlp_input_ = m_.shape.parallel_residual ? packed(kPanelRows) : input_;
    if (m_.entry == Entry::block) block_input_ = packed(kPanelRows);
    attended_ = element_rows(m_.middle_kind(), memory_, kPanelRows, m_.widest);
    middle_ = element_rows(m_.middle_kind(), memory_, kPanelRows, m_.widest);
    branch_ = floats(m_.hidden, branch_stride_);
    if (m_.shape.attention_gate) gates_ = floats(m_.projected, gate_stride_);
    if (m_.shape.side_rank) side_ = floats(m_.hidden, side_stride_);
    if (const int cut = m_.widest_cut()) raised_ = floats(2 * cut, raised_stride_);
    if (m_.inputs.projection.pairs) given_ = floats(m_.inputs.projection.pairs * kColumns, given_stride_);
    for (int t = 0; t < m_.shape.threads; ++t) {
      private_input_.push_back(packed(kRowBlock));
      private_mlp_input_.push_back(m_.shape.parallel_residual ? packed(kRowBlock) : private_input_[t]);
      row_.push_back(memory_.emplace_back(2 * m_.widest * sizeof(float)).as<float>());
      if (given_) looked_up_.push_back(memory_.emplace_back(given_stride_ * sizeof(float)).as<float>());
    }
    head_ = std::make_unique<OutputHead>(m_);
    if (m_.shape.latent.kv_rank) latent_ = std::make_unique<LatentAttention>(m_);
    if (m_.keeps_states()) states_ = std::make_unique<StateMixers>(m_);
    if (m_.shape.streams) streams_ = std::make_unique<ResidualStreams>(m_);
    if (m_.shape.experts.count) experts_ = std::make_unique<ExpertsChannel>(m_);
    std::iota(all_rows_.begin(), all_rows_.end(), 0);
  }

  // Null on success, else what is wrong with the pass; then nothing has been written.
  const char *run(const Cache &cache, const HeadstartPass &pass);

 private:
  class RowWorker;
  class AttentionWorker;
  class ChannelWorker;
  class Worker;

  float *floats(int columns, size_t &stride) {
    stride = columns + 16;
    return memory_.emplace_back(kPanelRows * stride * sizeof(float)).as<float>();
  }
  // Rows as linear layers read them, by the form of the layer's weights.
  using PackedRows = std::array<Activations, Decoder::kForms>;
  PackedRows packed(int rows) {
    PackedRows all;
    for (int form = 0; form < Decoder::kForms; ++form)
      if (m_.has_form(form))
        all[form] = packed_rows(m_.precision_of_form(form), m_.kernels[form].element, memory_, rows, m_.widest);
    return all;
  }

  // What attention computes for some rows of the panel, dealt to the threads.
  struct AttentionWork {
    std::vector<AttentionItem> items;
    std::vector<AttentionPart> parts;

    bool are_chunks() const { return !parts.empty() && parts.front().chunk >= 0; }
  };

  // What the rows of a pass see in attention of one kind, and what that is in the panel at hand.
  struct Sight {
    PassLayout layout;
    // Of each of the model's numbers of heads: of all rows; of those that the last layer finishes, where these are
    // others.
    std::vector<AttentionWork> work, last_work;
  };

  // The work of the panel's rows [from, to) for each of the runs of rows that `each` calls its argument with.
  template <class Each>
  void share_out(const PassLayout &layout, std::vector<AttentionWork> &works, Each &&each) {
    works.resize(m_.head_counts.size());
    for (size_t i = 0; i < works.size(); ++i) {
      AttentionWork &work = works[i];
      work.items.clear();
      each([&](int from, int to) {
        layout.cut(first_ + from, first_ + to, m_.shape.heads, m_.head_counts[i], work.items);
      });
      PassLayout::deal(work.items, layout.sights(), m_.shape.threads, work.parts);
      if (work.are_chunks() && work.parts.size() > part_capacity_) {
        part_capacity_ = work.parts.size();
        part_memory_ = AlignedBuffer(part_capacity_ * part_size() * sizeof(float));
      }
    }
  }

  void share_out(Sight &sight) {
    if (pass_->layers > 1 || finished_.are_all())
      share_out(sight.layout, sight.work, [&](auto &&add) { add(context_, rows_); });
    if (!finished_.are_all() && finished_.count())
      share_out(sight.layout, sight.last_work, [&](auto &&add) {
        for (int i = 0, next; i < finished_.count(); i = next) {
          for (next = i + 1; next < finished_.count() && finished_.row(next) == finished_.row(next - 1) + 1;) ++next;
          add(finished_.row(i), finished_.row(next - 1) + 1);
        }
      });
  }

  size_t part_size() const { return kTileEntries * AttentionTile<float>::part_stride(m_.value_dim); }

  template <class Cell>
  AttentionScratch<Cell> &scratch(int thread) {
    if constexpr (sizeof(Cell) == 2)
      return scratch_bf16_[thread];
    else
      return scratch_fp32_[thread];
  }

  Decoder &m_;
  const Cache *cache_ = nullptr;
  const HeadstartPass *pass_ = nullptr;
  int first_ = 0, rows_ = 0;  // of the panel
  int context_ = 0;           // the first of its rows, which leave keys and values alone
  Sight text_, encoded_;      // the sequences' own tokens, and their encoder memories
  FinishedRows finished_;
  std::array<int32_t, kPanelRows> all_rows_;  // 0, 1, ...
  AlignedBuffer part_memory_;                 // [part][part_size] floats
  size_t part_capacity_ = 0;
  Barrier barrier_;
  PairDeal deal_;
  std::vector<AlignedBuffer> memory_;
  float *x_, *qkv_, *branch_;  // [panel row]: residual stream; q, k, v; a branch's output before its post norm
  float *gates_ = nullptr;     // [panel row], where attention has a gate
  float *given_ = nullptr;     // [panel row], where layers have inputs: those of all layers
  float *side_ = nullptr;      // [panel row], what a second path gives
  float *raised_ = nullptr;    // [panel row], gates and ups, where gates are cut off
  size_t x_stride_, qkv_stride_, branch_stride_, gate_stride_ = 0, given_stride_ = 0;
  size_t side_stride_ = 0, raised_stride_ = 0;
  PackedRows input_, mlp_input_;
  PackedRows block_input_;  // context rows, the same in all layers, and behind them what attention reads of the others
  Activations attended_, middle_;
  std::vector<PackedRows> private_input_, private_mlp_input_;  // [thread], for passes of a row or two
  std::vector<float *> row_;                                   // [thread], one row of scratch
  std::vector<float *> looked_up_;                             // [thread], a token's row of the table of inputs
  std::unique_ptr<OutputHead> head_;
  std::unique_ptr<LatentAttention> latent_;  // null where the model has none, as are the next two
  std::unique_ptr<StateMixers> states_;
  std::unique_ptr<ExpertsChannel> experts_;
  std::unique_ptr<ResidualStreams> streams_;
  std::vector<AttentionScratch<Bf16>> scratch_bf16_;
  std::vector<AttentionScratch<float>> scratch_fp32_;
};

#include "pass/worker.h"

inline const char *PassRunner::run(const Cache &cache, const HeadstartPass &pass) {
  const int tokens = pass.inputs && !m_.is_head() && !given_ ? 0 : m_.shape.tokens;
  if (const char *error = text_.layout.build(pass, tokens, cache.keys_values.pages(), m_.shape.layers, m_.positions()))
    return error;
  if (m_.shape.cross)
    if (const char *error = encoded_.layout.build_memories(pass, cache.keys_values.pages())) return error;
  if (states_)
    if (const char *error = states_->begin_pass(pass, cache.states)) return error;
  cache_ = &cache, pass_ = &pass;
  const int threads = m_.shape.threads;
  for (int t = 0; t < threads; ++t) {
    if (m_.precision == Precision::fp32)
      scratch_fp32_[t].reserve(m_.key_dim, m_.value_dim, text_.layout.tree_span());
    else
      scratch_bf16_[t].reserve(m_.key_dim, m_.value_dim, text_.layout.tree_span());
  }
  head_->begin_pass(pass), finished_.begin_pass(pass);
  if (experts_) experts_->begin_pass();
  for (first_ = 0; first_ < pass.rows; first_ += rows_) {
    rows_ = text_.layout.end_of_panel(pass, first_, kPanelRows) - first_;
    context_ = std::min(std::max(pass.context_rows - first_, 0), rows_);
    finished_.begin_panel(first_, rows_);
    share_out(text_);
    if (m_.shape.cross) share_out(encoded_);
    head_->begin_panel(first_, rows_);
    if (states_) states_->begin_panel(first_, rows_);
    barrier_.reset(threads);
    deal_.reset(threads);
    bool complete = true;
#pragma omp parallel num_threads(threads)
    {
      if (omp_get_num_threads() == threads) {
        UnitScope scope;
        Worker(*this, omp_get_thread_num()).run();
      } else {
        complete = false;
      }
    }
    if (!complete) return "OpenMP gave fewer threads than the backend was built for";
    head_->end_panel();
  }
  if (pass.experts) *pass.experts = experts_ ? experts_->called(pass.layers) : 0.0;
  return nullptr;
}
