// The matrix unit (AMX): six tiles of 16 rows by 64 bytes, and two that multiply half as many inner steps: tile 6 of 16
// rows by 32 bytes, tile 7 of 8 rows by 64. isa/amx_emulated/tiles.h offers the same in plain code.
#pragma once
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

// Macros, for the instructions take tile numbers as literals. Not the compiler's own: of gcc's (12 to 15 at least), a
// load does not say that it reads memory and a configuration says that it reads eight bytes of 64, so that the stores
// before them are moved behind them or dropped.
#define TILE_ZERO(t) __asm__ volatile("tilezero %%tmm" #t::)
#define TILE_LOAD(t, from, stride) \
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t::"r"(from), "r"(static_cast<size_t>(stride)) : "memory")
#define TILE_STORE(t, to, stride) \
  __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(to), "r"(static_cast<size_t>(stride)) : "memory")
#define TILE_BF16(c, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c::)
#define TILE_S8_U8(c, a, b) __asm__ volatile("tdpbsud %%tmm" #b ", %%tmm" #a ", %%tmm" #c::)
#define TILE_S8_S8(c, a, b) __asm__ volatile("tdpbssd %%tmm" #b ", %%tmm" #a ", %%tmm" #c::)

// Linux gives the tile registers to a process that asks for them (arch_prctl ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA).
static inline bool enable_unit() { return syscall(SYS_arch_prctl, 0x1023L, 18L) == 0; }

// The tile configuration belongs to the thread: this one's holds for the scope, then the caller's comes back.
class UnitScope {
 public:
  UnitScope() {
    __asm__ volatile("sttilecfg %0" : "=m"(before_));
    Config full{};
    full.palette = 1;
    for (int t = 0; t < 8; ++t) full.columns[t] = 64, full.rows[t] = 16;
    full.columns[6] = 32, full.rows[7] = 8;
    __asm__ volatile("ldtilecfg %0" ::"m"(full));
  }
  ~UnitScope() {
    if (before_.palette)
      __asm__ volatile("ldtilecfg %0" ::"m"(before_));
    else
      __asm__ volatile("tilerelease" ::);
  }
  UnitScope(const UnitScope &) = delete;
  UnitScope &operator=(const UnitScope &) = delete;

 private:
  struct alignas(64) Config {
    uint8_t palette, start_row, reserved[14];
    uint16_t columns[16];  // bytes
    uint8_t rows[16];
  };
  Config before_{};
};
