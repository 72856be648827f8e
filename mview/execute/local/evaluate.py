"""Runs an admitted query in DuckDB, over small Arrow tables, with Spark's result types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import lru_cache

import duckdb
import pyarrow as pa
from sqlglot import exp

from mview.connector import WEIGHT
from mview.execute.local.admission import Translation, check_result, translate
from mview.execute.local.admitted.spark_types import INT, duckdb_type, without_zone
from mview.execute.local.paired import Paired, paired
from mview.execute.local.parsing.reading import read
from mview.execute.queries import Queries
from mview.execute.refusal import EvaluationError, NotAdmittedError
from mview.execute.turns import aside
from mview.rows.parts import Parts
from mview.schema import as_schema

#: Rows of a part of a result that is not held at once.
_PART_ROWS = 32_768

#: Rows of all tables together from which on the sides of a UNION ALL are computed side by side:
#: below, a second thread takes longer to wake up than it helps.
_MANY = 1 << 17

#: The same up to which both sides are one query where they can be: to set up joins and groups
#: takes longer than to compute them.
_FEW = 1 << 14

#: A view's query over the new rows, and that over the old ones, are such sides.
_beside = ThreadPoolExecutor(4, "mview-query")


@dataclass
class _Known:
    """A query over tables of some columns: its text for DuckDB, and the columns of its result.

    Attributes:
        both: one query for both of its sides, and its text for DuckDB; None where there is none.
        is_given: whether DuckDB takes the tables as they are.
    """

    text: str
    schema: pa.Schema
    both: tuple[Paired, str] | None
    is_given: bool


class LocalEvaluator:
    """An in-process DuckDB; queries are translated and planned once and reused.

    Several threads may evaluate queries at once.
    """

    def __init__(self) -> None:
        self._queries = Queries()
        self._prepared: dict[tuple[object, ...], tuple[str, pa.Schema]] = {}
        #: The texts of the sides of queries that have some; those of others stand alone.
        self._sides: dict[str, tuple[str, ...]] = {}
        #: By all of the columns: what can be NULL in one table only makes it no pair of another.
        self._known: dict[tuple[object, ...], _Known] = {}

    def close(self) -> None:
        """Free DuckDB; the evaluator is of no use afterwards."""
        self._queries.close()

    def prepare(
        self, sql: str, tables: Mapping[str, pa.Schema], result: pa.Schema | None
    ) -> tuple[str, pa.Schema]:
        """The DuckDB text of a Spark query, and the columns of its result.

        Args:
            sql: the query, as the user wrote it for Spark.
            tables: the columns of the relations it reads, by name.
            result: the result's columns, from Spark's analysis of `sql`; None: not known.

        Raises:
            NotAdmittedError: the query may not run in process.
        """
        types = tuple(
            (name, tuple(zip(schema.names, schema.types, strict=True)))
            for name, schema in tables.items()
        )
        shape = None if result is None else (tuple(result.names), tuple(result.types))
        key = (sql, types, shape)
        if key not in self._prepared:
            parsed = read(sql)
            translation = translate(parsed, {name: dict(pairs) for name, pairs in types})
            if result is not None:
                check_result(translation, result)
            self._prepared[key] = translation.sql, _schema(translation, result)
        return self._prepared[key]

    def run(
        self, sql: str, relations: Mapping[str, pa.Table], result: pa.Schema | None
    ) -> pa.Table:
        """The result of a Spark query over these tables; arguments as for `prepare`.

        Raises:
            NotAdmittedError: the query may not run in process.
            EvaluationError: DuckDB failed; Spark must run it.
        """
        tables = {name: table.schema for name, table in relations.items()}
        key = (sql, result, *tables.items())
        if (known := self._known.get(key)) is None:
            text, schema = self.prepare(sql, tables, result)
            is_given = all(name == name.lower() for name in tables)
            is_given = is_given and all(map(_is_duckdbs, tables.values()))
            both = _pair_of(sql, tables, schema)
            known = self._known[key] = _Known(text, schema, both, is_given)
        schema = known.schema
        try:
            given = relations
            if not known.is_given:
                given = {name.lower(): _for_duckdb(table) for name, table in relations.items()}
            count = sum(table.num_rows for table in relations.values())
            rows = self._both(known, given) if count < _FEW else None
            if rows is not None:
                parts = [rows]
            elif count < _MANY:
                parts = [self._queries.run(known.text, given)]
            else:
                parts = self._side_by_side(self._sides_of(sql, known.text, tables), given)
        except duckdb.Error as error:
            raise EvaluationError(str(error)) from error
        fitted = [as_schema(rows.rename_columns(schema.names), schema) for rows in parts]
        return fitted[0] if len(fitted) == 1 else pa.concat_tables(fitted)

    def _both(self, known: _Known, given: Mapping[str, pa.Table]) -> pa.Table | None:
        """The result of one query for both sides; None where there is none.

        Args:
            known: an admitted query.
            given: the relations that it reads, for DuckDB.
        """
        if known.both is None:
            return None
        pair, text = known.both
        try:
            rows = self._queries.run(text, pair.given(given))
        except duckdb.Error:  # told by the sides, if they have it, too
            known.both = None
            return None
        return rows.select([rows.num_columns - 1, *range(rows.num_columns - 1)])

    def _sides_of(self, sql: str, text: str, tables: Mapping[str, pa.Schema]) -> tuple[str, ...]:
        """The sides of an admitted query, for DuckDB; `text` where it is one."""
        if text not in self._sides:
            types = {
                name: dict(zip(schema.names, schema.types, strict=True))
                for name, schema in tables.items()
            }
            sides = [translate(side, types).sql for side in _sides(read(sql))]
            self._sides[text] = tuple(sides) or (text,)
        return self._sides[text]

    def _side_by_side(self, sides: Sequence[str], given: Mapping[str, pa.Table]) -> list[pa.Table]:
        """The results of queries over the same tables."""
        others = [_beside.submit(self._queries.run, side, given) for side in sides[1:]]
        try:
            first = self._queries.run(sides[0], given)
        finally:
            with aside():
                wait(others)
        return [first, *(other.result() for other in others)]

    def stream(
        self, sql: str, relations: Mapping[str, Parts], result: pa.Schema
    ) -> Iterator[pa.Table]:
        """The same, part by part, over tables that come so; what it raises may come later, too.

        Raises:
            NotAdmittedError: see `run`.
            EvaluationError: see `run`; no part that came before counts.
        """
        tables = {name: parts.schema for name, parts in relations.items()}
        text, schema = self.prepare(sql, tables, result)
        given = {name.lower(): parts.map(_for_duckdb) for name, parts in relations.items()}
        try:
            for batch in self._queries.stream(text, given, _PART_ROWS):
                rows = pa.Table.from_batches([batch])
                yield as_schema(rows.rename_columns(schema.names), schema)
        except duckdb.Error as error:
            raise EvaluationError(str(error)) from error


def _sides(query: exp.Expr) -> list[exp.Expr]:
    """The two sides of a UNION ALL with nothing around it; none of any other query."""
    if not isinstance(query, exp.Union) or query.args.get("distinct"):
        return []
    if any(query.args.get(clause) for clause in ("with_", "order", "limit", "offset")):
        return []
    return [query.this, query.expression]


def _pair_of(
    sql: str, tables: Mapping[str, pa.Schema], schema: pa.Schema
) -> tuple[Paired, str] | None:
    """One query for both sides of an admitted one, and its text for DuckDB."""
    pair = paired(read(sql))
    known = {name.lower(): columns for name, columns in tables.items()}
    if pair is None or not {*pair.tables, *pair.tables.values()} <= known.keys():
        return None
    if any(known[name] != known[other] for name, other in pair.tables.items()):
        return None
    try:
        both = {
            name: {**dict(zip(known[name].names, known[name].types, strict=True)), WEIGHT: INT}
            for name in pair.tables
        }
        translation = translate(pair.query, both)
    except NotAdmittedError:
        return None
    *kinds, mark = (kind for _, kind in translation.columns)
    return (pair, translation.sql) if [mark, *kinds] == schema.types else None


def _schema(translation: Translation, result: pa.Schema | None) -> pa.Schema:
    """The result's columns; nullable, as whether a value can be NULL is Spark's guess only."""
    names = [name for name, _ in translation.columns] if result is None else result.names
    kinds = [kind for _, kind in translation.columns]
    return pa.schema(list(zip(names, kinds, strict=True)))


def _for_duckdb(table: pa.Table) -> pa.Table:
    """Names in lower case; instants as UTC readings without a zone; no columns of other types."""
    if _is_duckdbs(table.schema):
        return table
    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if duckdb_type(column.type) is None:
            continue
        columns[name.lower()] = column.cast(without_zone(column.type))
    return pa.table(columns)


@lru_cache(maxsize=1024)
def _is_duckdbs(schema: pa.Schema) -> bool:
    """Whether DuckDB takes a table as it is."""
    plain = all(duckdb_type(kind) and without_zone(kind) == kind for kind in schema.types)
    return plain and all(name == name.lower() for name in schema.names)
