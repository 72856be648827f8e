"""PostgreSQL and MariaDB as sinks, on real servers: the contract, and what only they can do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from mview_connectors.followers.sql.follower import MARKS, SqlSettings
from mview_connectors.followers.sql.mysql import MariadbFollower
from mview_connectors.followers.sql.postgresql import PostgresqlFollower

from mview.catalog.followers import check_followers
from mview.errors import MviewError, RetryableError, TargetError, UserError
from mview.follower import Follower, FollowerSettings, FollowerTarget
from mview.plan.definition import parse_view
from mview.testing import FollowerContract, FollowerHarness
from mview.testing.contract import VALUES, World, schema_of
from mview.testing.view import Row
from tests.conftest import small_config
from tests.patience import wait_for
from tests.services.mariadb import MariadbServer
from tests.services.postgresql import PostgresqlServer

pytestmark = [pytest.mark.service, pytest.mark.days(3)]


TWO_PHASE = {"commit": "two-phase"}


class ServerHarness(FollowerHarness):
    """A database of a server, looked at by plain statements."""

    kind = ""
    sign = '"'

    def __init__(self, server: Any, database: str, **options: Any) -> None:
        self.server, self.database, self.options = server, database, options

    def settings(self, **options: Any) -> FollowerSettings:
        given = self.server.settings(self.database)
        url = f"{self.kind}://{given['username']}@127.0.0.1:{given['port']}/{self.database}"
        return SqlSettings(
            type=self.kind, url=url, password=given["password"], **self.options, **options
        )

    def quoted(self, name: str) -> str:
        return self.sign + name.replace(self.sign, 2 * self.sign) + self.sign

    def execute(self, sql: str) -> list[Row]:
        return self.server.execute(sql, self.database)

    def read(self, target: FollowerTarget) -> list[Row] | None:
        names = ", ".join(map(self.quoted, target.schema.names))
        try:
            rows = self.execute(f"SELECT {names} FROM {self.quoted(target.table)}")
        except Exception as error:
            if "exist" not in str(error):
                raise
            return None
        kinds = [str(column.type) for column in target.schema.columns]
        return [tuple(map(value_of, row, kinds)) for row in rows]

    def foreign(self, target: FollowerTarget) -> bool:
        columns = ", ".join(f"{self.quoted(name)} int" for name in target.schema.names)
        self.execute(f"CREATE TABLE {self.quoted(target.table)} ({columns})")
        return True

    def backup(self, target: FollowerTarget) -> Callable[[], None]:
        names = [(target.table, "copy_t"), (MARKS, "copy_marks")]
        for name, copy in names:
            self.execute(f"DROP TABLE IF EXISTS {copy}")
            self.execute(f"CREATE TABLE {copy} AS SELECT * FROM {self.quoted(name)}")

        def restore() -> None:
            self.roll_back_prepared()  # a backup has none
            for name, copy in names:
                self.execute(f"DELETE FROM {self.quoted(name)}")
                self.execute(f"INSERT INTO {self.quoted(name)} SELECT * FROM {copy}")

        return restore

    def roll_back_prepared(self) -> None:
        """End what is prepared in the database."""
        raise NotImplementedError

    def drop(self, target: FollowerTarget) -> bool:
        self.execute(f"DROP TABLE {self.quoted(target.table)}")
        return True


def value_of(value: Any, kind: str) -> Any:
    """What a driver says of a value, as the view's type has it."""
    if value is None:
        return None
    if kind == "float":
        return float(np.float32(value))  # drivers give its shortest text
    return bool(value) if kind == "bool" else value


class PostgresqlHarness(ServerHarness):
    kind = "postgresql"

    def open(self, target: FollowerTarget) -> Follower:
        return PostgresqlFollower(target)

    def roll_back_prepared(self) -> None:
        self.server.roll_back_prepared(self.database)


class MariadbHarness(ServerHarness):
    kind = "mariadb"
    sign = "`"

    def open(self, target: FollowerTarget) -> Follower:
        return MariadbFollower(target)

    def roll_back_prepared(self) -> None:
        self.server.roll_back_prepared()


