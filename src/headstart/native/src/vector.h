#pragma once
#if defined(__AVX512F__)
#include "vector_avx512.h"
#else
#include "vector_avx2.h"
#endif
