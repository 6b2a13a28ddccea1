// A draft that grows level by level from the likeliest paths (Li et al. 2024, EAGLE-2, section 4), in one call; or from
// one pass, where the head guesses several tokens in it (P-EAGLE, arXiv:2602.01469; DFlash, arXiv:2602.06036).
#pragma once
#include <algorithm>
#include <vector>

#include "kernels/products/best.h"
#include "pass/pass.h"
#include "rounds/block_factors.h"
#include "rounds/growing_tree.h"
#include "rounds/likeliest_paths.h"
#include "rounds/noise_ranking.h"
#include "rounds/path_selector.h"
#include "rounds/text_vocabulary.h"

class Draft {
 public:
  Draft(const Decoder &model, PassRunner &runner) : m_(model), runner_(runner) {}

  // See headstart_draft.
  const char *run(const Cache &cache, const HeadstartDraft &draft, int first, int last) {
    if (first == 0) {
      shows_ = last == 0;
      if (const char *error = read(cache, draft)) return error;
    }
    if (draft.slots && !is_chained(draft)) {
      if (last > 0) grow_at_once(draft);
      last = 0;
    }
    for (int level = std::max(first, 1); level <= last; ++level) {
      grow(draft, level);
      if (std::all_of(trees_.begin(), trees_.end(), [](const GrowingTree &tree) { return tree.beams.empty(); })) break;
      if (const char *error = draft.slots ? follow(draft, level) : step(cache, draft, level)) return error;
    }
    for (int s = 0; s < draft.sequences; ++s) trees_[s].report(draft.drafted[s]);
    return nullptr;
  }

 private:
  struct RankedRow {
    int row;
    const float *logits;
    int columns;         // of them, text tokens' included
    const int32_t *ids;  // of the first `known`
    int known;
    const HeadstartTextTokens *text_tokens;
  };

  // Guesses depend on the ones before them, though one pass says all of them.
  static bool is_chained(const HeadstartDraft &draft) { return draft.block && draft.block->following; }
  static bool selects(const HeadstartDraft &draft) { return draft.block && draft.block->candidates; }
  static bool is_confident(const HeadstartDraft &draft) { return draft.block && draft.block->sureness; }

  const char *read(const Cache &cache, const HeadstartDraft &draft) {
    trees_.resize(draft.sequences);
    rows_.clear(), inputs_.clear();
    for (int s = 0; s < draft.sequences; ++s) {
      const HeadstartDrafted &of = draft.drafted[s];
      trees_[s].begin(of, draft.slots ? std::min(draft.slots, of.depth) : of.depth);
      add_true_rows(draft, s);
    }
    if (draft.block) rows_.context = rows_.count();
    for (int s = 0; s < draft.sequences && draft.block; ++s) add_block(draft, s);
    // It is the states of the rows that say tokens which the draft begins with.
    const bool chained = is_chained(draft);
    if (chained) said_.resize(rows_.wanted.size() * draft.columns);
    float *const said = chained ? said_.data() : draft.logits;
    if (const char *error = pass(cache, draft, 0, said)) return error;
    const size_t size = m_.state_size();
    for (size_t i = 0; i < rows_.wanted.size(); ++i)
      std::memmove(&states_[i * size], &states_[rows_.wanted[i] * size], size * sizeof(float));
    add_text_logits(draft, said);
    if (chained) {
      for (GrowingTree &tree : trees_) tree.first_slot = tree.first_row;
      if (selects(draft))
        if (const char *error = selector_.begin(*draft.block, static_cast<int>(rows_.wanted.size()), said,
                                                m_.shape.vocab, draft.target_ids, states_.data(), m_.shape.threads))
          return error;
      return follow(draft, 0);
    }
    if (is_confident(draft)) end_where_unsure(draft);
    return nullptr;
  }

