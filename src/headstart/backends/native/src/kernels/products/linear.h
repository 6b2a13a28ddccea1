// Linear layers: weights packed once into the order in which they are read, and the kernels that multiply them.
#pragma once
#include <algorithm>
#include <climits>
#include <cmath>
#include <vector>

#include "kernels/formats/blocks.h"
#include "kernels/formats/stored/all.h"
#include "kernels/formats/twelve_bits.h"
#include "kernels/platform.h"
#include "kernels/products/multiply.h"
#include "kernels/products/pair_deal.h"

// The last two are of single matrices, of models in int4.
enum class Precision { bf16, int8, int8_fast, fp32, int4, int4_fast, stored, float8 };

// The rows that a linear layer reads: Bf16 or float elements by row, or tiled, [tile of 32 inputs][row][32] where
// vectors multiply bf16, [tile of 64 inputs][row][plane][64] in 8 bits, with one scale a row or, behind the planes, the
// units of its blocks. Behind a row's inputs stand zeros: what weights have there does not matter. In tiles the
// distance of two rows is known to the compiler: the addresses of twelve would leave too few registers.
struct Activations {
  char *data = nullptr;
  size_t row_bytes = 0;     // in a tile, where there are tiles
  size_t tile_bytes = 0;    // tiled: from one tile to the next
  float *scales = nullptr;  // [row], int8

  char *row(int r) const { return data + r * row_bytes; }
  // The rows from `first` on.
  Activations from(int first) const { return {row(first), row_bytes, tile_bytes, scales ? scales + first : nullptr}; }
};
constexpr int kPlaneBytes = 64;                       // of one row in one tile
constexpr int kBlockUnitBytes = 16;                   // of one row's two blocks in one tile
constexpr int kUnquantisedBits = 16, kFullBits = 32;  // what a weight takes, for a level's 4 or 8
constexpr int kStoredForm = 64;                       // and the number of a type: blocks as the file has them
constexpr int kTileInputs = 32;                       // of a tile of bf16 rows
constexpr int kStoredTileInputs = 256;                // of rows that are multiplied with a file's own blocks
constexpr int kStoredRowBytes = 576 + kBytePlanes * 2 * kStoredTileInputs;

// One linear layer. Its 32-column pairs are dealt to the threads in contiguous runs; `weights[t]` is where thread t
// finds its run in its own stream.
struct PackedLinear {
  Precision precision = Precision::bf16;
  int outputs = 0, inputs = 0, padded_inputs = 0, pairs = 0;
  bool apart = false;  // gates and ups are of two types: the one half of the pairs, and the other
  size_t pair_bytes = 0;
  int level_bits = 0;           // of weights in blocks: 4 or 8
  int number = -1;              // among those that adapters change
  std::vector<uint8_t> kinds;   // [pairs], of weights in a file's own blocks: their types
  std::vector<size_t> begins;   // [pairs + 1], likewise: where each pair stands, if all stood in one stream
  std::vector<int> first_pair;  // [threads + 1]
  std::vector<const char *> weights;
  std::vector<float> bias;           // [pairs * 32], empty without bias
  std::vector<float> scales;         // [pairs * 32], int8: a column's unit; blocks: what units and offsets count in
  std::vector<int32_t> column_sums;  // [pairs * 32], int8: what an activation offset of one adds to a column
  std::vector<PairCode> codes;       // [pairs], where bf16 weights are packed in twelve bits
  std::vector<ListedWeight> listed;  // likewise, pair by pair
  PackingLoss loss;                  // in 8 and 4 bits

  size_t begin_of(int pair) const { return begins.empty() ? pair * pair_bytes : begins[pair]; }
  size_t bytes_of(int pair) const { return begin_of(pair + 1) - begin_of(pair); }
  size_t bytes() const { return begin_of(pairs); }

