// Attention over the paged cache, reduced by logical position and never by slot.
//
// A row's result is the same bits in every pass: its scores are one chain over dimensions each, its softmax runs in
// chunks of 512 positions counted from 0, and its values are summed in order of position. Rows of a tree share the
// pages below the sequence's cached length; from the page that holds this length on, scores are computed by slot and
// put in path order, and values are collected in path order before they are multiplied. Keys that a row must not see
// get weight zero and finite values, and adding zero changes no bit.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/kernel.h"
#include "pass/attention_scratch.h"
#include "pass/distance_bias.h"
#include "pass/kv_cache.h"
#include "pass/layout.h"
#include "pass/rotation.h"

static inline void store_query(float *p, Lanes a) { store(p, a); }
static inline void store_query(Bf16 *p, Lanes a) { store_bf16(p, a); }

// Cache lines of weights asked of memory for each page that is scored and each row of scores: more make attention wait.
constexpr int kLinesAPage = 16, kLinesAnEntry = 16;

// Queries grow with their position, see headstart.models.config.QueryGrowth.
struct QueryGrowth {
  float weight = 0.f;          // 0: they do not
  int trained = 1, first = 0;  // the number of the first position

  float at(int position) const {
    const int times = (position + first) / trained;
    return times ? 1.f + weight * std::log1p(static_cast<float>(times)) : 1.f;
  }
};

// What an indexer lets rows see: [row of the panel][stride], by position 0 or -inf.
struct ChosenTokens {
  int first = 0;  // row of the pass
  const float *hidden = nullptr;
  size_t stride = 0;
  std::vector<bool> some;  // [row of the panel] whether it sees fewer than all

  // Null: the row sees all.
  const float *of(int row) const { return some[row - first] ? hidden + (row - first) * stride : nullptr; }
};

struct AttentionLayer {
  const KvCache &cache;
  const PassLayout &layout;
  const int32_t *positions, *sights;             // [pass row] its place; the last one that it sees
  int layer, window, chunk, key_dim, value_dim;  // window and chunk: 0 for none
  float scale, softcap;
  const DistanceBias &bias;
  HeadRotation rotation;  // of queries
  const float *queries;   // as the product left them
  size_t query_stride;
  const int32_t *query_places;  // [row r of the pass - first_row] its row of `queries`
  int first_row;
  Activations out;        // column head * value_dim
  const int32_t *places;  // [row r of the pass - first_row] its row of `out`
  ElementKind out_kind;
  ReadAhead &ahead;
  const float *sinks = nullptr;  // [head], or null
  const float *gates = nullptr;  // [row r of the pass - first_row][gate_stride] in the order of `queries`, or null:
  size_t gate_stride = 0;        // what is seen is multiplied by their sigmoids
  bool gates_heads = false;      // one for each head
  QueryGrowth growth{};
  float value_scale = 1.f;  // of what is seen
  const ChosenTokens *chosen = nullptr;
  // Of a layer with compressed keys: what hides tokens that close none, by position; the chosen ones are among those.
  const float *closing = nullptr;
};

template <class Cell>
class AttentionTile {
 public:
  // `ask`: as in AttentionPart.
  AttentionTile(const AttentionLayer &layer, const AttentionItem &item, int ask, AttentionScratch<Cell> &scratch)
      : layer_(layer),
        item_(item),
        ask_(ask),
        s_(scratch),
        sequence_(layer.layout.sequences()[item.sequence]),
        entries_((item.end_row - item.first_row) * item.heads),
        first_(layer.positions[item.first_row]) {
    for (int row = item_.first_row; row < item_.end_row; ++row) {
      last_ = std::max(last_, layer_.sights[row]);
      first_ = std::min(first_, first_visible(row));
    }
    // Pages before `shared_` are read in place by every row, with the slot equal to the position.
    shared_ = sequence_.straight ? last_ / kPageKeys + 1 : sequence_.cached / kPageKeys;
  }

