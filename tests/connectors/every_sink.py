"""Every sink at once: each in a place of its own, read by what is not its connector.

For tests and programs that have all of them; a further sink is one line of `PLACES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from mview.config import Duration
from mview.follower import FollowerTarget
from mview.schema import TableSchema
from mview.testing import FollowerHarness
from tests.connectors.test_followers_clickhouse import ClickhouseHarness
from tests.connectors.test_followers_delta import FolderHarness
from tests.connectors.test_followers_files import FilesHarness
from tests.connectors.test_followers_hudi import HudiHarness
from tests.connectors.test_followers_iceberg import IcebergHarness
from tests.connectors.test_followers_kafka import KafkaHarness
from tests.connectors.test_followers_paimon import PaimonHarness
from tests.connectors.test_followers_servers import MariadbHarness, PostgresqlHarness
from tests.connectors.test_followers_sqlite import SqliteHarness
from tests.connectors.test_followers_starrocks import StarrocksHarness


class Ground:
    """Where places are made.

    Args:
        folder: for those that are files.
        server: a running server by the name of its fixture.
    """

    def __init__(self, folder: Path, server: Callable[[str], Any]) -> None:
        self.folder, self.server = folder, server
        self.ended = ExitStack()

    def database(self, name: str) -> tuple[Any, str]:
        """A server and a fresh database of it."""
        server = self.server(name)
        return server, self.ended.enter_context(server.new_database())


def _hudi(at: Ground) -> FollowerHarness:
    at.server("hudi")
    return HudiHarness(at.folder / "hudi")


PLACES: dict[str, Callable[[Ground], FollowerHarness]] = {
    "sqlite": lambda at: SqliteHarness(at.folder / "sink.db"),
    "postgresql": lambda at: PostgresqlHarness(*at.database("postgresql")),
    "mariadb": lambda at: MariadbHarness(*at.database("mariadb")),
    "clickhouse": lambda at: ClickhouseHarness(*at.database("clickhouse")),
    "starrocks": lambda at: StarrocksHarness(*at.database("starrocks")),
    "kafka": lambda at: KafkaHarness(at.server("kafka")),
    "files": lambda at: FilesHarness(at.folder / "files"),
    "iceberg": lambda at: IcebergHarness(at.folder / "iceberg"),
    "delta": lambda at: FolderHarness(at.folder / "delta"),
    "paimon": lambda at: PaimonHarness(at.folder / "paimon", at.server("paimon_reader")),
    "hudi": _hudi,
}


@contextmanager
def places(
    folder: Path, server: Callable[[str], Any], names: Iterable[str] = PLACES
) -> Iterator[dict[str, FollowerHarness]]:
    """Empty places by the names of their sinks; servers are as they were at the end."""
    folder.mkdir(exist_ok=True)
    ground = Ground(folder, server)
    with ground.ended:
        yield {name: PLACES[name](ground) for name in names}


def section(harness: FollowerHarness) -> dict[str, Any]:
    """What a configuration says of a place, under `sinks:`."""
    settings = harness.settings()
    fields = type(settings).model_fields
    return {
        name: f"{value} ms" if Duration.__metadata__[0] in fields[name].metadata else value
        for name, value in settings.model_dump(mode="json", exclude_unset=True).items()
    }


def table_of(harness: FollowerHarness, view: str) -> str:
    """The table of a view there, for `sinks.<name>.table`: some names are not free."""
    name = harness.settings(table=view).table
    assert name is not None
    return name


def target_of(harness: FollowerHarness, view: str, schema: TableSchema) -> FollowerTarget:
    """The target to give to `harness.read`."""
    return FollowerTarget(view, "s", schema, harness.settings(table=view), "o")
