"""Parquet files of a Delta table: writing, reading, and what the footer knows of the rows."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mview.delta.deletion import Deleted
from mview.errors import CorruptionError, UserError
from mview.files.durable import later, naming, write_whole

#: A folder of a store that has the name of its table or view, as most have. What a view keeps
#: beside its table has a suffix. The last one: the store itself may be anywhere. With the folder
#: in it: a view's table may be anywhere, too, in folders of such names.
_PLACE = re.compile(
    r"(?:.*/)?(?P<kind>tables|beside|views)/(?P<name>[a-z0-9_][a-z0-9_.-]*)(?:~3a[^/]*)?"
    r"/(?P<part>base|changelog|data)/"
)

#: Rows per row group: what a reader can skip at once; Parquet's default of 1M skips nothing.
ROW_GROUP = 65_536

#: Bytes of a value, in the mean, from which a column is written without dictionary and bounds.
_LARGE_VALUE = 4096

#: Longer texts get no bounds in the log: cutting them would need an upper bound that sorts right.
_MAX_BOUND_TEXT = 64

#: Up to so many rows are written without a dictionary: of texts that repeat, compression finds it.
_FEW = 1 << 10

#: Rows of up to so many bytes become a file in memory first, and are written at once.
_WHOLE = 1 << 20

_EPOCH = dt.datetime(1970, 1, 1)


@dataclass(frozen=True)
class DataFile:
    """One file of a Delta table.

    Attributes:
        path: below the table's folder.
        size: bytes.
        rows: rows in the file, those that count as deleted included.
        stats: statistics as JSON.
        deleted: rows that count as deleted.
    """

    path: str
    size: int
    rows: int
    stats: str
    deleted: Deleted | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields, as `mview.files.records` reads them."""
        return {**vars(self), "deleted": None if self.deleted is None else {**vars(self.deleted)}}

    @property
    def live(self) -> int:
        """Rows that count."""
        return self.rows - (self.deleted.rows if self.deleted else 0)


@dataclass(frozen=True)
class Bounds:
    """Smallest and largest value of a column in a file (micros for timestamps), and its NULLs.

    Attributes:
        kind: Parquet's logical type, in small letters.
    """

    low: Any
    high: Any
    nulls: int
    kind: str


#: Bounds of columns, by name; None: not known.
Ranges = Mapping[str, Bounds | None]


def write_parquet(folder: Path, path: str, rows: pa.Table, indexed: Sequence[str] = ()) -> DataFile:
    """Write rows as `folder/path`, with bounds of the `indexed` columns; see `durable`."""
    footer, size = write_rows(folder / path, rows)
    return described(path, size, footer, column_ranges(footer, indexed))


def write_rows(target: Path, rows: pa.Table) -> tuple[pq.FileMetaData, int]:
    """Write rows as a file; see `durable`.

    Returns:
        Its footer, and its bytes.
    """
    try:
        if rows.get_total_buffer_size() <= _WHOLE:
            stream = pa.BufferOutputStream()
            footer = encode(rows, stream)
            content = stream.getvalue()
            write_whole(target, memoryview(content))
            size = content.size
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            # Opened here: the writer would ask first which file system a path is of.
            with naming(target), pa.OSFile(str(target), "wb") as sink:
                footer = encode(rows, sink)
                size = sink.tell()
    except BaseException:
        target.unlink(missing_ok=True)  # of a full disk, it has a part of what is there
        raise
    later(target)
    return footer, size


def encode(rows: pa.Table, target: pa.NativeFile) -> pq.FileMetaData:
    """Write rows as Parquet, and return the footer."""
    # Dictionaries pay for texts only; for numbers they cost 60% more time and save a quarter. Of
    # large values they, and the bounds, would hold two copies more. Few rows are as small without.
    large: set[str] = set()
    if rows.get_total_buffer_size() > _LARGE_VALUE * rows.num_rows:  # which is told at once
        large = {name for name in rows.column_names if _is_large(rows[name])}
    many = rows.num_rows > _FEW
    texts = [f.name for f in rows.schema if many and _is_text(f.type) and f.name not in large]
    bounded = [name for name in rows.column_names if name not in large]
    footers: list[pq.FileMetaData] = []
    pq.write_table(
        rows,
        target,
        compression="snappy",
        row_group_size=ROW_GROUP,
        use_dictionary=texts or False,
        write_statistics=bounded if large else True,
        store_decimal_as_integer=True,
        write_page_checksum=True,
        store_schema=False,  # Arrow's own: Parquet's says the same, as it does of Spark's files
        metadata_collector=footers,
    )
    return footers[0]


