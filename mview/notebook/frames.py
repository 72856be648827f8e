"""Arrow rows as what people work with: pandas, polars, the result of a query. Nothing is rounded
unless it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
from sqlglot import exp, parse
from sqlglot.errors import SqlglotError

from mview.errors import DataError, UserError
from mview.notebook.extra import needed
from mview.relation import RelationId

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl

#: `exact`: `decimal.Decimal`; `float`: DOUBLE, with which pandas and charts calculate.
Decimals = Literal["exact", "float"]

#: Integers with NULLs: pandas would make them DOUBLE, which ends being exact at 2^53.
_NULLABLE = {
    pa.int8(): "Int8",
    pa.int16(): "Int16",
    pa.int32(): "Int32",
    pa.int64(): "Int64",
}

#: Nothing is fetched, and no variable of the program is taken for a table.
_CLOSED: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
}

#: So many names of relations are told.
_TOLD = 20


def to_pandas(rows: pa.Table, decimals: Decimals = "exact") -> pd.DataFrame:
    """Rows as a DataFrame.

    Integers with NULLs are pandas' nullable ones, arrays, maps and structs Python's lists and
    dictionaries, binary values `bytes`, timestamps of microseconds as they are.

    Raises:
        UserError: `decimals` is neither.
    """
    import pandas as pd

    if decimals not in ("exact", "float"):
        raise UserError("decimals are 'exact' or 'float'", got=repr(decimals))
    columns = {}
    for number, field in enumerate(rows.schema):
        column = rows.column(number)
        if decimals == "float":
            column = column.cast(_as_float(field.type))
        if pa.types.is_nested(field.type):
            values = pd.Series(column.to_pylist(), dtype=object)
        elif column.null_count and field.type in _NULLABLE:
            kept = _NULLABLE[field.type]
            values = column.to_pandas(types_mapper={field.type: getattr(pd, f"{kept}Dtype")()}.get)
        else:
            values = column.to_pandas()
        columns[field.name] = values
    return pd.DataFrame(columns, index=pd.RangeIndex(rows.num_rows))


def _as_float(kind: pa.DataType) -> pa.DataType:
    """The type with DOUBLE in the place of decimals, wherever they are in it."""
    if pa.types.is_decimal(kind):
        return pa.float64()
    if pa.types.is_map(kind):
        return pa.map_(_as_float(kind.key_type), _as_float(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_as_float(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_as_float(field.type)) for field in kind])
    return kind


def to_polars(rows: pa.Table) -> pl.DataFrame:
    """Rows as a polars DataFrame; decimals, timestamps and arrays are polars' own.

    Raises:
        UserError: polars is not installed.
    """
    polars = needed("polars", "polars()")
    frame: pl.DataFrame = polars.from_arrow(rows)
    return frame


def query(sql: str, relations: Mapping[str, Callable[[], pa.Table]]) -> pa.Table:
    """The result of a query in DuckDB's SQL over relations, which are read when it names them.

    It reads no files and nothing else: what it does not find is an error.

    Args:
        relations: what reads each, by name; of tables `<connection>.<table>`.

    Raises:
        UserError: the query is wrong, or names what there is not.
        DataError: it fails on the rows.
    """
    import duckdb

    with duckdb.connect(config=_CLOSED) as database:
        database.execute("SET TimeZone = 'UTC'")
        database.execute("SET enable_external_access = false")
        database.execute("SET lock_configuration = true")
        try:
            for name in _named(sql):
                _register(database, name, relations)
            result = database.sql(sql)
            if result is None:
                raise UserError("the query gives no rows", got=sql.strip()[:200])
            table: pa.Table = result.to_arrow_table()
            return table
        except (duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException) as error:
            raise UserError(
                f"the query is wrong: {_words(error)}", allowed=_allowed(relations)
            ) from None
        except duckdb.Error as error:
            raise DataError(
                f"the query fails: {_words(error)}", safe="views and tables are not touched"
            ) from None


def _named(sql: str) -> list[exp.Table]:
    """The relations that a query names, and the names of its own subqueries."""
    if not isinstance(sql, str):
        raise UserError("a query is a text", got=repr(sql)[:200])
    try:
        trees = parse(sql, read="duckdb")
    except SqlglotError as error:
        raise UserError(f"the query cannot be read: {_words(error)}", got=sql[:200]) from None
    if len(trees) != 1 or not isinstance(trees[0], exp.Query):
        raise UserError("this is not one query", got=sql[:200], allowed="one SELECT, WITH or FROM")
    return [*trees[0].find_all(exp.Table)]


def _register(
    database: duckdb.DuckDBPyConnection,
    named: exp.Table,
    relations: Mapping[str, Callable[[], pa.Table]],
) -> None:
    """Make a relation known by its name; one that is none, DuckDB tells."""
    for name, read in relations.items():
        relation = RelationId.of(name)
        schema, table = relation.connection, relation.sql_name
        if (schema.lower(), table.lower()) != (named.db.lower(), named.name.lower()):
            continue
        if not relation.is_table:
            database.register(table, read())
            return
        rows = f"rows of {name}"
        database.register(rows, read())
        database.execute(f"CREATE SCHEMA IF NOT EXISTS {_quoted(schema)}")
        view = f"{_quoted(schema)}.{_quoted(table)}"
        database.execute(f"CREATE OR REPLACE VIEW {view} AS SELECT * FROM {_quoted(rows)}")
        return


def _quoted(name: str) -> str:
    """A name in DuckDB's SQL."""
    return '"' + name.replace('"', '""') + '"'


def _words(error: Exception) -> str:
    """The first lines of a message, which say what is wrong and not where it was noticed."""
    words = str(error).strip().partition("\n\n")[0]
    if "Table with name" in words:  # DuckDB knows nothing of ours, and proposes its own
        return words.partition("\nDid you mean")[0]
    return words


def _allowed(relations: Mapping[str, object]) -> str:
    names = ", ".join([*relations][:_TOLD])
    more = f" and {len(relations) - _TOLD} more" if len(relations) > _TOLD else ""
    return f"DuckDB's SQL over {names}{more}" if names else "there is nothing that could be read"