  // The true rows of a sequence that are not in the cache yet, and masks behind them; each follows the one before it.
  void add_true_rows(const HeadstartDraft &draft, int s) {
    const HeadstartDrafted &of = draft.drafted[s];
    const int masks = draft.block ? 0 : std::max(std::min(draft.slots, of.depth) - 1, 0);
    const size_t size = m_.shape.features;
    for (int i = 0; i < of.unread + masks; ++i)
      rows_.add(i < of.unread ? of.tokens[i] : draft.mask_token, of.cached + i, i ? rows_.count() - 1 : -1);
    rows_.end_sequence(s, of.cached, of.first);
    inputs_.insert(inputs_.end(), of.features, of.features + of.unread * size);
    for (int i = 0; i < masks; ++i) inputs_.insert(inputs_.end(), draft.mask_features, draft.mask_features + size);
    if (!draft.block) want(trees_[s], rows_.count() - masks - 1, masks + 1);
  }

  // The last token and masks. Rows behind those that are wanted matter where they are seen.
  void add_block(const HeadstartDraft &draft, int s) {
    const HeadstartBlock &block = *draft.block;
    GrowingTree &tree = trees_[s];
    const int first = rows_.count(), rows = block.causal ? block.first_slot + tree.max_depth : block.rows;
    for (int i = 0; i < rows; ++i)
      rows_.add(i ? draft.mask_token : tree.root, tree.cached + i, i ? rows_.count() - 1 : -1);
    rows_.end_sequence(s, tree.cached, draft.drafted[s].first);
    want(tree, first + block.first_slot, tree.max_depth);
  }

  // Logits after these rows.
  void want(GrowingTree &tree, int first, int count) {
    tree.first_row = static_cast<int>(rows_.wanted.size()), tree.rows = count;
    tree.beams.assign(1, {-1, tree.first_row, 0});
    for (int row = first; row < first + count; ++row) rows_.wanted.push_back(row);
  }

  // Whether a tree goes on to the slot `slot`, for all that the head knows of its best chain.
  bool is_sure(const HeadstartDraft &draft, GrowingTree &tree, int first_slot, int slot) {
    const float *const state = &states_[static_cast<size_t>(first_slot + slot) * m_.shape.hidden];
    tree.reached *= BlockFactors::chance(*draft.block, state, m_.shape.hidden, tree.best);
    return tree.reached >= std::exp(static_cast<double>(draft.min_log_prob));
  }

  // Depths that are not worth a guess; the rows of the others stand one behind the other.
  void end_where_unsure(const HeadstartDraft &draft) {
    int kept = 0;
    for (GrowingTree &tree : trees_) {
      int slots = 0;
      while (slots < tree.rows && is_sure(draft, tree, tree.first_row, slots)) ++slots;
      std::memmove(draft.logits + static_cast<size_t>(kept) * draft.columns,
                   draft.logits + static_cast<size_t>(tree.first_row) * draft.columns,
                   static_cast<size_t>(slots) * draft.columns * sizeof(float));
      tree.first_row = kept, tree.rows = slots, kept += slots;
    }
  }

  // The likeliest paths by what the rows of the one pass say, each of its own depth.
  void grow_at_once(const HeadstartDraft &draft) {
    rank(draft, 1, true);
    for (int s = 0; s < draft.sequences; ++s) {
      GrowingTree &tree = trees_[s];
      const size_t first = static_cast<size_t>(tree.first_row) * draft.width;
      paths_.find(&log_probs_[first], &tokens_[first], tree.rows, draft.width, draft.drafted[s].nodes,
                  draft.min_log_prob, [&](int token, int parent, int, float score) { tree.add(token, parent, score); });
    }
  }

  // The likeliest tokens of all rows of logits, which are at `depth`, or each of a sequence's one deeper than the last.
  void rank(const HeadstartDraft &draft, int depth, bool deepens) {
    ranked_.clear();
    for (int s = 0; s < draft.sequences; ++s) {
      if (selects(draft))
        take_selected(draft, s, depth);
      else
        take_rows(draft, s, depth, deepens);
    }
    const int rows = static_cast<int>(ranked_.size());
    log_probs_.assign(static_cast<size_t>(rows + 1) * draft.width, -INFINITY), tokens_.assign(log_probs_.size(), -1);
#pragma omp parallel for num_threads(m_.shape.threads) if (rows > m_.shape.threads) schedule(static)
    for (int i = 0; i < rows; ++i) {
      const RankedRow &of = ranked_[i];
      const size_t first = static_cast<size_t>(of.row) * draft.width;
      const int ranks = std::min(draft.width, of.columns);
      if (!ranks) continue;
      int32_t *const ids = &tokens_[first];
      best_of_row(of.logits, of.columns, ranks, &log_probs_[first], ids);
      for (int k = 0; k < ranks; ++k)
        ids[k] = ids[k] < of.known ? of.ids[ids[k]] : of.text_tokens->tokens[ids[k] - of.known];
    }
  }

