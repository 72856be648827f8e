"""A log that is away holds nobody, is asked again aside, and goes on where it was."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from mview.config.file import load_config
from mview.connector import Changelog, Progress, TableHalt
from mview.errors import AwayError, ConfigError, DataLostError, DecodeError, UserError
from mview.ingest import away, changelogs
from mview.ingest.changelogs import Changelogs
from mview.ingest.live import LiveQuery
from mview.ingest.spec import QuerySpec, TableSpec
from mview.store.away import read_away
from mview.store.layout import Store
from tests.ingest.test_sources import SCHEMA
from tests.patience import Patience
from tests.relations import rel
from tests.services.process import wait_until

#: Of the runner's lease.
_TOKEN = 3


class Server:
    """What the logs of two connections are read from, and what fails there."""

    def __init__(self, folder: Path, opened: Callable[..., Changelog]) -> None:
        self.folder, self.open = folder, opened
        #: By connection, what its log raises, by the method that raises it.
        self.fails: dict[str, dict[str, Exception]] = {"a": {}, "b": {}}
        #: While this is not set, attempts to read a get no answer.
        self.answers = threading.Event()
        self.answers.set()
        #: The connections that were asked, in their order, and the objects that were closed.
        self.asked: list[str] = []
        self.opened = self.closed = 0

    def open_changelog(self, config: Any, connection: str, *args: Any, **more: Any) -> Any:
        self.opened += 1
        return Log(self, connection, self.open(config, connection, *args, **more))

    def write(self, connection: str, key: int) -> None:
        file = self.folder / connection / f"t-{connection}.jsonl"
        event = {"table": "t", "op": "c", "ts": key, "key": {"id": key}, "after": {"id": key}}
        with file.open("ab") as lines:
            lines.write(orjson.dumps(event) + b"\n")


class Log:
    """A log of files that fails as its server is told to."""

    def __init__(self, server: Server, name: str, log: Changelog) -> None:
        self._server, self._name, self._log = server, name, log

    def advance(self, *args: Any) -> Progress:
        self._server.asked.append(self._name)
        self._fail("advance")
        return self._log.advance(*args)

    def splits(self, *args: Any) -> Any:
        self._fail("splits")
        return self._log.splits(*args)

    def read(self, splits: Any) -> Iterator[Any]:
        self._fail("read")
        return self._log.read(splits)

    def close(self) -> None:
        self._server.closed += 1
        self._log.close()

    def _fail(self, method: str) -> None:
        if self._name == "a":
            assert self._server.answers.wait(60)
        if error := self._server.fails[self._name].get(method):
            raise error


GONE = AwayError("the server of a does not answer", got="\nrefused")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that only the test lets pass."""
    seconds = [1_000.0]
    monkeypatch.setattr(away, "awake_s", lambda: seconds[0])
    monkeypatch.setattr(changelogs, "WAIT_MS", 0)
    return seconds


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server(tmp_path / "logs", changelogs.open_changelog)
    server.folder.mkdir()
    monkeypatch.setattr(changelogs, "open_changelog", server.open_changelog)
    return server


def spec_of(server: Server, names: str = "ab", *, once: bool = False) -> QuerySpec:
    """What reads table t of each connection from the begin of its log."""
    parts = [
        "store: ../store",
        "connections:",
        *(f"  {n}: {{drivername: sqlite, database: {n}.db}}" for n in names),
        "changes:",
        *(f"  {n}: {{source: files, format: unified, path: {n}}}" for n in names),
    ]
    file = server.folder / "mview.yml"
    file.write_text("\n".join(parts))
    config = load_config(file)
    config.store.mkdir(exist_ok=True)
    tables, start = {}, {}
    for name in names:
        (server.folder / name).mkdir()
        start[name] = server.open(config, name, ["t"]).begin()
        server.write(name, 1)
        table = rel(f"{name}.t")
        tables[table] = TableSpec(table, SCHEMA, Path("base"), "", None)
    return QuerySpec(1, config, tables, start, -1, 1, once, token=_TOKEN)


@pytest.fixture
def spec(server: Server) -> QuerySpec:
    return spec_of(server)


@pytest.fixture
def logs(spec: QuerySpec, tmp_path: Path, clock: list[float]) -> Iterator[Changelogs]:
    logs = Changelogs(spec.write(tmp_path / "spec.json"))
    yield logs
    logs.close()


