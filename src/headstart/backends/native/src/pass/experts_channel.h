// The mixture of experts of a layer, for the rows of a panel. An expert's weights are read once for all of the panel's
// rows that call it, and threads share each matrix as they share any other.
#pragma once
#include <array>
#include <vector>

#include "pass/decoder.h"
#include "pass/output_head.h"

class ExpertsChannel {
 public:
  explicit ExpertsChannel(const Decoder &model)
      : m_(model), of_(model.shape.experts), router_kernel_(linear_kernel(Precision::fp32)) {
    const int threads = m_.shape.threads, places = kPanelRows * of_.used + 16;  // kernels read rows behind the last
    const size_t widest = std::max<size_t>(m_.hidden, m_.expert_size);
    normed_ = element_rows(ElementKind::fp32, memory_, kPanelRows + 16, m_.hidden);
    for (int form = 0; form < Decoder::kForms; ++form)
      if (m_.has_form(form))
        input_[form] = packed_rows(m_.precision_of_form(form), m_.kernels[form].element, memory_, places, widest);
    middle_ = element_rows(m_.middle_kind(), memory_, places, m_.expert_size);
    logits_stride_ = round_up(of_.count + of_.idle + of_.shared_gate, kColumns);
    logits_ = floats(static_cast<size_t>(kPanelRows) * logits_stride_);
    const auto is_apart = [](const DecoderLayer &layer) { return layer.experts && layer.experts->apart(); };
    if (std::any_of(m_.layers.begin(), m_.layers.end(), is_apart))
      raised_ = floats(2 * static_cast<size_t>(places) * m_.expert_size);
    given_stride_ = m_.hidden + 16;
    given_ = floats(places * given_stride_);
    calls_.resize(static_cast<size_t>(kPanelRows) * of_.used);
    groups_.resize(threads), ends_.resize(threads);
    for (int t = 0; t < threads; ++t) choices_.emplace_back(of_), scaled_.push_back(floats(m_.hidden));
  }

  void begin_pass() { called_.assign(static_cast<size_t>(m_.shape.layers) * of_.count, 0); }

  // Distinct experts that the pass has called in the first `layers`, on average over those that have any.
  double called(int layers) const {
    int with = 0;
    for (int layer = 0; layer < layers; ++layer) with += m_.layers[layer].experts != nullptr;
    const auto end = called_.begin() + static_cast<ptrdiff_t>(layers) * of_.count;
    return with ? static_cast<double>(std::count(called_.begin(), end, 1)) / with : 0.0;
  }

  // One thread's part. `normed(norm, row, out)` writes a row as one of the layer's norms leaves it, padded; `meet()` is
  // a barrier, and the last thing done. `token(row)` is what it reads, `then()` says what is read next.
  template <class Normed, class Token, class Meet, class Then>
  void run(const DecoderLayer &of, int index, int rows, int thread, ReadAhead &ahead, PairDeal &deal, Normed &&normed,
           Token &&token, Meet &&meet, Then &&then) {
    const ExpertsLayer &layer = *of.experts;
    const int threads = m_.shape.threads;
    const bool beside = of.is(Channel::mlp_experts);  // then router and experts have norms of their own
    for (int row = thread; row < rows; row += threads) normed(beside ? kRouterNorm : kMlpNorm, row, floats_of(row));
    meet();
    run_linear(router_kernel_, layer.router, normed_, rows, thread, ahead, deal,
               [&](int pair, int row, int count, const float *out) {
                 for (int r = 0; r < count; ++r)
                   std::memcpy(logits(row + r) + pair * kColumns, out + r * kColumns, kColumns * sizeof(float));
               });
    meet();
    for (int row = thread; row < rows; row += threads) {
      ExpertCall *const calls = &calls_[static_cast<size_t>(row) * of_.used];
      const float *const table = of.by_token ? &of.constants[kExpertTable][token(row) * of_.used] : nullptr;
      choices_[thread].choose(logits(row), layer.correction, table, calls);
      const std::vector<float> &scales = of.constants[kExpertScales];
      for (int i = 0; i < of_.used && !scales.empty(); ++i) calls[i].weight *= scales[calls[i].expert];
      if (beside) normed(kExpertsNorm, row, floats_of(row));
    }
    meet();
    ExpertGroups &groups = groups_[thread];
    groups.build(calls_.data(), rows, of_);
    if (thread == 0)
      for (const ExpertGroups::Group &group : groups.all()) called_[index * of_.count + group.expert] = 1;
    const std::vector<PackedLinear> &ups = layer.linears[kExpertUp], &downs = layer.linears[kExpertDown];
    if (groups.all().size()) expect(ups, groups.all()[0], thread, ahead);
    pack(ups, thread, [&](int place) { return input_of(place, thread); });
    meet();
    multiply(ups, nullptr, thread, ahead, deal,
             [&](const PackedLinear &up, int place, int pair, int row, int count, const float *out) {
               for (int r = 0; r < count; ++r) store_middle(of, up, place + row + r, pair, out + r * kColumns);
             });
    if (groups.all().size()) expect(downs, groups.all()[0], thread, ahead);
    meet();
    if (layer.apart()) {
      join_raised(of, ups, thread);
      meet();
    }
    const bool direct = m_.middle_kind() == m_.kernel.element;
    if (!direct) {
      pack(downs, thread, [&](int place) { return reinterpret_cast<const float *>(middle_.row(place)); });
      meet();
    }
    multiply(downs, direct ? &middle_ : nullptr, thread, ahead, deal,
             [&](const PackedLinear &, int place, int pair, int row, int count, const float *out) {
               for (int r = 0; r < count; ++r)
                 std::memcpy(given_ + (place + row + r) * given_stride_ + pair * kColumns, out + r * kColumns,
                             kColumns * sizeof(float));
             });
    then();
    meet();
  }

