// What one thread of the team does with rows of a panel, whatever they are of: norms, packing, linear layers, branches.
#pragma once
#include "pass/panel.h"

// Cache lines asked of memory between two looks at a barrier, and for each key or value that is stored: about what it
// delivers meanwhile.
constexpr int kLinesWhileWaiting = 8, kLinesAUnit = 4;
constexpr float kHalfPower = 0.70710678f;  // so that a sum of two is as strong as each
static const Norm kNoNorm{};
static const DistanceBias kNoBias{};

class WorkerRows {
 public:
  WorkerRows(Panel &panel, int thread)
      : thread(thread),
        threads(panel.model.shape.threads),
        rows(panel.rows - panel.context),
        panel_rows(panel.all_rows.data() + panel.context),
        p_(panel),
        m_(panel.model) {}

  const int thread, threads;
  int rows;                   // that are at work
  const int32_t *panel_rows;  // [row] its place in the panel
  ReadAhead ahead;

  float *scratch() const { return p_.row[thread]; }
  float *x(int row) const { return p_.x + row * p_.x_stride; }

  int pass_row(int row) const { return p_.first + panel_rows[row]; }

  void barrier() {
    p_.barrier.wait(phase_, [this] { ahead.ask(kLinesWhileWaiting); });
  }

  // From a layer on comes what every pass reads, as far as it stands in one piece: which experts follow is not known
  // yet.
  void read_on_from(int layer) {
    const auto beginning = [&](int of) {
      return (of < m_.shape.layers ? m_.layers[of].first_linear() : m_.head).weights[thread];
    };
    int until = layer;
    while (until < p_.pass->layers && !m_.layers[until].experts) ++until;
    ahead.begin(
        layer ? beginning(layer) : m_.streams[thread].data(),
        until < p_.pass->layers ? m_.layers[until].experts->linears[kExpertUp][0].weights[thread] : beginning(until));
  }

  // This thread's rows of `count`: every threads-th.
  template <class Work>
  void my_rows(int count, Work &&work) const {
    for (int row = thread; row < count; row += threads) work(row);
  }

  // Stores what a linear layer computes as rows of floats.
  static auto copy_columns(float *to, size_t stride) {
    return [to, stride](int pair, int row, int rows, const float *out) {
      for (int r = 0; r < rows; ++r)
        std::memcpy(to + (row + r) * stride + pair * kColumns, out + r * kColumns, kColumns * sizeof(float));
    };
  }

  // out[0, hidden padded) = x normed, or as it is where the model has no such norm.
  void norm_row(const Norm &norm, const float *from, float *out) const {
    if (norm.present())
      normalise(m_.norm_kind, norm, m_.shape.norm_eps, from, m_.shape.hidden, out);
    else
      std::memmove(out, from, m_.hidden * sizeof(float));
  }

  // Whether every thread packs so many rows for itself.
  bool packs_alone(int rows) const { return rows <= kMostAlone; }

  // Packs rows for a linear layer; `source(row, scratch)` gives the padded floats.
  template <class Source>
  const Activations &pack(const PackedLinear &layer, const LinearInput &to, int count, Source &&source) {
    const bool alone = packs_alone(count);
    const int form = m_.form_of(layer);
    const Activations &packed = (alone ? to.own[thread] : to.common)[form];
    const LinearKernel &kernel = m_.kernels[form];
    for (int row = alone ? 0 : thread; row < count; row += alone ? 1 : threads) {
      const float *const from = source(row, scratch());
      kernel.store_row(packed, row, from, layer.padded_inputs);
      if (p_.adapted.any()) lower(layer, row, from, alone);
    }
    if (!alone) barrier();
    return packed;
  }

  template <class Source>
  const Activations &pack(const PackedLinear &layer, int count, Source &&source) {
    return pack(layer, p_.input, count, source);
  }

  const Activations &pack_norm(const PackedLinear &layer, const Norm &norm, const LinearInput &to) {
    return pack(layer, to, rows, [&](int row, float *scratch) {
      norm_row(norm, x(row), scratch);
      return scratch;
    });
  }

  const Activations &pack_norm(const PackedLinear &layer, const Norm &norm) { return pack_norm(layer, norm, p_.input); }

  // Attention and the MLP leave their rows in `left` as elements the next layer reads, or as floats to quantise.
  const Activations &pack_quantised(const PackedLinear &layer, const Activations &left) {
    if (m_.middle_kind() == m_.kernel.element) {
      if (p_.adapted.any()) lower_left(layer, left);
      return left;
    }
    return pack(layer, rows, [&](int row, float *) { return reinterpret_cast<const float *>(left.row(row)); });
  }

  template <class Finish>
  void linear(const PackedLinear &layer, const Activations &input, int rows, Finish &&finish, WantedFrom wanted = {}) {
    run_products(m_.kernels[m_.form_of(layer)], layer, input, rows, thread, ahead, p_.deal, wanted, {},
                 [&](int pair, int row, int n, float *out) {
                   add_bias(layer, pair, n, out);
                   if (p_.adapted.any()) add_changes(layer, pair, row, n, packs_alone(rows), out);
                   finish(pair, row, n, static_cast<const float *>(out));
                 });
  }

  // Behind what a mixer leaves for its output projection: other layers' mixers may leave more.
  void clear_padding(const PackedLinear &output, const Activations &left) const {
    my_rows(rows, [&](int row) {
      for (int k = round_up(output.inputs, 16); k < output.padded_inputs; k += 16)
        store_activation(m_.middle_kind(), left, row, k, splat(0.f));
    });
  }

