"""ClickHouse as a sink: the contract, on a real server of version 18, and what is its own."""

from __future__ import annotations

import datetime as dt
import random
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import pytest
from mview_connectors.followers.clickhouse import follower as clickhouse_follower
from mview_connectors.followers.clickhouse.follower import ClickhouseFollower, ClickhouseSettings
from mview_connectors.followers.clickhouse.server import Server, ServerError, told_in_words
from pydantic import ValidationError

from mview.catalog.followers import check_followers
from mview.errors import FencedError, MviewError, RetryableError, TargetError, UserError
from mview.follower import Follower, FollowerSettings, FollowerTarget
from mview.plan.definition import parse_view
from mview.testing import FaultError, FollowerContract, FollowerHarness
from mview.testing.contract import World, raised, raised_or_not, schema_of
from mview.testing.view import Row
from tests.conftest import small_config
from tests.patience import wait_for
from tests.seeds import SEED
from tests.services.clickhouse import ClickhouseServer
from tests.services.fixtures import running
from tests.services.process import ServiceError

pytestmark = [pytest.mark.service, pytest.mark.days(2)]


class ClickhouseHarness(FollowerHarness):
    """One database of a server."""

    mode = "upsert"
    #: Columns of ours that readers see.
    shown: tuple[str, ...] = ()

    def __init__(self, server: ClickhouseServer, database: str) -> None:
        self.server, self.database = server, database

    def settings(self, **options: Any) -> FollowerSettings:
        held = {"dates": "text", "timestamps": "text", "mode": self.mode}
        return ClickhouseSettings(**{**self.server.settings(self.database), **held, **options})

    def open(self, target: FollowerTarget) -> Follower:
        return ClickhouseFollower(target)

    def execute(self, sql: str) -> list[Row]:
        return [tuple(row) for row in self.server.execute(sql, self.database)]

    def tables(self) -> list[str]:
        sql = f"SELECT name FROM system.tables WHERE database = '{self.database}'"
        return [name for (name,) in self.execute(sql)]

    def read(self, target: FollowerTarget) -> list[Row] | None:
        if target.table not in self.tables():
            return None
        columns = target.schema.columns
        shown = [expression(column.name, str(column.type)) for column in columns]
        rows = self.execute(f"SELECT {', '.join(shown)} FROM {quoted(target.table)}")
        kinds = [str(column.type) for column in columns]
        return [tuple(map(value_of, row, kinds)) for row in rows]

    def foreign(self, target: FollowerTarget) -> bool:
        names = [*self.shown, *target.schema.names]
        columns = ", ".join(f"{quoted(name)} String" for name in names)
        self.execute(f"CREATE TABLE {quoted(target.table)} ({columns}) ENGINE = Log")
        return True

    def backup(self, target: FollowerTarget) -> Callable[[], None]:
        rows, copy = quoted(f"{target.table}__rows"), quoted(f"{target.table} copy")
        if f"{target.table} copy" in self.tables():
            self.execute(f"DROP TABLE {copy}")
        sql = f"SELECT create_table_query FROM system.tables WHERE database = '{self.database}' "
        (made,) = self.execute(f"{sql} AND name = '{target.table}__rows'")
        ddl = made[0].partition("(")[2]
        self.execute(f"CREATE TABLE {copy} ({ddl}")
        self._copy(f"{target.table}__rows", f"{target.table} copy")

        def restore() -> None:
            self.execute(f"DROP TABLE {rows}")
            self.execute(f"CREATE TABLE {rows} ({ddl}")
            self._copy(f"{target.table} copy", f"{target.table}__rows")

        return restore

    def _copy(self, source: str, to: str) -> None:
        sql = "SELECT DISTINCT partition FROM system.parts WHERE active AND database = "
        for (name,) in self.execute(f"{sql} '{self.database}' AND table = '{source}'"):
            self.execute(f"ALTER TABLE {quoted(to)} ATTACH PARTITION {name} FROM {quoted(source)}")

    def pieces(self, target: FollowerTarget) -> int:
        sql = "SELECT count() FROM system.parts WHERE active AND database = "
        ((count,),) = self.execute(f"{sql} '{self.database}' AND table = '{target.table}__rows'")
        return int(count)

    def drop(self, target: FollowerTarget) -> bool:
        self.execute(f"DROP TABLE {quoted(target.table)}")
        self.execute(f"DROP TABLE {quoted(target.table + '__rows')}")
        return True


