// What a pass needs to know before the first layer: who sees whom, and how attention is cut into work items.
#pragma once
#include <algorithm>
#include <numeric>
#include <vector>

#include "api.h"
#include "kernels/formats/cells.h"

struct SequenceLayout {
  int first_row, end_row, cached;
  int held;  // rows of a growing draft that earlier passes left behind the cached ones
  const int32_t *blocks;
  bool straight;  // every row follows the row before it: logical position and slot are the same

  int rows() const { return end_row - first_row; }
  int slot(int row) const { return cached + held + row - first_row; }  // logical
};

// Query rows [first_row, end_row) times heads [first_head, first_head + heads), all of one kv head: at most
// kTileEntries entries.
struct AttentionItem {
  int sequence, first_row, end_row, kv_head, first_head, heads;
};

// An item, or one chunk of it, that a thread computes.
struct AttentionPart {
  int item, chunk;  // chunk -1: all of them
  int thread;
  int ask;  // kv head whose pages are asked of memory meanwhile: its own or, where these are there, the next; or -1
};
// Most work of a thread in a good deal, in even shares: to cut items into chunks costs one more barrier a layer.
constexpr double kWellDealt = 1.25;
constexpr int kPageReadEntries = 4;  // what reading a page is held to cost, in entries to multiply: an estimate

class PassLayout {
 public:
  // Null, or what is wrong with the pass.
  const char *build(const HeadstartPass &pass, int tokens, int pages, int layers, int positions, int least_tap) {
    pages_per_block_ = pass.pages_per_block;
    if (const char *error = check(pass, tokens, layers, least_tap)) return error;
    if (pass.paths && !pass.positions) return "rows with paths need positions";
    if (pass.context_rows < 0 || pass.context_rows > pass.rows) return "there are more context rows than rows";
    positions_.resize(pass.rows), text_positions_.resize(pass.rows);
    sequences_.clear(), path_begin_.assign(pass.rows, 0), path_.clear(), tree_span_ = 0;
    for (int s = 0; s < pass.sequences; ++s) {
      SequenceLayout layout{pass.row_starts[s],
                            pass.row_starts[s + 1],
                            pass.cached_lengths[s],
                            0,
                            pass.block_tables + static_cast<int64_t>(s) * pass.blocks_per_sequence,
                            true};
      if (layout.cached < 0 || layout.first_row >= layout.end_row)
        return "a sequence has no rows or a negative cached length";
      if (pass.paths)
        if (const char *error = take_paths(pass, layout)) return error;
      if (const char *error = check_blocks(layout.blocks, layout.slot(layout.end_row), pass.blocks_per_sequence, pages))
        return error;
      for (int row = layout.first_row; row < layout.end_row && !pass.paths; ++row) {
        const int parent = pass.parents[row];
        if (parent >= row || (parent != -1 && parent < layout.first_row))
          return "a parent does not stand before its row";
        positions_[row] = parent < 0 ? layout.cached : positions_[parent] + 1;
        if (pass.positions && pass.positions[row] != positions_[row]) return "a position is not its parent's plus one";
        layout.straight &= parent == (row == layout.first_row ? -1 : row - 1);
      }
      if (pass.context_rows > layout.first_row && pass.context_rows < layout.end_row)
        return "a sequence has context rows and others";
      if (pass.both_ways && !layout.straight) return "rows that see each other do not stand in a chain";
      if (!layout.straight && !pass.paths) add_paths(pass, layout);
      if (!layout.straight)
        tree_span_ = std::max(tree_span_,
                              kPageKeys + round_up(layout.slot(layout.end_row) - layout.cached + kPageKeys, kPageKeys));
      sequences_.push_back(layout);
    }
    if (pass.row_starts[pass.sequences] != pass.rows) return "row_starts does not end at the number of rows";
    for (int s = 0; s < pass.sequences; ++s) {
      const int first = pass.first_positions ? pass.first_positions[s] : 0;
      for (int row = sequences_[s].first_row; row < sequences_[s].end_row; ++row) {
        text_positions_[row] = positions_[row] + first;
        if (positions_[row] < 0 || first < 0 || text_positions_[row] >= positions)
          return "a position is beyond the rope table";
      }
    }
    sights_ = positions_;
    for (const SequenceLayout &s : sequences_)
      if (pass.both_ways) std::fill(&sights_[s.first_row], &sights_[s.first_row] + s.rows(), positions_[s.end_row - 1]);
    return nullptr;
  }

