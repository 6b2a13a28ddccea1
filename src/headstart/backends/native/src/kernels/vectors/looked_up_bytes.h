// Where only bytes are looked up (`looked_up_part`), and no numbers of 16 bits.
#pragma once
#include "kernels/formats/number_table.h"

// What a table has for each number's lowest four bits.
static inline ShortPart looked_up_numbers_part(ShortPart numbers, const NumberTable &table) {
  typedef int16_t Signed __attribute__((vector_size(sizeof(ShortPart))));
  return (ShortPart)((Signed)(looked_up_part(numbers & 15, table.bytes) << 8) >> 8);
}
