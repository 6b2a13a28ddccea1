// What the threads of a team share while the rows of a panel go through the layers.
#pragma once
#include <array>
#include <memory>
#include <numeric>
#include <vector>

#include "pass/adapter.h"
#include "pass/attention.h"
#include "pass/cache.h"
#include "pass/compressed_attention.h"
#include "pass/decoder.h"
#include "pass/experts_channel.h"
#include "pass/finished_rows.h"
#include "pass/hyper_connections.h"
#include "pass/indexer.h"
#include "pass/latent_attention.h"
#include "pass/output_head.h"
#include "pass/state_mixers.h"
#include "pass/streams.h"

constexpr int kMostAlone = 2;  // rows that every thread packs for itself: cheaper than one more barrier

// Rows as linear layers read them, by the form of the layer's weights.
using PackedRows = std::array<Activations, Decoder::kForms>;

// Where rows are packed for linear layers: for all threads, or for passes of a row or two by each for itself.
struct LinearInput {
  PackedRows common;
  std::vector<PackedRows> own;  // [thread]
};

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

struct Panel {
  explicit Panel(Decoder &decoder)
      : model(decoder), scratch_bf16_(decoder.shape.threads), scratch_fp32_(decoder.shape.threads) {
    const HeadstartShape &shape = model.shape;
    x = floats(model.hidden, x_stride);
    qkv = floats(round_up(model.projected, kColumns), qkv_stride);
    input = linear_input();
    mlp_input = shape.parallel_residual ? linear_input() : input;
    if (model.entry == Entry::block) block_input = packed(kPanelRows);
    attended = element_rows(model.middle_kind(), memory_, kPanelRows, model.widest);
    middle = element_rows(model.middle_kind(), memory_, kPanelRows, model.widest);
    branch = floats(model.hidden, branch_stride);
    const int gated = round_up(shape.heads * shape.latent.value_dim, kColumns);
    if (shape.attention_gate) gates = floats(std::max(model.projected, gated), gate_stride);
    if (shape.side_rank) side = floats(model.hidden, side_stride);
    for (const DecoderLayer &layer : model.layers)
      if (layer.delays && !held) held = floats(model.hidden, held_stride);
    if (convolves()) {
      normed = floats(model.hidden, normed_stride);
      changes = floats(round_up(tap_changes(shape), kColumns), change_stride);
    }
    if (const int gates = model.widest_raised()) raised = floats(2 * gates, raised_stride);
    if (model.inputs.projection.pairs) given = floats(model.inputs.projection.pairs * kColumns, given_stride);
    for (int t = 0; t < shape.threads; ++t) {
      row.push_back(memory_.emplace_back(2 * model.widest * sizeof(float)).as<float>());
      if (given) looked_up.push_back(memory_.emplace_back(given_stride * sizeof(float)).as<float>());
    }
    head = std::make_unique<OutputHead>(model);
    if (shape.latent.kv_rank) latent = std::make_unique<LatentAttention>(model);
    if (shape.compressed.q_rank) compressed = std::make_unique<CompressedAttention>(model);
    if (Indexer::indexer_of(shape).heads) indexer = std::make_unique<Indexer>(model);
    if (model.keeps_states()) states = std::make_unique<StateMixers>(model);
    if (shape.streams) streams = std::make_unique<ResidualStreams>(model);
    if (shape.hyper.count) hyper = std::make_unique<HyperConnections>(model);
    if (shape.experts.count) experts = std::make_unique<ExpertsChannel>(model);
    std::iota(all_rows.begin(), all_rows.end(), 0);
  }

  // Null on success, else what is wrong with the pass; then nothing has been written.
  const char *begin_pass(const Cache &of_pass, const HeadstartPass &asked) {
    const bool reads = !asked.inputs || model.is_head() || given || model.has_expert_tables();
    const int tokens = reads ? model.shape.tokens : 0, pages = of_pass.keys_values.pages();
    if (const char *error =
            text.layout.build(asked, tokens, pages, model.shape.layers, model.positions(), model.least_tap()))
      return error;
    if (model.shape.cross)
      if (const char *error = encoded.layout.build_memories(asked, pages)) return error;
    if (states)
      if (const char *error = states->begin_pass(asked, of_pass.states)) return error;
    if (const char *error = adapted.begin_pass(asked, model, kPanelRows, kMostAlone)) return error;
    if (compressed) compressed->begin_pass(text.layout);
    if (indexer) indexer->begin_pass(text.layout);
    cache = &of_pass, pass = &asked;
    const auto reserve = [this](auto &scratch) {
      for (auto &of_thread : scratch) of_thread.reserve(model.key_dim, model.value_dim, text.layout.tree_span());
    };
    if (model.precision == Precision::fp32)
      reserve(scratch_fp32_);
    else
      reserve(scratch_bf16_);
    head->begin_pass(asked), finished.begin_pass(asked, convolves());
    if (experts) experts->begin_pass();
    first = rows = 0;
    return nullptr;
  }

  // The rows behind those of the panel before.
  void begin_panel() {
    first += rows;
    rows = text.layout.end_of_panel(*pass, first, kPanelRows, convolves()) - first;
    context = std::min(std::max(pass->context_rows - first, 0), rows);
    finished.begin_panel(first, rows);
    adapted.begin_panel(*pass, first, rows);
    share_out(text);
    if (model.shape.cross) share_out(encoded);
    head->begin_panel(first, rows);
    if (indexer) indexer->begin_panel(first);
    if (states) states->begin_panel(first, rows);
    barrier.reset(model.shape.threads);
    deal.reset(model.shape.threads);
  }

