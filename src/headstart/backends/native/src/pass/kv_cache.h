// The paged cache: keys and values in tile order, so that attention reads pages without repacking.
//
// Order of cells: [layer][page], there keys [kv head][kPageKeys * key_dim], then values [kv head][kPageKeys *
// value_dim], then an indexer's keys [kPageKeys * index_dim], and what tokens give to compressed keys [kPageKeys *
// given_dim] in the order of keys; or as many bytes with their units (byte_pages.h).
#pragma once
#include <vector>

#include "kernels/platform.h"
#include "kernels/vectors/vector.h"
#include "pass/byte_pages.h"

// What a layer keeps of a token; no heads: nothing.
struct KeptKeys {
  int kv_heads = 0, key_dim = 0, value_dim = 0, index_dim = 0, given_dim = 0;
};

// Writes one head's key into its place. `x` holds `size` floats, a multiple of 16.
static inline void write_key_cells(float *page, int key, const float *x, int size) {
  for (int d = 0; d < size; ++d) page[key_index<float>(key, d)] = x[d];
}
static inline void write_key_cells(Bf16 *page, int key, const float *x, int size) {
  Bf16 halves[16];
  for (int d = 0; d < size; d += 16) {
    store_bf16(halves, load(x + d));
    for (int i = 0; i < 16; i += 2) std::memcpy(page + key_index<Bf16>(key, d + i), halves + i, 2 * sizeof(Bf16));
  }
}

// Where sixteen dimensions of a key's value stand: words that it shares with the key beside it.
static inline uint32_t *value_words(Bf16 *page, int key, int d) {
  return reinterpret_cast<uint32_t *>(page + value_index<Bf16>(key & ~1, d));
}
static inline const uint32_t *value_words(const Bf16 *page, int key, int d) {
  return value_words(const_cast<Bf16 *>(page), key, d);
}
// Sixteen dimensions of a key's value, from the upper or the lower halves of `from`.
static inline void put_halves(Bf16 *page, int key, int d, const uint32_t *from, bool upper) {
  uint32_t *to = value_words(page, key, d);
  if (key & 1)
    gather_halves(to, to, false, from, upper);
  else
    gather_halves(to, from, upper, to, true);
}

// Copies one key's value from a page to a page.
static inline void copy_value(Bf16 *page, int key, const Bf16 *from, int from_key, int size) {
  for (int d = 0; d < size; d += 16) put_halves(page, key, d, value_words(from, from_key, d), from_key & 1);
}
static inline void copy_value(float *page, int key, const float *from, int from_key, int size) {
  for (int d = 0; d < size; d += 16)
    store(page + value_index<float>(key, d), load(from + value_index<float>(from_key, d)));
}

// Writes one head's value. Only finite numbers are kept: a row that masks this key multiplies it by zero, and zero
// times an infinity would not be zero. A row that does see the key still meets the NaN through the key itself.
static inline void write_value_cells(float *page, int key, const float *x, int size) {
  for (int d = 0; d < size; d += 16) store(page + value_index<float>(key, d), finite_or_zero(load(x + d)));
}
static inline void write_value_cells(Bf16 *page, int key, const float *x, int size) {
  Bf16 halves[16];
  uint32_t words[16];
  for (int d = 0; d < size; d += 16) {
    store_bf16(halves, finite_or_zero(load(x + d)));
    for (int i = 0; i < 16; ++i) words[i] = halves[i].bits;
    put_halves(page, key, d, words, false);
  }
}

// Collects values of keys that stand anywhere into a page in logical order. `cells[i]` is the value page that holds
// logical key i and `keys[i]` its place there; keys from `count` on become zero.
template <class Cell>
static inline void gather_values(Cell *page, const Cell *const *cells, const int *keys, int count, int size) {
  for (int d = 0; d < size; d += 16) {
    Cell *out = page + value_index<Cell>(0, d);
    if constexpr (sizeof(Cell) == 2) {
      for (int key = 0; key < kPageKeys; key += 2) {
        const auto source = [&](int i) -> const uint32_t * {
          if (i >= count) return nullptr;
          return value_words(cells[i], keys[i], d);
        };
        gather_halves(reinterpret_cast<uint32_t *>(out + key * 32), source(key), key < count && (keys[key] & 1),
                      source(key + 1), key + 1 < count && (keys[key + 1] & 1));
      }
    } else {
      for (int key = 0; key < kPageKeys; ++key)
        store(out + key * 32, key < count ? load(cells[key] + value_index<Cell>(keys[key], d)) : splat(0.f));
    }
  }
}