  // The same of the encoder memories that the rows of a pass, which was found right, read: each sees all of its
  // sequence's, as if it stood on the last position.
  const char *build_memories(const HeadstartPass &pass, int pages) {
    if (!pass.memory_lengths) return "the pass names no encoder memories";
    pages_per_block_ = pass.pages_per_block;
    positions_.resize(pass.rows);
    sequences_.clear();
    for (int s = 0; s < pass.sequences; ++s) {
      const int length = pass.memory_lengths[s];
      const SequenceLayout layout{pass.row_starts[s],
                                  pass.row_starts[s + 1],
                                  length,
                                  0,
                                  pass.memory_tables + static_cast<int64_t>(s) * pass.memory_blocks,
                                  true};
      if (length < 1) return "an encoder memory is empty";
      if (const char *error = check_blocks(layout.blocks, length, pass.memory_blocks, pages)) return error;
      std::fill(positions_.begin() + layout.first_row, positions_.begin() + layout.end_row, length - 1);
      sequences_.push_back(layout);
    }
    sights_ = text_positions_ = positions_;
    return nullptr;
  }

  // [row] of the pass: its place behind the first cached row, and in the text.
  const int32_t *positions() const { return positions_.data(); }
  const int32_t *text_positions() const { return text_positions_.data(); }
  // [row] of the pass: the last position that it sees.
  const int32_t *sights() const { return sights_.data(); }

  const std::vector<SequenceLayout> &sequences() const { return sequences_; }
  const SequenceLayout &sequence_of(int row) const {
    return *std::upper_bound(sequences_.begin(), sequences_.end(), row,
                             [](int r, const SequenceLayout &s) { return r < s.end_row; });
  }
  // Logical slots of a tree row's ancestors in this pass and itself, from the cached length on.
  const int32_t *path(int row) const { return path_.data() + path_begin_[row]; }
  // Most keys that a tree's rows can be scored against slot by slot (see attention.h).
  int tree_span() const { return tree_span_; }

  int page(const SequenceLayout &sequence, int logical_page) const {
    return sequence.blocks[logical_page / pages_per_block_] * pages_per_block_ + logical_page % pages_per_block_;
  }

  // Where a panel of up to `most` rows ends: not among rows that see each other, or read each other (`together`).
  int end_of_panel(const HeadstartPass &pass, int first, int most, bool together) const {
    const int end = std::min(first + most, pass.rows);
    if ((!pass.both_ways && !together) || end == pass.rows || end <= pass.context_rows) return end;
    const int begin = sequence_of(end).first_row;
    return begin > first ? begin : end;
  }

  // Adds the work of the rows [begin, end), by kv head.
  void cut(int begin, int end, int heads, int kv_heads, std::vector<AttentionItem> &items) const {
    const int group = heads / kv_heads;
    const int item_heads = group < kTileEntries ? group : kTileEntries;
    const int item_rows = kTileEntries / item_heads;
    for (int s = 0; s < static_cast<int>(sequences_.size()); ++s) {
      const int first = std::max(begin, sequences_[s].first_row), rows = std::min(end, sequences_[s].end_row) - first;
      const int blocks = ceil_div(std::max(rows, 0), item_rows);
      for (int kv_head = 0; kv_head < kv_heads; ++kv_head)
        for (int block = 0; block < blocks; ++block)
          for (int head = 0; head < group; head += item_heads)
            items.push_back({s, first + rows * block / blocks, first + rows * (block + 1) / blocks, kv_head,
                             kv_head * group + head, std::min(item_heads, group - head)});
    }
  }

  // Every other thread computes its parts last to first: those that share pages with a neighbour then read them when it
  // does, and not one of the two all of them first.
  static bool goes_backwards(int thread) { return thread % 2 == 1; }

