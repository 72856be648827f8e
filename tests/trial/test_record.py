"""`mview test --record`: what it writes, what it leaves, what it refuses, and values by chance."""

from __future__ import annotations

import datetime as dt
import json
import math
import os
import random
import struct
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from click.testing import CliRunner

from mview.cli import main
from mview.errors import UserError
from mview.files import durable
from mview.schema import parse_type
from mview.trial import record as recording
from mview.trial import world
from mview.trial.cases import read_tests
from mview.trial.values import given_of, value_of
from tests.seeds import daily

VIEW = "select id, v from s.t"
HEAD = """\
views: [v.sql]
tables: {s.t: {columns: {id: int, v: string}, key: [id]}}
"""


@pytest.fixture
def tried(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*arguments, code=0, view=VIEW):
        (tmp_path / "v.sql").write_text(view)
        result = CliRunner().invoke(main, ["test", *(arguments or ["t.yml", "--record"])])
        assert result.exit_code == code, result.output
        return result.output

    return run


@pytest.fixture
def recorded(tried, tmp_path):
    """Records a text of tests, and gives the text that is then there; it must pass as it is."""

    def run(text, *, head=HEAD, view=VIEW):
        file = tmp_path / "t.yml"
        file.write_bytes((head + text).encode())
        tried(view=view)
        made = file.read_bytes().decode()
        assert "passed, 0 failed" in tried("t.yml", view=view)
        assert "nothing to record in t.yml" in tried(view=view)
        assert file.read_bytes().decode() == made
        assert all(
            "expect" in form.model_fields_set
            for case in read_tests(file).cases
            for form in (case, *case.steps)
        )
        return made[len(head) :]

    return run


PLAIN = """\
# Our tests.
tests:
  - name: what comes   # and goes
    given:
      s.t:
        - {id: 2, v: b}   # the second
        - {id: 1}

    # Now it changes.
    steps:
      - insert: {s.t: [{id: 3, v: "a: b"}]}

      # All go.
      - delete:
          s.t:
            - id: 1
            - id: 2
            - id: 3  # the last
  # The end.
"""
PLAIN_RECORDED = """\
# Our tests.
tests:
  - name: what comes   # and goes
    given:
      s.t:
        - {id: 2, v: b}   # the second
        - {id: 1}
    expect:
      v:
        - {id: 1, v: null}
        - {id: 2, v: b}

    # Now it changes.
    steps:
      - insert: {s.t: [{id: 3, v: "a: b"}]}
        expect:
          v:
            - {id: 1, v: null}
            - {id: 2, v: b}
            - {id: 3, v: "a: b"}

      # All go.
      - delete:
          s.t:
            - id: 1
            - id: 2
            - id: 3  # the last
        expect:
          v: []
  # The end.
"""


def test_what_is_missing_is_written_and_all_else_stays(recorded):
    assert recorded(PLAIN) == PLAIN_RECORDED


def test_other_ends_of_lines_stay(recorded):
    for end in ("\r\n", "\r"):
        head = HEAD.replace("\n", end)
        assert recorded(PLAIN.replace("\n", end), head=head) == PLAIN_RECORDED.replace("\n", end)