class ServerContract(FollowerContract):
    steps, share = 30, 4

    #: Makes a column one of numbers without digits behind the point.
    alter: ClassVar[str]
    #: Drops the table's primary key.
    drop_key: ClassVar[str]
    #: Has keys of the table `texts` compared without regard to case.
    fold_case: ClassVar[tuple[str, ...]]
    #: What is said of a row that a unique index refuses, and of which table an index is.
    in_the_way: ClassVar[str]
    of_table: ClassVar[str] = ""

    def test_sessions_that_the_server_ends(self, harness: ServerHarness) -> None:
        """In the middle of a transaction, and between two."""
        with self.filled(harness) as world:
            for call in ("stage", "commit"):
                for when in ("before", "after"):
                    world.view.publish([world.row(1, f"{call} {when}")])
                    world.faulty.at(call, when, lambda: self.end_sessions(harness))
                    for _ in range(3):
                        try:
                            world.sync()
                        except RetryableError:
                            continue
                        break
                    world.check()
                    assert (call, when) in world.faulty.hit

    def end_sessions(self, harness: ServerHarness) -> None:
        raise NotImplementedError

    def test_a_column_that_somebody_has_altered_is_told(self, harness: ServerHarness) -> None:
        """A number would be rounded to fit, without a word."""
        with self.filled(harness) as world:
            table = harness.quoted("t")
            harness.execute(f"ALTER TABLE {table} {self.alter.format(harness.quoted('amount'))}")
            world.start()
            world.view.publish([world.row(50)])
            with pytest.raises(TargetError, match="somebody has altered") as told:
                world.sync()
            assert "amount" in str(told.value.render())
            assert "(12,0)" in str(told.value.render())
            harness.drop(world.target())
            world.sync()
            world.check()

    def test_a_primary_key_that_somebody_has_dropped_is_told(self, harness: ServerHarness) -> None:
        """MariaDB would add rows of keys that are there, without a word."""
        with self.filled(harness) as world:
            table = harness.quoted("t")
            harness.execute(f"ALTER TABLE {table} {self.drop_key}")
            world.start()
            world.view.publish([world.row(1, "not twice")])
            with pytest.raises(TargetError, match="told apart by its key") as told:
                world.sync()
            assert "primary key (k)" in str(told.value.render())
            harness.execute(f"ALTER TABLE {table} ADD PRIMARY KEY (k)")
            world.sync()
            world.check()

    def test_a_view_in_the_place_of_the_table_is_told(self, harness: ServerHarness) -> None:
        """PostgreSQL and MariaDB write through it, to a table that nobody has meant."""
        with self.filled(harness) as world:
            harness.execute("ALTER TABLE t RENAME TO theirs")
            harness.execute("CREATE VIEW t AS SELECT * FROM theirs")
            world.start()
            world.view.publish([world.row(50)])
            with pytest.raises(TargetError, match="a view in the place of the table t") as told:
                world.sync()
            assert "drop the view there" in str(told.value.render())
            harness.execute("DROP VIEW t")
            world.sync()
            world.check()

    def test_an_altered_table_of_marks_is_told_with_what_mends_it(
        self, harness: ServerHarness
    ) -> None:
        with self.filled(harness) as world:
            harness.execute(f"ALTER TABLE {MARKS} DROP COLUMN step")
            world.start()
            world.view.publish([world.row(50)])
            with pytest.raises(TargetError, match="cannot use mview_marks") as told:
                world.sync()
            assert f"drop {MARKS} and t there" in str(told.value.render())
            harness.execute(f"DROP TABLE {MARKS}")
            harness.drop(world.target())
            world.sync()
            world.check()

    def test_a_key_that_somebody_lets_compare_otherwise_is_told(
        self, harness: ServerHarness
    ) -> None:
        """Rows whose keys differ by case alone would become one, without a word."""
        schema = schema_of([("k", "string"), ("v", "string")])
        with self.filled(harness, 0) as other:
            world = World(harness, other.folder / "text", schema, table="texts")
            world.view.publish([("a", "1"), ("b", "2")])
            world.sync()
            for sql in self.fold_case:
                harness.execute(sql)
            world.start()
            world.view.publish([("A", "3")])
            with pytest.raises(TargetError, match="told apart by its key") as told:
                world.sync()
            assert "k (collation" in str(told.value.render())
            harness.drop(world.target())
            world.sync()
            world.check()
            world.close()

    def test_a_row_in_the_way_of_a_unique_index_of_somebody_is_told(
        self, harness: ServerHarness
    ) -> None:
        """MariaDB would update the other row in its stead, without a word."""
        schema = schema_of([("k", "bigint"), ("v", "bigint")])
        with self.filled(harness, 0) as other:
            world = World(harness, other.folder / "unique", schema, table="numbers")
            world.view.publish([(1, 10), (2, 20)])
            world.sync()
            harness.execute("CREATE UNIQUE INDEX theirs ON numbers (v)")
            world.view.publish([(2, 21), (3, 20)])  # nothing is in the way
            world.sync()
            world.check()
            world.view.publish([(4, 10)])
            with pytest.raises(TargetError, match=self.in_the_way):
                world.sync()
            harness.execute(f"DROP INDEX theirs {self.of_table.format('numbers')}")
            world.sync()
            world.check()
            world.close()

    def test_a_table_of_all_types_is_known_again(self, harness: ServerHarness) -> None:
        keys = ("boolean", "tinyint", "bigint", "string", "binary", "date", "timestamp")
        columns = [(f"k{n}", kind) for n, kind in enumerate(keys)]
        columns += [(f"c{n}", kind) for n, kind in enumerate(VALUES) if "array" not in kind]
        schema = schema_of(columns, [name for name, _ in columns if name.startswith("k")])
        with self.world(harness, schema, table="all") as world:
            for number in range(2):
                values = [VALUES[kind] for _, kind in columns]
                world.view.publish([tuple(of[number % len(of)] for of in values)])
                world.start()
                world.sync()
                assert world.following.cursor.tried == number + 1
                world.check()

    def test_a_table_whose_name_differs_in_case_is_another_one(
        self, harness: ServerHarness
    ) -> None:
        harness.execute(f"CREATE TABLE {harness.quoted('T')} (mine int)")
        with self.filled(harness) as world:
            harness.drop(world.target())
            world.start()
            world.sync()
            world.check()
        assert harness.execute(f"SELECT count(mine) FROM {harness.quoted('T')}")[0][0] == 0

    def sessions(self, harness: ServerHarness) -> int:
        """Sessions of the harness's database."""
        raise NotImplementedError

    def test_many_views_share_few_connections(self, harness: ServerHarness, tmp_path: Path) -> None:
        """All at once, also while one holds a transaction open; the last one closes them."""
        before = self.sessions(harness)

        class OneOfMany(World):
            def target(self, fence: int | None = None, owner: str = "") -> FollowerTarget:
                return super().target(fence, owner or f"store/{self.folder.name}/s")

        worlds = [
            OneOfMany(harness, tmp_path / str(n), table=f"t{n}", connections=3) for n in range(12)
        ]

        def follow(world: World) -> None:
            for text in ("a", "b", "c"):
                world.view.publish([world.row(n, text) for n in range(50)])
                world.sync()

        with ThreadPoolExecutor(len(worlds)) as threads:
            list(threads.map(follow, worlds))
        assert self.sessions(harness) - before <= 3
        for world in worlds:
            world.check()
            world.close()
        assert wait_for(lambda: self.sessions(harness) == before, 30)

    def test_several_views_that_begin_at_a_time(self, harness: ServerHarness) -> None:
        targets = []
        with self.world(harness) as world:
            for number in range(8):
                world.options["table"] = f"t{number}"
                targets.append(world.target(owner=f"store/v{number}/s"))
            followers = [harness.open(target) for target in targets]
            try:
                with ThreadPoolExecutor(len(followers)) as pool:
                    list(pool.map(lambda one: one.create(), followers))
                assert [one.position() for one in followers] == [None] * len(followers)
            finally:
                for one in followers:
                    one.close()

    def test_a_runner_that_hangs_in_a_transaction_is_waited_for(
        self, harness: ServerHarness
    ) -> None:
        """The server ends it after the time-out; the newer one goes on, and the older one fails."""
        with self.world(harness, timeout="3s") as world:
            world.view.publish([world.row(1), world.row(2)])
            sync_patiently(world)
            world.view.publish([world.row(1, "changed")])
            old, older = world.faulty, world.following

            def hang() -> None:
                world.fence += 1
                world.faulty, world.following = world.runner(world.fence)
                sync_patiently(world)

            old.at("commit", "before", hang)
            with pytest.raises(MviewError):
                older.advance()
            world.check()
            world.view.publish([world.row(2, "changed")])
            sync_patiently(world)
            world.check()


