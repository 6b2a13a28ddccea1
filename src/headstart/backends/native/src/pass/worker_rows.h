// What one thread of the team does with rows of a panel, whatever they are of: norms, packing, linear layers, branches.
#pragma once
// Cache lines asked of memory between two looks at a barrier, and for each key or value that is stored: about what it
// delivers meanwhile.
constexpr int kLinesWhileWaiting = 8, kLinesAUnit = 4;
constexpr float kHalfPower = 0.70710678f;  // so that a sum of two is as strong as each
static const Norm kNoNorm{};
static const DistanceBias kNoBias{};

class PassRunner::RowWorker {
 public:
  RowWorker(PassRunner &runner, int thread)
      : p_(runner),
        m_(runner.m_),
        pass_(*runner.pass_),
        thread_(thread),
        threads_(m_.shape.threads),
        rows_(runner.rows_ - runner.context_),
        panel_rows_(runner.all_rows_.data() + runner.context_) {}

  float *x(int row) const { return p_.x_ + row * p_.x_stride_; }

  int pass_row(int row) const { return p_.first_ + panel_rows_[row]; }

  void barrier() {
    p_.barrier_.wait(phase_, [this] { ahead_.ask(kLinesWhileWaiting); });
  }

  // From a layer on comes what every pass reads, as far as it stands in one piece: which experts follow is not known
  // yet.
  void read_on_from(int layer) {
    const auto beginning = [&](int of) {
      return (of < m_.shape.layers ? m_.layers[of].first_linear() : m_.head).weights[thread_];
    };
    int until = layer;
    while (until < pass_.layers && !m_.layers[until].experts) ++until;
    ahead_.begin(
        layer ? beginning(layer) : m_.streams[thread_].data(),
        until < pass_.layers ? m_.layers[until].experts->linears[kExpertUp][0].weights[thread_] : beginning(until));
  }

