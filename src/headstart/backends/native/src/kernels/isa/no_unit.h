// For processors without a matrix unit: nothing to ask for, nothing to set up on a thread.
#pragma once

static inline bool enable_unit() { return true; }
struct UnitScope {
  UnitScope() {}
};
