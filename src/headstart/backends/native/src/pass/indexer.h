// Which tokens rows of latent attention see (see headstart/backends/torch/indexer.py), or which compressed keys: those
// whose small keys give most with the row's own queries, each head's part counted where it is above 0; of equal ones
// the earlier.
//
// A score is one chain over dimensions for each head, then one over heads, and belongs to a slot; a row's choice is
// made of those along its path. So it is the same in every pass.
#pragma once
#include <algorithm>
#include <functional>
#include <vector>

#include "pass/attention.h"
#include "pass/decoder.h"
#include "pass/output_head.h"
#include "pass/token_mixture.h"

class Indexer {
 public:
  explicit Indexer(const Decoder &model) : m_(model), of_(indexer_of(model.shape)) {
    const int widest = of_.heads * of_.dim + kPadding;
    for (int t = 0; t < m_.shape.threads; ++t) {
      key_.push_back(floats(of_.dim + kPadding));
      page_.push_back(floats((of_.dim + kTileEntries) * kPageKeys));
      given_.push_back(floats(2 * of_.dim * std::max(of_.pool, 1)));
    }
    if (pools()) mixed_ = floats(static_cast<size_t>(of_.dim) * kPanelRows);
    queries_.stride = widest, queries_.data = floats(static_cast<size_t>(widest) * kPanelRows);
    choice_.some.resize(kPanelRows);
  }

  static HeadstartIndexer indexer_of(const HeadstartShape &shape) {
    if (shape.indexer.heads) return shape.indexer;
    return {shape.compressed.index_heads, shape.compressed.index_dim, 0, 1, 1, 0.f};
  }

  void begin_pass(const PassLayout &layout) {
    int longest = 0, slots = 0;
    for (const SequenceLayout &s : layout.sequences()) {
      slots = std::max(slots, s.slot(s.end_row));
      for (int row = s.first_row; row < s.end_row; ++row) longest = std::max(longest, layout.positions()[row] + 1);
    }
    is_needed_ = std::any_of(m_.layers.begin(), m_.layers.end(),
                             [&](const DecoderLayer &layer) { return chooses(layer, longest - 1); });
    if (!is_needed_) return;
    const size_t stride = round_up(slots, kChunkKeys) + 16;
    if (stride <= choice_.stride) return;
    choice_.stride = stride;
    scores_ = AlignedBuffer(kPanelRows * stride * sizeof(float));
    choice_.hidden = scores_.as<float>();
    path_.assign(m_.shape.threads, {});
  }

  void begin_panel(int first) {
    choice_.first = first, has_chosen_ = false;
    std::fill(choice_.some.begin(), choice_.some.end(), false);
  }

  // What the latest layer that chooses has chosen; null: none has.
  const ChosenTokens *chosen() const { return has_chosen_ ? &choice_ : nullptr; }

  // A row's key, of what the layer's first product gave.
  const float *key(const DecoderLayer &layer, const RopeTable *rope, int position, const float *from,
                   int thread) const {
    normalise(NormKind::layer, layer.norms[kIndexNorm], of_.norm_eps, from, of_.dim, key_[thread]);
    turn(rope, position, key_[thread]);
    return key_[thread];
  }

