"""Values of a table's properties that nobody takes: told before there is a table.

Formats have hundreds of properties, and take any text for one until something reads it. Known here
are those that a value can be wrong for what writes or reads the tables of sinks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple


class Form(NamedTuple):
    """What a value may be.

    Attributes:
        told: in words.
        fits: the texts that are such values, small letters, as a whole.
    """

    told: str
    fits: re.Pattern[str]


def of_words(*words: str) -> Form:
    """One of some words."""
    return Form(f"one of {', '.join(words)}", re.compile("|".join(map(re.escape, words))))


NUMBER = Form("a whole number", re.compile(r"\d{1,18}"))
SWITCH = of_words("true", "false")

#: As Paimon spells them.
SIZE = Form(
    "a size, as 128 mb",
    re.compile(
        r"\d{1,18}\s*(b|bytes|k|kb|kibibytes|m|mb|mebibytes|g|gb|gibibytes|t|tb|tebibytes)?"
    ),
)
TIME = Form("a time, as 10 min", re.compile(r"\d{1,18}\s*[a-zµ]*"))


def forms(*groups: tuple[Form, Iterable[str]]) -> Mapping[str, Form]:
    """The forms by the names of properties."""
    return {name: form for form, names in groups for name in names}


def of_forms(known: Mapping[str, Form]) -> Callable[[dict[str, str]], dict[str, str]]:
    """A check of properties, for a setting."""

    def check(properties: dict[str, str]) -> dict[str, str]:
        wrong = [
            f"{name} must be {known[name].told}, not {value!r}"
            for name, value in properties.items()
            if name in known and not known[name].fits.fullmatch(value.strip().lower())
        ]
        if wrong:
            raise ValueError("; ".join(wrong))
        return properties

    return check
