// exp, tanh, erf and the activations on sixteen lanes.
#pragma once
#include "kernels/vectors/vector.h"

// Degree-5 polynomial on [-ln2/2, ln2/2] after range reduction (coefficients of Cephes' expf), relative error
// below 2e-7. Arguments are clamped to where the result is a normal number; x as the second operand of max and min
// lets a NaN through.
static inline Lanes exp(Lanes x) {
  x = min(splat(87.f), max(splat(-87.f), x));
  // At 1.5 * 2^23 a float has no room for fractions: the sum is rounded to an integer, and its lowest bits hold it.
  constexpr float kIntegers = 12582912.f + 127.f;
  const Lanes shifted = fma(x, splat(1.44269504f), splat(kIntegers)), n = shifted - splat(kIntegers);
  Lanes f = fma(n, splat(-0.693359375f), x);
  f = fma(n, splat(2.12194440e-4f), f);
  Lanes p = splat(1.9875691500e-4f);
  p = fma(p, f, splat(1.3981999507e-3f));
  p = fma(p, f, splat(8.3334519073e-3f));
  p = fma(p, f, splat(4.1665795894e-2f));
  p = fma(p, f, splat(1.6666665459e-1f));
  p = fma(p, f, splat(5.0000001201e-1f));
  p = fma(p, f * f, f + splat(1.f));
  return p * power_of_two(shifted);
}

static inline Lanes sigmoid(Lanes x) { return splat(1.f) / (splat(1.f) + exp(splat(0.f) - x)); }

static inline Lanes tanh(Lanes x) { return splat(2.f) * sigmoid(x + x) - splat(1.f); }

// log(1 + exp(x)), relative error below 3e-7 wherever exp(x) is a normal number: with t = exp(-|x|) and s = t / (2 +
// t), log(1 + t) = 2 atanh(s), whose series ends here behind s^15; s is at most a third.
static inline Lanes softplus(Lanes x) {
  const Lanes t = exp(splat(0.f) - abs(x)), s = t / (t + splat(2.f)), square = s * s;
  Lanes p = splat(1.f / 15.f);
  for (const float next : {1.f / 13.f, 1.f / 11.f, 1.f / 9.f, 1.f / 7.f, 1.f / 5.f, 1.f / 3.f, 1.f})
    p = fma(p, square, splat(next));
  return max(splat(0.f), x) + (s + s) * p;
}

// Abramowitz and Stegun 7.1.26, absolute error below 1.5e-7.
static inline Lanes erf(Lanes x) {
  const Lanes a = abs(x);
  const Lanes t = splat(1.f) / fma(splat(0.3275911f), a, splat(1.f));
  Lanes p = splat(1.061405429f);
  p = fma(p, t, splat(-1.453152027f));
  p = fma(p, t, splat(1.421413741f));
  p = fma(p, t, splat(-0.284496736f));
  p = fma(p, t, splat(0.254829592f));
  const Lanes positive = splat(1.f) - p * t * exp(splat(0.f) - a * a);
  return positive * min(max(x * splat(1e38f), splat(-1.f)), splat(1.f));  // the sign of x
}

enum class Activation { silu, gelu, gelu_tanh, relu, relu2, xielu };

// xIELU (Huang et al. 2024, equation 5) with a layer's numbers: of a parabola above zero, of an exponential below it,
// the slope, and the largest number that the exponential sees.
static inline Lanes xielu(const float *curve, Lanes x) {
  const Lanes above = max(splat(0.f), x), below = min(x, splat(0.f));
  const Lanes is_below = min(below * splat(-1e38f), splat(1.f));
  const Lanes falling = exp(min(x, splat(curve[3]))) - splat(1.f) - below;
  return fma(splat(curve[0]) * above, above, fma(falling * is_below, splat(curve[1]), splat(curve[2]) * x));
}

static inline Lanes activate(Activation kind, Lanes x) {
  switch (kind) {
    case Activation::silu:
      return x * sigmoid(x);
    case Activation::gelu:
      return splat(0.5f) * x * (splat(1.f) + erf(x * splat(0.70710678f)));
    case Activation::gelu_tanh: {
      const Lanes u = splat(0.79788456f) * fma(splat(0.044715f) * x * x, x, x);
      return x * sigmoid(u + u);
    }
    case Activation::relu:
      return max(splat(0.f), x);
    case Activation::relu2:
      return max(splat(0.f), x) * max(splat(0.f), x);
    case Activation::xielu:
      break;
  }
  return x;
}