class KvCache {
 public:
  // `in_bytes`: in 8 bits, to be widened to such cells.
  KvCache(const std::vector<KeptKeys> &layers, int pages, size_t cell_bytes, bool in_bytes)
      : pages_(pages), cell_bytes_(cell_bytes), in_bytes_(in_bytes) {
    const auto head_bytes = [&](size_t dim) { return in_bytes ? byte_page_bytes(dim) : kPageKeys * dim * cell_bytes; };
    size_t bytes = 0;
    for (const KeptKeys &kept : layers) {
      const size_t keys = head_bytes(kept.key_dim), values = head_bytes(kept.value_dim);
      const size_t beside = head_bytes(kept.index_dim) + head_bytes(kept.given_dim);
      layers_.push_back({kept, keys, values, kept.kv_heads * (keys + values) + beside, bytes});
      bytes += layers_.back().page_bytes * pages;
    }
    memory_ = HugeBuffer(bytes);
  }

  int pages() const { return pages_; }
  char *data() const { return memory_.data(); }
  size_t bytes() const { return memory_.size(); }

  bool in_bytes() const { return in_bytes_; }

  // A head's keys and values in a page, as they are kept, and the size of the former.
  char *keys(size_t layer, int page, int head) const { return page_at(layer, page) + head * layers_[layer].key_bytes; }
  char *values(size_t layer, int page, int head) const {
    const Layer &of = layers_[layer];
    return page_at(layer, page) + of.kept.kv_heads * of.key_bytes + head * of.value_bytes;
  }
  char *index_keys(size_t layer, int page) const { return values(layer, page, layers_[layer].kept.kv_heads); }
  char *given(size_t layer, int page) const {
    const Layer &of = layers_[layer];
    const size_t dim = of.kept.index_dim;
    return index_keys(layer, page) + (in_bytes_ ? byte_page_bytes(dim) : kPageKeys * dim * cell_bytes_);
  }
  size_t key_bytes(size_t layer) const { return layers_[layer].key_bytes; }
  size_t value_bytes(size_t layer) const { return layers_[layer].value_bytes; }

  // The same as cells: where they are, or widened into `room`.
  template <class Cell>
  const Cell *read_keys(size_t layer, int page, int head, Cell *room) const {
    const char *const kept = keys(layer, page, head);
    if (!in_bytes_) return reinterpret_cast<const Cell *>(kept);
    widen_keys(byte_page(kept, layers_[layer].kept.key_dim), room);
    return room;
  }
  template <class Cell>
  const Cell *read_values(size_t layer, int page, int head, Cell *room) const {
    const char *const kept = values(layer, page, head);
    if (!in_bytes_) return reinterpret_cast<const Cell *>(kept);
    widen_values(byte_page(kept, layers_[layer].kept.value_dim), room);
    return room;
  }

  template <class Cell>
  const Cell *read_index(size_t layer, int page, Cell *room) const {
    const char *const kept = index_keys(layer, page);
    if (!in_bytes_) return reinterpret_cast<const Cell *>(kept);
    widen_keys(byte_page(kept, layers_[layer].kept.index_dim), room);
    return room;
  }

  // What a token gives to compressed keys, as it is kept.
  template <class Cell>
  void read_given(size_t layer, int page, int key, float *x) const {
    const char *const kept = given(layer, page);
    const int dim = layers_[layer].kept.given_dim;
    const BytePage<const int8_t> bytes = byte_page(kept, dim);
    for (int d = 0; d < dim; ++d) {
      const size_t at = key_index<Cell>(key, d);
      x[d] = in_bytes_ ? static_cast<float>(bytes.levels[at]) * to_float(bytes.units(d / kByteBlock)[key])
                       : to_float(reinterpret_cast<const Cell *>(kept)[at]);
    }
  }