def read_parquet(
    file: Path | pa.NativeFile,
    schema: pa.Schema | None,
    columns: Sequence[str] | None = None,
    where: str = "",
) -> pa.Table:
    """The rows of a file; only `columns` where given, and those of `schema` as it types them.

    Args:
        file: a path, or an open file.
        schema: types of columns.
        columns: those that are read.
        where: for messages, of an open file.

    Raises:
        CorruptionError: the file is gone, damaged, or not Parquet.
    """
    names = columns if columns is not None or schema is None else schema.names
    try:
        # Not pq.read_table: it takes `a=b` in a folder's name for a partition column.
        with pq.ParquetFile(
            file, coerce_int96_timestamp_unit="us", page_checksum_verification=True
        ) as parquet:
            table = parquet.read(names)
            _check_counts(parquet.metadata, table.num_rows)
        if names is not None and set(table.column_names) != set(names):
            raise ValueError(f"the columns are {', '.join(table.column_names)}")
        if schema is None:
            return table
        for field in table.schema:
            if field.name in schema.names:
                _check_scale(field, schema.field(field.name))
        wanted = [schema.field(f.name) if f.name in schema.names else f for f in table.schema]
        return table.cast(pa.schema(wanted))
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        raise unreadable(where or str(file), error) from None


def _check_scale(stored: pa.Field, wanted: pa.Field) -> None:
    """Make sure that the footer has the scale of the numbers: by another they are others."""
    kind, other = stored.type, wanted.type
    if pa.types.is_decimal(kind) or pa.types.is_decimal(other):
        same = (
            pa.types.is_decimal(kind) and pa.types.is_decimal(other) and kind.scale == other.scale
        )
    elif pa.types.is_timestamp(kind) or pa.types.is_timestamp(other):
        same = (
            pa.types.is_timestamp(kind) and pa.types.is_timestamp(other) and kind.unit == other.unit
        )
    else:
        return
    if not same:
        raise ValueError(f"column {stored.name} is {kind}, not {other}")


def _check_counts(footer: pq.FileMetaData, rows: int) -> None:
    """Make sure that the footer, which has no checksum, tells one number of rows in all places."""
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    flat = [
        i for i in range(footer.num_columns) if not footer.schema.column(i).max_repetition_level
    ]
    if footer.num_rows != rows or sum(group.num_rows for group in groups) != rows:
        raise ValueError("the footer and its row groups have different numbers of rows")
    if any(group.column(i).num_values != group.num_rows for group in groups for i in flat):
        raise ValueError("a row group and its columns have different numbers of rows")


def read_live(folder: Path, file: DataFile, schema: pa.Schema) -> pa.Table:
    """The rows of a table's file that count; see `read_parquet`."""
    rows = read_parquet(folder / file.path, schema)
    if file.deleted is None:
        return rows
    return rows.take(pa.array(np.delete(np.arange(rows.num_rows), file.deleted.positions)))


def describe(folder: Path, path: str, indexed: Sequence[str] = ()) -> DataFile:
    """What the footer of `folder/path` says, with bounds of the `indexed` columns."""
    footer = read_footer(folder / path)
    size = (folder / path).stat().st_size
    return described(path, size, footer, column_ranges(footer, indexed))


def described(path: str, size: int, footer: pq.FileMetaData, ranges: Ranges) -> DataFile:
    """A file of a table, by its footer, with bounds of columns."""
    stats: dict[str, Any] = {"numRecords": footer.num_rows}
    shown = {name: pair for name, known in ranges.items() if (pair := _bounds_as_json(known))}
    if shown:
        stats["minValues"] = {name: low for name, (low, _) in shown.items()}
        stats["maxValues"] = {name: high for name, (_, high) in shown.items()}
        stats["nullCount"] = {name: known.nulls for name in shown if (known := ranges[name])}
    return DataFile(path, size, footer.num_rows, json.dumps(stats))


def read_footer(file: Path | pa.NativeFile, where: str = "") -> pq.FileMetaData:
    """The metadata of a Parquet file; `where`: for messages, of an open one.

    Raises:
        CorruptionError: the file is gone or is not Parquet.
    """
    try:
        return pq.read_metadata(file)
    except (OSError, pa.ArrowException) as error:
        raise unreadable(where or str(file), error) from None


