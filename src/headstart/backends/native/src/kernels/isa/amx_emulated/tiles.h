// The matrix unit's operations in plain code, so that everything written on top of them is tested on processors without
// the unit. Integer results are the unit's own; float sums round in an order of their own. What the unit answers with
// an illegal instruction ends the process here, too: operations of a thread without a configuration, or on tiles of
// shapes that do not go together.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "kernels/formats/cells.h"

namespace emulated {

struct alignas(64) Tile {
  unsigned char bytes[16][64];
};
static thread_local Tile tiles[8];
static thread_local int scopes = 0;

static inline int rows_of(int t) { return t == 7 ? 8 : 16; }
static inline int bytes_of(int t) { return t == 6 ? 32 : 64; }
static inline void require(bool holds = true) {
  if (!holds || scopes == 0) std::abort();
}
static inline void require_shapes(int c, int a, int b) {
  require(rows_of(c) == rows_of(a) && bytes_of(c) == bytes_of(b) && bytes_of(a) == 4 * rows_of(b));
  require(c != a && c != b && a != b);
}

static inline void zero(int t) {
  require();
  std::memset(&tiles[t], 0, sizeof(Tile));
}
static inline void load(int t, const void *from, size_t stride) {
  require();
  for (int r = 0; r < rows_of(t); ++r)
    std::memcpy(tiles[t].bytes[r], static_cast<const char *>(from) + r * stride, bytes_of(t));
}
static inline void store(int t, void *to, size_t stride) {
  require();
  for (int r = 0; r < rows_of(t); ++r)
    std::memcpy(static_cast<char *>(to) + r * stride, tiles[t].bytes[r], bytes_of(t));
}
static inline void multiply_bf16(int c, int a, int b) {
  require_shapes(c, a, b);
  float sum[16], left[32], right[32];
  for (int m = 0; m < 16; ++m) {
    std::memcpy(sum, tiles[c].bytes[m], 64);
    for (int k = 0; k < rows_of(b); ++k) {
      Bf16 pair[2], row[32];
      std::memcpy(pair, tiles[a].bytes[m] + 4 * k, 4);
      std::memcpy(row, tiles[b].bytes[k], 64);
      for (int i = 0; i < 32; ++i) left[i] = to_float(pair[i & 1]), right[i] = to_float(row[i]);
      for (int n = 0; n < 16; ++n) sum[n] += left[0] * right[2 * n], sum[n] += left[1] * right[2 * n + 1];
    }
    std::memcpy(tiles[c].bytes[m], sum, 64);
  }
}
template <class Right>
static inline void multiply_int8(int c, int a, int b) {
  require_shapes(c, a, b);
  int32_t sum[16];
  for (int m = 0; m < 16; ++m) {
    std::memcpy(sum, tiles[c].bytes[m], 64);
    for (int k = 0; k < bytes_of(a) / 4; ++k) {
      int8_t four[4];
      Right row[64];
      std::memcpy(four, tiles[a].bytes[m] + 4 * k, 4);
      std::memcpy(row, tiles[b].bytes[k], 64);
      for (int n = 0; n < 16; ++n)
        for (int i = 0; i < 4; ++i) sum[n] += four[i] * row[4 * n + i];
    }
    std::memcpy(tiles[c].bytes[m], sum, 64);
  }
}

}  // namespace emulated

#define TILE_ZERO(t) emulated::zero(t)
#define TILE_LOAD(t, from, stride) emulated::load(t, from, stride)
#define TILE_STORE(t, to, stride) emulated::store(t, to, stride)
#define TILE_BF16(c, a, b) emulated::multiply_bf16(c, a, b)
#define TILE_S8_U8(c, a, b) emulated::multiply_int8<uint8_t>(c, a, b)
#define TILE_S8_S8(c, a, b) emulated::multiply_int8<int8_t>(c, a, b)

static inline bool enable_unit() { return true; }
// What tiles held before is gone, as it is where they are configured.
class UnitScope {
 public:
  UnitScope() { ++emulated::scopes, std::memset(emulated::tiles, 0, sizeof emulated::tiles); }
  ~UnitScope() { --emulated::scopes, std::memset(emulated::tiles, 0, sizeof emulated::tiles); }
  UnitScope(const UnitScope &) = delete;
  UnitScope &operator=(const UnitScope &) = delete;
};