  // Writes what one head has of a token, `x` [dim].
  template <class Cell>
  void write_key(size_t layer, int page, int head, int key, const float *x) const {
    write_key<Cell>(keys(layer, page, head), layers_[layer].kept.key_dim, key, x);
  }
  template <class Cell>
  void write_index(size_t layer, int page, int key, const float *x) const {
    write_key<Cell>(index_keys(layer, page), layers_[layer].kept.index_dim, key, x);
  }
  template <class Cell>
  void write_given(size_t layer, int page, int key, const float *x) const {
    write_key<Cell>(given(layer, page), layers_[layer].kept.given_dim, key, x);
  }
  template <class Cell>
  void write_value(size_t layer, int page, int head, int key, const float *x) const {
    const int dim = layers_[layer].kept.value_dim;
    if (in_bytes_)
      write_bytes<ValuePlace<Cell>>(byte_page(values(layer, page, head), dim), key, x);
    else
      write_value_cells(reinterpret_cast<Cell *>(values(layer, page, head)), key, x, dim);
  }

  void copy_page(int from, int to) const {
    for (size_t layer = 0; layer < layers_.size(); ++layer)
      if (layers_[layer].page_bytes) std::memmove(page_at(layer, to), page_at(layer, from), layers_[layer].page_bytes);
  }

  // What a page takes over all layers, and its bytes to and from memory of that size.
  size_t page_size() const { return pages_ ? bytes() / pages_ : 0; }
  void read_page(int page, char *to) const {
    for (size_t layer = 0; layer < layers_.size(); to += layers_[layer++].page_bytes)
      std::memcpy(to, page_at(layer, page), layers_[layer].page_bytes);
  }
  void write_page(int page, const char *from) const {
    for (size_t layer = 0; layer < layers_.size(); from += layers_[layer++].page_bytes)
      std::memcpy(page_at(layer, page), from, layers_[layer].page_bytes);
  }

  // Slots count keys: page * kPageKeys + key.
  void move_slot(int from, int to) const {
    if (cell_bytes_ == sizeof(Bf16))
      move_cells<Bf16>(from, to);
    else
      move_cells<float>(from, to);
  }

 private:
  struct Layer {
    KeptKeys kept;
    size_t key_bytes, value_bytes, page_bytes;  // of one head's keys, and of its values, in a page; of a page
    size_t begin;
  };

  template <class Cell>
  void write_key(char *page, int dim, int key, const float *x) const {
    if (in_bytes_)
      write_bytes<KeyPlace<Cell>>(byte_page(page, dim), key, x);
    else
      write_key_cells(reinterpret_cast<Cell *>(page), key, x, dim);
  }

  char *page_at(size_t layer, int page) const {
    return memory_.data() + layers_[layer].begin + page * layers_[layer].page_bytes;
  }

  template <class Cell>
  void move_cells(int from, int to) const {
    const int source = from % kPageKeys, target = to % kPageKeys;
    for (size_t layer = 0; layer < layers_.size(); ++layer) {
      const KeptKeys &kept = layers_[layer].kept;
      const auto move = [&](auto place, char *page, const char *from_page, int dim) {
        using Place = decltype(place);
        if (in_bytes_) return copy_bytes<Place>(byte_page(page, dim), target, byte_page(from_page, dim), source);
        auto *const cells = reinterpret_cast<Cell *>(page);
        for (int d = 0; d < dim; ++d)
          cells[Place::at(target, d)] = reinterpret_cast<const Cell *>(from_page)[Place::at(source, d)];
      };
      const int from_page = from / kPageKeys, to_page = to / kPageKeys;
      move(KeyPlace<Cell>(), index_keys(layer, to_page), index_keys(layer, from_page), kept.index_dim);
      move(KeyPlace<Cell>(), given(layer, to_page), given(layer, from_page), kept.given_dim);
      for (int head = 0; head < kept.kv_heads; ++head) {
        move(KeyPlace<Cell>(), keys(layer, to_page, head), keys(layer, from_page, head), kept.key_dim);
        move(ValuePlace<Cell>(), values(layer, to_page, head), values(layer, from_page, head), kept.value_dim);
      }
    }
  }

  int pages_;
  size_t cell_bytes_;
  bool in_bytes_;
  std::vector<Layer> layers_;
  HugeBuffer memory_;
};
