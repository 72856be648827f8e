"""Every admitted operator on every admitted combination of types: DuckDB against Spark.

Cases come from the list in the code, so an entry cannot be admitted without being run here. Rows
are all pairs of extreme values; where DuckDB raises on a row, Spark must raise on it too. The
everyday lane runs some cases of each entry, other ones every day.
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
import random
import re
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from sqlglot.errors import SqlglotError

from mview.execute.local.admission import translate
from mview.execute.local.admitted.entries import Admitted
from mview.execute.local.admitted.functions import AGGREGATES, SCALARS
from mview.execute.local.admitted.signatures import castable
from mview.execute.local.admitted.spark_types import INT, Typed
from mview.execute.local.admitted.texts import _NO_LOWER, _NO_UPPER
from mview.execute.local.evaluate import LocalEvaluator
from mview.execute.local.parsing.reading import read
from mview.execute.refusal import EvaluationError, NotAdmittedError
from mview.schema import parse_type, type_name
from tests.execute.local.admission_queries import QUERIES, L, R
from tests.seeds import daily

D, UTC = Decimal, ZoneInfo("UTC")
NAN, INF = float("nan"), float("inf")
INSTANTS = [
    dt.datetime(1970, 1, 1),
    dt.datetime(1969, 12, 31, 23, 59, 59, 999999),
    dt.datetime(1, 1, 1),
    dt.datetime(9999, 12, 31, 23, 59, 59, 999999),
    dt.datetime(2024, 2, 29, 12, 30, 1, 5),
    dt.datetime(1582, 10, 10),
]
#: Per type: values at the edges of what it can hold, and NULL.
VALUES: dict[str, list[Any]] = {
    "boolean": [None, True, False],
    "tinyint": [None, 0, 1, -1, 7, 127, -128],
    "smallint": [None, 0, 1, -3, 32767, -32768],
    "int": [None, 0, 1, -1, 10, 2**31 - 1, -(2**31)],
    "bigint": [None, 0, 1, -7, 2**53 + 1, 2**63 - 1, -(2**63)],
    "float": [None, 0.0, -0.0, 1.5, -2.25, NAN, INF, -INF, 3.4028234663852886e38],
    "double": [
        None,
        0.0,
        -0.0,
        0.1,
        -2.5,
        NAN,
        INF,
        1.7976931348623157e308,
        5e-324,
        9007199254740993.0,
    ],
    "decimal(4,2)": [None, D("0.00"), D("0.05"), D("-0.05"), D("99.99"), D("-99.99")],
    "decimal(4,4)": [None, D("0.0000"), D("0.1250"), D("-0.5000"), D("0.9999")],
    "decimal(9,0)": [None, D(0), D(1), D(999999999), D(-999999999)],
    "decimal(18,6)": [None, D("0.000001"), D("999999999999.999999"), D("-0.500000")],
    "decimal(38,10)": [None, D("1.0000000000"), D("9" * 28 + "." + "9" * 10), D("-0.0000000001")],
    "decimal(38,0)": [None, D(0), D("9" * 38), D("-" + "9" * 38)],
    "string": [
        None,
        "",
        " ",
        "a",
        "A",
        "ab",
        " a b ",
        "ä",
        "\U0001f600x",
        "e\u0301",
        "a%_b",
        "\t a",
    ],
    "binary": [None, b"", b"\x00", b"\xff", b"a"],
    "date": [
        None,
        dt.date(1970, 1, 1),
        dt.date(1, 1, 1),
        dt.date(9999, 12, 31),
        dt.date(2024, 2, 29),
    ],
    "timestamp": [None, *(instant.replace(tzinfo=UTC) for instant in INSTANTS)],
    "timestamp_ntz": [None, *INSTANTS],
    "array<int>": [None, [], [None], [1], [3, 1, None, 1], [-(2**31), 0, 2**31 - 1, 0]],
    "array<string>": [None, [], [None], [""], ["b", None, "a", "b"], ["ä", "Z", " "]],
    "array<decimal(4,2)>": [None, [], [D("0.05"), None, D("-99.99"), D("0.05")]],
    "array<timestamp>": [None, [], [INSTANTS[4].replace(tzinfo=UTC), None]],
    "array<double>": [None, [], [NAN, -0.0, None, 0.0]],
}
TYPES = tuple(VALUES)
#: Columns a_<type>, b_<type>, c_<type>: operands one, two and three of all cases.
OPERANDS = ("a", "b", "c")
#: Rows cover all pairs of (a, b) for columns of up to this many values.
WIDTH = max(map(len, VALUES.values()))


def column(operand: str, kind: str) -> str:
    return f"{operand}_{kind.translate(str.maketrans('(),<>', '_____')).strip('_')}"


def make_rows() -> pa.Table:
    pairs = list(itertools.product(range(WIDTH), repeat=2))
    data: dict[str, pa.Array] = {"id": pa.array(range(len(pairs)), pa.int32())}
    data["g"] = pa.array([(7 * i + j) % 5 for i, j in pairs], pa.int32())
    for kind, values in VALUES.items():
        picks = ([i for i, _ in pairs], [j for _, j in pairs], [i + 3 * j for i, j in pairs])
        for operand, pick in zip(OPERANDS, picks, strict=True):
            cells = [values[n % len(values)] for n in pick]
            data[column(operand, kind)] = pa.array(cells, parse_type(kind))
    return pa.table(data)


#: Strings that are cast to other types, well written or not.
TEXTS = [
    *(
        None,
        "0",
        "1",
        "-1",
        "+7",
        "007",
        " 5 ",
        "5.5",
        "-0",
        "-0.0",
        "1e3",
        "",
        "a",
        "NaN",
        "1.",
        ".5",
    ),
    *(
        "127",
        "128",
        "-128",
        "2147483647",
        "2147483648",
        "9223372036854775807",
        "-9223372036854775808",
    ),
    *(
        "9223372036854775808",
        "99999999999999999999",
        "0.1",
        "123456789.123456789",
        "0.30000000000000004",
    ),
    *(
        "2024-02-29",
        "2023-02-29",
        "0001-01-01",
        "9999-12-31",
        "0000-01-01",
        "10000-01-01",
        "2024-2-9",
    ),
    *(
        "1582-10-10",
        "2024-13-01",
        "2024-02-29 12:30:01",
        "2024-02-29 12:30:01.5",
        "2024-02-29 24:00:00",
    ),
    *("2024-02-29 23:59:60", "1969-12-31 23:59:59.999999", "2024-02-29T12:30:01Z", "\n3", "Ⅷ", "٣"),
]


def make_texts() -> pa.Array:
    return pa.array([TEXTS[n % len(TEXTS)] for n in range(WIDTH**2)], pa.string())


#: Days and times as they are written in many ways, and as they are not.
DAYS = [
    *(None, "", "2024-02-29", "2023-02-29", "2024-02-29 12:30:01", "20240229", "20240229123001"),
    *(
        "29.02.2024 12:30",
        "29.02.2024",
        "2/9/24",
        "2024-13-01",
        "2024-1-1",
        " 2024-02-29",
        "290224",
    ),
    *(
        "2024-02-29 24:00:00",
        "2024-30-29",
        "2024-02",
        "0999-12-31",
        "12024-02-29",
        "02:59",
        "31.04.2024",
    ),
    *("2024-02-29 12:30:60", "2024-02-29T12:30", "2024-02-29 12", "x2024-02-29", "2024/02/29"),
]


def make_days() -> pa.Array:
    return pa.array([DAYS[n % len(DAYS)] for n in range(WIDTH**2)], pa.string())


ROWS = make_rows().append_column("texts", make_texts()).append_column("days", make_days())

Case = tuple[str, str]  # name, expression in Spark's SQL


def spelled(rule: Admitted, operands: list[str]) -> str:
    return rule.spark.format(*operands, all=", ".join(operands), rest=", ".join(operands[1:]))


def is_admitted(call: str) -> bool:
    """Whether a call with literals runs in process; with others of them Spark runs it."""
    query = read(f"SELECT {call} AS v FROM rows")
    try:
        translate(query, {"rows": {field.name: field.type for field in ROWS.schema}})
    except NotAdmittedError:
        return False
    return True


def accepts(rule: Admitted, operands: list[Typed]) -> bool:
    return rule.signature(operands) is not None


#: What is no string, where Spark makes one of it.
UNLIKE = [column("a", kind) for kind in VALUES if kind[:3] in ("boo", "int", "dec", "dat", "tim")]
NUMBERS_OF_CHARACTERS = [
    *(("a_string", n) for n in ("0", "1", "2", "100")),
    *((name, "3") for name in UNLIKE),
]
#: Formats of dates and times; those that are not written or read alike run on Spark.
FORMATS = [
    *("yyyy-MM-01", "01/MM/yyyy", "yyyy-12-31 00:00", "yyyy1MM"),
    *("yyyy-MM-dd", "yyyy-mm-dd", "HH:MM", "HH:mm:ss", "yyyyMMddHHmmss", "dd.MM.yyyy HH:mm", "y"),
    *("d/M/yy", "EEE dd MMM yyyy", "EEEE, d MMMM", "h:mm a", "hh a", "M", "H:m:s", "ddMMyy", "E"),
    *("yyyy-MM-dd HH", "MMM_yyyy", "MM", "yyyy", "YYYY-MM-DD", "MMMMM", "ddd", "D", "Q", "SSS"),
    *("yyyyy", "yyyyy-MM", "HHH", "aa", "EEEEE", "yyy", "dM", "L", "yyyy-MM-dd HH:mm:ss.SSS"),
]
FORMATTED = [f"'{form}'" for form in FORMATS] + ["\"yyyy-MM-dd'T'HH:mm\"", "'yyyy-MM''T''HH'"]
PADDINGS = [("a_string", n, by) for n in ("0", "1", "3", "7") for by in ("' '", "'ab'", "'ä'")]
#: Regular expressions; those that are not read alike run on Spark.
PATTERNS = [
    *("'a'", "'^a'", "'b$'", "'.'", "'[a-z]+'", "'[^a]'", "'\\\\s+'", "'(a)( )?'", "'(?:a|b)+'"),
    *(
        "'\\\\w'",
        "'a|b'",
        "'(a|A)b'",
        "'\\\\.'",
        "'x*'",
        "'\u00e4'",
        "'^$'",
        "'a{1,2}'",
        "'(a+)(b*)'",
    ),
]
MEASURED = ["a_double", "a_int", "a_bigint", "a_decimal_18_6"]
EXACT = [column("a", kind) for kind in VALUES if kind.startswith(("decimal", "int", "bigint"))]
#: Operands that must be literals, beside all columns.
LITERALS = {
    "substring": [
        *(("a_string", "1", "2"), ("a_string", "2", "0"), ("a_string", "3", "100")),
        *(("a_string", "1"), ("a_string", "2"), ("a_string", "100")),
        *(("a_string", "-1"), ("a_string", "-3"), ("a_string", "-100"), ("a_string", "0")),
        *(("a_string", "-2", n) for n in ("0", "1", "2", "5")),
        *(("a_string", "-4", n) for n in ("1", "2", "3", "9")),
        *((name, "2", "3") for name in UNLIKE),
    ],
    **dict.fromkeys(("left", "right", "repeat"), NUMBERS_OF_CHARACTERS),
    **dict.fromkeys(("lpad", "rpad"), PADDINGS),
    "split_part": [("a_string", by, n) for by in ("' '", "'a'", "'%_'") for n in ("1", "2", "9")],
    "round": [
        *((name, n) for name in EXACT for n in ("0", "1", "2", "20") if "38" not in name),
        *((name,) for name in EXACT if "38" not in name),
        *(("a_decimal_38_10", n) for n in ("0", "2", "9")),
    ],
    "substring_index": [
        ("a_string", by, n) for by in ("' '", "'a'") for n in ("1", "2", "-1", "-2", "9", "-9")
    ],
    "split_by_sign": [("a_string", "'\\\\.'"), ("a_string", "'\\\\|'")],
    "round_before_point": [
        (name, n) for name in EXACT for n in ("-1", "-2", "-5", "-9") if "38" not in name
    ],
    "shiftright": [
        (f"a_{kind}", n) for kind in ("int", "bigint", "tinyint") for n in ("0", "1", "31")
    ],
    **{name: [("a_string", p) for p in PATTERNS] for name in ("regexp_substr", "regexp_count")},
    "percentile": [
        *((name, part) for name in MEASURED for part in ("0", "0.5", "0.9", "1", "0.123456")),
    ],
    "array_join": [("a_array_string", by) for by in ("'-'", "''")],
    "power": [(name, "2") for name in MEASURED],
    "round_double_to": [("a_double", n) for n in ("0", "1", "2", "3", "6", "10")],
    "split": [("a_string", by) for by in ("' '", "'a'", "'-'", "'a b'")],
    "ilike": [("a_string", p) for p in ("'A%'", "'%B%'", "'_'", "''", "'a'", "'%\u00e4'")],
    "rlike": [("a_string", p) for p in PATTERNS],
    "regexp_replace": [
        *(("a_string", p, by) for p in PATTERNS for by in ("''", "'<>'", "'a'")),
    ],
    "regexp_extract": [
        *(("a_string", p, n) for p in PATTERNS for n in ("0", "1", "2")),
    ],
    "date_format": [
        (x, f) for x in ("a_timestamp", "a_timestamp_ntz", "a_date") for f in FORMATTED
    ],
    "from_unixtime": [(x, f) for x in ("a_bigint", "a_int", "a_smallint") for f in FORMATTED],
    "to_date_by": [(x, f) for x in ("days", "texts") for f in FORMATTED],
    "to_timestamp": [(x, f) for x in ("days", "texts") for f in FORMATTED],
    "next_day": [
        (x, f"'{day}'")
        for x in ("a_date", "a_timestamp_ntz")
        for day in ("MO", "tuesday", "Wed", "th", "FRI", "sat", "Sunday", "x")
    ],
    "concat_ws_list": [("'-'", "a_array_string"), ("''", "a_array_string")],
    "add_months_of": [
        ("a_date", "a_int"),
        ("b_date", "a_tinyint"),
        ("a_timestamp_ntz", "b_smallint"),
    ],
    "unix_timestamp": [("a_timestamp",), ("a_timestamp_ntz",), ("a_date",)],
    "make_date": [("a_int", m, d) for m, d in (("1", "1"), ("2", "29"), ("12", "31"), ("4", "31"))],
    "add_months": [("a_date", n) for n in ("0", "1", "-1", "11", "-12", "13", "1200")],
    "date_add": [("a_date", n) for n in ("0", "1", "-31", "365")],
    "add_days": [("a_date", n) for n in ("0", "1", "365")],
    "subtract_days": [("a_date", n) for n in ("0", "1", "365")],
    "like": [("a_string", p) for p in ("'a%'", "'_'", "'%b%'", "''", "'%'", "'__'", "'A'")],
}


def cases_of(rule: Admitted) -> list[Case]:
    if rule.name in LITERALS:
        calls = [(f"{rule.name}{x}", spelled(rule, list(x))) for x in LITERALS[rule.name]]
        return [(name, call) for name, call in calls if is_admitted(call)]
    cases = []
    for count in rule.arity:
        for kinds in itertools.product(TYPES, repeat=count):
            if count == 3 and rule.name != "if" and len(set(kinds[1:])) > 1:
                continue  # the third operand widens as the second does
            if rule.name == "nvl2" and kinds[0] not in ("int", "string", "array<int>"):
                continue  # of the first it only asks whether it is there
            joins = rule.name in ("concat", "pipes", "concat_ws")
            if joins and kinds[0] != kinds[1] and "string" not in kinds:
                continue  # each is made a string by itself
            if accepts(rule, [Typed("", parse_type(kind)) for kind in kinds]):
                names = [column(o, k) for o, k in zip(OPERANDS, kinds, strict=False)]
                cases.append((f"{rule.name}({', '.join(kinds)})", spelled(rule, names)))
    return cases


def cast_cases(word: str) -> list[Case]:
    return [
        (f"{word}({source} as {target})", f"{word}({column('a', source)} AS {target})")
        for source, target in itertools.product(TYPES, repeat=2)
        if castable(parse_type(source), parse_type(target))
    ] + [
        (f"{word}(texts as {target})", f"{word}(texts AS {target})")
        for target in TYPES
        if castable(pa.string(), parse_type(target))
    ]


#: Entries that may raise where Spark has a value, and then leave the epoch to Spark.
DEFERRING = (
    *(f"{rule.name}(" for rule in SCALARS if rule.defers),
    *(f"cast({source} " for source in ("string", "texts", "double")),
    *("to_date(string", "CAST(texts", "to_date(texts", "try_cast(", "regexp_replace(", "rlike("),
    *("date_format", "from_unixtime", "to_date_by", "to_timestamp", "date_sub(", "add_months_of"),
    *("CAST(a_double", "a_string ILIKE ANY", "a_date + a_int", "a_date - b_int"),
    *("regexp_extract(", "ilike(", "make_date(", "a_string NOT ILIKE", "NOT a_string RLIKE"),
    *("CAST(make_date(", "CAST(date_add(", "date_format(date_add("),
    # A string that is no number raises beside a NULL, too, where Spark does not look at it.
    *(
        f"{name}({', '.join(kinds)}"
        for name in ("eq", "ne", "lt", "le", "gt", "ge", "same", "distinct", "between", "in")
        for kinds in itertools.product(TYPES, repeat=2)
        if "string" in kinds and kinds != ("string", "string")
    ),
    *(f"equal_null({a}, {b}" for a, b in itertools.permutations(TYPES, 2) if "string" in (a, b)),
    *("round(a_decimal_4_2 /", "a_decimal_38_10 / b_decimal_4_2 - 1"),
    *("sequence(", "try_to_", "texts = 1", "1 <> texts", "a_string <=> 1"),
    *("cast(texts as boolean)", "CAST(texts AS boolean)", "CAST(a_bigint AS timestamp)"),
    *("from_utc_timestamp(", "to_utc_timestamp(", "convert_timezone(", "cast(bigint as timestamp)"),
)


#: Literals, CASE, and rewrites that have no entry of their own.
OTHERS = [
    *("1", "-1", "2147483647", "2147483648", "-2147483648", "1.50", "0.05", "-0.5", "10L", "1.5D"),
    *(
        "'it\\'s'",
        "true",
        "CAST(NULL AS int)",
        "DATE '2024-02-29'",
        "TIMESTAMP '2024-02-29 01:02:03.5'",
    ),
    *("a_decimal_4_2 + 1", "a_decimal_4_2 * 100", "1 - a_decimal_4_2", "a_decimal_4_2 * 0.5"),
    *("100 - a_tinyint", "a_smallint * 2", "a_bigint + 1", "a_int - 2147483648", "a_double * 2"),
    *("a_decimal_4_2 > 5", "a_bigint = 9223372036854775807", "a_tinyint < 1000"),
    *("a_date >= '2024-02-29'", "a_timestamp < '2024-02-29 12:30:01'", "a_date IN ('1970-01-01')"),
    *("a_date BETWEEN '1970-01-01' AND '2024-12-31'", "a_timestamp_ntz = '1970-01-01'"),
    "CASE WHEN a_int > 0 THEN a_int WHEN b_boolean THEN b_bigint END",
    "CASE a_int WHEN 1 THEN 'one' WHEN b_bigint THEN 'b' ELSE a_string END",
    "CASE WHEN a_boolean THEN a_decimal_4_2 ELSE 0 END",
    "CASE WHEN a_boolean THEN a_date END",
    *("coalesce(a_decimal_4_2, 0)", "coalesce(a_int, NULL, 5)", "nullif(a_int, b_bigint)"),
    *("nullif(a_string, '')", "nullif(a_double, 0.1D)", "nvl(a_int, 0)", "ifnull(a_string, 'x')"),
    *("a_int IS NULL", "a_string IS NOT NULL", "a_boolean IS TRUE", "a_boolean IS NOT FALSE"),
    *("a_int NOT IN (1, 2)", "a_int IN (1, NULL)", "a_int NOT IN (1, NULL)", "NOT a_int = b_int"),
    *("a_int != b_int", "a_string NOT LIKE 'a%'", "a_int NOT BETWEEN b_int AND c_int"),
    *(
        "a_double > 0.5",
        "a_double <= 0.1",
        "a_double = b_decimal_18_6",
        "a_double < b_decimal_38_10",
    ),
    *("a_double * 0.5", "a_double + a_decimal_38_10", "a_double / 3.7", "coalesce(a_double, 0.0)"),
    *("a_double BETWEEN -2.5 AND 0.1", "a_double IN (0.1, 1)", "to_date(texts)"),
    *("try_cast(texts AS int)", "try_cast(a_string AS bigint)", "try_cast(texts AS tinyint)"),
    *(
        "split(a_string, ' ')[0]",
        "element_at(split(a_string, ' '), 1)",
        "size(split(a_string, 'a'))",
    ),
    *(
        "array_join(split(a_string, ' '), '+')",
        "a_string NOT ILIKE 'a%'",
        "NOT a_string RLIKE '^a'",
    ),
    *("a_date + INTERVAL 1 MONTH", "a_date - INTERVAL '3' MONTHS", "a_date + INTERVAL '1' YEAR"),
    *("a_timestamp + INTERVAL 1 MONTH", "a_timestamp_ntz - INTERVAL 2 YEARS"),
    *("DATE '2024-01-31' + INTERVAL '1' MONTH", "abs(CAST(a_decimal_18_6 AS decimal(22,6)))"),
    *("- CAST(a_decimal_4_2 AS decimal(34,4))",),
    *("element_at(a_array_int, 1)", "element_at(a_array_string, -2)", "a_array_string[0]"),
    *("a_array_int[a_tinyint % 3]", "element_at(a_array_int, a_int)", "a_array_int[a_int]"),
    *("try_element_at(a_array_int, 2)", "try_element_at(a_array_string, a_int)"),
    *("array_contains(a_array_int, 1)", "array_contains(array('a', NULL), a_string)"),
    *("sort_array(a_array_string, false)[0]", "size(array(a_int, 1, NULL))", "exp(a_int / 7)"),
    *("ln(abs(b_double) + a_tinyint)", "coalesce(a_array_int, array(1))", "array(a_int, 1)[1]"),
    *("split(a_string, 'a')[1]", "replace(a_string, '\\\\', '/')"),
    *("CAST(0.5 AS string)", "CAST(make_date(a_int, 1, 1) AS string)"),
    *("CAST(date_add(a_date, 1) AS string)", "date_format(date_add(a_date, -366), 'yyyy')"),
    *("a_boolean = b_boolean IS NULL", "a_boolean <> b_boolean IS TRUE", "-1::string"),
    *("a_boolean = b_boolean < c_boolean", "a_int = b_int IN (c_boolean, NULL)"),
    *("c_boolean BETWEEN a_boolean AND a_int = b_int", "NOT a_int = b_int <=> c_boolean"),
    # An operand passes the range of its type where the comparison has an answer all the same.
    *("a_int + 1 > 5", "5 < a_bigint + 1", "a_int - 1 < 5", "a_bigint * 2 = 4", "1 - a_int > 3"),
    *("- a_smallint = 0", "- a_int > 3", "- a_bigint <> 1", "- a_tinyint IS NOT NULL"),
    *("a_int + 1 BETWEEN 1 AND 5", "a_smallint * 2S <=> 4S", "(a_int + 1) - 2 > 5"),
    "CASE WHEN a_int + 1 > 3 THEN 1 ELSE 1 END",
    # Of three arguments it is a number of whole units.
    *("datediff(day, a_timestamp, b_timestamp_ntz)", "date_diff(hour, a_date, b_timestamp)"),
    *("datediff(day, a_timestamp_ntz, b_date) > 0", "datediff(a_timestamp, b_timestamp_ntz)"),
    *("timestampadd(HOUR, 2, a_timestamp_ntz)", "dateadd(day, -1, a_date)"),
    *("dateadd(MONTH, 1, a_timestamp)", "date_add(YEAR, -1, a_timestamp_ntz)"),
    *("date_add(a_timestamp_ntz, 1)", "add_months(a_timestamp, 1)", "date_sub(a_timestamp, 3)"),
    *("a_timestamp_ntz > TIMESTAMP '2024-02-29 01:02:03.5'", "date_trunc('DAY', a_timestamp_ntz)"),
    *("date_part('hour', a_timestamp)", "datepart('dow', a_date)", "date_part('YEAR', a_date)"),
    *("extract(second FROM a_timestamp_ntz)", "date_part('second', a_timestamp)"),
    *("datediff(month, a_timestamp, b_timestamp_ntz)", "datediff(year, a_date, b_timestamp)"),
    *("timestampdiff(QUARTER, a_date, b_date)", "date_diff(MONTH, a_date, b_date)"),
    *("date_sub(a_date, a_int)", "date_sub(a_date, a_tinyint)", "a_date + a_int", "a_date - b_int"),
    *("try_cast(texts AS date)", "try_cast(texts AS double)", "try_cast(texts AS decimal(10,2))"),
    *("try_cast(texts AS timestamp)", "try_cast(days AS date)", "try_cast(days AS timestamp)"),
    *("a_string LIKE ANY ('a%', '_')", "a_string NOT LIKE ANY ('a%', '%b')", "a_int LIKE '%1'"),
    *("a_string LIKE ALL ('a%', '%b')", "a_string NOT LIKE ALL ('a%', '_')", "a_date LIKE '20%'"),
    *("a_string ILIKE ANY ('A%', 'b')", "a_int || '-' || b_date"),
    *("concat(year(a_date), 'Q', quarter(a_date))", "concat_ws('-', a_int, a_string, b_boolean)"),
    *("trim(BOTH 'a ' FROM a_string)", "trim('' FROM a_string)", "btrim(a_string, 'a')"),
    *("CAST(a_double AS decimal(10,2))", "CAST(a_double AS decimal(38,10))"),
    *("split(replace(a_string, ' ', '|'), '\\\\|')", "split(replace(a_string, 'a', '.'), '\\\\.')"),
    *("CAST('x' AS string)", "CAST(CAST('7' AS string) AS int)", "split(a_string, '%')[0]"),
    *("round(a_decimal_4_2 / b_decimal_18_6 * 100, 2)", "a_decimal_38_10 / b_decimal_4_2 - 1"),
    *("substr(a_string, instr(a_string, 'a') + 1)", "substring(a_string, 1, length(a_string) - 1)"),
    *("a_int = '5'", "a_bigint > '7'", "a_decimal_4_2 < '0.06'", "a_double = '0.1'", "texts = 1"),
    *("a_boolean = 'true'", "a_boolean IN ('false')", "a_int IN ('1', '10')", "1 <> texts"),
    *("a_int BETWEEN '0' AND '9'", "a_string <=> 1", "'2' >= a_tinyint", "a_decimal_18_6 IN ('0')"),
    *("sequence(a_tinyint, 5)", "sequence(1, a_smallint, 3)", "sequence(a_int % 7, -2)"),
    *("sequence(a_date, DATE '2024-03-31')", "sequence(DATE '2024-01-31', a_date, INTERVAL 1 DAY)"),
    *("sequence(DATE '2023-12-31', a_date, INTERVAL 1 MONTH)", "sequence(a_bigint, b_int)"),
    *("decode(a_int, 1, 'a', -1, 'b', 'c')", "decode(a_string, 'a', b_date, NULL, a_date)"),
    *("decode(a_int, b_bigint, a_date)", "nullifzero(a_int)", "nullifzero(a_decimal_4_2)"),
    *("zeroifnull(a_tinyint)", "zeroifnull(a_decimal_4_2)", "zeroifnull(a_double)"),
    *("try_to_date(texts)", "try_to_timestamp(texts)", "try_to_timestamp(a_date)"),
    *("(a_int, a_string) IN ((1, 'a'), (10, 'ab'))", "(a_int, b_date) NOT IN ((1, a_date))"),
    "(a_boolean, b_int) IN ((false, 1), (true, c_int))",
    *("a_timestamp - b_timestamp > INTERVAL 1 DAY", "a_timestamp_ntz - b_date <= INTERVAL 2 HOURS"),
    *(
        "a_date - b_date = INTERVAL '0' DAYS",
        "INTERVAL '10' MINUTE < a_timestamp - b_timestamp_ntz",
    ),
    *(
        "(a_timestamp_ntz - b_timestamp_ntz) <> INTERVAL -1 SECOND",
        "extract(yearofweek FROM a_date)",
    ),
    *(
        call.format(time=time, zone=zone)
        for call in (
            "from_utc_timestamp({time}, '{zone}')",
            "to_utc_timestamp({time}, '{zone}')",
            "convert_timezone('{zone}', 'Asia/Shanghai', {time})",
            "convert_timezone('{zone}', {time})",
        )
        for time in ("a_timestamp", "a_timestamp_ntz", "a_date")
        for zone in ("Europe/Berlin", "UTC", "America/New_York", "Asia/Kolkata")
    ),
    *("date_sub(a_date, 1)", "date_add(a_date, 30)", "substr(a_string, 1, 1)", "mod(a_int, 10)"),
]

ENTRIES = [
    *(cases_of(rule) for rule in SCALARS),
    cast_cases("cast"),
    cast_cases("try_cast"),
    [(text, text) for text in OTHERS],
]
SCALAR_CASES = [case for cases in ENTRIES for case in cases]


def cases_of_today() -> list[Case]:
    """A few of each entry, and so many that those of the many types of one have their turn soon."""
    chosen = random.Random(daily())
    return [
        case
        for cases in ENTRIES
        for case in chosen.sample(cases, min(len(cases), 3 + len(cases) // 20))
    ]


TODAY = cases_of_today()


_SETS = ("collect_set",)


def aggregate_cases() -> list[Case]:
    cases = [("count(*)", "count(*)")]
    for rule in AGGREGATES:
        for name, call in cases_of(rule) if not rule.by_order else ():
            cases.append((name, call))
            if not call.startswith("sort_array"):  # its FILTER is within
                cases.append((f"{name} filter", f"{call} FILTER (WHERE b_boolean)"))
            exact = not any(
                kind in name for kind in ("float", "double", "percentile", "median", "array<")
            )
            if exact and "DISTINCT" not in call and rule.name not in ("count_if", *_SETS):
                within = "collect_list(" if "collect_list(" in call else "("
                cases.append((f"{name} distinct", call.replace(within, f"{within}DISTINCT ", 1)))
    return cases


def plain(column: pa.ChunkedArray) -> list[Any]:
    """Values; dates and times as numbers, as Python cannot hold all of them."""
    if pa.types.is_date(column.type):
        column = column.cast(pa.int32())
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    if column.type == pa.list_(parse_type("timestamp")):
        column = column.cast(pa.list_(pa.int64()))
    return column.to_pylist()


AGGREGATE_CASES = aggregate_cases()
#: Aggregates that leave large values to Spark.
DEFERRED = tuple(f"{rule.name}(" for rule in AGGREGATES if rule.defers)


def normal(value: Any) -> Any:
    """A value that compares as bits do, but for NaN: both engines have one NaN."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else repr(value)
    if isinstance(value, list):
        return [normal(element) for element in value]
    return bytes(value) if isinstance(value, bytearray) else value


