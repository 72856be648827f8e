"""Codes of errors, `MV1203`: two digits say what kind of error it is, two where it was made.

The kind is a number of the error's class (`mview/errors.py`), the place is the part of the program
whose code made it. So no error can be without a code, and none needs to be given one by hand;
`docs/errors.md` is made of both and of the messages in the code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Area:
    """A part of the program, by what its errors are about.

    Attributes:
        number: of two digits. It never gets another meaning; one that is gone stays unused.
        name: what the errors are about.
        modules: where they are made; of several that fit a module the longest counts.
    """

    number: int
    name: str
    modules: tuple[str, ...]


#: Where the modules are that others have written: what they raise is theirs to tell.
ELSEWHERE = Area(0, "a package of somebody else, or a program", ())

AREAS: Sequence[Area] = (
    Area(1, "files, disks and memory of this machine", ("mview.errors", "mview.files")),
    Area(2, "the configuration and its secrets", ("mview.config", "mview.secrets")),
    Area(3, "the text of a view", ("mview.plan",)),
    Area(4, "how a view is kept up by changes", ("mview.ivm",)),
    Area(5, "views, tables, functions and sinks as they are declared", ("mview.catalog",)),
    Area(6, "columns, types and keys", ("mview.schema", "mview.rows", "mview.relation")),
    Area(7, "the store: manifests, mirrors, lease", ("mview.store", "mview.delta")),
    Area(8, "Java and Spark", ("mview.java", "mview.session")),
    Area(9, "how a view's query is evaluated", ("mview.execute",)),
    Area(10, "an epoch: views that are built, kept up and halted", ("mview.epoch",)),
    Area(11, "the life of a run", ("mview.run",)),
    Area(12, "the command line", ("mview.cli",)),
    Area(13, "commands beside a run", ("mview.admin",)),
    Area(14, "tests of views", ("mview.trial", "mview.testing")),
    Area(15, "reading in Python", ("mview", "mview.notebook")),
    Area(16, "the page and its metrics", ("mview.cli.watch",)),
    Area(20, "loads and changelogs in general", ("mview.ingest", "mview.merge")),
    Area(21, "changes in Kafka", ("mview_connectors.changelogs.kafka",)),
    Area(22, "changes in files", ("mview_connectors.changelogs",)),
    Area(23, "PostgreSQL's own log", ("mview_connectors.changelogs.postgresql",)),
    Area(24, "MySQL's and MariaDB's own log", ("mview_connectors.changelogs.mysql",)),
    Area(25, "SQLite's triggers", ("mview_connectors.changelogs.sqlite",)),
    Area(26, "any server's own log", ("mview_connectors.changelogs.ownlog",)),
    Area(
        30,
        "databases in general",
        ("mview.connector", "mview_connectors.databases", "mview_connectors.pool"),
    ),
    Area(
        31,
        "PostgreSQL",
        (
            "mview_connectors.databases.postgresql",
            "mview_connectors.databases.postgresql_types",
        ),
    ),
    Area(
        32,
        "MySQL and MariaDB",
        (
            "mview_connectors.databases.mysql",
            "mview_connectors.databases.mysql_packets",
            "mview_connectors.databases.mysql_types",
        ),
    ),
    Area(33, "SQLite", ("mview_connectors.databases.sqlite",)),
    Area(34, "SQL Server", ("mview_connectors.databases.mssql",)),
    Area(
        40,
        "formats of messages, and schema registries",
        ("mview_connectors.formats", "mview_connectors.registry"),
    ),
    Area(50, "sinks in general", ("mview.follow", "mview.follower", "mview_connectors.followers")),
    Area(
        51,
        "Delta tables",
        ("mview_connectors.followers.delta", "mview_connectors.sinks"),
    ),
    Area(52, "Iceberg", ("mview_connectors.followers.iceberg",)),
    Area(53, "Hudi", ("mview_connectors.followers.hudi",)),
    Area(54, "Paimon", ("mview_connectors.followers.paimon",)),
    Area(55, "ClickHouse", ("mview_connectors.followers.clickhouse",)),
    Area(56, "StarRocks", ("mview_connectors.followers.starrocks",)),
    Area(57, "tables of SQL databases as sinks", ("mview_connectors.followers.sql",)),
    Area(58, "Kafka as a sink", ("mview_connectors.followers.kafka",)),
    Area(59, "files as a sink", ("mview_connectors.followers.files",)),
)

_BY_MODULE = {module: area for area in AREAS for module in area.modules}


@cache
def area_of(module: str) -> Area:
    """What the errors of a module are about.

    >>> area_of("mview_connectors.changelogs.kafka.client").number
    21
    """
    while module:
        if (area := _BY_MODULE.get(module)) is not None:
            return area
        module = module.rpartition(".")[0]
    return ELSEWHERE


def code_of(kind: int, module: str) -> str:
    """The code of an error.

    Args:
        kind: the number of its class.
        module: the full name of the module that made it.
    """
    return f"MV{kind:02}{area_of(module).number:02}"
