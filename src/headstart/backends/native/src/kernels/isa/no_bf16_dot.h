// Where bf16 pairs have no dot product.
#pragma once
#include "kernels/vectors/vector.h"

constexpr bool kDotsBf16 = false;
template <class Part>
static inline Lanes dot_bf16(Lanes sum, const Part *, uint32_t) {
  return sum;
}