@pytest.fixture(scope="module")
def evaluator() -> LocalEvaluator:
    return LocalEvaluator()


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> pa.Table:
    # Without a schema, Spark would make instants out of timestamp_ntz columns.
    ddl = ", ".join(f"`{f.name}` {type_name(f.type)}" for f in ROWS.schema)
    spark.createDataFrame(ROWS, schema=ddl).createOrReplaceTempView("rows")
    return ROWS


def spark_schema(spark: SparkSession, sql: str) -> pa.Schema:
    fields = spark.sql(sql).schema.fields
    return pa.schema([(f.name, parse_type(f.dataType.simpleString())) for f in fields])


def local_values(
    evaluator: LocalEvaluator, call: str, result: pa.Schema, rows: pa.Table
) -> dict[int, Any]:
    """Row id -> value; rows on which DuckDB raises are absent.

    Where one raises, rows with equal operands are evaluated once: they are many, and those that
    raise are found one by one.
    """
    operands = [name for name in rows.column_names if name in re.split(r"\W+", call)]
    narrow = rows.select(["id", *operands])
    try:
        return evaluated(evaluator, call, result, narrow)
    except EvaluationError:
        alike: dict[str, list[int]] = {}
        for row, *cells in zip(*map(plain, narrow.columns), strict=True):
            alike.setdefault(repr(cells), []).append(row)
    first = narrow.filter(pc.is_in(narrow["id"], pa.array([ids[0] for ids in alike.values()], INT)))
    found = some_values(evaluator, call, result, first)
    return {row: found[ids[0]] for ids in alike.values() if ids[0] in found for row in ids}