  // Where a pair stands in a thread's stream, its own or one before.
  const char *pair_weights(int thread, int pair) const {
    return weights[thread] + (begin_of(pair) - begin_of(first_pair[thread]));
  }
  const char *pair_weights(int pair) const {
    int thread = 0;
    while (pair >= first_pair[thread + 1]) ++thread;
    return pair_weights(thread, pair);
  }
};

enum class ElementKind { fp32, bf16, int8 };

struct LinearKernel {
  ElementKind element;  // of the activations
  // Converts one padded row of floats to what `multiply` reads.
  void (*store_row)(const Activations &to, int row, const float *x, int padded_inputs);
  // out[rows][32] = rows [row, row + rows) times the pair's 32 columns, scales applied, bias not. The buffer holds
  // `kRowBlock` rows. `ahead` reads the stream that `weights` is part of; null: nothing is to be asked of memory.
  void (*multiply)(const PackedLinear &linear, int pair, const char *weights, const Activations &a, int row, int rows,
                   ReadAhead *ahead, float *out);
  // Where weights are stored packed: writes a pair as `multiply_unpacked`, which does the same as `multiply`, reads it.
  void (*unpack)(const PackedLinear &linear, int pair, const char *weights, ReadAhead &ahead, char *to) = nullptr;
  decltype(multiply) multiply_unpacked = nullptr;
  // Where that is faster: two pairs, one behind the other, for up to `kFewRows` rows; to out[2][kRowBlock][32].
  void (*multiply_two)(const PackedLinear &linear, int pair, const char *weights, const Activations &a, int rows,
                       ReadAhead &ahead, float *out) = nullptr;
  // Where that is faster: the same as `multiply` for more than `kRowBlock` rows and up to two pairs, one behind the
  // other; to out[pairs][whole blocks of rows][32].
  void (*multiply_many)(const PackedLinear &linear, int pair, int pairs, const char *weights, const Activations &a,
                        int row, int rows, ReadAhead *ahead, float *out) = nullptr;
};

constexpr int kRowBlock = 32;  // most rows of one `multiply`
constexpr int kFewRows = 4;    // most rows of one `multiply_two`

// Writes sixteen columns of a row of floating-point activations (8-bit ones need the whole row: `store_row`).
static inline void store_activation(ElementKind kind, const Activations &to, int row, int column, Lanes x) {
  if (kind == ElementKind::bf16) {
    const int tile = kTiledBf16 ? column / kTileInputs : 0;
    store_bf16(reinterpret_cast<Bf16 *>(to.row(row) + tile * to.tile_bytes) + column - tile * kTileInputs, x);
  } else {
    store(reinterpret_cast<float *>(to.row(row)) + column, x);
  }
}

// The same sixteen columns as floats.
static inline Lanes load_activation(ElementKind kind, const Activations &from, int row, int column) {
  if (kind != ElementKind::bf16) return load(reinterpret_cast<const float *>(from.row(row)) + column);
  const int tile = kTiledBf16 ? column / kTileInputs : 0;
  return load_bf16(reinterpret_cast<const Bf16 *>(from.row(row) + tile * from.tile_bytes) + column -
                   tile * kTileInputs);
}

static inline size_t element_bytes(Precision precision) {
  return precision == Precision::fp32 ? 4 : precision == Precision::bf16 ? 2 : 1;
}
static inline bool is_packed(Precision p) { return kTwelveBits && p == Precision::bf16; }
static inline bool is_in_blocks(Precision p) { return p == Precision::int4 || p == Precision::int4_fast; }
// How a matrix of so many bits is kept in a model that computes in `precision`.
static inline Precision precision_of(int bits, Precision precision) {
  if (bits == kFullBits) return Precision::fp32;
  if (!is_in_blocks(precision)) return precision;
  if (bits >= kStoredForm) return is_widened(bits - kStoredForm) ? Precision::float8 : Precision::stored;
  return bits == kUnquantisedBits ? Precision::bf16 : precision;
}
// Whether a matrix is kept as its file has it.
static inline bool is_kept(Precision p) { return p == Precision::stored || p == Precision::float8; }
static inline bool is_quantised(Precision p) {
  return p == Precision::int8 || p == Precision::int8_fast || p == Precision::stored || is_in_blocks(p);
}

