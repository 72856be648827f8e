"""Parts of the source databases that need no database: packets, bounds, ranges, values."""

from __future__ import annotations

import random
import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal
from itertools import product
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mview_connectors.databases.chunking import Size, find_bounds
from mview_connectors.databases.keys import _bound
from mview_connectors.databases.mysql import MysqlDatabase
from mview_connectors.databases.mysql_packets import MalformedRowError, MysqlServerError, row_blocks
from mview_connectors.databases.ranges import Operator, compare
from mview_connectors.databases.values import (
    bits_from_text,
    booleans,
    build_batch,
    from_hex,
    from_text,
)

from mview.config import ConnectionSettings
from mview.errors import ConfigError, UserError
from mview.schema import Column, TableSchema
from mview.snapshot import KeyValues

Row = tuple[bytes | None, ...]

# --- packets -------------------------------------------------------------------------------------

EOF = b"\xfe\x00\x00\x02\x00"


def _value(value: bytes | None) -> bytes:
    if value is None:
        return b"\xfb"
    size = len(value)
    if size < 251:
        return bytes([size]) + value
    if size < 1 << 16:
        return b"\xfc" + struct.pack("<H", size) + value
    if size < 1 << 24:
        return b"\xfd" + struct.pack("<I", size)[:3] + value
    return b"\xfe" + struct.pack("<Q", size) + value


def _packets(body: bytes) -> bytes:
    sent = b""
    while True:
        part, body = body[:0xFFFFFF], body[0xFFFFFF:]
        sent += struct.pack("<I", len(part))[:3] + b"\x07" + part
        if len(part) < 0xFFFFFF:
            return sent


def _result(rows: list[Row], end: bytes = EOF) -> bytes:
    return b"".join(_packets(b"".join(map(_value, row))) for row in rows) + _packets(end)


def _reader(data: bytes, piece: Callable[[], int]) -> Callable[[int], bytes]:
    position = 0

    def read(size: int) -> bytes:
        nonlocal position
        part = data[position : position + min(size, piece())]
        position += len(part)
        return part

    return read


def _rows(data: bytes, columns: int, piece: int = 1 << 20) -> list[Row]:
    blocks = list(row_blocks(_reader(data, lambda: piece), columns))
    return [row for block in blocks for row in zip(*(c.to_pylist() for c in block), strict=True)]


ROWS: list[Row] = [
    (b"1", None, b""),
    (b"", b"\xfe\xff\xfb", b"x" * 12),
    (None, b"y" * 13, b"z" * 250),
    (b"a" * 251, b"b" * 65_535, b"c" * 65_536),
    (None, None, None),
]


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 1000, 1 << 20])
def test_rows_are_read_whatever_the_pieces_they_come_in(piece: int) -> None:
    assert _rows(_result(ROWS), 3, piece) == ROWS


def test_random_rows_in_random_pieces() -> None:
    random_ = random.Random(11)
    lengths = [0, 1, 11, 12, 13, 250, 251, 300, 5000]
    rows: list[Row] = [
        tuple(
            None if random_.random() < 0.2 else random_.randbytes(random_.choice(lengths))
            for _ in range(4)
        )
        for _ in range(3000)
    ]
    blocks = row_blocks(_reader(_result(rows), lambda: random_.randrange(1, 9999)), 4)
    tables = [list(zip(*(c.to_pylist() for c in block), strict=True)) for block in blocks]
    assert [row for table in tables for row in table] == rows


#: Rows of a server that lies, as the bodies of packets; two values are expected.
LIES = {
    "a value longer than what was sent": b"\xfc\x60\xea" + b"x" * 20,
    "a value of 2 GB": b"\xfe" + struct.pack("<Q", 1 << 31) + b"x",
    "a value of 2^64-1 bytes": b"\xfe" + b"\xff" * 8 + b"x",
    "a value of 2^63-1 bytes": b"\xfe" + b"\xff" * 7 + b"\x7f" + b"x",
    "a value that goes on in the next row": b"\x01x\x03xx",
    "a length that is cut off": b"\x01x\xfe\x01",
    "no length": b"\x01x\xff",
    "too few values": b"\x01x",
    "too many values": b"\x01x\x01y\x01z",
    "nothing": b"",
}