def taken(logs: Changelogs, start: dict[str, Any], end: dict[str, Any]) -> dict[str, list[int]]:
    """The keys that changed between two offsets, by table."""
    keys: dict[str, list[int]] = {}
    for piece in logs.pieces(start, end):
        for decoded in logs.changes(piece):
            keys.setdefault(str(decoded.table), []).extend(decoded.changes["id"].to_pylist())
    return keys


def until_asked(
    logs: Changelogs, at: dict[str, Any], done: Callable[[dict[str, Any]], bool]
) -> Any:
    """Ask until an attempt that was made aside has been answered."""
    patience = Patience(60)
    while not done(end := logs.advance(at)):
        assert not patience.is_over()
        time.sleep(0.005)
    return end


def test_others_go_on_and_nothing_is_lost_or_doubled(
    server: Server, logs: Changelogs, spec: QuerySpec, clock: list[float]
) -> None:
    store = Store(spec.config.store)
    begin = logs.begin()
    at = logs.advance(begin)
    assert taken(logs, begin, at) == {"a.t": [1], "b.t": [1]}
    server.write("a", 2)
    server.write("b", 2)
    server.fails["a"]["advance"] = GONE
    end = logs.advance(at)
    assert end["connections"]["a"] == at["connections"]["a"]
    assert end["watermark"] == at["watermark"]
    assert end["cuts"]["a"] == at["cuts"]["a"], "what was said of it holds"
    assert taken(logs, at, end) == {"b.t": [2]}
    assert server.closed == 1
    assert read_away(store, _TOKEN)["a"].error == "the server of a does not answer: refused"
    assert logs.advance(end) == end, "no news, and no error"

    server.fails["a"].clear()
    clock[0] += 1
    back = until_asked(logs, end, lambda at: at != end)
    assert taken(logs, end, back) == {"a.t": [2]}
    assert read_away(store, _TOKEN) == {}
    assert logs.advance(back) == back


def test_it_is_asked_aside_with_growing_pauses(
    server: Server, logs: Changelogs, spec: QuerySpec, clock: list[float]
) -> None:
    """An attempt that lasts holds nobody."""
    store = Store(spec.config.store)
    server.fails["a"]["advance"] = GONE
    at = logs.advance(logs.begin())
    since = read_away(store, _TOKEN)["a"].since_ms
    for pause in (1, 2, 4, 8, 15, 30, 30):
        clock[0] += pause - 0.001
        logs.advance(at)
        assert server.asked.count("a") == 1
        server.answers.clear()
        clock[0] += 0.001
        logs.advance(at)
        for key in (pause, pause + 100):
            server.write("b", key)
            end = logs.advance(at)
            assert taken(logs, at, end)["b.t"][-1] == key
            at = end
        wait_until(lambda: server.asked.count("a") == 2, "an attempt", 60)
        server.asked.clear()
        server.asked.append("a")
        error = f"still away after {pause} s, attempt {server.opened}"
        server.fails["a"]["advance"] = AwayError(error)
        server.answers.set()
        wait_until(
            lambda at=at, error=error: (
                logs.advance(at) and read_away(store, _TOKEN)["a"].error == error
            ),
            "the error",
            60,
        )
    assert read_away(store, _TOKEN)["a"].since_ms == since


def test_a_batch_that_cannot_be_read_is_planned_without_it(
    server: Server, logs: Changelogs, spec: QuerySpec, clock: list[float]
) -> None:
    """It counts as back when what it has could be read, not when it says that there is some."""
    store = Store(spec.config.store)
    begin = logs.begin()
    server.fails["a"]["read"] = GONE
    for attempt in (1, 2, 4):
        with pytest.raises(AwayError) as caught:
            taken(logs, begin, until_asked(logs, begin, lambda at: "a" in at["cuts"]))
        assert logs.goes_on(caught.value)
        assert not logs.goes_on(AwayError("another"))
        assert taken(logs, begin, logs.advance(begin)) == {"b.t": [1]}
        assert read_away(store, _TOKEN).keys() == {"a"}
        clock[0] += attempt
    server.fails["a"] = {"splits": GONE}
    with pytest.raises(AwayError):
        taken(logs, begin, until_asked(logs, begin, lambda at: "a" in at["cuts"]))
    clock[0] += 8
    server.fails["a"].clear()
    end = until_asked(logs, begin, lambda at: "a" in at["cuts"])
    assert taken(logs, begin, end) == {"a.t": [1], "b.t": [1]}
    assert read_away(store, _TOKEN) == {}