// Sizes and the deal of pairs to threads, before any weight is seen. `level_bits` matters to weights in blocks.
static inline PackedLinear linear_layout(Precision precision, int outputs, int inputs, int padded_inputs, int pairs,
                                         int threads, int level_bits = 4) {
  PackedLinear linear;
  linear.precision = precision, linear.level_bits = level_bits;
  linear.outputs = outputs, linear.inputs = inputs, linear.padded_inputs = padded_inputs, linear.pairs = pairs;
  const size_t tiles = padded_inputs / 32;
  const int block_bytes = level_bits == 8 ? EightBits::kBytes : FourBits::kBytes;
  linear.pair_bytes = tiles * (is_packed(precision)      ? kPackedTileBytes
                               : is_in_blocks(precision) ? block_bytes
                                                         : kTileCells * element_bytes(precision));
  linear.first_pair.resize(threads + 1);
  for (int t = 0; t <= threads; ++t) linear.first_pair[t] = static_cast<int>(static_cast<int64_t>(pairs) * t / threads);
  linear.weights.resize(threads);
  return linear;
}

// The same of weights in a file's own blocks, whose types `kind_of(pair)` says. Threads get about equally many bytes.
template <class KindOf>
static inline PackedLinear stored_layout(Precision precision, int outputs, int inputs, int padded_inputs, int pairs,
                                         int threads, KindOf &&kind_of) {
  PackedLinear linear = linear_layout(precision, outputs, inputs, padded_inputs, pairs, threads);
  linear.begins.push_back(0);
  for (int pair = 0; pair < pairs; ++pair) {
    linear.kinds.push_back(static_cast<uint8_t>(kind_of(pair)));
    linear.begins.push_back(linear.begins.back() + stored_bytes(linear.kinds.back(), padded_inputs));
  }
  for (int t = 1; t < threads; ++t) {
    const auto at = std::lower_bound(linear.begins.begin(), linear.begins.end(), linear.bytes() * t / threads);
    linear.first_pair[t] = static_cast<int>(at - linear.begins.begin());
  }
  return linear;
}

// Room for rows of `row_bytes` in each of `tiles`, and some more: tiles must not share cache sets.
static inline Activations tiled_rows(std::vector<AlignedBuffer> &memory, int rows, size_t row_bytes, size_t tiles) {
  Activations a;
  a.row_bytes = row_bytes, a.tile_bytes = (rows + 16) * row_bytes + 64;
  a.data = memory.emplace_back(tiles * a.tile_bytes).data();
  return a;
}

// Rows of floating-point elements, in memory that `memory` keeps.
static inline Activations element_rows(ElementKind kind, std::vector<AlignedBuffer> &memory, int rows, size_t columns) {
  if (kind == ElementKind::bf16 && kTiledBf16)
    return tiled_rows(memory, rows, kTileInputs * sizeof(Bf16), columns / kTileInputs);
  Activations a;
  a.row_bytes = columns * sizeof(float) + 64;  // 64: rows must not share cache sets
  a.data = memory.emplace_back(rows * a.row_bytes).data();
  return a;
}

// Rows as linear layers of up to `columns` inputs read them.
static inline Activations packed_rows(Precision precision, ElementKind kind, std::vector<AlignedBuffer> &memory,
                                      int rows, size_t columns) {
  if (!is_quantised(precision)) return element_rows(kind, memory, rows, columns);
  if (precision == Precision::stored)
    return tiled_rows(memory, rows, kStoredRowBytes, ceil_div(static_cast<int>(columns), kStoredTileInputs));
  const int planes = precision == Precision::int8_fast || precision == Precision::int4_fast ? 1 : 2;
  const int units = is_in_blocks(precision) ? kBlockUnitBytes : 0;
  Activations a = tiled_rows(memory, rows, planes * kPlaneBytes + units, columns / kPlaneBytes);
  if (!is_in_blocks(precision)) a.scales = memory.emplace_back(rows * sizeof(float)).as<float>();
  return a;
}

