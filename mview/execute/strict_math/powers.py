"""power to the last bit as Java's StrictMath gives it; see `logarithms`."""

from __future__ import annotations

import numpy as np

from mview.execute.strict_math.words import (
    MANTISSA,
    ONE,
    Doubles,
    upper,
    upper_bits,
    with_upper,
)

_PER_LN2 = 1.44269504088896338700e00
_EXP = (
    1.66666666666666019037e-01,
    -2.77777777770155933842e-03,
    6.61375632143793436117e-05,
    -1.65339022054652515390e-06,
    4.13813679705723846039e-08,
)
#: Of log2 of what lies about 1 and about 1.5.
_LOG2 = (
    5.99999999999994648725e-01,
    4.28571428578550184252e-01,
    3.33333329818377432918e-01,
    2.72728123808534006489e-01,
    2.30660745775561754067e-01,
    2.06975017800338417784e-01,
)
_LOG2_15_HIGH, _LOG2_15_LOW = 5.84962487220764160156e-01, 1.35003920212974897128e-08
#: 2 / (3 ln 2), 1 / ln 2 and ln 2, whole and in two parts of which the upper has few bits.
_CP, _CP_HIGH, _CP_LOW = (
    9.61796693925975554329e-01,
    9.61796700954437255859e-01,
    -7.02846165095275826516e-09,
)
_PER_LN2_HIGH, _PER_LN2_LOW = 1.44269502162933349609e00, 1.92596299112661746887e-08
_LG2, _LG2_HIGH, _LG2_LOW = (
    6.93147180559945286227e-01,
    6.93147182464599609375e-01,
    -1.90465429995776804525e-09,
)
#: -(1024 - log2 of what is rounded to infinity).
_OVER = 8.0085662595372944372e-17
_TWO_53 = 2.0**53


def power(x: Doubles, y: Doubles) -> Doubles:
    """Each value to the power of that beside it."""
    size, far = np.abs(x), np.abs(y)
    whole = np.trunc(y) == y  # NaN is not, and infinity is even
    odd = whole & (far < _TWO_53) & (np.fmod(y, 2.0) != 0)
    sign = np.where((x < 0) & odd, -1.0, 1.0)
    usual = np.isfinite(x) & np.isfinite(y) & (size > 0) & (size != 1)
    a, b = np.where(usual, size, 2.0), np.where(usual, y, 1.0)
    high, low = _log2(a)
    near = upper_bits(np.abs(b)) > 0x41E00000  # 2^31
    close = _close_to_1(a)
    high, low = (np.where(near, *pair) for pair in zip(close, (high, low), strict=True))
    z = sign * _two_to(b, high, low)
    bits = upper_bits(a)
    beyond = near & ((bits < 0x3FEFFFFF) | (bits > 0x3FF00000))
    z = np.where(beyond, sign * np.where((a > 1) == (b > 0), np.inf, 0.0), z)
    z = np.where((x < 0) & ~whole, np.nan, z)
    # The edges, the strongest last.
    edge = np.where(y < 0, 1.0 / size, size)
    edge = np.where((x == -1) & ~whole, np.nan, edge)
    negative = np.signbit(x) & odd
    z = np.where((size == 0) | (size == 1) | np.isinf(x), np.where(negative, -edge, edge), z)
    z = np.where((y == 0.5) & ~np.isneginf(x), np.sqrt(x + 0.0), z)
    z = np.where(y == 2, x * x, z)
    z = np.where(y == 1, x, np.where(y == -1, 1.0 / x, z))
    grows = np.where(size == 1, np.nan, np.where((size > 1) == (y > 0), np.inf, 0.0))
    z = np.where(np.isinf(y), grows, z)
    z = np.where(np.isnan(x) | np.isnan(y), np.nan, z)
    return np.where(y == 0, 1.0, z)


def _close_to_1(a: Doubles) -> tuple[Doubles, Doubles]:
    """log2 of values that are almost 1, in two parts."""
    t = a - 1.0
    w = (t * t) * (0.5 - t * (0.3333333333333333333333 - t * 0.25))
    u = _PER_LN2_HIGH * t
    v = t * _PER_LN2_LOW - w * _PER_LN2
    high = upper(u + v)
    return high, v - (high - u)


