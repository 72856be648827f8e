"""Who may ask: addresses, names, tokens."""

from __future__ import annotations

import base64

import pytest

from mview.cli.watch.access import Access
from mview.cli.watch.server import Answer
from mview.errors import ConfigError
from tests.cli.watch.conftest import serving

TOKEN = "a-token-of-sixteen"


@pytest.fixture
def token(monkeypatch):
    monkeypatch.setenv("WATCH_TOKEN", TOKEN)
    return "${env:WATCH_TOKEN}"


@pytest.mark.parametrize(
    ("listen", "names", "given", "what"),
    [
        ("0.0.0.0:8080", (), "", "other machines could read"),
        ("0.0.0.0:8080", (), "ref", "other machines could read"),
        ("[::]:8080", (), "", "other machines could read"),
        ("0.0.0.0:8080", ("box",), "", "needs a token"),
        ("127.0.0.1:8080", ("box",), "", "needs a token"),
        ("127.0.0.1:8080", (), TOKEN, "never written in plain text"),
        ("127.0.0.1:8080", (), "${env:SHORT}", "too easy to guess"),
        ("127.0.0.1:8080", (), "${env:NOT_SET}", "not set"),
        ("8080", (), "", "no address"),
        ("127.0.0.1", (), "", "no address"),
        ("example.org:80", (), "", "no address"),
        ("127.0.0.1:99999", (), "", "no address"),
        ("me@127.0.0.1:80", (), "", "no address"),
        ("127.0.0.1:80/x", (), "", "no address"),
    ],
)
def test_what_is_refused(listen, names, given, what, token, monkeypatch):
    monkeypatch.setenv("SHORT", "x" * 15)
    with pytest.raises(ConfigError) as refused:
        Access.of(listen, names, token if given == "ref" else given)
    assert what in str(refused.value)
    assert TOKEN not in str(refused.value)


def test_a_port_that_is_taken_is_told():
    access = Access.of("localhost:0", (), "")
    with access.bind() as opened:
        port = opened.getsockname()[1]
        assert access.url(opened) == f"http://127.0.0.1:{port}/"
        with pytest.raises(ConfigError, match="cannot be listened on"):
            Access.of(f"127.0.0.1:{port}", (), "").bind()


def test_the_host_is_one_of_ours(token):
    local = Access.of("127.0.0.1:0", (), "")
    others = Access.of("0.0.0.0:0", ("Box.Example.org", "10.1.2.3"), token)
    for host in ("localhost", "localhost:8080", "127.0.0.1:1", "[::1]:9", "LOCALHOST"):
        assert local.knows(host), host
        assert others.knows(host), host
    for host in ("evil.org", "evil.org:8080", "127.0.0.1.evil.org", "", "[", "10.1.2.4", "a@b"):
        assert not local.knows(host), host
        assert not others.knows(host), host
    for host in ("box.example.org:8080", "10.1.2.3"):
        assert not local.knows(host), host
        assert others.knows(host), host


def basic(password):
    return "Basic " + base64.b64encode(f"me:{password}".encode()).decode()


def test_a_server_asks_for_host_and_token(token):
    access = Access.of("127.0.0.1:0", ("box",), token)
    with serving(lambda path: Answer.text(path), access) as served:
        for given in ({}, {"Authorization": "Bearer no"}, {"Authorization": basic("")}):
            refused = served.get("/api/status", **given)
            assert refused.status == 401
            assert refused.headers["WWW-Authenticate"].startswith("Basic")
            assert "api" not in refused.text
        for given in (f"Bearer {TOKEN}", f"bearer {TOKEN}", basic(TOKEN)):
            assert served.get("/x", Authorization=given).text == "/x\n"
            assert served.get("/x", Authorization=given, Host="box:1").status == 200
            assert served.get("/x", Authorization=given, Host="evil.org").status == 403
        for given in (basic(TOKEN)[:-4], "Basic é".encode("latin-1"), "Digest x", TOKEN):
            assert served.get("/x", Authorization=given).status == 401
        assert served.get("/healthz", Host="10.0.0.1").text == "ok\n"
