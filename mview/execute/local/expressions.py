"""Expressions of a Spark query as DuckDB text, with Spark's types; only what is admitted."""

from __future__ import annotations

from collections.abc import Callable, Container

import pyarrow as pa
from sqlglot import exp

from mview.errors import UserError
from mview.execute.local.admitted.casts import cast, try_cast
from mview.execute.local.admitted.entries import Admitted, raised_by_casts
from mview.execute.local.admitted.functions import ADMITTED
from mview.execute.local.admitted.json_paths import is_plain_key, json_scalar
from mview.execute.local.admitted.lists import series
from mview.execute.local.admitted.literals import (
    as_date,
    fixed_interval,
    fold_dates,
    number_literal,
    text_literal,
)
from mview.execute.local.admitted.signatures import (
    DATES,
    ORDERED,
    castable,
    chosen,
    compared,
    listed,
)
from mview.execute.local.admitted.spark_types import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    INTEGERS,
    NULL,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    TINYINT,
    Typed,
    common_type,
    duckdb_type,
    is_decimal,
    is_float,
    is_list,
    name_of,
)
from mview.execute.local.admitted.times import MICROSECONDS
from mview.execute.local.admitted.zones import from_zone, is_known, to_zone
from mview.execute.refusal import NotAdmittedError
from mview.plan.operators.orderings import order_in
from mview.schema import parse_type

_RULES: dict[type[exp.Expr], list[Admitted]] = {}
for _entry in ADMITTED:
    _RULES.setdefault(_entry.node, []).append(_entry)
_RANKINGS: dict[type[exp.Expr], tuple[str, pa.DataType]] = {
    exp.RowNumber: ("row_number()", INT),
    exp.Rank: ("rank()", INT),
    exp.DenseRank: ("dense_rank()", INT),
    exp.PercentRank: ("percent_rank()", DOUBLE),
    exp.CumeDist: ("cume_dist()", DOUBLE),
}
#: A value of the first or the last row of the frame.
_ENDS: dict[type[exp.Expr], str] = {
    exp.FirstValue: "first_value",
    exp.First: "first_value",
    exp.AnyValue: "first_value",
    exp.LastValue: "last_value",
    exp.Last: "last_value",
    exp.NthValue: "nth_value",
}
#: Digits of a number of days that leaves the range of dates.
_LONG_OFFSET = 7
_SHIFTS: dict[type[exp.Expr], str] = {exp.Lag: "lag", exp.Lead: "lead"}

#: The type of a column by table alias ("" = an output column of the same SELECT) and name.
Resolve = Callable[[str, str], pa.DataType | None]
#: The DuckDB text and column types of a subquery.
Subquery = Callable[[exp.Expr], tuple[str, list[pa.DataType]]]


def quoted(name: str) -> str:
    """An identifier in DuckDB."""
    return '"' + name.replace('"', '""') + '"'


def ordered(node: exp.Ordered, value: Typed) -> str:
    """One item of ORDER BY; where NULLs go is always said, as defaults differ."""
    if value.type not in ORDERED and not is_decimal(value.type):
        raise NotAdmittedError("type", f"ORDER BY a {name_of(value.type)}")
    if node.args.get("with_fill"):
        raise NotAdmittedError("clause", "WITH FILL")
    direction = "DESC" if node.args.get("desc") else "ASC"
    nulls = "FIRST" if node.args.get("nulls_first") else "LAST"
    return f"{value.sql} {direction} NULLS {nulls}"


def _of_unknown(node: exp.In) -> str:
    """What `IN (SELECT …)` is where it is not known; empty: no matter, it is a condition.

    Raises:
        NotAdmittedError: what Spark makes of it depends on how it simplifies what is around.
    """
    inner: exp.Expr = node
    while isinstance(inner.parent, exp.Paren):
        inner = inner.parent
    unknown = "FALSE"
    if isinstance(inner.parent, exp.Not):
        inner, unknown = inner.parent, "TRUE"
    while isinstance(inner.parent, exp.And | exp.Or | exp.Paren | exp.Alias):
        inner = inner.parent
    place = inner.parent
    if isinstance(place, exp.Where | exp.Having | exp.Qualify | exp.Join):
        return ""
    if isinstance(place, exp.Select) or (isinstance(place, exp.If) and inner is place.this):
        return unknown
    raise NotAdmittedError("operator", "IN (SELECT …) within an expression")