// Writes one column of a pair; `w` holds the padded inputs of the output.
static inline void pack_column(PackedLinear &linear, char *pair_at, int column, const Bf16 *w) {
  auto *words = reinterpret_cast<uint32_t *>(pair_at) + column;
  for (int k = 0; k < linear.padded_inputs; k += 2)
    std::memcpy(words + (k >> 5) * 512 + ((k & 31) >> 1) * kColumns, w + k, sizeof(uint32_t));
}
static inline void pack_column(PackedLinear &linear, char *pair_at, int column, const float *w) {
  auto *cells = reinterpret_cast<float *>(pair_at);
  for (int k = 0; k < linear.padded_inputs; ++k)
    cells[(k >> 5) * TileOrder<float>::kPairCells + TileOrder<float>::index(column, k & 31)] = w[k];
}

// The same in 8 bits, symmetric with one unit a column; four inputs of a column are neighbours. Rounds w, in place.
static inline void pack_column_int8(PackedLinear &linear, char *pair_at, int pair, int column, float *w,
                                    PackingLoss &loss) {
  Lanes top = splat(0.f);
  for (int k = 0; k < linear.padded_inputs; k += 16) top = max(top, abs(load(w + k)));
  const float largest = reduce_max(top), unit = largest > 0.f ? largest / 127.f : 1.f;
  weigh(w, linear.padded_inputs, loss);
  Lanes lost = splat(0.f);
  for (int k = 0; k < linear.padded_inputs; k += 16) {
    const Lanes all = load(w + k), level = round(all / splat(unit)), off = level * splat(unit) - all;
    lost = fma(off, off, lost);
    store(w + k, level);
  }
  loss.lost += reduce_add(lost);
  char *to = pair_at + column * 4;
  int32_t sum = 0;
  for (int k = 0; k < linear.padded_inputs; k += 4) {
    int8_t four[4];
    for (int i = 0; i < 4; ++i) sum += four[i] = static_cast<int8_t>(w[k + i]);
    std::memcpy(to + (k >> 6) * 2048 + ((k & 63) >> 2) * 4 * kColumns, four, 4);
  }
  linear.scales[pair * kColumns + column] = unit;
  linear.column_sums[pair * kColumns + column] = sum;
}

// The same in blocks; gives the column's scale. Changes w.
static inline float pack_column_blocks(const PackedLinear &linear, char *pair_at, int column, float *w,
                                       const StoredGrid *grids, PackingLoss &loss) {
  const auto pack = linear.level_bits == 8 ? pack_blocks<EightBits> : pack_blocks<FourBits>;
  return pack(pair_at, column, w, linear.inputs, linear.padded_inputs, grids, loss);
}

