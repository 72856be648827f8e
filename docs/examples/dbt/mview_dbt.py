"""A plugin of dbt-duckdb: models become views of mview, and dbt reads what mview has published.

mview is called as a command, so dbt may be in an environment of its own, with `deltalake` and
`pyarrow` beside it.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from dbt.adapters.duckdb.plugins import BasePlugin
from dbt_common.exceptions import DbtRuntimeError
from deltalake import DeltaTable


class Plugin(BasePlugin):
    """See the module."""

    def initialize(self, plugin_config: dict[str, Any]) -> None:
        """Take over what the profile says: `command`, `config`, `views`."""
        self._command = list(plugin_config.get("command", ["mview"]))
        self._config = str(plugin_config.get("config", "mview.yml"))
        self._views = Path(plugin_config.get("views", "views"))
        self._connection: Any = None
        self._seen: dict[str, Any] | None = None

    def configure_connection(self, conn: Any) -> None:
        """Keep the connection, to show a view in it that was applied."""
        self._connection = conn

    def configure_cursor(self, cursor: Any) -> None:
        """Let dbt read the views as they are published now."""
        if self._seen is None:
            self._seen = self._status()
        for view in self._seen["views"]:
            self._register(cursor, view)

    def store(self, target_config: Any) -> None:
        """Write a model's file, have the store take it up, and show the view in dbt's database."""
        relation, model = target_config.relation, target_config.config.model
        name = relation.identifier
        properties = model.config.meta.get("mview", {})
        self._views.mkdir(exist_ok=True)
        file = self._views / f"{name}.sql"
        before = file.read_bytes() if file.exists() else None
        file.write_text(_text(name, model.compiled_code, properties), encoding="utf-8")
        try:
            view = self._taken_up(name)
        except DbtRuntimeError:
            # Each model has the store take up all files: this one must not stop the others.
            if before is None:
                file.unlink()
            else:
                file.write_bytes(before)
            raise
        with self._connection.cursor() as cursor:
            registered = self._register(cursor, view)
            cursor.execute(f"CREATE SCHEMA IF NOT EXISTS {relation.without_identifier()}")
            cursor.execute(f"CREATE OR REPLACE VIEW {relation} AS SELECT * FROM {registered}")

    def _taken_up(self, name: str) -> dict[str, Any]:
        """Have the store take up the views' files; what it says of a view then."""
        if self._status()["running"]:
            self._mview("apply", str(self._views))
        else:
            self._mview("run", str(self._views), "--once", "--quiet")
        self._seen = self._status()
        views: dict[str, dict[str, Any]] = {view["name"]: view for view in self._seen["views"]}
        if name not in views or views[name]["halted"]:
            why = views[name]["halted"] if name in views else "it is not there"
            raise DbtRuntimeError(f"view {name}: {why}")
        return views[name]

    def _register(self, cursor: Any, view: dict[str, Any]) -> str:
        """Give the rows of a view a name in a cursor: those of its newest epoch."""
        registered = f"mview_{view['name']}"
        cursor.register(registered, DeltaTable(view["path"]).to_pyarrow_dataset())
        return registered

    def _status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads(self._mview("status", "--json"))
        return status

    def _mview(self, *arguments: str) -> str:
        command = [*self._command, *arguments, "--config", self._config]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        if answer.returncode:
            said = f"{answer.stdout}\n{answer.stderr}".strip()
            raise DbtRuntimeError(f"{' '.join(command)}\n{said}")
        return answer.stdout


def _text(name: str, query: str, properties: dict[str, Any]) -> str:
    """A view's file: the query alone, or a statement with properties."""
    if not properties:
        return query.strip() + "\n"
    told = ", ".join(f"{key} = '{_quoted(value)}'" for key, value in properties.items())
    return f"CREATE MATERIALIZED VIEW {name} WITH ({told}) AS\n{query.strip()}\n"


def _quoted(value: object) -> str:
    return str(value).replace("'", "''")
