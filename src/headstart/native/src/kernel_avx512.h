// AVX-512: float arithmetic for bf16 weights, the 8-bit dot product (VNNI) for int8.
#pragma once
#include "vnni.h"

// Most rows of a pass whose screened logits take less time than the head's own.
constexpr int kScreenedRows = 256;

// What attention multiplies with cache cells: queries, and the weights of values.
template <class Cell> struct QueryElement { using type = float; };

static inline LinearKernel linear_kernel(Precision precision) {
  switch (precision) {
    case Precision::bf16: return {ElementKind::fp32, store_row_float, multiply_linear_fma<Bf16>};
    case Precision::int8: return {ElementKind::int8, store_row_int8<2, kOffset>, multiply_linear_vnni<2, 0>};
    case Precision::int8_fast: return {ElementKind::int8, store_row_int8<1, kOffset>, multiply_linear_vnni<1, 0>};
    case Precision::fp32: return {ElementKind::fp32, store_row_float, multiply_linear_fma<float>};
  }
  return {};
}

// C[rows][32] (+)= A . pair tiles, for attention.
template <class Cell, class Tiles>
static inline void multiply_tiles(int rows, const float *a, size_t a_stride, Tiles tiles, int count, float *c,
                                  size_t c_stride, bool accumulate) {
  multiply_fma<Cell>(rows, a, a_stride, tiles, count, c, c_stride, accumulate);
}

// Nothing to ask for, nothing to set up on a thread.
static inline bool enable_unit() { return true; }
struct UnitScope {
  UnitScope() {}
};
