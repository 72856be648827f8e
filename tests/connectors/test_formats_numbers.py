"""Numbers keep their digits from the message to the table, or halt."""

from __future__ import annotations

import math
from decimal import Decimal
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mview_connectors.databases.values import decimals, from_text
from mview_connectors.formats import values

from mview.connector import Message, load
from mview.errors import DecodeError
from mview.schema import Column, parse_type
from tests.seeds import seeds

FORMATS = ("debezium", "unified")

_SOURCE = (
    '{"connector": "mariadb", "table": "t", "file": "b.000007", "pos": 4, "row": 0, "ts_ms": 5}'
)
_BODIES = {
    "debezium": '{"op": "c", "before": null, "after": {"id": 1, "x": %s}, "source": '
    + _SOURCE
    + "}",
    "unified": '{"table": "t", "op": "insert", "after": {"id": 1, "x": %s}, "ts": 5}',
}


def read(name, token, kind):
    """What becomes of a number that stands in a message."""
    decoder = load("formats", name)({})
    (event,) = decoder.decode(Message("topic/0", 12, None, (_BODIES[name] % token).encode()))
    return decoder.convert([event.after["x"]], Column("x", parse_type(kind))).to_pylist()[0]


@pytest.mark.parametrize("name", FORMATS)
class TestNumbers:
    @pytest.mark.parametrize(
        ("token", "kind", "expected"),
        [
            ("100000000000000000001", "decimal(38,0)", "100000000000000000001"),
            ("-" + "9" * 38, "decimal(38,0)", "-" + "9" * 38),
            ("18446744073709551616", "decimal(20,0)", "18446744073709551616"),
            ("1e3", "decimal(10,2)", "1000"),
            ("12.50", "decimal(10,2)", "12.5"),
            ("1.5000000000000000000000", "decimal(10,2)", "1.5"),
            ("-0", "decimal(10,2)", "0"),
            ("0e999999999", "decimal(10,2)", "0"),
            ("123456789.12345", "decimal(38,18)", "123456789.12345"),
        ],
    )
    def test_decimals(self, name, token, kind, expected):
        assert read(name, token, kind) == Decimal(expected)

    @pytest.mark.parametrize(
        ("token", "kind", "expected"),
        [
            ("9223372036854775807", "bigint", 2**63 - 1),
            ("-9223372036854775808", "bigint", -(2**63)),
            ("-0", "int", 0),
            ("100000000000000000000", "double", 1e20),
            ("9007199254740994", "double", 9007199254740994.0),
            ("123456789012345680000", "double", 1.2345678901234568e20),
            ("0.10000000000000000001", "double", 0.1),
            ("1.7976931348623157e308", "double", 1.7976931348623157e308),
            ("5e-324", "double", 5e-324),
            ("1e-45", "float", float(np.float32(1e-45))),
            ("3.4028235E38", "float", float(np.float32(3.4028235e38))),
        ],
    )
    def test_binary_numbers(self, name, token, kind, expected):
        assert read(name, token, kind) == expected

    @pytest.mark.parametrize("token", ["-0", "-0.0", "-0e5"])
    def test_the_sign_of_zero(self, name, token):
        assert math.copysign(1, read(name, token, "double")) == -1

    @pytest.mark.parametrize(
        ("token", "kind"),
        [
            ("0.10000000000000000001", "decimal(38,20)"), ("0.1234567890123456", "decimal(38,20)"),
            ("1e-999", "decimal(38,20)"), ("1e308", "decimal(38,0)"), ("1" * 39, "decimal(38,0)"),
            ('"1e-999999999"', "decimal(38,20)"), ('"1e999999999"', "decimal(38,20)"),
            ('"1.%s1"' % ("0" * 120), "decimal(10,2)"), ('"1_0"', "decimal(10,2)"),
            ('"٣"', "decimal(10,2)"), ('"1e99999999999999999999"', "decimal(10,2)"),
            ("9223372036854775808", "bigint"), ("100000000000000000001", "bigint"),
            ("1e3", "int"), ("1.0", "int"), ("-0.5", "int"), ("128", "tinyint"),
            ("-32769", "smallint"),
            ("1e-400", "double"), ("1e-46", "float"), ("3.5e38", "float"), ("-1e39", "float"),
            ("9007199254740993", "double"), ("123456789012345678901", "double"),
            ("1" * 308, "bigint"), ("0.1", "string"), ("0.1", "boolean"),
        ],
    )  # fmt: skip
    def test_what_would_be_rounded_halts(self, name, token, kind):
        with pytest.raises(ValueError, match=r"."):
            read(name, token, kind)

    @pytest.mark.parametrize(
        "token", ["NaN", "Infinity", "-Infinity", "01", "+1", ".5", "1.", "1e999"]
    )
    def test_what_is_no_number_halts_with_its_place(self, name, token):
        with pytest.raises(DecodeError) as caught:
            read(name, token, "double")
        assert caught.value.where == "topic/0, offset 12"

    def test_in_keys_and_lists(self, name):
        decoder = load("formats", name)({})
        body = _BODIES[name] % "[[1.50000000000000000001], {}]"
        (event,) = decoder.decode(Message("topic/0", 12, None, body.encode()))
        assert event.after["x"][0] == [Decimal("1.50000000000000000001")]

    @settings(deadline=None)
    @given(
        st.decimals(allow_nan=False, allow_infinity=False).map(str),
        st.sampled_from(
            ["decimal(38,0)", "decimal(38,20)", "decimal(5,2)", "bigint", "int", "double"]
        ),
    )
    @example("1E+38", "decimal(38,0)")
    @example("-1E-20", "decimal(38,20)")
    def test_any_number_is_itself_or_halts(self, name, token, kind):
        for form in (token, f'"{token}"'):
            try:
                found = read(name, form, kind)
            except (ValueError, DecodeError):
                continue
            exact = Decimal(token)
            assert found == (float(exact) if kind == "double" else exact), form


