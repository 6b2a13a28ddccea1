// Sixteen lanes of the instruction set that this library is built for.
#pragma once
#include "traits.h"
#include HEADSTART_VECTOR
