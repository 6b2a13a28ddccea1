// Several rounds of some sequences without a return to Python: draft, pass, accept, again. Between two passes the
// interpreter's memory has left the caches, so that a round's worth of it costs up to a millisecond.
#pragma once
#include <chrono>

#include "rounds/draft.h"
#include "rounds/own_chains.h"
#include "rounds/round_states.h"
#include "rounds/sampling.h"
#include "rounds/suffix_text.h"
#include "rounds/tree_cut.h"

class Stretch {
 public:
  Stretch(const Decoder &model, PassRunner &runner) : m_(model), runner_(runner) {}

  // Of a head's model, or of other weights.
  struct Drafting {
    Draft &draft;
    const Decoder &model;
    PassRunner &runner;
  };

  // See headstart_stretch. `drafting_of` gives a head's part of a model.
  template <class DraftingOf>
  const char *run(const Cache &cache, HeadstartStretch &stretch, DraftingOf &&drafting_of) {
    s_ = &stretch;
    stretch.rounds = 0, stretch.at_fault = -1;
    begin();
    const auto began = Clock::now();
    bool ended = false;
    double allowance = stretch.cut_rule ? stretch.cut_rule->allowance : 0.0;
    while (!ended && stretch.rounds < stretch.most_rounds && seconds_since(began) < stretch.most_seconds) {
      HeadstartRound &round = stretch.round[stretch.rounds] = {};
      const auto start = Clock::now();
      for (SequenceState &sequence : sequences_) sequence.begin_round();
      for (int i = 0; i < kGuessers; ++i) {
        stretch.at_fault = i;
        if (const char *error = guess(i, cache, round, drafting_of)) return error;
      }
      stretch.at_fault = -1;
      choose(round);
      const auto drafted = Clock::now();
      if (const char *error = pass(cache)) return error;
      round.pass_seconds = seconds_since(drafted);
      const auto passed = Clock::now();
      for (SequenceState &sequence : sequences_)
        if (!walk(sequence)) return nullptr;  // not a round
      round.walk_seconds = seconds_since(passed);
      for (SequenceState &sequence : sequences_) {
        keep(cache, sequence);
        const auto kept = Clock::now();
        if (const char *error = read_along(sequence, drafting_of)) return error;
        round.read_seconds += seconds_since(kept);
        ended |= judge(sequence);
      }
      ++stretch.rounds;
      round.other_seconds = seconds_since(start) - round.pass_seconds - round.walk_seconds - round.read_seconds -
                            round.draft_seconds[0] - round.draft_seconds[1];
      if (!stretch.cut_rule) continue;
      allowance += stretch.cut_rule->plain_seconds * said_in_round() - seconds_since(start);
      ended |= allowance < 0 && stretch.rounds >= kLeastRounds;
    }
    return nullptr;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int kLeastRounds = 2;  // fewer than that are no stretch to Python

  // One sequence, and its round.
  struct SequenceState {
    HeadstartStretched *of;
    const int32_t *block_table;
    std::vector<int32_t> said;     // by the target, in this stretch
    std::vector<int32_t> waiting;  // tokens after the rows that a head has not read
    int before;                    // of `said`, when the round began
    int nodes, depth;              // that its guesses may have
    Guesses guesses[kGuessers], tree;
    int first_row;          // in the pass; row 0 of its own is its root, row i + 1 node i
    int first_answer;       // in `best_`; or in `logits_`, where it samples
    std::vector<int> kept;  // of its own rows those that stay
    HeadstartSpan *span;
    int32_t *path;
    RoundStates states;

    void begin_round() {
      before = static_cast<int>(said.size());
      nodes = std::min(of->nodes, of->room - before - 1);
      depth = std::min({of->depth, of->most_tokens - before - 1, nodes});
    }
    int position() const { return of->cached + before; }  // of the root
    bool has_room() const { return nodes > 0 && depth > 0; }
    int root() const { return said.empty() ? of->root : said.back(); }
  };

  // Tokens of a sequence in the latest round, on average.
  double said_in_round() const {
    double said = 0;
    for (const SequenceState &sequence : sequences_) said += static_cast<int>(sequence.said.size()) - sequence.before;
    return said / static_cast<double>(sequences_.size());
  }

  static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  void begin() {
    sequences_.resize(s_->sequences), adapters_.clear();
    for (int i = 0; i < s_->sequences; ++i) {
      SequenceState &sequence = sequences_[i];
      sequence.of = &s_->stretched[i], sequence.block_table = s_->block_tables + static_cast<size_t>(i) * s_->blocks;
      sequence.said.clear(), sequence.waiting.clear();
      adapters_.push_back(sequence.of->adapter);
      sequence.states.begin(*sequence.of, s_->most_rounds, s_->pages_per_block * kPageKeys);
      for (HeadstartGuesser &guesser : sequence.of->guessers) {
        guesser.judged = 0;
        if (guesser.suffix) guesser.suffix->learnt = 0;
        if (HeadstartHead *head = guesser.head) {
          sequence.waiting.assign(head->tokens, head->tokens + head->unread);
          head->learnt = 0;
        }
      }
    }
  }

  // What one drafter proposes for all sequences.
  template <class DraftingOf>
  const char *guess(int i, const Cache &cache, HeadstartRound &round, DraftingOf &&drafting_of) {
    const auto start = Clock::now();
    bool any = false;
    asked_.clear(), chains_.clear();
    void *own_model = nullptr;
    for (SequenceState &sequence : sequences_) {
      const HeadstartStretched &of = *sequence.of;
      sequence.guesses[i].clear();
      if (!sequence.has_room()) continue;
      any |= of.guessers[i].suffix || of.guessers[i].own || (of.guessers[i].head && of.guessers[i].head->asked);
      if (HeadstartSuffix *suffix = of.guessers[i].suffix) {
        auto &text = *static_cast<SuffixText *>(suffix->text);
        for (; suffix->learnt < sequence.before; ++suffix->learnt) text.append(sequence.said[suffix->learnt]);
        text.guess(*suffix, nullptr, 0, sequence.nodes, sequence.depth, sequence.guesses[i]);
      } else if (of.guessers[i].head && of.guessers[i].head->asked) {
        asked_.push_back(&sequence);
      } else if (const HeadstartOwnWeights *own = of.guessers[i].own) {
        own_model = own->model;
        chains_.push_back({sequence.block_table, sequence.root(), sequence.position(),
                           std::min({sequence.nodes, sequence.depth, own->depth}), of.sampling, &sequence.guesses[i]});
      }
    }
    if (!chains_.empty()) {
      const Drafting own = drafting_of(own_model);
      if (const char *error = own_chains_.run(cache, own.runner, own.model, chains_, s_->blocks, s_->pages_per_block))
        return error;
    }
    if (!asked_.empty()) {
      const HeadstartHead &first = *asked_[0]->of->guessers[i].head;
      if (const char *error = draft(i, first, drafting_of(first.model))) return error;
    }
    if (any) round.draft_seconds[i] = seconds_since(start);
    return nullptr;
  }

  // Grows trees from what the heads of the sequences in `asked_` were shown.
  const char *draft(int i, const HeadstartHead &first, Drafting drafting) {
    const size_t size = drafting.model.shape.features, count = asked_.size();
    int width = 0, depth = 0;
    drafted_.assign(count, {});
    for (size_t k = 0; k < count; ++k) {
      const SequenceState &sequence = *asked_[k];
      HeadstartHead &head = *sequence.of->guessers[i].head;
      if (head.model != first.model || head.cache != first.cache) return "the heads of one drafter differ";
      HeadstartDrafted &of = drafted_[k];
      of.cached = head.cached, of.unread = head.unread, of.first = head.first;
      of.root = sequence.position(), of.sampling = sequence.of->sampling;
      of.depth = std::min(sequence.depth, head.depth), of.nodes = std::min(sequence.nodes, head.nodes);
      learn_text_tokens(sequence, head, drafting.model.shape.hidden);
      of.text_tokens = head.text_tokens, of.pages = head.pages, of.page_table = head.page_table;
      of.tokens = sequence.waiting.data();
      of.features = head.features + (head.held - head.unread) * size;
      width = std::max(width, of.nodes), depth = std::max(depth, of.depth);
    }
    for (std::vector<int32_t> *table : {&node_tokens_, &node_parents_}) table->resize(count * width);
    node_scores_.resize(count * width);
    for (size_t k = 0; k < count; ++k)
      drafted_[k].node_tokens = &node_tokens_[k * width], drafted_[k].node_parents = &node_parents_[k * width],
      drafted_[k].node_scores = &node_scores_[k * width];
    HeadstartDraft settings = *first.draft;
    settings.sequences = static_cast<int32_t>(count), settings.drafted = drafted_.data();
    if (const char *error = drafting.draft.run(*static_cast<const Cache *>(first.cache), settings, 0, depth))
      return error;
    for (size_t k = 0; k < count; ++k) {
      SequenceState &sequence = *asked_[k];
      HeadstartHead &head = *sequence.of->guessers[i].head;
      head.cached += head.unread, head.unread = 0;
      sequence.waiting.clear();
      grade(head, drafted_[k], sequence.guesses[i]);
    }
    return nullptr;
  }

  // What was said since may be guessed again.
  static void learn_text_tokens(const SequenceState &sequence, HeadstartHead &head, int hidden) {
    if (!head.text_tokens) return;
    for (; head.learnt < sequence.before; ++head.learnt)
      add_text_token(*head.text_tokens, hidden, sequence.said[head.learnt]);
  }

  // How sure a head is of each node given its parent; the first level has classes of its own.
  static void grade(const HeadstartHead &head, const HeadstartDrafted &drafted, Guesses &to) {
    const Bounds bounds{head.bound, head.bounds};
    for (int i = 0; i < drafted.found; ++i) {
      const int parent = drafted.node_parents[i];
      const double score = drafted.node_scores[i];
      const double step = parent == kRoot ? score : score - drafted.node_scores[parent];
      to.add(drafted.node_tokens[i], parent, bounds.below(step) + (parent == kRoot ? 0 : head.bounds + 1),
             std::exp(step));
    }
  }

  // The trees that are verified.
  void choose(HeadstartRound &round) {
    if (s_->cut_rule) {
      cut_.begin(*s_->cut_rule);
      for (SequenceState &sequence : sequences_)
        cut_.add(sequence.of->guessers, sequence.guesses, sequence.nodes, sequence.depth);
      cut_.cut(round);
    }
    for (size_t i = 0; i < sequences_.size(); ++i) {
      SequenceState &sequence = sequences_[i];
      const size_t place = s_->rounds * sequences_.size() + i, first = place * s_->nodes;
      HeadstartSpan &span = s_->span[place] = {};
      span.asked = sequence.has_room();
      sequence.span = &span, sequence.path = s_->path + first;
      if (s_->cut_rule)
        cut_.take(static_cast<int>(i), sequence.tree, span);
      else
        sequence.tree = sequence.guesses[0];
      const Guesses &tree = sequence.tree;
      std::copy(tree.tokens.begin(), tree.tokens.end(), s_->node_tokens + first);
      std::copy(tree.parents.begin(), tree.parents.end(), s_->node_parents + first);
      std::copy(tree.grades.begin(), tree.grades.end(), s_->node_grades + first);
      std::copy(tree.chances.begin(), tree.chances.end(), s_->node_chances + first);
      span.drafted = tree.size();
    }
  }

  const char *pass(const Cache &cache) {
    tokens_.clear(), parents_.clear(), cached_.clear(), starts_.assign(1, 0);
    best_rows_.clear(), logit_rows_.clear(), states_before_.clear(), states_after_.clear();
    for (SequenceState &sequence : sequences_) {
      if (m_.keeps_states() && !sequence.states.begin_round(sequence.tree.size() + 1, states_before_, states_after_))
        return "there are too few slots of states";
      sequence.first_row = static_cast<int>(tokens_.size());
      std::vector<int32_t> &asked = sequence.of->sampling ? logit_rows_ : best_rows_;
      sequence.first_answer = static_cast<int>(asked.size());
      for (int row = 0; row <= sequence.tree.size(); ++row) asked.push_back(sequence.first_row + row);
      tokens_.push_back(sequence.root()), parents_.push_back(kRoot);
      tokens_.insert(tokens_.end(), sequence.tree.tokens.begin(), sequence.tree.tokens.end());
      for (const int32_t parent : sequence.tree.parents) parents_.push_back(sequence.first_row + parent + 1);
      starts_.push_back(static_cast<int32_t>(tokens_.size())), cached_.push_back(sequence.position());
    }
    const int rows = static_cast<int>(tokens_.size());
    best_.resize(best_rows_.size());
    // It never shrinks: what it would grow by again is filled with zeros.
    logits_.resize(std::max(logits_.size(), logit_rows_.size() * m_.shape.vocab));
    states_.resize(static_cast<size_t>(s_->taps) * rows * m_.shape.hidden);
    taps_.clear();
    for (int tap = 0; tap < s_->taps; ++tap)
      taps_.push_back(states_.data() + static_cast<size_t>(tap) * rows * m_.shape.hidden);
    HeadstartPass pass{};
    pass.rows = rows, pass.sequences = s_->sequences, pass.blocks_per_sequence = s_->blocks;
    pass.pages_per_block = s_->pages_per_block, pass.layers = m_.shape.layers, pass.taps = s_->taps;
    pass.tokens = tokens_.data(), pass.parents = parents_.data(), pass.row_starts = starts_.data();
    pass.cached_lengths = cached_.data(), pass.block_tables = s_->block_tables;
    pass.memory_blocks = s_->memory_blocks;
    pass.memory_lengths = s_->memory_lengths, pass.memory_tables = s_->memory_tables;
    pass.best = static_cast<int>(best_rows_.size()), pass.best_rows = best_rows_.data(), pass.best_ids = best_.data();
    pass.wanted = static_cast<int>(logit_rows_.size()), pass.logit_rows = logit_rows_.data();
    pass.logits = logits_.data(), pass.tap_layers = s_->tap_layers, pass.tap_rows = taps_.data();
    pass.experts = &s_->round[s_->rounds].experts;
    if (std::any_of(adapters_.begin(), adapters_.end(), [](const void *each) { return each; }))
      pass.adapters = adapters_.data();
    if (m_.keeps_states()) pass.states_before = states_before_.data(), pass.states_after = states_after_.data();
    return runner_.run(cache, pass);
  }

  // Follows the target's own tokens down the tree; false where it has none, or they cannot be told here.
  bool walk(SequenceState &sequence) {
    sequence.kept.assign(1, 0);
    for (int node = kRoot;;) {
      const int32_t token = answer(sequence, node + 1);
      if (token < 0) return false;
      sequence.said.push_back(token);
      const int child = sequence.tree.child(node, token);
      if (child < 0) {
        sequence.span->token = token;
        return true;
      }
      sequence.path[sequence.span->accepted++] = node = child;
      sequence.kept.push_back(node + 1);
    }
  }

  // What the target says after a row, the last of `kept`; -1 where it has nothing, or Python must decide.
  int32_t answer(const SequenceState &sequence, int row) const {
    const size_t place = sequence.first_answer + row;
    if (!sequence.of->sampling) return best_[place];
    const int position = sequence.position() + static_cast<int>(sequence.kept.size());
    return drawn(&logits_[place * m_.shape.vocab], m_.shape.vocab, *sequence.of->sampling, position);
  }

  // Moves the accepted rows behind the tokens that were cached.
  void keep(const Cache &cache, SequenceState &sequence) const {
    if (m_.keeps_states()) sequence.states.end_round(sequence.before, sequence.kept);
    const int first = sequence.position(), size = s_->pages_per_block * kPageKeys;
    const auto place = [&](int row) {
      const int slot = first + row;
      return sequence.block_table[slot / size] * size + slot % size;
    };
    for (int i = 1; i < static_cast<int>(sequence.kept.size()); ++i)
      if (sequence.kept[i] != i) cache.keys_values.move_slot(place(sequence.kept[i]), place(i));
  }

  // Shows heads the states of the accepted rows, and the tokens after them.
  template <class DraftingOf>
  const char *read_along(SequenceState &sequence, DraftingOf &&drafting_of) {
    for (int i = 0; i < kGuessers; ++i) {
      if (!sequence.of->guessers[i].head) continue;
      HeadstartHead &head = *sequence.of->guessers[i].head;
      if (head.held + static_cast<int>(sequence.kept.size()) > head.room) {
        s_->at_fault = i;
        return "a head has no room for what was said";
      }
      const size_t size = drafting_of(head.model).model.shape.features, hidden = m_.shape.hidden;
      for (const int row : sequence.kept) {
        float *to = head.features + head.held++ * size;
        for (int tap = 0; tap < s_->taps; ++tap)
          std::copy_n(taps_[tap] + (sequence.first_row + row) * hidden, hidden, to + tap * hidden);
        ++head.unread;
      }
      sequence.waiting.insert(sequence.waiting.end(), sequence.said.begin() + sequence.before, sequence.said.end());
    }
    return nullptr;
  }

  // Counts which guesses hold against what was said in the round; whether that ends the stretch.
  static bool judge(SequenceState &sequence) {
    const HeadstartStretched &of = *sequence.of;
    const int said = static_cast<int>(sequence.said.size());
    const int32_t *const last = of.end_tokens + of.ends;
    int end = sequence.before;
    bool ends = false;
    while (!ends && end < said) {
      ends = std::find(of.end_tokens, last, sequence.said[end]) != last;
      ends |= ++end >= of.most_tokens;
    }
    for (int i = 0; i < kGuessers; ++i) {
      HeadstartGuesser &guesser = sequence.of->guessers[i];
      const Guesses &guesses = sequence.guesses[i];
      int path = kRoot;
      for (int at = sequence.before; at < end; ++at) {
        int accepted = -1;
        for (int node = path + 1; node < guesses.size(); ++node) {
          if (guesses.parents[node] != path) continue;
          const bool holds = guesses.tokens[node] == sequence.said[at];
          if (guesser.judged < guesser.room) {
            guesser.judgements[guesser.judged++] = 2 * guesses.grades[node] + holds;
            ++sequence.span->judged[i];
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
  std::vector<SequenceState> sequences_;
  TreeCut cut_;
  OwnChains own_chains_;
  std::vector<OwnChain> chains_;
  std::vector<SequenceState *> asked_;  // those that a head drafts for
  std::vector<HeadstartDrafted> drafted_;
  std::vector<int32_t> node_tokens_, node_parents_;  // of the drafts
  std::vector<float> node_scores_;
  std::vector<int32_t> tokens_, parents_, starts_, cached_, best_rows_, logit_rows_, best_;  // of the pass
  std::vector<int32_t> states_before_, states_after_;                                        // likewise
  std::vector<const void *> adapters_;                                                       // [sequence]
  std::vector<float> states_, logits_;
  std::vector<float *> taps_;  // [tap] into states_
};
