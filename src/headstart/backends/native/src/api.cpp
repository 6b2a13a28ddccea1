// The C interface. This file is the whole library: it is compiled once per instruction set, into a library of its
// own, so that no inline function is ever shared between code for different processors.
#include "api.h"

#include <chrono>
#include <new>

#include "kernels/products/best.h"
#include "kernels/products/single_linear.h"
#include "pass/packed_file.h"
#include "pass/pass.h"
#include "rounds/draft.h"
#include "rounds/sampling.h"
#include "rounds/stretch.h"
#include "rounds/text_vocabulary.h"

namespace {

struct Model {
  Model(const HeadstartShape &shape, const HeadstartLayer *layers, const uint8_t *forms)
      : decoder(shape, layers, forms), runner(decoder), draft(decoder, runner), stretch(decoder, runner) {
    decoder.allocate();
  }
  Decoder decoder;
  PassRunner runner;
  Draft draft;
  Stretch stretch;
};

Model *model_of(void *p) { return static_cast<Model *>(p); }
const Decoder &decoder_of(const void *p) { return static_cast<const Model *>(p)->decoder; }
const Cache &cache_of(const void *p) { return *static_cast<const Cache *>(p); }

}  // namespace

extern "C" {

#define HEADSTART_API __attribute__((visibility("default")))

HEADSTART_API int headstart_enable() { return enable_unit(); }

HEADSTART_API void *headstart_create(const HeadstartShape *shape, const HeadstartLayer *layers, const uint8_t *forms) {
  try {
    return new Model(*shape, layers, forms);
  } catch (const std::bad_alloc &) {
    return nullptr;
  }
}
HEADSTART_API void headstart_packed_bytes(const HeadstartShape *shape, const HeadstartLayer *layers,
                                          const uint8_t *forms, int64_t *bytes) {
  const auto packed = Decoder(*shape, layers, forms).packed_bytes();
  std::copy(packed.begin(), packed.end(), bytes);
}
HEADSTART_API void headstart_destroy(void *model) { delete model_of(model); }

HEADSTART_API void headstart_set_norm(void *model, int layer, int which, const float *weight, const float *bias,
                                      int size) {
  model_of(model)->decoder.set_norm(layer, which, weight, bias, size);
}
HEADSTART_API void headstart_set_linear(void *model, int layer, int which, const HeadstartRows *parts, int count,
                                        const float *bias) {
  Decoder &decoder = model_of(model)->decoder;
  const PackedLinear &linear = decoder.linear(layer, which);
  decoder.set_linear(layer, which, StoredMatrix(parts, count, linear.inputs), bias);
}
HEADSTART_API void headstart_set_expert(void *model, int layer, int expert, int which, const HeadstartRows *parts,
                                        int count, const float *bias) {
  Decoder &decoder = model_of(model)->decoder;
  PackedLinear &linear = decoder.layers[layer].experts->linears[which][expert];
  decoder.pack(linear, which == kExpertUp && decoder.shape.experts.gated, StoredMatrix(parts, count, linear.inputs),
               bias);
}
HEADSTART_API void headstart_set_router(void *model, int layer, const HeadstartRows *parts, int count,
                                        const float *bias, const float *correction) {
  Decoder &decoder = model_of(model)->decoder;
  ExpertsLayer &experts = *decoder.layers[layer].experts;
  decoder.pack(experts.router, false, StoredMatrix(parts, count, experts.router.inputs), bias);
  if (correction)
    experts.correction.assign(correction, correction + decoder.shape.experts.count + decoder.shape.experts.idle);
}
HEADSTART_API void headstart_set_sinks(void *model, int layer, const float *sinks) {
  Decoder &decoder = model_of(model)->decoder;
  decoder.layers[layer].sinks.assign(sinks, sinks + decoder.layers[layer].heads);
}
HEADSTART_API void headstart_set_constant(void *model, int layer, int which, const float *values, int count) {
  Decoder &decoder = model_of(model)->decoder;
  std::vector<float> &constant = layer < 0 ? decoder.ends[which] : decoder.layers[layer].constants[which];
  constant.assign(round_up(count, 16), 0.f);
  std::copy_n(values, count, constant.begin());
}
HEADSTART_API void headstart_losses(const void *model, double *losses) {
  const Decoder &decoder = decoder_of(model);
  const auto write = [&](const PackedLinear &linear) {
    for (const double sum : {linear.loss.lost, linear.loss.by_bf16, linear.loss.squares}) *losses++ = sum;
  };
  for (const DecoderLayer &layer : decoder.layers)
    for (int which = 0; which < kLinears; ++which) write(layer.linears[which]);
  write(decoder.head);
  const PackedLinear none;
  for (const DecoderLayer &layer : decoder.layers)
    for (int expert = 0; expert < decoder.shape.experts.count; ++expert)
      for (int which = 0; which < kExpertLinears; ++which)
        write(layer.experts ? layer.experts->linears[which][expert] : none);
  write(decoder.inputs.projection);
  for (const auto *ends : {&decoder.spread, &decoder.merge})
    for (const PackedLinear &linear : *ends) write(linear);
  if (decoder.is_head()) write(decoder.fuse);
}
HEADSTART_API void headstart_set_alibi(void *model, const float *slopes, float scale, int coarse) {
  Decoder &decoder = model_of(model)->decoder;
  for (DecoderLayer &layer : decoder.layers)
    layer.distance_bias = DistanceBias(slopes, layer.heads, scale, coarse != 0);
}
HEADSTART_API void headstart_set_distance_bias(void *model, int layer, const float *table, int distances) {
  Decoder &decoder = model_of(model)->decoder;
  decoder.layers[layer].distance_bias = DistanceBias(table, decoder.layers[layer].heads, distances);
}
HEADSTART_API void headstart_set_rope(void *model, int index, const float *cosines, const float *sines, int positions,
                                      int dimensions) {
  auto &ropes = model_of(model)->decoder.ropes;
  if (index >= static_cast<int>(ropes.size())) ropes.resize(index + 1);
  ropes[index] = {cosines, sines, positions, dimensions};
}
HEADSTART_API void headstart_set_embedding(void *model, const HeadstartRows *table, int keeps, const float *learned,
                                           int positions) {
  Decoder &decoder = model_of(model)->decoder;
  const int size = decoder.shape.hidden;
  if (keeps == 2)
    decoder.embedding.share(decoder.head);
  else if (keeps)
    decoder.embedding.keep(*table, size, decoder.precision != Precision::fp32, decoder.shape.threads);
  else
    decoder.embedding.borrow(*table);
  decoder.learned.assign(learned, learned + static_cast<size_t>(positions) * size);
}
HEADSTART_API void headstart_share_embedding(void *model, void *host) {
  model_of(model)->decoder.embedding.take(model_of(host)->decoder.embedding);
}
HEADSTART_API void headstart_set_inputs_table(void *model, const HeadstartRows *table) {
  model_of(model)->decoder.inputs.table.borrow(*table);
}
HEADSTART_API void headstart_first_inputs(const void *model, const int32_t *tokens, const int32_t *positions, int count,
                                          const int32_t *given, int given_count, const float *values, float *inputs) {
  const Decoder &decoder = decoder_of(model);
  const size_t size = decoder.shape.hidden;
  for (int row = 0; row < count; ++row) {
    float *const to = inputs + row * size;
    decoder.embedding.read(tokens[row], decoder.shape.hidden, decoder.precision != Precision::fp32, to);
    for (size_t k = 0; k < size; ++k) to[k] *= decoder.shape.embedding_scale;
  }
  for (int i = 0; i < given_count; ++i) std::copy_n(values + i * size, size, inputs + given[i] * size);
  if (decoder.learned.empty()) return;
  for (int row = 0; row < count; ++row)
    for (size_t k = 0; k < size; ++k) inputs[row * size + k] += decoder.learned[positions[row] * size + k];
}
HEADSTART_API const char *headstart_save(void *model, int fd, int64_t start) {
  try {
    return PackedFile(model_of(model)->decoder, fd, start).write();
  } catch (const std::bad_alloc &) {
    return "no memory for the file";
  }
}
HEADSTART_API const char *headstart_restore(void *model, int fd, int64_t start) {
  try {
    return PackedFile(model_of(model)->decoder, fd, start).read();
  } catch (const std::bad_alloc &) {
    return "no memory for the file";
  }
}
HEADSTART_API int64_t headstart_bytes(const void *model) { return decoder_of(model).bytes(); }

HEADSTART_API void *headstart_adapter_create(const void *model) {
  try {
    return new Adapter(decoder_of(model));
  } catch (const std::bad_alloc &) {
    return nullptr;
  }
}
HEADSTART_API void headstart_adapter_destroy(void *adapter) { delete static_cast<Adapter *>(adapter); }
HEADSTART_API const char *headstart_adapter_set(void *adapter, int layer, int which, int ranks, const float *down,
                                                const float *up) {
  try {
    static_cast<Adapter *>(adapter)->set(layer, which, ranks, down, up);
    return nullptr;
  } catch (const std::bad_alloc &) {
    return "no memory for the adapter";
  }
}

HEADSTART_API void *headstart_cache_create(const void *model, int pages, int states, int in_bytes) {
  const Decoder &decoder = decoder_of(model);
  const size_t cell = decoder.precision == Precision::fp32 ? sizeof(float) : sizeof(Bf16);
  try {
    return new Cache{{decoder.kept_keys(), pages, cell, in_bytes != 0}, {decoder.kept_states(), states}};
  } catch (const std::bad_alloc &) {
    return nullptr;
  }
}
HEADSTART_API void headstart_cache_destroy(void *cache) { delete static_cast<Cache *>(cache); }
HEADSTART_API void *headstart_cache_data(const void *cache) { return cache_of(cache).keys_values.data(); }
HEADSTART_API int64_t headstart_cache_bytes(const void *cache) {
  return static_cast<int64_t>(cache_of(cache).keys_values.bytes());
}
HEADSTART_API int64_t headstart_cache_state_bytes(const void *cache) {
  return static_cast<int64_t>(cache_of(cache).states.bytes());
}
HEADSTART_API void headstart_cache_move(const void *cache, const int32_t *source, const int32_t *target, int count) {
  for (int i = 0; i < count; ++i) cache_of(cache).keys_values.move_slot(source[i], target[i]);
}
HEADSTART_API void headstart_cache_copy(const void *cache, const int32_t *source, const int32_t *target, int count) {
  for (int i = 0; i < count; ++i) cache_of(cache).keys_values.copy_page(source[i], target[i]);
}
HEADSTART_API int64_t headstart_cache_page_size(const void *cache) {
  return static_cast<int64_t>(cache_of(cache).keys_values.page_size());
}
HEADSTART_API int64_t headstart_cache_slot_size(const void *cache) {
  return static_cast<int64_t>(cache_of(cache).states.slot_size());
}
HEADSTART_API int headstart_cache_read(const void *cache, int first, int count, int slot, void *to) {
  const auto &[pages, states] = cache_of(cache);
  char *at = static_cast<char *>(to);
  for (int i = 0; i < count; ++i, at += pages.page_size()) pages.read_page(first + i, at);
  return slot >= 0 && states.read_slot(slot, at);
}
HEADSTART_API void headstart_cache_write(const void *cache, int first, int count, int slot, const void *from) {
  const auto &[pages, states] = cache_of(cache);
  const char *at = static_cast<const char *>(from);
  for (int i = 0; i < count; ++i, at += pages.page_size()) pages.write_page(first + i, at);
  if (slot >= 0) states.write_slot(slot, at);
}
HEADSTART_API void headstart_write_memory(const void *model, const void *cache, int layer, const int32_t *blocks,
                                          int pages_per_block, int positions, const float *keys_values) {
  const Decoder &decoder = decoder_of(model);
  const int kv_heads = decoder.layers[layer].kv_heads, head_dim = decoder.layers[layer].head_dim;
  const auto write = [&](auto cell, int head) {
    using Cell = decltype(cell);
    for (int i = 0; i < positions; ++i) {
      const int logical = i / kPageKeys;
      const int page = blocks[logical / pages_per_block] * pages_per_block + logical % pages_per_block;
      const float *key = keys_values + (2 * static_cast<size_t>(i) * kv_heads + head) * head_dim;
      const KvCache &kept = cache_of(cache).keys_values;
      kept.write_key<Cell>(layer, page, head, i % kPageKeys, key);
      kept.write_value<Cell>(layer, page, head, i % kPageKeys, key + static_cast<size_t>(kv_heads) * head_dim);
    }
  };
#pragma omp parallel for num_threads(decoder.shape.threads) schedule(static)
  for (int head = 0; head < kv_heads; ++head)
    if (decoder.precision == Precision::fp32)
      write(float{}, head);
    else
      write(Bf16{}, head);
}

HEADSTART_API const char *headstart_forward(void *model, const void *cache, const HeadstartPass *pass) {
  try {
    return model_of(model)->runner.run(cache_of(cache), *pass);
  } catch (const std::bad_alloc &) {
    return "no memory for the pass";
  }
}

HEADSTART_API const char *headstart_draft(void *model, const void *cache, HeadstartDraft *draft, int first, int last) {
  try {
    return model_of(model)->draft.run(cache_of(cache), *draft, first, last);
  } catch (const std::bad_alloc &) {
    return "no memory for the draft";
  }
}

HEADSTART_API const char *headstart_stretch(void *model, const void *cache, HeadstartStretch *stretch) {
  const auto drafting_of = [](void *head) {
    return Stretch::Drafting{model_of(head)->draft, model_of(head)->decoder, model_of(head)->runner};
  };
  try {
    return model_of(model)->stretch.run(cache_of(cache), *stretch, drafting_of);
  } catch (const std::bad_alloc &) {
    return "no memory for the rounds";
  }
}

HEADSTART_API void *headstart_text_create(int max_length, const double *matches, int match_bounds, const double *ratios,
                                          int ratio_bounds) {
  try {
    return new SuffixText(max_length, {matches, match_bounds}, {ratios, ratio_bounds});
  } catch (const std::bad_alloc &) {
    return nullptr;
  }
}
HEADSTART_API void headstart_text_destroy(void *text) { delete static_cast<SuffixText *>(text); }
HEADSTART_API void headstart_text_start(void *text) { static_cast<SuffixText *>(text)->start_text(); }
HEADSTART_API int headstart_text_extend(void *text, const int32_t *tokens, int count) {
  try {
    for (int i = 0; i < count; ++i) static_cast<SuffixText *>(text)->append(tokens[i]);
    return 0;
  } catch (const std::bad_alloc &) {
    return 1;
  }
}
HEADSTART_API int headstart_text_consult(void *text, const void *other) {
  try {
    static_cast<SuffixText *>(text)->consult(*static_cast<const SuffixText *>(other));
    return 0;
  } catch (const std::bad_alloc &) {
    return 1;
  }
}
HEADSTART_API int headstart_text_guess(const HeadstartSuffix *suffix, const int32_t *path, int steps, int nodes,
                                       int depth, int32_t *tokens, int32_t *parents, int32_t *grades) {
  Guesses guesses;
  try {
    static_cast<SuffixText *>(suffix->text)->guess(*suffix, path, steps, nodes, depth, guesses);
  } catch (const std::bad_alloc &) {
    return -1;
  }
  std::copy(guesses.tokens.begin(), guesses.tokens.end(), tokens);
  std::copy(guesses.parents.begin(), guesses.parents.end(), parents);
  std::copy(guesses.grades.begin(), guesses.grades.end(), grades);
  return guesses.size();
}

HEADSTART_API void headstart_noise_words(const HeadstartNoise *noise, const int64_t *ids, int64_t count,
                                         uint32_t *words) {
  ids ? chosen_words(words, ids, count, *noise) : row_words(words, count, *noise);
}
HEADSTART_API int headstart_contenders(const float *logits, int64_t count, double temperature, double floor,
                                       const HeadstartNoise *noise, int64_t *ids, int capacity) {
  return Contest(logits, count, temperature, floor, *noise).run(ids, capacity);
}
HEADSTART_API float headstart_ranked(const float *logits, int64_t count, int64_t rank) {
  return ranked(logits, count, rank);
}
HEADSTART_API double headstart_mass(const float *logits, int64_t count, float peak, double temperature) {
  return mass_of(logits, count, peak, temperature);
}

HEADSTART_API void *headstart_linear_create(int precision, int threads, int outputs, int inputs,
                                            const HeadstartRows *parts, int count, const float *bias, int bits) {
  try {
    return new SingleLinear(static_cast<Precision>(precision), threads, outputs, inputs,
                            StoredMatrix(parts, count, inputs), bias, bits);
  } catch (const std::bad_alloc &) {
    return nullptr;
  }
}
HEADSTART_API void headstart_linear_destroy(void *linear) { delete static_cast<SingleLinear *>(linear); }
HEADSTART_API int64_t headstart_linear_bytes(const void *linear) {
  return static_cast<int64_t>(static_cast<const SingleLinear *>(linear)->bytes());
}
HEADSTART_API const char *headstart_linear_run(void *linear, int rows, const float *x, float *y) {
  return static_cast<SingleLinear *>(linear)->run(rows, x, y);
}

HEADSTART_API void headstart_set_codebook(int kind, const uint8_t *places) {
  with_block(kind, [&](auto block) { set_codebook(block, places); });
}

HEADSTART_API void headstart_read_rows(const HeadstartRows *parts, int count, int inputs, int threads, float *to) {
  const StoredMatrix matrix(parts, count, inputs);
  int outputs = 0;
  for (int i = 0; i < count; ++i) outputs += parts[i].rows;
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int output = 0; output < outputs; ++output) matrix.read(output, to + static_cast<size_t>(output) * inputs);
}

