"""The Spark executor: look-ups as one Spark job over the mirrors' base files, SQL on Spark.

It needs no memory on the driver beyond the tails, so it serves mirrors of any size.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql import SparkSession

from mview.changelog import from_ipc, to_ipc
from mview.execute.program import Request
from mview.execute.relations import Relation
from mview.execute.scan import scan_files
from mview.schema import type_name
from mview.worker import settle_worker

#: One unit of scan work: request number, files, Arrow schema (IPC), keys (IPC) or None, null_safe.
_Work = tuple[int, list[str], bytes, "bytes | None", bool]


def _scan_all(works: Iterable[_Work]) -> Iterator[tuple[int, bytes]]:
    for number, files, schema, keys, null_safe in works:
        wanted = from_ipc(schema).schema
        found = scan_files(files, wanted, None if keys is None else from_ipc(keys), null_safe)
        if found.num_rows:
            yield number, to_ipc(found)
    settle_worker()


class SparkExecutor:
    """Look-ups and SQL as Spark jobs; serves `Lookups` and `Evaluator` of execute/program.py."""

    name = "spark"

    def __init__(self, spark: SparkSession, relations: Mapping[str, Relation]) -> None:
        self._spark = spark
        self._relations = relations
        self._slots = max(1, spark.sparkContext.defaultParallelism)

    def fetch(self, requests: Sequence[Request]) -> list[pa.Table]:
        """The requested rows of the mirrors as published; all requests in one Spark job."""
        bases = self._scan_bases(requests)
        return [
            self._relations[request.table].rows(
                base, request.keys, request.select, request.null_safe
            )
            for request, base in zip(requests, bases, strict=True)
        ]

    def _scan_bases(self, requests: Sequence[Request]) -> list[pa.Table]:
        works: list[_Work] = []
        schemas = []
        for number, request in enumerate(requests):
            relation = self._relations[request.table]
            schema = relation.base_schema(request.select)
            schemas.append(schema)
            keys = None if request.keys is None else to_ipc(request.keys)
            packed = to_ipc(schema.empty_table())
            for files in _spread(relation.base_files, self._slots):
                works.append((number, files, packed, keys, request.null_safe))
        parts: dict[int, list[pa.Table]] = defaultdict(list)
        if works:
            slots = min(self._slots, len(works))
            # Dealt out in turns: each task gets a share of every request.
            dealt = [work for slot in range(slots) for work in works[slot::slots]]
            job = self._spark.sparkContext.parallelize(dealt, slots).mapPartitions(_scan_all)
            for number, blob in job.collect():
                parts[number].append(from_ipc(blob))
        return [
            pa.concat_tables([schema.empty_table(), *parts[number]])
            for number, schema in enumerate(schemas)
        ]

    def run(
        self, sql: str, relations: Mapping[str, pa.Table], result: pa.Schema | None
    ) -> pa.Table:
        """The result of a Spark SQL query over Arrow relations; cast to `result` when given."""
        for name, rows in relations.items():
            # Columns by name and type: left to itself, Spark takes local times for instants.
            ddl = ", ".join(f"`{f.name}` {type_name(f.type)}" for f in rows.schema)
            # NOT NULL is the source's promise: Spark must not plan on it.
            loose = pa.schema([field.with_nullable(True) for field in rows.schema])
            frame = self._spark.createDataFrame(rows.cast(loose), schema=ddl)
            frame.createOrReplaceTempView(name)
        try:
            found = self._spark.sql(sql).toArrow()
        finally:
            for name in relations:
                self._spark.catalog.dropTempView(name)
        return found if result is None else found.cast(result)


def _spread(files: Sequence[tuple[str, int]], slots: int) -> list[list[str]]:
    """Files (path, rows) in at most `slots` groups of about equal rows."""
    groups: list[list[str]] = [[] for _ in range(slots)]
    loads = [0] * slots
    for path, rows in sorted(files, key=lambda file: -file[1]):
        lightest = loads.index(min(loads))
        groups[lightest].append(path)
        loads[lightest] += rows
    return [group for group in groups if group]
