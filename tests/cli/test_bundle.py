"""`mview support-bundle`: what is in it, and that no secret is."""

from __future__ import annotations

import base64
import json
import zipfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from click.testing import CliRunner

from mview.cli import main
from mview.clock import SystemClock
from mview.errors import DataError
from mview.secrets import REFERENCE, Mask, plain_secrets, secrets_of, starred
from mview.store.failure import failure_kept
from mview.store.layout import Store
from tests.cli.test_past import published

#: One for each place that may hold one; with what JSON, URLs and YAML write in another way.
SECRETS = {
    "PASSWORD": 'pass"word/with\\all ü',
    "QUERY": "query=S3cret&more",
    "KAFKA": "kafka+S3cret",
    "SINK": "sink S3cret",
    "DIGITS": "8675309",
}
PLAIN = "spark-plain-S3cret"
OF_FILE = "first line of a key\nsecond line of a key"

CONFIG = """
store: data
# a comment with kafka+S3cret in it
connections:
  shop:
    drivername: postgresql
    host: db.example.org
    username: reader
    password: ${env:PASSWORD}
    database: shop
    query: {sslkey: "${file:key.pem}", options: "${env:QUERY}"}
changes:
  shop:
    source: kafka
    format: debezium
    bootstrap_servers: kafka:9092
    topic: pg.{table}
    heartbeat_topic: beats
    T: 1s
    options: {sasl.username: reader, sasl.password: "${env:KAFKA}"}
sinks:
  cache: {type: postgresql, host: other, username: w, password: "${env:SINK}", database: cache}
spark:
  conf: {spark.hadoop.fs.s3a.secret.key: spark-plain-S3cret}
"""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.chdir(tmp_path)
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "key.pem").write_text(OF_FILE)
    published(tmp_path, 1_700_000_000_000)
    (tmp_path / "mview.yml").write_text(CONFIG)
    return Store(tmp_path / "data")


def mview(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["support-bundle", *arguments, "-c", "mview.yml"])


def contents(file: Path) -> dict[str, str]:
    with zipfile.ZipFile(file) as packed:
        return {name: packed.read(name).decode() for name in packed.namelist()}


def spellings(secret: str) -> set[str]:
    """How it might stand somewhere."""
    lines = [line for line in secret.splitlines() if len(line) > 7]
    forms = {form for text in (secret, *lines) for form in (text, quote(text), quote(text, ""))}
    forms |= {json.dumps(secret)[1:-1], repr(secret)[1:-1]}
    forms.add(base64.b64encode(secret.encode()).decode())
    return forms


def test_no_secret_is_in_it(store: Store) -> None:
    # An error that names some: it is masked when it is kept; this one was not.
    with (
        pytest.raises(DataError),
        failure_kept(store, 2, SystemClock(), Mask([])),
    ):
        raise DataError(
            f"cannot log in with {SECRETS['PASSWORD']}",
            got=f"{SECRETS['KAFKA']} {PLAIN} {OF_FILE} {SECRETS['QUERY']}",
            hint=f"postgresql://reader:{quote(SECRETS['SINK'])}@other/cache",
        )
    result = mview()
    assert result.exit_code == 0, result.output
    told = contents(Path("mview-support.zip"))
    assert "cannot log in with ******" in told["status.json"], "the error itself is there"
    assert "host: db.example.org" in told["config.yml"]
    assert "${env:PASSWORD}" in told["config.yml"], "how it is named is told"
    for secret in (*SECRETS.values(), PLAIN, OF_FILE):
        for form in spellings(secret):
            for name, text in told.items():
                assert form not in text, (name, form)
                assert form not in name
    raw = Path("mview-support.zip").read_bytes()
    assert not any(secret.encode() in raw for secret in (*SECRETS.values(), PLAIN))


