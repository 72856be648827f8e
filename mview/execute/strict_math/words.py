"""Doubles, and their upper 32 bits, which hold sign, exponent and the first bits behind it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]
Words = npt.NDArray[np.int64]

#: Of the upper bits: those behind the exponent; and the upper bits of 1.
MANTISSA, ONE = 0x000FFFFF, 0x3FF00000

_LOWER = 0xFFFFFFFF


def upper_bits(x: Doubles) -> Words:
    """The upper 32 bits of each value, as a signed number."""
    return np.ascontiguousarray(x).view(np.int64) >> 32


def with_upper(x: Doubles, bits: Words) -> Doubles:
    """The values with other upper 32 bits."""
    lower = np.ascontiguousarray(x).view(np.int64) & _LOWER
    words: Words = (bits << 32) | lower
    return words.view(np.float64)


def upper(x: Doubles) -> Doubles:
    """The values without their lower 32 bits."""
    words: Words = np.ascontiguousarray(x).view(np.int64) & ~_LOWER
    return words.view(np.float64)
