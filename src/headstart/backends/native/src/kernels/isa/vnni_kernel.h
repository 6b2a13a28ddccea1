// Float arithmetic for bf16 weights, the 8-bit dot product (VNNI) for weights of 8 and 4 bits: AVX-512, and AVX2 where
// it has one.
#pragma once
#include "kernels/isa/no_unit.h"
#include "kernels/isa/vnni.h"
#include "kernels/isa/vnni_blocks.h"

// What attention multiplies with cache cells: queries, and the weights of values.
template <class Cell>
struct QueryElement {
  using type = float;
};

// Of bf16 and 8-bit weights; `kernel.h` has the others.
static inline LinearKernel own_linear_kernel(Precision precision) {
  switch (precision) {
    case Precision::bf16:
      return {ElementKind::fp32, store_row_float, multiply_linear_fma<Bf16>};
    case Precision::int8:
      return {ElementKind::int8, store_row_int8<2, kRowOffset>, multiply_linear_vnni<2, 0>};
    case Precision::int8_fast:
      return {ElementKind::int8, store_row_int8<1, kRowOffset>, multiply_linear_vnni<1, 0>};
    default:
      return {};
  }
}