HEADSTART_API void headstart_text_rows(const HeadstartTextVocabulary *vocabulary, int hidden, int threads,
                                       const int32_t *tokens, int count, void *rows) {
  constexpr int kAtOnce = 16;  // their rows of the target's table stay in the nearest cache
#pragma omp parallel for num_threads(threads) if (count > kAtOnce)
  for (int i = 0; i < count; i += kAtOnce)
    text_rows(*vocabulary, hidden, tokens + i, std::min(kAtOnce, count - i),
              static_cast<Bf16 *>(rows) + static_cast<size_t>(i) * hidden);
}

HEADSTART_API void headstart_best(const float *logits, int rows, int size, int ranks, float *log_probs, int32_t *ids) {
  for (int row = 0; row < rows; ++row)
    best_of_row(logits + static_cast<size_t>(row) * size, size, ranks, log_probs + row * ranks, ids + row * ranks);
}

HEADSTART_API double headstart_read_seconds(const void *model) {
  const Decoder &decoder = decoder_of(model);
  const int threads = decoder.shape.threads;
  volatile float sink = 0.f;
  const auto start = std::chrono::steady_clock::now();
#pragma omp parallel num_threads(threads)
  {
    Lanes sums[4] = {splat(0.f), splat(0.f), splat(0.f), splat(0.f)};
    const HugeBuffer &stream = decoder.streams[omp_get_thread_num()];
    for (size_t at = 0; at + 256 <= stream.size(); at += 256) {
      prefetch_lines(stream.data() + at + kPrefetchBytes, 256);
      for (int i = 0; i < 4; ++i)
        sums[i] = max(sums[i], load(reinterpret_cast<const float *>(stream.data() + at) + i * 16));
    }
    const float total = reduce_add(max(max(sums[0], sums[1]), max(sums[2], sums[3])));
#pragma omp critical
    sink = total;
  }
  static_cast<void>(sink);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}
}
