// What one thread of the team does in a panel of a pass (see pass.h).
#pragma once

// Cache lines asked of memory between two looks at a barrier, and for each key or value that is stored: about what it
// delivers meanwhile.
constexpr int kLinesWhileWaiting = 8, kLinesAUnit = 4;
constexpr float kHalfPower = 0.70710678f;  // so that a sum of two is as strong as each
static const Norm kNoNorm{};
static const DistanceBias kNoBias{};

class PassRunner::Worker {
 public:
  Worker(PassRunner &runner, int thread)
      : p_(runner),
        m_(runner.m_),
        pass_(*runner.pass_),
        thread_(thread),
        threads_(m_.shape.threads),
        rows_(runner.rows_ - runner.context_),
        panel_rows_(runner.all_rows_.data() + runner.context_) {}

  void run() {
    read_on_from(0);
    if (p_.context_) take_context();
    if (m_.is_head() && m_.entry != Entry::block)
      enter();
    else
      embed();
    if (p_.given_) take_inputs();
    if (p_.streams_) spread();
    for (int layer = 0; layer < pass_.layers; ++layer) {
      copy_taps(layer);
      run_layer(m_.layers[layer], layer);
    }
    copy_taps(pass_.layers);
    if (p_.streams_ && rows_) merge();
    copy_final_taps();
    p_.head_->run(
        thread_, ahead_, p_.deal_,
        [this](int row, float *out) { norm_row(m_.final_norm, x(p_.finished_.places()[row]), out); },
        [this] { barrier(); });
  }

 private:
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

  void embed() {
    const int size = m_.shape.hidden;
    const Lanes factor = splat(m_.shape.embedding_scale);
    my_rows(rows_, [&](int row) {
      float *to = x(row);
      if (pass_.inputs && !m_.is_head()) {
        std::memcpy(to, features(row, size), size * sizeof(float));
      } else {
        load_embedding(row, to);
        for (int k = 0; k < m_.hidden; k += 16) store(to + k, load(to + k) * factor);
        if (!m_.learned.empty()) {
          const int position = p_.text_.layout.positions()[pass_row(row)];
          const float *place = m_.learned.data() + static_cast<size_t>(position) * size;
          for (int k = 0; k < size; ++k) to[k] += place[k];
        }
      }
      if (m_.embedding_norm.present()) norm_row(m_.embedding_norm, to, to);
    });
    barrier();
  }

  void load_embedding(int row, float *to) const {
    m_.embedding.read(pass_.tokens[pass_row(row)], m_.shape.hidden, m_.precision != Precision::fp32, to);
  }

  // Context rows of a block head: the target's states, fused and normed.
  void take_context() {
    fuse(p_.context_, p_.branch_, p_.branch_stride_, [&](int row, float *scratch) { return norm_parts(row, scratch); });
    barrier();
    my_rows(p_.context_, [&](int row) {
      norm_row(m_.feature_norm, p_.branch_ + row * p_.branch_stride_, p_.row_[thread_]);
      store_block_row(m_.layers[0].linears[kQkv], row);
    });
  }

  // Packs the thread's row of scratch for attention, as row `row` of the panel.
  void store_block_row(const PackedLinear &qkv, int row) const {
    const int form = m_.form_of(qkv);
    m_.kernels[form].store_row(p_.block_input_[form], row, p_.row_[thread_], qkv.padded_inputs);
  }

  // The rows of a draft head: features, fused with whatever else they bring, become the residual stream.
  void enter() {
    const int size = m_.shape.hidden;
    if (!m_.is_beside())
      fuse(rows_, p_.x_, p_.x_stride_, [&](int row, float *scratch) {
        load_embedding(row, scratch);
        std::memcpy(scratch + size, features(row, size), size * sizeof(float));
        std::fill(scratch + 2 * size, scratch + m_.fuse.padded_inputs, 0.f);
        return scratch;
      });
    else if (pass_.true_features)
      fuse(rows_, p_.x_, p_.x_stride_, [&](int row, float *scratch) { return norm_parts(row, scratch); });
    else
      my_rows(rows_, [&](int row) { std::memcpy(x(row), features(row, size), size * sizeof(float)); });
    barrier();
    if (m_.entry != Entry::beside_normed) return;
    my_rows(rows_, [&](int row) { norm_row(m_.feature_norm, x(row), x(row)); });
    barrier();
  }

