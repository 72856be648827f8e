"""Files of Iceberg tables: rows by partition, positions of rows that are gone, both read again.

pyiceberg deletes rows by writing their files anew. Here they are deleted by position (the Iceberg
specification, format version 2, "Position Delete Files").

Only what uses a sink imports this module: it needs pyiceberg.
"""

from __future__ import annotations

import hashlib
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids, write_file
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import assign_fresh_schema_ids
from pyiceberg.table import WriteTask
from pyiceberg.transforms import (
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    YearTransform,
    parse_transform,
)
from pyiceberg.typedef import Record
from pyiceberg.types import DateType

from mview_connectors.followers.iceberg.index import Numbers

#: The columns of position-delete files, with the ids that Iceberg reserves for them.
_PATH_ID, _POSITION_ID = 2147483546, 2147483545
_POSITIONS = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {"PARQUET:field_id": str(_PATH_ID)}),
        pa.field("pos", pa.int64(), False, {"PARQUET:field_id": str(_POSITION_ID)}),
    ]
)

#: Rows that are read from a data file at once.
_READ_ROWS = 1 << 17

_HOUR = 3_600_000_000


def spec_of(schema: Any, parts: Sequence[tuple[str, str]]) -> Any:
    """A partition spec of (transform as Iceberg spells it, column).

    Raises:
        ValueError: a transform that the column's type has not, or a name that comes twice.
    """
    fields: list[PartitionField] = []
    for number, (spelled, column) in enumerate(parts):
        source, transform = schema.find_field(column), parse_transform(spelled)
        if not transform.can_transform(source.field_type):
            raise ValueError(f"{spelled} of {source.field_type}")
        plain = spelled.partition("[")[0]
        name = column if spelled == "identity" else f"{column}_{plain}"
        others = {field.name for field in fields}
        if name in others or (name != column and name in schema.column_names):
            raise ValueError(f"{spelled} of {column}: there is a column {name!r} already")
        fields.append(PartitionField(source.field_id, 1000 + number, transform, name))
    return PartitionSpec(*fields)


def schema_of(arrow: pa.Schema) -> Any:
    """The Iceberg schema of Arrow columns, with ids from 1 on."""
    return assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(arrow))


def write_rows(table: Any, rows: pa.Table) -> list[tuple[Any, pa.Table]]:
    """Data files of rows, one per partition, each with the rows in their order in it."""
    if not rows.num_rows:
        return []
    metadata, number = table.metadata, uuid.uuid4()
    parts = list(_partitions(metadata, rows))
    tasks = [
        WriteTask(
            write_uuid=number,
            task_id=place,
            schema=metadata.schema(),
            record_batches=part.to_batches(),
            partition_key=key,
        )
        for place, (key, part) in enumerate(parts)
    ]
    files = list(write_file(io=table.io, table_metadata=metadata, tasks=iter(tasks)))
    for file in files:
        file.spec_id = metadata.default_spec_id
    return [(file, part) for file, (_, part) in zip(files, parts, strict=True)]


@dataclass(frozen=True)
class _Key:
    """A partition, as pyiceberg's writer asks for it."""

    partition: Any
    spec: Any
    schema: Any

    def to_path(self) -> str:
        """A folder of the values; only people read it, and long names are none to file systems."""
        text = str(self.spec.partition_to_path(self.partition, self.schema))
        return text if len(text) <= 200 else hashlib.sha256(text.encode()).hexdigest()


def _partitions(metadata: Any, rows: pa.Table) -> Iterator[tuple[_Key | None, pa.Table]]:
    spec, schema = metadata.spec(), metadata.schema()
    if spec.is_unpartitioned():
        yield None, rows
        return
    values, codes = [], np.zeros(rows.num_rows, np.int64)
    for part in spec.fields:
        source = schema.find_field(part.source_id)
        transformed = _transformed(rows[source.name], part.transform, source.field_type)
        encoded = transformed.dictionary_encode(null_encoding="encode")
        values.append(encoded.dictionary.to_pylist())
        codes = codes * max(len(encoded.dictionary), 1) + encoded.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    ends = np.flatnonzero(np.diff(codes[order], append=-1) != 0) + 1
    begin = 0
    for end in ends:
        code, picked = int(codes[order[begin]]), []
        for listed in reversed(values):
            code, place = divmod(code, max(len(listed), 1))
            picked.append(listed[place])
        key = _Key(Record(*reversed(picked)), spec, schema)
        yield key, rows.take(pa.array(order[begin:end]))
        begin = int(end)


