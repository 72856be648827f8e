"""Formats of dates and times that Java, which Spark runs, and DuckDB write and read alike.

sqlglot hands them on in the letters of strftime, and has `strict` behind what has two digits.
"""

from __future__ import annotations

import re
from itertools import pairwise

import pyarrow as pa

from mview.execute.local.admitted.entries import SPARK_DECIDES
from mview.execute.local.admitted.signatures import Sign, Signature
from mview.execute.local.admitted.spark_types import BIGINT, INTEGERS, STRING, Typed

_FIELD = r"%(?:[mdHMSI]strict|-[mdHMSI]|[YyaAbBp])"
_BETWEEN = r"[ ./:,_-]|'T'"
_FORMAT = re.compile(rf"(?:{_FIELD}|{_BETWEEN}|\d)+")
#: What is read back: fields of a fixed number of digits.
_FIXED = re.compile(rf"(?:%(?:[mdHMS]strict|Y)|{_BETWEEN})+")
#: The field that a letter is of.
_KINDS = {"y": "Y", "b": "m", "B": "m", "A": "a", "I": "H"}
#: A literal format as DuckDB has it.
_LETTERS = "replace(replace({1}, 'strict', ''), '''', '')"
#: The years that are written alike with four digits, in days and in seconds of Unix.
_FIRST, _END = "DATE '0001-01-01'", "DATE '10000-01-01'"
_SECONDS = "BETWEEN -62135596800 AND 253402300799"


def _fields(value: Typed, form: re.Pattern[str]) -> list[str]:
    """The fields of a literal format in order; none where it is not of this form."""
    text = value.literal or ""
    if value.type != STRING or not form.fullmatch(text):
        return []
    letters = re.findall(r"%-?([A-Za-z])", text)
    return [_KINDS.get(letter, letter) for letter in letters]


def _has_runs(value: Typed) -> bool:
    """Whether one field stands right behind itself, as what Java reads as a whole is cut by."""
    runs = re.findall(rf"(?:{_FIELD}){{2,}}", value.literal or "")
    kinds = ([_KINDS.get(k, k) for k in re.findall(r"%-?([A-Za-z])", run)] for run in runs)
    return any(a == b for run in kinds for a, b in pairwise(run))


def written(kinds: tuple[pa.DataType, ...]) -> Sign:
    """A value of one of these types, and the literal format that it is written in."""

    def sign(values: list[Typed]) -> Signature | None:
        value, form = values
        fits = value.type in kinds and _fields(form, _FORMAT) and not _has_runs(form)
        kind = BIGINT if value.type in INTEGERS else value.type
        return Signature((kind, STRING), STRING) if fits else None

    return sign


def read_as(kind: pa.DataType) -> Sign:
    """A string, and the literal format that it is read by: a day at least, each field once."""

    def sign(values: list[Typed]) -> Signature | None:
        value, form = values
        fields = _fields(form, _FIXED)
        whole = {"Y", "m", "d"} <= set(fields) and len(set(fields)) == len(fields)
        # Without the hour, minutes are none of that day.
        nested = all(more not in fields or less in fields for less, more in ("HM", "MS"))
        fits = value.type == STRING and whole and nested
        return Signature((STRING, STRING), kind) if fits else None

    return sign


#: DuckDB texts: a date or time, and seconds of Unix, in a format; Spark decides on other years.
WRITTEN = (
    f"(CASE WHEN {{0}} >= {_FIRST} AND {{0}} < {_END} THEN strftime({{0}}, {_LETTERS}) "
    f"WHEN {{0}} IS NOT NULL THEN {SPARK_DECIDES} END)"
)
SECONDS_WRITTEN = (
    f"(CASE WHEN {{0}} {_SECONDS} THEN strftime(make_timestamp({{0}} * 1000000), {_LETTERS}) "
    f"WHEN {{0}} IS NOT NULL THEN {SPARK_DECIDES} END)"
)
_READ = f"try_strptime({{0}}, {_LETTERS})"
#: What is written again as it was read is written as Java wants it; Spark decides on the rest.
READ = (
    f"(CASE WHEN strftime({_READ}, {_LETTERS}) = {{0}} AND {_READ} >= {_FIRST} "
    f"AND {_READ} < {_END} THEN {_READ} "
    f"WHEN {{0}} IS NOT NULL THEN CAST({SPARK_DECIDES} AS TIMESTAMP) END)"
)
