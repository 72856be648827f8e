"""What may stand in a view: what reads its tables, gives the same each time, and does nothing else.

Views are written by people who may not run code on the machine that runs the views. So everything
is on a list: functions (functions/names.py), what FROM reads, and the clauses and operators below.
Functions are looked for among the words of the text, not in the tree: a word before a parenthesis
is a function, wherever it stands and whatever sqlglot makes of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from mview.plan.functions.declared import Function, declaration_of
from mview.plan.functions.effects import function_name
from mview.plan.functions.names import ARGUMENTS, GENERATORS, REFUSED
from mview.plan.text.elsewhere import CLAUSES, FUNCTIONS
from mview.plan.text.lexemes import tokens, word_of
from mview.plan.text.place import Text, span
from mview.plan.text.syntax import QUERY_ONLY, other_query

#: Words before a parenthesis that is no call: clauses, operators, and types with parameters.
_WORDS = frozenset(
    """
    ALL AND ANY AS BETWEEN BY CASE CUBE DIV DISTINCT ELSE ESCAPE EXCEPT EXISTS FILTER FOR FROM GROUP
    HAVING ILIKE IN INTERSECT INTERVAL JOIN LATERAL LIKE LIMIT MINUS NOT NULLS OFFSET ON OR OVER
    PIVOT QUALIFY REGEXP RLIKE ROLLUP SELECT SETS SOME THEN UNION UNPIVOT USING VALUES WHEN WHERE
    CHARACTER DEC NUMERIC VARCHAR
    """.split()  # noqa: SIM905
)
#: Words after which a comma, or nothing at all, cannot have stood.
_AFTER_A_LIST = frozenset(
    """
    ) ] FROM WHERE HAVING QUALIFY LIMIT OFFSET UNION EXCEPT INTERSECT MINUS WINDOW ON
    """.split()  # noqa: SIM905
) | {"GROUP BY", "ORDER BY", "SORT BY", "CLUSTER BY", "DISTRIBUTE BY", "PARTITION BY"}
#: Calls whose arguments are apart by words: `extract(YEAR FROM d)`, `CAST(x AS INT)`.
_BY_WORDS = frozenset(["cast", "try_cast", "extract", "trim", "position", "overlay", "substring"])
#: Names of types with parameters, too: `CAST(x AS decimal(10,2))`.
_PARAMETRIZED = ("decimal", "char")
#: The argument of a function that is a type: what is no plain text could name a class to load.
_TYPES = {"from_csv": 1, "from_json": 1, "variant_get": 2, "try_variant_get": 2}

#: Operators and other nodes of expressions.
_EXPRESSIONS = (
    exp.Add, exp.Alias, exp.Aliases, exp.All, exp.Any, exp.Between, exp.Binary, exp.Boolean,
    exp.Bracket, exp.Column, exp.Condition, exp.DataType, exp.DataTypeParam, exp.ColumnDef,
    exp.Distinct, exp.Dot, exp.Escape, exp.Filter, exp.Having, exp.HexString, exp.Identifier,
    exp.IgnoreNulls, exp.RespectNulls, exp.In, exp.Interval, exp.IntervalSpan, exp.Lambda,
    exp.Literal, exp.Neg, exp.Not, exp.Null, exp.Paren, exp.PivotAlias, exp.RawString,
    exp.Tuple, exp.Unary, exp.Var, exp.WithinGroup, exp.TableAlias, exp.Except, exp.Where,
    exp.From, exp.Qualify, exp.Offset, exp.Rollup, exp.Cube, exp.GroupingSets, exp.If, exp.Slice,
    exp.AtTimeZone, exp.FromTimeZone, exp.JSONPath, exp.JSONPathPart,
)  # fmt: skip
#: Nodes of those kinds that are refused nevertheless.
_NOT_EXPRESSIONS = (
    exp.Parameter, exp.Placeholder, exp.SessionParameter, exp.QueryTransform, exp.Kwarg,
    exp.National, exp.BitString, exp.Pseudocolumn, exp.Overlaps, exp.Operator,
    exp.Glob, exp.SimilarTo,
)  # fmt: skip
#: Clauses, and the parts of them that a view may have.
_CLAUSES: dict[type[exp.Expr], str] = {
    exp.Select: (
        "with_ expressions distinct from_ joins laterals where group having qualify windows order "
        "limit offset sort distribute cluster"
    ),
    exp.Union: "with_ this expression distinct by_name order limit offset",
    exp.Except: "with_ this expression distinct by_name order limit offset",
    exp.Intersect: "with_ this expression distinct by_name order limit offset",
    exp.Subquery: "with_ this alias pivots joins laterals order limit offset",
    exp.Table: "this db catalog alias pivots joins laterals",
    exp.Values: "expressions alias",
    exp.Star: "except_",
    exp.With: "expressions recursive",
    exp.CTE: "this alias",
    exp.Join: "this side kind on using method",
    exp.Lateral: "this view outer alias ordinality cross_apply",
    exp.Group: "expressions rollup cube grouping_sets all",
    exp.Distinct: "expressions",
    exp.Order: "this expressions",
    exp.Sort: "this expressions",
    exp.Cluster: "this expressions",
    exp.Distribute: "this expressions",
    exp.Ordered: "this desc nulls_first",
    exp.Limit: "this expression",
    exp.Window: "this alias partition_by order spec over first",
    exp.WindowSpec: "kind start start_side end end_side",
    exp.Pivot: "fields expressions columns alias unpivot pivot_column_naming include_nulls",
    exp.Cast: "this to safe",
    exp.TryCast: "this to safe requires_string",
}
_METHODS = ("", "NATURAL")
_KINDS = ("", "INNER", "OUTER", "CROSS", "SEMI", "ANTI")


def check_text(text: Text, tree: exp.Query, functions: Sequence[Function]) -> None:
    """Make sure that a view's text has nothing in it but what is on the lists.

    Args:
        tree: the same, parsed.
        functions: those that the user declared.

    Raises:
        UserError: something else stands in it; with line, column, and the reason.
    """
    words = tokens(text)
    _check_start(text, words)
    _check_commas(text, words)
    _check_tree(text, tree)
    _check_calls(text, words, tree, {function.name for function in functions})
    _check_types(text, tree)


def _check_start(text: Text, words: Sequence[Token]) -> None:
    if (other := other_query(text)) is not None:
        raise other
    if words and word_of(words[0]) not in ("SELECT", "WITH", "("):
        raise text.error(
            "a view must be a SELECT", (words[0].start, words[0].end + 1), hint=QUERY_ONLY
        )


def _check_commas(text: Text, words: Sequence[Token]) -> None:
    pipe = next((word for word in words if word.token_type == TokenType.PIPE_GT), None)
    if pipe is not None:
        raise text.error(
            "|> is nothing that a view may have (NOT_ALLOWED)", (pipe.start, pipe.end + 1)
        )
    for word, after in zip(words, [*words[1:], None], strict=True):
        if word_of(word) == "," and (after is None or word_of(after) in _AFTER_A_LIST):
            raise text.error(
                "syntax error: nothing stands after the comma", (word.start, word.end + 1)
            )


# -- the tree ----------------------------------------------------------------------------------


def _check_tree(text: Text, tree: exp.Query) -> None:
    for node in tree.walk():
        clause = _CLAUSES.get(type(node))
        if clause is not None:
            _check_clause(text, node, clause.split())
        elif isinstance(node, _NOT_EXPRESSIONS) or not isinstance(node, (exp.Func, *_EXPRESSIONS)):
            raise _not_allowed(text, node)


def _check_clause(text: Text, node: exp.Expr, known: Sequence[str]) -> None:
    for name, value in node.args.items():
        if value and name not in known:
            said = "distinct on" if isinstance(node, exp.Distinct) and name == "on" else name
            raise _not_allowed(text, value if isinstance(value, exp.Expr) else node, said)
    if isinstance(node, exp.Select) and not node.expressions:
        raise text.error("syntax error: nothing is selected", span(node))
    if isinstance(node, exp.Join) and (
        (node.method or "") not in _METHODS or (node.kind or "") not in _KINDS
    ):
        raise _not_allowed(text, node, f"{node.method} {node.kind} JOIN")
    if isinstance(node, exp.Table) and not isinstance(node.this, exp.Identifier):
        raise _no_table(text, node)
    if isinstance(node, exp.Lateral):
        _check_lateral(text, node)


def _check_lateral(text: Text, node: exp.Lateral) -> None:
    made = node.this
    if isinstance(made, exp.Subquery):
        return
    if function_name(made) not in GENERATORS:
        raise _no_table(text, node)


def _no_table(text: Text, node: exp.Expr) -> Exception:
    return text.error(
        "FROM reads something that is no table (NOT_A_TABLE)",
        span(node),
        allowed="<connection>.<table>, the name of another view, a subquery, "
        f"LATERAL VIEW with {', '.join(sorted(GENERATORS))}",
        hint=FUNCTIONS.get(function_name(node.this) or ""),
    )


def _not_allowed(text: Text, node: exp.Expr, what: str = "") -> Exception:
    name = (what or type(node).__name__).replace("_", " ").strip().upper()
    return text.error(
        f"{name} is nothing that a view may have (NOT_ALLOWED)",
        span(node),
        hint=CLAUSES.get(
            name,
            "a view reads its tables with SELECT, joins, GROUP BY, windows and set operations",
        ),
    )


# -- functions ---------------------------------------------------------------------------------


def _check_calls(text: Text, words: Sequence[Token], tree: exp.Query, declared: set[str]) -> None:
    aliases = set(_alias_starts(tree))
    for index, token in enumerate(words[:-1]):
        is_call = words[index + 1].token_type == TokenType.L_PAREN and _is_name(token)
        if not is_call or token.start in aliases:
            continue
        name = token.text.lower()
        before = words[index - 1] if index else None
        owned = before is not None and before.token_type == TokenType.DOT
        if not owned and word_of(token).split()[-1:] and word_of(token).split()[-1] in _WORDS:
            continue
        _check_call(text, token, name, declared)
        if owned:
            raise text.error(
                f"{name}() with a name before it: functions belong to no one (UNKNOWN_FUNCTION)",
                (token.start, token.end + 1),
                hint=f"write {name}(…)",
            )
        if name in ARGUMENTS and name not in _PARAMETRIZED:
            _check_count(text, words, index, name)
    for node in tree.walk():
        # What Spark calls without parentheses, too.
        name = function_name(node) or ""
        if name in REFUSED:
            raise _refused(text, name, span(node))


def _is_name(token: Token) -> bool:
    return (
        token.token_type == TokenType.IDENTIFIER
        or token.text[:1].isalpha()
        or (token.text[:1] == "_")
    )


def _alias_starts(tree: exp.Query) -> Iterator[int]:
    """Where names stand that have a list of columns after them."""
    for alias in tree.find_all(exp.TableAlias):
        if alias.this is not None and alias.args.get("columns"):
            yield from (start for start in [alias.this.meta.get("start")] if start is not None)


def _check_call(text: Text, token: Token, name: str, declared: set[str]) -> None:
    place = (token.start, token.end + 1)
    if name in REFUSED:
        raise _refused(text, name, place)
    if name not in ARGUMENTS and name not in declared and name != "try_cast":
        raise text.error(
            f"{name}() is neither built in nor declared: what it does is not known "
            "(UNKNOWN_FUNCTION)",
            place,
            hint=_fix(name, declared),
        )


def _refused(text: Text, name: str, place: tuple[int, int]) -> Exception:
    why = REFUSED[name]
    return text.error(f"{name}() {why.why} ({why.code})", place, hint=why.hint)


def _fix(name: str, declared: set[str]) -> str:
    if name in FUNCTIONS and name not in declared:
        return FUNCTIONS[name]
    # Of hundreds of built-in names some are a little like any other: only typing errors count.
    close = get_close_matches(name, declared, n=1) or get_close_matches(
        name, sorted(ARGUMENTS), n=1, cutoff=0.75
    )
    return declaration_of(name, close[0] if close else None)


def _check_count(text: Text, words: Sequence[Token], index: int, name: str) -> None:
    count, last = _arguments(words, index + 1)
    inside = {word_of(word) for word in words[index + 2 : last]}
    if name in _BY_WORDS and inside & {"FROM", "IN", "AS", "PLACING"}:
        return
    if count not in ARGUMENTS[name] and not _is_within(words, last):
        given = "argument" if count == 1 else "arguments"
        raise text.error(
            f"{name}() with {count} {given}",
            (words[index].start, words[last].end + 1),
            allowed=_counts(ARGUMENTS[name]),
        )


def _is_within(words: Sequence[Token], last: int) -> bool:
    """Whether what a function takes follows after it: `mode() WITHIN GROUP (ORDER BY x)`."""
    after = word_of(words[last + 1]) if last + 1 < len(words) else ""
    return after.startswith("WITHIN")


def _counts(allowed: frozenset[int]) -> str:
    listed = sorted(allowed)
    if len(listed) > 8:
        return f"{listed[0]} or more"
    return " or ".join(map(str, listed))


def _arguments(words: Sequence[Token], first: int) -> tuple[int, int]:
    """How many arguments stand in the parentheses that open at an index, and where they close."""
    depth, commas = 0, 0
    for index in range(first, len(words)):
        word = word_of(words[index])
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(word, 0)
        if depth == 0:
            return (0 if index == first + 1 else commas + 1), index
        commas += depth == 1 and word == ","
    return commas + 1, len(words) - 1


def _check_types(text: Text, tree: exp.Query) -> None:
    for node in tree.walk():
        name = function_name(node) or ""
        if name not in _TYPES:
            continue
        given = list(node.iter_expressions())
        given = given if len(given) > _TYPES[name] else [*given, node]
        kind = given[_TYPES[name]]
        plain = isinstance(kind, exp.Literal) and not set(kind.name) & set("{}\"'\\")
        made = function_name(kind) in ("schema_of_json", "schema_of_csv")
        if not plain and not made:
            raise text.error(
                f"the type that {name}() makes must be a plain text (REACHES_OUT)",
                span(kind),
                hint=f"write it as in {name}(…, 'a INT, b STRING')",
            )
