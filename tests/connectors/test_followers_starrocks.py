"""StarRocks as a sink: the contract, on a conformance server, and what is its own."""

from __future__ import annotations

import datetime as dt
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from mview_connectors.followers.starrocks import rows as starrocks_rows
from mview_connectors.followers.starrocks.follower import StarrocksFollower, StarrocksSettings
from mview_connectors.followers.starrocks.server import Frontends, RefusedError
from pydantic import ValidationError

from mview.errors import MviewError, RetryableError, TargetError, UserError
from mview.follow.following import rows_schema
from mview.follower import Follower, FollowerSettings, FollowerTarget, State, Step
from mview.testing import FollowerContract, FollowerHarness
from mview.testing.contract import World, delta_of, schema_of
from mview.testing.view import Row
from tests.services.process import free_port, run
from tests.services.starrocks import StarrocksServer, drop, hang, http_error, says, sends_to


class StarrocksHarness(FollowerHarness):
    """One database of a cluster."""

    megabytes = False  # a VARCHAR has 65,533 bytes
    large = 12_000  # more than one piece of `starrocks._ROWS`; the server is made of Python

    def __init__(self, server: StarrocksServer, database: str) -> None:
        self.server, self.database = server, database

    def settings(self, **options: Any) -> FollowerSettings:
        return StarrocksSettings(**{**self.server.settings(self.database), **options})

    def open(self, target: FollowerTarget) -> Follower:
        return StarrocksFollower(target)

    def execute(self, sql: str) -> list[Row]:
        return self.server.execute(sql)

    def place(self, name: str) -> str:
        return f"{quoted(self.database)}.{quoted(name)}"

    def names(self, kind: str) -> list[str]:
        sql = "SELECT TABLE_NAME FROM information_schema.tables WHERE "
        own = f"TABLE_SCHEMA = '{self.database}' AND TABLE_TYPE = '{kind}'"
        return sorted(name for (name,) in self.execute(sql + own))

    def read(self, target: FollowerTarget) -> list[Row] | None:
        if target.table not in [*self.names("VIEW"), *self.names("BASE TABLE")]:
            return None
        names = ", ".join(map(quoted, target.schema.names))
        rows = self.execute(f"SELECT {names} FROM {self.place(target.table)}")
        kinds = [str(column.type) for column in target.schema.columns]
        return [tuple(map(value_of, row, kinds)) for row in rows]

    def foreign(self, target: FollowerTarget) -> bool:
        columns = ", ".join(f"{quoted(name)} VARCHAR(9) NOT NULL" for name in target.schema.names)
        key = quoted(target.schema.names[0])
        self.execute(
            f"CREATE TABLE {self.place(target.table)} ({columns}) PRIMARY KEY ({key}) "
            f"COMMENT '' DISTRIBUTED BY HASH({key})"
        )
        return True

    def shown(self) -> str:
        """The table that the view `t` shows."""
        definition = self.definition("t")
        (name,) = [name for name in self.names("BASE TABLE") if name in definition]
        return name

    def definition(self, view: str) -> str:
        own = f"TABLE_SCHEMA = '{self.database}' AND TABLE_NAME = '{view}'"
        sql = f"SELECT VIEW_DEFINITION FROM information_schema.views WHERE {own}"
        return str(self.execute(sql)[0][0])

    def backup(self, target: FollowerTarget) -> Callable[[], None]:
        definition, name = self.definition(target.table), self.shown()
        restore_rows = self.server.tables.backup((self.database, name))

        def restore() -> None:
            restore_rows()
            verb = "ALTER" if target.table in self.names("VIEW") else "CREATE"
            self.execute(f"{verb} VIEW {self.place(target.table)} AS {definition}")

        return restore

    def drop(self, target: FollowerTarget) -> bool:
        self.execute(f"DROP VIEW {self.place(target.table)}")
        for name in self.names("BASE TABLE"):
            self.execute(f"DROP TABLE {self.place(name)}")
        return True


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def value_of(value: Any, kind: str) -> Any:
    if value is None or kind == "string":
        return value
    if kind == "bool":
        return value == "1"
    if kind in ("float", "double"):
        return float(value)
    if kind.startswith("decimal"):
        return Decimal(value)
    if kind == "date32[day]":
        return dt.date.fromisoformat(value)
    if kind.startswith("timestamp"):
        return dt.datetime.fromisoformat(value)
    return int(value)


