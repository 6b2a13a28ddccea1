// What a model keeps of texts.
#pragma once
#include "kv_cache.h"
#include "states.h"

struct Cache {
  KvCache keys_values;  // of tokens
  StateStore states;
};