#: Settings with a secret in the text of a value, as users write them.
WITHIN = """
store: data
connections:
  shop:
    drivername: postgresql
    host: db.example.org
    username: reader:W1thinf
    password: ${env:PASSWORD}
    database: shop
    query: {options: "-c auth.password=W1thin0", passfile: /home/w/.pgpass}
changes:
  shop:
    source: kafka
    format: debezium
    bootstrap_servers: kafka:9092
    topic: pg.{table}
    T: 1s
    options: {sasl.username: "w:W1thine"}
    connect: http://connect.example.org:8083/?token=W1thin1
sinks:
  a: {type: postgresql, url: "postgresql://w:aa/W1thin2@other:5432/cache"}
  b: {type: postgresql, url: "postgresql://w@other/cache?sslmode=require&sslpassword=W1thin3%21"}
  c: {type: clickhouse, url: "http://ch.example.org:8123/?user=w&password=W1thin4"}
  d: {type: delta, path: "https://blob.example.org/t?sv=1&sig=W1thin5"}
  e: {type: delta, path: "abfss://a/b", options: {sas: "sv=1&sig=W1thin6"}}
  f: {type: iceberg, catalog: {type: rest, uri: "http://c", header.Authorization: "Bearer W1thin7"}}
  g: {type: delta, path: "gs://b/p", options: {settings: '{"client_secret": "W1thin8", "n": 1}'}}
  h: {type: delta, path: "gs://b/q", options: {password: 8675309}}
  i: {type: kafka, bootstrap_servers: "kafka:9092,w:Odd,W1thind@kafka:9093"}
spark:
  conf:
    spark.hadoop.fs.azure.sas.c.x.blob.core.windows.net: sv=2&st=W1thin9
    spark.executorEnv.DB_PASS: W1thina
    spark.hadoop.javax.jdo.option.ConnectionURL: jdbc:mysql://h/d?user=a&password=W1thinb
"""


def test_no_secret_within_a_value_is_in_it(store: Store) -> None:
    Path("mview.yml").write_text(WITHIN)
    with (
        pytest.raises(DataError),
        failure_kept(store, 2, SystemClock(), Mask([])),
    ):
        raise DataError(
            "cannot log in with aa/W1thin2 and W1thin3!, nor at http://x/?a=b&token=W1thinc",
            got="w:Odd,W1thind@kafka:9093/bootstrap; reader:W1thinf",
        )
    result = mview()
    assert result.exit_code == 0, result.output
    told = contents(Path("mview-support.zip"))
    assert not [
        (name, line)
        for name, text in told.items()
        for line in text.splitlines()
        if "W1thin" in line or "8675309" in line
    ]
    assert "bootstrap_servers: kafka:9092,w:******@kafka:9093" in told["config.yml"]
    assert "username: reader:******\n" in told["config.yml"]
    assert "passfile: /home/w/.pgpass" in told["config.yml"], "where one is, is told"
    assert "******@other:5432/cache" in told["config.yml"], "what is no secret is told"
    assert "sslmode=require&sslpassword=******" in told["config.yml"]
    assert "http://x/?a=b&token=******" in told["status.json"]


def test_what_is_in_it(store: Store) -> None:
    result = mview("--output", "other.zip", "--json")
    told = json.loads(result.stdout)
    there = contents(Path("other.zip"))
    assert set(told["parts"]) == set(there)
    wanted = {"README.txt", "versions.json", "config.yml", "status.json", "views/v.json"}
    assert wanted <= set(there)
    assert not [name for name in there if name.endswith(".error.txt")]
    assert json.loads(there["status.json"])["epoch"] == 6
    assert len(json.loads(there["history.json"])) == 6
    assert json.loads(there["manifest.json"])["epoch"] == 6
    assert json.loads(there["views/v.json"])["sql"] == "SELECT id FROM shop.orders"
    assert "shop.orders" in there["plans.txt"]
    assert "manifest/" in there["files.txt"]
    assert "duckdb" in json.loads(there["versions.json"])["packages"]


def test_a_store_that_is_damaged_is_told_as_far_as_it_can_be(store: Store) -> None:
    for file in store.manifests.iterdir():
        file.write_text("{")
    assert mview().exit_code == 0
    there = contents(Path("mview-support.zip"))
    assert "manifest of epoch 6 is damaged" in there["status.json.error.txt"]
    assert "config.yml" in there
    assert "views.error.txt" in there


