"""Files of rows: Parquet, CSV, JSON lines; what each writes it reads again, value for value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import orjson
import pyarrow as pa
import pyarrow.csv as pc_csv
import pyarrow.parquet as pq

from mview.schema import Column
from mview_connectors.formats.values import convert
from mview_connectors.formats.written import json_rows, json_values, read_rows


class Writer(Protocol):
    """A file that is being written."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        ...


class FileFormat(Protocol):
    """How rows lie in a file."""

    def refuses(self, kind: pa.DataType) -> str | None:
        """Why values of a type cannot be held; None: they can."""
        ...

    def writing(self, file: Path, schema: pa.Schema) -> Any:
        """A context with a `Writer`; without rows the file is one of none."""
        ...

    def read(self, file: Path, schema: pa.Schema) -> pa.Table:
        """All rows of a file that was written here."""
        ...


class Parquet:
    """Parquet: all types as they are, pages with checksums."""

    def refuses(self, kind: pa.DataType) -> str | None:
        """See `FileFormat`."""
        return None

    @contextmanager
    def writing(self, file: Path, schema: pa.Schema) -> Iterator[Writer]:
        """See `FileFormat`."""
        with pq.ParquetWriter(
            file, schema, compression="zstd", write_page_checksum=True, store_schema=False
        ) as writer:
            yield _Batches(writer)

    def read(self, file: Path, schema: pa.Schema) -> pa.Table:
        """See `FileFormat`."""
        return pq.read_table(file, page_checksum_verification=True, partitioning=None).cast(schema)


class _Batches:
    """A writer of Arrow's, under our name."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)


class Csv:
    """CSV with a header, UTF-8, RFC 4180: NULL is nothing, an empty text is `""`.

    Decimals, timestamps and bytes (base64) are text in quotes, in the forms of `formats.written`.
    """

    def refuses(self, kind: pa.DataType) -> str | None:
        """See `FileFormat`."""
        return "no lists in CSV: format: parquet or jsonl" if pa.types.is_nested(kind) else None

    @contextmanager
    def writing(self, file: Path, schema: pa.Schema) -> Iterator[Writer]:
        """See `FileFormat`."""
        held = pa.schema([pa.field(field.name, _csv_type(field.type)) for field in schema])
        options = pc_csv.WriteOptions(quoting_style="needed")
        with pc_csv.CSVWriter(file, held, write_options=options) as writer:
            yield _CsvRows(writer, held)

    def read(self, file: Path, schema: pa.Schema) -> pa.Table:
        """See `FileFormat`."""
        types = {field.name: _csv_type(field.type) for field in schema}
        whole = pc_csv.read_csv(
            file,
            # A value that is longer than a block is refused.
            pc_csv.ReadOptions(use_threads=False, block_size=file.stat().st_size + 1),
            pc_csv.ParseOptions(newlines_in_values=True),
            pc_csv.ConvertOptions(
                column_types=types,
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        columns = [
            column
            if column.type == field.type
            else convert(column.to_pylist(), Column(field.name, field.type), {})
            for column, field in zip(whole.columns, schema, strict=True)
        ]
        return pa.table(columns, schema)


class _CsvRows:
    def __init__(self, writer: Any, held: pa.Schema) -> None:
        self._writer, self._held = writer, held

    def write(self, batch: pa.RecordBatch) -> None:
        columns = [
            column if column.type == field.type else pa.array(json_values(column), field.type)
            for column, field in zip(batch.columns, self._held, strict=True)
        ]
        self._writer.write_batch(pa.record_batch(columns, schema=self._held))


def _csv_type(kind: pa.DataType) -> pa.DataType:
    """What Arrow writes as it is; all else is text."""
    plain = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_floating, pa.types.is_date)
    return kind if any(is_kind(kind) for is_kind in plain) else pa.string()


class JsonLines:
    """One JSON object per line; values in the forms of `formats.written`."""

    def refuses(self, kind: pa.DataType) -> str | None:
        """See `FileFormat`."""
        return None

    @contextmanager
    def writing(self, file: Path, schema: pa.Schema) -> Iterator[Writer]:
        """See `FileFormat`."""
        with file.open("wb") as out:
            yield _Lines(out, schema.names)

    def read(self, file: Path, schema: pa.Schema) -> pa.Table:
        """See `FileFormat`."""
        with file.open("rb") as lines:
            return pa.Table.from_batches(read_rows(lines, schema), schema)


class _Lines:
    def __init__(self, out: Any, names: Sequence[str]) -> None:
        self._out, self._names = out, names

    def write(self, batch: pa.RecordBatch) -> None:
        rows = json_rows(batch, self._names)
        self._out.writelines(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows)


FORMATS: dict[str, FileFormat] = {"parquet": Parquet(), "csv": Csv(), "jsonl": JsonLines()}