  // Whether several tokens of latent attention have one key.
  bool pools() const { return of_.pool > 1; }
  // What a row gives to such a key: its own, and its weights. `from` holds both as the layer's first product gave them.
  const float *given(const DecoderLayer &layer, const RopeTable *rope, int position, const float *from,
                     int thread) const {
    float *const to = given_[thread];
    std::memcpy(to, key(layer, rope, position, from, thread), of_.dim * sizeof(float));
    std::memcpy(to + of_.dim, from + of_.dim, of_.dim * sizeof(float));
    return to;
  }
  // The key that a row closes, or zeros: `place(position)` as in CompressedAttention.
  template <class Cell, class Place>
  void close(const KvCache &cache, const DecoderLayer &layer, int index, int position, int row, int thread,
             Place &&place) const {
    float *const to = mixed_ + static_cast<size_t>(row) * of_.dim, *const given = given_[thread];
    if ((position + 1) % of_.pool) return void(std::fill_n(to, of_.dim, 0.f));
    for (int i = 0; i < of_.pool; ++i) {
      const auto [page, key] = place(position + 1 - of_.pool + i);
      cache.read_given<Cell>(index, page, key, given + i * 2 * of_.dim);
    }
    TokenMixture{of_.pool, false, 2 * of_.dim}.mix(layer.constants[kIndexPlaces].data(), given, of_.pool, of_.dim, to);
  }
  const float *mixed(int row) const { return mixed_ + static_cast<size_t>(row) * of_.dim; }

  // One thread's part of the choice of the rows at work. `queries(row)` are what they are before they are turned,
  // `shares(row)` what heads count for; `meet()` is a barrier.
  template <class Cell, class Queries, class Shares, class Meet>
  void choose(const KvCache &cache, const DecoderLayer &of_layer, int layer, const PassLayout &layout,
              const RopeTable *rope, const int32_t *rows, int count, int thread, Queries &&queries, Shares &&shares,
              Meet &&meet) {
    if (!is_needed_) return;
    const int threads = m_.shape.threads, *const positions = layout.positions();
    const auto pass_row = [&](int row) { return choice_.first + rows[row]; };
    const auto chooses = [&](int row) { return this->chooses(of_layer, positions[pass_row(row)]); };
    for (int row = thread; row < count; row += threads)
      if (chooses(row)) turn_queries<Cell>(rope, layout.text_positions()[pass_row(row)], queries(row), row);
    meet();
    for (int row = 0, next; row < count; row = next) {
      const SequenceLayout &s = layout.sequence_of(pass_row(row));
      for (next = row; next < count && pass_row(next) < s.end_row;) ++next;
      const int pages = ceil_div(s.slot(pass_row(next - 1)) + 1, kPageKeys);
      for (int page = thread; page < pages; page += threads) {
        const Cell *const keys = cache.read_index(layer, layout.page(s, page), reinterpret_cast<Cell *>(page_[thread]));
        for (int of = row; of < next; ++of)
          if (chooses(of)) score<Cell>(keys, of, shares(of), thread, scores(rows[of]) + page * kPageKeys);
      }
    }
    meet();
    for (int row = thread; row < count; row += threads)
      if (chooses(row)) hide(of_layer, layout, pass_row(row), scores(rows[row]), path_[thread]);
    meet();
    if (thread == 0) {
      has_chosen_ = true;
      for (int row = 0; row < count; ++row) choice_.some[rows[row]] = chooses(row);
    }
    meet();
  }

 private:
  template <class Cell>
  using Query = typename AttentionScratch<Cell>::Query;

  // How many a row sees, and of how many tokens each is made.
  int chosen_in(const DecoderLayer &layer) const { return layer.chosen ? layer.chosen : of_.chosen; }
  int ratio_in(const DecoderLayer &layer) const { return std::max({layer.ratio, of_.pool, 1}); }
  // Whether a row at this position does not see all.
  bool chooses(const DecoderLayer &layer, int position) const {
    return (layer.chooses || layer.chosen) && (position + 1) / ratio_in(layer) > chosen_in(layer);
  }

  float *floats(size_t count) { return memory_.emplace_back(count * sizeof(float)).as<float>(); }
  float *scores(int panel_row) const { return scores_.as<float>() + panel_row * choice_.stride; }
  template <class Cell>
  Query<Cell> *turned(int row) const {
    return reinterpret_cast<Query<Cell> *>(queries_.data + row * queries_.stride);
  }

  void turn(const RopeTable *rope, int position, float *head) const {
    if (rope && m_.shape.compressed.q_rank) return turn_pairs(*rope, position, head, of_.dim);
    if (rope) rope->turn(position, head + (of_.turns_last ? of_.dim - m_.shape.latent.rope_dim : 0));
  }

