"""Whatever stands in a JSON file of a store, it is read as it was written, or told with its file.

A file can be whole and still be another one: of another version, or edited by somebody who knows
the checksum. Each field of each kind of file is left out, added and given other types.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from mview.catalog.definitions import digest_of, load_definition, save_definition
from mview.clock import SourceMs
from mview.errors import CorruptionError
from mview.files.fence import UNFENCED
from mview.files.jsonfile import checked
from mview.files.marks import content_of
from mview.follow.cursor import Cursor, CursorLog, Intent
from mview.follower import Step
from mview.ingest.batches import batch_offsets
from mview.ingest.load_plan import LoadPlan, LoadStart, read_plan, write_plan
from mview.plan.definition import ViewDefinition, parse_view
from mview.plan.functions.declared import Function
from mview.schema import Column, TableSchema, parse_type
from mview.secrets import Mask
from mview.snapshot import ChunkPlan
from mview.store.failure import failure_kept, last_failure
from mview.store.history import IntentLog, ManifestLog
from mview.store.identity import STORE_MARK, claim_store
from mview.store.layout import Store
from mview.store.lease import Lease
from mview.store.manifest import Cut, Manifest, TableState, ViewState
from tests.relations import rel

SCHEMA = TableSchema(
    (
        Column("id", parse_type("bigint"), False, "bigint(20)"),
        Column("price", parse_type("decimal(10,2)")),
    ),
    ("id",),
)
TABLE = TableState(SCHEMA, 3, 4, folded=0, phase="loading", rows=7, released=(0, 2))
FUNCTION = Function("slug", "shop:slug", "string", "python")
DEFINITION: ViewDefinition = replace(
    parse_view("select slug(id) as s, price from shop.t where price > 1", "v"),
    functions=(FUNCTION,),
    freshness_ms=1000,
    key=("s",),
    options={"path": "out/v"},
)
VIEW = ViewState(
    digest_of(DEFINITION), "LINEAR", SCHEMA, {"version": 5}, built_epoch=1, facts={"a": [1]}
)
MANIFEST = Manifest(
    1,
    token=3,
    created_ms=1,
    generation=1,
    batch=4,
    offsets={"shop": {"shop.t/0": 17}},
    positions={rel("shop.t"): {"0": "05"}},
    watermark=SourceMs(100),
    tables={rel("shop.t"): TABLE},
    views={"v": VIEW},
    newest={rel("shop.t"): {"0": 9}},
    pinned_ms=60_000,
    cuts={"shop": Cut(SourceMs(100), True)},
)
PLAN = LoadPlan(
    LoadStart({"shop": {"shop.t/0": 17}}, -1, 60_000),
    ChunkPlan("shop.t", ("id",), ((5,), (9,)), (12,), 9),
    {"0": "05"},
    {"0": 17},
    SourceMs(7),
)


def _body(content: bytes) -> Any:
    return orjson.loads(content.splitlines()[1])


@dataclass
class Kind:
    """A kind of file: made in a store, read from it, and how its JSON stands in it."""

    write: Callable[[Store], Path]
    read: Callable[[Store], object]
    packed: Callable[[Any], bytes] = checked
    unpacked: Callable[[bytes], Any] = _body
    #: What it may have.
    may_have: Callable[[str], bool] = lambda what: False


def _manifest(store: Store) -> Path:
    ManifestLog(store.manifests).publish(MANIFEST)
    return store.manifests / f"{1:020d}.json"


def _intent(store: Store) -> Path:
    IntentLog(store.intents, UNFENCED).write(MANIFEST, {"v": {"adds": []}})
    return store.intents / f"{1:020d}.json"


def _plan(store: Store) -> Path:
    file = store.plan(1, 1, rel("shop.t"))
    write_plan(file, PLAN)
    return file


def _definition(store: Store) -> Path:
    save_definition(store, DEFINITION)
    return store.view("v") / f"definition-{VIEW.definition}.json"


def _lease(store: Store) -> Path:
    with Lease(store.lease):
        pass
    return store.lease / f"{1:020d}.json"


def _mark(store: Store) -> Path:
    claim_store(store.root)
    return store.root / STORE_MARK


def _failure(store: Store) -> Path:
    claim_store(store.root)
    with pytest.raises(CorruptionError), failure_kept(store, 1, _Clock(), Mask(())):
        raise CorruptionError("oh", where="there", got=7, hint="do")
    return store.failures / f"{1:020d}.json"


def _cursor(store: Store) -> Path:
    folder = store.root / "cursor"
    folder.mkdir()
    CursorLog(folder).write(Cursor(7, "s-1", 2, 5, 9, Intent(Step("s-2", 8, 7), {"a": 1})))
    return folder / f"{1:020d}.json"


def _offsets(store: Store) -> Path:
    file = store.checkpoints / "offsets" / "4"
    file.parent.mkdir(parents=True)
    chunks = {"chunks": {"shop.t": 3}}
    cuts = {"shop": {"until": 12, "whole": True}}
    halt = {"what": "gone", "where": "log", "got": "", "hint": "", "altered": True, "code": ""}
    changes = {
        "connections": {"shop": {"t/0": 7}},
        "watermark": 12,
        "pinned_ms": 60_000,
        "cuts": cuts,
        "halts": {"shop.t": halt},
    }
    file.write_bytes(_packed_offsets([chunks, changes]))
    return file


def _packed_offsets(sources: Any) -> bytes:
    sources = sources if isinstance(sources, list) else [sources]
    return "\n".join(["v1", "{}", *map(json.dumps, sources)]).encode()


class _Clock:
    def now(self) -> Any:
        return 5


def _marked(mark: Any) -> bytes:
    return content_of(mark) if isinstance(mark, dict) else orjson.dumps(mark)


def _older(what: str) -> bool:
    """What a mark may say more, and what those of older versions did not say."""
    return what.endswith(("has more", " without format", " without named"))


def _mark_of(content: bytes) -> Any:
    return {name: one for name, one in orjson.loads(content).items() if name != "digest"}


KINDS = {
    "manifest": Kind(_manifest, lambda store: ManifestLog(store.manifests).latest()),
    "intent": Kind(_intent, lambda store: IntentLog(store.intents, UNFENCED).read(1)),
    "plan": Kind(_plan, lambda store: read_plan(store.plan(1, 1, rel("shop.t")))),
    "definition": Kind(_definition, lambda store: load_definition(store, MANIFEST, "v")),
    "lease": Kind(_lease, lambda store: Lease(store.lease).holder()),
    "failure": Kind(_failure, lambda store: last_failure(store, 0)),
    "mark": Kind(_mark, lambda store: claim_store(store.root), _marked, _mark_of, _older),
    "cursor": Kind(_cursor, lambda store: CursorLog(store.root / "cursor").latest()),
    "offsets": Kind(
        _offsets,
        lambda store: batch_offsets(store.checkpoints, 4),
        _packed_offsets,
        lambda content: [orjson.loads(line) for line in content.splitlines()[2:]],
    ),
}

#: What may stand there instead: of every type that JSON has.
OTHERS: tuple[Any, ...] = (None, True, 7, 1.5, "text", [], [None], {}, {"a": None})

#: Objects with names of the data: others may be there, or be missing.
MAPS = {"begin", "chunks", "cuts", "halts", "newest", "options", "positions", "since", "tables"}
MAPS |= {"views"}
#: Objects with an object of such names per table.
BY_TABLE = {"newest", "positions"}
#: Below these stands what a sink, a log, a rule of costs or a key has put there.
OPEN = {"token", "bounds", "connections", "facts", "maximum", "offsets", "sink", "tokens"}
#: What may be nothing.
NULLABLE = {"alias", "allowed", "comment", "freshness_ms", "hint", "maximum", "safe", "subject"}
NULLABLE |= {"after", "epoch", "got", "intent", "token", "until", "watermark", "where", "whole"}


def changed(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[str, Any]]:
    """JSON values that are the given one but in one place, which is wrong; and the place."""
    place, name = "/".join(map(str, way)), way[-1] if way else "all"
    if value is None:
        return
    for other in OTHERS:
        if type(other) is not type(value) and not (other is None and name in NULLABLE):
            yield f"{place} is {other!r}", other
    if name in OPEN:
        return
    if isinstance(value, dict):
        if name not in MAPS and not BY_TABLE & {*way[-2:-1]}:
            yield f"{place} has more", {**value, "of_tomorrow": 1}
            for one in value:
                yield f"{place} without {one}", {k: v for k, v in value.items() if k != one}
        inner: Any = value.items()
    else:
        inner = enumerate(value) if isinstance(value, list) else ()
    for one, part in inner:
        for what, other in changed(part, (*way, one)):
            whole = deepcopy(value)
            whole[one] = other
            yield what, whole


@pytest.mark.parametrize("name", KINDS)
def test_a_field_of_another_form_is_told_with_its_file(name: str, tmp_path: Path) -> None:
    kind, store = KINDS[name], Store(tmp_path / "store")
    store.root.mkdir()
    file = kind.write(store)
    good, expected = kind.unpacked(file.read_bytes()), kind.read(store)
    places = [(what, other) for what, other in changed(good) if not kind.may_have(what)]
    assert len(places) > 10
    for what, other in places:
        file.write_bytes(kind.packed(other))
        if name == "failure":  # it only tells of the past
            assert kind.read(store) is None, what
            continue
        error = error_of(kind, store, what)
        if name == "cursor":  # an older one would count: it is told when there is none
            assert error.where == str(file.parent)
            continue
        told(error, file)
        if kind.packed is checked:
            assert "it has another form" in str(error.got), what
    file.write_bytes(kind.packed(good))
    assert kind.read(store) == expected


@pytest.mark.parametrize("name", KINDS)
def test_a_file_that_is_not_whole_is_told(name: str, tmp_path: Path) -> None:
    kind, store = KINDS[name], Store(tmp_path / "store")
    store.root.mkdir()
    file = kind.write(store)
    content = file.read_bytes()
    bodies = [content[:size] for size in range(0, len(content) - 2, 7)]
    for body in (*bodies, b"\xff\xfe", b"[" * 100_000, b"null"):
        file.write_bytes(body)
        if name == "failure":
            assert kind.read(store) is None
            continue
        error = error_of(kind, store, f"{len(body)} bytes")
        if name != "cursor":
            told(error, file)


@pytest.mark.parametrize(("good", "bad"), [("bigint", "bigtext"), ('["id"]', '["ix"]')])
def test_a_table_that_can_be_none_is_told(tmp_path: Path, good: str, bad: str) -> None:
    store = Store(tmp_path)
    file = _manifest(store)
    body = json.dumps(_body(file.read_bytes())).replace(f"{good}", bad)
    file.write_bytes(checked(json.loads(body)))
    error = error_of(KINDS["manifest"], store, bad)
    told(error, file)
    assert "another form" in str(error.got)
    assert bad.strip('["]') in str(error.got)


def error_of(kind: Kind, store: Store, what: str) -> CorruptionError:
    """What is raised instead of reading it."""
    try:
        read = kind.read(store)
    except CorruptionError as error:
        return error
    raise AssertionError(f"{what}: read as {read}")


def told(error: CorruptionError, file: Path) -> None:
    """It says which file, what is wrong with it, and what to do."""
    assert error.where == str(file)
    assert error.got
    assert error.hint
    assert error.safe
