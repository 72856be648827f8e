"""Iceberg in catalogs of others and in object stores: Nessie's REST catalog, a SQL one, on S3."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mview_connectors.followers.iceberg.settings import IcebergSettings
from pyiceberg.catalog import Catalog, load_catalog

from mview.follower import FollowerSettings, FollowerTarget
from mview.testing import FollowerContract, FollowerHarness
from tests.connectors.test_followers_iceberg import IcebergHarness
from tests.services.nessie import NessieServer
from tests.services.s3 import S3Server

pytestmark = [pytest.mark.service]


class RemoteHarness(IcebergHarness):
    """A namespace of a catalog, read by pyiceberg with properties of its own."""

    def __init__(
        self, namespace: str, catalog: dict[str, str], shown: dict[str, str], **options: Any
    ) -> None:
        self.namespace, self.given, self.shown, self.options = namespace, catalog, shown, options

    def settings(self, **options: Any) -> FollowerSettings:
        if "table" in options:
            # Nessie makes a URL of a table's name.
            options["table"] = re.sub(r"[:?#]", "-", options["table"])
        return IcebergSettings(
            type="iceberg",
            catalog=self.given,
            namespace=self.namespace,
            **{**self.options, **options},
        )

    def catalog(self) -> Catalog:
        return load_catalog("other", **self.shown)

    def table(self, target: FollowerTarget) -> Any:
        with self.catalog() as catalog:
            return catalog.load_table((self.namespace, target.table))

    def foreign(self, target: FollowerTarget) -> bool:
        with self.catalog() as catalog:
            catalog.create_namespace_if_not_exists(self.namespace)
            catalog.create_table((self.namespace, target.table), target.schema.arrow)
        return True

    def backup(self, target: FollowerTarget) -> Callable[[], None] | None:
        return None

    def drop(self, target: FollowerTarget) -> bool:
        with self.catalog() as catalog:
            catalog.drop_table((self.namespace, target.table))
        return True


@pytest.mark.long
class TestIcebergInNessie(FollowerContract):
    steps, share = 10, 8

    @pytest.fixture
    def harness(self, nessie: NessieServer, tmp_path: Path) -> FollowerHarness:
        return RemoteHarness(tmp_path.name, nessie.catalog(), nessie.catalog(plain=True))


def test_a_sql_catalog_with_its_tables_on_s3(s3: S3Server, tmp_path: Path) -> None:
    at = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": s3.place("sql")}
    catalog, shown = {**at, **s3.properties()}, {**at, **s3.properties(plain=True)}
    contract = FollowerContract()
    for test in (contract.test_a_step_twice, contract.test_two_runners):
        # A SQL catalog shows the tables of its own name only.
        test(RemoteHarness(test.__name__, catalog, shown, catalog_name="other"))