@pytest.fixture
def harness(starrocks: StarrocksServer) -> Iterator[StarrocksHarness]:
    with starrocks.new_database() as database:
        yield StarrocksHarness(starrocks, database)


@pytest.mark.days(3)
class TestStarrocks(FollowerContract):
    steps, share = 25, 4

    @pytest.fixture
    def harness(self, starrocks: StarrocksServer) -> Iterator[FollowerHarness]:
        with starrocks.new_database() as database:
            yield StarrocksHarness(starrocks, database)


@pytest.fixture
def world(harness: StarrocksHarness, tmp_path: Path) -> Iterator[World]:
    """A store and a filled sink."""
    made = World(harness, tmp_path)
    made.view.publish([made.row(n) for n in range(5)])
    made.sync()
    yield made
    made.close()
    server = harness.server
    assert not server.faults, "a fault was not hit"
    server.documented, server.aborts_live_labels, server.publishes = False, False, True


def follower_of(world: World) -> StarrocksFollower:
    follower = world.faulty.inner
    assert isinstance(follower, StarrocksFollower)
    return follower


# --- an answer never decides ---------------------------------------------------------------------

OPERATIONS = [
    *(pytest.param(name, marks=pytest.mark.long) for name in ("begin", "load", "prepare")),
    "commit",
]
ANSWERS: dict[str, Callable[[], Any]] = {
    "none": drop,
    "late": hang(1.5),
    "http-500": http_error(500, "<html>Internal Server Error</html>"),
    "no-json": http_error(200, "<html>a proxy says hello</html>"),
    "empty": http_error(200, ""),
    "failed": says("FAILED", ""),
    "ok": says("OK", ""),
    "label-exists": says(
        "LABEL_ALREADY_EXISTS",
        "Label [x] has already been used.",
        ExistingJobStatus="FINISHED",
    ),
    "not-there": says("FAILED", "TXN_NOT_EXISTS"),
    "no-transaction": says("FAILED", "Transcation Not Exist"),
    "state": says("FAILED", "Transcation State Invalid"),
    "commit-timeout": says("FAILED", "commit timeout"),
    "publish-timeout": says("FAILED", "publish timeout"),
    "committed": says("OK", "Transaction already commited"),
    "in-processing": says("TXN_IN_PROCESSING", ""),
    "old-success": says("Success", "OK"),
    "access": lambda: {"_http": 401, "status": "FAILED", "msg": "Access denied"},
}


@pytest.mark.days(3)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_answer_never_decides(
    world: World, harness: StarrocksHarness, operation: str, when: Any
) -> None:
    """Each answer in place of each operation's own, done or not; by this process or a new one."""
    world.options["timeout"] = "1s"
    world.start()
    for number, answer in enumerate(ANSWERS.values(), 10):
        world.view.publish([world.row(number), world.row(1, f"{number}")], [(number - 1,)])
        harness.server.fault(operation, when, answer)
        with suppress(MviewError):
            world.sync()
        if number % 2:
            world.start()
        for _ in range(3):
            with suppress(MviewError):
                world.sync()
                break
        world.check()
        assert not harness.server.faults
    assert harness.server.labels("PREPARE") == []