@pytest.mark.parametrize("place", ["first", "last"])
@pytest.mark.parametrize("lie", LIES)
def test_lengths_of_a_hostile_server_are_not_believed(lie: str, place: str) -> None:
    honest = _packets(b"\x01a\x01b")
    rows = [_packets(LIES[lie]), honest] if place == "first" else [honest, _packets(LIES[lie])]
    with pytest.raises(MalformedRowError):
        _rows(b"".join(rows) + _packets(EOF), 2)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=30), max_size=4), st.integers(1, 3), st.booleans())
def test_any_bytes_are_rows_or_an_error(bodies: list[bytes], columns: int, padded: bool) -> None:
    data = b"".join(map(_packets, bodies)) + (_packets(EOF) if padded else b"")
    try:
        rows = _rows(data, columns)
    except (MalformedRowError, MysqlServerError, ConnectionResetError):
        return
    # What was read says again what was sent, up to the packet that ended it.
    assert data.startswith(b"".join(_packets(b"".join(map(_value, row))) for row in rows)) or any(
        byte >= 251 for byte in data
    )


@pytest.mark.parametrize("length", [0xFFFFFF - 5, 0xFFFFFF, 0xFFFFFF + 1, 2 * 0xFFFFFF + 10])
def test_a_row_longer_than_a_packet_is_joined(length: int) -> None:
    long = bytes(length)
    rows: list[Row] = [(b"1", b"first"), (long, b"end"), (b"2", b"last")]
    assert _rows(_result(rows), 2, 5_000_000) == rows


def test_a_result_without_rows() -> None:
    assert list(row_blocks(_reader(_result([]), lambda: 99), 3)) == []


def test_an_error_after_some_rows_is_raised() -> None:
    data = _result(ROWS, b"\xff\x28\x04#70100Query execution was interrupted")
    with pytest.raises(MysqlServerError) as caught:
        _rows(data, 3)
    assert caught.value.packet.endswith(b"interrupted")


def test_a_stream_that_ends_early_is_raised() -> None:
    with pytest.raises(ConnectionResetError):
        _rows(_result(ROWS)[:-20], 3)


# --- ranges --------------------------------------------------------------------------------------


@pytest.mark.parametrize("row_values", [True, False])
@pytest.mark.parametrize("operator", [">=", ">", "<", "<="])
@pytest.mark.parametrize("width", [1, 2, 3])
def test_ranges_compare_as_tuples_do(operator: Operator, width: int, row_values: bool) -> None:
    columns = ["a", "b", "c"][:width]
    keys = list(product(range(3), repeat=width))
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(f"CREATE TABLE t ({', '.join(columns)})")
        connection.executemany(f"INSERT INTO t VALUES ({', '.join('?' * width)})", keys)
        for bound in keys:
            text, values = compare(columns, operator, bound, mark="?", row_values=row_values)
            found = connection.execute(f"SELECT * FROM t WHERE {text}", values).fetchall()
            holds = {">=": bound.__le__, ">": bound.__lt__, "<": bound.__gt__, "<=": bound.__ge__}
            assert sorted(found) == [key for key in keys if holds[operator](key)], bound


# --- bounds --------------------------------------------------------------------------------------


class ListKeys:
    """Keys of a table that is a sorted list, counting the look-ups."""

    def __init__(self, keys: list[KeyValues]) -> None:
        self.keys, self.asked = sorted(keys), 0

    def minimum(self) -> KeyValues | None:
        return self.keys[0] if self.keys else None

    def maximum(self) -> KeyValues | None:
        return self.keys[-1] if self.keys else None

    def skip(self, low: KeyValues, rows: int, maximum: KeyValues) -> KeyValues | None:
        self.asked += 1
        found = [key for key in self.keys if low <= key <= maximum]
        return found[rows] if rows < len(found) else None

    def after(self, key: KeyValues, maximum: KeyValues) -> KeyValues | None:
        self.asked += 1
        return next((other for other in self.keys if key < other <= maximum), None)


def _bounds(keys: ListKeys, limit: int, rows: int | None = None) -> list[int]:
    schema = TableSchema((Column("id", pa.int64(), False),), ("id",))
    size = Size(len(keys.keys) if rows is None else rows, 100)
    return [b for (b,) in find_bounds(keys, schema, ("id",), keys.keys[-1], size, limit)]