def _log2(a: Doubles) -> tuple[Doubles, Doubles]:
    """log2 of values that are positive and finite, in two parts."""
    tiny = a < 2.0**-1022
    a = np.where(tiny, a * _TWO_53, a)
    bits = upper_bits(a)
    n = np.where(tiny, -53, 0) + (bits >> 20) - 0x3FF
    j = bits & MANTISSA
    # a = 2^n * m, with m close to 1 or, where k is 1, to 1.5.
    k = ((j > 0x3988E) & (j < 0xBB67A)).astype(np.int64)
    up = (j >= 0xBB67A).astype(np.int64)
    n, bits = n + up, (j | ONE) - up * 0x00100000
    m = with_upper(a, bits)
    about = np.where(k == 1, 1.5, 1.0)
    u, v = m - about, 1.0 / (m + about)
    s = u * v
    s_high = upper(s)
    t_high = with_upper(np.zeros_like(a), ((bits >> 1) | 0x20000000) + 0x00080000 + (k << 18))
    t_low = m - (t_high - about)
    s_low = v * ((u - s_high * t_high) - s_high * t_low)
    s2 = s * s
    l1, l2, l3, l4, l5, l6 = _LOG2
    r = s2 * s2 * (l1 + s2 * (l2 + s2 * (l3 + s2 * (l4 + s2 * (l5 + s2 * l6)))))
    r = r + s_low * (s_high + s)
    s2 = s_high * s_high
    t_high = upper(3.0 + s2 + r)
    t_low = r - ((t_high - 3.0) - s2)
    u, v = s_high * t_high, s_low * t_high + t_low * s
    p_high = upper(u + v)
    p_low = v - (p_high - u)
    z_high = _CP_HIGH * p_high
    z_low = _CP_LOW * p_high + p_low * _CP + np.where(k == 1, _LOG2_15_LOW, 0.0)
    t, more = n.astype(np.float64), np.where(k == 1, _LOG2_15_HIGH, 0.0)
    high = upper(((z_high + z_low) + more) + t)
    return high, z_low - (((high - t) - more) - z_high)


def _two_to(y: Doubles, high: Doubles, low: Doubles) -> Doubles:
    """2 to the power of y times a number that is given in two parts."""
    large = upper(y)
    p_low, p_high = (y - large) * high + y * low, large * high
    z = p_low + p_high
    over = (z > 1024) | ((z == 1024) & (p_low + _OVER > z - p_high))
    under = (z < -1075) | ((z == -1075) & (p_low <= z - p_high))
    kept = ~(over | under)
    p_low, p_high = np.where(kept, p_low, 0.0), np.where(kept, p_high, 0.0)
    z = p_low + p_high
    # The nearest whole number goes to the exponent.
    bits = upper_bits(z)
    size = bits & 0x7FFFFFFF
    k = np.clip((size >> 20) - 0x3FF, -1, 20)
    half_up = bits + (np.int64(0x00100000) >> (k + 1))
    k = np.clip(((half_up & 0x7FFFFFFF) >> 20) - 0x3FF, 0, 20)
    t = with_upper(np.zeros_like(z), half_up & ~(MANTISSA >> k))
    n = ((half_up & MANTISSA) | 0x00100000) >> (20 - k)
    moved = size > 0x3FE00000
    n = np.where(moved, np.where(bits < 0, -n, n), 0)
    p_high = np.where(moved, p_high - t, p_high)
    t = upper(p_low + p_high)
    u, v = t * _LG2_HIGH, (p_low - (t - p_high)) * _LG2 + t * _LG2_LOW
    z = u + v
    w = v - (z - u)
    t = z * z
    p1, p2, p3, p4, p5 = _EXP
    t1 = z - t * (p1 + t * (p2 + t * (p3 + t * (p4 + t * p5))))
    r = (z * t1) / (t1 - 2.0) - (w + z * w)
    answer = np.ldexp(1.0 - (r - z), n)
    return np.where(over, np.inf, np.where(under, 0.0, answer))