  // A tree's rows of logits, with the noise of their positions where its sequence samples.
  void take_rows(const HeadstartDraft &draft, int s, int depth, bool deepens) {
    const GrowingTree &tree = trees_[s];
    const HeadstartDrafted &of = draft.drafted[s];
    const int count = tree.rows, vocab = m_.shape.vocab;
    float *const logits = draft.logits + static_cast<size_t>(tree.first_row) * draft.columns;
    for (int i = 0; i < count && of.sampling; i += deepens ? 1 : count)
      noise_ranking_.put(logits + static_cast<size_t>(i) * draft.columns, deepens ? 1 : count, draft.columns,
                         draft.target_ids, vocab, of.text_tokens, *of.sampling, of.root + depth + i);
    const int columns = vocab + (of.text_tokens ? of.text_tokens->count : 0);
    for (int i = 0; i < count; ++i)
      ranked_.push_back({tree.first_row + i, logits + static_cast<size_t>(i) * draft.columns, columns, draft.target_ids,
                         vocab, of.text_tokens});
  }

  // The same of the candidates alone; where they were shown, from where they may have been changed.
  void take_selected(const HeadstartDraft &draft, int s, int depth) {
    GrowingTree &tree = trees_[s];
    const HeadstartDrafted &of = draft.drafted[s];
    if (!tree.rows) return;
    const PathSelector::Slot &slot = selector_.slot(tree.first_slot + depth - 1);
    const int size = slot.size();
    for (int i = 0; i < tree.rows && shows_; ++i)
      for (int at = 0; at < size; ++at)
        tree.selected[i * size + at] =
            draft.logits[static_cast<size_t>(tree.first_row + i) * draft.columns + slot.columns[at]];
    if (of.sampling) {
      noise_ranking_.forget();
      noise_ranking_.put(tree.selected.data(), tree.rows, size, slot.tokens.data(), size, nullptr, *of.sampling,
                         of.root + depth);
    }
    for (int i = 0; i < tree.rows; ++i)
      ranked_.push_back({tree.first_row + i, &tree.selected[i * size], size, slot.tokens.data(), size, nullptr});
  }

  // The children of the beams, from the logits after each.
  void grow(const HeadstartDraft &draft, int level) {
    rank(draft, level, false);
    for (int s = 0; s < draft.sequences; ++s) {
      const size_t first = static_cast<size_t>(trees_[s].first_row) * draft.width;
      trees_[s].grow(draft, draft.drafted[s], level, &log_probs_[first], &tokens_[first]);
    }
  }

  // Logits of the tokens that the texts bring, behind those of the vocabulary.
  void add_text_logits(const HeadstartDraft &draft, float *logits) {
    const int vocab = m_.shape.vocab, columns = draft.columns;
    if (columns == vocab) return;
    for (int s = 0; s < draft.sequences; ++s) {
      const HeadstartTextTokens *const text_tokens = draft.drafted[s].text_tokens;
      const GrowingTree &tree = trees_[s];
      const size_t first = tree.first_row, rows = tree.rows;
      float *const to = logits + first * columns + vocab;
      const int count = text_tokens ? text_tokens->count : 0;
      for (size_t row = 0; row < rows; ++row)
        std::fill(to + row * columns + count, to + (row + 1) * columns - vocab, -INFINITY);
      if (count && rows)
        text_logits(*text_tokens, &states_[first * m_.shape.hidden], static_cast<int>(rows), m_.shape.hidden,
                    draft.state_tap == -1 ? 0.f : m_.shape.norm_eps, to, columns);
    }
  }