def test_where_all_are_away_it_is_said_at_once(server: Server, logs: Changelogs) -> None:
    for name in "ab":
        server.fails[name]["advance"] = AwayError(f"{name} is away")
    with pytest.raises(AwayError, match="b is away") as caught:
        logs.advance(logs.begin())
    assert not logs.goes_on(caught.value)


@pytest.mark.parametrize(("names", "once"), [("a", False), ("ab", True)])
def test_a_bounded_run_and_one_of_one_connection_wait(
    server: Server, tmp_path: Path, clock: list[float], names: str, once: bool
) -> None:
    spec = spec_of(server, names, once=once)
    logs = Changelogs(spec.write(tmp_path / "spec.json"))
    server.fails["a"]["advance"] = GONE
    with pytest.raises(AwayError, match="the server of a"):
        logs.advance(logs.begin())
    assert read_away(Store(spec.config.store), _TOKEN) == {}
    logs.close()


def test_another_query_does_not_ask_at_once_who_was_away_but_replays_what_was_planned(
    server: Server, logs: Changelogs, spec: QuerySpec, tmp_path: Path
) -> None:
    begin = logs.begin()
    planned = logs.advance(begin)
    server.write("b", 2)
    server.fails["a"]["advance"] = GONE
    logs.advance(planned)
    server.asked.clear()
    server.answers.clear()
    again = Changelogs(spec.write(tmp_path / "spec.json"))
    assert again.advance(begin)["cuts"].keys() == {"b"}
    again.close()
    server.answers.set()
    again = Changelogs(spec.write(tmp_path / "spec.json"))
    assert taken(again, begin, planned) == {"a.t": [1], "b.t": [1]}
    again.close()


@pytest.mark.parametrize("error", [ConfigError("no such user"), UserError("no such right")])
def test_one_that_refuses_holds_nobody_and_is_asked_again(
    server: Server, logs: Changelogs, spec: QuerySpec, clock: list[float], error: UserError
) -> None:
    store = Store(spec.config.store)
    server.fails["a"]["advance"] = GONE
    at = logs.advance(logs.begin())
    server.fails["a"]["advance"] = error
    clock[0] += 1
    until_asked(logs, at, lambda _: read_away(store, _TOKEN)["a"].error == error.what)
    server.write("b", 2)
    end = logs.advance(at)
    assert taken(logs, at, end) == {"b.t": [2]}
    server.fails["a"].clear()
    clock[0] += 2
    back = until_asked(logs, end, lambda at: at != end)
    assert taken(logs, end, back) == {"a.t": [1]}
    # And at once, without an attempt aside.
    server.write("b", 3)
    server.fails["a"]["advance"] = error
    end = logs.advance(back)
    assert taken(logs, back, end) == {"b.t": [3]}
    assert read_away(store, _TOKEN)["a"].error == error.what


def test_a_message_that_cannot_be_taken_is_the_same_in_each_attempt(
    server: Server, logs: Changelogs, clock: list[float]
) -> None:
    server.fails["a"]["advance"] = GONE
    at = logs.advance(logs.begin())
    server.fails["a"]["advance"] = DecodeError("no JSON")
    clock[0] += 1
    with pytest.raises(DecodeError, match="no JSON"):
        until_asked(logs, at, lambda _: False)
    begin = logs.begin()
    server.fails["b"]["read"] = DecodeError("no JSON either")
    with pytest.raises(DecodeError, match="either") as caught:
        taken(logs, begin, logs.advance(begin))
    assert not logs.goes_on(caught.value)


def test_what_an_attempt_opens_is_closed_with_the_query(
    server: Server, logs: Changelogs, clock: list[float]
) -> None:
    server.fails["a"]["advance"] = GONE
    at = logs.advance(logs.begin())
    server.fails["a"].clear()
    server.answers.clear()
    clock[0] += 1
    logs.advance(at)
    logs.close()
    server.answers.set()
    wait_until(lambda: server.opened == server.closed, "all to be closed", 60)


