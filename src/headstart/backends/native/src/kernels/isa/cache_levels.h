// Where prefetched lines go; numbers of __builtin_prefetch.
#pragma once

constexpr int kPastL3 = 0, kToL2 = 2, kToL1 = 3;
