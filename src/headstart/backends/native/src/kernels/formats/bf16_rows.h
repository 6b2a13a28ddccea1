// Rows rounded to bf16, for kernels that multiply them with bf16 weights.
#pragma once
#include "kernels/products/linear.h"

static void store_row_bf16(const Activations &to, int row, const float *x, int padded_inputs) {
  for (int k = 0; k < padded_inputs; k += 16) store_activation(ElementKind::bf16, to, row, k, load(x + k));
}
