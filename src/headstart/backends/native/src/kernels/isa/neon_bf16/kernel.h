// NEON where it has dot products: of bf16 pairs, which multiplies bf16 weights and the cache, and of bytes.
#pragma once
#include "kernels/isa/neon/bf16_dot.h"
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
      return {ElementKind::bf16, store_row_bf16, multiply_linear_dot};
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
  ahead.ask_all();
  for (int first = 0; first < rows; first += kFmaRows)
    with_row_count<kFmaRows>(std::min(kFmaRows, rows - first), [&](auto known) {
      multiply_dot_rows<known.value>(a + first * a_stride, a_stride, tiles, count, c + first * c_stride, c_stride,
                                     accumulate, Prefetch{});
    });
}