def decimal_texts(random, precision, scale, *, plain):
    """A text of a decimal as databases write it, or nearly so, of all sizes about the type's."""
    wholes = [1, max(1, precision - scale), precision, precision + 1, 38, 39, 40]
    whole = random.choice(wholes)
    digits = "".join(
        random.choices("0123456789", k=random.choice([whole, random.randint(1, whole)]))
    )
    places = [0, scale, random.randint(0, scale)] + ([] if plain else [scale + 1, 39])
    fraction = "".join(random.choices("0019", k=random.choice(places)))
    sign = random.choice(["", "", "-"] if plain else ["", "-", "+", " "])
    text = f"{sign}{digits}{'.' if fraction else ''}{fraction}"
    odd = ["NaN", "1e3", "", "1_0", "٣", "-", ".", "5.", "0x1", "1\n", "-0", "-0.00", "0012.50"]
    return random.choice(odd) if not plain and random.random() < 0.1 else text


@pytest.mark.parametrize("seed", seeds(200, 500))
def test_decimals_of_many_texts_are_those_of_each(seed):
    """Arrow casts many at once, and wraps around where a text has too many digits."""
    random = Random(seed)
    precision = random.choice([38, random.randint(1, 38)])
    scale = random.choice([precision, random.randint(0, precision)])
    kind = pa.decimal128(precision, scale)
    plain = random.random() < 0.7
    few = [decimal_texts(random, precision, scale, plain=plain) for _ in range(3)]
    texts = [random.choice([*few, None]) for _ in range(60)]
    if random.random() < 0.5:
        texts = [text for text in texts if text is None or _fits(text, kind)]
    texts *= 60 // max(1, len(texts)) + 1
    if not all(text is None or _fits(text, kind) for text in texts):
        with pytest.raises(ValueError, match=r"does not fit|decimal places|is not a|digits"):
            values.decimals(texts, kind)
        return
    alone = [None if text is None else values.decimals([text], kind)[0] for text in texts]
    found = values.decimals(texts, kind)
    found.validate(full=True)
    assert [value if value.is_valid else None for value in found] == alone


def _fits(text, kind):
    try:
        values.decimals([text], kind)
    except ValueError:
        return False
    return True


def test_a_key_of_a_debezium_message():
    body = _BODIES["debezium"].replace('"op": "c"', '"op": "d"') % "null"
    key = b'{"id": 100000000000000000001}'
    (event,) = load("formats", "debezium")({}).decode(Message("t/0", 1, key, body.encode()))
    assert event.key == {"id": 100000000000000000001}


@settings(deadline=None)
@given(
    st.one_of(
        st.decimals(allow_nan=False, allow_infinity=False),
        st.tuples(st.integers(0, 10**40), st.integers(-90, 90)).map(
            lambda p: Decimal(p[0]).scaleb(p[1])
        ),
    ),
    st.sampled_from(["decimal(38,38)", "decimal(38,18)", "decimal(38,0)", "decimal(10,2)"]),
    st.sampled_from(["{:f}", "{}"]),
)
@example(Decimal("1e-77"), "decimal(10,2)", "{}")
@example(Decimal("1e14"), "decimal(38,38)", "{}")
@example(Decimal("1e-999999999"), "decimal(10,2)", "{}")
@example(Decimal("1e34"), "decimal(38,18)", "{:f}")
def test_texts_of_databases_are_themselves_or_halt(number, kind, form):
    if abs(number.adjusted()) > 200:
        form = "{}"
    try:
        (found,) = decimals(parse_type(kind))(pa.array([form.format(number)])).to_pylist()
    except (ValueError, pa.ArrowInvalid):
        return
    assert found == number


EDGES = {
    "date": ("0001-01-01", "9999-12-31", ["0000-12-31", "0000-01-01"]),
    "timestamp_ntz": (
        "0001-01-01T00:00:00",
        "9999-12-31T23:59:59.999999",
        ["0000-12-31T23:59:59.999999"],
    ),
    "timestamp": (
        "0001-01-01T00:00:00Z",
        "9999-12-31T23:59:59.999999Z",
        ["0001-01-01T00:00:00+00:01", "9999-12-31T23:59:59.999999-00:01"],
    ),
}


@pytest.mark.parametrize("kind", EDGES)
def test_times_are_within_the_years_of_all_engines(kind):
    first, last, bad = EDGES[kind]
    for convert in (
        lambda texts: load("formats", "unified")({}).convert(texts, Column("x", parse_type(kind))),
        lambda texts: from_text(parse_type(kind))(pa.array(texts, pa.string())),
    ):
        found = convert([first, None, last])
        assert [str(one)[:4] for one in found.drop_null().to_pylist()] == ["0001", "9999"]
        for text in bad:
            with pytest.raises(ValueError, match=r"date|timestamp|years"):
                convert([first, text])
