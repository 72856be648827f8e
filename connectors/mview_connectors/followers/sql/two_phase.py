"""Transactions that a SQL server keeps prepared: staged whole by one session, decided by any other.

They outlive the session, the process and the server, and hold their locks until they are decided:
that of the mark, too.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from mview.errors import ConfigError

#: Seconds between two looks whether a session is gone.
_HELD_S = 0.01

#: Runs a statement on a session; its rows.
Query = Callable[[str], list[Any]]


class PreparedName(NamedTuple):
    """What a prepared transaction is called.

    Attributes:
        owner: the same for all of one target; letters, digits and `-`, at most 60.
        step: the id of the step; the same.
    """

    owner: str
    step: str


class TwoPhase(ABC):
    """How a server spells it; one subclass per dialect."""

    #: Whether the session that has prepared is free again, and others may decide.
    leaves_session: bool

    @abstractmethod
    def refusal(self, query: Query) -> tuple[str, str] | None:
        """What of the server does not allow it, and what would; None: it does."""

    @abstractmethod
    def begin(self, name: PreparedName) -> str:
        """Begins a transaction that is to be prepared."""

    @abstractmethod
    def prepare(self, name: PreparedName) -> Sequence[str]:
        """Prepares the open transaction."""

    @abstractmethod
    def commit(self, name: PreparedName) -> str:
        """Commits a prepared one."""

    @abstractmethod
    def roll_back(self, name: PreparedName) -> str:
        """Takes a prepared one back."""

    @abstractmethod
    def steps(self, query: Query, owner: str) -> list[str]:
        """The steps of an owner that are prepared."""

    @abstractmethod
    def is_held(self, error: BaseException) -> bool:
        """Whether deciding failed as the session that has prepared is not gone yet."""


class PreparedTransactions:
    """Those of one target.

    Args:
        dialect: how the server spells it.
        owner: see `PreparedName`.
        asking: a session of the server for a task, to be named in errors.
        patience: seconds that a session is waited for which is to go.
        sink: the sink's name in the configuration.
    """

    def __init__(
        self,
        dialect: TwoPhase,
        owner: str,
        asking: Callable[[str], AbstractContextManager[Query]],
        patience: float,
        sink: str,
    ) -> None:
        self._dialect, self._owner, self._asking = dialect, owner, asking
        self._patience, self._sink = patience, sink

    @property
    def leaves_session(self) -> bool:
        """See `TwoPhase`."""
        return self._dialect.leaves_session

    def check(self) -> None:
        """Refuse a server that keeps none.

        Raises:
            ConfigError: what of it, and what would do.
        """
        with self._asking("asking for prepared transactions") as query:
            refusal = self._dialect.refusal(query)
        if refusal is not None:
            raise ConfigError(
                f"the server of sink {self._sink} does not keep transactions prepared",
                where=f"sinks.{self._sink}.commit",
                got=refusal[0],
                allowed=refusal[1],
                safe="nothing was written there; other sinks go on",
                hint="set the server up so, or leave commit: two-phase away",
            )

    def steps(self) -> list[str]:
        """The steps that are prepared."""
        with self._asking("looking for prepared transactions") as query:
            return self._dialect.steps(query, self._owner)

    def begin(self, step: str) -> str:
        """The statement that begins one."""
        return self._dialect.begin(PreparedName(self._owner, step))

    def prepare(self, step: str) -> Sequence[str]:
        """The statements that prepare it."""
        return self._dialect.prepare(PreparedName(self._owner, step))

    def commit(self, step: str) -> bool:
        """Commit one; False: there is no such one (any more)."""
        return self._decide(step, self._dialect.commit)

    def roll_back(self, step: str) -> bool:
        """Take one back; the same."""
        return self._decide(step, self._dialect.roll_back)

    def _decide(self, step: str, how: Callable[[PreparedName], str]) -> bool:
        until = time.monotonic() + self._patience
        with self._asking("committing") as query:
            while step in self._dialect.steps(query, self._owner):
                try:
                    query(how(PreparedName(self._owner, step)))
                    return True
                except Exception as error:
                    if not self._dialect.is_held(error) or time.monotonic() > until:
                        raise
                time.sleep(_HELD_S)
        return False


class PostgresqlTwoPhase(TwoPhase):
    """PREPARE TRANSACTION; see https://www.postgresql.org/docs/current/sql-prepare-transaction.html."""

    leaves_session = True

    def refusal(self, query: Query) -> tuple[str, str] | None:
        """There is room for none, unless the server is set up so."""
        most = int(query("SHOW max_prepared_transactions")[0][0])
        return None if most else ("max_prepared_transactions = 0", "a number, e.g. 10; restart it")

    def begin(self, name: PreparedName) -> str:
        """As any."""
        return "BEGIN"

    def prepare(self, name: PreparedName) -> Sequence[str]:
        """One statement; names are of the whole server."""
        return (f"PREPARE TRANSACTION {_text(name)}",)

    def commit(self, name: PreparedName) -> str:
        """Not in a transaction, by the same user, in the same database."""
        return f"COMMIT PREPARED {_text(name)}"

    def roll_back(self, name: PreparedName) -> str:
        """The same."""
        return f"ROLLBACK PREPARED {_text(name)}"

    def steps(self, query: Query, owner: str) -> list[str]:
        """From the view of all of them."""
        sql = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
        texts = [str(gid) for (gid,) in query(sql)]
        return [text.removeprefix(f"{owner}/") for text in texts if text.startswith(f"{owner}/")]

    def is_held(self, error: BaseException) -> bool:
        """Whoever decides it holds it; else nobody."""
        return getattr(error, "sqlstate", None) == "55006"


