// Several rounds of one greedy sequence without a return to Python: draft, pass, accept, again. Between two passes the
// interpreter's memory has left the caches, so that a round's worth of it costs up to a millisecond.
#pragma once
#include <chrono>

#include "draft.h"
#include "suffix_text.h"
#include "weighing.h"

class Stretch {
 public:
  Stretch(const Decoder &model, PassRunner &runner) : m_(model), runner_(runner) {}

  // Of a head's model.
  struct Drafting {
    Draft &draft;
    const Decoder &model;
  };

  // See headstart_stretch. `drafting_of` gives a head's part of a model.
  template <class DraftingOf>
  const char *run(const KvCache &cache, HeadstartStretch &stretch, DraftingOf &&drafting_of) {
    s_ = &stretch;
    said_.clear();
    stretch.rounds = 0, stretch.at_fault = -1;
    for (int i = 0; i < kGuessers; ++i) {
      HeadstartGuesser &guesser = stretch.guessers[i];
      guesser.judged = 0;
      if (guesser.suffix) guesser.suffix->learnt = 0;
      if (guesser.head) waiting_.assign(guesser.head->tokens, guesser.head->tokens + guesser.head->unread);
    }
    const auto began = Clock::now();
    int root = stretch.root;
    bool ended = false;
    while (!ended && stretch.rounds < stretch.most_rounds && seconds_since(began) < stretch.most_seconds) {
      HeadstartRound &round = stretch.round[stretch.rounds] = {};
      const auto start = Clock::now();
      const int said = static_cast<int>(said_.size());
      const int nodes = std::min(stretch.nodes, stretch.room - said - 1);
      const int depth = std::min({stretch.depth, stretch.most_tokens - said - 1, nodes});
      for (int i = 0; i < kGuessers; ++i) {
        stretch.at_fault = i;
        if (const char *error = guess(i, nodes, depth, round, drafting_of)) return error;
      }
      stretch.at_fault = -1;
      const Guesses &tree = choose(nodes, round);
      const auto drafted = Clock::now();
      if (const char *error = pass(cache, tree, root)) return error;
      round.pass_seconds = seconds_since(drafted);
      const size_t before = said_.size();
      if (!walk(tree, round)) return nullptr;  // a row without a best token: not a round
      keep(cache, before);
      if (const char *error = read_along(drafting_of)) return error;
      ended = judge(before, round);
      root = said_.back();
      ++stretch.rounds;
      round.other_seconds = seconds_since(start) - round.pass_seconds - round.draft_seconds[0] - round.draft_seconds[1];
    }
    return nullptr;
  }

 private:
  using Clock = std::chrono::steady_clock;

  static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  template <class DraftingOf>
  const char *guess(int i, int nodes, int depth, HeadstartRound &round, DraftingOf &&drafting_of) {
    const HeadstartGuesser &guesser = s_->guessers[i];
    guesses_[i].clear();
    if (nodes <= 0 || depth <= 0) return nullptr;
    const auto start = Clock::now();
    if (guesser.suffix) {
      HeadstartSuffix &suffix = *guesser.suffix;
      auto &text = *static_cast<SuffixText *>(suffix.text);
      for (; suffix.learnt < static_cast<int>(said_.size()); ++suffix.learnt) text.append(said_[suffix.learnt]);
      text.guess(suffix, nodes, depth, guesses_[i]);
    } else if (guesser.head && guesser.head->asked) {
      HeadstartHead &head = *guesser.head;
      if (const char *error = draft(head, std::min(nodes, head.nodes), std::min(depth, head.depth),
                                    drafting_of(head.model)))
        return error;
      grade(head, guesses_[i]);
    }
    round.draft_seconds[i] = seconds_since(start);
    return nullptr;
  }