@pytest.mark.parametrize("operation", ["state", pytest.param("rollback", marks=pytest.mark.long)])
def test_a_doubt_is_no_answer_either(
    world: World, harness: StarrocksHarness, operation: str
) -> None:
    """What is asked after an error fails, too."""
    world.options["timeout"] = "1s"
    for number, answer in enumerate(ANSWERS.values(), 10):
        world.view.publish([world.row(number), world.row(1, f"{number}")])
        harness.server.fault("prepare" if operation == "rollback" else "commit", "after", drop)
        harness.server.fault(operation, "before", answer)
        for _ in range(5):
            with suppress(MviewError):
                world.sync()
                break
        world.check()
        assert not harness.server.faults


def test_texts_of_the_documentation_and_of_newer_servers(
    world: World, harness: StarrocksHarness
) -> None:
    server = harness.server
    follower = follower_of(world)
    for number, documented in enumerate((False, True), 10):
        server.documented = documented
        target = world.target()
        step = Step(f"twice-{number}", world.view.publish([world.row(number)]), number, 1)
        step = replace(step, after=world.following.cursor.epoch)
        token = follower.stage(step, delta_of(target, [(None, world.row(number))]))
        follower.commit(token)
        follower._loads().decide(follower._label(step))  # "already commited"
        assert follower.state(step, token) is State.COMMITTED
        with pytest.raises(RefusedError):
            follower._loads()._ask("prepare", follower._label(replace(step, id="never")))
        world.start()
        follower = follower_of(world)
        world.sync()
        world.check()


def test_a_label_in_use_is_not_taken_for_ours(world: World, harness: StarrocksHarness) -> None:
    """As after the store was restored: ids of steps come again."""
    follower, view = follower_of(world), world.view
    step = Step("again", view.epoch + 1, world.following.cursor.epoch, 1)
    follower._loads().prepare(
        follower._label(step), harness.shown(), iter([(1, b'[{"k": 9, "_mview": 0}]')])
    )
    follower._loads().decide(follower._label(step))
    assert harness.server.state(harness.database, follower._label(step)) == "VISIBLE"
    assert follower.state(step, None) is State.UNKNOWN
    with pytest.raises(RetryableError, match="LABEL_ALREADY_EXISTS"):
        follower.stage(step, delta_of(world.target(), [(None, world.row(9))]))


# --- labels, time-outs, servers that restart -----------------------------------------------------


def test_a_forgotten_label_decides_nothing(world: World, harness: StarrocksHarness) -> None:
    server = harness.server
    for number, operation in enumerate(("commit", "prepare"), 10):
        for when in ("before", "after"):
            world.view.publish([world.row(number), world.row(1, f"{operation} {when}")])
            server.fault(operation, when, drop)
            if when == "before":
                # The doubt is there when the label is gone, whatever it was.
                server.fault("state", "before", drop)
            with suppress(MviewError):
                world.sync()
            server._faults.clear()
            server.advance(7 * 86400)
            server.labels("PREPARED")
            for label in server.labels("PREPARED"):
                server.state(harness.database, label)
            server.forget_labels()
            before = len(server.log)
            world.sync()
            world.check()
            committed = [label for op, label in server.log[before:] if op == "commit"]
            # What was committed is known by its mark, and not brought again.
            assert bool(committed) == ((operation, when) != ("commit", "after")), server.log[
                before:
            ]


def test_what_waits_too_long_is_staged_again(world: World, harness: StarrocksHarness) -> None:
    server = harness.server
    for number, call in enumerate(("begin", "load", "stage"), 10):
        world.view.publish([world.row(number)])
        if call == "stage":
            world.faulty.at("stage", "after", lambda: server.advance(2 * 86400))
        else:
            operation = {"begin": "load", "load": "prepare"}[call]

            def too_late(operation: str = operation) -> Any:
                server.advance(3600)
                return says("FAILED", "Transcation State Invalid")()

            server.fault(operation, "before", too_late)
        with pytest.raises(MviewError):
            world.sync()
        world.sync()
        world.check()


