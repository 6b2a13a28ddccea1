// Any processor with a compiler: plain operations on vectors of four, and each kernel's reference.
#pragma once
#include "kernels/isa/portable.h"

#define HEADSTART_QUADS "kernels/isa/generic/quads.h"
#define HEADSTART_VECTOR "kernels/vectors/vector_quads.h"
#define HEADSTART_SHORTS "kernels/vectors/shorts_quads.h"
#define HEADSTART_KERNEL "kernels/isa/vnni_kernel.h"
#define HEADSTART_DOT_BYTES "kernels/vectors/dot_bytes_quads.h"

constexpr bool kTiledBf16 = false, kTwelveBits = false, kAsksLineByLine = false, kSignedBytes = true,
               kWordPlanes = false, kBytePlanes = false;
constexpr int kTileEntries = 24, kFmaRows = 1, kHalvedRows = 2;
constexpr int kBlockRows[] = {1, 1};
constexpr int kStoredRows = 1, kFusedRows = 1;
constexpr int kScreenedRows = 2;
constexpr int kWeightHint = kToL2, kTwoBytesAhead = 8192;
