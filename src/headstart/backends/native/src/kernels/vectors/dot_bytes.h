// The dot product of bytes on sixteen columns: sums of products, four at a time. Each instruction set that has one says
// how many rows times planes have sums of 32 columns in its registers (kHeldSums), and what `Sums` of sixteen columns
// are and `Bytes` [16 columns][4].
#pragma once
#include <cstring>

#include "kernels/traits.h"
#ifdef HEADSTART_DOT_BYTES
#include HEADSTART_DOT_BYTES
#endif
