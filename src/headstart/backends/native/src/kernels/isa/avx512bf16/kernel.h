// AVX-512 where the dot product of bf16 pairs runs at full rate: it multiplies bf16 weights and the cache. Weights of 8
// and 4 bits have their own (VNNI).
#pragma once
#include "kernels/isa/avx512/bf16_dot.h"
#include "kernels/isa/no_unit.h"
#include "kernels/isa/vnni.h"
#include "kernels/isa/vnni_blocks.h"

// What attention multiplies with cache cells: queries, and the weights of values.
template <class Cell>
struct QueryElement {
  using type = Cell;
};

// Of bf16 and 8-bit weights; `kernel.h` has the others.
static inline LinearKernel own_linear_kernel(Precision precision) {
  switch (precision) {
    case Precision::bf16:
      return {ElementKind::bf16, store_row_bf16,           multiply_linear_dot,
              unpack_linear,     multiply_linear_unpacked, multiply_two_dot};
    case Precision::int8:
      return {ElementKind::int8, store_row_int8<2, kRowOffset>, multiply_linear_vnni<2, 0>};
    case Precision::int8_fast:
      return {ElementKind::int8, store_row_int8<1, kRowOffset>, multiply_linear_vnni<1, 0>};
    default:
      return {};
  }
}

// `multiply_tiles` of bf16 rows.
template <class Cell, class Tiles>
static inline void multiply_tiles(int rows, const Bf16 *a, size_t a_stride, Tiles tiles, int count, float *c,
                                  size_t c_stride, bool accumulate, PagesAhead ahead = {}) {
  multiply_dot(rows, StridedRows{a, a_stride}, tiles, count, c, c_stride, accumulate, ahead);
}