def test_a_byte_order_mark_stays(recorded):
    assert recorded(PLAIN, head="\ufeff" + HEAD) == PLAIN_RECORDED


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        # No end of the last line.
        (
            "tests:\n- name: a",
            "tests:\n- name: a\n  expect:\n    v: []",
        ),
        ("tests: [{name: a}]", "tests: [{name: a, expect: {v: []}}]"),
        ("tests: [{name: a,  },]\n", "tests: [{name: a, expect: {v: []},  },]\n"),
        ("tests: [name: a b]\n", "tests: [{name: a b, expect: {v: []}}]\n"),
        ('{"tests":[{"name":"a"}]}', None),
        (
            "tests:\n  - {name: a, # what\n     steps: [{\n      }, {at: 2026-01-01 # now\n }]\n"
            "  }\n",
            "tests:\n  - {name: a, expect: {v: []}, # what\n     steps: [{expect: {v: []}\n      }"
            ", {at: 2026-01-01, expect: {v: []} # now\n }]\n  }\n",
        ),
        (
            "tests:\n- name: a\n  steps: [insert: {s.t: [id: 1]}]\n",
            "tests:\n- name: a\n  expect:\n    v: []\n"
            "  steps: [{insert: {s.t: [id: 1]}, expect: {v: [{id: 1, v: null}]}}]\n",
        ),
        # Steps come first: then behind all.
        (
            "tests:\n- steps:\n  - {}\n  name: a\n  # end\n",
            "tests:\n- steps:\n  - {expect: {v: []}}\n  name: a\n  expect:\n    v: []\n  # end\n",
        ),
        # Texts of several lines.
        (
            "tests:\n- name: |\n    a\n- name: b\n",
            "tests:\n- name: |\n    a\n  expect:\n    v: []\n- name: b\n  expect:\n    v: []\n",
        ),
        (
            "tests:\n    - name: |\n        a # b\n        c\n\n",
            "tests:\n    - name: |\n        a # b\n        c\n\n      expect:\n        v: []\n",
        ),
        (
            "tests:\n  - name: a\n     b # c\n  - name: >-\n      d\n      e",
            "tests:\n  - name: a\n     b # c\n    expect:\n      v: []\n"
            "  - name: >-\n      d\n      e\n    expect:\n      v: []",
        ),
        (
            "tests:\n  -\n    name: 'ä ☃'\n    at:\n...\n",
            "tests:\n  -\n    name: 'ä ☃'\n    at:\n    expect:\n      v: []\n...\n",
        ),
        (
            "tests:\n  - ? name\n    : a\n    ? steps\n    : - ? insert\n        : s.t:\n"
            "          - id: 1\n",
            "tests:\n  - ? name\n    : a\n    expect:\n      v: []\n    ? steps\n    : - ? insert\n"
            "        : s.t:\n          - id: 1\n        expect:\n          v:\n"
            "            - {id: 1, v: null}\n",
        ),
        # An expect that is there stays, whatever is in it.
        (
            "tests:\n- name: a\n  expect: {}\n  steps: [{}, {expect: {v: []}}]\n",
            "tests:\n- name: a\n  expect: {}\n  steps: [{expect: {v: []}}, {expect: {v: []}}]\n",
        ),
        # Anchors.
        (
            "tests:\n- &a\n  name: a\n  given: &g {s.t: [{id: 1}]}\n- &b name: b\n  given: *g\n"
            "- <<: *a\n  name: c\n",
            "tests:\n- &a\n  name: a\n  given: &g {s.t: [{id: 1}]}\n  expect:\n    v:\n"
            "      - {id: 1, v: null}\n- &b name: b\n  given: *g\n  expect:\n    v:\n"
            "      - {id: 1, v: null}\n- <<: *a\n  name: c\n  expect:\n    v:\n"
            "      - {id: 1, v: null}\n",
        ),
        (
            "tests: !!seq\n- !!map\n  name: a\n- &z !!map {name: b}\n- name: c\n  at: !!null # d\n",
            "tests: !!seq\n- !!map\n  name: a\n  expect:\n    v: []\n"
            "- &z !!map {name: b, expect: {v: []}}\n"
            "- name: c\n  at: !!null # d\n  expect:\n    v: []\n",
        ),
        (
            "tests:\n- <<: {steps: [{}]}\n  name: a\n",
            "tests:\n- <<: {steps: [{expect: {v: []}}]}\n  name: a\n  expect:\n    v: []\n",
        ),
        # Tests that share a step in which views show the same.
        (
            "tests:\n- name: a\n  expect: {}\n  steps: &s\n  - insert: {s.t: [{id: 1}]}\n"
            "- {name: b, expect: {}, steps: *s}\n",
            "tests:\n- name: a\n  expect: {}\n  steps: &s\n  - insert: {s.t: [{id: 1}]}\n"
            "    expect:\n      v:\n        - {id: 1, v: null}\n"
            "- {name: b, expect: {}, steps: *s}\n",
        ),
    ],
)  # fmt: skip
def test_layouts(recorded, text, wanted):
    if wanted is None:
        head = json.dumps(yaml.safe_load(HEAD))[:-1]
        assert recorded(", " + text[1:], head=head) == (
            ', "tests":[{"name":"a", expect: {v: []}}]}'
        )
    else:
        assert recorded(text) == wanted


SHARED = """\
tests:
- name: a
  steps: &s
  - insert: {s.t: [{id: 1}]}
- name: b
  given: {s.t: [{id: 2}]}
  steps: *s
"""


def refused(tried, told, text=None, view=VIEW, file=Path("t.yml")):
    """It is refused, and the file is as it was, with nothing beside it."""
    if text is not None:
        file.write_text(text)
    before = file.read_bytes()
    output = tried(view=view, code=1)
    assert told in output.replace("\n", " "), output
    assert "the file is as it was" in output
    assert "unexpected" not in output
    assert "recorded 1" not in output
    assert file.read_bytes() == before
    assert {path.name for path in Path().iterdir() if path.is_file()} == {"t.yml", "v.sql"}


