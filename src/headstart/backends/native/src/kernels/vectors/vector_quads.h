// Sixteen float lanes in four vectors of four, as compilers have them on every processor; see isa/avx512/vector.h for
// what each function promises. HEADSTART_QUADS says for four lanes what differs from processor to processor:
// multiply_add(a, b, c), to_nearest(a) and load_half_quad(p).
#pragma once
#include "kernels/formats/cells.h"
#include "kernels/traits.h"
#include "kernels/vectors/quad.h"
#include HEADSTART_QUADS

struct Lanes {
  Quad a, b, c, d;
};

// Calls `f` for each four lanes.
template <class F>
static inline Lanes by_quads(F &&f, Lanes x) {
  return {f(x.a), f(x.b), f(x.c), f(x.d)};
}
template <class F>
static inline Lanes by_quads(F &&f, Lanes x, Lanes y) {
  return {f(x.a, y.a), f(x.b, y.b), f(x.c, y.c), f(x.d, y.d)};
}

static inline Lanes load(const float *p) {
  return {load_quad<Quad>(p), load_quad<Quad>(p + 4), load_quad<Quad>(p + 8), load_quad<Quad>(p + 12)};
}
static inline void store(float *p, Lanes x) { std::memcpy(p, &x, sizeof x); }
// Where a processor has means to write past its caches, they are not used here.
static inline void stream(float *p, Lanes x) { store(p, x); }
static inline void finish_streams() {}
static inline Lanes splat(float x) {
  const Quad all = {x, x, x, x};
  return {all, all, all, all};
}
static inline Lanes operator+(Lanes x, Lanes y) { return {x.a + y.a, x.b + y.b, x.c + y.c, x.d + y.d}; }
static inline Lanes operator-(Lanes x, Lanes y) { return {x.a - y.a, x.b - y.b, x.c - y.c, x.d - y.d}; }
static inline Lanes operator*(Lanes x, Lanes y) { return {x.a * y.a, x.b * y.b, x.c * y.c, x.d * y.d}; }
static inline Lanes operator/(Lanes x, Lanes y) { return {x.a / y.a, x.b / y.b, x.c / y.c, x.d / y.d}; }
static inline Lanes fma(Lanes x, Lanes y, Lanes z) {
  return {multiply_add(x.a, y.a, z.a), multiply_add(x.b, y.b, z.b), multiply_add(x.c, y.c, z.c),
          multiply_add(x.d, y.d, z.d)};
}
// The second operand where either is not a number.
static inline Quad max(Quad x, Quad y) { return x > y ? x : y; }
static inline Quad min(Quad x, Quad y) { return x < y ? x : y; }
static inline Lanes max(Lanes x, Lanes y) { return {max(x.a, y.a), max(x.b, y.b), max(x.c, y.c), max(x.d, y.d)}; }
static inline Lanes min(Lanes x, Lanes y) { return {min(x.a, y.a), min(x.b, y.b), min(x.c, y.c), min(x.d, y.d)}; }
static inline Lanes abs(Lanes x) { return by_quads(magnitude, x); }
static inline Lanes round(Lanes x) { return by_quads(to_nearest, x); }

static inline Lanes power_of_two(Lanes x) {
  return by_quads([](Quad q) { return (Quad)((QuadWords)q << 23); }, x);
}

static inline Lanes select_range(Lanes x, int begin, int end, Lanes other) {
  const auto select = [&](Quad q, Quad instead, int first) {
    const QuadInts lane = QuadInts{0, 1, 2, 3} + first;
    return ((lane >= begin) & (lane < end)) ? q : instead;
  };
  return {select(x.a, other.a, 0), select(x.b, other.b, 4), select(x.c, other.c, 8), select(x.d, other.d, 12)};
}

static inline Lanes finite_or_zero(Lanes x) {
  return by_quads([](Quad q) { return (Quad)((QuadInts)q & (magnitude(q) <= 3.4028234e38f)); }, x);
}

static inline float reduce_add(Lanes x) {
  const Quad four = (x.a + x.c) + (x.b + x.d);
  return (four[0] + four[2]) + (four[1] + four[3]);
}
static inline float reduce_max(Lanes x) {
  const Quad four = max(max(x.a, x.c), max(x.b, x.d));
  const float even = four[0] > four[2] ? four[0] : four[2], odd = four[1] > four[3] ? four[1] : four[3];
  return even > odd ? even : odd;
}

static inline Lanes load_bf16(const Bf16 *p) {
  const auto widen = [](const Bf16 *four) {
    return (Quad)(__builtin_convertvector(load_quad<QuadHalves>(four), QuadWords) << 16);
  };
  return {widen(p), widen(p + 4), widen(p + 8), widen(p + 12)};
}

static inline Lanes load_half(const void *p) {
  const char *at = static_cast<const char *>(p);
  return {load_half_quad(at), load_half_quad(at + 8), load_half_quad(at + 16), load_half_quad(at + 24)};
}

