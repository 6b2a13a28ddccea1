// Memory of one thread for the attention of a tile.
#pragma once
#include <algorithm>

#include "kernels/kernel.h"
#include "pass/kv_cache.h"
#include "pass/layout.h"

template <class Cell>
class AttentionScratch {
 public:
  using Query = typename QueryElement<Cell>::type;
  static constexpr int kScoreStride = kChunkKeys + 16;  // no power of two: rows must not share cache sets
  static constexpr int kWidened = 4;                    // pages in 8 bits that are widened together

  // Room for tiles of such keys and values, and for trees of `tree_span` slots.
  void reserve(int key_dim, int value_dim, int tree_span) {
    if (key_dim == key_dim_ && value_dim == value_dim_ && tree_span <= tree_span_) return;
    key_dim_ = key_dim, value_dim_ = value_dim;
    tree_span_ = std::max(tree_span, tree_span_);
    const size_t page_cells = static_cast<size_t>(kPageKeys) * value_dim;
    const size_t widened_cells = static_cast<size_t>(kPageKeys) * std::max(key_dim, value_dim);
    const size_t page_bytes = byte_page_bytes(value_dim);
    size_t bytes = 0;
    const auto take = [&](size_t n) {
      const size_t at = bytes;
      bytes += (n + 127) / 64 * 64;
      return at;
    };
    const size_t query_at = take(kTileEntries * key_dim * sizeof(Query));
    const size_t scores_at = take(kTileEntries * kScoreStride * sizeof(float));
    const size_t slots_at = take(static_cast<size_t>(kTileEntries) * slot_stride() * sizeof(float));
    const size_t weights_at = take(2 * kTileEntries * kScoreStride * sizeof(Query));
    const size_t partial_at = take(2 * kTileEntries * value_dim * sizeof(float));
    const size_t beside_at = take(kTileEntries * value_dim * sizeof(float));
    const size_t sum_at = take(kTileEntries * value_dim * sizeof(float));
    const size_t pages_at = take((kChunkPages + 1) * page_cells * sizeof(Cell));
    const size_t widened_at = take(kWidened * widened_cells * sizeof(Cell));
    const size_t bytes_at = take((kChunkPages + 1) * page_bytes);
    memory_ = AlignedBuffer(bytes);
    char *base = memory_.data();
    query = reinterpret_cast<Query *>(base + query_at);
    scores = reinterpret_cast<float *>(base + scores_at);
    slot_scores = reinterpret_cast<float *>(base + slots_at);
    weights = reinterpret_cast<Query *>(base + weights_at);
    partial = reinterpret_cast<float *>(base + partial_at);
    beside = reinterpret_cast<float *>(base + beside_at);
    sum = reinterpret_cast<float *>(base + sum_at);
    for (int i = 0; i <= kChunkPages; ++i) gathered[i] = reinterpret_cast<Cell *>(base + pages_at) + i * page_cells;
    for (int i = 0; i < kWidened; ++i) widened[i] = reinterpret_cast<Cell *>(base + widened_at) + i * widened_cells;
    for (int i = 0; i <= kChunkPages; ++i) this->bytes[i] = base + bytes_at + i * page_bytes;
  }
  int slot_stride() const { return tree_span_ + 16; }

  Query *query = nullptr;        // [entry][key_dim], scaled
  float *scores = nullptr;       // [entry][kScoreStride], one chunk by logical position
  float *slot_scores = nullptr;  // [entry][slot_stride], a tree's tail by slot
  Query *weights = nullptr;      // [entry][kScoreStride], exp of the scores
  float *partial = nullptr;      // [entry][value_dim], one chunk's values
  float *beside = nullptr;       // the same of the keys of a window, while those are at work that are compressed
  float *sum = nullptr;          // [entry][value_dim]
  Cell *gathered[kChunkPages + 1] = {};
  Cell *widened[kWidened] = {};       // pages of keys or of values that are kept in 8 bits
  char *bytes[kChunkPages + 1] = {};  // those that `gathered` are widened from
  float maximum[kTileEntries] = {}, total[kTileEntries] = {}, chunk_maximum[kTileEntries] = {},
        chunk_total[kTileEntries] = {}, beside_maximum[kTileEntries] = {}, beside_total[kTileEntries] = {};

 private:
  AlignedBuffer memory_;
  int key_dim_ = 0, value_dim_ = 0, tree_span_ = 0;
};