def sync_patiently(world: World) -> None:
    for _ in range(20):
        try:
            world.sync()
        except RetryableError:
            continue
        return
    raise AssertionError("the newer runner does not get on")


class TestPostgresql(ServerContract):
    alter = "ALTER COLUMN {} TYPE numeric(12,0)"
    drop_key = "DROP CONSTRAINT t_pkey"
    fold_case = (
        "CREATE COLLATION folded (provider=icu, locale='und-u-ks-level2', deterministic=false)",
        "ALTER TABLE texts ALTER COLUMN k TYPE text COLLATE folded",
    )
    in_the_way = 'unique constraint "theirs"'

    @pytest.fixture
    def harness(self, postgresql: PostgresqlServer) -> Iterator[FollowerHarness]:
        with postgresql.new_database() as name:
            yield PostgresqlHarness(postgresql, name)

    def end_sessions(self, harness: ServerHarness) -> None:
        harness.server.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            f"WHERE datname = '{harness.database}'"
        )

    def sessions(self, harness: ServerHarness) -> int:
        sql = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{harness.database}'"
        return int(harness.server.execute(sql)[0][0])

    @pytest.mark.parametrize("rule", ["INSERT", "UPDATE", "DELETE"])
    def test_a_trigger_that_leaves_rows_as_they_were_is_told(
        self, harness: ServerHarness, rule: str
    ) -> None:
        with self.filled(harness) as world:
            harness.execute(
                "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql "
                "AS 'BEGIN RETURN NULL; END'"
            )
            harness.execute(
                f"CREATE TRIGGER theirs BEFORE {rule} ON t FOR EACH ROW EXECUTE FUNCTION nothing()"
            )
            before = harness.read(world.target())
            world.view.publish([world.row(1, "changed"), world.row(50)], [(2,)])
            with pytest.raises(TargetError, match="has not written all rows"):
                world.sync()
            assert harness.read(world.target()) == before
            world.forget()
            if rule != "UPDATE":  # which a fill has not
                with pytest.raises(TargetError, match="has not written all rows"):
                    world.sync()
            harness.execute("DROP TRIGGER theirs ON t")
            world.sync()
            world.check()

    def test_a_rule_that_leaves_rows_as_they_were_is_told(self, harness: ServerHarness) -> None:
        with self.filled(harness) as world:
            harness.execute("CREATE RULE theirs AS ON DELETE TO t DO INSTEAD NOTHING")
            world.view.publish(delete=[(2,)])
            with pytest.raises(TargetError, match="has not written all rows"):
                world.sync()
            harness.execute("DROP RULE theirs ON t")
            world.sync()
            world.check()

    def test_rows_that_a_policy_hides_are_told(self, postgresql: PostgresqlServer) -> None:
        """They would be neither changed nor compared, without a word."""
        with postgresql.new_database() as name:
            harness = AsAnybody(postgresql, name)
            harness.execute("CREATE ROLE anybody; GRANT ALL ON SCHEMA public TO anybody")
            try:
                with self.filled(harness) as world:
                    harness.execute("ALTER TABLE t ENABLE ROW LEVEL SECURITY")
                    harness.execute("ALTER TABLE t FORCE ROW LEVEL SECURITY")
                    harness.execute("CREATE POLICY theirs ON t USING (k > 2)")
                    world.view.publish(delete=[(2,)])
                    with pytest.raises(TargetError, match="row-level security"):
                        world.sync()
                    with pytest.raises(TargetError, match="row-level security"):
                        world.faulty.read().read_all()
                    harness.execute("ALTER TABLE t DISABLE ROW LEVEL SECURITY")
                    world.sync()
                    world.check()
            finally:
                harness.execute("DROP OWNED BY anybody; DROP ROLE anybody")