// Packs `weight` [outputs][inputs] and `bias`, which may be null; a thread holds one output in floats.
// `output_of(column)` is the output that a packed column holds, -1 for padding.
template <class OutputOf>
static inline void pack_linear(PackedLinear &linear, const StoredMatrix &weight, const float *bias,
                               OutputOf &&output_of) {
  const Precision precision = linear.precision;
  const size_t columns = static_cast<size_t>(linear.pairs) * kColumns;
  const bool keeps = is_kept(precision);
  if (is_quantised(precision) && !keeps) linear.scales.assign(columns, 1.f);
  if (is_quantised(precision) && !keeps && !is_in_blocks(precision)) linear.column_sums.assign(columns, 0);
  if (bias) {
    linear.bias.assign(columns, 0.f);
    for (size_t c = 0; c < columns; ++c)
      if (const int output = output_of(static_cast<int>(c)); output >= 0) linear.bias[c] = bias[output];
  }
  const int threads = static_cast<int>(linear.weights.size());
  std::vector<std::vector<ListedWeight>> listed(is_packed(precision) ? linear.pairs : 0);
  linear.codes.resize(listed.size()), linear.listed.clear();
  std::vector<PackingLoss> losses(threads);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int t = 0; t < threads; ++t) {
    std::vector<float> floats(linear.padded_inputs);
    std::vector<Bf16> halves(linear.padded_inputs);
    std::vector<StoredGrid> grids(is_in_blocks(precision) ? linear.padded_inputs / kGridInputs : 0);
    PackingLoss loss;
    std::vector<Bf16> whole(is_packed(precision) ? kColumns * linear.padded_inputs : 0);
    for (int pair = linear.first_pair[t]; pair < linear.first_pair[t + 1]; ++pair) {
      char *const at = const_cast<char *>(linear.pair_weights(t, pair));
      char *const to = whole.empty() ? at : reinterpret_cast<char *>(whole.data());
      std::fill(whole.begin(), whole.end(), Bf16{});
      for (int column = 0; column < kColumns; ++column) {
        const int output = output_of(pair * kColumns + column);
        if (output < 0) continue;
        if (keeps) {
          pack_stored(linear.kinds[pair], weight.row(output), at, column, linear.inputs, linear.padded_inputs);
          continue;
        }
        if (precision == Precision::bf16) {
          weight.read(output, halves.data(), floats.data());
          pack_column(linear, to, column, halves.data());
          continue;
        }
        weight.read(output, floats.data());
        if (precision == Precision::fp32) {
          pack_column(linear, to, column, floats.data());
        } else if (is_in_blocks(precision)) {
          const bool stands = weight.read_grids(output, grids.data());
          linear.scales[pair * kColumns + column] =
              pack_column_blocks(linear, to, column, floats.data(), stands ? grids.data() : nullptr, loss);
        } else {
          pack_column_int8(linear, to, pair, column, floats.data(), loss);
        }
        std::fill(floats.begin() + linear.inputs, floats.end(), 0.f);
      }
      if (!whole.empty())
        linear.codes[pair] = pack_twelve_bits(whole.data(), static_cast<int>(whole.size()),
                                              reinterpret_cast<uint8_t *>(at), listed[pair]);
    }
    losses[t] = loss;
  }
  linear.loss = {};
  for (const PackingLoss &loss : losses) linear.loss.add(loss);
  for (size_t pair = 0; pair < listed.size(); ++pair) {
    linear.codes[pair].first_listed = static_cast<uint32_t>(linear.listed.size());
    linear.listed.insert(linear.listed.end(), listed[pair].begin(), listed[pair].end());
  }
}

// What thread t's share of a layer takes.
static inline size_t run_bytes(const PackedLinear &linear, int t) {
  return linear.begin_of(linear.first_pair[t + 1]) - linear.begin_of(linear.first_pair[t]);
}

// Memory for thread t's share of `linears`, in their order, and where each finds its own there.
static inline HugeBuffer allocate_stream(const std::vector<PackedLinear *> &linears, int t) {
  size_t bytes = 0;
  for (const PackedLinear *linear : linears) bytes += run_bytes(*linear, t);
  HugeBuffer stream(bytes);
  const char *at = stream.data();
  for (PackedLinear *linear : linears) {
    linear->weights[t] = at;
    at += run_bytes(*linear, t);
  }
  return stream;
}

// Whether its rows can be read: one in a file's own blocks, or in blocks of 8 bits.
static inline bool has_rows(const PackedLinear &linear) {
  return is_kept(linear.precision) || (is_in_blocks(linear.precision) && linear.level_bits == 8);
}

