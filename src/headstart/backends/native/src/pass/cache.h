// What a model keeps of texts.
#pragma once
#include "pass/kv_cache.h"
#include "pass/states.h"

struct Cache {
  KvCache keys_values;  // of tokens
  StateStore states;
};