  // This thread's rows of `count`: every threads-th.
  template <class Work>
  void my_rows(int count, Work &&work) const {
    for (int row = thread_; row < count; row += threads_) work(row);
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

  // Up to two rows every thread packs for itself: cheaper than one more barrier.
  bool packs_alone(int rows) const { return rows <= 2; }

  // Packs `rows` rows for a linear layer; `source(row, scratch)` gives the padded floats.
  template <class Source>
  const Activations &pack(const PackedLinear &layer, const PackedRows &common, const PackedRows &own, int rows,
                          Source &&source) {
    const bool alone = packs_alone(rows);
    const int form = m_.form_of(layer);
    const Activations &to = (alone ? own : common)[form];
    const LinearKernel &kernel = m_.kernels[form];
    for (int row = alone ? 0 : thread_; row < rows; row += alone ? 1 : threads_)
      kernel.store_row(to, row, source(row, p_.row_[thread_]), layer.padded_inputs);
    if (!alone) barrier();
    return to;
  }

  const Activations &pack_norm(const PackedLinear &layer, const Norm &norm, const PackedRows &common,
                               const PackedRows &own) {
    return pack(layer, common, own, rows_, [&](int row, float *scratch) {
      norm_row(norm, x(row), scratch);
      return scratch;
    });
  }

  // Attention and the MLP leave their rows in `rows` as elements the next layer reads, or as floats to quantise.
  const Activations &pack_quantised(const PackedLinear &layer, const Activations &rows) {
    if (m_.middle_kind() == m_.kernel.element) return rows;
    return pack(layer, p_.input_, p_.private_input_[thread_], rows_,
                [&](int row, float *) { return reinterpret_cast<const float *>(rows.row(row)); });
  }

  template <class Finish>
  void linear(const PackedLinear &layer, const Activations &input, int rows, Finish &&finish, WantedFrom wanted = {}) {
    run_linear(m_.kernels[m_.form_of(layer)], layer, input, rows, thread_, ahead_, p_.deal_, finish, wanted);
  }

  // Behind what a mixer leaves for its output projection: other layers' mixers may leave more.
  void clear_padding(const PackedLinear &output, const Activations &left) const {
    my_rows(rows_, [&](int row) {
      for (int k = round_up(output.inputs, 16); k < output.padded_inputs; k += 16)
        store_activation(m_.middle_kind(), left, row, k, splat(0.f));
    });
  }

  // Nobody reads the queries of rows before this one.
  static WantedFrom queries_from(const DecoderLayer &layer, int row) {
    return {layer.queries / kColumns, row / kRowBlock * kRowBlock};
  }

  int first_of_finished() const { return p_.finished_.count() ? p_.finished_.row(0) : round_up(p_.rows_, kRowBlock); }

  // From here on the rows are those that are finished, one behind the other; false where there are none. Others read
  // x behind the next barrier.
  bool narrow() {
    rows_ = p_.finished_.count(), panel_rows_ = p_.finished_.rows();
    if (thread_ == 0)
      for (int i = 0; i < rows_; ++i) {
        const int from = p_.finished_.row(i) - p_.context_;
        std::memmove(x(i), x(from), m_.hidden * sizeof(float));
        if (p_.streams_) p_.streams_->move(from, i);
      }
    return rows_ > 0;
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
    linear(layer, input, rows_, [&](int pair, int row, int rows, const float *out) {
      for (int r = 0; r < rows; ++r)
        for (int h = 0; h < kColumns; h += 16) {
          const Lanes value = load(out + r * kColumns + h);
          if (direct) {
            float *to = x(row + r) + pair * kColumns + h;
            store(to, load(to) + value);
          } else {
            store(p_.branch_ + (row + r) * p_.branch_stride_ + pair * kColumns + h, value);
          }
        }
    });
    barrier();
    if (direct && !sum_norm.present() && scale == 1.f) return;
    my_rows(rows_, [&](int row) {
      if (!direct) add_normed_branch(post_norm, row);
      if (sum_norm.present()) norm_row(sum_norm, x(row), x(row));
      if (scale != 1.f) scale_row(x(row), scale);
    });
    barrier();
  }

  void add_normed_branch(const Norm &post_norm, int row) const {
    float *branch = p_.branch_ + row * p_.branch_stride_;
    normalise(m_.norm_kind, post_norm, m_.shape.norm_eps, branch, m_.shape.hidden, branch);
    for (int k = 0; k < m_.hidden; k += 16) store(x(row) + k, load(x(row) + k) + load(branch + k));
  }

  void scale_row(float *row, float scale) const {
    for (int k = 0; k < m_.hidden; k += 16) store(row + k, load(row + k) * splat(scale));
  }

  // A second projection of what the first one reads: that of the mixer beside attention, or the delta rule's rates.
  void project_beside(const DecoderLayer &layer, const PackedLinear &projection, const Activations &input) {
    linear(projection, input_beside(layer, projection, input), p_.rows_,
           copy_columns(p_.qkv_ + layer.beside, p_.qkv_stride_));
    barrier();
  }

  // The rows that a layer's first product reads, as another matrix of it reads them.
  const Activations &input_beside(const DecoderLayer &layer, const PackedLinear &other, const Activations &input) {
    if (m_.form_of(other) == m_.form_of(layer.linears[kQkv])) return input;
    return pack_norm(other, layer.norms[kAttentionNorm], p_.input_, p_.private_input_[thread_]);
  }

  const RopeTable *rope_of(const DecoderLayer &layer) const { return layer.rope < 0 ? nullptr : &m_.ropes[layer.rope]; }

  // [row behind the context rows] its row at work.
  const int32_t *places(bool narrowed) const {
    return narrowed ? p_.finished_.places() + p_.context_ : p_.all_rows_.data();
  }

 protected:
  PassRunner &p_;
  Decoder &m_;
  const HeadstartPass &pass_;
  const int thread_, threads_;
  int rows_;                   // that are at work
  const int32_t *panel_rows_;  // [row] its place in the panel
  int phase_ = 0;
  ReadAhead ahead_;
};