def test_the_live_query_takes_no_batch_that_could_not_be_read(
    server: Server, spec: QuerySpec, tmp_path: Path, clock: list[float]
) -> None:
    server.fails["a"]["read"] = GONE
    batches: list[dict[str, list[int]]] = []

    def on_batch(batch: Any) -> None:
        keys = {
            str(table): [key for changes in parts for key in changes["id"].to_pylist()]
            for table, parts in batch.changes.items()
        }
        batches.append(keys)
        server.fails["a"].clear()
        clock[0] += 1

    spark: Any = SimpleNamespace(begin=bool, settle=bool, running=None)
    LiveQuery(spark, spec, tmp_path, on_batch).run(lambda: len(batches) == 2)
    assert batches == [{"b.t": [1]}, {"a.t": [1]}]


LOST = DataLostError("changes of a are gone before they were read", hint="mview drop a.t")


@pytest.mark.parametrize("method", ["advance", "splits", "read"])
def test_the_tables_of_a_log_that_is_lost_halt(
    server: Server, spec: QuerySpec, tmp_path: Path, clock: list[float], method: str
) -> None:
    server.fails["a"][method] = LOST
    batches: list[tuple[list[str], list[str]]] = []

    def on_batch(batch: Any) -> None:
        batches.append((sorted(map(str, batch.changes)), sorted(map(str, batch.halted))))
        assert all(halt == TableHalt.of(LOST) for halt in batch.halted.values())
        assert batch.offsets.connections["a"] == spec.start["a"]
        if len(batches) == 1:
            server.write("b", 2)

    spark: Any = SimpleNamespace(begin=bool, settle=bool, running=None)
    LiveQuery(spark, spec, tmp_path, on_batch).run(lambda: len(batches) == 2)
    assert batches == [(["b.t"], ["a.t"]), (["b.t"], [])]
    assert server.opened == server.closed


def test_a_log_that_is_lost_while_an_epoch_runs_halts_its_tables(
    server: Server, spec: QuerySpec, tmp_path: Path, clock: list[float]
) -> None:
    """Few changes wait for the running epoch, and are planned anew then: with what was said."""
    batches: list[list[str]] = []
    planned = threading.Event()

    class Lost(dict[str, Exception]):
        def get(self, key: str, default: Any = None) -> Any:
            planned.set()
            return super().get(key, default)

    def on_batch(batch: Any) -> None:
        if not batches:
            server.fails["a"] = Lost(advance=LOST)
            server.write("b", 2)
            assert planned.wait(60)
            time.sleep(0.3)  # the plan is made by then, and waits for this epoch
        batches.append(sorted(map(str, batch.halted)))

    spark: Any = SimpleNamespace(begin=bool, settle=bool, running=None)
    LiveQuery(spark, spec, tmp_path, on_batch).run(lambda: len(batches) == 2)
    assert batches == [[], ["a.t"]]


def test_one_that_is_back_may_have_lost_what_was_not_read(
    server: Server, logs: Changelogs, spec: QuerySpec, clock: list[float]
) -> None:
    server.fails["a"]["advance"] = GONE
    at = logs.advance(logs.begin())
    server.fails["a"]["advance"] = LOST
    clock[0] += 1
    end = until_asked(logs, at, lambda end: end["halts"])
    assert end["halts"] == {"a.t": asdict(TableHalt.of(LOST))}
    assert end["connections"] == at["connections"]
    assert read_away(Store(spec.config.store), _TOKEN) == {}


def test_a_halt_is_said_until_a_batch_has_it_and_then_no_more(
    server: Server, logs: Changelogs, clock: list[float]
) -> None:
    """A plan may be given up: what is read by it cannot be read, or another one comes first."""
    at = logs.begin()
    server.fails["a"]["advance"] = LOST
    plans = [logs.advance(at), logs.advance(at)]
    assert [[*plan["halts"]] for plan in plans] == [["a.t"], ["a.t"]]
    assert logs.advance(plans[1]) is plans[1], "nothing is new"
    for number in (2, 3):
        server.write("b", number)
        plans.append(logs.advance(plans[-1]))
        assert plans[-1] != plans[-2]
        assert plans[-1]["halts"] == {}


def test_that_the_only_log_is_lost_ends_the_run(
    server: Server, tmp_path: Path, clock: list[float]
) -> None:
    spec = spec_of(server, "a")
    logs = Changelogs(spec.write(tmp_path / "spec.json"))
    server.fails["a"]["advance"] = LOST
    with pytest.raises(DataLostError, match="changes of a are gone"):
        logs.advance(logs.begin())
    logs.close()