  int end() const { return first + rows; }

  // Whether rows of a block read those before them in every part of a layer.
  bool convolves() const { return model.shape.block_convolution.taps > 0; }

  // Floats of one part of attention that is merged with others.
  size_t part_size() const { return kTileEntries * AttentionTile<float>::part_stride(model.value_dim); }

  template <class Cell>
  AttentionScratch<Cell> &scratch(int thread) {
    if constexpr (sizeof(Cell) == 2)
      return scratch_bf16_[thread];
    else
      return scratch_fp32_[thread];
  }

  Decoder &model;
  const Cache *cache = nullptr;
  const HeadstartPass *pass = nullptr;
  int first = 0, rows = 0;  // of the panel
  int context = 0;          // the first of its rows, which leave keys and values alone
  Sight text, encoded;      // the sequences' own tokens, and their encoder memories
  FinishedRows finished;
  AdaptedRows adapted;
  std::array<int32_t, kPanelRows> all_rows;  // 0, 1, ...
  AlignedBuffer part_memory;                 // [part][part_size] floats
  Barrier barrier;
  PairDeal deal;
  float *x, *qkv, *branch;  // [panel row]: residual stream; q, k, v; a branch's output before its post norm
  float *gates = nullptr;   // [panel row], where attention has a gate
  float *given = nullptr;   // [panel row], where layers have inputs: those of all layers
  float *side = nullptr;    // [panel row], what a second path gives
  float *held = nullptr;    // [panel row], where experts' sums are delayed
  float *raised = nullptr;  // [panel row], gates and ups, where not all are multiplied as they come
  float *normed = nullptr,
        *changes = nullptr;  // [panel row], where blocks convolve: what they read, and their kernels'
  size_t x_stride, qkv_stride, branch_stride, gate_stride = 0, given_stride = 0, side_stride = 0, raised_stride = 0,
                                              held_stride = 0;
  size_t normed_stride = 0, change_stride = 0;
  LinearInput input, mlp_input;  // the latter beside attention's, where the MLP reads the same stream
  PackedRows block_input;  // context rows, the same in all layers, and behind them what attention reads of the others
  Activations attended, middle;
  std::vector<float *> row;        // [thread], one row of scratch
  std::vector<float *> looked_up;  // [thread], a token's row of the table of inputs
  std::unique_ptr<OutputHead> head;
  std::unique_ptr<LatentAttention> latent;  // null where the model has none, as are all that follow
  std::unique_ptr<CompressedAttention> compressed;
  std::unique_ptr<Indexer> indexer;
  std::unique_ptr<StateMixers> states;
  std::unique_ptr<ExpertsChannel> experts;
  std::unique_ptr<ResidualStreams> streams;
  std::unique_ptr<HyperConnections> hyper;

 private:
  float *floats(int columns, size_t &stride) {
    stride = columns + 16;
    return memory_.emplace_back(kPanelRows * stride * sizeof(float)).as<float>();
  }

  PackedRows packed(int rows) {
    PackedRows all;
    for (int form = 0; form < Decoder::kForms; ++form)
      if (model.has_form(form))
        all[form] =
            packed_rows(model.precision_of_form(form), model.kernels[form].element, memory_, rows, model.widest);
    return all;
  }

  LinearInput linear_input() {
    LinearInput all{packed(kPanelRows), {}};
    for (int t = 0; t < model.shape.threads; ++t) all.own.push_back(packed(kRowBlock));
    return all;
  }

  void share_out(Sight &sight) {
    if (pass->layers > 1 || finished.are_all())
      share_out(sight.layout, sight.work, [&](auto &&add) { add(context, rows); });
    if (!finished.are_all() && finished.count())
      share_out(sight.layout, sight.last_work, [&](auto &&add) {
        for (int i = 0, next; i < finished.count(); i = next) {
          for (next = i + 1; next < finished.count() && finished.row(next) == finished.row(next - 1) + 1;) ++next;
          add(finished.row(i), finished.row(next - 1) + 1);
        }
      });
  }

  // The work of the panel's rows [from, to) for each of the runs of rows that `each` calls its argument with.
  template <class Each>
  void share_out(const PassLayout &layout, std::vector<AttentionWork> &works, Each &&each) {
    works.resize(model.head_counts.size());
    for (size_t i = 0; i < works.size(); ++i) {
      AttentionWork &work = works[i];
      work.items.clear();
      each([&](int from, int to) {
        const HeadCount &heads = model.head_counts[i];
        layout.cut(first + from, first + to, heads.of_queries, heads.of_keys, work.items);
      });
      PassLayout::deal(work.items, layout.sights(), model.shape.threads, work.parts);
      if (work.are_chunks() && work.parts.size() > part_capacity_) {
        part_capacity_ = work.parts.size();
        part_memory = AlignedBuffer(part_capacity_ * part_size() * sizeof(float));
      }
    }
  }

  size_t part_capacity_ = 0;
  std::vector<AlignedBuffer> memory_;
  std::vector<AttentionScratch<Bf16>> scratch_bf16_;
  std::vector<AttentionScratch<float>> scratch_fp32_;
};
