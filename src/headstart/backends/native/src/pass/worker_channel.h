// One thread's share of what a layer does with every row by itself: MLP, experts, a second path, a layer's input.
#pragma once
#include "pass/worker_rows.h"

class WorkerChannel {
 public:
  WorkerChannel(Panel &panel, WorkerRows &rows) : t_(rows), p_(panel), m_(panel.model) {}

  // What the second path gives for all rows: the normed stream, and what two small matrices make of it.
  void run_side(const DecoderLayer &layer, const Activations &input) {
    const PackedLinear &down = layer.linears[kSideDown], &up = layer.linears[kSideUp];
    const bool alike = m_.form_of(down) == m_.form_of(layer.linears[kQkv]);
    const Activations &rows = alike ? input : t_.pack_norm(down, layer.norms[kAttentionNorm]);
    t_.linear(down, rows, t_.rows, [&](int pair, int row, int count, const float *out) {
      for (int r = 0; r < count; ++r)
        for (int h = 0; h < kColumns; h += 16)
          store_activation(m_.middle_kind(), p_.middle, row + r, pair * kColumns + h, load(out + r * kColumns + h));
    });
    t_.barrier();
    t_.linear(up, t_.pack_quantised(up, p_.middle), t_.rows, t_.copy_columns(p_.side, p_.side_stride));
    t_.barrier();
    t_.my_rows(t_.rows, [&](int row) {
      float *const side = p_.side + row * p_.side_stride, *const normed = t_.scratch();
      t_.norm_row(layer.norms[kSideNorm], side, side);
      t_.norm_row(layer.norms[kAttentionNorm], t_.x(row), normed);
      for (int k = 0; k < m_.hidden; k += 16) store(side + k, load(normed + k) + load(side + k));
    });
  }

  void add_side() {
    t_.my_rows(t_.rows, [&](int row) {
      const float *const side = p_.side + t_.panel_rows[row] * p_.side_stride;
      for (int k = 0; k < m_.hidden; k += 16)
        store(t_.x(row) + k, (load(t_.x(row) + k) + load(side + k)) * splat(kHalfPower));
    });
    t_.barrier();
  }

  void run(const DecoderLayer &layer, int index) {
    if (layer.experts)
      run_experts(layer, index);
    else
      run_mlp(layer, t_.pack_norm(layer.linears[kUp], layer.norms[kMlpNorm]));
  }

  // Whether the layer before held back what is to be added behind this one.
  bool resumes(int index) const { return index > 0 && m_.layers[index - 1].delays; }

  void add_held() {
    t_.my_rows(t_.rows, [&](int row) {
      const float *const held = p_.held + row * p_.held_stride;
      for (int k = 0; k < m_.hidden; k += 16) store(t_.x(row) + k, load(t_.x(row) + k) + load(held + k));
    });
    t_.barrier();
  }

  // What the MLP reads of the stream beside attention.
  const Activations &pack_beside(const DecoderLayer &layer) {
    return t_.pack_norm(layer.linears[kUp], layer.norms[kMlpNorm], p_.mlp_input);
  }

  void run_mlp(const DecoderLayer &layer, const Activations &input) {
    t_.add_branch(layer.linears[kDown], raise(layer, input), layer.norms[kMlpPostNorm], layer.norms[kMlpSumNorm],
                  layer.channel_scale());
  }

  // What the MLP's last product reads.
  const Activations &raise(const DecoderLayer &layer, const Activations &input) {
    run_up(layer, input);
    t_.barrier();
    return t_.pack_quantised(layer.linears[kDown], p_.middle);
  }

