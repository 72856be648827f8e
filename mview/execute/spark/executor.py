"""The Spark executor: look-ups as one Spark job over the mirrors' files, SQL on Spark.

It needs no memory on the driver beyond a share for tails, so it serves mirrors of any size;
executors need room on their local disks (execute/spark/copies.py).
"""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from mview.changelog import from_ipc, to_ipc
from mview.execute.program import Request
from mview.execute.relations import Relation
from mview.execute.scan import scan_files
from mview.execute.spark.copies import look_up_files, look_up_range, make_copies
from mview.execute.turns import aside
from mview.relation import RelationId
from mview.rows.ranges import Range
from mview.schema import quoted, type_name
from mview.session.lazy import Spark
from mview.session.texts import query
from mview.session.worker import settle_worker


class _Work(NamedTuple):
    """What one task does for one request; schemas and keys as Arrow IPC."""

    number: int
    files: list[str]
    wanted: bytes
    table: bytes
    keys: bytes | None
    null_safe: bool
    within: Range | None
    most: int | None
    #: Files of a tail: few keys are looked for in them before compaction folds them.
    is_tail: bool


def _work_off(works: Iterable[_Work]) -> Iterator[tuple[tuple[int, bool], bytes]]:
    for work in works:
        wanted, table = from_ipc(work.wanted).schema, from_ipc(work.table).schema
        if work.is_tail:
            rows = _look_up_tail(work, wanted)
        elif work.within is not None:
            # One more than may come, which tells that there are too many.
            most = sys.maxsize if work.most is None else work.most + 1
            rows = look_up_range(work.files, wanted, table, work.within, most)
        elif work.keys is None:
            rows = scan_files(work.files, wanted, None, work.null_safe)
        else:
            rows = look_up_files(work.files, wanted, table, from_ipc(work.keys), work.null_safe)
        if work.most is not None:
            rows = rows.slice(0, work.most + 1)  # the one more tells
        if rows.num_rows:
            yield (work.number, work.is_tail), to_ipc(rows)
    settle_worker()


def _look_up_tail(work: _Work, wanted: pa.Schema) -> pa.Table:
    keys = None if work.keys is None else from_ipc(work.keys)
    if work.within is None:
        return scan_files(work.files, wanted, keys, work.null_safe)
    parts = (scan_files([file], wanted, None, False) for file in work.files)
    return pa.concat_tables([wanted.empty_table(), *map(work.within.rows_of, parts)])


class SparkExecutor:
    """Look-ups and SQL as Spark jobs; serves `Lookups` and `Evaluator` of execute/program.py."""

    name = "spark"

    def __init__(self, spark: Spark, relations: Mapping[RelationId, Relation]) -> None:
        self._spark = spark
        self._relations = relations
        self._asked = threading.Lock()

    def fetch(self, requests: Sequence[Request]) -> list[pa.Table]:
        """The requested rows of the mirrors as published; all requests in one Spark job.

        Raises:
            TooManyRowsError: a range has more rows than may come.
        """
        parts = self._scan(requests)
        answers = []
        for request, (base, tail) in zip(requests, parts, strict=True):
            request.check(base)
            request.check(tail)
            rows = self._relations[request.table].rows(
                base, tail, request.keys, request.select, request.null_safe, request.within
            )
            answers.append(rows)
        return answers

    def _scan(self, requests: Sequence[Request]) -> list[tuple[pa.Table, pa.Table]]:
        """What each request finds in base files, and in the files of a tail that is on disk."""
        works = [
            work for number, request in enumerate(requests) for work in self._works(number, request)
        ]
        parts: dict[tuple[int, bool], list[pa.Table]] = defaultdict(list)
        if works:
            slots = min(self._spark.slots, len(works))
            # Dealt out in turns: each task gets a share of every request.
            dealt = [work for slot in range(slots) for work in works[slot::slots]]
            with aside():
                job = self._spark.session().sparkContext.parallelize(dealt, slots)
                done = job.mapPartitions(_work_off).collect()
            for place, blob in done:
                parts[place].append(from_ipc(blob))
        answers = []
        for number, request in enumerate(requests):
            relation = self._relations[request.table]
            base = relation.base_schema(request.select).empty_table()
            tail = relation.tail_schema(request.select).empty_table()
            sides = ((base, parts[number, False]), (tail, parts[number, True]))
            rows = [pa.concat_tables([none, *some]) for none, some in sides]
            answers.append((rows[0], rows[1]))
        return answers

    def _works(self, number: int, request: Request) -> Iterator[_Work]:
        relation = self._relations[request.table]
        keys = None if request.keys is None else to_ipc(request.keys)
        table = to_ipc(relation.base_schema().empty_table())
        sides = (
            (relation.base_schema(request.select), relation.base_files, False),
            (relation.tail_schema(request.select), relation.tail_files(), True),
        )
        for schema, listed, is_tail in sides:
            wanted = to_ipc(schema.empty_table())
            for files in _spread(listed, self._spark.slots):
                yield _Work(
                    number,
                    files,
                    wanted,
                    table,
                    keys,
                    request.null_safe,
                    request.within,
                    request.most,
                    is_tail,
                )

    def prepare(
        self,
        relation: RelationId,
        files: Sequence[tuple[str, int]],
        columns: Iterable[tuple[str, ...]],
    ) -> None:
        """Have the executors copy base files to their disks before they look into them.

        Args:
            relation: the files' relation.
            files: (path, rows).
            columns: what rows will be looked up by.
        """
        table, wanted = to_ipc(self._relations[relation].base_schema().empty_table()), [*columns]
        spread = _spread(files, self._spark.slots)
        if spread:

            def copy(groups: Iterable[list[str]]) -> None:
                for group in groups:
                    make_copies(group, from_ipc(table).schema, wanted)

            job = self._spark.session().sparkContext.parallelize(spread, len(spread))
            job.foreachPartition(copy)

    def run(
        self, sql: str, relations: Mapping[str, pa.Table], result: pa.Schema | None
    ) -> pa.Table:
        """The result of a Spark SQL query over Arrow relations; cast to `result` when given."""
        # Views ask for relations of the same names; aside first, as in DuckDB's queries.
        with aside(), self._asked:
            answer = self._answer(sql, relations)
        return answer if result is None else answer.cast(result)

    def _answer(self, sql: str, relations: Mapping[str, pa.Table]) -> pa.Table:
        spark = self._spark.session()
        for name, rows in relations.items():
            # Columns by name and type: left to itself, Spark takes local times for instants.
            ddl = ", ".join(f"{quoted(f.name)} {type_name(f.type)}" for f in rows.schema)
            # NOT NULL is the source's promise: Spark must not plan on it.
            loose = pa.schema([field.with_nullable(True) for field in rows.schema])
            # In one chunk: behind two empty ones, Spark 4.2 sees no rows.
            whole = rows.cast(loose).combine_chunks()
            frame = spark.createDataFrame(whole, schema=ddl)
            frame.createOrReplaceTempView(name)
        try:
            return query(spark, sql).toArrow()
        finally:
            for name in relations:
                spark.catalog.dropTempView(name)


def _spread(files: Sequence[tuple[str, int]], slots: int) -> list[list[str]]:
    """Files (path, rows) in at most `slots` groups of about equal rows."""
    groups: list[list[str]] = [[] for _ in range(slots)]
    loads = [0] * slots
    for path, rows in sorted(files, key=lambda file: -file[1]):
        lightest = loads.index(min(loads))
        groups[lightest].append(path)
        loads[lightest] += rows
    return [group for group in groups if group]
