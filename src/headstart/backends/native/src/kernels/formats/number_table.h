// A number for each of sixteen codes, or of eight, twice: as bytes, and as numbers of 16 bits for whoever looks those
// up.
#pragma once
#include <cstdint>

struct NumberTable {
  int8_t bytes[16];
  alignas(64) int16_t numbers[32];  // twice
};
static constexpr NumberTable number_table(const int8_t (&bytes)[16]) {
  NumberTable table{};
  for (int i = 0; i < 16; ++i) table.bytes[i] = bytes[i], table.numbers[i] = table.numbers[16 + i] = bytes[i];
  return table;
}