class AsAnybody(PostgresqlHarness):
    """As a user whom policies bind, unlike the one of the server."""

    def settings(self, **options: Any) -> FollowerSettings:
        given = super().settings(**options)
        assert isinstance(given, SqlSettings)
        return given.model_copy(update={"url": f"{given.url}?options=-crole%3Danybody"})


class TestMariadb(ServerContract):
    alter = "MODIFY {} DECIMAL(12,0)"
    drop_key = "DROP PRIMARY KEY"
    fold_case = (
        "ALTER TABLE texts MODIFY k VARCHAR(768) CHARACTER SET utf8mb4 "
        "COLLATE utf8mb4_general_ci NOT NULL",
    )
    in_the_way = "whose key is not the same"
    of_table = "ON {}"

    @pytest.fixture
    def harness(self, mariadb: MariadbServer) -> Iterator[FollowerHarness]:
        with mariadb.new_database() as name:
            yield MariadbHarness(mariadb, name)

    def test_keys_are_looked_at_by_their_bytes_beside_a_run(self, harness: ServerHarness) -> None:
        """The runner has looked at the table before."""
        schema = schema_of([("k", "string"), ("v", "string")])
        with self.filled(harness, 0) as other:
            world = World(harness, other.folder / "text", schema, table="texts")
            world.view.publish([("a", "1"), ("b", "2")])
            world.sync()
            (sql,) = self.fold_case
            harness.execute(sql)
            world.view.publish([("A", "3")])
            with pytest.raises(TargetError, match="whose key is not the same"):
                world.sync()
            assert world.harness.read(world.target()) == [("a", "1"), ("b", "2")]
            world.close()

    def test_a_table_without_transactions_is_told(self, harness: ServerHarness) -> None:
        """A step that is rolled back would leave its rows there."""
        with self.filled(harness) as world:
            harness.execute("ALTER TABLE t ENGINE=MyISAM")
            world.start()
            world.view.publish([world.row(50)])
            with pytest.raises(TargetError, match="no transaction") as told:
                world.sync()
            assert "MyISAM" in str(told.value.render())
            harness.execute("ALTER TABLE t ENGINE=InnoDB")
            world.sync()
            world.check()

    def test_a_server_whose_own_choice_has_no_transactions(self, harness: ServerHarness) -> None:
        harness.execute("SET GLOBAL default_storage_engine = MyISAM")
        try:
            with self.filled(harness) as world:
                for table in ("t", MARKS):
                    assert "ENGINE=InnoDB" in str(harness.execute(f"SHOW CREATE TABLE {table}"))
                world.check()
        finally:
            harness.execute("SET GLOBAL default_storage_engine = InnoDB")

    def test_a_row_that_no_statement_holds_is_told(self, harness: ServerHarness) -> None:
        """The server itself ends the connection, as if it were away."""
        with self.filled(harness) as world:
            world.view.publish([world.row(0, "\0" * 9_000_000), world.row(7)])
            with pytest.raises(UserError, match="max_allowed_packet") as told:
                world.sync()
            assert "9,000,00" in str(told.value.render())
            world.view.publish([world.row(0, "x" * 9_000_000)])
            world.sync()
            world.check()

    def end_sessions(self, harness: ServerHarness) -> None:
        sql = f"SELECT ID FROM information_schema.PROCESSLIST WHERE DB = '{harness.database}'"
        for (number,) in harness.server.execute(sql):
            harness.server.execute(f"KILL {number}")

    def sessions(self, harness: ServerHarness) -> int:
        sql = f"SELECT count(*) FROM information_schema.PROCESSLIST WHERE DB = '{harness.database}'"
        return int(harness.server.execute(sql)[0][0])