def test_a_back_end_that_restarts(world: World, harness: StarrocksHarness) -> None:
    server = harness.server

    def restart() -> Any:
        server.restart_backend()
        return says("OK", "")()

    for number, operation in enumerate(("begin", "load"), 10):
        world.view.publish([world.row(number)])
        server.fault(operation, "after", restart)
        with pytest.raises(RetryableError, match="not exists"):
            world.sync()
        world.sync()
        world.check()
    # What is prepared outlives it.
    world.view.publish([world.row(20)])
    server.fault("prepare", "after", restart)
    assert world.sync() == 1
    world.check()


def test_what_is_committed_and_not_seen_yet_is_waited_for(
    world: World, harness: StarrocksHarness
) -> None:
    server = harness.server
    world.options["timeout"] = "1s"
    world.start()
    world.view.publish([world.row(9)])
    world.sync()
    server.publishes = False
    world.view.publish([world.row(1, "b")])
    with pytest.raises(RetryableError, match="does not show"):
        world.sync()
    for is_new in (False, True):
        if is_new:
            world.start()
        begun = server.log.copy()
        with pytest.raises(RetryableError, match="still committing"):
            world.sync()
        assert [op for op, _ in server.log[len(begun) :]] == ["state"]
    server.publish()
    assert world.sync() == 0, "it was noted, not brought again"
    world.check()


def test_an_orphan_is_never_committed(world: World, harness: StarrocksHarness) -> None:
    """What a dead runner had sent arrives after another has gone on."""
    follower = follower_of(world)
    step = Step("late", world.view.epoch + 1, world.following.cursor.epoch, 1)
    world.view.publish([world.row(7, "right")])
    world.sync()
    label = follower._label(step)
    follower._loads().prepare(
        label, harness.shown(), iter([(1, b'[{"k": 7, "g": "wrong", "_mview": 0}]')])
    )
    assert follower.state(step, None) is State.INITIALIZED, "it begins where nothing stands"
    world.start()
    world.sync()
    world.check()
    harness.server.advance(2 * 86400)
    assert harness.server.state(harness.database, label) == "ABORTED"


# --- redirects and front ends --------------------------------------------------------------------


def test_another_front_end_is_asked_when_one_is_away(
    world: World, harness: StarrocksHarness
) -> None:
    world.options["url"] = f"http://127.0.0.1:{free_port()}, {harness.server.url}"
    world.start()
    world.view.publish([world.row(9)])
    with suppress(RetryableError):
        world.sync()
    world.sync()
    world.check()


def test_redirects_that_lead_nowhere(world: World, harness: StarrocksHarness) -> None:
    server = harness.server
    for number, url in enumerate(
        (
            f"http://127.0.0.1:{server.follower}/api/transaction/begin",
            f"http://127.0.0.1:{free_port()}/api/transaction/begin",
            "ftp://127.0.0.1/",
            "/api/transaction/begin",
        ),
        10,
    ):
        world.view.publish([world.row(number)])
        for _ in range(2 if str(server.follower) in url else 1):
            server.fault("redirect", "before", sends_to(url))
        with pytest.raises(MviewError) as failed:
            world.sync()
        assert server.credentials[1] not in str(failed.value)
        world.sync()
        world.check()


def test_a_password_does_not_leave_tls() -> None:
    for may, location, is_refused in (
        (False, "http://be.example.org:8040/x", True),
        (True, "http://be.example.org:8040/x", False),
        (False, "https://be.example.org:8040/x", False),
        (False, "http://127.0.0.1:8040/x", False),
    ):
        front = Frontends(["https://fe.example.org"], "u", "p", 1.0, may, "sinks.s")
        if is_refused:
            with pytest.raises(TargetError, match="without TLS"):
                front._check_redirect("https://fe.example.org/x", location)
        else:
            front._check_redirect("https://fe.example.org/x", location)