  // What a row's experts give it together, sixteen columns of it, added up by number of the expert.
  Lanes sum(int row, int column, int thread) const {
    Lanes all = splat(0.f);
    for (int i = row * of_.used; i < (row + 1) * of_.used; ++i) {
      const float *const from =
          calls_[i].expert < of_.count ? given_ + groups_[thread].place(i) * given_stride_ : floats_of(row);
      const Lanes given = load(from + column);
      all = all + (of_.scales_input ? given : given * splat(calls_[i].weight));
    }
    return all;
  }

  // What the shared expert's share of a row is multiplied by.
  Lanes shared_weight(int row) const {
    return of_.shared_gate ? sigmoid(splat(logits(row)[of_.count + of_.idle])) : splat(1.f);
  }

 private:
  using Group = ExpertGroups::Group;

  float *floats(size_t count) { return memory_.emplace_back(count * sizeof(float)).as<float>(); }
  float *floats_of(int row) const { return reinterpret_cast<float *>(normed_.row(row)); }
  float *logits(int row) const { return logits_ + static_cast<size_t>(row) * logits_stride_; }

  // What a place's expert reads.
  const float *input_of(int place, int thread) {
    const int call = groups_[thread].call(place);
    const float *x = floats_of(call / of_.used);
    if (!of_.scales_input) return x;
    for (int k = 0; k < m_.hidden; k += 16) store(scaled_[thread] + k, load(x + k) * splat(calls_[call].weight));
    return scaled_[thread];
  }

  // One row of a pair of columns of the experts' first product, on its way to the second one.
  void store_middle(const HeadstartLayer &of, const PackedLinear &up, int place, int pair, const float *out) const {
    const auto put = [&](int column, Lanes x) { store_activation(m_.middle_kind(), middle_, place, column, x); };
    if (up.apart) {
      std::memcpy(raised_of(place) + pair * kColumns, out, kColumns * sizeof(float));
    } else if (of_.gated) {
      put(pair * 16, combine(of, load(out), load(out + 16)));
    } else {
      for (int h = 0; h < kColumns; h += 16) put(pair * kColumns + h, activate(m_.activation, load(out + h)));
    }
  }

  // The same of gates and ups that did not come together: this thread's share of the places.
  void join_raised(const HeadstartLayer &of, const std::vector<PackedLinear> &ups, int thread) const {
    for (const Group &group : groups_[thread].all())
      for (int place = group.first; place < group.first + group.rows && ups[group.expert].apart; ++place) {
        const float *const gates = raised_of(place);
        for (int k = 16 * thread; k < m_.expert_size; k += 16 * m_.shape.threads)
          store_activation(m_.middle_kind(), middle_, place, k,
                           combine(of, load(gates + k), load(gates + m_.expert_size + k)));
      }
  }

  float *raised_of(int place) const { return raised_ + 2 * static_cast<size_t>(place) * m_.expert_size; }

  Lanes combine(const HeadstartLayer &of, Lanes gate, Lanes up) const {
    if (of_.clamp == 0.f) {
      gate = activate(m_.activation, gate);
      if (of.expert_limit != 0.f) cut_off(of.expert_gate_limit, of.expert_limit, gate, up);
      return gate * up;
    }
    constexpr float kSlope = 1.702f;
    gate = min(splat(of_.clamp), gate);  // what is no number stands second, and stays
    up = max(splat(-of_.clamp), min(splat(of_.clamp), up));
    return (up + splat(1.f)) * gate * sigmoid(gate * splat(kSlope));
  }

  // Packs this thread's share of the places for their experts' matrices.
  template <class Source>
  void pack(const std::vector<PackedLinear> &linears, int thread, Source &&source) {
    const ExpertGroups &groups = groups_[thread];
    const int64_t places = groups.places();
    const int first = static_cast<int>(places * thread / m_.shape.threads);
    const int end = static_cast<int>(places * (thread + 1) / m_.shape.threads);
    for (const Group &group : groups.all()) {
      const PackedLinear &linear = linears[group.expert];
      const int form = m_.form_of(linear);
      for (int place = std::max(first, group.first); place < std::min(end, group.first + group.rows); ++place)
        m_.kernels[form].store_row(input_[form], place, source(place), linear.padded_inputs);
    }
  }

