"""Regular expressions that Java, which Spark runs, and RE2, which DuckDB runs, read alike."""

from __future__ import annotations

import re

from mview.execute.local.admitted.entries import SPARK_DECIDES
from mview.execute.local.admitted.signatures import Signature, is_count
from mview.execute.local.admitted.spark_types import BOOLEAN, INT, STRING, Typed

#: One of a text, as a pattern: a plain character, an escaped one, a class of characters.
_PLAIN = r"[A-Za-z0-9 _\-:/@#%&=,;~!'\"<>]|[^\x00-\x7f]|\\[dDwWsS.+*?()\[\]{}|^$/\\-]|\."
_CLASS = r"\[\^?(?:[A-Za-z0-9](?:-[A-Za-z0-9])?|[ _:/@#%=,;.+*?()]|\\[dws.\\\]\[-])+\]"
_TIMES = r"(?:[*+?]|\{\d{1,2}(?:,\d{0,2})?\})"
_SIMPLE = rf"(?:(?:{_PLAIN}|{_CLASS}){_TIMES}?)"
#: Alternatives in a group, which is not repeated: what a repeated group has matched last differs.
_GROUP = rf"(?:\((?:\?:)?{_SIMPLE}+(?:\|{_SIMPLE}+)*\))"
_SAFE = re.compile(rf"\^?(?:{_SIMPLE}|{_GROUP})+(?:\|(?:{_SIMPLE}|{_GROUP})+)*\$?")
#: In a text: ends of lines, which `.` and `$` take otherwise, and a blank for `\s` of Java alone.
_BREAKS = r"[\n\r\x0B\x{{85}}\x{{2028}}\x{{2029}}]"


def _pattern(value: Typed) -> re.Pattern[str] | None:
    """A literal that both engines read alike, as Python reads it, too; else None."""
    text = value.literal
    if value.type != STRING or not text or not _SAFE.fullmatch(text):
        return None
    try:
        return re.compile(text)
    except re.error:
        return None


def matched(values: list[Typed]) -> Signature | None:
    """A string, and a pattern."""
    fits = values[0].type == STRING and _pattern(values[1]) is not None
    return Signature((STRING, STRING), BOOLEAN) if fits else None


def searched(values: list[Typed]) -> Signature | None:
    """A string, and a pattern; the result is a string."""
    return Signature((STRING, STRING), STRING) if matched(values) else None


def counted_by(values: list[Typed]) -> Signature | None:
    """A string, and a pattern that matches no empty text."""
    pattern = _pattern(values[1])
    fits = pattern is not None and not pattern.search("") and matched(values)
    return Signature((STRING, STRING), INT) if fits else None


def replaced(values: list[Typed]) -> Signature | None:
    """A string, a pattern that matches no empty text, and what comes in place of it."""
    text, by, instead = values
    pattern = _pattern(by)
    # Java finds an empty text after a match, RE2 does not; `$` and `\` name what was matched.
    if pattern is None or pattern.search("") or text.type != STRING:
        return None
    plain = instead.literal is not None and not re.search(r"[$\\]", instead.literal)
    fits = instead.type == STRING and plain
    return Signature((STRING, STRING, STRING), STRING) if fits else None


def extracted(values: list[Typed]) -> Signature | None:
    """A string, a pattern, and the literal number of one of its groups."""
    pattern, number = _pattern(values[1]), values[2] if len(values) == 3 else None
    if pattern is None or values[0].type != STRING:
        return None
    group = 1 if number is None else int(number.literal or 0) if is_count(number) else -1
    fits = 0 <= group <= pattern.groups
    return Signature((STRING, STRING, INT)[: len(values)], STRING) if fits else None


def unbroken(text: str, kind: str = "VARCHAR") -> str:
    """DuckDB text of a type over the operand `{0}`; where that has ends of lines, Spark decides."""
    return (
        f"CASE WHEN NOT regexp_matches({{0}}, '{_BREAKS}') THEN {text} "
        f"WHEN {{0}} IS NOT NULL THEN CAST({SPARK_DECIDES} AS {kind}) END"
    )