def test_nothing_is_written_over(store: Store) -> None:
    Path("mine.zip").write_text("mine")
    result = mview("-o", "mine.zip")
    assert result.exit_code == 1
    assert "is there already" in result.stderr
    assert Path("mine.zip").read_text() == "mine"


def test_a_folder_that_is_not_there(store: Store) -> None:
    result = mview("-o", "nowhere/mine.zip")
    assert result.exit_code == 1
    assert "there is no folder for the bundle\n  where:   nowhere\n" in result.stderr
    assert not Path("nowhere").exists()


def test_a_long_value_is_looked_through_in_no_time() -> None:
    """As of a key store in one line: each of its places must not be gone on from to its end."""
    value = "kx" * 150_000
    assert starred("x", f"{value} and token={value}") == f"{value} and token=******"
    assert plain_secrets(f"{value} and token={value}") == {value}


#: What makes a pattern look far ahead, and then fail.
HOSTILE = (
    "://a:b",
    "://${env:",
    "://$",
    "://a:8080/",
    "://a:b'",
    "${env:",
    "${file:a",
    "a:b,",
    "a:b//,",
    "?a=${env:",
    "&a",
    "a='",
    "a  ",
    "'  ",
    "a.-",
)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("word", HOSTILE)
def test_no_text_is_looked_at_again_from_each_of_its_places(word: str) -> None:
    """In a few seconds where it takes as long as the text; in an hour where as its square."""
    text = word * (1_000_000 // len(word))
    assert Mask(["hush, a secret"])(f"{text} hush, a secret").endswith(" ******")
    assert starred("user", f"{text} token=hush").startswith(word[0])
    plain_secrets(text)
    REFERENCE.sub("", text)


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("sasl.username", "w:hush", "w:******"),
        ("username", "${env:U}", "${env:U}"),
        ("username", "${env:U}:hush", "${env:U}:******"),
        ("user", "${env:U}:${file:/p}", "${env:U}:${file:/p}"),
        ("servers", "a:9092,w:hush@b:9093,c:9094", "a:9092,w:******@b:9093,c:9094"),
        ("servers", "w:hush@a, v:hush@b", "w:******@a, v:******@b"),
        ("path", "abfss://bucket@account.example.org/t", "abfss://bucket@account.example.org/t"),
        ("url", "postgresql://${env:U}@h:5432/d", "postgresql://${env:U}@h:5432/d"),
        ("url", "postgresql://${env:U}:hush@h/d", "postgresql://${env:U}:******@h/d"),
        ("url", "jdbc:mysql://w:@h/d", "jdbc:mysql://w:@h/d"),
        ("url", "http://a:80/x://y://b:hu/sh@h", "http://a:80/x://y://b:******@h"),
        ("window", "22:00-06:00", "22:00-06:00"),
    ],
)
def test_a_password_stands_before_its_host_or_behind_its_user(
    name: str, text: str, told: str
) -> None:
    assert starred(name, text) == told
    assert bool(plain_secrets(text, name)) == (told != text)


@pytest.mark.parametrize(
    ("name", "text", "secrets"),
    [
        ("notify", "mailto:alerts@example.org", set()),
        ("image", "registry.local:5000/img@sha256:0123456789abcdef", set()),
        ("url", "jdbc:oracle:thin:@//db.example.org:1521/shop", set()),
        ("url", "jdbc:postgresql://w:hush@h/d", {"hush"}),
        ("bootstrap_servers", "a:9092,w:hush@b:9093", {"hush"}),
        ("kafka.bootstrap.servers", "w:hush@b:9093", {"hush"}),
        ("sasl.username", "w:hush", {"hush"}),
    ],
)
def test_no_word_is_starred_out_of_everything_that_is_no_secret(
    name: str, text: str, secrets: set[str]
) -> None:
    assert secrets_of(name, text) == secrets
    told = f"{text}: view alerts reads shop.oracle"
    assert Mask(secrets_of(name, text))(told) == told.replace("hush", "******")