// A row of such a matrix, as floats: where nothing was lost, what `read_stored_row` gives of the file.
static inline void read_packed_row(const PackedLinear &linear, int column, float *to) {
  const int pair = column / kColumns;
  const char *block = linear.pair_weights(pair);
  if (!is_kept(linear.precision)) {
    for (int k = 0; k < linear.inputs; k += kBlockInputs, block += EightBits::kBytes)
      EightBits::read(block, column % kColumns, linear.scales[column], std::min(kBlockInputs, linear.inputs - k),
                      to + k);
    return;
  }
  const int kind = linear.kinds[pair];
  if (is_float8(kind)) {
    const Float8Pair packed = float8_pair(kind, linear.padded_inputs);
    std::vector<uint8_t> row(packed.row_bytes(linear.inputs));
    packed.move<false>(row.data(), const_cast<char *>(block), column % kColumns, linear.inputs);
    read_float8_row(packed.in_blocks, row.data(), linear.inputs, to);
    return;
  }
  with_stored(kind, [&](auto blocks) {
    for (int k = 0; k < linear.inputs; k += blocks.kInputs, block += blocks.kBytes)
      read_stored<decltype(blocks)>(block, column % kColumns, std::min(blocks.kInputs, linear.inputs - k), to + k);
  });
}

// What a thread has `bytes` of its own for: an unpacked pair, products of many rows, sums that they are made of. What
// stood there is gone.
enum class Use { pair, products, sums };
template <Use>
static inline char *memory_for(size_t bytes) {
  static thread_local AlignedBuffer kept;
  static thread_local size_t size = 0;
  if (size < bytes) kept = AlignedBuffer(bytes), size = bytes;
  return kept.data();
}

// The first pairs of a layer are wanted of the rows from `row` on, a multiple of kRowBlock; others may be left out.
struct WantedFrom {
  int pairs = 0, row = 0;
};

// The products of up to two pairs with the rows [first, rows), more than kRowBlock: `finish(pair, row, rows, out)` gets
// each block of a pair's.
template <class Finish>
static inline void run_many(const LinearKernel &kernel, const PackedLinear &linear, int pair, int pairs,
                            const char *weights, const Activations &a, int first, int rows, ReadAhead &reading,
                            Finish &&finish) {
  const int count = rows - first;
  const size_t stride = static_cast<size_t>(round_up(count, kRowBlock)) * kColumns;
  auto *const all = reinterpret_cast<float *>(memory_for<Use::products>(pairs * stride * sizeof(float)));
  kernel.multiply_many(linear, pair, pairs, weights, a, first, count, &reading, all);
  for (int p = 0; p < pairs; ++p)
    for (int row = 0; row < count; row += kRowBlock) {
      reading.ask(kRowBlock);  // memory works while the products are finished
      finish(pair + p, first + row, std::min(kRowBlock, count - row), all + p * stride + row * kColumns);
    }
}

// The products of one pair with the rows [first, rows): `finish(pair, row, rows, out)` gets each block of them. `out`
// has room for `kRowBlock` rows.
template <class Finish>
static inline void run_pair(const LinearKernel &kernel, const PackedLinear &linear, int pair, const char *weights,
                            const Activations &a, int first, int rows, ReadAhead &reading, float *out,
                            Finish &&finish) {
  if (kernel.multiply_many && rows - first > kRowBlock) {
    run_many(kernel, linear, pair, 1, weights, a, first, rows, reading, finish);
    return;
  }
  // Where a pair is packed, several blocks of rows read it from a place where it was unpacked once.
  const bool unpacks = kernel.unpack && rows > kRowBlock;
  const auto multiply = unpacks ? kernel.multiply_unpacked : kernel.multiply;
  if (unpacks) {
    char *const unpacked = memory_for<Use::pair>(kColumns * linear.padded_inputs * sizeof(Bf16));
    kernel.unpack(linear, pair, weights, reading, unpacked), weights = unpacked;
  }
  for (int row = first; row < rows; row += kRowBlock) {
    const int n = rows - row < kRowBlock ? rows - row : kRowBlock;
    multiply(linear, pair, weights, a, row, n, row == first && !unpacks ? &reading : nullptr, out);
    if (row == first) reading.ask(n);  // memory works while the products are finished
    finish(pair, row, n, out);
  }
}