  // Grows a tree from what the head was shown.
  const char *draft(HeadstartHead &head, int nodes, int depth, Drafting drafting) {
    const size_t size = drafting.model.shape.features;
    for (std::vector<int32_t> *table : {&node_tokens_, &node_parents_}) table->resize(nodes);
    node_scores_.resize(nodes);
    HeadstartDrafted of{};
    of.cached = head.cached, of.unread = head.unread, of.depth = depth, of.nodes = nodes, of.pages = head.pages;
    of.page_table = head.page_table, of.tokens = waiting_.data();
    of.features = head.features + (head.held - head.unread) * size;
    of.node_tokens = node_tokens_.data(), of.node_parents = node_parents_.data(), of.node_scores = node_scores_.data();
    HeadstartDraft one = *head.draft;
    one.sequences = 1, one.drafted = &of;
    const KvCache &cache = *static_cast<const KvCache *>(head.cache);
    if (const char *error = drafting.draft.run(cache, one, 0, depth)) return error;
    head.cached += head.unread, head.unread = 0;
    waiting_.clear();
    found_ = of.found;
    return nullptr;
  }

  // How sure the head is of each node given its parent; the first level has classes of its own.
  void grade(const HeadstartHead &head, Guesses &to) const {
    const Bounds bounds{head.bound, head.bounds};
    for (int i = 0; i < found_; ++i) {
      const int parent = node_parents_[i];
      const double score = node_scores_[i];
      to.add(node_tokens_[i], parent,
             parent == kRoot ? bounds.below(score) : head.bounds + 1 + bounds.below(score - node_scores_[parent]));
    }
  }

  const Guesses &choose(int nodes, HeadstartRound &round) {
    const Guesses *tree = &guesses_[0];
    if (s_->plan) {
      weighing_.choose(*s_->plan, s_->guessers, guesses_, nodes, round);
      tree = &weighing_.tree;
    }
    const size_t first = static_cast<size_t>(s_->rounds) * s_->nodes;
    std::copy(tree->tokens.begin(), tree->tokens.end(), s_->node_tokens + first);
    std::copy(tree->parents.begin(), tree->parents.end(), s_->node_parents + first);
    std::copy(tree->grades.begin(), tree->grades.end(), s_->node_grades + first);
    round.drafted = tree->size();
    return *tree;
  }

  // Row 0 is the root, row i + 1 node i.
  const char *pass(const KvCache &cache, const Guesses &tree, int root) {
    const int rows = 1 + tree.size();
    tokens_.assign(1, root), parents_.assign(1, kRoot);
    tokens_.insert(tokens_.end(), tree.tokens.begin(), tree.tokens.end());
    for (const int32_t parent : tree.parents) parents_.push_back(parent + 1);
    best_.resize(rows), rows_.resize(rows);
    std::iota(rows_.begin(), rows_.end(), 0);
    states_.resize(static_cast<size_t>(s_->taps) * rows * m_.shape.hidden);
    taps_.clear();
    for (int tap = 0; tap < s_->taps; ++tap)
      taps_.push_back(states_.data() + static_cast<size_t>(tap) * rows * m_.shape.hidden);
    const int32_t starts[2] = {0, rows}, cached = s_->cached + static_cast<int>(said_.size());
    HeadstartPass pass{};
    pass.rows = rows, pass.sequences = 1, pass.blocks_per_sequence = s_->blocks;
    pass.pages_per_block = s_->pages_per_block, pass.best = rows, pass.layers = m_.shape.layers, pass.taps = s_->taps;
    pass.tokens = tokens_.data(), pass.parents = parents_.data(), pass.row_starts = starts;
    pass.cached_lengths = &cached, pass.block_tables = s_->block_table;
    pass.best_rows = rows_.data(), pass.tap_layers = s_->tap_layers;
    pass.best_ids = best_.data(), pass.tap_rows = taps_.data();
    return runner_.run(cache, pass);
  }