  void run() {
    load_queries();
    if (needs_slots(last_ / kChunkKeys) && !layer_.closing) score_slots();
    begin_merge();
    for (int chunk = first_chunk(); chunk <= last_ / kChunkKeys; ++chunk) {
      run_chunk(chunk);
      for (int entry = 0; entry < entries_; ++entry)
        merge(entry, s_.chunk_maximum[entry], s_.chunk_total[entry], s_.partial + entry * layer_.value_dim);
    }
    finish();
  }

  // One chunk alone, left at `part`: [entry][part_stride], a maximum, a total, and the sum of values from 16 on.
  void run_part(int chunk, float *part) {
    const bool visible = chunk >= first_chunk() && chunk <= last_ / kChunkKeys;
    if (visible) {
      load_queries();
      if (needs_slots(chunk) && !layer_.closing) score_slots();
      run_chunk(chunk);
    }
    for (int entry = 0; entry < entries_; ++entry, part += part_stride(layer_.value_dim)) {
      part[0] = visible ? s_.chunk_maximum[entry] : -INFINITY, part[1] = s_.chunk_total[entry];
      std::memcpy(part + 16, s_.partial + entry * layer_.value_dim, layer_.value_dim * sizeof(float));
    }
  }

  // Puts together what `run_part` left for chunks 0, 1, ... at every `size` floats; the same operations as in `run`.
  void merge_parts(const float *parts, int count, size_t size) {
    begin_merge();
    for (int chunk = 0; chunk < count; ++chunk, parts += size)
      for (int entry = 0; entry < entries_; ++entry) {
        const float *part = parts + entry * part_stride(layer_.value_dim);
        merge(entry, part[0], part[1], part + 16);
      }
    finish();
  }

  static int part_stride(int value_dim) { return value_dim + 16; }

 private:
  static constexpr int kStride = AttentionScratch<Cell>::kScoreStride;

  int row_of(int entry) const { return item_.first_row + entry / item_.heads; }
  int head_of(int entry) const { return item_.first_head + entry % item_.heads; }
  int kv_head() const { return item_.kv_head + in_compressed_; }
  // Compressed keys are seen from the first on.
  int first() const { return in_compressed_ ? 0 : first_; }
  int first_chunk() const { return layer_.closing ? 0 : first_ / kChunkKeys; }
  int first_visible(int row) const {
    if (in_compressed_) return 0;
    const int position = layer_.positions[row];
    const int first = layer_.window ? std::max(0, position - layer_.window + 1) : 0;
    return layer_.chunk ? std::max(first, position / layer_.chunk * layer_.chunk) : first;
  }
  // As they are kept.
  const char *key_page(int logical, int kv_head) const {
    return layer_.cache.keys(layer_.layer, layer_.layout.page(sequence_, logical), kv_head);
  }
  const char *value_page(int logical, int kv_head) const {
    return layer_.cache.values(layer_.layer, layer_.layout.page(sequence_, logical), kv_head);
  }
  const char *value_page(int logical) const { return value_page(logical, kv_head()); }
  BytePage<const int8_t> value_bytes(int logical) const { return byte_page(value_page(logical), layer_.value_dim); }
  bool in_bytes() const { return layer_.cache.in_bytes(); }

  void load_queries() {
    const int d = layer_.key_dim;
    alignas(64) float head[HeadRotation::kMostDimensions];
    for (int entry = 0; entry < entries_; ++entry) {
      const int row = row_of(entry);
      const float *q =
          layer_.queries + layer_.query_places[row - layer_.first_row] * layer_.query_stride + head_of(entry) * d;
      layer_.rotation.apply(head_of(entry), q, layer_.layout.text_positions()[row], head);
      const float scale =
          layer_.growth.weight == 0.f ? layer_.scale : layer_.scale * layer_.growth.at(layer_.positions[row]);
      for (int k = 0; k < d; k += 16) store_query(s_.query + entry * d + k, load(head + k) * splat(scale));
    }
  }

