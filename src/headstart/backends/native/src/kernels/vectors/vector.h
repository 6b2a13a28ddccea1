// Sixteen lanes of the instruction set that this library is built for.
#pragma once
#include "kernels/traits.h"
#include HEADSTART_VECTOR

// After each addition to a sum that has to stay in its register. Compilers like to make all products first and then
// find no register for sums, which wait for memory in every step; an instruction set with few registers says more.
template <class Vector>
static inline void hold(Vector &) {}
