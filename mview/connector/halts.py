"""Why no later change of a table can be taken: the table halts, with the views that need it.

Whoever notices says it: a log whose statements or whose server tell of another table, a message
that cannot be read as a row of it, a chunk that cannot be read. What was read of other tables
counts. The table's own changes are passed over until it is loaded anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mview.errors import DataLostError, DecodeError, MviewError, UserError

#: What is said of the data of a table that has halted.
SAFE = "the views that need the table keep the rows of their last good epoch, all others go on"


@dataclass(frozen=True)
class TableHalt:
    """The parts of the error that halts a table, as text: it goes through offsets and tasks.

    Attributes:
        what: what failed, in one sentence.
        where: the place in the log, or the server.
        got: what was got; empty: nothing is told.
        hint: what to do, before the table is loaded anew; empty: nothing.
        altered: the table itself is another one than was loaded: to load it anew mends it. Else it
            may be the message, and the next one would be the same.
        code: of the error.
    """

    what: str
    where: str = ""
    got: str = ""
    hint: str = ""
    altered: bool = False
    code: str = ""

    @classmethod
    def of(cls, error: MviewError, *, altered: bool = False) -> TableHalt:
        """The halt of a table by an error."""
        # Of a log that has lost changes there is nothing to mend first: its hint is for who has no
        # other log, and so no run any more. Of a message there may be more than what is to be
        # mended: who halts one table says how that is loaded anew.
        first = None if isinstance(error, DataLostError) else error.hint
        if isinstance(error, DecodeError) and error.mends is not None:
            first = error.mends
        where, got, hint = (
            "" if part is None else str(part) for part in (error.where, error.got, first)
        )
        return cls(error.what, where, got, hint, altered, error.code)

    @property
    def text(self) -> str:
        """What failed, where, and what was got, in one line.

        >>> TableHalt("no value fits", where="shop.t.a").text
        'no value fits (shop.t.a)'
        """
        where = f" ({self.where})" if self.where else ""
        return f"{self.what}{where}" + (f": {self.got}" if self.got else "")

    def error(self) -> DecodeError:
        """The error, for people."""
        return DecodeError(
            self.what,
            where=self.where or None,
            got=self.got or None,
            safe=SAFE,
            hint=self.hint or None,
            code=self.code or None,
        )


def altered(place: str, where: str, what: str) -> TableHalt:
    """The halt of a table that has other changes than when it was loaded.

    Args:
        place: the table, `<connection>.<table>`.
        where: its server and database.
        what: what is different.
    """
    # What comes next is said by who reads the table.
    error = UserError(f"table {place} {what} since it was loaded", where=where, safe=SAFE)
    return TableHalt.of(error, altered=True)


def lost_key(key: Sequence[str]) -> str:
    """What is different of a table whose rows another key tells apart; see `altered`."""
    return f"has no longer the key ({', '.join(key)}) that told its rows apart"