  // Of the keys of a window and, where there are any, of compressed ones as of further keys.
  void run_chunk(int chunk) {
    run_keys(chunk);
    if (!layer_.closing) return;
    const int size = layer_.value_dim;
    std::copy_n(s_.chunk_maximum, entries_, s_.beside_maximum), std::copy_n(s_.chunk_total, entries_, s_.beside_total);
    std::copy_n(s_.partial, entries_ * size, s_.beside);
    in_compressed_ = true;
    run_keys(chunk);
    in_compressed_ = false;
    for (int entry = 0; entry < entries_; ++entry)
      add(s_.beside_maximum[entry], s_.beside_total[entry], s_.beside + entry * size, s_.chunk_maximum[entry],
          s_.chunk_total[entry], s_.partial + entry * size);
  }

  void run_keys(int chunk) {
    if (layer_.closing && needs_slots(chunk)) score_slots();
    const int page = std::max(first() / kPageKeys, chunk * kChunkPages);
    const int end = std::min(last_ / kPageKeys + 1, (chunk + 1) * kChunkPages);
    score(chunk, page, std::min(end, shared_));
    for (int entry = 0; entry < entries_; ++entry) weigh(entry, chunk, end * kPageKeys - chunk * kChunkKeys);
    sum_values(chunk, page, std::min(end, shared_), last_);
  }

  // Whether a chunk reaches into a tree's own rows.
  bool needs_slots(int chunk) const { return !sequence_.straight && (chunk + 1) * kChunkPages > shared_; }

  void score_page(int logical, float *scores, int stride, PagesAhead ahead = {}) {
    const Cell *const keys =
        layer_.cache.read_keys(layer_.layer, layer_.layout.page(sequence_, logical), kv_head(), s_.widened[0]);
    multiply_tiles<Cell>(entries_, s_.query, layer_.key_dim, Stream<Cell>{keys}, layer_.key_dim / 32, scores, stride,
                         false, ahead);
  }

  // What is read after the keys of page `page`, of those before `end`; all of the page where it is the next kv head's.
  PagesAhead pages_ahead(int page, int end) const {
    if (ask_ < 0 || in_compressed_) return {};
    const int keys = ask_ == item_.kv_head ? page + 1 : page;
    const int bytes = static_cast<int>(layer_.cache.key_bytes(layer_.layer));
    return {keys < end ? key_page(keys, ask_) : nullptr, value_page(page, ask_), bytes};
  }

  // A tree's scores by slot: a score does not depend on where its key stands, so all rows share these tiles.
  void score_slots() {
    const int slots = sequence_.slot(item_.end_row);
    for (int page = shared_; page * kPageKeys < slots; ++page)
      score_page(page, s_.slot_scores + (page - shared_) * kPageKeys, s_.slot_stride());
  }

  void score(int chunk, int page, int shared_end) {
    for (; page < shared_end; ++page) {
      layer_.ahead.ask(kLinesAPage);
      if (!holds_keys(page)) {  // what hides its tokens needs finite scores
        for (int entry = 0; entry < entries_; ++entry)
          std::fill_n(s_.scores + entry * kStride + page * kPageKeys - chunk * kChunkKeys, kPageKeys, 0.f);
        continue;
      }
      score_page(page, s_.scores + page * kPageKeys - chunk * kChunkKeys, kStride, pages_ahead(page, shared_end));
    }
    if (sequence_.straight) return;
    const int tail = shared_ * kPageKeys, start = chunk * kChunkKeys;
    for (int entry = 0; entry < entries_; ++entry) {
      const int32_t *path = layer_.layout.path(row_of(entry));
      const int end = std::min(layer_.positions[row_of(entry)] + 1, start + kChunkKeys);
      const float *from = s_.slot_scores + static_cast<size_t>(entry) * s_.slot_stride() - tail;
      float *to = s_.scores + entry * kStride - start;
      int position = std::max(start, tail);
      for (; position < std::min(end, sequence_.cached); ++position) to[position] = from[position];
      for (; position < end; ++position) to[position] = from[path[position - sequence_.cached]];
    }
  }