def test_a_dense_key_is_cut_without_asking() -> None:
    keys = ListKeys([(n,) for n in range(1000)])
    assert _bounds(keys, 300) == [300, 600, 900]
    assert keys.asked == 0


def test_a_key_with_gaps_is_cut_by_its_rows() -> None:
    keys = ListKeys([(n * 10**15,) for n in range(1000)])
    bounds = _bounds(keys, 300)
    assert bounds == [300 * 10**15, 600 * 10**15, 900 * 10**15]
    assert keys.asked == 4


def test_a_wrong_estimate_never_makes_a_chunk_too_large() -> None:
    keys = ListKeys([(n,) for n in range(500)] + [(10**6 + n,) for n in range(500)])
    for estimate in (0, 1, 999, 10**9):
        ends = [*_bounds(keys, 100, estimate), 10**9]
        counts = [
            sum(low <= key < high for (key,) in keys.keys)
            for low, high in zip([0, *ends], ends, strict=False)
        ]
        assert max(counts) <= 100, estimate


def test_rows_that_agree_in_a_prefix_of_the_key_stay_together() -> None:
    schema = TableSchema(
        (Column("a", pa.int64(), False), Column("b", pa.string(), False)), ("a", "b")
    )
    keys = ListKeys([(1,)] * 50 + [(2,)] * 3 + [(3,)] * 60)
    assert find_bounds(keys, schema, ("a",), (3,), Size(113, 1), 10) == ((2,), (3,))


def test_the_limit_counts_bytes_and_is_never_zero() -> None:
    assert Size(100, 1000).limit(200, 10_000) == 10
    assert Size(100, 10**9).limit(200, 10_000) == 1
    assert Size(100, 0).limit(200, 10_000) == 200


# --- values --------------------------------------------------------------------------------------


def test_hexadecimal_texts_become_bytes() -> None:
    texts = pa.array(["", None, "00ff", "7a"])
    assert from_hex(texts).to_pylist() == [b"", None, b"\0\xff", b"z"]
    assert from_hex(texts.slice(1, 2)).to_pylist() == [None, b"\0\xff"]
    assert from_hex(texts.slice(0, 0)).to_pylist() == []
    assert from_hex(pa.array([None], pa.string())).to_pylist() == [None]
    with pytest.raises(ValueError, match="odd"):
        from_hex(pa.array(["0", "1"]))


def test_booleans_and_bits_are_strict() -> None:
    assert booleans(pa.array(["t", None, "false"])).to_pylist() == [True, None, False]
    with pytest.raises(ValueError, match="boolean"):
        booleans(pa.array(["t", None, "yes"]))
    assert bits_from_text(pa.array(["101", None, "1" * 9])).to_pylist() == [
        b"\x05",
        None,
        b"\x01\xff",
    ]


@pytest.mark.parametrize("row", [0, 1, 499, 998, 999])
def test_the_first_value_that_does_not_fit_is_found(row: int) -> None:
    schema = TableSchema((Column("id", pa.int64(), False), Column("d", pa.date32())), ("id",))
    dates = ["2024-01-01"] * 1000
    dates[row] = "never"
    columns = [pa.array(range(1000)), pa.array(dates)]
    converts = [lambda a: a, lambda a: a.cast(pa.date32())]
    with pytest.raises(UserError) as caught:
        build_batch("c.t", schema, columns, converts)
    assert f"c.t.d, row with id={row}\n" in f"{caught.value}\n"
    assert "got:     'never'" in str(caught.value)


def test_why_a_value_does_not_fit_is_said_of_that_value() -> None:
    """Of two columns of values Arrow names the one that it comes to first, perhaps a later one."""
    schema = TableSchema((Column("id", pa.int64(), False), Column("n", pa.int64())), ("id",))
    columns = [pa.array([1, 2, 3]), pa.array(["1", "two", "-3"])]

    def positive(texts: pa.Array) -> pa.Array:
        if "-3" in texts.to_pylist():
            raise ValueError("-3 is negative")
        return texts.cast(pa.int64())

    with pytest.raises(UserError) as caught:
        build_batch("c.t", schema, columns, [lambda a: a, positive])
    assert caught.value.what == "a value does not fit its column: it is no such value"
    assert "got:     'two'" in str(caught.value)


