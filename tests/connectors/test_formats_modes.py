"""One row by every mode of Debezium, as real connectors wrote it (tests/data/debezium_modes.jsonl).

Debezium 3.5 from PostgreSQL 15 and MariaDB 10.11, with the schema envelope; without it is the same
message, cut. Each value is what SQL reads, or halts: none is another one.
"""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from mview_connectors.formats.debezium import DebeziumFormat

from mview.connector import Message
from mview.schema import Column, parse_type

_FILE = Path(__file__).parents[1] / "data" / "debezium_modes.jsonl"
MESSAGES = {one["case"]: one for one in map(json.loads, _FILE.read_text().splitlines())}

#: How each connector was set.
MODES = {
    "adaptive": {"time": "adaptive", "binary": "bytes"},
    "connect": {"time": "connect", "binary": "bytes"},
    "isostring": {"time": "isostring", "binary": "bytes"},
    "hex": {"binary": "hex", "decimal": "string", "time": "microseconds"},
    "base64": {"binary": "base64", "decimal": "double", "time": "nanoseconds"},
    "url": {"binary": "base64-url-safe", "time": "adaptive_time_microseconds"},
}
_NAMES = {
    "time": "time.precision.mode",
    "binary": "binary.handling.mode",
    "decimal": "decimal.handling.mode",
}
_UTC = dt.timezone.utc
_DAY = dt.date(2024, 2, 29)
_MILLI = dt.datetime(2024, 2, 29, 23, 59, 59, 123000)
_MICRO = dt.datetime(2024, 2, 29, 23, 59, 59, 123456)

#: By column: its type, its type at the source, and what SQL reads of it.
ROWS: dict[str, dict[str, tuple[str, str, Any]]] = {
    "pg": {
        "id": ("int", "integer", 1),
        "d": ("date", "date", _DAY),
        "ts6": ("timestamp_ntz", "timestamp without time zone", _MICRO),
        "ts3": ("timestamp_ntz", "timestamp(3) without time zone", _MILLI),
        "tz6": ("timestamp", "timestamp with time zone", _MICRO.replace(tzinfo=_UTC)),
        "t6": ("string", "time without time zone", "12:34:56.789012"),
        "t3": ("string", "time(3) without time zone", "12:34:56.78"),
        "t0": ("string", "time(0) without time zone", "12:34:56"),
        "b": ("binary", "bytea", bytes.fromhex("deadbeef00ff")),
        "b3": ("binary", "bytea", bytes.fromhex("69b71d")),
        "n4": ("decimal(10,0)", "numeric(10,0)", Decimal(1234)),
        "n5": ("decimal(38,18)", "numeric", Decimal("12.5")),
        "tsa": ("array<timestamp_ntz>", "timestamp without time zone[]", [_MICRO]),
        "da": ("array<date>", "date[]", [_DAY]),
        "na": ("array<decimal(12,2)>", "numeric(12,2)[]", [Decimal("-10.25"), None]),
        "bit3": ("binary", "bit(3)", b"\x04"),
        "u": ("string", "uuid", "abcdef00-e89b-12d3-a456-426614174000"),
        "big": ("string", "text", "1234"),
    },
    "maria": {
        "id": ("int", "int(11)", 1),
        "d": ("date", "date", _DAY),
        "dt6": ("timestamp_ntz", "datetime(6)", _MICRO),
        "dt3": ("timestamp_ntz", "datetime(3)", _MILLI),
        "dt0": ("timestamp_ntz", "datetime", _MILLI.replace(microsecond=0)),
        "ts6": ("timestamp", "timestamp(6)", _MICRO.replace(tzinfo=_UTC)),
        "t6": ("string", "time(6)", "12:34:56.789012"),
        "t3": ("string", "time(3)", "12:34:56.78"),
        "t0": ("string", "time", "12:34:56"),
        "tn": ("string", "time(3)", "-30:34:56.78"),
        "y0": ("int", "year(4)", 0),
        "y": ("int", "year(4)", 2024),
        "b": ("binary", "varbinary(16)", bytes.fromhex("deadbeef00ff")),
        "b4": ("binary", "binary(4)", bytes.fromhex("deadbe00")),
        "bit3": ("binary", "bit(3)", b"\x04"),
        "n2": ("decimal(12,2)", "decimal(12,2)", Decimal("-1010.25")),
        "n4": ("decimal(10,0)", "decimal(10,0)", Decimal(1234)),
    },
}

#: What connect has cut; and MariaDB's times that are none of a day, for which two modes send NULL.
_CUT = {"pg": {"ts6", "tsa", "t6"}, "maria": {"dt6", "t6"}}
_HALTS = {
    "pg_connect": _CUT["pg"],
    "maria_connect": {*_CUT["maria"], "tn"},
    "maria_isostring": {"tn"},
}


def read(case: str, *, enveloped: bool, stated: bool) -> dict[str, Any]:
    """By column: the value, or the error of the value."""
    kind, mode = case.split("_")
    one = MESSAGES[case]
    value = one["value"] if enveloped else one["value"]["payload"]
    options = {f"format.{_NAMES[n]}": text for n, text in MODES[mode].items()} if stated else {}
    decoder = DebeziumFormat(options)
    message = Message("t/0", 0, json.dumps(one["key"]).encode(), json.dumps(value).encode())
    (event,) = decoder.decode(message)
    assert event.after is not None
    found: dict[str, Any] = {}
    for name, (arrow, source_type, _) in ROWS[kind].items():
        column = Column(name, parse_type(arrow), True, source_type)
        try:
            found[name] = decoder.convert([event.after[name]], column)[0].as_py()
        except ValueError as error:
            found[name] = error
    return found


@pytest.mark.parametrize("case", MESSAGES)
@pytest.mark.parametrize(
    ("enveloped", "stated"), [(True, False), (True, True), (False, True), (False, False)]
)
def test_a_value_is_what_sql_reads_or_halts(case: str, enveloped: bool, stated: bool) -> None:
    kind, _ = case.split("_")
    found = read(case, enveloped=enveloped, stated=stated)
    halts = {name for name, value in found.items() if isinstance(value, ValueError)}
    wanted = {name: value for name, (_, _, value) in ROWS[kind].items() if name not in halts}
    assert {name: value for name, value in found.items() if name not in halts} == wanted
    for name in halts:
        told = str(found[name])
        cut = name in _CUT[kind] and "connect sends 3" in told
        assert "format." in told or cut or (name == "tn" and "more than a day" in told), told
    if stated:
        assert halts == _HALTS.get(case, set())
    elif enveloped:
        # Texts of bytes are the one thing that the envelope does not tell apart.
        assert halts - {"b3", "b", "b4"} == _HALTS.get(case, set())


def test_nan_is_lost_unless_it_is_sent_as_text() -> None:
    after = {
        mode: MESSAGES[f"pg_{mode}"]["value"]["payload"]["after"] for mode in ("adaptive", "hex")
    }
    # NOT NULL, and 0: what `check` and `run` warn of.
    assert [after["adaptive"][name] for name in ("n", "n2", "n3")] == [None, None, "AA=="]
    for mode, options in (("hex", {}), ("hex", {"format.decimal.handling.mode": "string"})):
        for name in ("n", "n2", "n3"):
            column = Column(name, parse_type("decimal(12,2)"), True, "numeric(12,2)")
            with pytest.raises(ValueError, match="NAN"):
                DebeziumFormat(options).convert([after[mode][name]], column)