def quoted(name: str) -> str:
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def expression(name: str, kind: str) -> str:
    """What shows a value exactly in JSON."""
    if kind in ("float", "double"):
        return (
            f"reinterpretAsUInt{32 if kind == 'float' else 64}(reinterpretAsString({quoted(name)}))"
        )
    if kind.startswith("decimal"):  # `toString` of 18.16 fails at some of 38 digits
        return f"hex(reinterpretAsString({quoted(name)}))"
    if kind in ("string", "binary"):
        return f"hex({quoted(name)})"
    return f"toString({quoted(name)})"


def value_of(value: Any, kind: str) -> Any:
    if value is None:
        return None
    if kind == "string":
        return bytes.fromhex(value).decode()
    if kind == "binary":
        return bytes.fromhex(value)
    if kind == "bool":
        return value == "1"
    if kind in ("float", "double"):
        size = 4 if kind == "float" else 8
        return struct.unpack("<f" if size == 4 else "<d", int(value).to_bytes(size, "little"))[0]
    if kind.startswith("decimal"):
        precision, scale = map(int, kind[11:-1].split(","))
        width = 4 if precision <= 9 else 8 if precision <= 18 else 16
        whole = bytes.fromhex(value).ljust(width, b"\0")
        digits = int.from_bytes(whole, "little", signed=True)
        return Decimal(digits).scaleb(-scale, Context(prec=40))
    if kind == "date32[day]":
        return dt.date.fromisoformat(value)
    if kind.startswith("timestamp"):
        return dt.datetime.fromisoformat(value)
    return int(value)


class TestClickhouse(FollowerContract):
    steps, share = 25, 4

    @pytest.fixture
    def harness(self, clickhouse: ClickhouseServer) -> Iterator[FollowerHarness]:
        with clickhouse.new_database() as database:
            yield ClickhouseHarness(clickhouse, database)


class Changelog(ClickhouseHarness):
    mode = "changelog"
    shown = ("_change", "_epoch", "_position")

    def read(self, target: FollowerTarget) -> list[Row] | None:
        """What the changes come to, each old row being what was there."""
        if target.table not in self.tables():
            return None
        columns = target.schema.columns
        shown = [expression(column.name, str(column.type)) for column in columns]
        rows = self.execute(
            f"SELECT _change, {', '.join(shown)} FROM {quoted(target.table)} "
            "ORDER BY _epoch, _position"
        )
        content: list[Row] = []
        for change, *values in rows:
            row = tuple(
                value_of(value, str(column.type))
                for value, column in zip(values, columns, strict=True)
            )
            if change in ("-U", "-D"):
                content.remove(row)
            else:
                content.append(row)
        return content


class Sharded(ClickhouseHarness):
    """Two servers."""

    def __init__(self, servers: list[ClickhouseServer], database: str) -> None:
        super().__init__(servers[0], database)
        self.shards = [ClickhouseHarness(server, database) for server in servers]
        servers[1].execute(f"CREATE DATABASE {database}")

    def settings(self, **options: Any) -> FollowerSettings:
        url = ", ".join(shard.server.url for shard in self.shards)
        return super().settings(**{"url": url, **options})

    def read(self, target: FollowerTarget) -> list[Row] | None:
        found = [shard.read(target) for shard in self.shards]
        return None if None in found else [row for rows in found for row in rows or []]

    def foreign(self, target: FollowerTarget) -> bool:
        for shard in self.shards:
            shard.foreign(target)
        return True

    def backup(self, target: FollowerTarget) -> Callable[[], None]:
        restores = [shard.backup(target) for shard in self.shards]

        def restore() -> None:
            for one in restores:
                one()

        return restore

    def drop(self, target: FollowerTarget) -> bool:
        for shard in self.shards:
            shard.drop(target)
        return True