def some_values(
    evaluator: LocalEvaluator, call: str, result: pa.Schema, rows: pa.Table
) -> dict[int, Any]:
    """The same of rows of which some may raise."""
    try:
        return evaluated(evaluator, call, result, rows)
    except EvaluationError:
        if rows.num_rows == 1:
            return {}
        half = rows.num_rows // 2
        left = some_values(evaluator, call, result, rows.slice(0, half))
        return left | some_values(evaluator, call, result, rows.slice(half))


def evaluated(
    evaluator: LocalEvaluator, call: str, result: pa.Schema, rows: pa.Table
) -> dict[int, Any]:
    """Row id -> value; raises where DuckDB does on any row."""
    table = evaluator.run(f"SELECT id, {call} AS v FROM rows", {"rows": rows}, result)
    values = zip(table.column("id").to_pylist(), plain(table.column("v")), strict=True)
    return {row: normal(value) for row, value in values}


def check_scalars(
    spark: SparkSession, evaluator: LocalEvaluator, rows: pa.Table, cases: list[Case]
) -> list[str]:
    """Names of the cases that differ, with the first difference."""
    calls = [f"{call} AS v{n}" for n, (_, call) in enumerate(cases)]
    schema = spark_schema(spark, f"SELECT {', '.join(calls)} FROM rows")
    local, guarded, problems = [], ["id"], []
    for n, (_, call) in enumerate(cases):
        result = pa.schema([("id", INT), ("v", schema.field(n).type)])
        values = local_values(evaluator, call, result, rows)
        local.append(values)
        wrong = sorted(set(range(rows.num_rows)) - set(values))
        text = f"({call})"
        if wrong:
            if cases[n][0].startswith(DEFERRING):
                assert values or "texts" in call or "_string" in call, f"{call} never has a value"
            text = f"CASE WHEN id NOT IN ({', '.join(map(str, wrong))}) THEN {text} END"
            if not cases[n][0].startswith(DEFERRING):
                problems += must_raise(spark, cases[n], wrong)
        guarded.append(f"{text} AS v{n}")
    try:
        table = spark.sql(f"SELECT {', '.join(guarded)} FROM rows").toArrow()
    except PySparkException:
        return problems + raised(spark, cases, guarded)
    ids = table.column("id").to_pylist()
    for n, (name, _) in enumerate(cases):
        got = plain(table.column(f"v{n}"))
        for row, value in zip(ids, got, strict=True):
            if row in local[n] and normal(value) != local[n][row]:
                problems.append(f"{name}: row {row}: Spark {value!r}, DuckDB {local[n][row]!r}")
                break
    return problems


