"""Reasons why an operator reads all rows of its inputs, as `explain` shows them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Note:
    """Why an operator reads all rows of its inputs.

    Attributes:
        code: short name of the reason.
        message: what it is.
        hint: what to change in the SQL; empty where nothing need be.
        always: whenever something changes: that is FULL. Else only in some epochs.
    """

    code: str
    message: str
    hint: str
    always: bool = True


NO_EQUALITY = Note(
    "NO_EQUALITY",
    "no equality of plain columns connects the two sides",
    "join on equal columns of one type",
)
GLOBAL = Note("GLOBAL", "one result over all rows", "add GROUP BY, or use only count, sum and avg")
COMPUTED_KEY = Note(
    "COMPUTED_KEY",
    "no key is a plain column of a table",
    "group or partition by a plain column too",
)
NULL_EXTENDED = Note(
    "NULL_EXTENDED",
    "a key comes from the optional side of an outer join, so NULL may stand for any unmatched row",
    "group by the column of the other side",
)
LIMIT = Note("LIMIT", "the first rows of all rows", "rank within a PARTITION BY, or drop LIMIT")
NOT_IN = Note(
    "NOT_IN",
    "one NULL in NOT IN concerns all rows",
    "use NOT EXISTS, or declare the columns NOT NULL",
)

VALUE = Note(
    "VALUE",
    "a subquery's value concerns all rows: they are read in epochs that change the value",
    "",
    always=False,
)
TIME = Note(
    "TIME",
    "the time concerns all rows: they are read when the day ends (current_date) or at every tick "
    "(now)",
    "compare a plain column with the time: `at > now() - INTERVAL 1 HOUR`",
    always=False,
)
TOP = Note(
    "TOP",
    "the first rows and a reserve are kept: all rows are ranked in epochs that use the reserve up",
    "",
    always=False,
)
EXTREME = Note(
    "EXTREME",
    "the smallest or largest value is kept: all rows are read in epochs that take it away",
    "",
    always=False,
)