def _texts(*cells: bytes) -> tuple[pa.Array, ...]:
    """A row as MySQL's reader hands it over: arrays of bytes."""
    return tuple(pa.array([cell], pa.binary()) for cell in cells)


@pytest.mark.parametrize(
    ("cells", "kinds", "where", "got"),
    [
        (_texts(b"2", b"0000-00-00"), (pa.int64(), pa.date32()), "id=2", "'0000-00-00'"),
        (_texts(b"it's", b"a\xff"), (pa.string(), pa.int32()), "id='it''s'", "'a\\xff'"),
        (_texts(b"7", b"a\xff"), (pa.int64(), pa.binary()), "id=7", "X'61FF'"),
        (([7], [b"a\xff"]), (pa.int64(), pa.string()), "id=7", "X'61FF'"),
        (([Decimal("1E+1")], [True]), (pa.decimal128(3, 0), pa.int32()), "id=10", "TRUE"),
    ],
)
def test_values_are_told_as_sql_has_them(
    cells: tuple[Any, Any], kinds: tuple[pa.DataType, pa.DataType], where: str, got: str
) -> None:
    """Where texts are read past the driver they are bytes; else bytes are what is stored."""
    schema = TableSchema((Column("id", kinds[0], False), Column("v", kinds[1])), ("id",))

    def refuse(values: Any) -> pa.Array:
        raise ValueError("no")

    with pytest.raises(UserError) as caught:
        build_batch("c.t", schema, cells, [lambda a: pa.array(a), refuse])
    assert (caught.value.where, caught.value.got) == (f"c.t.v, row with {where}", got)


@pytest.mark.parametrize(
    ("kind", "value", "told"),
    [
        (pa.int64(), b"many", "X'6D616E79' is no bigint"),
        (pa.date32(), "0000-00-00", "'0000-00-00' is no date"),
        (pa.date32(), 7, "7 is no date"),
        (pa.timestamp("us"), "now", "'now' is no timestamp_ntz"),
        (pa.string(), Decimal("1.5"), "1.5 is no string"),
    ],
)
def test_a_key_that_does_not_fit_is_told_as_sql_has_it(
    kind: pa.DataType, value: Any, told: str
) -> None:
    with pytest.raises(ValueError, match=f"^{told}$"):
        _bound(kind, value)


@pytest.mark.parametrize(
    ("value", "zone", "words"),
    [
        ("2024-05-01 10:00:00", "UTC", "it has no offset of a time zone, such as +00:00"),
        ("2024-05-01 10:00:00+02:00", None, "it has an offset of a time zone"),
    ],
)
def test_a_time_with_or_without_a_zone_is_told_in_words(
    value: str, zone: str | None, words: str
) -> None:
    kind = pa.timestamp("us", zone)
    schema = TableSchema((Column("id", pa.int64(), False), Column("at", kind)), ("id",))
    with pytest.raises(UserError) as caught:
        build_batch(
            "c.t", schema, [pa.array([1]), pa.array([value])], [lambda a: a, from_text(kind)]
        )
    assert caught.value.what == f"a value does not fit its column: {words}"


def test_a_null_in_a_column_that_must_have_none_halts() -> None:
    schema = TableSchema((Column("id", pa.int64(), False), Column("n", pa.int64(), False)), ("id",))
    columns = [pa.array([7, 8]), pa.array([1, None])]
    with pytest.raises(UserError, match="NOT NULL") as caught:
        build_batch("c.t", schema, columns, [lambda a: a] * 2)
    assert "c.t.n, row with id=8" in str(caught.value)
    assert "got:     NULL" in str(caught.value)


# --- settings ------------------------------------------------------------------------------------


def test_a_port_that_is_no_number_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "http")
    settings = ConnectionSettings(name="src", drivername="mysql", port="${env:PORT}")
    with pytest.raises(ConfigError, match="port is not a number"):
        MysqlDatabase(settings).clock()


def test_a_missing_secret_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOT_THERE", raising=False)
    settings = ConnectionSettings(
        name="src", drivername="mysql", host="127.0.0.1", password="${env:NOT_THERE}"
    )
    with pytest.raises(ConfigError, match="NOT_THERE") as caught:
        MysqlDatabase(settings).clock()
    assert "connections.src.password" in str(caught.value)