def check_columns(file: Path, schema: pa.Schema) -> None:
    """Refuse a file whose columns are not the table's, or whose timestamps lose their unit.

    Raises:
        UserError: other columns than `schema`, or INT96 timestamps.
    """
    footer = read_footer(file)
    names = footer.schema.to_arrow_schema().names
    if sorted(names) != sorted(schema.names):
        raise UserError(
            "a file written for the table has other columns",
            where=str(file),
            got=", ".join(names),
            allowed=", ".join(schema.names),
        )
    for index in range(footer.num_columns):
        if footer.schema.column(index).physical_type == "INT96":
            raise UserError(
                "a file written for the table holds INT96 timestamps",
                where=f"{file}: {footer.schema.column(index).name}",
                hint="set spark.sql.parquet.outputTimestampType=TIMESTAMP_MICROS",
            )


def column_ranges(footer: pq.FileMetaData, names: Iterable[str]) -> Ranges:
    """Bounds of columns over all rows of a file; None when they are not known.

    Floats have none: a NaN is in no bound. Neither has a column that is all NULL.
    """
    schema = footer.schema
    kinds = {(kind := schema.column(i)).path: (i, kind) for i in range(footer.num_columns)}
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    return {name: _range(groups, *kinds[name]) if name in kinds else None for name in names}


def _range(
    groups: Sequence[pq.RowGroupMetaData], index: int, kind: pq.ColumnSchema
) -> Bounds | None:
    if kind.physical_type in ("FLOAT", "DOUBLE", "INT96"):
        return None
    logical = str(kind.logical_type).lower()
    instant = "timestamp" in logical
    if instant and "microseconds" not in logical:
        return None
    lows, highs, nulls = [], [], 0
    for group in groups:
        statistics = group.column(index).statistics
        if statistics is None or not statistics.has_null_count:
            return None
        nulls += statistics.null_count
        if statistics.null_count == group.num_rows:
            continue
        if not statistics.has_min_max:
            return None
        lows.append(statistics.min_raw if instant else statistics.min)
        highs.append(statistics.max_raw if instant else statistics.max)
    return Bounds(min(lows), max(highs), nulls, logical) if lows else None


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _is_large(column: pa.ChunkedArray) -> bool:
    return _is_text(column.type) and bool(column.nbytes > _LARGE_VALUE * len(column))


def _bounds_as_json(bounds: Bounds | None) -> tuple[Any, Any] | None:
    """Bounds as Delta's statistics write them; None for types that readers disagree on."""
    if bounds is None:
        return None
    low, high = bounds.low, bounds.high
    if isinstance(low, bool) or not isinstance(low, int | str | dt.date):
        return None
    if isinstance(low, str):
        return (low, high) if max(len(low), len(high)) <= _MAX_BOUND_TEXT else None
    if isinstance(low, dt.date):
        return low.isoformat(), high.isoformat()
    if "timestamp" not in bounds.kind:
        return None if "decimal" in bounds.kind else (low, high)
    zone = "Z" if "isadjustedtoutc=true" in bounds.kind else ""
    try:
        texts = [
            (_EPOCH + dt.timedelta(microseconds=value)).isoformat(timespec="microseconds") + zone
            for value in (low, high)
        ]
    except OverflowError:
        return None
    return texts[0], texts[1]


def unreadable(where: str, error: Exception | str) -> CorruptionError:
    """The error of a data file that cannot be read."""
    return CorruptionError(
        "a data file cannot be read",
        where=where,
        got=str(error).splitlines()[0],
        safe="nothing of it was used; what was published before the damage is right",
        hint=f"{mended_by(where)}, and run again: it is built, or loaded, anew",
    )


def mended_by(where: str) -> str:
    """What makes a damaged file right again with the next run, by where a store keeps it.

    >>> mended_by("store/views/revenue/data/1.parquet")
    'mview repair revenue'
    >>> mended_by("store/tables/shop.orders/base/1.parquet")
    'mview drop shop.orders'
    """
    place = _PLACE.match(where)
    if place and (place["kind"] == "views") == (place["part"] == "data"):
        command = "drop" if place["kind"] == "tables" else "repair"
        return f"mview {command} {place['name']}"
    return (
        "restore the file; or `mview repair` the view, or `mview drop` the table (its folder is "
        "below tables/)"
    )


def comparable(column: pa.ChunkedArray) -> list[Any]:
    """The values of a column as `Bounds` holds them: timestamps in micros."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    values: list[Any] = column.to_pylist()
    return values
