"""What other engines call otherwise: the words that people bring along, and what a view writes."""

from __future__ import annotations

_TIMES = "windows of time are groups: GROUP BY date_trunc('minute', t)"
_ROWS = "rows of numbers: SELECT explode(sequence(1, 10)) AS n"
_JSON = "get_json_object(text, '$.name')"
_NOW = "a view reads its tables as they are now; what it was: as_of() of its reader"

#: Functions, by what is written here.
FUNCTIONS = {
    "arg_max": "max_by(x, y)",
    "arg_min": "min_by(x, y)",
    "array_length": "size(a)",
    "convert": "CAST(x AS type)",
    "countif": "count_if(condition)",
    "cumulate": _TIMES,
    "datetime": "CAST(x AS TIMESTAMP)",
    "exclude": "SELECT * EXCEPT (column)",
    "format_date": "date_format(day, 'yyyy-MM')",
    "generate_series": _ROWS,
    "getdate": "now()",
    "group_concat": "listagg(x, ',') WITHIN GROUP (ORDER BY x)",
    "hop": _TIMES,
    "iif": "if(condition, a, b)",
    "mz_now": "now()",
    "proctime": "now()",
    "json_agg": "to_json(array_agg(x))",
    "json_extract": _JSON,
    "json_query": _JSON,
    "json_value": _JSON,
    "jsonb_agg": "to_json(array_agg(x))",
    "range": _ROWS,
    "safe_cast": "TRY_CAST(x AS type)",
    "session": _TIMES,
    "strftime": "date_format(time, 'yyyy-MM')",
    "string_to_array": "split(text, ',')",
    "strpos": "instr(text, part)",
    "tumble": _TIMES,
    "unnest": "FROM t LATERAL VIEW explode(t.a) AS x",
}

#: The same of calls that cannot be parsed: with Spark's own, whose name begins a clause here.
UNPARSED = {**FUNCTIONS, "window": _TIMES}

#: Clauses and operators, by the names that errors give them.
CLAUSES = {
    "DISTINCT ON": "SELECT … QUALIFY row_number() OVER (PARTITION BY a ORDER BY b) = 1",
    "FETCH": "LIMIT 10",
    "PARAMETER": "write the value itself",
    "PLACEHOLDER": "write the value itself",
    "SAMPLE": "take rows by their key: WHERE id % 10 = 0",
    "VERSION": _NOW,
}