class Expressions:
    """Translates the expressions of one SELECT.

    Args:
        resolve: gives the type of a column.
        subquery: translates a query in an expression.
    """

    def __init__(self, resolve: Resolve, subquery: Subquery) -> None:
        self._resolve, self._subquery = resolve, subquery
        #: The keys of GROUP BY, for `grouping_id()`.
        self.keys: list[Typed] = []
        self._special: dict[type[exp.Expr], Callable[..., Typed]] = {
            exp.Alias: lambda node: self.translate(node.this),
            exp.Paren: lambda node: self.translate(node.this),
            exp.Column: self._column,
            exp.Literal: self._literal,
            exp.Neg: self._negative,
            exp.Boolean: lambda node: Typed("TRUE" if node.this else "FALSE", BOOLEAN),
            exp.Null: lambda node: Typed("NULL", NULL),
            exp.Cast: self._cast,
            exp.TryCast: self._cast,
            exp.Is: self._is,
            exp.Case: self._case,
            exp.DecodeCase: self._decode,
            exp.Nullif: self._nullif,
            exp.Exists: self._exists,
            exp.Subquery: self._scalar,
            exp.In: self._in,
            exp.Like: self._like,
            exp.ILike: self._like,
            exp.RegexpLike: self._like,
            exp.ArraySort: self._sorted,
            exp.Bracket: self._element,
            exp.JSONExtractScalar: self._json,
            exp.GroupConcat: self._call,
            exp.WithinGroup: self._call,
            exp.Dot: self._field,
            exp.GenerateSeries: self._series,
            exp.AtTimeZone: self._zoned,
            exp.FromTimeZone: self._zoned,
            exp.ConvertTimezone: self._between_zones,
            **dict.fromkeys((exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE), self._compared),
            exp.ArgMax: self._call,
            exp.ArgMin: self._call,
            exp.Grouping: self._grouping,
            exp.GroupingId: self._grouping_id,
            exp.Concat: self._concat,
            exp.TsOrDsAdd: self._add_days,
            exp.TimestampAdd: self._add_units,
            exp.Add: self._add,
            exp.Sub: self._add,
            exp.Filter: self._call,
            exp.Window: self._window,
        }

    def translate(self, node: exp.Expr) -> Typed:
        """The DuckDB text of an expression and its type in Spark.

        Raises:
            NotAdmittedError: something in it may not run in process.
        """
        special = self._special.get(type(node))
        if special is not None:
            return special(node)
        rule = _rule_of(node)
        if rule is None:
            raise NotAdmittedError("operator", _named(node))
        return self._call(node) if rule.aggregate else self._rule(rule, node)

    def _column(self, node: exp.Column) -> Typed:
        if node.args.get("db") or node.args.get("catalog"):
            raise NotAdmittedError("name", f"column {node.sql()} with a database name")
        kind = self._resolve(node.table, node.name)
        if kind is None:
            raise NotAdmittedError("name", f"column {node.sql()}")
        if duckdb_type(kind) is None:
            raise NotAdmittedError("type", f"column {node.sql()} of type {name_of(kind)}")
        prefix = f"{quoted(node.table)}." if node.table else ""
        return Typed(prefix + quoted(node.name), kind)

    def _literal(self, node: exp.Literal) -> Typed:
        return text_literal(node.this) if node.is_string else number_literal(node.this)

    def _negative(self, node: exp.Neg) -> Typed:
        if isinstance(node.this, exp.Literal) and not node.this.is_string:
            return number_literal(f"-{node.this.this}")
        return self._rule(_RULES[exp.Neg][0], node)

    def _cast(self, node: exp.Cast) -> Typed:
        if node.args.get("format") or node.args.get("action"):
            raise NotAdmittedError("operator", "CAST with a format")
        value = self.translate(node.this)
        try:
            kind = parse_type(node.to.sql(dialect="spark"))
        except (UserError, ValueError):
            raise NotAdmittedError("type", f"CAST to {node.to.sql(dialect='spark')}") from None
        safe = bool(node.args.get("safe"))
        if value.type == STRING and value.literal is not None and kind not in (STRING, *DATES):
            value = Typed(value.sql, STRING)
        if value.type == STRING and value.literal is not None and kind != STRING and not safe:
            return as_date(value, kind)
        if duckdb_type(kind) is None or not castable(value.type, kind):
            word = "TRY_CAST" if safe else "CAST"
            raise NotAdmittedError("type", f"{word} {name_of(value.type)} to {name_of(kind)}")
        return Typed((try_cast if safe else cast)(value, kind), kind)

    def _is(self, node: exp.Is) -> Typed:
        value = self.translate(node.this)
        if isinstance(node.expression, exp.Null):
            return Typed(f"({value.sql} IS NULL)", BOOLEAN)
        if isinstance(node.expression, exp.Boolean) and value.type == BOOLEAN:
            word = "TRUE" if node.expression.this else "FALSE"
            return Typed(f"({value.sql} IS {word})", BOOLEAN)
        raise NotAdmittedError("operator", node.sql(dialect="spark"))

    def _case(self, node: exp.Case) -> Typed:
        subject = self.translate(node.this) if node.this else None
        values: list[Typed] = []
        for branch in node.args["ifs"]:
            condition = self.translate(branch.this)
            if subject is not None:
                condition = apply(_RULES[exp.EQ][0], [subject, condition])
            values += [condition, self.translate(branch.args["true"])]
        default = node.args.get("default")
        values.append(self.translate(default) if default else Typed("NULL", NULL))
        signature = chosen(values)
        if signature is None:
            raise _type_error("CASE", values)
        texts = [cast(v, kind) for v, kind in zip(values, signature.operands, strict=True)]
        pairs = zip(texts[0:-1:2], texts[1:-1:2], strict=True)
        whens = " ".join(f"WHEN {condition} THEN {value}" for condition, value in pairs)
        return Typed(f"(CASE {whens} ELSE {texts[-1]} END)", signature.result)

    def _decode(self, node: exp.DecodeCase) -> Typed:
        """`decode(x, 1, 'a', 2, 'b', 'other')`, which compares as `<=>` does."""
        value, *rest = node.expressions
        cases = [
            exp.If(this=exp.NullSafeEQ(this=value, expression=search), true=result)
            for search, result in zip(rest[0:-1:2], rest[1::2], strict=False)
        ]
        return self._case(exp.Case(ifs=cases, default=rest[-1] if len(rest) % 2 else None))

    def _nullif(self, node: exp.Nullif) -> Typed:
        left, right = self.translate(node.this), self.translate(node.expression)
        equal = apply(_RULES[exp.EQ][0], [left, right])
        return Typed(f"(CASE WHEN {equal.sql} THEN NULL ELSE {left.sql} END)", left.type)

    def _exists(self, node: exp.Exists) -> Typed:
        text, _ = self._subquery(node.this)
        return Typed(f"EXISTS ({text})", BOOLEAN)

    def _scalar(self, node: exp.Subquery) -> Typed:
        # More than one row is an error in both engines.
        text, kinds = self._subquery(node)
        if len(kinds) != 1:
            raise NotAdmittedError("operator", f"a subquery of {len(kinds)} columns as a value")
        return Typed(f"({text})", kinds[0])

    def _in(self, node: exp.In) -> Typed:
        query = node.args.get("query")
        if query is None and isinstance(node.this, exp.Tuple):
            return self._row_in(node)
        if query is None:
            return self._rule(_RULES[exp.In][0], node)
        text, kinds = self._subquery(query.this if isinstance(query, exp.Subquery) else query)
        if isinstance(node.this, exp.Tuple):
            return self._row_in_query(node, text, kinds)
        value = self.translate(node.this)
        kind = common_type([Typed("", kind) for kind in (value.type, *kinds)])
        if len(kinds) != 1 or NULL in (value.type, *kinds) or kind is None or is_list(kind):
            raise NotAdmittedError("type", "IN (SELECT …) over different types")
        if kinds != [kind]:
            text = f"SELECT {cast(Typed('v', kinds[0]), kind)} FROM ({text}) AS s(v)"
        made = f"({cast(value, kind)} IN ({text}))"
        # Spark has false where SQL has NULL, which only a value shows.
        unknown = _of_unknown(node)
        return Typed(f"coalesce({made}, {unknown})" if unknown else made, BOOLEAN)

    def _row_in(self, node: exp.In) -> Typed:
        """`(a, b) IN ((1, 'x'), …)`: rows are equal where all of their values are, NULLs too."""
        only(node, "this", "expressions")
        tests = []
        for row in node.expressions:
            same = zip(node.this.expressions, row.expressions, strict=False)
            if not isinstance(row, exp.Tuple) or len(row.expressions) != len(node.this.expressions):
                raise NotAdmittedError("operator", node.sql(dialect="spark"))
            equal = (exp.NullSafeEQ(this=left, expression=right) for left, right in same)
            tests.append(" AND ".join(self.translate(test).sql for test in equal))
        return Typed(f"({' OR '.join(tests)})", BOOLEAN)

    def _row_in_query(self, node: exp.In, text: str, kinds: list[pa.DataType]) -> Typed:
        """`(a, b) IN (SELECT …)` as a condition, which holds where both are equal."""
        place: exp.Expr | None = node.parent
        while isinstance(place, exp.Paren):
            place = place.parent
        left = [self.translate(part) for part in node.this.expressions]
        if isinstance(place, exp.Not) or _of_unknown(node) or len(left) != len(kinds):
            raise NotAdmittedError("operator", "(a, b) IN (SELECT …) but as a condition")
        names, alias = [f"c{number}" for number in range(len(kinds))], quoted("rows")
        while any(alias in value.sql for value in left):  # the query around may call a table so
            alias = quoted(alias)
        right = [Typed(f"{alias}.{n}", k) for n, k in zip(names, kinds, strict=True)]
        pairs = zip(left, right, strict=True)
        equal = " AND ".join(apply(_RULES[exp.EQ][0], [*pair]).sql for pair in pairs)
        rows = f"({text}) AS {alias}({', '.join(names)})"
        return Typed(f"EXISTS (SELECT 1 FROM {rows} WHERE {equal})", BOOLEAN)

    def _like(self, node: exp.Like | exp.ILike | exp.RegexpLike) -> Typed:
        only(node, "this", "expression", negate=(True,))
        if isinstance(node.expression, exp.Any | exp.All) and not isinstance(node, exp.RegexpLike):
            return self._like_some(node, node.expression)
        plain = type(node)(this=node.this, expression=node.expression)
        value = self._rule(_RULES[type(node)][0], plain)
        return Typed(f"(NOT {value.sql})", BOOLEAN) if node.args.get("negate") else value

    def _like_some(self, node: exp.Like | exp.ILike, patterns: exp.Any | exp.All) -> Typed:
        """LIKE ANY and LIKE ALL of patterns in parentheses."""
        items = patterns.this.unnest()
        listed = items.expressions if isinstance(items, exp.Tuple) else [items]
        negate = node.args.get("negate")
        each = (type(node)(this=node.this, expression=p, negate=negate) for p in listed)
        word = " OR " if isinstance(patterns, exp.Any) else " AND "
        return Typed(f"({word.join(self._like(like).sql for like in each)})", BOOLEAN)

    def _grouping_id(self, node: exp.GroupingId) -> Typed:
        only(node)
        if not self.keys:
            raise NotAdmittedError("clause", "grouping_id() without keys")
        return Typed(f"grouping({', '.join(key.sql for key in self.keys)})", BIGINT)

    def _grouping(self, node: exp.Grouping) -> Typed:
        only(node, "expressions")
        (key,) = (self.translate(part) for part in node.expressions)
        if key.sql not in {known.sql for known in self.keys}:
            raise NotAdmittedError("clause", "grouping() of what is no key")
        return Typed(f"CAST(grouping({key.sql}) AS TINYINT)", TINYINT)

    def _sorted(self, node: exp.ArraySort) -> Typed:
        """A sorted list; what an aggregate collects is sorted already, as `sort_array` does."""
        rule, call = _rule_of(node), node.this
        if rule is None:
            raise NotAdmittedError("operator", f"{_named(node)} in another order")
        while isinstance(call, exp.Filter | exp.Window):
            call = call.this
        collected = isinstance(call, exp.ArrayAgg | exp.ArrayUniqueAgg)
        if collected and rule.name in ("sort_array", "sort_array_up"):
            return self.translate(node.this)
        return self._rule(rule, node)

    def _element(self, node: exp.Bracket) -> Typed:
        """One of a list, counted from 0, or as `element_at` does: from 1, or from its end.

        A number beyond the list raises; `try_element_at` gives NULL.
        """
        only(node, "this", "expressions", "offset", safe=(True, False))
        values, (part,) = self.translate(node.this), node.expressions
        number, from_one = self.translate(part), bool(node.args.get("offset"))
        if not is_list(values.type) or number.type != INT:
            raise _type_error(_named(node), [values, number])
        kind, size = values.type.value_type, f"len({values.sql})"
        place = number.sql if from_one else f"(CAST({number.sql} AS BIGINT) + 1)"
        here = f"{place} BETWEEN 1 AND {size}"
        if from_one:
            here += f" OR {place} BETWEEN -{size} AND -1"
        text = f"CASE WHEN {here} THEN {values.sql}[{place}] WHEN {values.sql} IS NOT NULL"
        if node.args.get("safe"):
            text += f" AND {place} = 0"
        missing = f"CAST(error('the list has no such element') AS {duckdb_type(kind)})"
        return Typed(f"({text} AND {place} IS NOT NULL THEN {missing} END)", kind)

    def _json(self, node: exp.JSONExtractScalar) -> Typed:
        """`get_json_object` of keys below one another."""
        only(node, "this", "expression")
        value, path = self.translate(node.this), node.expression
        keys = [getattr(part, "this", None) for part in getattr(path, "expressions", [])[1:]]
        if value.type != STRING or not keys or not all(map(is_plain_key, keys)):
            raise _type_error("get_json_object", [value])
        return Typed(json_scalar(value.sql, [str(key) for key in keys]), STRING)

    def _concat(self, node: exp.Concat) -> Typed:
        # Adjacent literals also come as this node, and 'it''s' as two of them, with a quote lost.
        if not node.args.get("safe"):
            raise NotAdmittedError("operator", "adjacent string literals")
        return self._rule(_RULES[exp.Concat][0], node)

    def _add_days(self, node: exp.TsOrDsAdd) -> Typed:
        days = node.expression
        # date_sub(d, n) is parsed as date_add(d, n * -1).
        if isinstance(days, exp.Mul) and days.expression == exp.Neg(this=exp.Literal.number(1)):
            days = exp.Neg(this=days.this)
        rule = _RULES[exp.TsOrDsAdd][0]
        only(node, *rule.parts, form=rule.form, **rule.fixed)
        values = [self.translate(node.this), self.translate(days)]
        return apply(_for_types(rule, values), values)

    def _add(self, node: exp.Add | exp.Sub) -> Typed:
        if not isinstance(node.expression, exp.Interval):
            return self._rule(_RULES[type(node)][0], node)
        only(node, "this", "expression")
        sign = "+" if isinstance(node, exp.Add) else "-"
        return self._moved(node, self.translate(node.this), sign, node.expression)

    def _moved(self, node: exp.Expr, value: Typed, sign: str, by: exp.Interval) -> Typed:
        """A date or time, and a literal interval that is added to it or taken from it."""
        number, unit = fixed_interval(by)
        if value.type not in (TIMESTAMP, TIMESTAMP_NTZ) and not (
            value.type == DATE and unit in ("DAY", "MONTH")
        ):
            raise _type_error(f"{_named(node)} of an interval in {unit}", [value])
        text = f"{value.sql} {sign} INTERVAL '{number}' {unit}"
        return Typed(f"CAST({text} AS {duckdb_type(value.type)})", value.type)

    def _add_units(self, node: exp.TimestampAdd) -> Typed:
        """`timestampadd(unit, n, time)` of a literal number, and of a date as a time."""
        only(node, "this", "expression", "unit")
        value, number = self.translate(node.this), node.expression
        if isinstance(number, exp.Neg) and isinstance(number.this, exp.Literal):
            number = exp.Literal.string(f"-{number.this.name}")
        if value.type == DATE:
            value = Typed(cast(value, TIMESTAMP), TIMESTAMP)
        return self._moved(node, value, "+", exp.Interval(this=number, unit=node.args["unit"]))

    def _compared(self, node: exp.Binary) -> Typed:
        """A comparison; that of a span of time with an interval goes by microseconds."""
        rule = _RULES[type(node)][0]
        sides = [node.this.unnest(), node.expression.unnest()]
        if {type(side) for side in sides} != {exp.Sub, exp.Interval}:
            return self._rule(rule, node)
        return Typed(rule.duckdb.format(*map(self._micros, sides)), BOOLEAN)

    def _micros(self, node: exp.Expr) -> str:
        """The microseconds of a literal interval, or between two times."""
        if isinstance(node, exp.Interval):
            number, unit = fixed_interval(node)
            if unit not in MICROSECONDS:
                raise NotAdmittedError("type", node.sql(dialect="spark"))
            return str(number * MICROSECONDS[unit])
        only(node, "this", "expression")
        times = [self.translate(node.this), self.translate(node.expression)]
        if any(time.type not in DATES for time in times):
            raise _type_error("subtract", times)
        later, earlier = (f"epoch_us({cast(time, TIMESTAMP)})" for time in times)
        return f"({later} - {earlier})"

    def _field(self, node: exp.Dot) -> Typed:
        """`max(struct(a, b)).b`: of the row with the largest a, and of these with the largest b."""
        call, name = node.this, node.expression.name.lower()
        if not isinstance(call, exp.Max | exp.Min) or not isinstance(call.this, exp.Struct):
            raise NotAdmittedError("operator", "a field of a struct")
        only(call, "this")
        fields = call.this.expressions
        if not all(isinstance(part, exp.PropertyEQ) for part in fields):
            raise NotAdmittedError("operator", "a field of a struct without a name")
        names = [part.this.name.lower() for part in fields]
        if names.count(name) != 1:
            raise NotAdmittedError("operator", f"field {name} of a struct")
        values = [self.translate(part.expression) for part in fields]
        if not all(value.type in ORDERED or is_decimal(value.type) for value in values):
            raise _type_error("struct", values)
        # NULL comes before all values.
        packed = ", ".join(
            f"f{number} := {value.sql} IS NOT NULL, v{number} := {value.sql}"
            for number, value in enumerate(values)
        )
        place = names.index(name)
        text = f"struct_extract({call.key}(struct_pack({packed})), 'v{place}')"
        kind = values[place].type
        return Typed(f"CAST({text} AS {duckdb_type(kind)})", kind)

    def _series(self, node: exp.GenerateSeries) -> Typed:
        """`sequence(first, last, step)` of literal steps."""
        only(node, "start", "end", "step")
        first, last = self.translate(node.args["start"]), self.translate(node.args["end"])
        kind, step, unit = common_type([first, last]), node.args.get("step"), ""
        number: int | None = None
        if kind == DATE:
            number, unit = (None, "DAY") if step is None else fixed_interval(step)
        elif step is not None and kind in INTEGERS:
            self._count(step)
            number = int(step.name)
        fits = kind in INTEGERS or unit in ("DAY", "MONTH")
        if kind is None or not fits or (number is not None and number < 1):
            raise _type_error("sequence", [first, last])
        first, last = (Typed(cast(value, kind), kind) for value in (first, last))
        return series(first, last, number, unit)

    def _zoned(self, node: exp.AtTimeZone | exp.FromTimeZone) -> Typed:
        """`from_utc_timestamp(x, zone)` and `to_utc_timestamp(x, zone)`."""
        only(node, "this", "zone")
        time, zone = self.translate(node.this), self._zone(node.args["zone"])
        if time.type != TIMESTAMP:
            raise _type_error(_named(node), [time])
        moved = to_zone if isinstance(node, exp.AtTimeZone) else from_zone
        return Typed(moved(time.sql, zone), TIMESTAMP)

    def _between_zones(self, node: exp.ConvertTimezone) -> Typed:
        only(node, "source_tz", "target_tz", "timestamp")
        time, source = self.translate(node.args["timestamp"]), node.args.get("source_tz")
        if time.type not in DATES:
            raise _type_error("convert_timezone", [time])
        utc = cast(time, TIMESTAMP_NTZ)
        if source is not None:
            utc = from_zone(utc, self._zone(source))
        return Typed(to_zone(utc, self._zone(node.args["target_tz"])), TIMESTAMP_NTZ)

    def _zone(self, node: exp.Expr) -> str:
        """A literal zone.

        Raises:
            NotAdmittedError: it is not one that both engines know alike.
        """
        zone = self.translate(node).literal or ""
        if not is_known(zone):
            raise NotAdmittedError("operator", f"time zone {node.sql(dialect='spark')}")
        return zone

    def _rule(self, rule: Admitted, node: exp.Expr) -> Typed:
        values = [self.translate(part) for part in operands(rule, node)]
        return apply(_for_types(rule, values), values)

    def _call(self, node: exp.Expr) -> Typed:
        text, kind = self._aggregate(node)
        return Typed(f"CAST({text} AS {duckdb_type(kind)})", kind)

    def _aggregate(self, node: exp.Expr, tail: str = "") -> tuple[str, pa.DataType]:
        """An aggregate call before the cast to its type; FILTER and `tail`, its window, with it."""
        if isinstance(node, exp.Filter):
            condition = self.translate(node.expression.this)
            return self._aggregate(node.this, f" FILTER (WHERE {condition.sql}){tail}")
        if isinstance(node, exp.ArgMax | exp.ArgMin):
            return self._value_by(node, tail)
        if isinstance(node, exp.GroupConcat):
            return self._listed(node, tail)
        if isinstance(node, exp.WithinGroup):
            return self._aggregate(_percentile(node), tail)
        rule = _rule_of(node)
        if rule is None or not rule.aggregate:
            raise NotAdmittedError("operator", _named(node))
        if not (parts := operands(rule, node)):
            raise _type_error(rule.name, [])
        part, *more = parts
        if isinstance(part, exp.Star):
            return f"count(*){tail}", BIGINT
        distinct, parts = "", [part]
        if isinstance(part, exp.Distinct):
            only(part, "expressions")
            distinct, parts = "DISTINCT ", part.expressions
            if len(parts) > 1 and not isinstance(node, exp.Count):
                raise NotAdmittedError("operator", f"{rule.name} over several DISTINCT columns")
        values = [self.translate(part) for part in (*parts, *more)]
        rule = _for_types(rule, values)
        signature = rule.signature(values)
        if (
            signature is None
            or any(duckdb_type(kind) is None for kind in signature.operands)
            or (distinct and any(is_float(v.type) or is_list(v.type) for v in values))
        ):
            raise _type_error(rule.name, values)
        texts = [cast(v, kind) for v, kind in zip(values, signature.operands, strict=True)]
        text = rule.duckdb.format(
            *texts,
            all=", ".join(texts),
            present=" AND ".join(f"{text} IS NOT NULL" for text in texts),
            distinct=distinct,
            tail=tail,
            **_scale(signature.result),
        )
        return text, signature.result

    def _value_by(self, node: exp.ArgMax | exp.ArgMin, tail: str) -> tuple[str, pa.DataType]:
        """`max_by(x, y)` and `min_by(x, y)`, in the order that a view compares them by, too."""
        only(node, "this", "expression")
        made = order_in(node.expression)
        value, by = self.translate(node.this), self.translate(made or node.expression)
        if not all(kind in ORDERED or is_decimal(kind) for kind in (value.type, by.type)):
            raise _type_error(_named(node), [value, by])
        order = by.sql
        if made is not None:
            both = f"row({by.sql}, {value.sql} IS NOT NULL, {value.sql})"
            order = f"CASE WHEN {by.sql} IS NOT NULL THEN {both} END"
        name = "arg_max_null" if isinstance(node, exp.ArgMax) else "arg_min_null"
        return f"{name}({value.sql}, {order}){tail}", value.type

    def _listed(self, node: exp.GroupConcat, tail: str) -> tuple[str, pa.DataType]:
        """`listagg(x, by) WITHIN GROUP (ORDER BY x)`."""
        only(node, "this", "separator")
        order, by = node.this, self.translate(node.args["separator"])
        if not isinstance(order, exp.Order) or len(order.expressions) != 1:
            raise NotAdmittedError("operator", "listagg but in the order of its values")
        part, distinct, (item,) = order.this, "", order.expressions
        if isinstance(part, exp.Distinct) and len(part.expressions) == 1:
            only(part, "expressions")
            (part,), distinct = part.expressions, "DISTINCT "
        value, key = self.translate(part), self.translate(item.this)
        if value.type != STRING or by.literal is None or key.sql != value.sql:
            raise _type_error("listagg", [value, by, key])
        text = f"{distinct}{value.sql}, {by.sql} ORDER BY {ordered(item, key)}"
        return f"string_agg({text}){tail}", STRING

    def _window(self, node: exp.Window) -> Typed:
        only(node, "this", "partition_by", "order", "spec", over=("OVER",))
        parts = []
        if keys := [self.translate(key) for key in node.args.get("partition_by") or ()]:
            check_keys(keys)
            parts.append("PARTITION BY " + ", ".join(raised_by_casts(key.sql) for key in keys))
        by: list[Typed] = []
        if order := node.args.get("order"):
            by = [self.translate(item.this) for item in order.expressions]
            items = map(ordered, order.expressions, by)
            parts.append("ORDER BY " + ", ".join(map(raised_by_casts, items)))
        if spec := node.args.get("spec"):
            parts.append(_frame(spec, by))
        if order and node.find(exp.ArrayAgg) is not None:
            raise NotAdmittedError("operator", "a list that is collected along an order")
        text, kind = self._over(node.this, f" OVER ({' '.join(parts)})")
        return Typed(f"CAST({text} AS {duckdb_type(kind)})", kind)

    def _over(self, node: exp.Expr, tail: str) -> tuple[str, pa.DataType]:
        nulls = ""
        if isinstance(node, exp.IgnoreNulls) and type(node.this) in (*_ENDS, *_SHIFTS):
            node, nulls = node.this, " IGNORE NULLS"
        if type(node) in _RANKINGS:
            only(node)
            call, kind = _RANKINGS[type(node)]
            return f"{call}{tail}", kind
        if type(node) in _ENDS:
            only(node, "this", "offset")
            value, place = self.translate(node.this), node.args.get("offset")
            number = "" if place is None else f", {self._count(place)}"
            return f"{_ENDS[type(node)]}({value.sql}{number}{nulls}){tail}", value.type
        if isinstance(node, exp.Ntile):
            only(node, "this")
            return f"ntile({self._count(node.this)}){tail}", INT
        if type(node) not in _SHIFTS:
            return self._aggregate(node, tail)
        only(node, "this", "offset", "default")
        values = [self.translate(node.this)]
        for name in ("offset", "default"):
            if node.args.get(name):
                values.append(self.translate(node.args[name]))
        offset_fits = len(values) < 2 or (values[1].literal is not None and values[1].type == INT)
        kind, texts = values[0].type, [value.sql for value in values]
        if not offset_fits or common_type([Typed("", kind), *values[2:]], shrink=True) != kind:
            raise _type_error(_SHIFTS[type(node)], values)
        texts[2:] = [cast(value, kind) for value in values[2:]]
        return f"{_SHIFTS[type(node)]}({', '.join(texts)}{nulls}){tail}", kind

    def _count(self, node: exp.Expr) -> str:
        """A literal whole number, as of rows."""
        number = self.translate(node)
        if number.literal is None or number.type != INT:
            raise _type_error(_named(node), [number])
        return number.sql