// Where pairs read rows of their own: of the first `pairs` those from the first on, of the next as many those behind
// these `rows`, and so on.
struct RowsByPair {
  int pairs = INT_MAX, rows = 0;

  int first(int pair) const { return pair / pairs * rows; }
};

// The products of a layer that thread t computes, without bias: `finish(pair, row, rows, out)` gets each block of 32
// columns.
template <class Finish>
static inline void run_products(const LinearKernel &kernel, const PackedLinear &linear, const Activations &a, int rows,
                                int thread, ReadAhead &ahead, PairDeal &deal, WantedFrom wanted, RowsByPair by,
                                Finish &&finish) {
  constexpr int kOut = kRowBlock * kColumns;
  alignas(64) float out[2 * kOut];
  const auto run = [&](int owner, int index, ReadAhead &reading) {
    const int pair = linear.first_pair[owner] + index;
    const char *weights = linear.pair_weights(owner, pair);
    const int first = pair < wanted.pairs ? wanted.row : 0;
    if (first < rows)
      run_pair(kernel, linear, pair, weights, a.from(by.first(pair)), first, rows, reading, out, finish);
  };
  const auto pairs_of = [&](int owner) { return linear.first_pair[owner + 1] - linear.first_pair[owner]; };
  deal.begin(thread);
  const bool many = kernel.multiply_many && rows > kRowBlock;
  const int most = many || (kernel.multiply_two && rows <= kFewRows) ? 2 : 1;
  for (PairDeal::Run next; (next = deal.take(thread, pairs_of(thread), most)).count > 0;) {
    const int pair = linear.first_pair[thread] + next.first;
    const int first = pair < wanted.pairs ? wanted.row : 0;
    const bool apart = many && (rows - first <= kRowBlock || (pair < wanted.pairs) != (pair + 1 < wanted.pairs));
    if (next.count == 1 || apart || by.first(pair) != by.first(pair + 1)) {
      for (int i = 0; i < next.count; ++i) run(thread, next.first + i, ahead);
      continue;
    }
    const Activations own = a.from(by.first(pair));
    if (many) {
      run_many(kernel, linear, pair, 2, linear.pair_weights(thread, pair), own, first, rows, ahead, finish);
      continue;
    }
    kernel.multiply_two(linear, pair, linear.pair_weights(thread, pair), own, rows, ahead, out);
    for (int which = 0; which < 2; ++which) finish(pair + which, 0, rows, out + which * kOut);
  }
  for (int next = 1; next < deal.threads(); ++next) {
    const int other = (thread + next) % deal.threads();
    for (int i; (i = deal.take_over(thread, other, pairs_of(other))) >= 0;) {
      const int pair = linear.first_pair[other] + i;
      ReadAhead once(linear.pair_weights(other, pair), linear.bytes_of(pair));
      run(other, i, once);
    }
  }
}

static inline void add_bias(const PackedLinear &linear, int pair, int rows, float *out) {
  if (linear.bias.empty()) return;
  for (int r = 0; r < rows; ++r)
    for (int h = 0; h < kColumns; h += 16)
      store(out + r * kColumns + h, load(out + r * kColumns + h) + load(&linear.bias[pair * kColumns + h]));
}

// The same with bias: the part of a layer that thread t computes.
template <class Finish>
static inline void run_linear(const LinearKernel &kernel, const PackedLinear &linear, const Activations &a, int rows,
                              int thread, ReadAhead &ahead, PairDeal &deal, Finish &&finish, WantedFrom wanted = {},
                              RowsByPair by = {}) {
  run_products(kernel, linear, a, rows, thread, ahead, deal, wanted, by, [&](int pair, int row, int n, float *out) {
    add_bias(linear, pair, n, out);
    finish(pair, row, n, static_cast<const float *>(out));
  });
}