@pytest.mark.long
class TestPostgresqlTwoPhase(TestPostgresql):
    @pytest.fixture
    def harness(self, postgresql: PostgresqlServer) -> Iterator[FollowerHarness]:
        with postgresql.new_database() as name:
            yield PostgresqlHarness(postgresql, name, **TWO_PHASE)


@pytest.mark.long
class TestMariadbTwoPhase(TestMariadb):
    @pytest.fixture
    def harness(self, mariadb: MariadbServer) -> Iterator[FollowerHarness]:
        with mariadb.new_database() as name:
            yield MariadbHarness(mariadb, name, **TWO_PHASE)


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_check_asks_whether_the_server_has_a_place_for_it(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    server = request.getfixturevalue(kind)
    views = [parse_view("CREATE MATERIALIZED VIEW v WITH (sinks = 's') AS SELECT 1", "v")]
    with server.new_database() as there:
        for database in (there, "nowhere"):
            given = server.settings(database)
            url = f"{kind}://{given['username']}@127.0.0.1:{given['port']}/{database}"
            sink = {"type": kind, "url": url, "password": given["password"]}
            config = small_config(tmp_path / database, sinks={"s": sink})
            assert check_followers(config, views) == {}
            told = str(check_followers(config, views, probe=True).get("v", ""))
            assert ("sink s failed while connecting" in told) == (database == "nowhere")
            assert ("look at url and password of sinks.s, and" in told) == (database == "nowhere")