def raised(spark: SparkSession, cases: list[Case], guarded: list[str]) -> list[str]:
    """The cases that raise in Spark on rows where DuckDB has a value."""
    problems = []
    for (name, _), text in zip(cases, guarded[1:], strict=True):
        try:
            spark.sql(f"SELECT {text} FROM rows").toArrow()
        except PySparkException as error:
            problems.append(f"{name}: Spark raises {str(error)[:200]}")
    return problems


def must_raise(spark: SparkSession, case: Case, wrong: list[int]) -> list[str]:
    name, call = case
    for row in {wrong[0], wrong[-1]}:
        try:
            value = spark.sql(f"SELECT {call} AS v FROM rows WHERE id = {row}").toArrow()
        except PySparkException:
            continue
        return [f"{name}: row {row}: DuckDB raises, Spark gives {plain(value['v'])}"]
    return []


BATCH = 40


@pytest.mark.spark
@pytest.mark.parametrize("start", range(0, len(TODAY), BATCH))
def test_some_scalars_equal_spark(
    spark: SparkSession, evaluator: LocalEvaluator, rows: pa.Table, start: int
) -> None:
    problems = check_scalars(spark, evaluator, rows, TODAY[start : start + BATCH])
    assert not problems, "\n".join(problems)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("start", range(0, len(SCALAR_CASES), BATCH))
