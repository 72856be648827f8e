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
GLOBAL = Note(
    "GLOBAL",
    "one result over all rows that cannot be added up",
    "add GROUP BY: then the touched groups alone are computed again",
)
GLOBAL_FLOAT = Note(
    "GLOBAL",
    "one result over all rows: sums of FLOAT and DOUBLE cannot be added up, nor is it known which "
    "of 0.0 and -0.0 is the least",
    "CAST(x AS DECIMAL(p, s)), or add GROUP BY",
)
GLOBAL_SETS = Note(
    "GLOBAL",
    "ROLLUP, CUBE and GROUPING SETS have groups of very many rows",
    "keep to count, sum and avg of exact numbers, min and max over plain columns, or write UNION "
    "ALL of a SELECT with GROUP BY for each set",
)
WINDOW = Note(
    "GLOBAL",
    "one window over all rows",
    "add PARTITION BY; the first rows of all: ORDER BY … LIMIT",
)
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
LIMIT = Note(
    "LIMIT",
    "the first rows of all rows",
    "say how many: ORDER BY … LIMIT n OFFSET m; a correlated subquery: write it as a join",
)
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
