// What one thread of the team does in a panel of a pass (see pass.h).
#pragma once
#include "pass/worker_attention.h"
#include "pass/worker_channel.h"
#include "pass/worker_convolution.h"
#include "pass/worker_entry.h"
#include "pass/worker_streams.h"

class Worker {
 public:
  Worker(Panel &panel, int thread)
      : p_(panel),
        m_(panel.model),
        t_(panel, thread),
        entry_(panel, t_),
        attention_(panel, t_),
        channel_(panel, t_),
        convolution_(panel, t_),
        streams_(panel, t_) {}

  void run() {
    t_.read_on_from(0);
    entry_.run();
    if (p_.streams) streams_.spread();
    if (p_.hyper && !m_.is_module()) t_.my_rows(t_.rows, [&](int row) { p_.hyper->begin(row, t_.x(row)); });
    for (int layer = 0; layer < p_.pass->layers; ++layer) {
      copy_taps(layer);
      run_layer(m_.layers[layer], layer);
    }
    copy_taps(p_.pass->layers);
    if (p_.hyper) copy_stream_taps();
    if (p_.streams && t_.rows) streams_.merge();
    if (p_.hyper && p_.hyper->merges()) {
      t_.my_rows(t_.rows, [&](int row) { p_.hyper->merge(row, t_.x(row)); });
      t_.barrier();
    }
    copy_final_taps();
    p_.head->run(
        t_.thread, t_.ahead, p_.deal,
        [this](int row, float *out) { t_.norm_row(m_.final_norm, t_.x(p_.finished.places()[row]), out); },
        [this] { t_.barrier(); });
  }

 private:
  // The last layer goes on with finished rows alone, once its keys, values and states are kept; a panel may have none.
  void run_layer(const DecoderLayer &layer, int index) {
    const bool narrows = index == p_.pass->layers - 1 && !p_.finished.are_all();
    if (layer.is(Mixer::none)) {
      if (!narrows || t_.narrow_between_layers()) channel_.run(layer, index);
      return;
    }
    // The channel reads what the mixer reads: an MLP's input is packed before the mixer is added, experts go first.
    const bool parallel = m_.shape.parallel_residual && !layer.experts;
    const bool goes_first = m_.shape.parallel_residual && layer.experts;
    if (p_.streams) streams_.predict(layer);
    if (p_.hyper) enter(layer, kMixerMix, kMixerBase);
    const Activations input = p_.convolves() ? pack_convolved(layer) : entry_.pack_attention_input(layer, index);
    Activations mlp_input;
    if (parallel && !narrows) mlp_input = channel_.pack_beside(layer);
    project(layer, input, narrows);
    if (m_.keeps_state(layer)) run_state(layer, index, narrows);
    if (attends(layer)) keep_keys_and_values(layer, index, input, narrows);
    if (!t_.rows || (narrows && !t_.narrow())) return;
    if (attends(layer)) attention_.run(layer, index, narrows);
    finish_mixer(layer);
    if (parallel && narrows) {
      mlp_input = channel_.pack_beside(layer);
      if (t_.packs_alone(t_.rows)) t_.barrier();  // others still read x, which is added to next
    }
    if (goes_first) channel_.run(layer, index);
    add_mixer(layer);
    if (p_.hyper) leave(), enter(layer, kChannelMix, kChannelBase);
    if (m_.shape.cross) attention_.run_cross(layer, index, narrows);
    if (p_.side) channel_.add_side();
    if (p_.convolves())
      run_convolved_mlp(layer);
    else if (parallel)
      channel_.run_mlp(layer, mlp_input);
    else if (!goes_first && !layer.is(Channel::none))
      channel_.run(layer, index);
    if (channel_.resumes(index) && !layer.delays) channel_.add_held();
    if (p_.streams) streams_.correct(layer);
    if (p_.hyper) leave();
    if (layer.input) channel_.run_input(layer);
  }

  void enter(const DecoderLayer &layer, ConstantIndex mix, ConstantIndex base) {
    t_.my_rows(t_.rows, [&](int row) { p_.hyper->enter(layer, mix, base, row, t_.x(row)); });
    t_.barrier();
  }
  void leave() {
    t_.my_rows(t_.rows, [&](int row) { p_.hyper->leave(row, t_.x(row)); });
    t_.barrier();
  }

  // What attention reads of the rows of blocks that convolve.
  const Activations &pack_convolved(const DecoderLayer &layer) {
    const PackedLinear &qkv = layer.linears[kQkv];
    if (t_.rows)
      convolution_.enter(layer, WorkerConvolution::kAroundAttention,
                         [&](int row, const float *from) { entry_.store_block_row(qkv, p_.context + row, from); });
    return p_.block_input[m_.form_of(qkv)];
  }