  // Follows the target's own tokens down the tree; false where it has none.
  bool walk(const Guesses &tree, HeadstartRound &round) {
    int32_t *path = s_->path + static_cast<size_t>(s_->rounds) * s_->nodes;
    const size_t before = said_.size();
    kept_.assign(1, 0);
    for (int node = kRoot;;) {
      const int32_t token = best_[node + 1];
      if (token < 0) {
        said_.resize(before);
        return false;
      }
      said_.push_back(token);
      const int child = tree.child(node, token);
      if (child < 0) {
        round.token = token;
        return true;
      }
      path[round.accepted++] = node = child;
      kept_.push_back(node + 1);
    }
  }

  // Moves the accepted rows behind the tokens that were cached, `before` of them said in this stretch.
  void keep(const KvCache &cache, size_t before) const {
    const int first = s_->cached + static_cast<int>(before);
    for (size_t i = 1; i < kept_.size(); ++i)
      if (kept_[i] != static_cast<int>(i)) cache.move_slot(place(first + kept_[i]), place(first + static_cast<int>(i)));
  }
  int place(int slot) const {
    const int size = s_->pages_per_block * kPageKeys;
    return s_->block_table[slot / size] * size + slot % size;
  }

  // Shows heads the states of the accepted rows, and the tokens after them.
  template <class DraftingOf> const char *read_along(DraftingOf &&drafting_of) {
    for (int i = 0; i < kGuessers; ++i) {
      if (!s_->guessers[i].head) continue;
      HeadstartHead &head = *s_->guessers[i].head;
      if (head.held + static_cast<int>(kept_.size()) > head.room) {
        s_->at_fault = i;
        return "a head has no room for what was said";
      }
      const size_t size = drafting_of(head.model).model.shape.features, hidden = m_.shape.hidden;
      for (const int row : kept_) {
        float *to = head.features + head.held++ * size;
        for (int tap = 0; tap < s_->taps; ++tap) std::copy_n(taps_[tap] + row * hidden, hidden, to + tap * hidden);
        ++head.unread;
      }
      waiting_.insert(waiting_.end(), said_.end() - kept_.size(), said_.end());
    }
    return nullptr;
  }

  // Counts which guesses hold against what was said since `before`; whether that ends the stretch.
  bool judge(size_t before, HeadstartRound &round) {
    size_t end = before;
    bool ends = false;
    while (!ends && end < said_.size()) {
      ends = std::find(s_->end_tokens, s_->end_tokens + s_->ends, said_[end]) != s_->end_tokens + s_->ends;
      ends |= static_cast<int>(++end) >= s_->most_tokens;
    }
    for (int i = 0; i < kGuessers; ++i) {
      HeadstartGuesser &guesser = s_->guessers[i];
      const Guesses &guesses = guesses_[i];
      int path = kRoot;
      for (size_t said = before; said < end; ++said) {
        int accepted = -1;
        for (int node = path + 1; node < guesses.size(); ++node) {
          if (guesses.parents[node] != path) continue;
          const bool holds = guesses.tokens[node] == said_[said];
          if (guesser.judged < guesser.room) {
            guesser.judgements[guesser.judged++] = 2 * guesses.grades[node] + holds;
            ++round.judged[i];
          }
          if (holds) accepted = node;
        }
        if (accepted < 0) break;
        path = accepted;
      }
    }
    return ends;
  }

  const Decoder &m_;
  PassRunner &runner_;
  HeadstartStretch *s_ = nullptr;
  Guesses guesses_[kGuessers];
  Weighing weighing_;
  std::vector<int32_t> said_;     // by the target, in this stretch
  std::vector<int32_t> waiting_;  // tokens after the rows that a head has not read
  std::vector<int> kept_;         // rows of the last pass that stay
  std::vector<int32_t> tokens_, parents_, best_, rows_, node_tokens_, node_parents_;
  std::vector<float> states_, node_scores_;
  std::vector<float *> taps_;  // [tap] into states_
  int found_ = 0;              // nodes of a head's draft
};