  // What hides tokens from a row by position, or null.
  const float *hidden_from(int row) const {
    if (layer_.closing && !in_compressed_) return nullptr;
    const float *const chosen = layer_.chosen ? layer_.chosen->of(row) : nullptr;
    return chosen ? chosen : layer_.closing;
  }

  // Scores to weights exp(score - maximum) of one chunk, zero where the row must not look.
  void weigh(int entry, int chunk, int width) {
    const int row = row_of(entry);
    const int begin = std::max(first_visible(row) - chunk * kChunkKeys, 0);
    const int end = std::min(layer_.sights[row] + 1 - chunk * kChunkKeys, width);
    float *score = s_.scores + entry * kStride;
    layer_.ahead.ask(kLinesAnEntry);
    auto *weight = s_.weights + entry * kStride;
    const int from = begin < end ? begin & ~15 : 0, to = begin < end ? round_up(end, 16) : 0;
    // Runs over the lanes that the row sees; `edge` says that some of a vector's lanes are not.
    const auto each = [&](auto &&work) {
      for (int k = from; k < to; k += 16) work(k, k < begin || k + 16 > end);
    };
    const auto inside = [&](Lanes v, int k, float other) { return select_range(v, begin - k, end - k, splat(other)); };
    const float *const hidden = hidden_from(row);
    const auto hides = [&](int k) { return load(hidden + chunk * kChunkKeys + k); };
    Lanes largest = splat(-INFINITY);
    if (layer_.bias.present()) {
      const int position = layer_.positions[row], start = chunk * kChunkKeys, head = head_of(entry);
      each([&](int k, bool) { store(score + k, load(score + k) + layer_.bias.at(head, position, start + k)); });
    }
    if (layer_.softcap != 0.f)
      each([&](int k, bool) {
        store(score + k, splat(layer_.softcap) * tanh(load(score + k) / splat(layer_.softcap)));
      });
    if (hidden) each([&](int k, bool) { store(score + k, load(score + k) + hides(k)); });
    each([&](int k, bool edge) {
      if (edge) store(score + k, inside(load(score + k), k, -INFINITY));
      largest = max(largest, load(score + k));
    });
    const float maximum = reduce_max(largest);
    const float least = maximum == -INFINITY ? 0.f : maximum;
    Lanes total = splat(0.f);
    each([&](int k, bool edge) {
      Lanes v = exp(load(score + k) - splat(least));
      if (hidden) v = max(splat(0.f), v + max(splat(-1.f), hides(k)));  // exp gives more than 0 of -inf
      if (edge) v = inside(v, k, 0.f);
      total = total + v;
      store_query(weight + k, v);
    });
    for (int k = 0; k < from; k += 16) store_query(weight + k, splat(0.f));
    for (int k = to; k < width; k += 16) store_query(weight + k, splat(0.f));
    s_.chunk_maximum[entry] = maximum, s_.chunk_total[entry] = reduce_add(total);
  }

  // Whether any token of a page may be seen: of compressed keys most pages have none where many tokens share one.
  bool holds_keys(int logical) const {
    if (!in_compressed_) return true;
    const float *const hidden = layer_.closing + logical * kPageKeys;
    return std::any_of(hidden, hidden + kPageKeys, [](float each) { return each == 0.f; });
  }

