"""A store, and a page of it."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.client import HTTPConnection

import pytest

from mview.cli.watch.access import Access
from mview.cli.watch.server import WatchServer
from mview.cli.watch.site import Site
from tests.cli.watch.made import SECRET, MadeStore


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A store with three epochs."""
    monkeypatch.setenv("CRM_PW", SECRET)
    monkeypatch.chdir(tmp_path)
    store = MadeStore(tmp_path)
    for _ in range(3):
        store.epoch()
    return store


class Served:
    """A server on a port of its own."""

    def __init__(self, access, answer):
        self.opened = access.bind()
        self.port = self.opened.getsockname()[1]
        self.url = access.url(self.opened)
        self.server = WatchServer(self.opened, access, answer)

    def get(self, path, method="GET", **headers):
        """The answer, with its `text`."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            answer.text = answer.read().decode()
            return answer
        finally:
            connection.close()


@contextmanager
def serving(answer, access=None):
    """A server for the time of the block."""
    served = Served(access or Access.of("127.0.0.1:0", (), ""), answer)
    thread = threading.Thread(target=lambda: served.server.serve_forever(0.05))
    thread.start()
    try:
        yield served
    finally:
        served.server.shutdown()
        thread.join()
        served.server.server_close()


@pytest.fixture
def page(made):
    """The page of the store."""
    site = Site(made.config, made.mask)
    site._epochs.follow()
    with serving(site.answer) as served:
        yield served