  // Nobody reads the queries of rows before this one.
  static WantedFrom queries_from(const DecoderLayer &layer, int row) {
    return {layer.queries / kColumns, row / kRowBlock * kRowBlock};
  }

  int first_of_finished() const { return p_.finished.count() ? p_.finished.row(0) : round_up(p_.rows, kRowBlock); }

  // From here on the rows are those that are finished, one behind the other; false where there are none. Others read
  // x behind the next barrier.
  bool narrow() {
    rows = p_.finished.count(), panel_rows = p_.finished.rows();
    if (thread == 0)
      for (int i = 0; i < rows; ++i) {
        const int from = p_.finished.row(i) - p_.context;
        std::memmove(x(i), x(from), m_.hidden * sizeof(float));
        if (p_.streams) p_.streams->move(from, i);
        if (p_.hyper) p_.hyper->move(from, i);
        if (p_.held)
          std::memmove(p_.held + i * p_.held_stride, p_.held + from * p_.held_stride, m_.hidden * sizeof(float));
      }
    return rows > 0;
  }

  // The same where nobody waited for others since the stream was read.
  bool narrow_between_layers() {
    barrier();
    const bool any = narrow();
    barrier();
    return any;
  }

  // x = scale * (x + linear(input)), normed first where the model has a post norm, and then where it has a sum norm.
  void add_branch(const PackedLinear &layer, const Activations &input, const Norm &post_norm, const Norm &sum_norm,
                  float scale = 1.f) {
    const bool direct = !post_norm.present();
    linear(layer, input, rows, [&](int pair, int row, int rows, const float *out) {
      for (int r = 0; r < rows; ++r)
        for (int h = 0; h < kColumns; h += 16) {
          const Lanes value = load(out + r * kColumns + h);
          if (direct) {
            float *to = x(row + r) + pair * kColumns + h;
            store(to, load(to) + value);
          } else {
            store(p_.branch + (row + r) * p_.branch_stride + pair * kColumns + h, value);
          }
        }
    });
    barrier();
    if (direct && !sum_norm.present() && scale == 1.f) return;
    my_rows(rows, [&](int row) {
      if (!direct) add_normed_branch(post_norm, row);
      if (sum_norm.present()) norm_row(sum_norm, x(row), x(row));
      if (scale != 1.f) scale_row(x(row), scale);
    });
    barrier();
  }

  void add_normed_branch(const Norm &post_norm, int row) const {
    float *branch = p_.branch + row * p_.branch_stride;
    normalise(m_.norm_kind, post_norm, m_.shape.norm_eps, branch, m_.shape.hidden, branch);
    for (int k = 0; k < m_.hidden; k += 16) store(x(row) + k, load(x(row) + k) + load(branch + k));
  }

  void scale_row(float *row, float scale) const {
    for (int k = 0; k < m_.hidden; k += 16) store(row + k, load(row + k) * splat(scale));
  }

  // A second projection of what the first one reads: that of the mixer beside attention, or the delta rule's rates.
  void project_beside(const DecoderLayer &layer, const PackedLinear &projection, const Activations &input) {
    linear(projection, input_beside(layer, projection, input), p_.rows,
           copy_columns(p_.qkv + layer.beside, p_.qkv_stride));
    barrier();
  }

  // The rows that a layer's first product reads, as another matrix of it reads them.
  const Activations &input_beside(const DecoderLayer &layer, const PackedLinear &other, const Activations &input) {
    if (m_.form_of(other) == m_.form_of(layer.linears[kQkv])) return input;
    return pack_norm(other, layer.norms[kAttentionNorm]);
  }

  const RopeTable *rope_of(const DecoderLayer &layer) const { return layer.rope < 0 ? nullptr : &m_.ropes[layer.rope]; }

  // [row behind the context rows] its row at work.
  const int32_t *places(bool narrowed) const {
    return narrowed ? p_.finished.places() + p_.context : p_.all_rows.data();
  }

 private:
  // What a row's adapter makes of what a matrix reads of it, for `add_changes`.
  void lower(const PackedLinear &layer, int row, const float *from, bool alone) const {
    if (const AdaptedMatrix *const change = p_.adapted.change(layer, panel_rows[row]))
      change->lower(from, p_.adapted.sums(layer, row, alone ? thread : -1));
    // A gate reads what queries are made of.
    if (layer.number >= 0 && layer.number % kAdapted == kQkv)
      lower(m_.layers[layer.number / kAdapted].linears[kGate], row, from, alone);
  }

  // The same of rows that stand as elements already.
  void lower_left(const PackedLinear &layer, const Activations &left) {
    const bool alone = packs_alone(rows);
    for (int row = alone ? 0 : thread; row < rows; row += alone ? 1 : threads) {
      if (!p_.adapted.change(layer, panel_rows[row])) continue;
      float *const from = scratch();
      for (int k = 0; k < layer.padded_inputs; k += 16)
        store(from + k, load_activation(m_.middle_kind(), left, row, k));
      lower(layer, row, from, alone);
    }
    if (!alone) barrier();
  }

  // What adapters add to a pair's columns of some rows.
  void add_changes(const PackedLinear &layer, int pair, int first, int count, bool alone, float *out) const {
    for (int r = 0; r < count; ++r)
      if (const AdaptedMatrix *const change = p_.adapted.change(layer, panel_rows[first + r]))
        change->add(pair, p_.adapted.sums(layer, first + r, alone ? thread : -1), out + r * kColumns);
  }

  Panel &p_;
  Decoder &m_;
  int phase_ = 0;
};