def test_scalars_equal_spark(
    spark: SparkSession, evaluator: LocalEvaluator, rows: pa.Table, start: int
) -> None:
    problems = check_scalars(spark, evaluator, rows, SCALAR_CASES[start : start + BATCH])
    assert not problems, "\n".join(problems)


@pytest.mark.spark
@pytest.mark.parametrize("group", ["", "g, "])
def test_averages_of_small_bigints_equal_spark(
    spark: SparkSession, evaluator: LocalEvaluator, rows: pa.Table, group: str
) -> None:
    calls = ("avg(a_bigint)", "avg(DISTINCT a_bigint)", "avg(a_bigint) FILTER (WHERE b_boolean)")
    texts = ", ".join(f"{call} AS v{n}" for n, call in enumerate(calls))
    tail = "FROM rows WHERE abs(a_decimal_9_0) >= 0 AND a_bigint BETWEEN -7 AND 1"
    tail += " GROUP BY g" if group else ""
    agree(spark, evaluator, f"SELECT {group}{texts} {tail}", {"rows": rows})


@pytest.mark.spark
def test_cases_of_all_characters_equal_spark(
    spark: SparkSession, evaluator: LocalEvaluator, tmp_path: Path
) -> None:
    points = [point for point in range(1, 0x10000) if not 0xD800 <= point <= 0xDFFF]
    table = pa.table({"c": pa.array(points, INT), "s": list(map(chr, points))})
    pq.write_table(table, tmp_path / "points.parquet")
    spark.read.parquet(str(tmp_path / "points.parquet")).createOrReplaceTempView("points")
    for name, other in (("upper", _NO_UPPER), ("lower", _NO_LOWER)):
        sql = f"SELECT c, {name}(s) AS a, {name}(concat('a', s, 'b')) AS b, "
        sql += f"{name}(concat('A', s)) AS e FROM points"
        plain = re.compile(f"[{re.sub(r'.x{{(.*?)}}', lambda m: chr(int(m[1], 16)), other)}]")
        kept = table.filter(pa.array([plain.match(chr(point)) is None for point in points]))
        assert kept.num_rows > 62_000
        result = pa.schema([("c", INT), *((n, pa.string()) for n in "abe")])
        local = evaluator.run(sql, {"points": kept}, result).sort_by("c")
        wanted = spark.sql(sql).toArrow().sort_by("c")
        wanted = wanted.filter(pc.is_in(wanted["c"], kept["c"].combine_chunks()))
        assert local.to_pylist() == wanted.to_pylist()