def apply(rule: Admitted, values: list[Typed]) -> Typed:
    """The text of an operator over translated operands.

    Raises:
        NotAdmittedError: the operator is not admitted for these types.
    """
    if rule.sign in (compared, listed):
        values = fold_dates(values)
    signature = rule.signature(values)
    if signature is None or any(duckdb_type(kind) is None for kind in signature.operands):
        raise _type_error(rule.name, values)
    texts = [cast(v, kind) for v, kind in zip(values, signature.operands, strict=True)]
    text = rule.duckdb.format(
        *texts,
        all=", ".join(texts),
        rest=", ".join(texts[1:]),
        joined=" || ".join(texts),
        **_scale(signature.result),
    )
    if signature.result != BOOLEAN:
        text = f"CAST({text} AS {duckdb_type(signature.result)})"
    return Typed(text, signature.result)


def _percentile(node: exp.WithinGroup) -> exp.Quantile:
    """`percentile_cont(p) WITHIN GROUP (ORDER BY x)` as `percentile(x, p)`."""
    call, order = node.this, node.expression
    items = order.expressions if isinstance(order, exp.Order) else []
    if not isinstance(call, exp.PercentileCont) or len(items) != 1 or items[0].args.get("desc"):
        raise NotAdmittedError("operator", f"{_named(call)} WITHIN GROUP")
    only(call, "this")
    return exp.Quantile(this=items[0].this, quantile=call.this)