def _transformed(column: pa.ChunkedArray, transform: Any, kind: Any) -> pa.Array:
    """Partition values, as Iceberg holds them: dates and times as numbers since 1970.

    pyiceberg has the transforms of single values; here they are made once per distinct one.
    """
    if isinstance(transform, YearTransform | MonthTransform | DayTransform):
        # By days, of which there are few: the same year, month and day as by microseconds.
        column, kind = column.cast(pa.timestamp("us")).cast(pa.date32(), safe=False), DateType()
    elif isinstance(transform, HourTransform):
        micros = column.cast(pa.timestamp("us")).cast(pa.int64())
        # Not by way of NaN: a double does not hold all micros.
        hours = np.floor_divide(micros.fill_null(0).to_numpy(), _HOUR)
        return pa.array(hours, mask=micros.is_null().to_numpy())
    column = _internal(column)
    flat = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(flat, pa.ChunkedArray):
        flat = pa.concat_arrays(flat.chunks)
    if isinstance(transform, IdentityTransform):
        return flat
    encoded = flat.dictionary_encode()
    call = transform.transform(kind)
    results = pa.array([call(value) for value in encoded.dictionary.to_pylist()])
    if not len(results):
        return pa.nulls(len(flat))
    return results.take(encoded.indices)


def _internal(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_date(column.type):
        return column.cast(pa.int32())
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64())
    return column


def write_deletes(table: Any, places: Sequence[tuple[Any, Numbers]]) -> list[Any]:
    """Position-delete files, one per partition: Iceberg looks for them there only.

    Args:
        table: the table.
        places: data files, and the positions of their rows that go.
    """
    groups: dict[Any, list[tuple[str, Numbers]]] = defaultdict(list)
    for file, positions in places:
        groups[file.spec_id, file.partition].append((file.file_path, positions))
    return [
        _write_deletes(table, spec_id, partition, sorted(group, key=lambda row: row[0]))
        for (spec_id, partition), group in groups.items()
    ]


def _write_deletes(
    table: Any, spec_id: int, partition: Any, group: Sequence[tuple[str, Numbers]]
) -> Any:
    paths = pa.array(np.repeat([path for path, _ in group], [len(at) for _, at in group]))
    positions = pa.array(np.concatenate([at for _, at in group]), pa.int64())
    rows = pa.table([paths.cast(pa.string()), positions], _POSITIONS)
    path = table.location_provider().new_data_location(f"{uuid.uuid4()}-deletes.parquet")
    output = table.io.new_output(path)
    with output.create() as stream:
        pq.write_table(rows, stream, compression="zstd")
    file = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=partition,
        record_count=rows.num_rows,
        file_size_in_bytes=len(output),
        column_sizes={},
        value_counts={},
        null_value_counts={},
        nan_value_counts={},
        # By these a reader sees which data files it has to do with.
        lower_bounds={_PATH_ID: group[0][0].encode()},
        upper_bounds={_PATH_ID: group[-1][0].encode()},
        key_metadata=None,
        split_offsets=None,
        equality_ids=None,
        sort_order_id=None,
    )
    file.spec_id = spec_id
    return file


def gone_positions(table: Any, files: Iterable[Any]) -> dict[str, Numbers]:
    """By data file: the positions that position-delete files name, sorted and distinct.

    Raises:
        NotImplementedError: a file that deletes otherwise; mview writes none.
    """
    parts: dict[str, list[Numbers]] = defaultdict(list)
    for file in files:
        if file.content != DataFileContent.POSITION_DELETES or file.file_format != "PARQUET":
            raise NotImplementedError(f"{file.content.name} in {file.file_format.value}")
        with table.io.new_input(file.file_path).open() as stream:
            rows = pq.read_table(stream, columns=["file_path", "pos"])
        paths = rows["file_path"].combine_chunks().dictionary_encode()
        if isinstance(paths, pa.ChunkedArray):
            paths = pa.concat_arrays(paths.chunks)
        codes, positions = paths.indices.to_numpy(), rows["pos"].to_numpy()
        for code, path in enumerate(paths.dictionary.to_pylist()):
            parts[path].append(positions[codes == code])
    return {path: np.unique(np.concatenate(part)) for path, part in parts.items()}


def live_rows(
    table: Any, file: Any, names: Sequence[str], gone: Numbers | None
) -> Iterator[tuple[Numbers, pa.Table]]:
    """Rows of a data file that are not gone: their positions, and these columns."""
    schema = table.metadata.schema()
    ids = [str(schema.find_field(name).field_id).encode() for name in names]
    with table.io.new_input(file.file_path).open() as stream:
        parquet = pq.ParquetFile(stream)
        # By their ids: in files names are spelled as Avro allows, or as they once were.
        stored = {
            (field.metadata or {}).get(b"PARQUET:field_id"): place
            for place, field in enumerate(parquet.schema_arrow)
        }
        spelled = [parquet.schema_arrow.names[stored[field]] for field in ids]
        begin = 0
        for batch in parquet.iter_batches(_READ_ROWS, columns=spelled):
            positions = np.arange(begin, begin + batch.num_rows)
            begin += batch.num_rows
            rows = pa.Table.from_batches([batch]).select(spelled).rename_columns(list(names))
            if gone is not None and len(gone):
                live = ~np.isin(positions, gone)
                positions, rows = positions[live], rows.filter(pa.array(live))
            if rows.num_rows:
                yield positions, rows
