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
from mview.execute.local.parsing.reading import read
from mview.execute.refusal import NotAdmittedError
from mview.plan.checks.ties import check_order
from mview.plan.clocks import with_clocks
from mview.plan.definition import parse_view
from mview.plan.functions.effects import TIME
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
#: Other names that run in process, and such that do so in a form that no entry has.
_ALSO = """
and(ok, ok) | any_value(i) OVER (ORDER BY b) | array_agg(s) | array_size(split(s, '-')) |
boolean(ok) | ceiling(f) | char_length(s) | character_length(s) |
convert_timezone('UTC', 'Asia/Shanghai', at) | cume_dist() OVER (ORDER BY b) |
date(s) | date_diff(d, e) | dateadd(d, 1) | decode(i, 1, 'a', 'b') | div(i, j) | double(i) |
element_at(split(s, '-'), 1) | explode(split(s, '-')) | first(i) OVER (ORDER BY b) |
from_utc_timestamp(at, 'Europe/Berlin') | ilike(s, 'a') | int(s) |
last(i) OVER (ORDER BY b) | lcase(s) | len(s) | like(s, 'a') |
listagg(s, ',') WITHIN GROUP (ORDER BY s) | locate('a', s) | log(f) | mod(i, j) | not(ok) |
nullifzero(i) | or(ok, ok) | percentile_cont(0.5) WITHIN GROUP (ORDER BY f) | pow(f, 3) |
regexp_like(s, 'a') | rlike(s, 'a') | sequence(1, i) | sha(s) |
signum(f) | string(i) | substr(s, 1, 2) | timestamp(s) | timestampadd(d, 1) |
to_unix_timestamp(at) | to_utc_timestamp(at, 'Europe/Berlin') |
try_element_at(split(s, '-'), 1) | try_to_date(s) | try_to_timestamp(s) | ucase(s) |
var_samp(f) | zeroifnull(i)
"""
_IN_FROM = {"posexplode": "x AS v FROM t_ LATERAL VIEW posexplode(split(s, '-')) q AS p, x"}


def _apart(group: str) -> Iterable[str]:
    return (text.strip() for text in re.split(r"(?<!\|)\|(?!\|)", group))


COMMON = tuple(
    text
    for group in (_AGGREGATES, _WINDOWS, _CONDITIONS, _NUMBERS, _TEXTS, _TIMES, _CASTS)
    for text in _apart(group)
)
OTHERS = tuple(_apart(_ALSO))


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

*In process*: mview computes it itself; an epoch of a view that has no others takes milliseconds.
*On Spark*: if a view has one of these, each of its epochs is a job of Spark, which takes some
hundred times as long. `mview explain` tells where a view runs, and which expression is why.
*Refused*: no view may call it; `mview check` says what to write instead.
"""


def inside() -> set[str]:
    """The functions that run in process, for some types of their arguments at least."""
    calls = [entry.spark for entry in (*SCALARS, *AGGREGATES)]
    calls += [text for text in (*COMMON, *OTHERS) if place(text) == "in process"]
    names = {match[1].lower() for call in calls if (match := re.match(r"(\w+)\(", call))}
    names |= {name for name, selected in _IN_FROM.items() if _place_of(selected) == "in process"}
    return names & set(ARGUMENTS)


def of_the_time() -> set[str]:
    """The functions that give the time of the epoch; others of the time are refused."""
    return {name for name in TIME if _is_pinned(f"SELECT id, {name}() AS v FROM c.t")}


def _is_pinned(text: str) -> bool:
    try:
        with_clocks(parse_view(text, "v"))
    except UserError:
        return False
    return True


def page() -> str:
    """The page of functions."""
    places = {text: place(text) for text in COMMON}
    count = {
        kind: sum(where == kind for where in places.values()) for kind in ("in process", "refused")
    }
    rest = len(places) - sum(count.values())
    within, timely = inside(), of_the_time()
    on_spark = set(ARGUMENTS) - within - TIME
    lines = [
        _HEAD,
        f"## The {len(places)} most used",
        "",
        f"{count['in process']} run in process, {rest} on Spark, {count['refused']} are refused.",
        "",
        _columns(),
        "",
        "| expression | runs |",
        "|---|---|",
        *(f"| `{_cell(text)}` | {_where(where)} |" for text, where in places.items()),
        "",
        "## All functions of Spark",
        "",
        f"### In process ({len(within)})",
        "",
        "For some types of arguments at least, or along a window; with others they run on Spark, "
        "or are refused.",
        "",
        _names(within),
        "",
        f"### The time of the epoch ({len(timely)})",
        "",
        "In process, as a value of the epoch: [the time](views.md#the-time).",
        "",
        _names(timely),
        "",
        f"### On Spark ({len(on_spark)})",
        "",
        _names(on_spark),
        "",
        f"### Refused ({len(REFUSED) + len(TIME - timely)})",
        "",
        "Each is another time each time that it is asked. Instead: use a function of the epoch's "
        "time.",
        "",
        _names(TIME - timely),
        "",
    ]
    for why in dict.fromkeys(REFUSED.values()):
        names = [name for name, refusal in REFUSED.items() if refusal is why]
        lines += [f"Each {why.why}. Instead: {why.hint}.", "", _names(names), ""]
    return "\n".join(lines)


def _columns() -> str:
    told = ", ".join(f"`{name}` {type_name(kind)}" for name, kind in COLUMNS.items())
    return f"The columns are {told}."


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _where(where: str) -> str:
    return where if where in ("in process", "refused") else f"on Spark: {_cell(where)}"


def _names(names: Iterable[str]) -> str:
    return textwrap.fill(", ".join(f"`{name}`" for name in sorted(names)), 120)
