"""Object stores and catalogs that refuse: what somebody has to see to is said, as it is."""

from __future__ import annotations

import http.server
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from mview_connectors.followers.delta import objects
from mview_connectors.followers.delta.objects import Objects
from mview_connectors.followers.iceberg import catalogs
from pyiceberg.exceptions import AuthorizationExpiredError, RESTError
from pyiceberg.io.pyarrow import PyArrowFileIO

from mview.errors import RetryableError, TargetError
from mview.follower import FollowerSettings, FollowerTarget, failed
from mview.testing.contract import SCHEMA


class Refusing:
    """An S3 that says the same to everybody."""

    def __init__(self) -> None:
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                """Nothing."""

            def _refuse(self) -> None:
                self.rfile.read(int(self.headers.get("content-length") or 0))
                text = f"<Error><Code>{outer.code}</Code></Error>".encode()
                self.send_response(outer.status)
                self.send_header("content-type", "application/xml")
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(text)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _refuse  # noqa: N815

        self.status, self.code = 500, "InternalError"
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="module")
def refusing() -> Iterator[Refusing]:
    server = Refusing()
    yield server
    server.stop()


CASES = [
    (403, "AccessDenied", "the credentials"),
    (403, "InvalidAccessKeyId", "the credentials"),
    (400, "ExpiredToken", "a token that has expired|the credentials"),
    (404, "NoSuchBucket", "its bucket"),
]


def error_of(call: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as raised:  # noqa: PT011
        call()
    return raised.value


@pytest.mark.parametrize(("status", "code", "words"), CASES)
def test_a_store_of_delta_tables(refusing: Refusing, status: int, code: str, words: str) -> None:
    refusing.status, refusing.code = status, code
    store = Objects(
        "s3://lake/t",
        {
            "aws_endpoint_url": refusing.url,
            "aws_access_key_id": "k",
            "aws_secret_access_key": "s",
            "aws_region": "us-east-1",
            "allow_http": "true",
        },
    )
    calls: list[Callable[[], object]] = [
        lambda: list(store.list("_delta_log")),
        lambda: store.put("a", b"1"),
        lambda: store.put_if_absent("a", b"1"),
    ]
    if status != 404:
        calls += [lambda: store.get("a"), lambda: store.size("a")]
    for call in calls:
        error = error_of(call)
        assert re.search(words, str(objects.to_be_looked_at(error))), error
        assert not re.search(r"\d(ms|µs)|Debug source", objects.told(error))


@pytest.mark.parametrize(("status", "code", "words"), CASES)
def test_a_store_of_iceberg_tables(refusing: Refusing, status: int, code: str, words: str) -> None:
    refusing.status, refusing.code = status, code
    io = PyArrowFileIO(
        {
            "s3.endpoint": refusing.url,
            "s3.access-key-id": "k",
            "s3.secret-access-key": "s",
            "s3.region": "us-east-1",
        }
    )

    def write() -> None:
        with io.new_output("s3://lake/t/a").create(overwrite=True) as file:
            file.write(b"1")

    calls: list[Callable[[], object]] = [write]
    if status != 404:
        calls += [
            lambda: io.new_input("s3://lake/t/a").open(),
            lambda: io.new_input("s3://lake/t/a").exists(),
        ]
    for call in calls:
        error = error_of(call)
        assert re.search(words, str(catalogs.to_be_looked_at(error))), error


def test_a_catalog_whose_token_has_expired() -> None:
    assert "credential" in str(catalogs.to_be_looked_at(AuthorizationExpiredError("no")))
    assert catalogs.to_be_looked_at(RESTError("boom")) is None


def test_a_full_disk_and_what_passes() -> None:
    """What is refused for want of something on the machine is tried again, when it is there."""
    target = FollowerTarget("v", "s", SCHEMA, FollowerSettings(type="delta"), "o")
    error = failed(target, "it failed", "IOException: No space left on device", "safe")
    assert isinstance(error, RetryableError)
    assert error.hint == "make room on it; then the sink goes on by itself"
    assert failed(target, "it failed", "reset by peer", "safe").hint == "it is tried again"
    stands = failed(target, "it failed", "No space left on device", "safe", "the bucket")
    assert isinstance(stands, TargetError)
    assert stands.hint == "look at the bucket"