def test_what_tests_share_is_refused(tried):
    refused(tried, "not recorded in t.yml: tests share parts (&name, *name)", HEAD + SHARED)
    step = HEAD + (
        "tests:\n- name: a\n  steps:\n  - &s {at: 2026-01-01}\n"
        "  - insert: {s.t: [{id: 1}]}\n  - *s\n"
    )
    refused(tried, "tests share parts (&name, *name)", step)
    merged = "tests:\n- &a\n  name: a\n- <<: *a\n  name: b\n  given: {s.t: [{id: 1}]}\n"
    tried_text = HEAD + merged
    Path("t.yml").write_text(tried_text)
    # Of the first alone: the second would have it, too.
    Path("v.sql").write_text(VIEW)
    result = CliRunner().invoke(main, ["test", "t.yml", "--record", "-k", "a"])
    assert result.exit_code == 1, result.output
    assert "tests share parts" in result.output
    assert Path("t.yml").read_text() == tried_text


def test_what_would_change_what_is_there_is_refused(tried):
    """An end of the line would be one of the text, too."""
    text = HEAD + "tests:\n- name: |\n    a"
    refused(tried, "its last line has no end", text)
    Path("t.yml").write_text(f"{text}\n")
    tried(view=VIEW)
    assert Path("t.yml").read_text() == f"{text}\n  expect:\n    v: []\n"


def test_values_that_no_test_file_has_are_refused(tried, monkeypatch):
    text = HEAD + "tests: [{name: a, given: {s.t: [{id: 1}]}}]\n"
    far = "select id, timestamp_ntz'9999-12-31 23:00:00' + interval 2 hour as v from s.t"
    refused(tried, "view v, column v: a test file cannot have a value", text, view=far)
    # Only Spark gives such a text.
    monkeypatch.setattr(recording, "given_of", lambda value, kind: value or "a\0b")
    refused(tried, "could not be read: an escape", text)


def test_a_file_that_would_be_too_large_is_refused(tried):
    rows = ", ".join(f"{{id: {number}, v: x}}" for number in range(16_000))
    text = f"{HEAD}tests: [{{name: a, given: {{s.t: [{rows}]}}}}]\n"
    refused(tried, "the file is larger than 512 KB", text)


def test_a_file_that_cannot_be_written_is_told(tried, monkeypatch):
    Path("t.yml").write_text(HEAD + PLAIN)
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
        refused(tried, "it may not be written to")
    with monkeypatch.context() as patch:

        def full(path):
            raise OSError(28, "No space left on device")

        patch.setattr(durable, "force", full)
        refused(tried, "No space left on device")


def test_a_file_that_is_edited_meanwhile_is_left(tried, monkeypatch):
    Path("t.yml").write_text(HEAD + PLAIN)
    with monkeypatch.context() as patch:

        def edits(self, number, passed, right=recording.Recorder.end):
            Path("t.yml").write_text(HEAD + "# mine\n" + PLAIN)
            right(self, number, passed)

        patch.setattr(recording.Recorder, "end", edits)
        told = tried(code=1)
    assert "it was changed while its tests ran" in told
    assert Path("t.yml").read_text() == HEAD + "# mine\n" + PLAIN


def test_links_and_modes_stay(tried, tmp_path):
    (tmp_path / "deep").mkdir()
    file = tmp_path / "deep/t.yml"
    file.write_text(HEAD + PLAIN)
    file.chmod(0o640)
    Path("t.yml").symlink_to(file)
    tried()
    assert Path("t.yml").is_symlink()
    assert file.read_text() == HEAD + PLAIN_RECORDED
    assert file.stat().st_mode & 0o777 == 0o640


def test_of_tests_that_fail_nothing_is_written(tried, tmp_path, monkeypatch):
    failing = """\
tests:
  - name: fails later
    steps:
      - insert: {s.t: [{id: 1}]}
      - expect: {v: []}
  - name: passes
"""
    (tmp_path / "t.yml").write_text(HEAD + failing)
    told = tried(code=1)
    assert "✗ fails later" in told
    assert "recorded 1 expect in t.yml" in told
    assert (tmp_path / "t.yml").read_text() == HEAD + failing + "    expect:\n      v: []\n"
    # Kept up otherwise than the batch: what it shows is no expectation.
    (tmp_path / "t.yml").write_text(HEAD + "tests: [{name: a, given: {s.t: [{id: 1}]}}]\n")
    before = (tmp_path / "t.yml").read_text()
    monkeypatch.setattr(world, "run_view", lambda *arguments: None)
    assert "differs from its batch query" in tried(code=1)
    assert (tmp_path / "t.yml").read_text() == before