  // Deals the items to the threads, all of which get about as much to read and to multiply: one run of items each, for
  // every core has an L2 of its own and what one thread has read is far from another. Where a run would end inside an
  // item, the item is cut there, by rows or else by heads. Where that leaves threads idle, chunks are dealt one by one.
  // In order of item and chunk.
  static void deal(std::vector<AttentionItem> &items, const int32_t *sights, int threads,
                   std::vector<AttentionPart> &parts) {
    parts.clear();
    if (deal_items(items, sights, threads, parts)) return;
    parts.clear();
    deal_chunks(items, sights, threads, parts);
  }

 private:
  static int keys_of(const AttentionItem &item, const int32_t *sights) {
    return *std::max_element(sights + item.first_row, sights + item.end_row) + 1;
  }
  // In products of a query and a key.
  static int64_t cost(const AttentionItem &item, int keys) {
    return static_cast<int64_t>(keys) * ((item.end_row - item.first_row) * item.heads + kPageReadEntries);
  }
  static int64_t cost(const std::vector<AttentionItem> &items, const int32_t *sights) {
    int64_t all = 0;
    for (const AttentionItem &item : items) all += cost(item, keys_of(item, sights));
    return all;
  }

  // Each row, or each head, goes to the thread in whose share its middle lies. Gives whether the deal is good.
  static bool deal_items(std::vector<AttentionItem> &items, const int32_t *sights, int threads,
                         std::vector<AttentionPart> &parts) {
    const int64_t all = cost(items, sights);
    std::vector<AttentionItem> whole;
    whole.swap(items);
    std::vector<int64_t> load(threads, 0);
    int64_t before = 0;
    for (const AttentionItem &item : whole) {
      const int rows = item.end_row - item.first_row, units = std::max(rows, item.heads);
      const int64_t work = cost(item, keys_of(item, sights));
      const auto thread_of = [&](int unit) {
        return static_cast<int>((before + work * (2 * unit + 1) / (2 * units)) * threads / all);
      };
      for (int unit = 0, next; unit < units; unit = next) {
        const int thread = thread_of(unit);
        for (next = unit + 1; next < units && thread_of(next) == thread;) ++next;
        AttentionItem piece = item;
        if (rows >= item.heads)
          piece.first_row = item.first_row + unit, piece.end_row = item.first_row + next;
        else
          piece.first_head = item.first_head + unit, piece.heads = next - unit;
        parts.push_back({static_cast<int>(items.size()), -1, thread, item.kv_head});
        items.push_back(piece);
        load[thread] += cost(piece, keys_of(piece, sights));
      }
      before += work;
    }
    choose_asks(items, parts);
    const int64_t dealt = std::accumulate(load.begin(), load.end(), int64_t{0});
    const int64_t most = *std::max_element(load.begin(), load.end()) * threads;
    return static_cast<double>(most) <= kWellDealt * static_cast<double>(dealt);
  }

  // A thread asks for a kv head's pages once: in the part before, if that finds its own in L2, else as it reads them.
  static void choose_asks(const std::vector<AttentionItem> &items, std::vector<AttentionPart> &parts) {
    const int count = static_cast<int>(parts.size());
    for (const bool backwards : {false, true})
      for (int n = 1; n < count; ++n) {
        const int turn = backwards ? count - 1 - n : n;
        AttentionPart &part = parts[turn], &before = parts[backwards ? turn + 1 : turn - 1];
        const AttentionItem &item = items[part.item], &item_before = items[before.item];
        if (part.thread != before.thread || goes_backwards(part.thread) != backwards ||
            item.sequence != item_before.sequence)
          continue;
        if (item.kv_head == item_before.kv_head)
          part.ask = -1;
        else if (before.ask < 0)
          std::swap(before.ask, part.ask);
      }
  }

  // Each chunk goes to the thread in whose share its middle lies.
  static void deal_chunks(const std::vector<AttentionItem> &items, const int32_t *sights, int threads,
                          std::vector<AttentionPart> &parts) {
    const int64_t all = cost(items, sights);
    int64_t before = 0;
    for (int i = 0; i < static_cast<int>(items.size()); ++i) {
      const int keys = keys_of(items[i], sights);
      for (int key = 0; key < keys; key += kChunkKeys) {
        const int64_t work = cost(items[i], std::min(kChunkKeys, keys - key));
        parts.push_back({i, key / kChunkKeys, static_cast<int>((before + work / 2) * threads / all), items[i].kv_head});
        before += work;
      }
    }
  }