def _scale(kind: pa.DataType) -> dict[str, str]:
    """The scale of a decimal and its power of ten, as texts for DuckDB."""
    scale = kind.scale if is_decimal(kind) else 0
    return {"scale": str(scale), "power": f"CAST('{10**scale}' AS HUGEINT)"}


def _rule_of(node: exp.Expr) -> Admitted | None:
    return next((rule for rule in _RULES.get(type(node), ()) if rule.is_of(node)), None)


def _for_types(rule: Admitted, values: list[Typed]) -> Admitted:
    """Of the entries that are written alike, the one for these operands."""
    alike = (other for other in _RULES[rule.node] if other.form == rule.form)
    return next((other for other in alike if other.signature(values) is not None), rule)


def operands(rule: Admitted, node: exp.Expr) -> list[exp.Expr]:
    """The operands of a node, in order; everything else in it must be as the rule says."""
    only(node, *rule.parts, form=rule.form, **rule.fixed)
    listed: list[exp.Expr] = []
    for name in rule.parts:
        part = node.args.get(name)
        listed += part if isinstance(part, list) else [part] if part is not None else []
    return listed


def only(
    node: exp.Expr, *parts: str, form: Container[str] = (), **fixed: tuple[object, ...]
) -> None:
    """Check that a node has no arguments but these, nor others than those of `form`.

    Raises:
        NotAdmittedError: there is another one.
    """
    for name, value in node.args.items():
        if name in parts or value is None or value is False or value == []:
            continue
        text = value.sql(dialect="spark") if isinstance(value, exp.Expr) else value
        if text not in fixed.get(name, ()) and name not in form:
            raise NotAdmittedError("clause", f"{_named(node)} with {name}")