  // A beam reads the state of the row that guessed it, and sees what that row saw, that row, and itself.
  const char *step(const Cache &cache, const HeadstartDraft &draft, int level) {
    const size_t size = m_.state_size();
    rows_.clear(), inputs_.clear();
    for (int s = 0; s < draft.sequences; ++s) {
      GrowingTree &tree = trees_[s];
      tree.lengthen_paths(level);
      tree.first_row = rows_.count();
      if (tree.beams.empty()) continue;
      for (const GrowingTree::Beam &beam : tree.beams) {
        rows_.wanted.push_back(rows_.count());
        rows_.add(tree.token_of(beam), tree.cached + level - 1, -1);
        const float *state = &states_[beam.guessed_by * size];
        inputs_.insert(inputs_.end(), state, state + size);
      }
      rows_.paths.insert(rows_.paths.end(), tree.paths.begin(), tree.paths.end());
      rows_.end_sequence(s, tree.cached, draft.drafted[s].first);
      tree.held += static_cast<int>(tree.beams.size());
    }
    if (!rows_.count()) return nullptr;
    if (const char *error = pass(cache, draft, level, draft.logits)) return error;
    add_text_logits(draft, draft.logits);
    return nullptr;
  }

  // Where a token stands among those that a level looks behind, to which it is added.
  int place_of(int token) {
    const auto at = std::find(level_tokens_.begin(), level_tokens_.end(), token);
    const int place = static_cast<int>(at - level_tokens_.begin());
    if (at == level_tokens_.end()) level_tokens_.push_back(token);
    return place;
  }

  // What the one pass says in the slot behind a level, and what the beams' own tokens add to it: the same for beams of
  // one token.
  const char *follow(const HeadstartDraft &draft, int level) {
    const HeadstartBlock &block = *draft.block;
    const int vocab = m_.shape.vocab;
    const size_t columns = draft.columns;
    factors_.clear();
    if (is_confident(draft)) best_rows_.resize(trees_.size() * vocab);
    int rows = 0;
    for (size_t s = 0; s < trees_.size(); ++s) {
      GrowingTree &tree = trees_[s];
      tree.first_row = rows, tree.rows = 0;
      if (is_confident(draft) && !tree.beams.empty() && !is_sure(draft, tree, tree.first_slot, level))
        tree.beams.clear();
      if (tree.beams.empty()) continue;
      level_tokens_.clear();
      if (selects(draft)) {
        select(draft, tree, level), rows += tree.rows;
        continue;
      }
      const float *const said = &said_[(tree.first_slot + level) * columns];
      float *const to = draft.logits + rows * columns;
      for (GrowingTree::Beam &beam : tree.beams) {
        beam.row = place_of(tree.token_of(beam));
        if (beam.row < tree.rows) continue;
        ++tree.rows;
        factors_.add(block, level_tokens_.back(), said, to + beam.row * columns);
        std::copy(said + vocab, said + columns, to + beam.row * columns + vocab);
      }
      rows += tree.rows;
      if (!is_confident(draft)) continue;
      const int best = place_of(tree.best);
      tree.best_row = best < tree.rows ? to + best * columns : &best_rows_[s * vocab];
      if (best == tree.rows) factors_.add(block, tree.best, said, &best_rows_[s * vocab]);
    }
    if (!rows || selects(draft)) return nullptr;
    if (const char *error = factors_.follow(block)) return error;
    for (GrowingTree &tree : trees_)
      if (is_confident(draft) && !tree.beams.empty())
        tree.best = draft.target_ids[largest_of_row(tree.best_row, vocab)];
    return nullptr;
  }

