"""`check` knows types that no table can have as Spark does, and refuses no other."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from mview.catalog.analyze import analyze
from mview.errors import UserError
from mview.ivm.compile import compile_view
from mview.plan.definition import parse_view
from mview.schema import Column, TableSchema, parse_type, type_name
from tests.relations import keyed

SCHEMAS = {
    "shop.t": TableSchema(
        (
            Column("id", pa.int64(), nullable=False),
            Column("a", pa.int64()),
            Column("at", pa.timestamp("us", tz="UTC")),
            Column("d", pa.date32()),
            Column("s", pa.string()),
        ),
        ("id",),
    )
}
#: Column `x` by the type that nobody can keep.
REFUSED = {
    "at - at": "interval",
    "d - d": "interval",
    "at - date'2020-01-01'": "interval",
    "current_timestamp() - at": "interval",
    "max(at) - min(at)": "interval",
    "interval 1 day": "interval",
    "make_interval(1)": "interval",
    "cast(s as interval day)": "interval",
    "null": "void",
    "coalesce(null, null)": "void",
    "case when true then null end": "void",
    "if(true, null, null)": "void",
    "map('a', 1)": "map",
    "struct(1)": "struct",
    "named_struct('a', 1)": "struct",
    "parse_json('1')": "variant",
    "cast(1 as variant)": "variant",
}
KEPT = [
    "d - 1",
    "at + interval 1 day",
    "datediff(d, d)",
    "timestampdiff(second, at, at)",
    "cast(at - at as string)",
    "coalesce(null, a)",
    "case when a > 1 then null else a end",
    "map('a', a)['a']",
    "named_struct('b', a).b",
    "to_json(struct(a))",
    "split(s, ',')",
    "nullif(a, 1)",
]
#: The same in places further down.
AROUND = (
    "select {} as x from shop.t group by id, a, at, d, s",
    "select x from (select {} as x from shop.t group by id, a, at, d, s) as q where x is null",
    "select {} as x from shop.t group by id, a, at, d, s"
    " union all select {} from shop.t group by id, a, at, d, s",
)
NAMES = {
    "select count(*) from shop.t": "column 1 of view 'v' has no name",
    "select id, percentile(a, 0.5) over () from shop.t": "column 2 of view 'v' has no name",
    "select id, a as ID from shop.t": "two columns of view 'v' are called 'ID'",
    # What the plan cannot express: only the select list is looked at.
    "select id, a as id, stack(1, 2) as r from shop.t": "two columns of view 'v' are called 'id'",
}


@pytest.mark.parametrize("expression", REFUSED)
def test_check_refuses_a_type(expression: str) -> None:
    for around in AROUND:
        with pytest.raises(UserError, match="column 'x' of view 'v' has a type") as caught:
            compile_view(parse_view(around.replace("{}", expression), "v"), keyed(SCHEMAS))
        assert caught.value.got == REFUSED[expression]


@pytest.mark.parametrize("expression", KEPT)
def test_check_keeps_other_types(expression: str) -> None:
    for around in AROUND:
        compile_view(parse_view(around.replace("{}", expression), "v"), keyed(SCHEMAS))


@pytest.mark.parametrize("sql", NAMES)
def test_columns_have_names_of_their_own(sql: str) -> None:
    with pytest.raises(UserError, match=NAMES[sql]):
        compile_view(parse_view(sql, "v"), keyed(SCHEMAS))


@pytest.mark.spark
def test_spark_says_the_same(spark: SparkSession) -> None:
    for expression in (*REFUSED, *KEPT):
        view = parse_view(AROUND[0].replace("{}", expression), "v")
        if expression in KEPT:
            (column,) = analyze(spark, view, keyed(SCHEMAS)).columns
            # As it is named: whether an element of a list can be NULL is no part of a type.
            assert (column.name, column.type) == ("x", parse_type(type_name(column.type)))
            continue
        with pytest.raises(UserError, match="column 'x' of view 'v' has a type") as caught:
            analyze(spark, view, keyed(SCHEMAS))
        assert REFUSED[expression] in str(caught.value.got)
