// Four vectors of four sums; HEADSTART_QUADS says what dot_quad(sum, a, b) adds to four of them: products of signed
// bytes.
#pragma once
#include "kernels/vectors/vector.h"

struct Sums {
  QuadInts a, b, c, d;
};
struct Bytes {
  SignedBytes a, b, c, d;
};

static inline Sums dot(Sums sum, Bytes x, Bytes y) {
  return {dot_quad(sum.a, x.a, y.a), dot_quad(sum.b, x.b, y.b), dot_quad(sum.c, x.c, y.c), dot_quad(sum.d, x.d, y.d)};
}
static inline Sums operator+(Sums x, Sums y) { return {x.a + y.a, x.b + y.b, x.c + y.c, x.d + y.d}; }
static inline Sums operator-(Sums x, Sums y) { return {x.a - y.a, x.b - y.b, x.c - y.c, x.d - y.d}; }
static inline Sums operator<<(Sums x, int bits) { return {x.a << bits, x.b << bits, x.c << bits, x.d << bits}; }
static inline Lanes to_floats(Sums x) {
  const auto convert = [](QuadInts q) { return __builtin_convertvector(q, Quad); };
  return {convert(x.a), convert(x.b), convert(x.c), convert(x.d)};
}
static inline Sums load_sums(const int32_t *p) {
  Sums sums;
  std::memcpy(&sums, p, sizeof sums);
  return sums;
}

static inline Bytes load_bytes(const char *p) {
  Bytes bytes;
  std::memcpy(&bytes, p, sizeof bytes);
  return bytes;
}
static inline Bytes splat_four(int32_t four) {
  const SignedBytes all = (SignedBytes)(QuadInts{} + four);
  return {all, all, all, all};
}
static inline Bytes lower_halves(Bytes x) { return {x.a & 15, x.b & 15, x.c & 15, x.d & 15}; }
static inline Bytes upper_halves(Bytes x) {
  const auto upper = [](SignedBytes q) { return (SignedBytes)((QuadWords)q >> 4); };
  return lower_halves({upper(x.a), upper(x.b), upper(x.c), upper(x.d)});
}