static inline void store_bf16(Bf16 *p, Lanes x) {
  const auto narrow = [](Bf16 *four, Quad q) {
    const QuadWords bits = (QuadWords)q, rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    const QuadHalves halves = __builtin_convertvector(q == q ? rounded : QuadWords{} + 0x7fc0, QuadHalves);
    std::memcpy(four, &halves, sizeof halves);
  };
  narrow(p, x.a), narrow(p + 4, x.b), narrow(p + 8, x.c), narrow(p + 12, x.d);
}

struct Words {
  QuadWords a, b, c, d;
};

static inline Words load_words(const void *p) {
  Words words;
  std::memcpy(&words, p, sizeof words);
  return words;
}
static inline void store_words(uint32_t *p, Words x) { std::memcpy(p, &x, sizeof x); }
static inline Words splat_words(uint32_t x) {
  const QuadWords all = {x, x, x, x};
  return {all, all, all, all};
}
static inline Words operator^(Words x, Words y) { return {x.a ^ y.a, x.b ^ y.b, x.c ^ y.c, x.d ^ y.d}; }
static inline void multiply(Words x, Words y, Words &high, Words &low) {
  uint32_t left[16], right[16], upper[16], lower[16];
  store_words(left, x), store_words(right, y);
  for (int i = 0; i < 16; ++i) {
    const uint64_t product = static_cast<uint64_t>(left[i]) * right[i];
    upper[i] = static_cast<uint32_t>(product >> 32), lower[i] = static_cast<uint32_t>(product);
  }
  high = load_words(upper), low = load_words(lower);
}
static inline Lanes half(Words x) {
  const auto convert = [](QuadWords q) { return __builtin_convertvector((QuadInts)(q >> 1), Quad); };
  return {convert(x.a), convert(x.b), convert(x.c), convert(x.d)};
}
static inline uint32_t at_most(Lanes x, Lanes y) {
  const QuadInts lane = {1, 2, 4, 8};
  const QuadInts bits =
      ((x.a <= y.a) & lane) | ((x.b <= y.b) & lane << 4) | ((x.c <= y.c) & lane << 8) | ((x.d <= y.d) & lane << 12);
  return static_cast<uint32_t>(bits[0] | bits[1] | bits[2] | bits[3]);
}

static inline Lanes load_bf16_even(const Bf16 *p) {
  const auto lower = [](QuadWords pair) { return (Quad)(pair << 16); };
  const Words pairs = load_words(p);
  return {lower(pairs.a), lower(pairs.b), lower(pairs.c), lower(pairs.d)};
}
static inline Lanes load_bf16_odd(const Bf16 *p) {
  const auto upper = [](QuadWords pair) { return (Quad)(pair & 0xffff0000u); };
  const Words pairs = load_words(p);
  return {upper(pairs.a), upper(pairs.b), upper(pairs.c), upper(pairs.d)};
}

// To nearest, of magnitudes below 2^22: at 1.5 * 2^23 a float has no room for fractions.
static inline QuadWords to_integers(Quad q) { return (QuadWords)(q + 12582912.f) - 0x4b400000u; }

// Sixteen integers to bytes, modulo 256.
template <class F>
static inline void store_bytes(uint8_t *to, Lanes x, F &&byte_of) {
  const auto narrow = [&](uint8_t *four, Quad q) {
    const QuadBytes bytes = __builtin_convertvector(byte_of(to_integers(q)), QuadBytes);
    std::memcpy(four, &bytes, sizeof bytes);
  };
  narrow(to, x.a), narrow(to + 4, x.b), narrow(to + 8, x.c), narrow(to + 12, x.d);
}
static inline void store_one_plane(uint8_t *plane, Lanes x, int offset) {
  store_bytes(plane, x, [&](QuadWords value) { return value + static_cast<uint32_t>(offset); });
}
static inline void store_two_planes(uint8_t *high, uint8_t *low, Lanes x, int offset) {
  store_bytes(high, x, [&](QuadWords value) { return ((value + 128) >> 8) + static_cast<uint32_t>(offset); });
  store_one_plane(low, x, offset);
}
static inline Lanes load_int32(const int32_t *p) {
  const auto convert = [](const int32_t *four) { return __builtin_convertvector(load_quad<QuadInts>(four), Quad); };
  return {convert(p), convert(p + 4), convert(p + 8), convert(p + 12)};
}

static inline void gather_halves(uint32_t *out, const uint32_t *first, bool first_odd, const uint32_t *second,
                                 bool second_odd) {
  for (int i = 0; i < 16; i += 4) {
    QuadWords low = {}, high = {};
    if (first) {
      low = load_quad<QuadWords>(first + i);
      low = first_odd ? low >> 16 : low & 0xffff;
    }
    if (second) {
      high = load_quad<QuadWords>(second + i);
      high = second_odd ? high & 0xffff0000u : high << 16;
    }
    low |= high;
    std::memcpy(out + i, &low, sizeof low);
  }
}
