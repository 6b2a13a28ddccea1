// Sixteen lanes of the instruction set that this library is built for.
#pragma once
#include "kernels/traits.h"
#include HEADSTART_VECTOR
