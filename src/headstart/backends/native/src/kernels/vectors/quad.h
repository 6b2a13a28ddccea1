// Vectors of four lanes in the compilers' own notation.
#pragma once
#include <cstdint>
#include <cstring>

typedef float Quad __attribute__((vector_size(16)));
typedef int32_t QuadInts __attribute__((vector_size(16)));
typedef uint32_t QuadWords __attribute__((vector_size(16)));
typedef uint16_t QuadHalves __attribute__((vector_size(8)));
typedef uint8_t QuadBytes __attribute__((vector_size(4)));

template <class Vector>
static inline Vector load_quad(const void *p) {
  Vector four;
  std::memcpy(&four, p, sizeof four);
  return four;
}
static inline Quad magnitude(Quad x) { return (Quad)((QuadWords)x & 0x7fffffffu); }
