"""exp, ln and log10 to the last bit as Java's StrictMath gives them, for many values at once.

Spark calls StrictMath, which is fdlibm ("Freely Distributable LIBM", Sun Microsystems 1993: an
argument is reduced to a small range, and a polynomial of minimax coefficients is taken there). The
C library, and so DuckDB, rounds some values otherwise. Here are the same steps in the same order:
each is one operation of IEEE doubles, so that no bit can differ.
"""

from __future__ import annotations

import numpy as np

from mview.execute.strict_math.words import (
    MANTISSA,
    ONE,
    Doubles,
    upper_bits,
    with_upper,
)

_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_PER_LN2 = 1.44269504088896338700e00
#: Beyond these exp is infinite, or 0.
_EXP_MOST, _EXP_LEAST = 7.09782712893383973096e02, -7.45133219101941108420e02
_EXP = (
    1.66666666666666019037e-01,
    -2.77777777770155933842e-03,
    6.61375632143793436117e-05,
    -1.65339022054652515390e-06,
    4.13813679705723846039e-08,
)
_LOG = (
    6.666666666666735130e-01,
    3.999999999940941908e-01,
    2.857142874366239149e-01,
    2.222219843214978396e-01,
    1.818357216161805012e-01,
    1.531383769920937332e-01,
    1.479819860511658591e-01,
)
_PER_LN10 = 4.34294481903251816668e-01
_LOG10_2_HIGH, _LOG10_2_LOW = 3.01029995663611771306e-01, 3.69423907715893078616e-13
_TWO_54 = 2.0**54


def exp(x: Doubles) -> Doubles:
    """e to the power of each value."""
    size = upper_bits(x) & 0x7FFFFFFF
    negative = np.signbit(x)
    # x = k * ln 2 + r, with |r| of at most half of ln 2.
    far, near = size >= 0x3FF0A2B2, size > 0x3FD62E42
    plain = np.where(np.isfinite(x) & (x <= _EXP_MOST) & (x >= _EXP_LEAST), x, 0.0)
    half = np.where(negative, -0.5, 0.5)
    by_one = np.where(negative, -1.0, 1.0)
    k = np.where(far, np.trunc(_PER_LN2 * plain + half), np.where(near, by_one, 0.0))
    high = np.where(near, plain - k * _LN2_HIGH, plain)
    low = np.where(near, k * _LN2_LOW, 0.0)
    r = np.where(near, high - low, plain)
    t = r * r
    p1, p2, p3, p4, p5 = _EXP
    c = r - t * (p1 + t * (p2 + t * (p3 + t * (p4 + t * p5))))
    reduced = 1.0 - ((low - (r * c) / (2.0 - c)) - high)
    small = 1.0 - ((r * c) / (c - 2.0) - r)
    # Exact, but where the result is subnormal, which is rounded once by the second product.
    steps = k.astype(np.int64)
    deep = steps < -1021
    scaled = np.ldexp(reduced, np.where(deep, steps + 1000, steps))
    scaled = np.where(deep, scaled * 2.0**-1000, scaled)
    y = np.where(near, scaled, np.where(size < 0x3E300000, 1.0 + plain, small))
    y = np.where(x > _EXP_MOST, np.inf, np.where(x < _EXP_LEAST, 0.0, y))
    return np.where(np.isnan(x), np.nan, y)


def ln(x: Doubles) -> Doubles:
    """The natural logarithm of each value, which is above 0 or NaN."""
    tiny = x < 2.0**-1022
    whole = np.where(tiny, x * _TWO_54, x)
    k = np.where(tiny, -54, 0)
    high = upper_bits(whole)
    k = k + (high >> 20) - 1023
    high = high & MANTISSA
    # whole = 2^k * (1 + f), with 1 + f between the root of 1/2 and that of 2.
    up = (high + 0x95F64) & 0x100000
    f = with_upper(whole, high | (up ^ ONE)) - 1.0
    dk = (k + (up >> 20)).astype(np.float64)
    none = dk == 0.0
    rough = f * f * (0.5 - 0.33333333333333333 * f)
    near = np.where(none, f - rough, dk * _LN2_HIGH - ((rough - dk * _LN2_LOW) - f))
    near = np.where((f == 0.0) & ~none, dk * _LN2_HIGH + dk * _LN2_LOW, near)
    near = np.where((f == 0.0) & none, 0.0, near)
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    l1, l2, l3, l4, l5, l6, l7 = _LOG
    r = z * (l1 + w * (l3 + w * (l5 + w * l7))) + w * (l2 + w * (l4 + w * l6))
    half = 0.5 * f * f
    middle = np.where(
        none,
        f - (half - s * (half + r)),
        dk * _LN2_HIGH - ((half - (s * (half + r) + dk * _LN2_LOW)) - f),
    )
    edge = np.where(none, f - s * (f - r), dk * _LN2_HIGH - ((s * (f - r) - dk * _LN2_LOW) - f))
    far = np.where(((high - 0x6147A) | (0x6B851 - high)) > 0, middle, edge)
    y = np.where((MANTISSA & (2 + high)) < 3, near, far)
    return np.where(np.isfinite(x), y, x)


def log10(x: Doubles) -> Doubles:
    """The decimal logarithm of each value, which is above 0 or NaN."""
    tiny = x < 2.0**-1022
    whole = np.where(tiny, x * _TWO_54, x)
    high = upper_bits(whole)
    k = np.where(tiny, -54, 0) + (high >> 20) - 1023
    below = (k < 0).astype(np.int64)
    y = (k + below).astype(np.float64)
    rest = with_upper(whole, (high & MANTISSA) | ((0x3FF - below) << 20))
    answer = (y * _LOG10_2_LOW + _PER_LN10 * ln(rest)) + y * _LOG10_2_HIGH
    return np.where(np.isfinite(x), answer, x)