// Calls `work(count, first, ask)` for groups of up to `kMost` rows: the count as a number that the compiler knows, the
// first of them, and what to ask memory for meanwhile.
template <int kMost, class Work>
static inline void in_groups(const PackedLinear &linear, const char *weights, int rows, ReadAhead *ahead, Work &&work) {
  const int groups = ceil_div(rows, kMost);
  for (int group = 0, first = 0; group < groups; ++group) {
    const int n = group_rows(rows, kMost, group);
    const Prefetch ask = next_block(ahead, weights, linear.pair_bytes, group, groups);
    with_row_count<kMost>(n, [&](auto known) { work(known, first, ask); });
    first += n;
  }
}

// Floating-point activations and the float kernel: used by every instruction set for fp32, and for bf16 where there
// is no matrix unit.
static inline void store_row_float(const Activations &to, int row, const float *x, int padded_inputs) {
  std::memcpy(to.row(row), x, padded_inputs * sizeof(float));
}
template <class Cell>
static void multiply_linear_fma(const PackedLinear &linear, int, const char *weights, const Activations &a, int row,
                                int rows, ReadAhead *ahead, float *out) {
  const float *x = reinterpret_cast<const float *>(a.row(row));
  const Stream<Cell> tiles{reinterpret_cast<const Cell *>(weights)};
  const size_t stride = a.row_bytes / sizeof(float);
  multiply_fma<Cell>(rows, x, stride, tiles, linear.padded_inputs / 32, out, kColumns, false, true, ahead);
}

// Sixteen inputs of a row from `k` of its tile on, as 8-bit planes or, where these are kept so, as numbers of 16 bits,
// of every four the first and the third before the others.
template <int kPlanes, int kOffset>
static inline void store_planes(uint8_t *tile, int k, Lanes x) {
  if constexpr (kPlanes == 1) {
    store_one_plane(tile + k, x, kOffset);
  } else if constexpr (kWordPlanes) {
    float numbers[16];
    store(numbers, round(x));
    int16_t words[16];
    for (int i = 0; i < 16; ++i) words[i] = static_cast<int16_t>(numbers[(i & 12) | (i & 1) << 1 | (i & 2) >> 1]);
    std::memcpy(tile + 2 * k, words, sizeof words);
  } else {
    store_two_planes(tile + k, tile + kPlaneBytes + k, x, kOffset);
  }
}

// A row of 8-bit activations: symmetric, the largest magnitude at 127 (one plane) or 127 * 256 (two planes: almost
// 16 bits, so that the error is the weights' alone: 256 times a signed byte and another). `kOffset` is added to every
// byte.
template <int kPlanes, int kOffset>
static void store_row_int8(const Activations &to, int row, const float *x, int padded_inputs) {
  Lanes largest = splat(0.f);
  for (int k = 0; k < padded_inputs; k += 16) largest = max(largest, abs(load(x + k)));
  constexpr float limit = kPlanes == 2 ? 32512.f : 127.f;
  const float top = std::fmax(reduce_max(largest), 1e-20f);
  to.scales[row] = top / limit;
  const Lanes factor = splat(limit / top);
  auto *tile = reinterpret_cast<uint8_t *>(to.row(row));
  for (int first = 0; first < padded_inputs; first += kPlaneBytes, tile += to.tile_bytes)
    for (int k = 0; k < kPlaneBytes; k += 16) store_planes<kPlanes, kOffset>(tile, k, load(x + first + k) * factor);
}

// From integer sums to floats: out = (256 * high + low) * column scale * row scale.
static inline Lanes dequantise(Lanes high, Lanes low, Lanes column_scale, float row_scale) {
  return fma(high, splat(256.f), low) * (column_scale * splat(row_scale));
}