  template <class Cell>
  void turn_queries(const RopeTable *rope, int position, const float *from, int row) const {
    alignas(64) float head[HeadRotation::kMostDimensions];
    for (int h = 0; h < of_.heads; ++h) {
      std::memcpy(head, from + h * of_.dim, of_.dim * sizeof(float));
      turn(rope, position, head);
      for (int k = 0; k < of_.dim; k += 16) store_query(turned<Cell>(row) + h * of_.dim + k, load(head + k));
    }
  }

  // Of the keys of one page.
  template <class Cell>
  void score(const Cell *keys, int row, const float *shares, int thread, float *out) const {
    float *const products = page_[thread] + of_.dim * kPageKeys;
    Lanes lower = splat(0.f), upper = splat(0.f);
    for (int first = 0; first < of_.heads; first += kTileEntries) {
      const int heads = std::min(of_.heads - first, kTileEntries);
      multiply_tiles<Cell>(heads, turned<Cell>(row) + first * of_.dim, of_.dim, Stream<Cell>{keys}, of_.dim / 32,
                           products, kPageKeys, false);
      for (int h = 0; h < heads; ++h) {
        const Lanes share = splat(shares[first + h]);
        lower = fma(share, max(splat(0.f), load(products + h * kPageKeys)), lower);
        upper = fma(share, max(splat(0.f), load(products + h * kPageKeys + 16)), upper);
      }
    }
    store(out, lower), store(out + 16, upper);
  }

  // From a row's scores by slot to what hides tokens by position. Keys of several tokens stand with the last of these:
  // compressed keys are seen there, and of others all their tokens, and those behind the last key.
  void hide(const DecoderLayer &layer, const PassLayout &layout, int row, float *scores,
            std::vector<float> &path) const {
    const SequenceLayout &s = layout.sequence_of(row);
    const int end = layout.positions()[row] + 1, ratio = ratio_in(layer), keys = end / ratio;
    const int32_t *const slots = s.straight ? nullptr : layout.path(row);
    path.resize(2 * keys);
    for (int i = 0; i < keys; ++i) {
      const int position = (i + 1) * ratio - 1;
      const float score = scores[slots && position >= s.cached ? slots[position - s.cached] : position];
      path[i] = path[keys + i] = score == score ? score : -INFINITY;
    }
    const auto sorted = path.begin() + keys, last = sorted + chosen_in(layer) - 1;
    std::nth_element(sorted, last, path.end(), std::greater<float>());
    const float least = *last;
    int room =
        chosen_in(layer) - static_cast<int>(std::count_if(path.begin(), sorted, [&](float x) { return x > least; }));
    if (!pools()) std::fill(scores, scores + end, -INFINITY);
    for (int i = 0; i < keys; ++i) {
      const bool sees = path[i] > least || (path[i] == least && room-- > 0);
      std::fill(scores + (pools() ? i * ratio : (i + 1) * ratio - 1), scores + (i + 1) * ratio, sees ? 0.f : -INFINITY);
    }
    if (pools()) std::fill(scores + keys * ratio, scores + end, 0.f);
    std::fill(scores + end, scores + round_up(end, 16), 0.f);
  }

  struct Rows {
    float *data;
    size_t stride;
  };

  const Decoder &m_;
  const HeadstartIndexer of_;
  std::vector<AlignedBuffer> memory_;
  std::vector<float *> key_, page_, given_;  // [thread]
  float *mixed_ = nullptr;                   // [panel row]
  Rows queries_;                             // [row at work]
  AlignedBuffer scores_;                     // [panel row] by slot, then what hides tokens by position
  std::vector<std::vector<float>> path_;     // [thread]
  ChosenTokens choice_;
  bool is_needed_ = false, has_chosen_ = false;
};