#: Aggregates that round by the order of rows: those are close, and NULL, NaN and infinite alike.
BY_ORDER = [
    *(
        "sum(f)",
        "avg(f)",
        "sum(f) FILTER (WHERE k > 3)",
        "stddev(f)",
        "stddev_pop(f)",
        "variance(f)",
    ),
    *("var_pop(f)", "stddev_samp(k)", "variance(n)", "covar_pop(f, h)"),
    *("covar_samp(f, h)", "stddev(h)", "sum(h)", "max(f)", "min(f)", "max(h)", "min(h)"),
    *("max(f) FILTER (WHERE k > 3)", "min(h) FILTER (WHERE k < 3)"),
]
#: The same to the last bit in any order: medians of the same data.
BY_RANK = ["median(f)", "percentile(f, 0.9)", "percentile(h, 0.25)", "median(k)", "median(n)"]


SAME = pa.table({"f": [2.5, 2.5], "h": [1.0, 2.0]})


def measures() -> pa.Table:
    """Groups of 0 to 40 doubles; of some NULL, NaN and infinities, of others one value again."""
    chance, rows = random.Random(daily()), []
    for group in range(60):
        for _ in range(chance.choice([1, 2, 3, 10, 40])):
            h = {0: None, 1: NAN, 2: INF, 3: 2.5}.get(group, chance.uniform(-1e3, 1e3))
            f = chance.choice([chance.gauss(0, 1e6), chance.random(), 0.0, None])
            n = D(chance.randrange(-(10**6), 10**6)) / 100
            rows.append((len(rows), group, f, h, chance.randrange(-9, 9), n))
    kinds = ("int", "int", "double", "double", "bigint", "decimal(9,2)")
    columns = zip(kinds, zip(*rows, strict=True), strict=True)
    return pa.table([pa.array(c, parse_type(kind)) for kind, c in columns], names=list("igfhkn"))


