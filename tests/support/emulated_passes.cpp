// Runs passes of one model on the library that it is compiled with, as `emulation.py` has written them down, on
// whatever processor it is compiled for. Reads numbers in this machine's order; arrays come with their size in bytes
// before them.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "api.cpp"

namespace {

class Reader {
 public:
  explicit Reader(const char *path) {
    const int file = open(path, O_RDONLY);
    struct stat found;
    if (file < 0 || fstat(file, &found)) fail("the file cannot be read");
    end_ = static_cast<size_t>(found.st_size);
    bytes_ = static_cast<const char *>(mmap(nullptr, end_, PROT_READ, MAP_PRIVATE, file, 0));
  }

  int number() { return *static_cast<const int32_t *>(take(4)); }
  const void *array(size_t *count = nullptr, size_t each = 1) {
    int64_t size;
    std::memcpy(&size, take(8), 8);
    if (count) *count = size / each;
    return size ? take(size) : nullptr;
  }
  std::vector<int32_t> integers() {
    size_t count;
    const auto *at = static_cast<const int32_t *>(array(&count, 4));
    return {at, at + count};
  }

  [[noreturn]] static void fail(const char *why) {
    std::fprintf(stderr, "%s\n", why);
    std::exit(1);
  }

 private:
  const void *take(size_t size) {
    const void *at = bytes_ + at_;
    if ((at_ += size) > end_) fail("the file is too short");
    return at;
  }

  const char *bytes_;
  size_t at_ = 0, end_;
};

void read_norm(Reader &from, void *model, int layer, int which) {
  size_t size;
  const auto *weight = static_cast<const float *>(from.array(&size, 4));
  const auto *bias = static_cast<const float *>(from.array());
  if (weight) headstart_set_norm(model, layer, which, weight, bias, static_cast<int>(size));
}
// Numbers of floats and of bf16 among GGUF's types.
constexpr int kFloats = 0, kBf16 = 30;

HeadstartRows read_matrix(Reader &from, int kind) {
  size_t size;
  HeadstartRows rows{};
  rows.rows = from.number(), rows.kind = kind;
  rows.data = from.array(&size);
  rows.row_bytes = rows.rows ? static_cast<int64_t>(size) / rows.rows : 0;
  return rows;
}
void read_linear(Reader &from, void *model, int layer, int which) {
  const HeadstartRows weight = read_matrix(from, kFloats);
  const auto *bias = static_cast<const float *>(from.array());
  if (weight.rows) headstart_set_linear(model, layer, which, &weight, 1, bias);
}
void read_constant(Reader &from, void *model, int layer, int which) {
  size_t size;
  const auto *values = static_cast<const float *>(from.array(&size, 4));
  if (values) headstart_set_constant(model, layer, which, values, static_cast<int>(size));
}
void read_experts(Reader &from, void *model, int layer) {
  const int experts = from.number();
  if (!experts) return;
  const HeadstartRows router = read_matrix(from, kFloats);
  const auto *bias = static_cast<const float *>(from.array());
  headstart_set_router(model, layer, &router, 1, bias, static_cast<const float *>(from.array()));
  for (int expert = 0; expert < experts; ++expert)
    for (int which = 0; which < kExpertLinears; ++which) {
      const HeadstartRows weight = read_matrix(from, kFloats);
      headstart_set_expert(model, layer, expert, which, &weight, 1, static_cast<const float *>(from.array()));
    }
}

void *read_model(Reader &from, int &vocab) {
  const auto *shape = static_cast<const HeadstartShape *>(from.array());
  const auto *layers = static_cast<const HeadstartLayer *>(from.array());
  const auto *bits = static_cast<const uint8_t *>(from.array());
  vocab = shape->vocab;
  void *model = headstart_create(shape, layers, bits);
  const int norms = from.number(), linears = from.number(), constants = from.number();
  for (int layer = 0; layer < shape->layers; ++layer) {
    for (int i = 0; i < norms; ++i) read_norm(from, model, layer, i);
    for (int i = 0; i < linears; ++i) read_linear(from, model, layer, i);
    for (int i = 0; i < constants; ++i) read_constant(from, model, layer, i);
    read_experts(from, model, layer);
  }
  read_norm(from, model, -1, 0);
  read_linear(from, model, -1, 0);
  const int kind = from.number() ? kBf16 : kFloats;
  const HeadstartRows table = read_matrix(from, kind);
  headstart_set_embedding(model, &table, 1, nullptr, 0);
  for (int rope = 0, ropes = from.number(); rope < ropes; ++rope) {
    const int positions = from.number(), dimensions = from.number();
    const auto *cosines = static_cast<const float *>(from.array()), *sines = static_cast<const float *>(from.array());
    headstart_set_rope(model, rope, cosines, sines, positions, dimensions);
  }
  return model;
}

// Passes over one sequence, whose blocks are the cache's pages in order.
class Sequence {
 public:
  Sequence(void *model, int vocab, int layers, int pages)
      : model_(model), vocab_(vocab), layers_(layers), cache_(headstart_cache_create(model, pages, pages * kPageKeys)) {
    for (int i = 0; i < pages; ++i) pages_.push_back(i);
  }
  ~Sequence() { headstart_cache_destroy(cache_); }

