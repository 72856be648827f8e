"""Table schemas: one type vocabulary between databases, Arrow, Spark and DuckDB.

A column type is an Arrow type out of a closed list; every engine's name for it is derived here and
nowhere else. `timestamp` is an instant (UTC micros), `timestamp_ntz` a wall-clock reading.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import orjson
import pyarrow as pa

from mview.errors import UserError
from mview.files.records import fields

_SIMPLE: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_NAMES: dict[pa.DataType, str] = {arrow: name for name, arrow in _SIMPLE.items()}


def parse_type(name: str) -> pa.DataType:
    """The Arrow type of a Spark SQL type name, e.g. `decimal(12,2)`.

    Raises:
        UserError: the name is not in the vocabulary.
    """
    text = name.strip().lower()
    if text in _SIMPLE:
        return _SIMPLE[text]
    if text.startswith("decimal(") and text.endswith(")"):
        precision, scale = (int(part) for part in text[8:-1].split(","))
        return pa.decimal128(precision, scale)
    if text.startswith("array<") and text.endswith(">"):
        return pa.list_(parse_type(text[6:-1]))
    raise UserError(
        f"unknown column type {name!r}",
        allowed=", ".join([*_SIMPLE, "decimal(p,s)", "array<t>"]),
    )


def type_name(arrow: pa.DataType) -> str:
    """The Spark SQL name of an Arrow type; the inverse of `parse_type`.

    Raises:
        UserError: the Arrow type has no name in the vocabulary.
    """
    if arrow in _NAMES:
        return _NAMES[arrow]
    if pa.types.is_decimal(arrow):
        return f"decimal({arrow.precision},{arrow.scale})"
    if pa.types.is_list(arrow):
        return f"array<{type_name(arrow.value_type)}>"
    raise UserError(f"no SQL type for Arrow type {arrow}")


def quoted(name: str) -> str:
    """A name as an identifier in Spark SQL."""
    return f"`{name.replace('`', '``')}`"


def check_distinct(names: Iterable[str]) -> None:
    """Check that columns can stand in one table of Spark and Delta, which fold the case of names.

    Raises:
        UserError: two are one there; it is about the second.
    """
    seen: dict[str, str] = {}
    for name in names:
        if (other := seen.get(name.lower())) is not None:
            what = "have one name" if other == name else "differ in case only"
            error = UserError(
                f"columns {other!r} and {name!r} {what}",
                allowed="names that Spark and Delta can tell apart: they fold the case",
            )
            error.columns = (name,)
            raise error
        seen[name.lower()] = name


#: Columns that mview adds to rows, and those of its state tables and parts.
_OWN = re.compile(
    r"__(epoch|kind|op|weight|position|source_ms|partition|offset|unchanged|mark|number|nth|copy"
    r"|doubt|today|now|key_.*|[a-z]\d+|[nscm]\d*(_kept|_come|_gone)?)"
)


def check_free(names: Iterable[str]) -> None:
    """Check that columns of users have no names of mview's own columns.

    Raises:
        UserError: one has.
    """
    for name in names:
        if _OWN.fullmatch(name.lower()):
            raise UserError(
                f"column {name!r} has a name that mview uses itself",
                allowed="any other name: mview's own begin with two underscores",
                hint="rename the column",
            )


@dataclass(frozen=True)
class Column:
    """A column: name, Arrow type, nullability, and the type as the source database names it.

    `source_type` (e.g. `datetime(3)`) is kept because some formats encode by it. Where a setting
    says what the column is read as, it ends with that: `interval as string`.
    """

    name: str
    type: pa.DataType
    nullable: bool = True
    source_type: str = ""

    @property
    def read_as(self) -> tuple[str, bool]:
        """The type at the source, and whether a setting says what it is read as."""
        name, mark, _ = self.source_type.partition(READ_AS)
        return name, bool(mark)


#: Between a source's type and what a setting says that it is read as.
READ_AS = " as "


@dataclass(frozen=True)
class _ColumnForm:
    """A column as JSON has it."""

    name: str
    type: str
    nullable: bool
    source_type: str


@dataclass(frozen=True)
class TableSchema:
    """Columns that are read, the key's names, other columns' names, and what all rows fulfil.

    Raises:
        UserError: a key column is not among the columns, or two columns have one name for Spark.
    """

    columns: tuple[Column, ...]
    key: tuple[str, ...]
    unread: tuple[str, ...] = ()
    where: str = ""

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        check_distinct(names)
        if missing := [name for name in self.key if name not in names]:
            raise UserError(f"key column {missing[0]!r} is not a column", allowed=", ".join(names))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Column names in order."""
        return tuple(column.name for column in self.columns)

    def column(self, name: str) -> Column:
        """The column of that name (KeyError when there is none)."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)

    @cached_property
    def arrow(self) -> pa.Schema:
        """The Arrow schema of the rows."""
        return pa.schema([pa.field(c.name, c.type, c.nullable) for c in self.columns])

    @cached_property
    def loose(self) -> pa.Schema:
        """The same, all nullable: NOT NULL is the promise of who has written them."""
        return pa.schema([(c.name, c.type) for c in self.columns])

    @cached_property
    def key_arrow(self) -> pa.Schema:
        """The Arrow schema of the key columns, in key order."""
        return pa.schema([pa.field(name, self.column(name).type, False) for name in self.key])

    @property
    def ddl(self) -> str:
        """The columns as a Spark DDL string."""
        return ", ".join(
            f"{quoted(c.name)} {type_name(c.type)}{'' if c.nullable else ' NOT NULL'}"
            for c in self.columns
        )

    def to_json(self) -> dict[str, Any]:
        """A JSON form; see `from_json`."""
        return {
            "columns": [{**vars(c), "type": type_name(c.type)} for c in self.columns],
            "key": list(self.key),
            **({"unread": [*self.unread]} if self.unread else {}),
            **({"where": self.where} if self.where else {}),
        }

    @property
    def json(self) -> orjson.Fragment:
        """The same for orjson, written once: every manifest has the schemas of all relations."""
        return orjson.Fragment(self._json)

    @cached_property
    def _json(self) -> bytes:
        return orjson.dumps(self.to_json())

    @classmethod
    def from_json(cls, data: object) -> TableSchema:
        """The schema of a JSON form written by `to_json`.

        Raises:
            ValueError: it is another one.
            UserError: it can be no table's.
        """
        names = tuple[str, ...]
        kinds = {"columns": list[_ColumnForm], "key": names, "unread": names, "where": str}
        data = {"unread": [], "where": "", **data} if isinstance(data, dict) else data
        form = fields(data, kinds)
        columns = (Column(**{**vars(c), "type": parse_type(c.type)}) for c in form["columns"])
        return cls(tuple(columns), form["key"], form["unread"], form["where"])


def as_schema(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns of a schema, in its types: a cast that costs nothing where they have them."""
    have = rows.schema
    if have.equals(schema):
        return rows
    if have.names == schema.names and have.types == schema.types:
        return pa.Table.from_arrays(rows.columns, schema=schema)
    columns = [rows[name] for name in schema.names]
    fitted = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(columns, schema, strict=True)
    ]
    return pa.table(fitted, schema)
