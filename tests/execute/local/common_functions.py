"""150 functions and operators that analytics SQL uses most, each as it is mostly written.

`docs/functions.md` tells of each where it runs; `python -m tests.docs` writes it.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from pathlib import Path

from mview.errors import UserError
from mview.execute.local.admission import translate
from mview.execute.local.admitted.functions import AGGREGATES, SCALARS
from mview.execute.local.reading import read
from mview.execute.refusal import NotAdmittedError
from mview.plan.checks.ties import check_order
from mview.plan.functions.names import ARGUMENTS, REFUSED
from mview.plan.text.place import Text
from mview.schema import parse_type, type_name

COLUMNS = {
    name: parse_type(kind)
    for name, kind in {
        "i": "int", "j": "int", "b": "bigint", "f": "double", "g": "double", "n": "decimal(12,2)",
        "m": "decimal(12,2)", "s": "string", "t": "string", "d": "date", "e": "date",
        "at": "timestamp", "until": "timestamp", "ok": "boolean",
    }.items()
}  # fmt: skip

#: The most used ones first within each line of business; apart by `|`.
#: The clocks, such as current_date(), are not among them: a plan reads them as tables of one row.
_AGGREGATES = """
count(*) | count(s) | count(DISTINCT s) | sum(n) | sum(b) | sum(f) | avg(i) | avg(b) | avg(n) |
avg(f) | min(n) | max(d) | stddev(f) | variance(f) | median(f) | percentile(f, 0.9) |
approx_count_distinct(s) | percentile_approx(f, 0.5) | collect_list(s) | collect_set(s) |
string_agg(s, ',') WITHIN GROUP (ORDER BY s) | min_by(s, i) | max_by(s, i) | count_if(ok) |
bool_and(ok) | bool_or(ok) | any_value(s) | corr(f, g) | count(DISTINCT i, s)
"""
_WINDOWS = """
row_number() OVER (PARTITION BY s ORDER BY i) | rank() OVER (ORDER BY i) |
dense_rank() OVER (ORDER BY i) | lag(i) OVER (ORDER BY b) | lead(i) OVER (ORDER BY b) |
sum(n) OVER (PARTITION BY s ORDER BY d) | first_value(i) OVER (ORDER BY b) |
last_value(i) OVER (ORDER BY b) | ntile(4) OVER (ORDER BY b) | percent_rank() OVER (ORDER BY b)
"""
_CONDITIONS = """
i = j | f > 0.5 | n <= 10 | s <> 'a' | d >= '2024-01-01' | i BETWEEN 1 AND 9 | s IN ('a', 'b') |
s LIKE 'a%' | s ILIKE 'a%' | s RLIKE '^a' | s IS NULL | ok AND i > 1 | ok OR i > 1 |
NOT ok | CASE WHEN i > 1 THEN 'a' ELSE s END | if(ok, i, j) | coalesce(s, 'x') | nullif(i, 0) |
nvl(n, 0) | ifnull(i, 0) | nvl2(s, i, j) | greatest(i, j) | least(d, e) | isnan(f)
"""
_NUMBERS = """
i + j | n - m | n * i | f / g | n / m | i / j | i % 2 | b div 10 | -n | abs(n) | round(n, 1) |
round(f, 2) | floor(n) | floor(f) | ceil(f) | sqrt(f) | power(f, 2) | exp(f) | ln(f) |
log10(f) | sign(f) | pmod(i, 7) | f * 0.9 | rand() | uuid()
"""
_TEXTS = """
s || t | concat(s, '-', t) | concat_ws('-', s, t) | upper(s) | lower(s) | trim(s) | ltrim(s) |
rtrim(s) | length(s) | substring(s, 1, 3) | left(s, 3) | right(s, 3) | replace(s, 'a', 'b') |
split_part(s, '-', 1) | split(s, '-') | instr(s, 'a') | position('a' IN s) | lpad(s, 8, '0') |
rpad(s, 8, ' ') | initcap(s) | startswith(s, 'a') | endswith(s, 'a') |
contains(s, 'a') | regexp_replace(s, 'a+', 'b') | regexp_extract(s, '(a+)', 1) | md5(s) |
sha2(s, 256) | get_json_object(s, '$.a')
"""
_TIMES = """
year(d) | quarter(d) | month(d) | day(d) | hour(at) | minute(at) | dayofweek(d) | dayofyear(d) |
weekofyear(d) | date_trunc('month', at) | trunc(d, 'MM') |
date_add(d, 7) | date_sub(d, 7) | d + INTERVAL 1 DAY | at - INTERVAL 2 HOURS | datediff(d, e) |
add_months(d, 1) | last_day(d) | months_between(d, e) | to_date(s) | to_timestamp(s) |
date_format(at, 'yyyy-MM') | unix_timestamp(at) | extract(YEAR FROM d) | make_date(i, 1, 1) |
CAST(at AS date)
"""
_CASTS = """
CAST(s AS int) | CAST(i AS string) | CAST(n AS double) | CAST(s AS decimal(12,2)) |
CAST(f AS int) | CAST(i AS decimal(12,2)) | CAST(d AS string) | TRY_CAST(s AS int)
"""
#: Others that are in no list of entries: what is selected from the table, by name.
_ALSO = {
    **{
        name: f"{name}(i) OVER (ORDER BY b) AS v FROM t_" for name in ("any_value", "first", "last")
    },
    "element_at": "element_at(split(s, '-'), 1) AS v FROM t_",
    "explode": "explode(split(s, '-')) AS v FROM t_",
    "posexplode": "x AS v FROM t_ LATERAL VIEW posexplode(split(s, '-')) q AS p, x",
    "pow": "pow(f, 3) AS v FROM t_",
}
COMMON = tuple(
    text.strip()
    for group in (_AGGREGATES, _WINDOWS, _CONDITIONS, _NUMBERS, _TEXTS, _TIMES, _CASTS)
    for text in re.split(r"(?<!\|)\|(?!\|)", group)
)


def place(expression: str) -> str:
    """`in process`, or why not: `refused` for every view, or what Spark is needed for."""
    if expression.partition("(")[0].strip().lower() in REFUSED:
        return "refused"
    return _place_of(f"{expression} AS v FROM t_")


def _place_of(selected: str) -> str:
    # As an epoch reads what a view shows.
    text = f"SELECT 1 AS w, * FROM (SELECT {selected})"
    query = read(text)
    try:
        check_order(Text(text, ""), query)
    except UserError:
        return "refused"
    try:
        translate(query, {"t_": COLUMNS})
    except NotAdmittedError as error:
        return str(error.reason)
    return "in process"


PAGE = Path(__file__).parents[3] / "docs" / "functions.md"

_HEAD = """\
# Functions: in process, on Spark, refused