class MysqlTwoPhase(TwoPhase):
    """XA transactions; see https://mariadb.com/kb/en/xa-transactions/.

    Before MariaDB 10.5 and MySQL 8, those of a session that ended were rolled back.
    """

    #: A session must end first: until then it alone may decide.
    leaves_session = False

    def refusal(self, query: Query) -> tuple[str, str] | None:
        """Older servers forget them; on MySQL, to list them is a right of its own."""
        version = str(query("SELECT VERSION()")[0][0])
        numbers = tuple(int(number) for number in version.split("-")[0].split(".")[:2])
        least = (10, 5) if "mariadb" in version.casefold() else (8, 0)
        if numbers < least:
            return version, "MariaDB 10.5 or newer, MySQL 8 or newer"
        return None

    def begin(self, name: PreparedName) -> str:
        """Instead of START TRANSACTION."""
        return f"XA START {_xid(name)}"

    def prepare(self, name: PreparedName) -> Sequence[str]:
        """Two statements."""
        return (f"XA END {_xid(name)}", f"XA PREPARE {_xid(name)}")

    def commit(self, name: PreparedName) -> str:
        """By any session, once that which has prepared is gone."""
        return f"XA COMMIT {_xid(name)}"

    def roll_back(self, name: PreparedName) -> str:
        """The same."""
        return f"XA ROLLBACK {_xid(name)}"

    def steps(self, query: Query, owner: str) -> list[str]:
        """Of the whole server: formatID, gtrid_length, bqual_length, both parts as one text."""
        steps = []
        for _, length, _, data in query("XA RECOVER"):
            text = data.decode(errors="replace") if isinstance(data, bytes) else str(data)
            if text[: int(length)] == owner:
                steps.append(text[int(length) :])
        return steps

    def is_held(self, error: BaseException) -> bool:
        """XAER_NOTA: to others it is not known yet."""
        return bool(error.args) and error.args[0] == 1397


def _text(name: PreparedName) -> str:
    return f"'{name.owner}/{name.step}'"


def _xid(name: PreparedName) -> str:
    return f"'{name.owner}','{name.step}'"