  // x = scale * (x + what the layer makes of its input, opened by the stream); of several streams all but the first get
  // it.
  void run_input(const DecoderLayer &layer) {
    const PackedLinear &gate = layer.linears[kInputGate], &output = layer.linears[kInputOutput];
    const int size = m_.shape.inputs.size;
    const std::vector<float> &factors = layer.constants[kStreamScale];
    const auto read = [&](int row, float *scratch) {
      t_.norm_row(kNoNorm, t_.x(row), scratch);
      for (int k = 0; k < static_cast<int>(factors.size()); k += 16)
        store(scratch + k, load(scratch + k) * load(&factors[k]));
      return scratch;
    };
    t_.linear(gate, t_.pack(gate, t_.rows, read), t_.rows, [&](int pair, int row, int rows, const float *out) {
      for (int r = 0; r < rows; ++r)
        for (int h = 0; h < kColumns; h += 16) {
          const int column = pair * kColumns + h;
          const float *const given = p_.given + t_.panel_rows[row + r] * p_.given_stride + (layer.input - 1) * size;
          const Lanes opened = activate(m_.activation, load(out + r * kColumns + h));
          const Lanes read = column < size ? load_first(given, column, size) : splat(0.f);
          store_activation(m_.middle_kind(), p_.middle, row + r, column, opened * read);
        }
    });
    t_.barrier();
    if (!p_.streams) {
      t_.add_branch(output, t_.pack_quantised(output, p_.middle), layer.norms[kInputNorm], kNoNorm, layer.scale());
      return;
    }
    t_.linear(output, t_.pack_quantised(output, p_.middle), t_.rows, t_.copy_columns(p_.branch, p_.branch_stride));
    t_.barrier();
    t_.my_rows(t_.rows, [&](int row) {
      float *const branch = p_.branch + row * p_.branch_stride;
      t_.norm_row(layer.norms[kInputNorm], branch, branch);
      p_.streams->add_to_others(row, branch);
    });
    t_.barrier();
  }

 private:
  // x = scale * (x + what the experts give), normed first where the model has a post norm.
  void run_experts(const DecoderLayer &layer, int index) {
    const float scale = layer.channel_scale();
    const PackedLinear &up = layer.linears[kUp], &down = layer.linears[kDown];
    const bool shares = up.pairs > 0;
    if (shares) {
      run_up(layer, t_.pack_norm(up, layer.norms[kMlpNorm]));
      t_.barrier();
      t_.linear(down, t_.pack_quantised(down, p_.middle), t_.rows, t_.copy_columns(p_.branch, p_.branch_stride));
    }
    p_.experts->run(
        layer, index, t_.rows, t_.thread, t_.ahead, p_.deal,
        [&](NormIndex norm, int row, float *out) { t_.norm_row(layer.norms[norm], t_.x(row), out); },
        [this](int row) { return static_cast<size_t>(p_.pass->tokens[t_.pass_row(row)]); }, [this] { t_.barrier(); },
        [&] { t_.read_on_from(index + 1); });
    if (layer.is(Channel::mlp_experts))
      t_.my_rows(t_.rows, [&](int row) { join_experts(layer, row); });
    else
      add_experts(layer, index, shares, scale);
    t_.barrier();
    const Norm &post_norm = layer.norms[kMlpPostNorm];
    if (!post_norm.present() && !layer.is(Channel::mlp_experts)) return;
    t_.my_rows(t_.rows, [&](int row) {
      t_.add_normed_branch(post_norm, row);
      if (scale != 1.f) t_.scale_row(t_.x(row), scale);
    });
    t_.barrier();
  }

  // What all experts give goes to the stream or, where a norm comes before, to the branch, or is held back.
  void add_experts(const DecoderLayer &layer, int index, bool shares, float scale) {
    const ExpertsChannel &experts = *p_.experts;
    const Norm &post_norm = layer.norms[kMlpPostNorm];
    const int64_t parts = m_.hidden / 16, all = t_.rows * parts;
    for (int64_t i = all * t_.thread / t_.threads; i < all * (t_.thread + 1) / t_.threads; ++i) {
      const int row = static_cast<int>(i / parts), k = static_cast<int>(i % parts) * 16;
      float *const branch = p_.branch + row * p_.branch_stride + k;
      Lanes sum = experts.sum(row, k, t_.thread);
      if (layer.delays) {
        float *const held = p_.held + row * p_.held_stride + k;
        const Lanes delayed = sum;
        sum = resumes(index) ? load(held) : splat(0.f);
        store(held, delayed);
      }
      if (shares) sum = sum + load(branch) * experts.shared_weight(row);
      if (post_norm.present())
        store(branch, sum);
      else
        store(t_.x(row) + k, (load(t_.x(row) + k) + sum) * splat(scale));
    }
  }