  void sum_values(int chunk, int page, int shared_end, int last) {
    const int d = layer_.value_dim, start = chunk * kChunkKeys;
    const Cell *pages[kChunkPages];
    const int shared = std::max(shared_end - page, 0);
    // Pages that are widened are few at a time: they stay in the nearest cache. Sums go on as in one product.
    const int most = in_bytes() ? AttentionScratch<Cell>::kWidened : kChunkPages;
    bool begun = false;
    for (int first = 0, count; first < shared; first += count) {
      count = 1;
      if (!holds_keys(page + first)) continue;
      while (count < std::min(shared - first, most) && holds_keys(page + first + count)) ++count;
      for (int i = 0; i < count; ++i)
        pages[i] = layer_.cache.read_values(layer_.layer, layer_.layout.page(sequence_, page + first + i), kv_head(),
                                            s_.widened[i % AttentionScratch<Cell>::kWidened]);
      // The page that holds the last row may hold slots nobody has written.
      if ((page + first + count) * kPageKeys > last + 1)
        pages[count - 1] = gather(page + first + count - 1, last, nullptr);
      multiply_pages(entries_, s_.weights + (page + first) * kPageKeys - start, pages, count, s_.partial, begun);
      begun = true;
    }
    if (!begun) multiply_pages(entries_, s_.weights, pages, 0, s_.partial, false);
    if (sequence_.straight) return;
    gathered_ = 0;
    for (int row = item_.first_row; row < item_.end_row; ++row) {
      const int position = layer_.positions[row], entry = (row - item_.first_row) * item_.heads;
      const int first = std::max(page, shared_), end = std::min(position / kPageKeys + 1, (chunk + 1) * kChunkPages);
      if (first >= end) continue;
      for (int i = first; i < end; ++i) pages[i - first] = gather_path(i, row, i - first);
      multiply_pages(item_.heads, s_.weights + entry * kStride + first * kPageKeys - start, pages, end - first,
                     s_.partial + entry * d, true);
    }
  }

  template <class Weight>
  void multiply_pages(int rows, const Weight *weights, const Cell *const *pages, int count, float *out,
                      bool accumulate) {
    const int d = layer_.value_dim;
    for (int column = 0; column < d; column += kColumns)
      multiply_tiles<Cell>(rows, weights, kStride,
                           Paged<Cell>{pages, (column / kColumns) * TileOrder<Cell>::kPairCells}, count, out + column,
                           d, accumulate);
  }

  // The values of logical page `logical` in order of position, up to `last`; without a path slots are positions.
  const Cell *gather(int logical, int last, const int32_t *path, int into = kChunkPages) {
    if (in_bytes()) return gather_bytes(logical, last, path, into);
    const Cell *cells[kPageKeys];
    int keys[kPageKeys];
    const int count = std::min(last + 1 - logical * kPageKeys, kPageKeys);
    for (int i = 0; i < count; ++i) {
      const int position = logical * kPageKeys + i;
      const int slot = path && position >= sequence_.cached ? path[position - sequence_.cached] : position;
      cells[i] = reinterpret_cast<const Cell *>(value_page(slot / kPageKeys));
      keys[i] = slot % kPageKeys;
    }
    gather_values(s_.gathered[into], cells, keys, count, layer_.value_dim);
    return s_.gathered[into];
  }

  // The same in bytes: below the cached length slots are positions, and the page is the sequence's own.
  const Cell *gather_bytes(int logical, int last, const int32_t *path, int into) {
    const BytePage<int8_t> page = byte_page(s_.bytes[into], layer_.value_dim);
    const int first = logical * kPageKeys, end = std::min(last + 1, first + kPageKeys);
    if (!path || first < sequence_.cached)
      std::memcpy(page.levels, value_page(logical), byte_page_bytes(page.dim));
    else
      std::memset(page.levels, 0, byte_page_bytes(page.dim));
    for (int block = 0; block < page.dim / kByteBlock; ++block)
      std::fill(page.units(block) + (end - first), page.units(block) + kPageKeys, Bf16{0});
    return path ? along_path(logical, end, path, into) : widened(into);
  }

  // Puts the tree's own keys of a path into a gathered page.
  const Cell *along_path(int logical, int end, const int32_t *path, int into) {
    for (int position = std::max(sequence_.cached, logical * kPageKeys); position < end; ++position) {
      const int slot = path[position - sequence_.cached], key = position % kPageKeys;
      if (in_bytes())
        copy_bytes<ValuePlace<Cell>>(byte_page(s_.bytes[into], layer_.value_dim), key, value_bytes(slot / kPageKeys),
                                     slot % kPageKeys);
      else
        copy_value(s_.gathered[into], key, reinterpret_cast<const Cell *>(value_page(slot / kPageKeys)),
                   slot % kPageKeys, layer_.value_dim);
    }
    return in_bytes() ? widened(into) : s_.gathered[into];
  }

