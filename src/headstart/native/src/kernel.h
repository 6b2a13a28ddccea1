// The kernels of the instruction set this library is built for.
#pragma once
#if defined(HEADSTART_AMX)
#include "kernel_amx.h"
#elif defined(HEADSTART_AVX512BF16)
#include "kernel_avx512bf16.h"
#elif defined(HEADSTART_AVX512) || defined(HEADSTART_AVXVNNI)
#include "kernel_vnni.h"
#else
#include "kernel_avx2.h"
#endif