  // The logits of all rows, or the best token of the last one.
  std::vector<float> logits(int cached, const std::vector<int32_t> &tokens, const std::vector<int32_t> &parents) {
    std::vector<int32_t> rows;
    for (size_t i = 0; i < tokens.size(); ++i) rows.push_back(static_cast<int32_t>(i));
    std::vector<float> logits(tokens.size() * vocab_);
    run(cached, tokens, parents, rows, {}, logits.data(), nullptr);
    return logits;
  }
  int32_t best(int cached, const std::vector<int32_t> &tokens) {
    std::vector<int32_t> parents;
    for (size_t i = 0; i < tokens.size(); ++i) parents.push_back(static_cast<int32_t>(i) - 1);
    int32_t id;
    run(cached, tokens, parents, {}, {static_cast<int32_t>(tokens.size()) - 1}, nullptr, &id);
    return id;
  }

 private:
  void run(int cached, const std::vector<int32_t> &tokens, const std::vector<int32_t> &parents,
           const std::vector<int32_t> &logit_rows, const std::vector<int32_t> &best_rows, float *logits,
           int32_t *best) {
    const int32_t starts[2] = {0, static_cast<int32_t>(tokens.size())}, lengths[1] = {cached};
    HeadstartPass pass{};
    pass.rows = starts[1], pass.sequences = 1, pass.layers = layers_;
    pass.blocks_per_sequence = static_cast<int32_t>(pages_.size()), pass.pages_per_block = 1;
    pass.wanted = static_cast<int32_t>(logit_rows.size()), pass.best = static_cast<int32_t>(best_rows.size());
    pass.tokens = tokens.data(), pass.parents = parents.data();
    pass.row_starts = starts, pass.cached_lengths = lengths, pass.block_tables = pages_.data();
    pass.logit_rows = logit_rows.data(), pass.best_rows = best_rows.data();
    pass.logits = logits, pass.best_ids = best;
    // The state after a token has the slot with the token's number.
    const int32_t before[1] = {cached - 1};
    std::vector<int32_t> after;
    for (int row = 0; row < pass.rows; ++row) after.push_back(cached + row);
    pass.states_before = before, pass.states_after = after.data();
    if (const char *error = headstart_forward(model_, cache_, &pass)) Reader::fail(error);
  }

  void *model_;
  int vocab_, layers_;
  void *cache_;
  std::vector<int32_t> pages_;
};

template <class T>
void write(std::ofstream &to, const std::vector<T> &values) {
  to.write(reinterpret_cast<const char *>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(T)));
}

}  // namespace

int main(int, char **arguments) {
  Reader weights(arguments[1]), from(arguments[2]);
  std::ofstream to(arguments[3], std::ios::binary);
  if (!headstart_enable()) return 1;
  int vocab;
  void *model = read_model(weights, vocab);
  const int layers = model_of(model)->decoder.shape.layers, pages = from.number();
  Sequence sequence(model, vocab, layers, pages);
  for (int passes = from.number(); passes > 0; --passes) {
    const int cached = from.number();
    const std::vector<int32_t> tokens = from.integers(), parents = from.integers();
    write(to, sequence.logits(cached, tokens, parents));
  }
  for (int greedy = from.number(); greedy > 0; --greedy) {
    std::vector<int32_t> tokens = from.integers(), said;
    const int count = from.number();
    for (int cached = 0; static_cast<int>(said.size()) < count;) {
      said.push_back(sequence.best(cached, tokens));
      cached += static_cast<int>(tokens.size()), tokens = {said.back()};
    }
    write(to, said);
  }
  HeadstartNoise noise;
  std::memcpy(&noise, from.array(), sizeof noise);
  std::vector<uint32_t> words(from.number());
  headstart_noise_words(&noise, nullptr, static_cast<int64_t>(words.size()), words.data());
  write(to, words);
  headstart_destroy(model);
}
