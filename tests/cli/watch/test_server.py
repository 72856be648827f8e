"""Bounds of the server: methods, sizes, threads, time, pace."""

from __future__ import annotations

import socket
import threading
from http.server import ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from mview.cli.watch import server
from mview.cli.watch.access import Access
from mview.cli.watch.server import Answer
from tests.cli.watch.conftest import Served, serving
from tests.patience import wait_for


def raw(served, request):
    with socket.create_connection(("127.0.0.1", served.port), timeout=60) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(4096), b""))


def test_get_and_head_alone():
    with serving(lambda path: Answer.text(path)) as served:
        got, head = served.get("/x?y"), served.get("/x?y", "HEAD")
        assert (got.text, head.text) == ("/x?y\n", "")
        assert got.headers["Content-Length"] == head.headers["Content-Length"]
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
            refused = served.get("/x", method)
            assert (refused.status, refused.headers["Allow"]) == (405, "GET, HEAD")
        assert served.get("/x", "NONSENSE").status == 501


def test_every_answer_says_what_a_browser_may_do():
    with serving(lambda path: Answer.text(path)) as served:
        for answer in (served.get("/"), served.get("/", "POST"), served.get("/", Host="evil.org")):
            policy = answer.headers["Content-Security-Policy"]
            assert "default-src 'none'; script-src 'self'" in policy
            assert "unsafe" not in policy
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
            assert "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"403"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.org\r\n\r\n", b"403"),
        (b"GET /" + b"x" * 3000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", b"414"),
        (b"GET /" + b"x" * 70000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", b"414"),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", b"431"),
        (b"\x16\x03\x01<script>\r\n\r\n", b"400"),
    ],
)
def test_what_is_no_request_of_ours(request_, status):
    with serving(lambda path: Answer.text(path)) as served:
        answer = raw(served, request_)
        # In HTTP/0.9, which an unreadable line is taken for, there is no first line.
        assert answer.startswith(b"HTTP/1.0 " + status) or (
            status == b"400" and answer == b"not understood\n"
        )
        assert b"script>" not in answer
        assert served.get("/x").text == "/x\n"


def test_so_many_at_a_time_and_others_come_again():
    going, go_on = threading.Semaphore(0), threading.Event()

    def answer(path):
        going.release()
        assert go_on.wait(60)
        return Answer.text(path)

    with serving(answer) as served:
        asking = [threading.Thread(target=served.get, args=["/x"]) for _ in range(server._THREADS)]
        for thread in asking:
            thread.start()
        for _ in asking:
            assert going.acquire(timeout=60)
        refused = raw(served, b"")
        assert refused.startswith(b"HTTP/1.0 503")
        go_on.set()
        for thread in asking:
            thread.join()
        assert wait_for(lambda: served.get("/x").status == 200, 30)


def test_who_sends_or_reads_slowly_is_ended(monkeypatch):
    monkeypatch.setattr(server, "_LIFE_S", 0.2)
    large = Answer(b"x" * 50_000_000)
    with serving(lambda path: large) as served:
        threads = threading.active_count()
        slow = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(10)]
        for number, connection in enumerate(slow):
            if number % 2:
                connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            else:
                connection.sendall(b"GET / HT")
        assert wait_for(lambda: threading.active_count() > threads, 30)
        assert wait_for(lambda: threading.active_count() == threads, 60)
        assert not served.server._since
        for connection in slow:
            connection.close()


def test_a_flood_is_taken_at_a_pace(monkeypatch):
    slept = []
    # Of this module alone: other threads of the process sleep, too. No time passes.
    clock = SimpleNamespace(monotonic=lambda: 0.0, sleep=slept.append)
    monkeypatch.setattr(server, "time", clock)
    with serving(lambda path: Answer.text(path)) as served:
        for _ in range(server._BURST):
            served.get("/x")
        assert not slept
        for _ in range(3):
            served.get("/x")
    assert slept == [number / server._PACE for number in (1, 2, 3)]


def test_an_interrupt_beside_an_answer_is_not_lost(monkeypatch):
    """It may come when the thread of a request has begun, and even when that has ended."""
    begin = ThreadingHTTPServer.process_request

    def interrupted(self, request, client_address):
        begin(self, request, client_address)
        assert wait_for(lambda: not self._since, 30)
        raise KeyboardInterrupt

    monkeypatch.setattr(ThreadingHTTPServer, "process_request", interrupted)
    served = Served(Access.of("127.0.0.1:0", (), ""), lambda path: Answer.text(path))
    asking = threading.Thread(target=lambda: raw(served, b"GET / HTTP/1.0\r\n\r\n"))
    asking.start()
    served.server.timeout = 30
    with served.opened, pytest.raises(KeyboardInterrupt):
        served.server.handle_request()
    asking.join()
    assert served.server._free._value == server._THREADS