def test_the_command(tried, tmp_path):
    (tmp_path / "t.yml").write_text(HEAD + PLAIN)
    told = json.loads(tried("t.yml", "--record", "--json"))
    assert [outcome["recorded"] for outcome in told] == [3]
    assert (tmp_path / "t.yml").read_text() == HEAD + PLAIN_RECORDED
    assert [o["recorded"] for o in json.loads(tried("t.yml", "--record", "--json"))] == [0]
    # An expect that is deleted is written anew; only of tests that are chosen.
    (tmp_path / "t.yml").write_text(HEAD + PLAIN)
    tried("t.yml", "--record", "-k", "nope", code=1)
    assert (tmp_path / "t.yml").read_text() == HEAD + PLAIN
    told = tried()
    assert told.splitlines()[1] == "recorded 3 expects in t.yml"
    assert "without --random" in tried("t.yml", "--record", "--random", "3", code=2)
    (tmp_path / "t.yml").write_text(HEAD + PLAIN)
    tried("t.yml")
    assert (tmp_path / "t.yml").read_text() == HEAD + PLAIN


def test_of_two_files_one_that_is_refused_keeps_nothing_from_the_other(tried, tmp_path):
    (tmp_path / "a.yml").write_text(HEAD + SHARED)
    (tmp_path / "b.yml").write_text(HEAD + PLAIN)
    told = tried("a.yml", "b.yml", "--record", code=1)
    assert "not recorded in a.yml" in told
    assert "3 passed, 0 failed" in told
    assert (tmp_path / "a.yml").read_text() == HEAD + SHARED
    assert (tmp_path / "b.yml").read_text() == HEAD + PLAIN_RECORDED


def test_rows_that_are_there_twice_are_written_twice(recorded):
    text = "tests: [{name: a, given: {s.t: [{id: 1, v: x}, {id: 2, v: x}, {id: 3}]}}]\n"
    view = "select v from s.t"
    assert "expect: {v: [{v: x}, {v: x}, {v: null}]}" in recorded(text, view=view)


# --- values --------------------------------------------------------------------------------------

KINDS = [
    "boolean",
    "tinyint",
    "smallint",
    "int",
    "bigint",
    "float",
    "double",
    "string",
    "binary",
    "date",
    "timestamp",
    "timestamp_ntz",
    "decimal(12,2)",
    "decimal(38,0)",
    "decimal(38,38)",
    "array<string>",
    "array<array<double>>",
    "array<timestamp>",
    "array<decimal(20,5)>",
]
#: Those that need no Spark.
IN_PROCESS = [name for name in KINDS if name.count("<") < 2]
WORDS = (
    "", " ", "a", " a", "a ", "null", "Null", "~", "yes", "No", "on", "y", "true", "TRUE", "1",
    "1.0", "017", "0x1f", "1e5", "1_000", "1:30", ".nan", ".inf", "NaN", "-", "- a", "?", "? a",
    ":", "a: b", "a:", "#", "a #b", "a#b", "*a", "&a", "!a", "!!str a", "|", ">", "%", "@", "`",
    "'", '"', "''", "\\", "\\n", "a\nb", "\n", "\n\na", "a\n", "a\r\nb", "\r", "\t", "a\tb",
    "\x01", "\x1b[0m", "\x7f", "\x85", "\xa0", "\xad", "\u2028", "\u2029", "\ufeff", "\u200b",
    "e\u0301", "ä ☃", "😀", "\U0010fffd", "{", "}", "[", "]", "{}", "[a]", ",", "a, b", "<<", "=",
    "---", "...", "2026-01-01", "2026-01-01 00:00:00", "a" * 2000, "ä b " * 300,
    "key: {a: [1, 2]}",
)  # fmt: skip