  const Cell *widened(int into) {
    widen_values(byte_page(const_cast<const char *>(s_.bytes[into]), layer_.value_dim), s_.gathered[into]);
    return s_.gathered[into];
  }

  // The same along a row's path. A page that a row before has left here differs in the tree's own keys alone; those
  // that follow the row's own get weight zero.
  const Cell *gather_path(int logical, int row, int into) {
    const int32_t *path = layer_.layout.path(row);
    const int last = layer_.positions[row];
    if (into >= gathered_) {
      gathered_ = into + 1;
      return gather(logical, last, path, into);
    }
    return along_path(logical, std::min(last + 1, (logical + 1) * kPageKeys), path, into);
  }

  void begin_merge() {
    std::fill_n(s_.maximum, entries_, -INFINITY), std::fill_n(s_.total, entries_, 0.f);
    // A head's sink weighs as a key would whose value is 0.
    for (int entry = 0; entry < entries_ && layer_.sinks; ++entry)
      s_.maximum[entry] = layer_.sinks[item_.first_head + entry % item_.heads], s_.total[entry] = 1.f;
    std::fill_n(s_.sum, entries_ * layer_.value_dim, 0.f);
  }

  void merge(int entry, float chunk_maximum, float chunk_total, const float *partial) {
    add(chunk_maximum, chunk_total, partial, s_.maximum[entry], s_.total[entry], s_.sum + entry * layer_.value_dim);
  }

  // Adds what a row has seen of some keys to what it has seen of others.
  void add(float more_maximum, float more_total, const float *more, float &maximum, float &total, float *sum) const {
    if (more_maximum == -INFINITY) return;  // it sees none of these
    if (maximum == -INFINITY) {
      maximum = more_maximum, total = more_total;
      std::memcpy(sum, more, layer_.value_dim * sizeof(float));
      return;
    }
    const float largest = std::max(maximum, more_maximum);
    const Lanes old_factor = exp(splat(maximum - largest));
    const Lanes new_factor = exp(splat(more_maximum - largest));
    alignas(64) float totals[16];
    store(totals, fma(splat(total), old_factor, splat(more_total) * new_factor));
    total = totals[0], maximum = largest;
    for (int k = 0; k < layer_.value_dim; k += 16)
      store(sum + k, fma(load(sum + k), old_factor, load(more + k) * new_factor));
  }

  void finish() {
    const int d = layer_.value_dim;
    for (int entry = 0; entry < entries_; ++entry) {
      const Lanes share = splat(layer_.value_scale / s_.total[entry]);
      const int row = layer_.places[row_of(entry) - layer_.first_row];
      const int column = head_of(entry) * d;
      const float *gates = layer_.gates;
      if (gates)
        gates += layer_.query_places[row_of(entry) - layer_.first_row] * layer_.gate_stride +
                 (layer_.gates_heads ? head_of(entry) : column);
      for (int k = 0; k < d; k += 16) {
        Lanes seen = load(s_.sum + entry * d + k) * share;
        if (gates) seen = seen * sigmoid(layer_.gates_heads ? splat(*gates) : load(gates + k));
        store_activation(layer_.out_kind, layer_.out, row, column + k, seen);
      }
    }
  }

  const AttentionLayer &layer_;
  const AttentionItem &item_;
  const int ask_;
  AttentionScratch<Cell> &s_;
  const SequenceLayout &sequence_;
  int entries_, first_, last_ = 0, shared_ = 0;  // shared_ counts pages, first_ and last_ are positions
  bool in_compressed_ = false;                   // of the keys at work
  int gathered_ = 0;                             // pages of the tree, for the chunk at hand
};