def test_with_tls_the_servers_must_prove_who_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTTP, redirects and the MySQL protocol, by a certificate that the system knows, or not."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    more = "-subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    files = ["-keyout", str(key), "-out", str(certificate)]
    run("openssl", [*command.split(), *more.split(), *files])
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    server = StarrocksServer(tls=tls)
    with server.new_database() as database:
        world = World(StarrocksHarness(server, database), tmp_path)
        world.view.publish([world.row(n) for n in range(3)])
        with pytest.raises(RetryableError, match="CERTIFICATE_VERIFY_FAILED"):
            world.sync()
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            follower_of(world)._loads().state("x")
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        world.start()
        world.sync()
        world.view.publish([world.row(1, "b")], [(2,)])
        world.sync()
        world.check()
        world.close()
    server.stop()


def test_a_wrong_password_is_not_told(harness: StarrocksHarness, tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("not-the-password")
    world = World(harness, tmp_path, password=f"${{file:{secret}}}")
    world.view.publish([world.row(1)])
    with pytest.raises(MviewError, match="Access denied") as refused:
        world.sync()
    follower = follower_of(world)
    with pytest.raises(RefusedError) as http:
        follower._loads().state("x")
    for error in (refused.value, http.value):
        assert "not-the-password" not in str(error)
    assert "401" in str(http.value)
    world.close()


# --- loads ---------------------------------------------------------------------------------------


def test_a_large_epoch_is_several_loads_of_one_transaction(
    world: World, harness: StarrocksHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starrocks_rows, "_REQUEST_BYTES", 5000)
    world.view.publish([world.row(n, "many") for n in range(500)], [(3,)])
    before = len(harness.server.log)
    assert world.sync() == 1
    world.check()
    log = harness.server.log[before:]
    assert len([op for op, _ in log if op == "load"]) > 5
    assert len({label for _, label in log}) == 1
    # One of them is answered with OK and lost: the number of rows tells.
    world.view.publish([world.row(n, "again") for n in range(500)])
    harness.server.fault("load", "before", says("OK", ""))
    with pytest.raises(TargetError, match="not taken all rows"):
        world.sync()
    world.sync()
    world.check()


def test_a_fill_is_several_transactions_that_nobody_sees(
    world: World, harness: StarrocksHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starrocks_rows, "_REQUEST_BYTES", 2000)
    monkeypatch.setattr(starrocks_rows, "_FILL_BYTES", 10_000)
    old, rows = harness.shown(), harness.read(world.target())
    world.view.publish([world.row(n, "filled") for n in range(500)])
    world.forget()
    before = len(harness.server.log)
    seen: list[Any] = []
    world.faulty.at("fill", "after", lambda: seen.append(harness.read(world.target())))
    world.sync()
    assert seen == [rows]
    world.check()
    labels = {label for _, label in harness.server.log[before:]}
    assert len(labels) > 3
    assert harness.names("BASE TABLE") == [harness.shown()] != [old]


def test_a_fill_that_fails_leaves_nothing_behind(world: World, harness: StarrocksHarness) -> None:
    shown = harness.shown()
    follower, target = follower_of(world), world.target()
    step = Step("fill", world.view.epoch, None)
    token = follower.fill(step, pa.RecordBatchReader.from_batches(rows_schema(target), []))
    assert follower.state(step, token) is State.PREPARED
    assert len(harness.names("BASE TABLE")) == 2
    # That of another view or store has the same form of a name, and its own owner.
    others = follower._rows_name(replace(step, id="others"))
    other = StarrocksFollower(replace(target, owner="other/v/s"))
    harness.execute(other._table_ddl(others))
    assert follower.maintain(thorough=True) == {}
    assert follower.state(step, token) is State.PREPARED
    again = replace(step, id="again")
    follower.fill(again, pa.RecordBatchReader.from_batches(rows_schema(target), []))
    expected = [shown, others, follower._rows_name(again)]
    assert harness.names("BASE TABLE") == sorted(expected)
    assert follower.state(step, token) is State.UNKNOWN
    with pytest.raises(RetryableError, match="not there any more"):
        follower.commit(token)
    follower.abort(step, token)
    world.sync()
    world.check()
    harness.execute(f"DROP TABLE {harness.place(others)}")


def test_values_that_do_not_fit_are_refused_and_never_null(
    harness: StarrocksHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starrocks_rows, "_VARCHAR", 1000)
    schema = schema_of([("k", "string"), ("v", "string"), ("d", "double")])
    world = World(harness, tmp_path, schema)
    world.view.publish([("a", "b", 1.0)])
    world.sync()
    long = "ä" * 500 + "x"
    for row, told in (
        (("b", long, 1.0), "1001 bytes"),
        (("b", "b", float("nan")), "NaN"),
        (("b", "b", float("inf")), "NaN or infinite"),
        (("k" * 129, "b", 1.0), "primary key size exceed the limit"),
    ):
        world.view.publish([row])
        with pytest.raises(MviewError, match=told) as refused:
            world.sync()
        assert isinstance(refused.value, UserError | TargetError)
        world.view.publish([], [(row[0],)])
        world.sync()
        world.check()
    world.close()


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ([("k", "double"), ("v", "int")], "no floating-point numbers in a key"),
        ([("k", "decimal(9,2)"), ("v", "int")], "no decimals in a key"),
        ([("k", "int"), ("v", "binary")], "no binary"),
        ([("k", "int"), ("v", "array<int>")], "no arrays"),
        ([("k", "int"), ("__OP", "int")], "needs itself"),
        ([("k", "int"), ("_mark", "int")], "needs itself"),
    ],
)
def test_what_starrocks_cannot_hold_is_refused(
    harness: StarrocksHarness, tmp_path: Path, columns: Any, told: str
) -> None:
    world = World(harness, tmp_path, schema_of(columns))
    with pytest.raises(UserError, match=told):
        world.faulty.check()
    world.close()


