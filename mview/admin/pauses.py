"""Pausing the loads of tables, and having them go on; beside a run, or without."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mview.clock import SystemClock
from mview.config import Config
from mview.errors import UserError
from mview.relation import RelationId
from mview.store.history import ManifestLog
from mview.store.identity import refusal, store_id
from mview.store.layout import Store, folder_name
from mview.store.requests import paused


def pause_loads(
    config: Config, names: Sequence[str], say: Callable[[str], None]
) -> dict[str, bool]:
    """Have no more chunks of tables be read; their changes are followed on.

    Args:
        names: the tables.
        say: is told of tables that nobody loads yet: it may be a mistake.

    Returns:
        By name, whether its load was going on; False: it was paused already.

    Raises:
        UserError: a table is loaded, or none; nothing was paused.
    """
    store, tables = _checked(config, names)
    manifest = ManifestLog(store.manifests).latest()
    known = {} if manifest is None else manifest.source_tables
    for table in tables:
        if table in known and known[table].phase == "loaded":
            raise UserError(
                f"{table} is loaded: there is nothing to be paused",
                allowed="tables that are being loaded, or will be",
                safe="nothing was changed; its changes are followed",
                hint="mview status",
            )
        if table not in known:
            say(f"{table} is not in the store: its load will wait when it begins")
    now = SystemClock().now()
    return {str(table): paused.pause(store, table, now) for table in tables}


def resume_loads(config: Config, names: Sequence[str]) -> dict[str, bool]:
    """Have chunks of tables be read again.

    Returns:
        By name, whether it was paused.

    Raises:
        UserError: a name is not a table's.
    """
    store, tables = _checked(config, names)
    return {str(table): paused.resume(store, table) for table in tables}


def _checked(config: Config, names: Sequence[str]) -> tuple[Store, list[RelationId]]:
    store, tables = Store(config.store), [RelationId.of(name) for name in dict.fromkeys(names)]
    for table in tables:
        folder_name("table", str(table))  # says what is no name
        if not table.is_table or table.connection not in config.connections:
            raise UserError(
                f"{table} is not a table of a connection",
                allowed=f"connection.table, of {', '.join(config.connections) or 'none'}",
                safe="nothing was changed",
                hint="mview status",
            )
    if error := refusal(config.store):
        raise error
    if not store_id(config.store):
        raise UserError(
            "there is no store yet: nothing is being loaded",
            where=str(config.store),
            safe="nothing was changed",
            hint="mview run FILE…",
        )
    return store, tables
