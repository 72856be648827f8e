"""How many different values there are, about: HyperLogLog++ as Spark has it.

Source: S. Heule, M. Nunkesser, A. Hall, "HyperLogLog in Practice" (2013), and the figures of its
appendix for 512 registers, which is what Spark takes where no deviation is asked for (0.05).

A hash chooses one of the registers by its first bits, and of the others counts the zeros that come
first. A register keeps the most that it has seen; the estimate comes of all of them.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mview.execute.sketches.xxhash import Words

#: What Spark hashes values with.
SEED = 42

_BITS = 9
_REGISTERS = 1 << _BITS
#: More than a register can hold: a code is that of a register and what it is shown.
_LEVELS = np.int64(64)
_SCALE = (0.7213 / (1.0 + 1.079 / _REGISTERS)) * _REGISTERS * _REGISTERS
#: Up to so many values, and up to such an estimate, registers are counted that have seen nothing.
_LINEAR, _RAW_LINEAR = 400.0, 2.5 * _REGISTERS
#: Biases that are averaged.
_NEAR = 6


def register_codes(hashes: Words) -> NDArray[np.int32]:
    """The registers that hashes choose, and what they show these, as one number each."""
    chosen = (hashes >> np.uint64(64 - _BITS)).astype(np.int64)
    # A bit behind the last: a hash of zeros has no more than there are.
    rest = hashes << np.uint64(_BITS) | np.uint64(1 << (_BITS - 1))
    codes: NDArray[np.int32] = (chosen * _LEVELS + _leading_zeros(rest) + 1).astype(np.int32)
    return codes


def _leading_zeros(words: Words) -> NDArray[np.int64]:
    zeros = np.zeros(len(words), np.int64)
    for step in (32, 16, 8, 4, 2, 1):
        low = words < np.uint64(1) << np.uint64(64 - step)
        zeros[low] += step
        words = np.where(low, words << np.uint64(step), words)
    return zeros


def estimates(codes: NDArray[np.integer], sets: NDArray[np.integer], count: int) -> list[int]:
    """About how many different values each set has.

    Args:
        codes: of all values, see `register_codes`; the same may come more than once.
        sets: of each code, the number of its set.
        count: number of sets.
    """
    shown = np.sort(sets.astype(np.int64) * (_REGISTERS * _LEVELS) + codes)
    # Of what a register is shown it keeps the most, which comes last.
    shown = shown[np.diff(shown // _LEVELS, append=-1) != 0]
    owner = shown // (_REGISTERS * _LEVELS)
    unseen = _REGISTERS - np.bincount(owner, minlength=count)
    # Powers of two, of which no sum is rounded: their order does not matter.
    inverse = unseen + np.bincount(owner, np.ldexp(1.0, -(shown % _LEVELS)), count)
    return [
        _estimate(_SCALE / total, zeros)
        for total, zeros in zip(inverse.tolist(), unseen.tolist(), strict=True)
    ]


def _estimate(raw: float, unseen: int) -> int:
    if unseen:
        linear = _REGISTERS * math.log(_REGISTERS / unseen)
        if linear <= _LINEAR or raw <= _RAW_LINEAR:
            return _rounded(linear)
    return _rounded(raw - _bias(raw) if raw < 5.0 * _REGISTERS else raw)


def _rounded(value: float) -> int:
    return math.floor(value + 0.5)


def _bias(raw: float) -> float:
    """The average bias of what is nearest to an estimate."""

    def distance(place: int) -> float:
        return (raw - _ESTIMATES[place]) ** 2

    low = max(bisect_left(_ESTIMATES, raw) - _NEAR + 1, 0)
    high = min(low + _NEAR, len(_ESTIMATES))
    while high < len(_ESTIMATES) and distance(high) < distance(low):
        low, high = low + 1, high + 1
    return sum(_BIASES[low:high]) / (high - low)


#: Estimates without a correction, in order, and by how much each is too large.
_ESTIMATES: Sequence[float] = (
    369.0, 374.8294, 381.2452, 387.6698, 394.1464, 400.2024, 406.8782, 413.6598, 420.462, 427.2826,
    433.7102, 440.7416, 447.9366, 455.1046, 462.285, 469.0668, 476.306, 483.8448, 491.301, 498.9886,
    506.2422, 513.8138, 521.7074, 529.7428, 537.8402, 545.1664, 553.3534, 561.594, 569.6886,
    577.7876, 585.65, 594.228, 602.8036, 611.1666, 620.0818, 628.0824, 637.2574, 646.302, 655.1644,
    664.0056, 672.3802, 681.7192, 690.5234, 700.2084, 708.831, 718.485, 728.1112, 737.4764, 746.76,
    756.3368, 766.5538, 775.5058, 785.2646, 795.5902, 804.3818, 814.8998, 824.9532, 835.2062,
    845.2798, 854.4728, 864.9582, 875.3292, 886.171, 896.781, 906.5716, 916.7048, 927.5322, 937.875,
    949.3972, 958.3464, 969.7274, 980.2834, 992.1444, 1003.4264, 1013.0166, 1024.018, 1035.0438,
    1046.34, 1057.6856, 1068.9836, 1079.0312, 1091.677, 1102.3188, 1113.4846, 1124.4424, 1135.739,
    1147.1488, 1158.9202, 1169.406, 1181.5342, 1193.2834, 1203.8954, 1216.3286, 1226.2146,
    1239.6684, 1251.9946, 1262.123, 1275.4338, 1285.7378, 1296.076, 1308.9692, 1320.4964, 1333.0998,
    1343.9864, 1357.7754, 1368.3208, 1380.4838, 1392.7388, 1406.0758, 1416.9098, 1428.9728,
    1440.9228, 1453.9292, 1462.617, 1476.05, 1490.2996, 1500.6128, 1513.7392, 1524.5174, 1536.6322,
    1548.2584, 1562.3766, 1572.423, 1587.1232, 1596.5164, 1610.5938, 1622.5972, 1633.1222,
    1647.7674, 1658.5044, 1671.57, 1683.7044, 1695.4142, 1708.7102, 1720.6094, 1732.6522, 1747.841,
    1756.4072, 1769.9786, 1782.3276, 1797.5216, 1808.3186, 1819.0694, 1834.354, 1844.575, 1856.2808,
    1871.1288, 1880.7852, 1893.9622, 1906.3418, 1920.6548, 1932.9302, 1945.8584, 1955.473,
    1968.8248, 1980.6446, 1995.9598, 2008.349, 2019.8556, 2033.0334, 2044.0206, 2059.3956,
    2069.9174, 2082.6084, 2093.7036, 2106.6108, 2118.9124, 2132.301, 2144.7628, 2159.8422,
    2171.0212, 2183.101, 2193.5112, 2208.052, 2221.3194, 2233.3282, 2247.295, 2257.7222, 2273.342,
    2286.5638, 2299.6786, 2310.8114, 2322.3312, 2335.516, 2349.874, 2363.5968, 2373.865, 2387.1918,
    2401.8328, 2414.8496, 2424.544, 2436.7592, 2447.1682, 2464.1958, 2474.3438, 2489.0006,
    2497.4526, 2513.6586, 2527.19, 2540.7028, 2553.768,
)  # fmt: skip
_BIASES: Sequence[float] = (
    368.0, 361.8294, 355.2452, 348.6698, 342.1464, 336.2024, 329.8782, 323.6598, 317.462, 311.2826,
    305.7102, 299.7416, 293.9366, 288.1046, 282.285, 277.0668, 271.306, 265.8448, 260.301, 254.9886,
    250.2422, 244.8138, 239.7074, 234.7428, 229.8402, 225.1664, 220.3534, 215.594, 210.6886,
    205.7876, 201.65, 197.228, 192.8036, 188.1666, 184.0818, 180.0824, 176.2574, 172.302, 168.1644,
    164.0056, 160.3802, 156.7192, 152.5234, 149.2084, 145.831, 142.485, 139.1112, 135.4764, 131.76,
    129.3368, 126.5538, 122.5058, 119.2646, 116.5902, 113.3818, 110.8998, 107.9532, 105.2062,
    102.2798, 99.4728, 96.9582, 94.3292, 92.171, 89.7809999999999, 87.5716, 84.7048, 82.5322,
    79.875, 78.3972, 75.3464, 73.7274, 71.2834, 70.1444, 68.4263999999999, 66.0166, 64.018,
    62.0437999999999, 60.3399999999999, 58.6856, 57.9836, 55.0311999999999, 54.6769999999999,
    52.3188, 51.4846, 49.4423999999999, 47.739, 46.1487999999999, 44.9202, 43.4059999999999,
    42.5342000000001, 41.2834, 38.8954000000001, 38.3286000000001, 36.2146, 36.6684, 35.9946,
    33.123, 33.4338, 31.7378000000001, 29.076, 28.9692, 27.4964, 27.0998, 25.9864, 26.7754, 24.3208,
    23.4838, 22.7388000000001, 24.0758000000001, 21.9097999999999, 20.9728, 19.9228000000001,
    19.9292, 16.617, 17.05, 18.2996000000001, 15.6128000000001, 15.7392, 14.5174, 13.6322,
    12.2583999999999, 13.3766000000001, 11.423, 13.1232, 9.51639999999998, 10.5938000000001,
    9.59719999999993, 8.12220000000002, 9.76739999999995, 7.50440000000003, 7.56999999999994,
    6.70440000000008, 6.41419999999994, 6.71019999999999, 5.60940000000005, 4.65219999999999,
    6.84099999999989, 3.4072000000001, 3.97859999999991, 3.32760000000007, 5.52160000000003,
    3.31860000000006, 2.06940000000009, 4.35400000000004, 1.57500000000005, 0.280799999999999,
    2.12879999999996, -0.214799999999968, -0.0378000000000611, -0.658200000000079,
    0.654800000000023, -0.0697999999999865, 0.858400000000074, -2.52700000000004, -2.1751999999999,
    -3.35539999999992, -1.04019999999991, -0.651000000000067, -2.14439999999991, -1.96659999999997,
    -3.97939999999994, -0.604400000000169, -3.08260000000018, -3.39159999999993, -5.29640000000018,
    -5.38920000000007, -5.08759999999984, -4.69900000000007, -5.23720000000003, -3.15779999999995,
    -4.97879999999986, -4.89899999999989, -7.48880000000008, -5.94799999999987, -5.68060000000014,
    -6.67180000000008, -4.70499999999993, -7.27779999999984, -4.6579999999999, -4.4362000000001,
    -4.32139999999981, -5.18859999999995, -6.66879999999992, -6.48399999999992, -5.1260000000002,
    -4.4032000000002, -6.13500000000022, -5.80819999999994, -4.16719999999987, -4.15039999999999,
    -7.45600000000013, -7.24080000000004, -9.83179999999993, -5.80420000000004, -8.6561999999999,
    -6.99940000000015, -10.5473999999999, -7.34139999999979, -6.80999999999995, -6.29719999999998,
    -6.23199999999997,
)  # fmt: skip
