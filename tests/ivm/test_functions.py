"""Declared functions in plans: as good as built-in ones; undeclared ones are refused with a fix."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mview.catalog.definitions import digest_of
from mview.errors import UserError
from mview.ivm.compile import compile_view
from mview.ivm.plan import ViewPlan
from mview.plan.definition import ViewDefinition, parse_view
from mview.plan.functions.declared import Function, is_free
from tests.ivm.world import table_schema
from tests.relations import keyed

SCHEMAS = {
    "shop.orders": table_schema("id bigint, cust bigint, total decimal(12,2)", "id"),
    "crm.customers": table_schema("id bigint, name string", "id"),
}
INITIALS = Function("initials", "my_module:initials", "string", "python")
FEE = Function("fee", "my_module:fee", "decimal(12,2)", "python")
RATE = Function("rate", "my_module:rate", "double", "pandas")
NEAR = Function("near", "my_module:near", "boolean", "python")


def declared(sql: str, *functions: Function) -> ViewDefinition:
    return replace(parse_view(sql, "v", "v.sql"), functions=functions)


def planned(sql: str) -> ViewPlan:
    return compile_view(declared(sql, INITIALS, FEE, RATE, NEAR), keyed(SCHEMAS))


@pytest.mark.parametrize(
    ("sql", "strategy"),
    [
        ("select id, initials(name) as i from crm.customers where Initials(name) > 'b'", "LINEAR"),
        (
            "select o.id, fee(o.total) as f from shop.orders o"
            " join crm.customers c on c.id = o.cust and near(o.id, c.id)",
            "DELTA_JOIN",
        ),
        (
            "select o.id, c.id as c from shop.orders o"
            " join crm.customers c on rate(o.total) > 1 and initials(c.name) = fee(o.total)",
            "DELTA_JOIN",
        ),
        (
            "select o.id, initials(c.name) as i from shop.orders o"
            " left join crm.customers c on c.id = o.cust",
            "AFFECTED_KEYS",
        ),
        (
            "select initials(name) as i, count(*) as n from crm.customers group by initials(name)",
            "SELF_MAINTAINED",
        ),
        (
            "select c.name, sum(fee(o.total)) as f from shop.orders o"
            " join crm.customers c on c.id = o.cust group by c.name",
            "SELF_MAINTAINED",
        ),
        (
            "select c.name, sum(rate(o.total)) as f from shop.orders o"
            " join crm.customers c on c.id = o.cust group by c.name",
            "AFFECTED_KEYS",
        ),
        (
            "select max(initials(name)) as m, sum(fee(id)) as s from crm.customers",
            "SELF_MAINTAINED",
        ),
        ("select distinct initials(name) as i from crm.customers", "AFFECTED_KEYS"),
    ],
)
def test_declared_functions_are_incremental(sql: str, strategy: str) -> None:
    plan = planned(sql)
    assert plan.strategy == strategy
    assert plan.refused is None
    assert "FULL" not in {one.strategy for one in plan.nodes}


def test_a_sum_of_floats_is_not_added_up() -> None:
    assert planned("select sum(fee(total)) as s from shop.orders").maintained is not None
    assert planned("select sum(rate(total)) as s from shop.orders").maintained is None


def test_parts_know_the_functions_of_their_view() -> None:
    most = "(select max(fee(total)) from shop.orders)"
    sql = f"select id from shop.orders where fee(total) > {most}"
    plan = planned(sql)
    assert plan.parts
    assert all(part.definition.called == (FEE,) for part in plan.parts)


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("select initals(name) as i from crm.customers", "did you mean 'initials'? Or declare it"),
        ("select lowr(name) as i from crm.customers", "did you mean 'lower'? Or declare it"),
        ("select zzqqyyxx(name) as i from crm.customers", "next:    declare it"),
    ],
)
def test_an_undeclared_function_is_refused_with_the_fix(sql: str, said: str) -> None:
    with pytest.raises(UserError) as found:
        planned(sql)
    message = str(found.value)
    name = sql.split("(", maxsplit=1)[0].split()[-1]
    assert f"{name}() is neither built in nor declared" in message
    assert "(UNKNOWN_FUNCTION)" in message
    assert "where:   v.sql:1:8" in message
    assert said in message
    assert "functions:    # in the configuration\n" in message
    assert f'             {name}:\n               python: "my_module:{name}"' in message
    assert "deterministic: true" in message


def test_where_no_trace_is_possible_an_undeclared_function_is_refused_too() -> None:
    sql = "select id from crm.customers where mystery(name) order by id limit 3"
    with pytest.raises(UserError, match="mystery"):
        planned(sql)


def test_table_functions_are_no_tables() -> None:
    with pytest.raises(UserError, match="NOT_A_TABLE"):
        compile_view(declared("select c.id from crm.customers c, range(3) r"), keyed(SCHEMAS))


@pytest.mark.parametrize("name", ["lower", "sum", "explode", "select", "date_trunc", "safe_divide"])
def test_a_name_that_means_something_is_not_free(name: str) -> None:
    assert not is_free(name)


def test_a_free_name() -> None:
    assert is_free("initials")


def test_another_declaration_is_another_view_where_it_is_called() -> None:
    sql = "select id, initials(name) as i from crm.customers"
    other = replace(INITIALS, python="other_module:initials")
    digests = {
        digest_of(declared(sql, *functions))
        for functions in [
            (INITIALS,),
            (INITIALS, FEE),
            (other,),
            (replace(INITIALS, kind="pandas"),),
        ]
    }
    assert len(digests) == 3
    plain = "select id, lower(name) as i from crm.customers"
    assert digest_of(declared(plain, INITIALS)) == digest_of(declared(plain))