  const char *check_blocks(const int32_t *blocks, int slots, int most, int pages) const {
    const int count = ceil_div(slots, kPageKeys * pages_per_block_);
    if (count > most) return "a block table is shorter than its sequence";
    for (int b = 0; b < count; ++b)
      if (blocks[b] < 0 || (blocks[b] + 1) * pages_per_block_ > pages)
        return "a block table names a block outside the cache";
    return nullptr;
  }

  static bool are_ascending(const int32_t *rows, int count, int end) {
    for (int i = 0; i < count; ++i)
      if (rows[i] < (i ? rows[i - 1] + 1 : 0) || rows[i] >= end) return false;
    return true;
  }

  // `tokens`: ids end there; 0 where tokens are not read.
  static const char *check(const HeadstartPass &pass, int tokens, int layers, int least_tap) {
    if (pass.rows < 1 || pass.sequences < 1 || pass.row_starts[0] != 0) return "the pass has no rows";
    if (pass.pages_per_block < 1) return "the block size is not a multiple of 32";
    if (pass.layers < 1 || pass.layers > layers) return "num_layers is outside the model";
    for (int row = 0; row < pass.rows; ++row)
      if (tokens && (pass.tokens[row] < 0 || pass.tokens[row] >= tokens)) return "a token is outside the vocabulary";
    if (!are_ascending(pass.logit_rows, pass.wanted, pass.rows)) return "logit_rows are not ascending rows of the pass";
    if (!are_ascending(pass.best_rows, pass.best, pass.rows)) return "best_rows are not ascending rows of the pass";
    for (int i = 0; i < pass.best; ++i)
      if (std::binary_search(pass.logit_rows, pass.logit_rows + pass.wanted, pass.best_rows[i]))
        return "a row is among logit_rows and best_rows both";
    for (int i = 0; i < pass.taps; ++i)
      if (pass.tap_layers[i] < least_tap || pass.tap_layers[i] > pass.layers) return "a tap is outside the layers run";
    return nullptr;
  }

  void add_paths(const HeadstartPass &pass, const SequenceLayout &layout) {
    for (int row = layout.first_row; row < layout.end_row; ++row) {
      path_begin_[row] = static_cast<int64_t>(path_.size());
      const int depth = positions_[row] - layout.cached;
      path_.resize(path_.size() + depth + 1);
      if (depth > 0)
        std::copy_n(path_.begin() + path_begin_[pass.parents[row]], depth, path_.begin() + path_begin_[row]);
      path_.back() = layout.slot(row);
    }
  }

  // The paths that the pass names itself, and from them how many rows of the draft are held.
  const char *take_paths(const HeadstartPass &pass, SequenceLayout &layout) {
    layout.straight = false;
    for (int row = layout.first_row; row < layout.end_row; ++row) {
      positions_[row] = pass.positions[row];
      const int depth = positions_[row] - layout.cached;
      const int32_t *path = pass.paths + static_cast<int64_t>(row) * pass.path_length;
      if (depth < 0 || depth >= pass.path_length) return "a path is shorter than its row is deep";
      if (row == layout.first_row) layout.held = path[depth] - layout.cached;
      if (layout.held < 0 || path[depth] != layout.slot(row)) return "a path does not end with its own row";
      for (int i = 0; i < depth; ++i)
        if (path[i] < layout.cached || path[i] >= layout.slot(row)) return "a path leads outside the draft";
      path_begin_[row] = static_cast<int64_t>(path_.size());
      path_.insert(path_.end(), path, path + depth + 1);
    }
    return nullptr;
  }

  std::vector<SequenceLayout> sequences_;
  std::vector<int32_t> positions_, text_positions_, sights_;  // [row]
  std::vector<int64_t> path_begin_;
  std::vector<int32_t> path_;
  int tree_span_ = 0;
  int pages_per_block_ = 1;
};