@pytest.fixture(scope="module")
def second(clickhouse: ClickhouseServer) -> Iterator[ClickhouseServer]:
    with running("ClickHouse", ClickhouseServer) as server:
        yield server


@pytest.mark.long
class TestClickhouseChangelog(FollowerContract):
    steps, share = 20, 8

    @pytest.fixture
    def harness(self, clickhouse: ClickhouseServer) -> Iterator[FollowerHarness]:
        with clickhouse.new_database() as database:
            yield Changelog(clickhouse, database)


@pytest.mark.long
class TestClickhouseShards(FollowerContract):
    steps, share = 20, 8

    @pytest.fixture
    def harness(self, sharded: Sharded) -> FollowerHarness:
        return sharded


@pytest.fixture
def sharded(clickhouse: ClickhouseServer, second: ClickhouseServer) -> Iterator[Sharded]:
    with clickhouse.new_database() as database:
        yield Sharded([clickhouse, second], database)
    second.execute(f"DROP DATABASE {database}")


@pytest.fixture
def harness(clickhouse: ClickhouseServer) -> Iterator[ClickhouseHarness]:
    with clickhouse.new_database() as database:
        yield ClickhouseHarness(clickhouse, database)


@pytest.fixture
def world(harness: ClickhouseHarness, tmp_path: Path) -> Iterator[World]:
    """A store and a filled sink."""
    made = World(harness, tmp_path)
    made.view.publish([made.row(n) for n in range(5)])
    made.sync()
    yield made
    made.close()


def staging(harness: ClickhouseHarness) -> list[str]:
    return [name for name in harness.tables() if name.startswith("mview_stage_")]