@pytest.mark.spark
def test_what_rounds_by_the_order_of_rows_is_close_to_spark(
    spark: SparkSession, evaluator: LocalEvaluator
) -> None:
    table = measures()
    spark.createDataFrame(table).createOrReplaceTempView("measures")
    # Of what has one value there is no correlation: Spark raises, and so do we.
    spark.sql("SELECT 2.5D AS f, 1D AS h UNION ALL SELECT 2.5D, 2D").createOrReplaceTempView("same")
    agree(spark, evaluator, "SELECT corr(f, h) AS v FROM same", {"same": SAME})
    both = "SELECT g, corr(i, n) AS v0, corr(n, h) AS v1 FROM measures WHERE g > 9 GROUP BY g"
    close(spark, evaluator, both, ["corr(i, n)", "corr(n, h)"], table)
    calls = [*BY_ORDER, *BY_RANK]
    texts = ", ".join(f"{call} AS v{n}" for n, call in enumerate(calls))
    close(spark, evaluator, f"SELECT g, {texts} FROM measures GROUP BY g", calls, table)


def close(
    spark: SparkSession, evaluator: LocalEvaluator, sql: str, calls: list[str], table: pa.Table
) -> None:
    """Check that all calls of a query give what Spark does, but for the last digits."""
    got = evaluator.run(sql, {"measures": table}, spark_schema(spark, sql)).sort_by("g")
    wanted = spark.sql(sql).toArrow().sort_by("g")
    assert got.num_rows > 3
    for n, call in enumerate(calls):
        for left, right in zip(got[f"v{n}"].to_pylist(), wanted[f"v{n}"].to_pylist(), strict=True):
            exact = call in BY_RANK or left is None or right is None
            if exact or not (math.isfinite(left) and math.isfinite(right)):
                assert normal(left) == normal(right), call
            else:
                # What cancels out leaves the error of the largest value, 5e6, and of its square.
                slack = 1e-3 if "var" in call or "cov" in call else 1e-7
                assert math.isclose(left, right, rel_tol=1e-9, abs_tol=slack), call


@pytest.mark.spark
def test_roundings_and_powers_of_doubles(spark: SparkSession, evaluator: LocalEvaluator) -> None:
    chance = random.Random(daily())
    values = [chance.gauss(0, 10 ** chance.randrange(-6, 18)) for _ in range(20_000)]
    # Halves, as they are written and as they come of sums.
    values += [n / 1000 for n in range(-2_000, 2_000)]
    values += [n * 0.01 + 0.005 for n in range(2_000)]
    table = pa.table({"id": pa.array(range(len(values)), INT), "f": values})
    spark.createDataFrame(table).createOrReplaceTempView("doubles")
    texts = ", ".join(f"round(f, {n}) AS v{n}" for n in range(11))
    powers = ["f, 2", "f, 3", "abs(f), 0.3", "f, id % 41 - 20", "1.5, f", "abs(f), 1 / (f * f + 1)"]
    texts += "".join(f", power({pair}) AS p{n}" for n, pair in enumerate(powers))
    sql = f"SELECT id, round(f) AS v, {texts} FROM doubles"
    agree(spark, evaluator, sql, {"doubles": table})


@pytest.mark.spark
def test_months_between_all_kinds_of_days(spark: SparkSession, evaluator: LocalEvaluator) -> None:
    chance, first = random.Random(daily()), dt.date(1900, 1, 1)
    days = [first + dt.timedelta(days=chance.randrange(80_000)) for _ in range(4_000)]
    days += [
        dt.date(y, m, 1) - dt.timedelta(days=1) for y in range(2000, 2030) for m in range(1, 13)
    ]
    others = chance.sample(days, len(days))
    table = pa.table({"d": days, "e": others})
    spark.createDataFrame(table).createOrReplaceTempView("days")
    sql = "SELECT d, e, months_between(d, e) AS v, months_between(e, d) AS w FROM days"
    agree(spark, evaluator, sql, {"days": table})


#: Texts in JSON, well written or not, with what a reader may take for the key `a`.
JSON = [
    None, "", "{}", '{"a": 1}', '{"a": "x"}', '{"a": null}', '{"a": true}', '{"a": 1.50}',
    '{"a": {"b": "c"}}', '{"a": {"b": 7}}', '{"a": [1, 2]}', "[1]", '"a"', "a", '{"a": 1,}',
    '{"b": 1, "a": "two\\nlines"}', '{"a": "\\u00e4"}', '{"a": "ä"}', '{"a": -0}', '{"a": NaN}',
    '{"a": 12345678901234567890}', '{"a": "x"} rest', "{'a': 1}", '{"a":"x","a":"y"}', '{"A": 1}',
    '{"a": {"x": 1}, "a": {"b": 2}}', '{"a": null, "a": {"b": 2}}',
    '[{"a": 1}]', '{"a": 1e3}', '{"a": ""}', ' {"a" : "x" } ', '{"a": "q\\"q"}', '{"a": 01}',
]  # fmt: skip


@pytest.mark.spark
def test_values_in_json_equal_spark(spark: SparkSession, evaluator: LocalEvaluator) -> None:
    ids = pa.array(range(len(JSON)), INT)
    table = pa.table({"id": ids, "s": pa.array(JSON, pa.string())})
    spark.createDataFrame(table).createOrReplaceTempView("texts")
    for path in ("$.a", "$.a.b", "$.b"):
        call = f"get_json_object(s, '{path}')"
        sql = f"SELECT id, {call} AS v FROM texts"
        result = spark_schema(spark, sql)
        wanted = dict(zip(*(c.to_pylist() for c in spark.sql(sql).toArrow().columns), strict=True))
        got = local_values(evaluator, call.replace("texts", "rows"), result, table)
        assert {row: wanted[row] for row in got} == got
        assert len(got) > len(JSON) // 3