  // Has memory asked for a thread's share of a group's matrix next.
  static void expect(const std::vector<PackedLinear> &linears, const Group &group, int thread, ReadAhead &ahead) {
    const PackedLinear &linear = linears[group.expert];
    ahead.begin(linear.weights[thread], linear.weights[thread] + run_bytes(linear, thread));
  }

  // A thread's part of all groups' products with `input`, or with what was packed for them, and what it takes over from
  // others: the runs of all called matrices are one to the deal. `finish(linear, place, pair, row, rows, out)`: rows
  // from `place` on.
  template <class Finish>
  void multiply(const std::vector<PackedLinear> &linears, const Activations *input, int thread, ReadAhead &ahead,
                PairDeal &deal, Finish &&finish) {
    const std::vector<Group> &groups = groups_[thread].all();
    if (groups.empty()) return;  // idle ones alone were called
    const auto pairs_of = [&](const Group &group, int owner) {
      const PackedLinear &linear = linears[group.expert];
      return linear.first_pair[owner + 1] - linear.first_pair[owner];
    };
    constexpr int kOut = kRowBlock * kColumns;
    alignas(64) float out[2 * kOut];
    const auto run = [&](const Group &group, int owner, int index, int count, ReadAhead &reading) {
      const PackedLinear &linear = linears[group.expert];
      const int form = m_.form_of(linear), pair = linear.first_pair[owner] + index;
      const LinearKernel &kernel = m_.kernels[form];
      const Activations rows = (input ? *input : input_[form]).from(group.first);
      const auto done = [&](int of, int row, int n, float *products) {
        add_bias(linear, of, n, products);
        finish(linear, group.first, of, row, n, static_cast<const float *>(products));
      };
      if (count == 2 && kernel.multiply_two && group.rows <= kFewRows) {
        kernel.multiply_two(linear, pair, linear.pair_weights(owner, pair), rows, group.rows, reading, out);
        for (int which = 0; which < 2; ++which) done(pair + which, 0, group.rows, out + which * kOut);
        return;
      }
      for (int i = pair; i < pair + count; ++i)
        run_pair(kernel, linear, i, linear.pair_weights(owner, i), rows, 0, group.rows, reading, out, done);
    };

    deal.begin(thread);
    std::vector<int> &ends = ends_[thread];
    ends.clear();
    for (const Group &group : groups) ends.push_back((ends.empty() ? 0 : ends.back()) + pairs_of(group, thread));
    const int most = m_.kernels[m_.form_of(linears[groups[0].expert])].multiply_two ? 2 : 1;
    size_t at = 0, asked = 0;
    for (PairDeal::Run next; (next = deal.take(thread, ends.back(), most)).count > 0;)
      for (int i = next.first, last = next.first + next.count; i < last;) {
        while (i >= ends[at]) ++at;
        if (at != asked) expect(linears, groups[at], thread, ahead), asked = at;
        const int begin = at ? ends[at - 1] : 0, count = std::min(last, ends[at]) - i;
        if (i == begin && at + 1 < groups.size()) ask_beginning(linears[groups[at + 1].expert], thread);
        run(groups[at], thread, i - begin, count, ahead);
        i += count;
      }
    for (int step = 1; step < deal.threads(); ++step) {
      const int other = (thread + step) % deal.threads();
      int pairs = 0;
      for (const Group &group : groups) pairs += pairs_of(group, other);
      for (int i; (i = deal.take_over(thread, other, pairs)) >= 0;) {
        size_t group = 0;
        while (i >= pairs_of(groups[group], other)) i -= pairs_of(groups[group++], other);
        const PackedLinear &linear = linears[groups[group].expert];
        const int pair = linear.first_pair[other] + i;
        ReadAhead once(linear.pair_weights(other, pair), linear.bytes_of(pair));
        run(groups[group], other, i, 1, once);
      }
    }
  }

  // The next group's weights stand elsewhere: what is asked for at a distance ends with this one's.
  static HEADSTART_PREFETCHES void ask_beginning(const PackedLinear &linear, int thread) {
    prefetch_lines(linear.weights[thread],
                   static_cast<int>(std::min<size_t>(run_bytes(linear, thread), kPrefetchBytes)));
  }

  const Decoder &m_;
  const HeadstartExperts &of_;
  const LinearKernel router_kernel_;
  std::vector<AlignedBuffer> memory_;
  Activations normed_, middle_;                     // [panel row], in floats; [place], what the activation leaves
  std::array<Activations, Decoder::kForms> input_;  // [place], as the matrices at hand read them
  float *logits_, *given_;                          // [panel row][count]; [place][hidden], what the experts give
  float *raised_ = nullptr;                         // [place][2][size], where gates come apart from ups
  size_t logits_stride_, given_stride_;
  std::vector<ExpertCall> calls_;  // [panel row][used]
  std::vector<char> called_;       // [layer][expert], by any row of the pass
  // Each thread's own: the same groups everywhere, [group] end of its pairs, and scratch.
  std::vector<ExpertGroups> groups_;
  std::vector<std::vector<int>> ends_;
  std::vector<ExpertChoice> choices_;
  std::vector<float *> scaled_;
};