def test_options_of_a_table(harness: StarrocksHarness, tmp_path: Path) -> None:
    world = World(harness, tmp_path, buckets=3, properties={"replication_num": "1"})
    ddl = follower_of(world)._table_ddl("x")
    assert "BUCKETS 3 PROPERTIES ('replication_num' = '1')" in ddl
    world.view.publish([world.row(1)])
    world.sync()
    world.check()
    world.close()


def test_a_view_whose_table_is_gone_is_made_again(world: World, harness: StarrocksHarness) -> None:
    for kind in ("TABLE", "VIEW"):
        name = harness.shown() if kind == "TABLE" else "t"
        harness.execute(f"DROP {kind} {harness.place(name)}")
        world.start()
        world.view.publish([world.row(9, f"after {kind}")])
        world.sync()
        world.check()
        assert len(harness.names("BASE TABLE")) == 1


def test_a_view_of_somebody_else_is_left_alone(harness: StarrocksHarness, tmp_path: Path) -> None:
    harness.execute(
        f"CREATE TABLE {harness.place('other')} (k INT NOT NULL) PRIMARY KEY (k) "
        "DISTRIBUTED BY HASH(k)"
    )
    other = harness.place("other")
    harness.execute(f"CREATE VIEW {harness.place('t')} (k) AS SELECT k FROM {other}")
    world = World(harness, tmp_path)
    world.view.publish([world.row(1)])
    with pytest.raises(TargetError, match="has not made"):
        world.sync()
    assert harness.names("BASE TABLE") == ["other"]
    world.close()


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("starrocks:8030", "must be http"),
        ("http://user:secret@host:8030", "must have no user"),
        ("http://a:8030,ftp://b", "must be http"),
    ],
)
def test_bad_urls_are_refused_without_their_text(url: str, told: str) -> None:
    with pytest.raises(ValidationError, match=told) as refused:
        StarrocksSettings(type="starrocks", url=url, database="d")
    assert "secret" not in refused.value.errors(include_input=False)[0]["msg"]