Written by `python -m tests.docs`, from the lists in the code; none of it by hand.

*In process*: an epoch of a view whose functions all run so takes milliseconds. *On Spark*: where
one of them needs it, each epoch is a job of Spark, some hundred times as long. `mview explain`
tells it for a view, and which expression is why. *Refused*: no view may call it; `mview check`
says what to write instead.
"""


def inside() -> set[str]:
    """The functions that run in process, for some types of their arguments at least."""
    calls = [entry.spark for entry in (*SCALARS, *AGGREGATES)]
    calls += [text for text in COMMON if place(text) == "in process"]
    names = {match[1].lower() for call in calls if (match := re.match(r"(\w+)\(", call))}
    names |= {name for name, selected in _ALSO.items() if _place_of(selected) == "in process"}
    return names & set(ARGUMENTS)


def page() -> str:
    """The page of functions."""
    places = {text: place(text) for text in COMMON}
    count = {
        kind: sum(where == kind for where in places.values()) for kind in ("in process", "refused")
    }
    rest = len(places) - sum(count.values())
    within = inside()
    lines = [
        _HEAD,
        f"## The {len(places)} most used",
        "",
        f"{count['in process']} run in process, {rest} on Spark, {count['refused']} are refused.",
        "",
        "| expression | runs |",
        "|---|---|",
        *(f"| `{_cell(text)}` | {_where(where)} |" for text, where in places.items()),
        "",
        f"Columns: {', '.join(f'`{name}` {type_name(kind)}' for name, kind in COLUMNS.items())}.",
        "",
        "## All functions of Spark",
        "",
        f"### In process ({len(within)})",
        "",
        "For some types of arguments at least, or along a window; what else there is of them runs "
        "on Spark, or is refused.",
        "",
        _names(within),
        "",
        f"### On Spark ({len(set(ARGUMENTS) - within)})",
        "",
        _names(set(ARGUMENTS) - within),
        "",
        f"### Refused ({len(REFUSED)})",
        "",
    ]
    for why in dict.fromkeys(REFUSED.values()):
        names = [name for name, refusal in REFUSED.items() if refusal is why]
        lines += [f"Each {why.why}. Instead: {why.hint}.", "", _names(names), ""]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _where(where: str) -> str:
    return where if where in ("in process", "refused") else f"on Spark: {_cell(where)}"


def _names(names: Iterable[str]) -> str:
    return textwrap.fill(", ".join(f"`{name}`" for name in sorted(names)), 120)