def check_keys(values: list[Typed]) -> None:
    """Check that values can be told apart alike in both engines.

    Raises:
        NotAdmittedError: one is a float, where 0.0 and -0.0 are one value with two looks.
    """
    for value in values:
        if is_float(value.type) or is_list(value.type):
            raise NotAdmittedError("type", f"grouping by a {name_of(value.type)}")


def _frame(spec: exp.WindowSpec, by: list[Typed]) -> str:
    """The frame of a window over rows in this order."""
    only(spec, "kind", "start", "start_side", "end", "end_side")
    kind = str(spec.args["kind"]).upper()
    ordered_by = by[0].type if kind == "RANGE" and len(by) == 1 else None
    start = _bound(spec.args.get("start"), spec.args.get("start_side"), kind, ordered_by)
    end = spec.args.get("end") or "CURRENT ROW"
    last = _bound(end, spec.args.get("end_side"), kind, ordered_by)
    return f"{kind} BETWEEN {start} AND {last}"


def _bound(value: object, side: object, kind: str, by: pa.DataType | None) -> str:
    word, way = str(value).upper(), str(side).upper()
    if word == "CURRENT ROW":
        return word
    if word == "UNBOUNDED":
        return f"{word} {way}"
    if isinstance(value, exp.Literal) and value.this.isdigit():
        if kind == "ROWS" or (by in (INT, BIGINT) and number_literal(value.this).type == INT):
            return f"{value.this} {way}"
        if by == DATE and len(value.this) < _LONG_OFFSET:
            return f"INTERVAL '{value.this}' DAY {way}"
    if isinstance(value, exp.Interval) and by in DATES:
        number, unit = fixed_interval(value)
        if number >= 0 and (by != DATE or unit in ("DAY", "MONTH")):
            return f"INTERVAL '{number}' {unit} {way}"
    raise NotAdmittedError("clause", f"window frame {kind} {value}")


def _named(node: exp.Expr) -> str:
    """A function's name in Spark, where it has one that is called; else what the node is."""
    called = node.sql(dialect="spark").partition("(")[0]
    is_called = isinstance(node, exp.Func) and called.isidentifier()
    return called.lower() if is_called else type(node).__name__


def _type_error(name: str, values: list[Typed]) -> NotAdmittedError:
    kinds = ", ".join(name_of(value.type) for value in values)
    return NotAdmittedError("type", f"{name}({kinds})")
