// Chains that another set of a model's weights says, behind the cached tokens in the model's own cache: whatever it
// writes there, the pass that verifies writes anew.
#pragma once
#include <algorithm>
#include <vector>

#include "pass/pass.h"
#include "rounds/guesses.h"
#include "rounds/sampling.h"

// One sequence's.
struct OwnChain {
  const int32_t *block_table;
  int32_t root, position;  // the last token, and its place
  int32_t depth;           // guesses at most
  const HeadstartSampling *sampling;
  Guesses *guesses;
};

class OwnChains {
 public:
  // `blocks`: of a sequence's table. One pass for each token, over all that still grow.
  const char *run(const Cache &cache, PassRunner &runner, const Decoder &model, std::vector<OwnChain> &chains,
                  int blocks, int pages_per_block) {
    for (int step = 0;; ++step) {
      growing_.clear();
      for (OwnChain &chain : chains)
        if (chain.guesses->size() == step && step < chain.depth) growing_.push_back(&chain);
      if (growing_.empty()) return nullptr;
      const int rows = static_cast<int>(growing_.size());
      tokens_.clear(), cached_.clear(), starts_.assign(1, 0), tables_.clear(), best_rows_.clear(), logit_rows_.clear();
      for (int row = 0; row < rows; ++row) {
        const OwnChain &chain = *growing_[row];
        tokens_.push_back(step ? chain.guesses->tokens.back() : chain.root);
        cached_.push_back(chain.position + step), starts_.push_back(row + 1);
        tables_.insert(tables_.end(), chain.block_table, chain.block_table + blocks);
        (chain.sampling ? logit_rows_ : best_rows_).push_back(row);
      }
      parents_.assign(rows, kRoot);
      best_.resize(best_rows_.size());
      logits_.resize(logit_rows_.size() * model.shape.vocab);
      HeadstartPass pass{};
      pass.rows = pass.sequences = rows, pass.blocks_per_sequence = blocks, pass.pages_per_block = pages_per_block;
      pass.layers = model.shape.layers;
      pass.tokens = tokens_.data(), pass.parents = parents_.data(), pass.row_starts = starts_.data();
      pass.cached_lengths = cached_.data(), pass.block_tables = tables_.data();
      pass.best = static_cast<int>(best_rows_.size()), pass.best_rows = best_rows_.data(), pass.best_ids = best_.data();
      pass.wanted = static_cast<int>(logit_rows_.size()), pass.logit_rows = logit_rows_.data();
      pass.logits = logits_.data();
      if (const char *error = runner.run(cache, pass)) return error;
      const float *row_logits = logits_.data();
      const int32_t *best = best_.data();
      for (OwnChain *chain : growing_) {
        int32_t token;
        if (chain->sampling)
          token = drawn(row_logits, model.shape.vocab, *chain->sampling, chain->position + step + 1),
          row_logits += model.shape.vocab;
        else
          token = *best++;
        // Where it has nothing, or a draw cannot be told in short, the chain ends.
        if (token >= 0) chain->guesses->add(token, step ? step - 1 : kRoot, std::min(step, kGradedDepths - 1) * kRanks);
      }
    }
  }

 private:
  static constexpr int kRanks = 8, kGradedDepths = 8;  // drafting/grades.py

  std::vector<OwnChain *> growing_;
  std::vector<int32_t> tokens_, parents_, cached_, starts_, tables_, best_rows_, logit_rows_, best_;
  std::vector<float> logits_;
};
