// The kernels of the instruction set this library is built for.
#pragma once
#include "kernels/traits.h"
#include HEADSTART_KERNEL
#include "kernels/products/float8_linear.h"
#include "kernels/products/stored_linear.h"

static inline LinearKernel linear_kernel(Precision precision) {
  const LinearKernel own = own_linear_kernel(precision);
  if (own.multiply) return own;
  switch (precision) {
    case Precision::fp32:
      return {ElementKind::fp32, store_row_float, multiply_linear_fma<float>};
    case Precision::int4:
      return block_kernel<2>();
    case Precision::int4_fast:
      return block_kernel<1>();
    case Precision::stored:
      return {ElementKind::int8, store_row_stored, multiply_linear_stored};
    case Precision::float8:
      return float8_kernel(own_linear_kernel(Precision::bf16));
    default:
      return {};
  }
}
