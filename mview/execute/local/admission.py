"""Which queries may run in process: the query as DuckDB text, or the reason why not.

Nothing is passed through: each clause, operator and type is named here or in the admitted list
(functions.py) and written anew for DuckDB, with Spark's type at every step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
from sqlglot import exp
from sqlglot.errors import OptimizeError
from sqlglot.optimizer.qualify import qualify

from mview.execute.local.admitted.casts import cast
from mview.execute.local.admitted.spark_types import (
    BOOLEAN,
    INT,
    NULL,
    Typed,
    common_type,
    duckdb_type,
    is_list,
    name_of,
)
from mview.execute.local.expressions import (
    Expressions,
    check_keys,
    only,
    ordered,
    quoted,
)
from mview.execute.local.parsing.inlining import write_out
from mview.execute.local.parsing.naming import (
    check_names,
    join_merged,
    mark_using,
    merges,
    name_columns,
    name_tables,
)
from mview.execute.refusal import NotAdmittedError, Reason
from mview.plan.functions.effects import conjuncts
from mview.plan.text.dialect import drop_hints
from mview.schema import TableSchema, type_name

#: Column types by name, of a table or of the result of a query.
Columns = dict[str, pa.DataType]


@dataclass(frozen=True)
class Translation:
    """A query in DuckDB's SQL.

    Attributes:
        sql: the text; tables stand in it by their names in lower case.
        columns: names (in lower case) and Spark types of the result.
    """

    sql: str
    columns: tuple[tuple[str, pa.DataType], ...]


def admit(parsed: exp.Expr, schemas: Mapping[str, TableSchema]) -> Reason | None:
    """Whether a query may run in process.

    Args:
        parsed: the query as sqlglot parses it with the dialect `spark`.
        schemas: the tables it may read, by `<connection>.<table>` (or view name).

    Returns:
        None when everything in it is admitted; else the first thing that is not.
    """
    tables = {
        name: {column.name: column.type for column in schema.columns}
        for name, schema in schemas.items()
    }
    try:
        translate(parsed, tables)
    except NotAdmittedError as error:
        return error.reason
    return None


def translate(parsed: exp.Expr, tables: Mapping[str, Mapping[str, pa.DataType]]) -> Translation:
    """The query for DuckDB.

    Args:
        parsed: the query as sqlglot parses it with the dialect `spark`; not changed.
        tables: column types of the tables it may read.

    Raises:
        NotAdmittedError: something in it may not run in process.
    """
    known = {
        name.lower(): {column.lower(): kind for column, kind in columns.items()}
        for name, columns in tables.items()
    }
    tree = parsed.copy()
    drop_hints(tree)
    write_out(tree)
    columns = {name: frozenset(kinds) for name, kinds in known.items()}
    name_tables(tree, known)
    name_columns(tree, columns)
    check_names(tree, columns)
    mark_using(tree)
    try:
        tree = qualify(tree, dialect="spark", schema=_names(known), sql=None)
    except OptimizeError as error:
        raise NotAdmittedError("name", str(error).splitlines()[0]) from None
    join_merged(tree)
    text, result = _Queries(known).query(tree, _Scope({}, {}, None))
    return Translation(text, tuple(result.items()))


def _names(known: Mapping[str, Columns]) -> dict[str, object]:
    # The optimizer only needs names; types are ours.
    return {name: dict.fromkeys(columns, "string") for name, columns in known.items()}


@dataclass(frozen=True)
class _Scope:
    """What names mean: columns by table alias, results of WITH, and the query around."""

    sources: Mapping[str, Columns]
    ctes: Mapping[str, Columns]
    outer: _Scope | None

    def column(self, table: str, name: str) -> pa.DataType | None:
        """The type of a column, here or in a query around."""
        scope: _Scope | None = self
        while scope is not None:
            if table in scope.sources:
                return scope.sources[table].get(name)
            scope = scope.outer
        return None


class _Queries:
    """Translates queries over known tables."""

    def __init__(self, tables: Mapping[str, Columns]) -> None:
        self._tables = tables

    def query(self, node: exp.Expr, scope: _Scope) -> tuple[str, Columns]:
        """The text and the columns of a SELECT or a set operation."""
        if isinstance(node, exp.Subquery | exp.Paren):
            only(node, "this", "alias")
            return self.query(node.this, scope)
        prefix, scope = self._with(node, scope)
        if isinstance(node, exp.Select):
            text, columns = self._select(node, scope)
        elif isinstance(node, exp.SetOperation):
            text, columns = self._set_operation(node, scope)
        else:
            raise NotAdmittedError("clause", type(node).__name__)
        return prefix + text, columns

    def _with(self, node: exp.Expr, scope: _Scope) -> tuple[str, _Scope]:
        clause = node.args.get("with_")
        if clause is None:
            return "", scope
        only(clause, "expressions")
        texts = []
        for cte in clause.expressions:
            only(cte, "this", "alias")
            only(cte.args["alias"], "this")
            text, columns = self.query(cte.this, scope)
            texts.append(f"{quoted(cte.alias)} AS ({text})")
            scope = replace(scope, ctes={**scope.ctes, cte.alias: columns})
        return f"WITH {', '.join(texts)} ", scope

    def _set_operation(self, node: exp.SetOperation, scope: _Scope) -> tuple[str, Columns]:
        only(node, "this", "expression", "distinct", "with_", "order", "limit", "offset")
        left, columns = self.query(node.this, scope)
        right, others = self.query(node.expression, scope)
        sides, columns = (columns, others), _widened(columns, others)
        kinds = list(columns.values())
        left, right = (
            _as_kinds(text, side, kinds) for text, side in zip((left, right), sides, strict=True)
        )
        distinct = bool(node.args.get("distinct"))
        if distinct or not isinstance(node, exp.Union):
            check_keys([Typed("", kind) for kind in kinds])
        word = f"{node.key.upper()}{'' if distinct else ' ALL'}"
        text = f"({left}) {word} ({right})"
        tail = self._tail(node, replace(scope, sources={"": columns}, outer=scope))
        return (f"SELECT * FROM ({text}) AS s{tail}" if tail else text), columns

    def _select(self, node: exp.Select, outer: _Scope) -> tuple[str, Columns]:
        only(
            node,
            *("expressions", "from_", "joins", "laterals", "where", "group", "having", "qualify"),
            *("order", "limit", "offset", "distinct", "with_"),
        )
        from_text, sources = self._from(node, outer)
        scope = _Scope(sources, outer.ctes, outer)
        expressions = self._expressions(scope)
        grouped, having = self._grouped(node, expressions)
        items = [(item.alias_or_name, _item(node, item, expressions)) for item in node.expressions]
        columns = {name: value.type for name, value in items}
        if len(columns) != len(items):
            raise NotAdmittedError("name", "two result columns of one name")
        parts = ["SELECT"]
        if distinct := node.args.get("distinct"):
            only(distinct)
            check_keys([value for _, value in items])
            parts.append("DISTINCT")
        parts.append(", ".join(f"{value.sql} AS {quoted(name)}" for name, value in items))
        parts.append(from_text)
        parts += self._conditions(node, expressions, grouped, having)
        visible = _Scope({**sources, "": columns}, outer.ctes, outer)
        return " ".join(parts) + self._tail(node, visible), columns

    def _grouped(self, node: exp.Select, expressions: Expressions) -> tuple[str, list[str]]:
        """GROUP BY, with ROLLUP or CUBE over all keys; `expressions` learns of these.

        Beside it conditions for HAVING.
        """
        group = node.args.get("group")
        if group is None:
            return "", []
        only(group, "expressions", "rollup", "cube")
        keys, word = list(group.expressions), ""
        if len(keys) == 1 and isinstance(keys[0], exp.Rollup | exp.Cube):
            keys, word = keys[0].expressions, keys[0].key
        for name in ("rollup", "cube"):
            if given := group.args.get(name):  # WITH ROLLUP
                word = name
                if len(given) > 1 or given[0].expressions:
                    raise NotAdmittedError("clause", "GROUP BY of several sets")
        if any(isinstance(key, exp.Tuple | exp.Rollup | exp.Cube) for key in keys):
            raise NotAdmittedError("clause", "GROUP BY of several sets")
        expressions.keys = [expressions.translate(key) for key in keys]
        check_keys(expressions.keys)
        text = ", ".join(key.sql for key in expressions.keys)
        if not word:
            return f"GROUP BY {text}", []
        if len({key.sql for key in expressions.keys}) < len(expressions.keys):
            raise NotAdmittedError("clause", f"{word.upper()} with one key twice")
        # Of no rows DuckDB makes a total, and Spark none.
        return f"GROUP BY {word.upper()} ({text})", ["count(*) > 0"]

    def _conditions(
        self, node: exp.Select, expressions: Expressions, grouped: str, having: list[str]
    ) -> list[str]:
        parts = []
        if where := node.args.get("where"):
            parts.append(f"WHERE {_condition(expressions, where.this)}")
        if grouped:
            parts.append(grouped)
        if clause := node.args.get("having"):
            having = [*having, _condition(expressions, clause.this)]
        if having:
            parts.append(f"HAVING {' AND '.join(having)}")
        if clause := node.args.get("qualify"):
            parts.append(f"QUALIFY {_condition(expressions, clause.this)}")
        return parts

    def _tail(self, node: exp.Expr, scope: _Scope) -> str:
        """ORDER BY, LIMIT and OFFSET."""
        text = ""
        expressions = self._expressions(scope)
        if order := node.args.get("order"):
            only(order, "expressions")
            items = [ordered(i, expressions.translate(i.this)) for i in order.expressions]
            text += " ORDER BY " + ", ".join(items)
        for name in ("limit", "offset"):
            if clause := node.args.get(name):
                only(clause, "expression")
                if not (isinstance(clause.expression, exp.Literal) and clause.expression.is_int):
                    raise NotAdmittedError("clause", f"{name.upper()} that is not a number")
                text += f" {name.upper()} {clause.expression.this}"
        return text

    def _expressions(self, scope: _Scope) -> Expressions:
        def subquery(node: exp.Expr) -> tuple[str, list[pa.DataType]]:
            # As a value per row of the query, aggregates of one SELECT alone: of others, engines
            # differ where there are several rows, or none.
            alone = isinstance(node, exp.Subquery) and not _is_one_row(node.this)
            inside = _Scope({}, scope.ctes, None) if alone else scope
            text, columns = self.query(node, inside)
            return text, list(columns.values())

        return Expressions(scope.column, subquery)

    def _from(self, node: exp.Select, scope: _Scope) -> tuple[str, dict[str, Columns]]:
        clause = node.args.get("from_")
        if clause is None:
            return "", {}
        text, alias, columns = self._source(clause.this, scope)
        sources = {alias: columns}
        text = f"FROM {text}"
        for join in node.args.get("joins") or ():
            only(join, "this", "side", "kind", "on")
            right, alias, columns = self._source(join.this, scope)
            sources[alias] = columns
            text += f" {_join_word(join)} {right}"
            if on := join.args.get("on"):
                inside = self._expressions(_Scope(sources, scope.ctes, scope))
                if merges(join):
                    _check_merged(on, inside)
                text += f" ON {_condition(inside, on)}"
            if join.kind in ("SEMI", "ANTI"):
                del sources[alias]
        for lateral in node.args.get("laterals") or ():
            if any(join.side not in ("", "LEFT") for join in node.args.get("joins") or ()):
                # They may stand before it, which is told by no tree.
                raise NotAdmittedError("clause", "LATERAL VIEW beside an outer join")
            made, alias, columns = self._lateral(lateral, _Scope(sources, scope.ctes, scope))
            sources[alias] = columns
            text += made
        return text, sources

    def _lateral(self, node: exp.Lateral, scope: _Scope) -> tuple[str, str, Columns]:
        """LATERAL VIEW [OUTER] explode(xs) alias AS name; posexplode: AS place, name."""
        only(node, "this", "view", "outer", "alias")
        alias = node.args.get("alias")
        names: list[exp.Identifier] = alias.args.get("columns") or [] if alias else []
        call, values = node.this, _exploded(node.this, self._expressions(scope))
        made = [_each(values)]
        if type(call) is exp.Posexplode:
            place = f"generate_subscripts({values.sql}, 1) - 1"
            made.insert(0, Typed(f"CAST({place} AS INTEGER)", INT))
        if not node.args.get("view") or len(names) != len(made) or not node.alias:
            raise NotAdmittedError("clause", "LATERAL but of a view with a name and its columns")
        columns = {name.name: part for name, part in zip(names, made, strict=True)}
        items = ", ".join(f"{part.sql} AS {quoted(name)}" for name, part in columns.items())
        text = f"LATERAL (SELECT {items}) AS {quoted(node.alias)}"
        text = f" LEFT JOIN {text} ON TRUE" if node.args.get("outer") else f" CROSS JOIN {text}"
        return text, node.alias, {name: part.type for name, part in columns.items()}

    def _source(self, node: exp.Expr, scope: _Scope) -> tuple[str, str, Columns]:
        alias = node.alias_or_name
        if node.args.get("alias") is not None:
            only(node.args["alias"], "this")
        if isinstance(node, exp.Subquery):
            text, columns = self.query(node, replace(scope, sources={}))
            return f"({text}) AS {quoted(alias)}", alias, columns
        if not isinstance(node, exp.Table):
            raise NotAdmittedError("clause", type(node).__name__)
        name = node.name
        columns = scope.ctes[name] if name in scope.ctes else self._tables[name]
        return f"{quoted(name)} AS {quoted(alias)}", alias, columns


def _is_one_row(query: exp.Expr) -> bool:
    """Whether a query is an aggregate over rows that its WHERE picks, which alone looks outside."""
    given = {name for name, value in query.args.items() if value}
    if not isinstance(query, exp.Select) or given - {"expressions", "from_", "joins", "where"}:
        return False
    from_, joins = query.args.get("from_"), query.args.get("joins") or []
    tables = [part.this for part in (from_, *joins) if part is not None]
    parts = [*query.expressions, *joins]
    where = query.args.get("where")
    if any(part.find(exp.Query) for part in (*tables, *parts, where) if part is not None):
        return False
    inside = {table.alias_or_name for table in tables}
    columns = (column for part in parts for column in part.find_all(exp.Column))
    values = query.expressions
    return all(item.find(exp.AggFunc) and not item.find(exp.Window) for item in values) and all(
        column.table in inside for column in columns
    )


def _widened(left: Columns, right: Columns) -> Columns:
    """The columns of a set operation: of types that hold those of both sides."""
    if len(left) != len(right):
        raise NotAdmittedError("type", "set operation over other numbers of columns")
    made = {}
    for (name, kind), other in zip(left.items(), right.values(), strict=True):
        common = kind if kind == other else common_type([Typed("", kind), Typed("", other)])
        if common is None:
            raise NotAdmittedError("type", "set operation over different types")
        made[name] = common
    return made


def _as_kinds(text: str, columns: Columns, kinds: list[pa.DataType]) -> str:
    """A side of a set operation, with the types that it has there."""
    if list(columns.values()) == kinds:
        return text
    items = []
    for (name, kind), wanted in zip(columns.items(), kinds, strict=True):
        # A column of NULL alone has another type in DuckDB.
        value = Typed("NULL" if kind == NULL else quoted(name), kind)
        items.append(f"{cast(value, wanted)} AS {quoted(name)}")
    return f"SELECT {', '.join(items)} FROM ({text}) AS s"


def _item(select: exp.Select, item: exp.Expr, expressions: Expressions) -> Typed:
    """One of the select list; `explode` may stand there where nothing is grouped."""
    call = item.unalias()
    if not isinstance(call, exp.Explode):
        return expressions.translate(item)
    grouped = any(select.args.get(clause) for clause in ("group", "having", "qualify"))
    if grouped or any(part.find(exp.AggFunc, exp.Window) for part in select.expressions):
        raise NotAdmittedError("operator", "explode beside what is grouped")
    if sum(isinstance(part.unalias(), exp.Explode) for part in select.expressions) > 1:
        raise NotAdmittedError("operator", "explode twice")
    if type(call) is not exp.Explode:
        raise NotAdmittedError("operator", f"{call.key} but in LATERAL VIEW")
    return _each(_exploded(call, expressions))


def _exploded(node: exp.Expr, expressions: Expressions) -> Typed:
    """The list of `explode(xs)` or `posexplode(xs)`."""
    if type(node) not in (exp.Explode, exp.Posexplode):
        raise NotAdmittedError("operator", node.key)
    only(node, "this")
    values = expressions.translate(node.this)
    if not is_list(values.type):
        raise NotAdmittedError("type", f"{node.key}({name_of(values.type)})")
    return values


def _each(values: Typed) -> Typed:
    """A row for each element, none for a list without elements or for NULL."""
    return Typed(f"unnest({values.sql})", values.type.value_type)


def _condition(expressions: Expressions, node: exp.Expr) -> str:
    value = expressions.translate(node)
    if value.type != BOOLEAN:
        raise NotAdmittedError("type", f"a {name_of(value.type)} as a condition")
    return value.sql


def _check_merged(on: exp.Expr, expressions: Expressions) -> None:
    """Refuse USING over columns of two types: the merged column has the left one's in Spark."""
    for pair in conjuncts(on):
        assert isinstance(pair, exp.EQ)
        if expressions.translate(pair.left).type != expressions.translate(pair.right).type:
            raise NotAdmittedError("clause", f"USING ({pair.right.name}) over different columns")


def _join_word(join: exp.Join) -> str:
    side, kind = join.side, join.kind
    if kind in ("SEMI", "ANTI") and side in ("", "LEFT"):
        return f"{kind} JOIN"
    if kind == "CROSS" or (not side and not join.args.get("on")):
        return "CROSS JOIN"
    if kind in ("", "INNER", "OUTER") and side in ("", "LEFT", "RIGHT", "FULL"):
        return f"{side or 'INNER'} JOIN"
    raise NotAdmittedError("clause", f"{side} {kind} JOIN")


def check_result(translation: Translation, schema: pa.Schema) -> None:
    """Check the types we found against what Spark's analysis of the same text says.

    Raises:
        NotAdmittedError: they differ.
    """
    kinds = [kind for _, kind in translation.columns]
    if len(kinds) != len(schema):
        raise NotAdmittedError("type", f"{len(kinds)} columns where Spark has {len(schema)}")
    for (name, kind), wanted in zip(translation.columns, schema, strict=True):
        if kind != wanted.type or duckdb_type(kind) is None:
            detail = f"column {name} as {name_of(kind)}, Spark has {type_name(wanted.type)}"
            raise NotAdmittedError("type", detail)
