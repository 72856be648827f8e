"""What a text in JSON has at a path, where DuckDB and Spark read it alike."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mview.execute.local.admitted.entries import SPARK_DECIDES

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: What DuckDB takes and Spark does not: a comma before an end, numbers that are none. And escapes
#: by number, which may stand for half a character.
_LENIENT = r"(,\s*[}\]])|([:,\[]\s*-?[nNiI][aAnN])|(\\u)"


def is_plain_key(key: object) -> bool:
    """Whether a step of a path is a key that needs no quotes."""
    return isinstance(key, str) and _KEY.fullmatch(key) is not None


def json_scalar(text: str, keys: Sequence[str]) -> str:
    """DuckDB text: the string, truth or whole number that is below some keys; else Spark decides.

    A key that is not there gives NULL, and so does what is no object on the way. Of keys that an
    object on the way has twice, Spark looks at both.
    """
    paths = ["$", *("$." + ".".join(keys[: n + 1]) for n in range(len(keys)))]
    kinds = [f"json_type({text}, '{path}')" for path in paths]
    missing = " OR ".join(f"{kind} IS NULL" for kind in kinds[1:])
    inside = " AND ".join(f"{kind} = 'OBJECT'" for kind in kinds[:-1])
    names = [f"json_keys({text}, '{path}')" for path in paths[:-1]]
    twice = " OR ".join(f"len({name}) > len(list_distinct({name}))" for name in names)
    plain = f"{kinds[-1]} IN ('VARCHAR', 'BOOLEAN', 'BIGINT', 'UBIGINT')"
    return (
        f"(CASE WHEN {text} IS NULL THEN NULL "
        f"WHEN NOT json_valid({text}) OR regexp_matches({text}, '{_LENIENT}') "
        f"THEN CAST({SPARK_DECIDES} AS VARCHAR) "
        f"WHEN {twice} THEN CAST({SPARK_DECIDES} AS VARCHAR) "
        f"WHEN {kinds[0]} = 'OBJECT' AND ({missing}) THEN NULL "
        f"WHEN {inside} AND {plain} THEN json_extract_string({text}, '{paths[-1]}') "
        f"ELSE CAST({SPARK_DECIDES} AS VARCHAR) END)"
    )