  // The branch of a row becomes the sum of MLP and experts, each normed.
  void join_experts(const DecoderLayer &layer, int row) const {
    float *const dense = p_.branch + row * p_.branch_stride, *const mixed = t_.scratch();
    for (int k = 0; k < m_.hidden; k += 16) store(mixed + k, p_.experts->sum(row, k, t_.thread));
    t_.norm_row(layer.norms[kExpertsPostNorm], mixed, mixed);
    t_.norm_row(layer.norms[kDensePostNorm], dense, dense);
    for (int k = 0; k < m_.hidden; k += 16) store(dense + k, load(dense + k) + load(mixed + k));
  }

  Lanes activated(const DecoderLayer &layer, Lanes x) const {
    return m_.activation == Activation::xielu ? xielu(layer.constants[kCurve].data(), x) : activate(m_.activation, x);
  }

  // What sixteen gates let through of their ups.
  Lanes gated(const DecoderLayer &layer, Lanes gate, Lanes up) const {
    gate = activated(layer, gate);
    if (layer.mlp_limit != 0.f) cut_off(layer.mlp_gate_limit, layer.mlp_limit, gate, up);
    return gate * up;
  }

  void run_up(const DecoderLayer &layer, const Activations &input) {
    const PackedLinear &up = layer.linears[kUp];
    if (layer.cuts || up.apart) {
      run_raised(layer, up, input);
      return;
    }
    const ElementKind kind = m_.middle_kind();
    t_.linear(up, input, t_.rows, [&](int pair, int row, int rows, const float *out) {
      for (int r = 0; r < rows; ++r) {
        const Lanes left = load(out + r * kColumns), right = load(out + r * kColumns + 16);
        if (m_.shape.gated) {
          store_activation(kind, p_.middle, row + r, pair * 16, gated(layer, left, right));
        } else {
          store_activation(kind, p_.middle, row + r, pair * kColumns, activated(layer, left));
          store_activation(kind, p_.middle, row + r, pair * kColumns + 16, activated(layer, right));
        }
      }
    });
  }

  // The same where not all gates come with their ups, or are counted together first.
  void run_raised(const DecoderLayer &layer, const PackedLinear &up, const Activations &input) {
    const int padded = layer.linears[kDown].padded_inputs;
    const auto all = t_.copy_columns(p_.raised, p_.raised_stride);
    t_.linear(up, input, t_.rows, [&](int pair, int row, int rows, const float *out) {
      if (up.apart) return all(pair, row, rows, out);
      for (int r = 0; r < rows; ++r) {
        float *const to = p_.raised + (row + r) * p_.raised_stride + pair * 16;
        store(to, load(out + r * kColumns)), store(to + padded, load(out + r * kColumns + 16));
      }
    });
    t_.barrier();
    if (layer.cuts) {
      cut(layer, padded);
      return;
    }
    const int64_t parts = padded / 16, count = t_.rows * parts;
    for (int64_t i = count * t_.thread / t_.threads; i < count * (t_.thread + 1) / t_.threads; ++i) {
      const int row = static_cast<int>(i / parts), k = static_cast<int>(i % parts) * 16;
      const float *const gates = p_.raised + row * p_.raised_stride + k;
      store_activation(m_.middle_kind(), p_.middle, row, k, gated(layer, load(gates), load(gates + padded)));
    }
  }

  // Gates count from so far above their mean on.
  void cut(const DecoderLayer &layer, int padded) {
    const int size = layer.mlp;
    t_.my_rows(t_.rows, [&](int row) {
      const float *const gates = p_.raised + row * p_.raised_stride;
      Lanes sum = splat(0.f), squares = splat(0.f);
      for (int k = 0; k < size; k += 16) sum = sum + load_first(gates, k, size);
      const float mean = reduce_add(sum) / static_cast<float>(size);
      for (int k = 0; k < size; k += 16) {
        const Lanes off = select_range(load(gates + k) - splat(mean), 0, size - k, splat(0.f));
        squares = fma(off, off, squares);
      }
      const Lanes least = splat(mean + std::sqrt(reduce_add(squares) / static_cast<float>(size)) * layer.cut);
      for (int k = 0; k < padded; k += 16) {
        const Lanes gate = max(splat(0.f), load(gates + k) - least);  // what is no number stands second, and stays
        store_activation(m_.middle_kind(), p_.middle, row, k, activate(m_.activation, gate) * load(gates + padded + k));
      }
    });
  }

  WorkerRows &t_;
  Panel &p_;
  Decoder &m_;
};