  const float *features(int row, int size) const { return pass_.inputs + static_cast<size_t>(p_.first_ + row) * size; }

  // Stores what a linear layer computes as rows of floats.
  static auto copy_columns(float *to, size_t stride) {
    return [to, stride](int pair, int row, int rows, const float *out) {
      for (int r = 0; r < rows; ++r)
        std::memcpy(to + (row + r) * stride + pair * kColumns, out + r * kColumns, kColumns * sizeof(float));
    };
  }

  // What layers read beside their stream, of all rows: made of their embeddings, and looked up by their tokens.
  void take_inputs() {
    const PackedLinear &projection = m_.inputs.projection;
    linear(projection, pack_norm(projection, kNoNorm, p_.input_, p_.private_input_[thread_]), rows_,
           copy_columns(p_.given_, p_.given_stride_));
    barrier();
    const HeadstartInputs &of = m_.shape.inputs;
    const float shrunk = 1.f / std::sqrt(static_cast<float>(m_.shape.hidden));
    const float grown = std::sqrt(static_cast<float>(of.size));
    my_rows(rows_, [&](int row) {
      float *const given = p_.given_ + row * p_.given_stride_, *const scratch = p_.row_[thread_];
      float *const looked_up = p_.looked_up_[thread_];
      const int32_t token = pass_.tokens[pass_row(row)];
      m_.inputs.table.read(token < of.tokens ? token : 0, of.count * of.size, false, looked_up);
      for (int input = 0; input < of.count; ++input) {
        float *const to = given + input * of.size;
        for (int k = 0; k < of.size; ++k) scratch[k] = to[k] * shrunk;
        normalise(m_.norm_kind, m_.inputs.norm, m_.shape.norm_eps, scratch, of.size, scratch);
        for (int k = 0; k < of.size; ++k) to[k] = (scratch[k] + looked_up[input * of.size + k] * grown) * kHalfPower;
      }
    });
    barrier();
  }

  // to = the fusing layer over what `source` gives for `rows` rows.
  template <class Source>
  void fuse(int rows, float *to, size_t stride, Source &&source) {
    linear(m_.fuse, pack(m_.fuse, p_.input_, p_.private_input_[thread_], rows, source), rows, copy_columns(to, stride));
  }

  const float *norm_parts(int row, float *scratch) const {
    const int all = m_.shape.features, parts = static_cast<int>(m_.part_norms.size()), size = parts ? all / parts : all;
    float *from = parts ? scratch + m_.widest : scratch;
    std::memcpy(from, features(row, all), all * sizeof(float));
    for (int part = 0; part < parts; ++part)
      normalise(m_.norm_kind, m_.part_norms[part], m_.shape.norm_eps, from + part * size, size, scratch + part * size);
    std::fill(scratch + all, scratch + m_.fuse.padded_inputs, 0.f);
    return scratch;
  }

  // out[0, hidden padded) = x normed, or as it is where the model has no such norm.
  void norm_row(const Norm &norm, const float *from, float *out) const {
    if (norm.present())
      normalise(m_.norm_kind, norm, m_.shape.norm_eps, from, m_.shape.hidden, out);
    else
      std::memmove(out, from, m_.hidden * sizeof(float));
  }

