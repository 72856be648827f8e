"""Delta tables in object stores: moto's S3, Azurite, a conformance server for Google's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mview_connectors.followers.delta.log import commit_path
from mview_connectors.followers.delta.objects import Objects

from mview.follower import FollowerTarget
from mview.testing import FollowerContract, FollowerHarness
from tests.connectors.test_followers_delta import DeltaHarness
from tests.services.azurite import AzuriteServer
from tests.services.fixtures import running
from tests.services.gcs import GcsServer

pytestmark = pytest.mark.service


@pytest.fixture(scope="module")
def azurite() -> Iterator[AzuriteServer]:
    with running("Azurite", AzuriteServer) as server:
        yield server


@pytest.fixture(scope="module")
def gcs() -> Iterator[GcsServer]:
    with running("GCS", GcsServer) as server:
        yield server


class StoreHarness(DeltaHarness):
    """A folder of an object store."""

    def __init__(self, server: Any, folder: str) -> None:
        super().__init__(server.place(folder), options=server.options())
        self.shown = server.options(plain=True)

    def drop(self, target: FollowerTarget) -> bool:
        objects = Objects(f"{self.place}/{target.table}", self.shown)
        objects.delete([entry.path for entry in objects.list()])
        return True


@pytest.fixture(params=["s3", pytest.param("azurite", marks=pytest.mark.long), "gcs"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> StoreHarness:
    return StoreHarness(request.getfixturevalue(request.param), tmp_path.name)


@pytest.mark.long
class TestDeltaInAStore(FollowerContract):
    steps, share = 10, 8

    @pytest.fixture
    def harness(self, store: StoreHarness) -> FollowerHarness:
        return store


def test_a_table_in_a_store(store: StoreHarness) -> None:
    contract, place = FollowerContract(), store.place
    for test in (
        contract.test_a_step_twice,
        contract.test_two_runners,
        contract.test_maintenance_changes_no_row,
    ):
        store.place = f"{place}/{test.__name__}"
        test(store)


@pytest.mark.parametrize(
    "where", ["folder", pytest.param("azurite", marks=pytest.mark.long), "gcs"]
)
def test_of_many_who_put_one_wins(
    where: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Not on moto: it looks first and writes then."""
    place, options = str(tmp_path), {}
    if where != "folder":
        server = request.getfixturevalue(where)
        place, options = server.place(tmp_path.name), server.options(plain=True)
    everybody = [Objects(place, options) for _ in range(4)]
    begin = threading.Barrier(len(everybody))
    for number in range(50):
        path, won = commit_path(number), list[int]()

        def put(me: int, path: str = path, won: list[int] = won) -> None:
            begin.wait()
            if everybody[me].put_if_absent(path, f"{me}".encode()):
                won.append(me)

        threads = [threading.Thread(target=put, args=(me,)) for me in range(len(everybody))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert everybody[0].get(path) == f"{won[0]}".encode()
