"""XXH64 of many values at once (Yann Collet's xxHash, with 64 bits), as Spark hashes values.

Spark hashes an integer by its bytes, the lowest first: four of what has up to 32 bits, else eight.
A text is hashed by its bytes in UTF-8.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Words = NDArray[np.uint64]
_Octets = NDArray[np.uint8]
_Places = NDArray[np.int64]

_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)
_ZERO = np.uint64(0)
#: Bytes that are taken in at once, by the words of a state.
_STRIPE = 32
#: By how much these are rotated when they are put together.
_TURNS = (1, 7, 12, 18)


def of_integers(values: NDArray[Any], seed: int) -> Words:
    """The hashes of integers of one width, of four bytes or of eight."""
    width = values.dtype.itemsize
    octets = np.ascontiguousarray(values, f"<i{width}").view(np.uint8)
    starts = np.arange(len(values), dtype=np.int64) * width
    return _hashes(octets, starts, np.full(len(values), width, np.int64), np.uint64(seed))


def of_texts(values: pa.StringArray, seed: int) -> Words:
    """The hashes of texts; that of NULL is of no meaning."""
    if not len(values):
        return np.zeros(0, np.uint64)
    _, ends, content = values.buffers()
    places = np.frombuffer(ends, np.int32)[values.offset :][: len(values) + 1].astype(np.int64)
    octets = np.frombuffer(content or b"", np.uint8)
    return _hashes(octets, places[:-1], np.diff(places), np.uint64(seed))


def _hashes(octets: _Octets, starts: _Places, lengths: _Places, seed: np.uint64) -> Words:
    """The hashes of parts of some bytes.

    Args:
        octets: the bytes.
        starts: where each part begins.
        lengths: how many bytes each has.
        seed: what the hashes begin with.
    """
    with np.errstate(over="ignore"):
        hashes: Words = np.full(len(starts), seed + _P5)
        long = np.flatnonzero(lengths >= _STRIPE)
        if len(long):
            hashes[long] = _of_stripes(octets, starts[long], lengths[long] // _STRIPE, seed)
        hashes += lengths.astype(np.uint64)
        at, left = starts + lengths // _STRIPE * _STRIPE, lengths % _STRIPE
        for number in range(3):
            rows = np.flatnonzero(left >= 8 * (number + 1))
            word = _mixed(_ZERO, _words(octets, at[rows] + 8 * number, 8))
            hashes[rows] = _rotated(hashes[rows] ^ word, 27) * _P1 + _P4
        at, left = at + left // 8 * 8, left % 8
        rows = np.flatnonzero(left >= 4)
        word = _words(octets, at[rows], 4) * _P1
        hashes[rows] = _rotated(hashes[rows] ^ word, 23) * _P2 + _P3
        at, left = at + left // 4 * 4, left % 4
        for number in range(3):
            rows = np.flatnonzero(left > number)
            word = _words(octets, at[rows] + number, 1) * _P5
            hashes[rows] = _rotated(hashes[rows] ^ word, 11) * _P1
        for by, prime in ((33, _P2), (29, _P3)):
            hashes = (hashes ^ hashes >> np.uint64(by)) * prime
        hashes ^= hashes >> np.uint64(32)
    return hashes


def _of_stripes(octets: _Octets, starts: _Places, stripes: _Places, seed: np.uint64) -> Words:
    """What whole stripes make of a hash."""
    states = [
        np.full(len(starts), word) for word in (seed + _P1 + _P2, seed + _P2, seed, seed - _P1)
    ]
    for stripe in range(stripes.max()):
        rows = np.flatnonzero(stripes > stripe)
        for number, state in enumerate(states):
            word = _words(octets, starts[rows] + _STRIPE * stripe + 8 * number, 8)
            state[rows] = _mixed(state[rows], word)
    hashes = np.zeros(len(starts), np.uint64)
    for state, turn in zip(states, _TURNS, strict=True):
        hashes += _rotated(state, turn)
    for state in states:
        hashes = (hashes ^ _mixed(_ZERO, state)) * _P1 + _P4
    return hashes


def _words(octets: _Octets, places: _Places, width: int) -> Words:
    """The numbers that stand in some bytes at these places."""
    word = np.zeros(len(places), np.uint64)
    for number in range(width):
        word |= octets[places + number].astype(np.uint64) << np.uint64(8 * number)
    return word


def _mixed(state: Words | np.uint64, word: Words) -> Words:
    mixed: Words = _rotated(state + word * _P2, 31) * _P1
    return mixed


def _rotated(words: Words, by: int) -> Words:
    rotated: Words = words << np.uint64(by) | words >> np.uint64(64 - by)
    return rotated