  void run_convolved_mlp(const DecoderLayer &layer) {
    const PackedLinear &up = layer.linears[kUp];
    const int form = m_.form_of(up);
    const Activations &input = p_.input.common[form];
    convolution_.enter(layer, WorkerConvolution::kAroundMlp, [&](int row, const float *from) {
      m_.kernels[form].store_row(input, row, from, up.padded_inputs);
    });
    convolution_.leave(layer, WorkerConvolution::kAroundMlp, layer.linears[kDown], channel_.raise(layer, input));
  }

  static bool has_two(const DecoderLayer &layer) { return layer.is(Mixer::attention_mamba2); }
  bool attends(const DecoderLayer &layer) const { return !m_.keeps_state(layer) || has_two(layer); }

  // What the mixer's first product gives, of all rows of the panel.
  void project(const DecoderLayer &layer, const Activations &input, bool narrows) {
    t_.linear(layer.linears[kQkv], input, p_.rows, t_.copy_columns(p_.qkv, p_.qkv_stride),
              t_.queries_from(layer, narrows ? t_.first_of_finished() : p_.context));
    t_.barrier();
    if (has_two(layer)) t_.project_beside(layer, layer.linears[kStateInput], input);
    if (layer.is(Mixer::delta)) t_.project_beside(layer, layer.linears[kRates], input);
  }

  void run_state(const DecoderLayer &layer, int index, bool narrows) {
    const bool beside = has_two(layer);
    const MixerRows rows{p_.qkv + (beside ? layer.beside : 0), p_.qkv_stride, t_.places(narrows),
                         beside ? p_.middle : p_.attended, m_.middle_kind()};
    p_.states->run(layer, index, rows, t_.thread, t_.ahead, p_.deal, [this] { t_.barrier(); });
  }

  // And what else comes of all rows' stream before they are fewer: gates, a second path.
  void keep_keys_and_values(const DecoderLayer &layer, int index, const Activations &input, bool narrows) {
    if (m_.shape.attention_gate) attention_.run_gate(layer, input, narrows);
    if (p_.side) channel_.run_side(layer, input);
    attention_.prepare_heads(layer);
    attention_.store_keys_and_values(layer, index);
    t_.barrier();
  }

  // What the mixer leaves becomes what its output projection reads.
  void finish_mixer(const DecoderLayer &layer) {
    t_.clear_padding(layer.linears[kOutput], p_.attended);
    if (has_two(layer)) t_.clear_padding(layer.linears[kStateOutput], p_.middle);
    t_.barrier();
    if (layer.is(Mixer::latent)) attention_.take_values(layer);
    if (layer.is(Mixer::compressed)) attention_.lower(layer);
  }

  void add_mixer(const DecoderLayer &layer) {
    const PackedLinear &output = layer.linears[kOutput], &state_output = layer.linears[kStateOutput];
    const Activations &mixed = t_.pack_quantised(output, p_.attended);
    if (p_.convolves()) return convolution_.leave(layer, WorkerConvolution::kAroundAttention, output, mixed);
    t_.add_branch(output, mixed, layer.norms[kAttentionPostNorm], layer.norms[kAttentionSumNorm]);
    if (has_two(layer)) t_.add_branch(state_output, t_.pack_quantised(state_output, p_.middle), kNoNorm, kNoNorm);
  }

  void copy_taps(int layer) {
    for (int i = 0; i < p_.pass->taps; ++i)
      if (p_.pass->tap_layers[i] == layer)
        t_.my_rows(t_.rows, [&](int row) { copy_tap(i, row, t_.x(row), m_.shape.tap_scale); });
  }

  void copy_stream_taps() {
    for (int i = 0; i < p_.pass->taps; ++i) {
      const int first = -2 - p_.pass->tap_layers[i], count = m_.shape.hyper.count, size = m_.shape.hidden;
      if (first < 0) continue;
      const bool all = first == count;
      t_.my_rows(t_.rows, [&](int row) {
        float *const to =
            p_.pass->tap_rows[i] + (p_.first + t_.panel_rows[row]) * static_cast<size_t>(size) * (all ? count : 1);
        for (int stream = 0; stream < (all ? count : 1); ++stream)
          std::memcpy(to + stream * size, p_.hyper->stream(row, all ? stream : first), size * sizeof(float));
      });
    }
  }

  void copy_final_taps() {
    for (int i = 0; i < p_.pass->taps; ++i)
      if (p_.pass->tap_layers[i] == -1)
        t_.my_rows(t_.rows, [&](int row) {
          float *scratch = t_.scratch();
          t_.norm_row(m_.final_norm, t_.x(row), scratch);
          copy_tap(i, row, scratch, 1.f);
        });
  }

  void copy_tap(int tap, int row, const float *from, float scale) {
    const size_t size = m_.shape.hidden;
    float *to = p_.pass->tap_rows[tap] + (p_.first + t_.panel_rows[row]) * size;
    for (size_t k = 0; k < size; ++k) to[k] = from[k] * scale;
  }

  Panel &p_;
  Decoder &m_;
  WorkerRows t_;
  WorkerEntry entry_;
  WorkerAttention attention_;
  WorkerChannel channel_;
  WorkerConvolution convolution_;
  WorkerStreams streams_;
};
