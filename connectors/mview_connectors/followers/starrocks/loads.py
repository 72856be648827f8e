"""Transactions of StarRocks' Stream Load: loaded, prepared, and decided by their label."""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from mview.errors import RetryableError, TargetError
from mview.follower import FollowerTarget
from mview_connectors.followers.starrocks.server import Frontends, RefusedError


class Loads:
    """The transactions of one table.

    Args:
        frontends: whom to ask.
        target: the view and the sink.
    """

    def __init__(self, frontends: Frontends, target: FollowerTarget) -> None:
        self._frontends, self._target = frontends, target
        self._settings = target.settings

    def prepare(self, label: str, table: str, requests: Iterator[tuple[int, bytes]]) -> int:
        """Load content in a transaction and prepare it.

        Returns:
            The number of rows.
        """
        seconds = str(max(1, self._settings.timeout // 1000))
        place = {"table": table}
        loading = {
            **place,
            "format": "json",
            "strip_outer_array": "true",
            "ignore_json_size": "true",
            # A value that does not fit is an error, never NULL and never left out.
            "strict_mode": "true",
            "max_filter_ratio": "0",
        }
        self._ask("begin", label, {**place, "timeout": seconds})
        count = 0
        for rows, content in requests:
            self._ask("load", label, loading, content)
            count += rows
        kept = str(max(1, self._settings.prepared_timeout // 1000))
        answer = self._ask("prepare", label, {**place, "prepared_timeout": kept})
        loaded = answer.get("NumberLoadedRows", count)
        if answer.get("NumberFilteredRows", 0) or loaded != count:
            raise TargetError(
                f"StarRocks has not taken all rows for {self._target.table}",
                where=f"sinks.{self._target.sink}",
                got=f"{loaded} of {count} rows; see {answer.get('ErrorURL', 'its log')}",
                safe="nothing of them is shown",
                hint="look at the rows that it has filtered",
            )
        return count

    def decide(self, label: str) -> None:
        """Commit a prepared transaction and wait until readers see it.

        The answer decides nothing: the label does.
        """
        said: object = None
        try:
            self._ask("commit", label)
        except (RefusedError, OSError, http.client.HTTPException) as error:
            said = error
        until = time.monotonic() + self._settings.timeout / 1000
        pause = 0.02
        while True:
            state, reason = self.state(label)
            if state == "VISIBLE":
                return
            if state != "COMMITTED":
                break
            if time.monotonic() > until:
                raise RetryableError(
                    f"StarRocks has committed rows of {self._target.table} and does not show them",
                    where=f"sinks.{self._target.sink}",
                    got=f"label {label}: {state}",
                    safe="they are safe there; it is asked again",
                    hint="look at the cluster's back ends and its running transactions",
                )
            time.sleep(pause)
            pause = min(1.0, 2 * pause)
        if isinstance(said, Exception) and state != "ABORTED":
            raise said
        raise RetryableError(
            f"StarRocks has not committed rows of {self._target.table}",
            where=f"sinks.{self._target.sink}",
            got=f"label {label}: {state} {reason}".strip(),
            safe="nothing of them is shown; what became of them is asked before the next try",
        )

    def _ask(
        self, operation: str, label: str, more: dict[str, str] | None = None, content: bytes = b""
    ) -> dict[str, Any]:
        """One operation of a transaction.

        Raises:
            RefusedError: anything but OK.
        """
        headers = {"label": label, "db": self._settings.database, **(more or {})}
        method = "PUT" if operation == "load" else "POST"
        path = f"/api/transaction/{operation}"
        answer = self._frontends.ask(method, path, headers, content)
        # What comes before the transactions (passwords, rights) is spelled in small letters.
        status = str(answer.get("Status", answer.get("status", "")))
        if status.upper() not in ("OK", "SUCCESS"):
            message = str(answer.get("Message", answer.get("msg", answer)))
            raise RefusedError(status, f"{operation}: {message}")
        return answer

    def state(self, label: str) -> tuple[str, str]:
        """PREPARE, PREPARED, COMMITTED, VISIBLE, ABORTED or UNKNOWN, and why."""
        path = f"/api/{quote(self._settings.database)}/get_load_state?label={label}"
        answer = self._frontends.ask("GET", path, {})
        state = answer.get("state")
        if not isinstance(state, str) or str(answer.get("status", "OK")).upper() != "OK":
            raise RefusedError(str(answer.get("status")), str(answer.get("msg", answer)))
        return state.upper(), str(answer.get("reason") or "")

    def roll_back(self, label: str) -> None:
        """Take a transaction back, if there is one that can be."""
        if self.state(label)[0] not in ("PREPARE", "PREPARED"):
            return
        try:
            self._ask("rollback", label)
        except RefusedError:
            # A back end that was restarted knows nothing of a load, and cannot end it; nobody can
            # commit it either. The servers end it when its time is over.
            if self.state(label)[0] == "PREPARED":
                raise
