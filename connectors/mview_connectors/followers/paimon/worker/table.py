"""The calls of a sink on its table, in the side environment."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pypaimon import CatalogFactory, Schema
from pypaimon.catalog.catalog_exception import DatabaseNotExistException, TableNotExistException
from pypaimon.common.identifier import Identifier
from pypaimon.utils.file_store_path_factory import canonical_data_file_path
from pypaimon.write.commit_message_serializer import (
    deserialize_commit_message,
    serialize_commit_message,
)

from .rows import StepWriter
from .snapshots import SAME_ROWS, Committer, MovedError, backwards, place, stands
from .upkeep import compact, expire

#: Properties of a snapshot: the sink's mark, and the highest sequence number of the table.
MARK, SEQUENCE = "mview.mark", "mview.sequence"

#: So far back a mark is looked for.
_BACK = 10_000


class PaimonSink:
    """One table of a catalog; `connect` comes first."""

    def connect(self, options: dict[str, str], database: str, table: str, user: str) -> None:
        """Open a catalog.

        Args:
            options: of pypaimon's catalog.
            database, table: whose table it is.
            user: Paimon's commit user.
        """
        self._catalog = CatalogFactory.create(options)
        self._database, self._user = database, user
        self._name = Identifier(database, table)

    def look(self) -> dict[str, Any] | None:
        """What the table says of itself; None: there is none.

        Returns:
            `options` of the table, `latest`, the place of its snapshot, `mark`, the newest one or
            None, whether it `stands` for the rows that are there, `carried`: the highest sequence
            number of these, and `altered`: the names of the columns, where they are not those that
            it was made with.
        """
        table = self._find()
        if table is None:
            return None
        latest = place(next(backwards(table), None))
        snapshot, is_latest = self._marked(table)
        properties = {} if snapshot is None else snapshot.properties
        return {
            "options": dict(table.table_schema.options),
            "latest": latest,
            "mark": properties.get(MARK),
            "stands": is_latest,
            # Where rows of others are on top, all is filled: no number counts.
            "carried": int(properties.get(SEQUENCE, 0)) if is_latest else 0,
            "altered": _altered(table),
        }

    def make(self, schema: str, key: list[str], options: dict[str, str], comment: str) -> None:
        """Make the table.

        Args:
            schema: an Arrow schema in base 64.
            key: its primary key.
            options: of the table.
            comment: of the table; maybe empty.
        """
        arrow = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(schema)))
        self._catalog.create_database(self._database, True)
        made = Schema.from_pyarrow_schema(
            arrow, primary_keys=key, options=options, comment=comment or None
        )
        self._catalog.create_table(self._name, made, False)

    def drop(self) -> None:
        """Drop the table with all its files."""
        self._catalog.drop_table(self._name, True)

    def stage(
        self,
        base: dict[str, Any] | None,
        carried: int,
        is_fill: bool,
        mark: str,
        epoch: int,
        rows: Any,
    ) -> dict[str, Any]:
        """Write the files of a step, for `commit`.

        Args:
            base: `latest` of `look`: the step is committed on it, and on no other one.
            carried: of `look`, too.
            is_fill: the rows are all there will be.
            mark: of the snapshot to be.
            epoch: its commit identifier.
            rows: of the step.
        """
        table = self._table()
        writer = StepWriter(table, carried)
        try:
            for batch in rows:
                writer.add(batch)
            messages = writer.finish()
        except BaseException:
            writer.abort()
            raise
        fields = table.partition_keys_fields
        return {
            "base": base,
            "is_fill": is_fill,
            "mark": mark,
            "epoch": epoch,
            "sequence": writer.sequence,
            "messages": [
                base64.b64encode(serialize_commit_message(message, fields)).decode()
                for message in messages
            ],
        }

    def commit(self, token: dict[str, Any]) -> int:
        """Add the snapshot of what was staged; returns its number.

        Raises:
            MovedError: the table is not what it was staged on.
        """
        table = self._table()
        properties = {MARK: token["mark"], SEQUENCE: str(token["sequence"])}
        return Committer(table, token["base"], self._user).run(
            self._messages(table, token), token["epoch"], properties, overwrite=token["is_fill"]
        )

    def move(self, base: dict[str, Any] | None, carried: int, mark: str, epoch: int) -> int:
        """Add a snapshot that changes no row, so that what others have staged is refused.

        Raises:
            MovedError: the table is not what `look` said.
        """
        properties = {MARK: mark, SEQUENCE: str(carried)}
        return Committer(self._table(), base, self._user).run([], epoch, properties)

    def holds(self, token: dict[str, Any]) -> bool:
        """Whether what was staged is there and can be committed."""
        table = self._find()
        if table is None or not stands(table, token["base"]):
            return False
        return all(table.file_io.exists(path) for path in self._paths(table, token))

    def abort(self, token: dict[str, Any]) -> None:
        """Remove the files of a step that is not committed."""
        table = self._find()
        if table is None:
            return
        snapshot, _ = self._marked(table)
        if snapshot is not None and snapshot.properties[MARK] == token["mark"]:
            raise MovedError("the step is committed")
        for path in self._paths(table, token):
            table.file_io.delete_quietly(path)

    def read(self) -> pa.RecordBatchReader:
        """All rows, by pypaimon's own merge."""
        builder = self._table().new_read_builder()
        splits = builder.new_scan().plan().splits()
        reader = builder.new_read().to_arrow_batch_reader(splits)
        # pypaimon's is not always one of Arrow's.
        return pa.RecordBatchReader.from_batches(reader.schema, iter(reader))

    def compact(self, most_bytes: int) -> int:
        """Join sorted runs, as many as fit; returns how many files: 0, nothing is left to join.

        Raises:
            MovedError: another snapshot was added meanwhile.
        """
        table = self._table()
        snapshot, is_latest = self._marked(table)
        return compact(table, self._user, snapshot, most_bytes) if snapshot and is_latest else 0

    def expire(self, before: int) -> int:
        """Remove snapshots made before a time in milliseconds; returns how many."""
        return expire(self._table(), before)

    # ---------------------------------------------------------------------------------------------

    def _find(self) -> Any:
        try:
            return self._catalog.get_table(self._name)
        except (TableNotExistException, DatabaseNotExistException):
            return None

    def _table(self) -> Any:
        table = self._find()
        if table is None:
            raise MovedError("there is no such table")
        return table

    def _marked(self, table: Any) -> tuple[Any, bool]:
        """The newest snapshot with a mark, and whether rows have not changed since."""
        is_latest = True
        for number, snapshot in enumerate(backwards(table)):
            if snapshot.properties and MARK in snapshot.properties:
                return snapshot, is_latest
            is_latest = is_latest and snapshot.commit_kind in SAME_ROWS
            if number > _BACK:
                break
        return None, False

    def _messages(self, table: Any, token: dict[str, Any]) -> list[Any]:
        return [
            deserialize_commit_message(
                base64.b64decode(message),
                table.partition_keys_fields,
                table.trimmed_primary_keys_fields,
            )
            for message in token["messages"]
        ]

    def _paths(self, table: Any, token: dict[str, Any]) -> Iterator[str]:
        for message in self._messages(table, token):
            for file in message.new_files:
                yield canonical_data_file_path(table, (), message.bucket, file.file_name)


def _altered(table: Any) -> list[str] | None:
    """The names of the columns; None: they are those that the table was made with.

    One of the name of a column that was dropped is another one: it has no rows.
    """
    if table.table_schema.id == 0:
        return None
    made = table.schema_manager.get_schema(0)
    now = [(field.id, field.name) for field in table.table_schema.fields]
    if made is None or sorted(now) == sorted((field.id, field.name) for field in made.fields):
        return None
    return [name for _, name in now]