  // The same where a selector chooses among a few candidates.
  void select(const HeadstartDraft &draft, GrowingTree &tree, int level) {
    for (GrowingTree::Beam &beam : tree.beams) beam.row = place_of(tree.token_of(beam));
    tree.rows = static_cast<int>(level_tokens_.size());
    const int best = is_confident(draft) ? place_of(tree.best) : 0;
    const PathSelector::Slot &slot = selector_.slot(tree.first_slot + level);
    selector_.follow(*draft.block, tree.first_slot + level, level_tokens_, tree.selected);
    const int size = slot.size();
    if (is_confident(draft) && size) tree.best = slot.tokens[largest_of_row(&tree.selected[best * size], size)];
    for (int i = 0; i < tree.rows && shows_; ++i) {
      float *const to = draft.logits + static_cast<size_t>(tree.first_row + i) * draft.columns;
      std::fill_n(to, draft.columns, -INFINITY);
      for (int at = 0; at < size; ++at) to[slot.columns[at]] = tree.selected[i * size + at];
    }
  }

  const char *pass(const Cache &cache, const HeadstartDraft &draft, int path_length, float *logits) {
    int pages = 0;
    for (const int s : rows_.sequences) pages = std::max(pages, draft.drafted[s].pages);
    blocks_.assign(rows_.sequences.size() * pages, 0);
    for (size_t i = 0; i < rows_.sequences.size(); ++i) {
      const HeadstartDrafted &of = draft.drafted[rows_.sequences[i]];
      std::copy_n(of.page_table, of.pages, blocks_.begin() + i * pages);
    }
    states_.resize(static_cast<size_t>(rows_.count()) * m_.state_size());
    float *const states = states_.data();
    HeadstartPass pass{};
    pass.rows = rows_.count(), pass.sequences = static_cast<int>(rows_.sequences.size());
    pass.blocks_per_sequence = pages, pass.pages_per_block = 1;
    pass.wanted = static_cast<int>(rows_.wanted.size()), pass.layers = m_.shape.layers, pass.taps = 1;
    pass.tokens = rows_.tokens.data(), pass.positions = rows_.positions.data(), pass.parents = rows_.parents.data();
    pass.row_starts = rows_.starts.data(), pass.cached_lengths = rows_.cached.data();
    pass.first_positions = rows_.firsts.data();
    pass.block_tables = blocks_.data(), pass.logit_rows = rows_.wanted.data(), pass.tap_layers = &draft.state_tap;
    pass.inputs = inputs_.data(), pass.true_features = path_length == 0;
    pass.path_length = path_length, pass.paths = path_length ? rows_.paths.data() : nullptr;
    pass.logits = logits, pass.logit_stride = draft.columns, pass.tap_rows = &states, pass.lean = true;
    pass.context_rows = rows_.context, pass.both_ways = draft.block && !draft.block->causal;
    return runner_.run(cache, pass);
  }

  // The tables of a pass.
  struct Rows {
    std::vector<int32_t> tokens, positions, parents, paths, wanted, starts, cached, firsts, sequences;
    int context = 0;  // rows of the target's states alone

    int count() const { return static_cast<int>(tokens.size()); }
    void clear() {
      for (std::vector<int32_t> *table : {&tokens, &positions, &parents, &paths, &wanted, &cached, &firsts, &sequences})
        table->clear();
      starts.assign(1, 0), context = 0;
    }
    void add(int token, int position, int parent) {
      tokens.push_back(token), positions.push_back(position), parents.push_back(parent);
    }
    void end_sequence(int sequence, int cached_rows, int first) {
      sequences.push_back(sequence), cached.push_back(cached_rows), firsts.push_back(first), starts.push_back(count());
    }
  };

  const Decoder &m_;
  PassRunner &runner_;
  NoiseRanking noise_ranking_;
  LikeliestPaths paths_;
  BlockFactors factors_;
  PathSelector selector_;
  bool shows_ = false;                   // the caller looks at logits between the levels
  std::vector<GrowingTree> trees_;       // [sequence]
  std::vector<float> states_, inputs_;   // of the rows of the last pass, and of the next
  std::vector<float> said_, best_rows_;  // [slot][columns] by the one pass; [sequence][vocab] after best chains
  Rows rows_;
  std::vector<int> level_tokens_;  // of a sequence
  std::vector<RankedRow> ranked_;
  std::vector<float> log_probs_;  // [row of logits][rank]
  std::vector<int32_t> tokens_;   // likewise, target ids; -1: nothing that the target has
  std::vector<int32_t> blocks_;
};
