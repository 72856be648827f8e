"""The plain way of the bench for Paimon, in the side environment: pypaimon's own write and commit.

A step is an Arrow stream on the standard input, answered by a line; at the end comes the number of
rows.
"""

from __future__ import annotations

import os
import sys

import pyarrow as pa
from pypaimon import CatalogFactory, Schema

KIND = "kind"


def main() -> None:
    """Write what comes, step by step."""
    calls, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    catalog = CatalogFactory.create({"warehouse": sys.argv[1]})
    catalog.create_database("default", True)
    identifier = 0
    while calls.peek(1):
        rows = pa.ipc.open_stream(calls).read_all()
        rows = rows.rename_columns([KIND, *rows.column_names[1:]])
        fields = [one.with_nullable(one.name != "k") for one in rows.schema]
        rows = rows.cast(pa.schema(fields))
        if not identifier:
            options = {"bucket": "1", "rowkind.field": KIND, "file.format": "parquet"}
            schema = Schema.from_pyarrow_schema(rows.schema, primary_keys=["k"], options=options)
            catalog.create_table("default.plain", schema, False)
        identifier += 1
        builder = catalog.get_table("default.plain").new_stream_write_builder()
        write, commit = builder.new_write(), builder.new_commit()
        write.write_arrow(rows)
        commit.commit(write.prepare_commit(identifier), identifier)
        write.close()
        commit.close()
        answers.write(b"done\n")
        answers.flush()
    builder = catalog.get_table("default.plain").new_read_builder()
    rows = builder.new_read().to_arrow(builder.new_scan().plan().splits())
    answers.write(f"{rows.num_rows}\n".encode())
    answers.flush()


if __name__ == "__main__":
    main()
