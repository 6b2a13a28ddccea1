// Tokens that only a sequence's text brings: their output rows, and their logits after a head's states
// (heads/text_vocabulary.py).
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "api.h"
#include "kernels/formats/cells.h"
#include "kernels/formats/stored_rows.h"
#include "kernels/vectors/vector.h"

// Products of a vector with `kCount` others, side by side; each is summed up as if it were alone.
template <int kCount>
static inline void dots(const float *x, const Bf16 *const (&y)[kCount], int size, float *out) {
  const int whole = size & ~15;
  Lanes sums[kCount];
  for (Lanes &sum : sums) sum = splat(0.f);
  for (int k = 0; k < whole; k += 16) {
    const Lanes part = load(x + k);
    for (int i = 0; i < kCount; ++i) sums[i] = fma(part, load_bf16(y[i] + k), sums[i]);
  }
  for (int i = 0; i < kCount; ++i) {
    out[i] = reduce_add(sums[i]);
    for (int k = whole; k < size; ++k) out[i] += x[k] * to_float(y[i][k]);
  }
}

// Products of a vector with `count` others, which `row_of` finds, to `put`.
template <class RowOf, class Put>
static inline void all_dots(const float *x, int size, int count, RowOf &&row_of, Put &&put) {
  int i = 0;
  for (float out[4]; i + 4 <= count; i += 4) {
    dots<4>(x, {row_of(i), row_of(i + 1), row_of(i + 2), row_of(i + 3)}, size, out);
    for (int k = 0; k < 4; ++k) put(i + k, out[k]);
  }
  for (float out; i < count; ++i) {
    dots<1>(x, {row_of(i)}, size, &out);
    put(i, out);
  }
}

// Output rows [count][hidden] of some tokens; each is the same whatever the others are.
static inline void text_rows(const HeadstartTextVocabulary &vocabulary, int hidden, const int32_t *tokens, int count,
                             Bf16 *rows) {
  const size_t inputs = vocabulary.inputs;
  if (const HeadstartRows *stored = vocabulary.stored) {
    std::vector<float> row(inputs);
    for (int i = 0; i < count; ++i) {
      read_stored_row(stored->kind, static_cast<const uint8_t *>(stored->data) + tokens[i] * stored->row_bytes,
                      vocabulary.inputs, row.data());
      for (size_t k = 0; k < inputs; ++k)
        rows[i * inputs + k] = to_bf16(vocabulary.factors ? row[k] * vocabulary.factors[k] : row[k]);
    }
    return;
  }
  const auto *const table = static_cast<const Bf16 *>(vocabulary.table);
  for (int k = 0; k < hidden; ++k)
    all_dots(
        vocabulary.map + k * inputs, vocabulary.inputs, count, [&](int i) { return table + tokens[i] * inputs; },
        [&](int i, float x) { rows[static_cast<size_t>(i) * hidden + k] = to_bf16(x); });
}

// A token that was said: it is known from now on, if the head lacks it.
static inline void add_text_token(HeadstartTextTokens &text_tokens, int hidden, int token) {
  int32_t *const end = text_tokens.tokens + text_tokens.count;
  if (!text_tokens.vocabulary->lacks[token] || text_tokens.count == text_tokens.room ||
      std::find(text_tokens.tokens, end, token) != end)
    return;
  text_rows(*text_tokens.vocabulary, hidden, &token, 1,
            static_cast<Bf16 *>(text_tokens.rows) + static_cast<size_t>(text_tokens.count) * hidden);
  text_tokens.tokens[text_tokens.count++] = token;
}

// Logits after `rows` states [hidden], `stride` floats between their rows. States that were not normed have an `eps`
// for it, others 0.
static inline void text_logits(const HeadstartTextTokens &text_tokens, const float *states, int rows, int hidden,
                               float eps, float *logits, int stride) {
  const auto *const weights = static_cast<const Bf16 *>(text_tokens.rows);
  for (int row = 0; row < rows; ++row) {
    const float *const state = states + static_cast<size_t>(row) * hidden;
    float scale = 1.f;
    if (eps > 0.f) {
      float squares = 0.f;
      for (int k = 0; k < hidden; ++k) squares += state[k] * state[k];
      scale = 1.f / std::sqrt(squares / static_cast<float>(hidden) + eps);
    }
    float *const to = logits + static_cast<size_t>(row) * stride;
    all_dots(
        state, hidden, text_tokens.count, [&](int i) { return weights + static_cast<size_t>(i) * hidden; },
        [&](int i, float x) { to[i] = scale * x + text_tokens.vocabulary->bias; });
  }
}