def test_a_runner_that_is_paused_right_before_it_attaches_comes_too_late(
    world: World, harness: ClickhouseHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has looked at the token already."""
    follower, run, woken = world.faulty.inner, Server.run, []
    older = follower._servers()[0]  # type: ignore[attr-defined]

    def paused(self: Server, sql: str, content: bytes = b"") -> bytes:
        if self is older and "ATTACH PARTITION" in sql and not woken:
            woken.append(sql)
            world.fence += 1
            world.faulty, world.following = world.runner(world.fence)
            world.view.publish([world.row(1, "by the newer"), world.row(40)], [(30,)])
            world.sync()
            world.check()
        return run(self, sql, content)

    monkeypatch.setattr(Server, "run", paused)
    following = world.following
    world.view.publish([world.row(1, "seen by both"), world.row(30)])
    with pytest.raises(RetryableError):
        following.advance()
    assert woken
    world.check()
    with pytest.raises(FencedError):
        following.advance()
    world.check()
    assert staging(harness) == []


def test_a_request_that_arrives_late_finds_nothing_to_attach(
    world: World, harness: ClickhouseHarness
) -> None:
    world.view.publish([world.row(9)])
    world.faulty.fail("stage", "after")
    with pytest.raises(FaultError):
        world.sync()
    (name,) = staging(harness)
    world.sync()
    with pytest.raises(ServiceError, match="Code: 60"):
        harness.execute(f"ALTER TABLE t__rows ATTACH PARTITION 1 FROM {quoted(name)}")
    assert staging(harness) == []
    world.check()


def test_a_commit_of_many_inserts_arrives_as_one_part(
    world: World, harness: ClickhouseHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clickhouse_follower, "_ROWS", 100)
    world.view.publish([world.row(n, "many") for n in range(1000, 5000)])
    world.forget()
    parts, merged = [], []
    run = Server.run

    def seen(self: Server, sql: str, content: bytes = b"") -> bytes:
        if "ATTACH PARTITION" in sql:
            name = sql.rpartition("`")[0].rpartition("`")[2]
            where = f"active AND database = '{harness.database}' AND table = '{name}'"
            parts.append(harness.execute(f"SELECT count() FROM system.parts WHERE {where}"))
        answer = run(self, sql, content)
        if "OPTIMIZE" in sql:
            merged.append(sql)
            raise TimeoutError("a merge that takes longer than an answer is waited for")
        return answer

    monkeypatch.setattr(Server, "run", seen)
    assert world.sync() == 1
    assert parts == [[("1",)]]
    assert merged
    world.check()


def test_readers_see_the_old_rows_or_the_new_ones_while_the_sink_is_filled(
    world: World, harness: ClickhouseHarness
) -> None:
    seen: list[list[Row]] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            seen.append(harness.execute("SELECT count() AS n, uniq(g) AS texts, any(g) FROM t"))

    rows = range(2000)
    world.view.publish([world.row(n, "0") for n in rows])
    world.sync()
    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(1, 6):
            world.view.publish([world.row(n, f"{number}") for n in rows])
            world.forget()
            assert world.sync() == 1
    finally:
        stop.set()
        reader.join()
    assert len(seen) > 5
    assert all(row[:2] == ("2000", "1") for (row,) in seen), set(map(str, seen))
    world.check()


def test_what_a_fill_replaced_is_dropped_by_maintenance_or_later(
    world: World, harness: ClickhouseHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    partitions = (
        "SELECT DISTINCT partition AS p FROM system.parts WHERE active AND "
        f"database = '{harness.database}' AND table = 't__rows' ORDER BY toUInt32(p)"
    )
    control, first = harness.execute(partitions)
    world.view.publish([world.row(1, "b")])
    world.forget()
    world.sync()
    second = (str(int(first[0]) + 1),)
    assert harness.execute(partitions) == [control, first, second]
    assert world.faulty.inner.maintain(thorough=False) == {"generations_dropped": 1}
    assert harness.execute(partitions) == [control, second]
    world.check()
    world.view.publish([world.row(1, "c")])
    world.forget()
    world.sync()
    third = (str(int(first[0]) + 2),)
    for kept, left in ((1e9, [control, second, third]), (-1.0, [control, third])):
        monkeypatch.setattr(clickhouse_follower, "_KEPT", kept)
        world.view.publish([world.row(1, f"{kept}")])
        world.sync()
        assert harness.execute(partitions) == left
        world.check()


def test_rows_that_say_that_a_key_is_gone_go_by_maintenance(
    world: World, harness: ClickhouseHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not those that hide a row: what a step brings after the merge, and the newest epoch's."""

    def tombstones() -> set[int]:
        return {int(k) for (k,) in harness.execute("SELECT k FROM t__rows WHERE _deleted = 1")}

    def removed(left: set[int]) -> int:
        """What is told; the server removes it later on, by itself."""
        told = world.faulty.maintain(thorough=True)
        assert wait_for(lambda: tombstones() == left, 60), tombstones()
        world.check()
        return int(told.get("tombstones_removed", 0))

    merge = ClickhouseFollower._merge

    def merge_and_a_step(self: ClickhouseFollower, server: Server, generation: int) -> int:
        merged = merge(self, server, generation)
        world.view.publish([world.row(0, "again")], [(3,)])
        world.sync()
        return merged

    world.view.publish([], [(0,), (1,)])
    world.sync()
    world.view.publish([], [(2,)])
    world.sync()
    world.check()
    with monkeypatch.context() as patch:
        patch.setattr(ClickhouseFollower, "_merge", merge_and_a_step)
        assert removed({2, 3}) == 2
    assert removed({3}) == 1
    world.view.publish([world.row(1, "again")])
    world.sync()
    assert removed(set()) == 1


@pytest.mark.parametrize("dropped", ["t", "t__rows"])
@pytest.mark.parametrize("beside", [False, True])
def test_a_table_that_is_dropped_is_filled_anew(
    world: World, harness: ClickhouseHarness, dropped: str, beside: bool
) -> None:
    """As `mview verify` advises where others have changed its rows; `t` is all that they know."""
    harness.execute("ALTER TABLE t__rows DELETE WHERE k = 1")
    assert wait_for(lambda: not harness.execute("SELECT k FROM t WHERE k = 1"), 20)
    harness.execute(f"DROP TABLE {dropped}")
    if not beside:
        world.start()
    world.view.publish([world.row(9, "after")])
    raised_or_not(world.sync, MviewError)
    world.sync()
    world.check()


def test_a_view_is_made_again_with_its_table(world: World, harness: ClickhouseHarness) -> None:
    for dropped in (["t"], ["t__rows"]):
        for name in dropped:
            harness.execute(f"DROP TABLE {name}")
        world.start()
        world.view.publish([world.row(9, f"after {dropped}")])
        world.sync()
        world.check()


@pytest.mark.parametrize("statement", ["DROP TABLE", "TRUNCATE TABLE"])
@pytest.mark.parametrize("again", [False, True])
def test_rows_that_are_gone_when_a_step_is_staged_are_filled_anew(
    world: World, harness: ClickhouseHarness, statement: str, again: bool
) -> None:
    """What was staged fits nowhere by then: it is taken back, by this runner or the next."""
    world.view.publish([world.row(9)], [(3,)])
    world.faulty.at("commit", "before", lambda: harness.execute(f"{statement} t__rows"))
    raised(world.sync, MviewError)
    if again:
        world.start()
    world.sync()
    world.check()
    assert not staging(harness)


def test_a_view_of_somebody_else_is_left_alone(harness: ClickhouseHarness, tmp_path: Path) -> None:
    harness.execute("CREATE VIEW t AS SELECT name AS k FROM system.tables")
    world = World(harness, tmp_path)
    world.view.publish([world.row(1)])
    with pytest.raises(TargetError, match="has not made"):
        world.sync()
    assert harness.tables() == ["t"]
    world.close()


def test_a_server_that_is_killed_loses_and_doubles_nothing(
    second: ClickhouseServer, tmp_path: Path
) -> None:
    chance = random.Random(SEED)
    database = "killed"
    second.execute(f"CREATE DATABASE {database}")
    harness = ClickhouseHarness(second, database)
    world = World(harness, tmp_path)
    world.view.publish([world.row(n) for n in range(100)])
    world.sync()
    for number in range(4):
        timer = threading.Timer(chance.random() * 0.3, second.kill)
        timer.start()
        with suppress(MviewError):
            while timer.is_alive():
                put = [world.row(chance.randrange(200), f"{number}") for _ in range(20)]
                world.view.publish(put, [(chance.randrange(200),)])
                world.sync()
        timer.join()
        second.restart()
        world.sync_through(3)
        world.check()
    world.close()


def test_one_shard_that_fails_in_a_commit_is_brought_up(
    sharded: Sharded, second: ClickhouseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(sharded, tmp_path)
    world.view.publish([world.row(n) for n in range(50)])
    world.sync()
    run = Server.run

    def failing(self: Server, sql: str, content: bytes = b"") -> bytes:
        if "ATTACH PARTITION" in sql and self._port == second.port:
            raise OSError("the network is gone")
        return run(self, sql, content)

    for is_new in (False, True):
        world.view.publish([world.row(n, f"again {is_new}") for n in range(60)], [(1,)])
        with monkeypatch.context() as context:
            context.setattr(Server, "run", failing)
            with pytest.raises(RetryableError):
                world.sync()
        if is_new:
            world.start()
        assert world.following.advance() is None, "it was committed while it settled"
        world.check()
    held = [shard.execute("SELECT toString(k) AS k FROM t") for shard in sharded.shards]
    assert all(held)
    assert not set(held[0]) & set(held[1])
    world.close()


def test_the_documented_way_without_final(world: World, harness: ClickhouseHarness) -> None:
    world.view.publish([world.row(1, "b"), world.row(7, "c")], [(2,)])
    world.sync()
    newest = "(SELECT max(_generation) FROM t__rows WHERE _kind = 1)"
    rows = harness.execute(
        "SELECT k, argMax(g, _version) AS g FROM t__rows "
        f"WHERE _kind = 0 AND _generation = {newest} "
        "GROUP BY k HAVING argMax(_deleted, _version) = 0 ORDER BY k"
    )
    assert [(int(k), g) for k, g in rows] == sorted(row[:2] for row in world.view.content.values())
    epoch = harness.execute(
        f"SELECT max(_version) AS v FROM t__rows WHERE _kind = 1 AND _generation = {newest}"
    )
    assert int(epoch[0][0]) == world.view.epoch


def test_dates_are_refused_where_clickhouse_has_none(
    harness: ClickhouseHarness, tmp_path: Path
) -> None:
    schema = schema_of([("k", "bigint"), ("v", "date")])
    for option, kind in (("date", "Date"), ("days", "Int32")):
        world = World(harness, tmp_path / option, schema, table=option, dates=option)
        held = [(1, dt.date(1970, 1, 1)), (2, dt.date(2105, 12, 31)), (3, None)]
        world.view.publish(held)
        world.sync()
        assert world.faulty.read().read_all()["v"].to_pylist() == [day for _, day in held]
        sql = f"SELECT type FROM system.columns WHERE table = '{option}' AND name = 'v'"
        assert harness.execute(sql) == [(f"Nullable({kind})",)]
        world.close()
    world = World(harness, tmp_path / "early", schema, table="early", dates="date")
    world.view.publish([(1, dt.date(1969, 12, 31))])
    with pytest.raises(UserError, match="1970-01-01 to 2105-12-31"):
        world.sync()
    world.close()
    refused = World(harness, tmp_path / "none", schema, table="none", dates=None)
    with pytest.raises(UserError, match="dates: text or days"):
        refused.faulty.check()


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("clickhouse:8123", "must be http"),
        ("http://user:secret@host:8123", "must have no user"),
        ("http://a:8123,ftp://b", "must be http"),
    ],
)
def test_bad_urls_are_refused_without_their_text(url: str, told: str) -> None:
    with pytest.raises(ValidationError, match=told) as refused:
        ClickhouseSettings(type="clickhouse", url=url)
    assert "secret" not in refused.value.errors(include_input=False)[0]["msg"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, ""),
        ({"database": "nowhere"}, "Database nowhere doesn't exist (81)"),
        ({"user": "nobody"}, "Unknown user nobody (192)"),
    ],
)
def test_check_asks_whether_the_server_has_a_place_for_it(
    clickhouse: ClickhouseServer, tmp_path: Path, options: dict[str, str], told: str
) -> None:
    sink = {**clickhouse.settings("default"), **options}
    config = small_config(tmp_path, sinks={"s": sink})
    views = [parse_view("CREATE MATERIALIZED VIEW v WITH (sinks = 's') AS SELECT 1", "v")]
    assert check_followers(config, views) == {}
    wrong = check_followers(config, views, probe=True)
    assert {name: error.got for name, error in wrong.items()} == ({"v": told} if told else {})


@pytest.mark.parametrize(
    ("text", "code", "told"),
    [
        ("Code: 60, e.displayText() = DB::Exception: No (t), e.what() = DB::Exception\n", 60,
         "No (t) (60)"),
        ("Code: 516. DB::Exception: u: wrong. (FAILED) (version 23.8.1.1 (official build))\n", 516,
         "u: wrong. (FAILED) (516)"),
        ("Bad Gateway", 0, "Bad Gateway"),
    ],
)  # fmt: skip
def test_what_a_server_says_is_told_in_its_words(text: str, code: int, told: str) -> None:
    assert told_in_words(ServerError(text, code)) == told