def a_value(chance, kind):
    """Any value of a type, as Arrow gives it to Python; NULL now and then."""
    if chance.random() < 0.1:
        return None
    if pa.types.is_list(kind):
        return [a_value(chance, kind.value_type) for _ in range(chance.randrange(4))]
    if pa.types.is_boolean(kind):
        made = chance.random() < 0.5
    elif pa.types.is_integer(kind):
        most = 2 ** (kind.bit_width - 1)
        made = chance.choice((0, -1, most - 1, -most, chance.randrange(-most, most)))
    elif pa.types.is_decimal(kind):
        most = 10 ** chance.randint(1, kind.precision) - 1
        made = Decimal(chance.randint(-most, most)).scaleb(-kind.scale)
    elif pa.types.is_floating(kind):
        size, form = (4, "<f") if kind.bit_width == 32 else (8, "<d")
        (any_bits,) = struct.unpack(form, chance.randbytes(size))
        made = chance.choice((any_bits, 0.0, -0.0, 0.1, 1e20, 5.0, math.nan, math.inf, -math.inf))
    elif pa.types.is_string(kind):
        made = chance.choice(WORDS)
        if chance.random() < 0.3:
            made = "".join(chance.choice(WORDS)[:3] for _ in range(3))
    elif pa.types.is_binary(kind):
        made = chance.randbytes(chance.randrange(5))
    elif pa.types.is_date(kind):
        made = dt.date.fromordinal(chance.randint(1, dt.date.max.toordinal()))
    else:
        zone = dt.timezone.utc if kind.tz else None
        day = dt.datetime.fromordinal(chance.randint(2, dt.date.max.toordinal()))
        made = (day + dt.timedelta(microseconds=chance.randrange(10**11) % 86_400_000_000)).replace(
            tzinfo=zone
        )
    return pa.scalar(made, kind).as_py()


def test_every_value_is_given_back_exactly():
    chance = random.Random(daily())
    for name in KINDS:
        kind = parse_type(name)
        for _ in range(200):
            value = a_value(chance, kind)
            text = recording._flow({"a": given_of(value, kind)})
            given = recording.parse_yaml(text).value["a"]
            assert repr(value_of(given, kind)) == repr(value), (name, text)
            # In a block, too, and as a name.
            assert "\n" not in text
    for word in WORDS:
        if len(word) < 1000:
            assert recording.parse_yaml(f"{recording._flow(word)}: 1").value == {word: 1}


@pytest.mark.parametrize("kind", [pa.struct({"a": pa.int64()}), pa.duration("us"), pa.time64("us")])
def test_values_of_other_types_are_refused(kind):
    value = {"a": 1} if pa.types.is_struct(kind) else pa.scalar(1, kind).as_py()
    with pytest.raises(UserError, match="cannot have this value"):
        given_of(value, kind)


def by_hand(value):
    """A value as a person writes it, by other ways than those of `given_of`."""
    if isinstance(value, list):
        return [by_hand(part) for part in value]
    if isinstance(value, float):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(
            value, "NaN" if value != value else value
        )
    if isinstance(value, bytes):
        return value.hex().upper()
    if isinstance(value, dt.datetime):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal | dt.date) else value


@pytest.mark.parametrize("flow", [True, False])
def test_a_file_of_values_by_chance_passes_when_it_is_recorded(tried, tmp_path, flow):
    chance = random.Random(daily() + flow)
    kinds = {f"c{number}": parse_type(name) for number, name in enumerate(IN_PROCESS)}
    columns = {"id": "int"} | dict(zip(kinds, IN_PROCESS, strict=True))

    def rows(first):
        return [
            {"id": number} | {name: a_value(chance, kind) for name, kind in kinds.items()}
            for number in range(first, first + 12)
        ]

    old, new = rows(0), rows(100)

    def written(some):
        return {"s.t": [{name: by_hand(value) for name, value in row.items()} for row in some]}

    test = {"name": "a", "given": written(old), "steps": [{"insert": written(new)}]}
    body = {"views": ["v.sql"], "tables": {"s.t": {"columns": columns, "key": ["id"]}}}
    body["tests"] = [test]
    file = tmp_path / "t.yml"
    text = yaml.safe_dump(body, default_flow_style=flow)
    file.write_text(text)
    view = f'select {", ".join(kinds)}, id as `the: "id"` from s.t'
    assert "recorded 2 expects in t.yml" in tried(view=view), text
    assert "1 passed" in tried("t.yml", view=view)
    (case,) = read_tests(file).cases
    for expect, wanted in ((case.expect, old), (case.steps[0].expect, old + new)):
        shown = {row['the: "id"']: row for row in expect["v"]}
        assert shown.keys() == {row["id"] for row in wanted}
        for row in wanted:
            for name, kind in kinds.items():
                got = value_of(shown[row["id"]][name], kind)
                assert repr(got) == repr(row[name]), (name, kind)