  // Embedding and feature side by side, each normed.
  const float *beside(const Norm &norm, int row, float *scratch) const {
    const int size = m_.shape.hidden;
    load_embedding(row, scratch);
    norm_row(norm, scratch, scratch);
    if (m_.entry == Entry::beside)
      norm_row(m_.feature_norm, x(row), scratch + size);
    else
      std::memcpy(scratch + size, x(row), size * sizeof(float));
    std::fill(scratch + 2 * size, scratch + m_.layers[0].linears[kQkv].padded_inputs, 0.f);
    return scratch;
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

  const Activations &pack_attention_input(const DecoderLayer &layer, int index) {
    const PackedLinear &qkv = layer.linears[kQkv];
    if (m_.entry == Entry::block) {
      my_rows(rows_, [&](int row) {
        norm_row(layer.norms[kAttentionNorm], x(row), p_.row_[thread_]);
        store_block_row(qkv, p_.context_ + row);
      });
      barrier();
      return p_.block_input_[m_.form_of(qkv)];
    }
    if (index > 0 || !m_.is_beside())
      return pack_norm(qkv, layer.norms[kAttentionNorm], p_.input_, p_.private_input_[thread_]);
    return pack(qkv, p_.input_, p_.private_input_[thread_], rows_,
                [&](int row, float *scratch) { return beside(layer.norms[kAttentionNorm], row, scratch); });
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

  void run_layer(const DecoderLayer &layer, int index) {
    const bool narrows = index == pass_.layers - 1 && !p_.finished_.are_all();
    if (layer.is(Mixer::none)) {
      if (narrows && !narrow_between_layers()) return;
      run_channel(layer, index);
      return;
    }
    if (p_.streams_) predict_streams(layer);
    const Activations input = pack_attention_input(layer, index);
    Activations mlp_input;
    const auto pack_beside = [&] {
      if (m_.shape.parallel_residual)
        mlp_input = pack_norm(layer.linears[kUp], layer.norms[kMlpNorm], p_.mlp_input_, p_.private_mlp_input_[thread_]);
    };
    if (!narrows) pack_beside();
    linear(layer.linears[kQkv], input, p_.rows_, copy_columns(p_.qkv_, p_.qkv_stride_),
           queries_from(layer, narrows ? first_of_finished() : p_.context_));
    barrier();
    const bool has_two = layer.is(Mixer::attention_mamba2), keeps_state = m_.keeps_state(layer);
    if (has_two) project_beside(layer, layer.linears[kStateInput], input);
    if (layer.is(Mixer::delta)) project_beside(layer, layer.linears[kRates], input);
    if (keeps_state)
      p_.states_->run(layer, index,
                      {p_.qkv_ + (has_two ? layer.beside : 0), p_.qkv_stride_, places(narrows),
                       has_two ? p_.middle_ : p_.attended_, m_.middle_kind()},
                      thread_, ahead_, p_.deal_, [this] { barrier(); });
    if (keeps_state && !has_two) {
      if (narrows && !narrow()) return;
    } else {
      if (m_.shape.attention_gate) run_gate(layer, input, narrows);
      if (p_.side_) run_side(layer, input);
      prepare_heads(layer);
      if (m_.precision == Precision::fp32)
        store_keys_and_values<float>(layer, index);
      else
        store_keys_and_values<Bf16>(layer, index);
      barrier();
      if (!rows_ || (narrows && !narrow())) return;
      if (p_.latent_) take_queries(layer);
      attend(p_.text_, layer, p_.latent_ ? latent_attention(index, layer, narrows) : attention(layer, index, narrows),
             narrows);
    }
    clear_padding(layer.linears[kOutput], p_.attended_);
    if (has_two) clear_padding(layer.linears[kStateOutput], p_.middle_);
    barrier();
    if (p_.latent_) take_values(layer);
    if (narrows) {
      pack_beside();
      if (m_.shape.parallel_residual && packs_alone(rows_)) barrier();  // others still read x, which is added to next
    }
    const PackedLinear &output = layer.linears[kOutput];
    add_branch(output, pack_quantised(output, p_.attended_), layer.norms[kAttentionPostNorm],
               layer.norms[kAttentionSumNorm]);
    if (has_two)
      add_branch(layer.linears[kStateOutput], pack_quantised(layer.linears[kStateOutput], p_.middle_), kNoNorm,
                 kNoNorm);
    if (m_.shape.cross) run_cross_attention(layer, index, narrows);
    if (p_.side_) add_side();
    if (m_.shape.parallel_residual)
      run_mlp(layer, mlp_input);
    else if (!layer.is(Channel::none))
      run_channel(layer, index);
    if (p_.streams_) correct_streams(layer);
    if (layer.input) run_input(layer);
  }

  // All streams of embeddings, of which the first is there.
  void spread() {
    const ResidualStreams &streams = *p_.streams_;
    for (int stream = 0; stream < streams.others(); ++stream) {
      const PackedLinear &projection = m_.spread[stream];
      linear(projection, pack_norm(projection, kNoNorm, p_.input_, p_.private_input_[thread_]), rows_,
             copy_columns(streams.other(stream), streams.stride()));
      barrier();
    }
    my_rows(rows_, [&](int row) { streams.strengthen(row, x(row)); });
    barrier();
  }

  // x becomes the mean of all streams.
  void merge() {
    const ResidualStreams &streams = *p_.streams_;
    my_rows(rows_, [&](int row) { streams.begin_sum(row, x(row)); });
    for (int stream = 0; stream < streams.others(); ++stream) {
      const PackedLinear &projection = m_.merge[stream];
      linear(projection,
             pack(projection, p_.input_, p_.private_input_[thread_], rows_,
                  [&](int row, float *) { return streams.other(stream, row); }),
             rows_, copy_columns(p_.branch_, p_.branch_stride_));
      barrier();
      my_rows(rows_, [&](int row) { streams.add(row, p_.branch_ + row * p_.branch_stride_, x(row)); });
      barrier();
    }
    my_rows(rows_, [&](int row) { streams.end_sum(x(row)); });
    barrier();
  }

  void predict_streams(const DecoderLayer &layer) {
    my_rows(rows_, [&](int row) { p_.streams_->predict(layer, row, x(row), thread_); });
    barrier();
  }
  void correct_streams(const DecoderLayer &layer) {
    my_rows(rows_, [&](int row) { p_.streams_->correct(layer, row, x(row), thread_); });
    barrier();
  }

  // What the second path gives for all rows: the normed stream, and what two small matrices make of it.
  void run_side(const DecoderLayer &layer, const Activations &input) {
    const PackedLinear &down = layer.linears[kSideDown], &up = layer.linears[kSideUp];
    const bool alike = m_.form_of(down) == m_.form_of(layer.linears[kQkv]);
    const Activations &rows =
        alike ? input : pack_norm(down, layer.norms[kAttentionNorm], p_.input_, p_.private_input_[thread_]);
    linear(down, rows, rows_, [&](int pair, int row, int count, const float *out) {
      for (int r = 0; r < count; ++r)
        for (int h = 0; h < kColumns; h += 16)
          store_activation(m_.middle_kind(), p_.middle_, row + r, pair * kColumns + h, load(out + r * kColumns + h));
    });
    barrier();
    linear(up, pack_quantised(up, p_.middle_), rows_, copy_columns(p_.side_, p_.side_stride_));
    barrier();
    my_rows(rows_, [&](int row) {
      float *const side = p_.side_ + row * p_.side_stride_, *const normed = p_.row_[thread_];
      norm_row(layer.norms[kSideNorm], side, side);
      norm_row(layer.norms[kAttentionNorm], x(row), normed);
      for (int k = 0; k < m_.hidden; k += 16) store(side + k, load(normed + k) + load(side + k));
    });
  }

  void add_side() {
    my_rows(rows_, [&](int row) {
      const float *const side = p_.side_ + panel_rows_[row] * p_.side_stride_;
      for (int k = 0; k < m_.hidden; k += 16)
        store(x(row) + k, (load(x(row) + k) + load(side + k)) * splat(kHalfPower));
    });
    barrier();
  }

  void run_channel(const DecoderLayer &layer, int index) {
    if (layer.experts)
      run_experts(layer, index);
    else
      run_mlp(layer, pack_norm(layer.linears[kUp], layer.norms[kMlpNorm], p_.input_, p_.private_input_[thread_]));
  }

  void run_mlp(const DecoderLayer &layer, const Activations &input) {
    const PackedLinear &down = layer.linears[kDown];
    if (layer.cuts)
      run_cut_up(layer, input);
    else
      run_up(layer, input);
    barrier();
    add_branch(down, pack_quantised(down, p_.middle_), layer.norms[kMlpPostNorm], layer.norms[kMlpSumNorm],
               layer.channel_scale());
  }

  // x = scale * (x + what the layer makes of its input, opened by the stream); of several streams all but the first get
  // it.
  void run_input(const DecoderLayer &layer) {
    const PackedLinear &gate = layer.linears[kInputGate], &output = layer.linears[kInputOutput];
    const int size = m_.shape.inputs.size;
    const std::vector<float> &factors = layer.constants[kStreamScale];
    const auto read = [&](int row, float *scratch) {
      norm_row(kNoNorm, x(row), scratch);
      for (int k = 0; k < static_cast<int>(factors.size()); k += 16)
        store(scratch + k, load(scratch + k) * load(&factors[k]));
      return scratch;
    };
    linear(gate, pack(gate, p_.input_, p_.private_input_[thread_], rows_, read), rows_,
           [&](int pair, int row, int rows, const float *out) {
             for (int r = 0; r < rows; ++r)
               for (int h = 0; h < kColumns; h += 16) {
                 const int column = pair * kColumns + h;
                 const float *const given =
                     p_.given_ + panel_rows_[row + r] * p_.given_stride_ + (layer.input - 1) * size;
                 const Lanes opened = activate(m_.activation, load(out + r * kColumns + h));
                 const Lanes read = column < size ? load_first(given, column, size) : splat(0.f);
                 store_activation(m_.middle_kind(), p_.middle_, row + r, column, opened * read);
               }
           });
    barrier();
    if (!p_.streams_) {
      add_branch(output, pack_quantised(output, p_.middle_), layer.norms[kInputNorm], kNoNorm, layer.scale());
      return;
    }
    linear(output, pack_quantised(output, p_.middle_), rows_, copy_columns(p_.branch_, p_.branch_stride_));
    barrier();
    my_rows(rows_, [&](int row) {
      float *const branch = p_.branch_ + row * p_.branch_stride_;
      norm_row(layer.norms[kInputNorm], branch, branch);
      p_.streams_->add_to_others(row, branch);
    });
    barrier();
  }

  // Behind what a mixer leaves for its output projection: other layers' mixers may leave more.
  void clear_padding(const PackedLinear &output, const Activations &left) const {
    my_rows(rows_, [&](int row) {
      for (int k = round_up(output.inputs, 16); k < output.padded_inputs; k += 16)
        store_activation(m_.middle_kind(), left, row, k, splat(0.f));
    });
  }

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

  // x = scale * (x + what the experts give), normed first where the model has a post norm.
  void run_experts(const DecoderLayer &layer, int index) {
    const float scale = layer.channel_scale();
    const PackedLinear &up = layer.linears[kUp], &down = layer.linears[kDown];
    const bool shares = up.pairs > 0;
    if (shares) {
      run_up(layer, pack_norm(up, layer.norms[kMlpNorm], p_.input_, p_.private_input_[thread_]));
      barrier();
      linear(down, pack_quantised(down, p_.middle_), rows_, copy_columns(p_.branch_, p_.branch_stride_));
    }
    p_.experts_->run(
        layer, index, rows_, thread_, ahead_, p_.deal_,
        [&](NormIndex norm, int row, float *out) { norm_row(layer.norms[norm], x(row), out); }, [this] { barrier(); },
        [&] { read_on_from(index + 1); });
    if (layer.is(Channel::mlp_experts))
      my_rows(rows_, [&](int row) { join_experts(layer, row); });
    else
      add_experts(layer.norms[kMlpPostNorm], shares, scale);
    barrier();
    const Norm &post_norm = layer.norms[kMlpPostNorm];
    if (!post_norm.present() && !layer.is(Channel::mlp_experts)) return;
    my_rows(rows_, [&](int row) {
      add_normed_branch(post_norm, row);
      if (scale != 1.f) scale_row(x(row), scale);
    });
    barrier();
  }

  // What all experts give goes to the stream or, where a norm comes before, to the branch.
  void add_experts(const Norm &post_norm, bool shares, float scale) {
    const ExpertsChannel &experts = *p_.experts_;
    const int64_t parts = m_.hidden / 16, all = rows_ * parts;
    for (int64_t i = all * thread_ / threads_; i < all * (thread_ + 1) / threads_; ++i) {
      const int row = static_cast<int>(i / parts), k = static_cast<int>(i % parts) * 16;
      float *const branch = p_.branch_ + row * p_.branch_stride_ + k;
      Lanes sum = experts.sum(row, k, thread_);
      if (shares) sum = sum + load(branch) * experts.shared_weight(row);
      if (post_norm.present())
        store(branch, sum);
      else
        store(x(row) + k, (load(x(row) + k) + sum) * splat(scale));
    }
  }

  // The branch of a row becomes the sum of MLP and experts, each normed.
  void join_experts(const DecoderLayer &layer, int row) const {
    float *const dense = p_.branch_ + row * p_.branch_stride_, *const mixed = p_.row_[thread_];
    for (int k = 0; k < m_.hidden; k += 16) store(mixed + k, p_.experts_->sum(row, k, thread_));
    norm_row(layer.norms[kExpertsPostNorm], mixed, mixed);
    norm_row(layer.norms[kDensePostNorm], dense, dense);
    for (int k = 0; k < m_.hidden; k += 16) store(dense + k, load(dense + k) + load(mixed + k));
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

  void run_up(const DecoderLayer &layer, const Activations &input) {
    const ElementKind kind = m_.middle_kind();
    const float *const curve = layer.constants[kCurve].data();
    const auto activated = [&](Lanes x) {
      return m_.activation == Activation::xielu ? xielu(curve, x) : activate(m_.activation, x);
    };
    linear(layer.linears[kUp], input, rows_, [&](int pair, int row, int rows, const float *out) {
      for (int r = 0; r < rows; ++r) {
        const Lanes left = activated(load(out + r * kColumns)), right = load(out + r * kColumns + 16);
        if (m_.shape.gated) {
          store_activation(kind, p_.middle_, row + r, pair * 16, left * right);
        } else {
          store_activation(kind, p_.middle_, row + r, pair * kColumns, left);
          store_activation(kind, p_.middle_, row + r, pair * kColumns + 16, activated(right));
        }
      }
    });
  }

  // The same where gates count from so far above their mean on: all of a row's have to be there.
  void run_cut_up(const DecoderLayer &layer, const Activations &input) {
    const int size = layer.mlp, padded = static_cast<int>(layer.linears[kDown].padded_inputs);
    linear(layer.linears[kUp], input, rows_, [&](int pair, int row, int rows, const float *out) {
      for (int r = 0; r < rows; ++r) {
        float *const to = p_.raised_ + (row + r) * p_.raised_stride_ + pair * 16;
        store(to, load(out + r * kColumns)), store(to + padded, load(out + r * kColumns + 16));
      }
    });
    barrier();
    my_rows(rows_, [&](int row) {
      const float *const gates = p_.raised_ + row * p_.raised_stride_;
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
        store_activation(m_.middle_kind(), p_.middle_, row, k,
                         activate(m_.activation, gate) * load(gates + padded + k));
      }
    });
  }

  // A second projection of what the first one reads: that of the mixer beside attention, or the delta rule's rates.
  void project_beside(const DecoderLayer &layer, const PackedLinear &projection, const Activations &input) {
    linear(projection, input_beside(layer, projection, input), p_.rows_,
           copy_columns(p_.qkv_ + layer.beside, p_.qkv_stride_));
    barrier();
  }

  // The gate of what heads will see; it reads what queries are made of.
  void run_gate(const DecoderLayer &layer, const Activations &input, bool narrows) {
    const PackedLinear &gate = layer.linears[kGate];
    linear(gate, input_beside(layer, gate, input), rows_, copy_columns(p_.gates_, p_.gate_stride_),
           narrows ? WantedFrom{gate.pairs, first_of_finished() / kRowBlock * kRowBlock} : WantedFrom{});
    barrier();
  }

  // The rows that a layer's first product reads, as another matrix of it reads them.
  const Activations &input_beside(const DecoderLayer &layer, const PackedLinear &other, const Activations &input) {
    if (m_.form_of(other) == m_.form_of(layer.linears[kQkv])) return input;
    return pack_norm(other, layer.norms[kAttentionNorm], p_.input_, p_.private_input_[thread_]);
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

  const RopeTable *rope_of(const DecoderLayer &layer) const { return layer.rope < 0 ? nullptr : &m_.ropes[layer.rope]; }

  // [row behind the context rows] its row at work.
  const int32_t *places(bool narrowed) const {
    return narrowed ? p_.finished_.places() + p_.context_ : p_.all_rows_.data();
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

  void copy_taps(int layer) {
    for (int i = 0; i < pass_.taps; ++i)
      if (pass_.tap_layers[i] == layer) my_rows(rows_, [&](int row) { copy_tap(i, row, x(row), m_.shape.tap_scale); });
  }
  void copy_final_taps() {
    for (int i = 0; i < pass_.taps; ++i)
      if (pass_.tap_layers[i] == -1)
        my_rows(rows_, [&](int row) {
          float *scratch = p_.row_[thread_];
          norm_row(m_.final_norm, x(row), scratch);
          copy_tap(i, row, scratch, 1.f);
        });
  }
  void copy_tap(int tap, int row, const float *from, float scale) {
    const size_t size = m_.shape.hidden;
    float *to = pass_.tap_rows[tap] + (p_.first_ + panel_rows_[row]) * size;
    for (size_t k = 0; k < size; ++k) to[k] = from[k] * scale;
  }

  PassRunner &p_;
  Decoder &m_;
  const HeadstartPass &pass_;
  const int thread_, threads_;
  int rows_;                   // that are at work
  const int32_t *panel_rows_;  // [row] its place in the panel
  int phase_ = 0;
  ReadAhead ahead_;
};