#: Sums that pass the largest value of their type; some only by groups.
OVERFLOWS = ["sum(a_bigint)", "sum(a_decimal_38_0)", "sum(a_decimal_38_10)"]


def outcome(run: Callable[[], pa.Table]) -> list[Any] | str:
    """Rows in an order of their own, or the word `error`."""
    try:
        table = run()
    except (PySparkException, EvaluationError):
        return "error"
    columns = [[normal(value) for value in plain(column)] for column in table.columns]
    return sorted(zip(*columns, strict=True), key=repr)


def agree(
    spark: SparkSession, evaluator: LocalEvaluator, sql: str, tables: dict[str, pa.Table]
) -> None:
    result = spark_schema(spark, sql)
    wanted = outcome(lambda: spark.sql(sql).toArrow())
    assert outcome(lambda: evaluator.run(sql, tables, result)) == wanted, sql


@pytest.mark.spark
@pytest.mark.parametrize("group", ["", "g, "])
def test_aggregates_equal_spark(
    spark: SparkSession, evaluator: LocalEvaluator, rows: pa.Table, group: str
) -> None:
    # The extreme values overflow a sum of all rows: leave one half of each type out.
    small = "id % 12 < 4 AND id < 60"
    tail = f"FROM rows WHERE {small}" + (" GROUP BY g" if group else "")
    whole = [(name, call) for name, call in AGGREGATE_CASES if not name.startswith(DEFERRED)]
    for chunk in (whole[i : i + BATCH] for i in range(0, len(whole), BATCH)):
        calls = ", ".join(f"{call} AS v{n}" for n, (_, call) in enumerate(chunk))
        agree(spark, evaluator, f"SELECT {group}{calls} {tail}", {"rows": rows})


@pytest.mark.spark
@pytest.mark.parametrize("call", OVERFLOWS)
@pytest.mark.parametrize("where", ["a_bigint > 0", "a_decimal_38_0 > 0", "a_bigint < 0"])
def test_sums_overflow_alike(
    spark: SparkSession, evaluator: LocalEvaluator, rows: pa.Table, call: str, where: str
) -> None:
    agree(spark, evaluator, f"SELECT {call} AS v FROM rows WHERE {where}", {"rows": rows})


@pytest.fixture(scope="module")
def tables(spark: SparkSession) -> dict[str, pa.Table]:
    tables = {"l": L, "r": R}
    for name, table in tables.items():
        spark.createDataFrame(table).createOrReplaceTempView(name)
    return tables


@pytest.mark.spark
@pytest.mark.days(3)
@pytest.mark.parametrize("sql", QUERIES)
def test_queries_equal_spark(
    spark: SparkSession, evaluator: LocalEvaluator, tables: dict[str, pa.Table], sql: str
) -> None:
    agree(spark, evaluator, sql, tables)


def admitted_text(call: str) -> str | None:
    """The DuckDB text of a call; None where it is not admitted, or no SQL."""
    try:
        tree = read(f"SELECT {call} AS v FROM rows")
    except SqlglotError:
        return None
    names = {"id", *re.split(r"\W+", call)}
    columns = {f.name: f.type for f in ROWS.schema if f.name in names}
    try:
        return translate(tree, {"rows": columns}).sql
    except NotAdmittedError:
        return None


#: Calls that mean the same with their last argument, as Spark's own defaults.
DEFAULTS = ("sort_array(", "lag(", "lead(", "split(")


def test_no_argument_is_dropped() -> None:
    """Of each function with one or two arguments more, and with one less: nothing is guessed."""
    listed = [*ENTRIES[: len(SCALARS)], *map(cases_of, AGGREGATES)]
    for rule, cases in zip((*SCALARS, *AGGREGATES), listed, strict=True):
        call = next((c for _, c in cases if re.fullmatch(r"\w+\(.*\)", c)), None)
        if call is None or call.startswith(DEFAULTS):
            continue
        text = admitted_text(call)
        for more in ("a_int", "'-'", "true", "2, 2", "a_int, 'a'"):
            assert admitted_text(f"{call[:-1]}, {more})") != text or text is None, (call, more)
        # With one less it is admitted or refused: another error would end `mview explain`.
        admitted_text(f"{call[: call.rfind(',')]})" if "," in call else f"{rule.name}()")
    assert admitted_text("percentile(a_double, 0.5, a_int)") is None
    assert admitted_text("listagg(a_string, ',', 1) WITHIN GROUP (ORDER BY a_string)") is None
    assert admitted_text("replace(a_string, 'a')") is None


def test_what_may_raise_may_be_the_key_of_a_window(evaluator: LocalEvaluator) -> None:
    """DuckDB refuses `error()` there, and only when it runs: each epoch would be one of Spark."""
    none, tried = ROWS.slice(0, 0), 0
    for call in (rule_cases[0][1] for rule_cases in ENTRIES if rule_cases):
        over = f"PARTITION BY {call} ORDER BY {call}, id"
        with suppress(NotAdmittedError):
            evaluator.run(f"SELECT row_number() OVER ({over}) AS v FROM rows", {"rows": none}, None)
            tried += 1
    assert tried > 120


def test_units_are_those_that_spark_knows() -> None:
    for unit in ("Q", "M", "D", "H", "Y", "W", "S", "mi", "hours", "years"):
        assert admitted_text(f"date_trunc('{unit}', a_timestamp)") is None
        assert admitted_text(f"trunc(a_date, '{unit}')") is None
    assert admitted_text("date_trunc('Day', a_timestamp)")
    assert admitted_text("trunc(a_date, 'MM')")
    for form in ("YYYY-MM-dd", "YYYY", "YY", "y", "y-MM", "yyyy-DD", "MMMMM", "ddd", "D"):
        assert admitted_text(f"date_format(a_date, '{form}')") is None
        assert admitted_text(f"from_unixtime(a_bigint, '{form}')") is None
        assert admitted_text(f"to_date(a_string, '{form}')") is None
    assert admitted_text("date_format(a_date, 'yyyy-MM')")


def test_every_entry_has_cases() -> None:
    names = [rule.name for rule in (*SCALARS, *AGGREGATES)]
    assert len(set(names)) == len(names)
    empty = [rule.name for rule in (*SCALARS, *AGGREGATES) if not cases_of(rule)]
    assert not empty
    assert {type_name(parse_type(kind)) for kind in TYPES} == set(TYPES)
