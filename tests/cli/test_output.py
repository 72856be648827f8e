"""The Output class: text or JSON, one error block, and never a secret."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mview.cli.output import Output
from mview.config import Mask, load_config, secret_values
from mview.errors import ConfigError, DataLostError, ExitCode, concerning

CONFIG = """
store: data
connections:
  crm:
    drivername: postgresql
    host: db.example
    username: reader
    password: ${env:CRM_PW}
    query: {sslpassword: "${file:%s}"}
changes:
  crm:
    source: kafka
    format: debezium
    bootstrap_servers: k:9092
    topic: x.{table}
    options:
      sasl.username: reader
      sasl.password: plain/secret
      sasl.jaas: user=${env:JAAS_USER};pw
sinks:
  delta: {storage_options: {key: "${env:NOT_SET}"}}
"""


@pytest.fixture
def config(tmp_path, monkeypatch):
    (tmp_path / "pw").write_text("from a file\n")
    (tmp_path / "mview.yml").write_text(CONFIG % (tmp_path / "pw"))
    monkeypatch.setenv("CRM_PW", 'p@ss"word')
    monkeypatch.setenv("JAAS_USER", "jaas-value")
    monkeypatch.delenv("NOT_SET", raising=False)
    return load_config(tmp_path / "mview.yml")


def test_secrets_are_found_wherever_a_configuration_may_hold_them(config):
    assert secret_values(config) == {'p@ss"word', "from a file", "plain/secret", "jaas-value"}


@pytest.mark.parametrize(
    "text",
    [
        'login failed for p@ss"word',
        "postgresql://reader:p%40ss%22word@db.example/crm",
        '{"password": "p@ss\\"word"}',
        "postgresql://reader@db.example/crm?sslpassword=from%20a%20file",
        "sasl.password=plain/secret",
    ],
)
def test_a_secret_is_masked_in_every_spelling(config, capsys, text):
    output = Output()
    output.hide(Mask(secret_values(config)))
    output.line(text)
    output.note(text)
    output.result({"text": text}, text)
    output.error(ValueError(text))
    output.error(ConfigError(text, where=text, got=text, allowed=text, safe=text, hint=text))
    seen = "".join(capsys.readouterr())
    for spelled in ("p@ss", "p%40ss", "plain/secret", "from%20a"):
        assert spelled not in seen
    assert "******" in seen


def test_a_traceback_is_masked_too(config, capsys):
    output = Output(debug=True)
    output.hide(Mask(secret_values(config)))
    try:
        raise RuntimeError('p@ss"word')
    except RuntimeError as error:
        output.error(error)
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert "p@ss" not in shown


def test_names_of_hosts_and_users_are_shown(config, capsys):
    output = Output()
    output.hide(Mask(secret_values(config)))
    output.line("reader at db.example")
    assert capsys.readouterr().out == "reader at db.example\n"


def test_the_longer_of_two_secrets_goes_first(capsys):
    output = Output()
    output.hide(Mask(["key", "key-and-more"]))
    output.line("it is key-and-more")
    assert capsys.readouterr().out == "it is ******\n"


def test_a_known_error_is_one_block_and_gives_its_exit_code(capsys):
    code = Output().error(DataLostError("gone", where="topic/0/5", safe="kept", hint="do this"))
    assert code == ExitCode.DATA_LOST
    assert capsys.readouterr().err == (
        "Error: gone\n  where:   topic/0/5\n  data:    kept\n  next:    do this\n"
    )


def test_an_error_says_which_table_or_view_was_worked_on(capsys):
    for error in (DataLostError("gone"), ValueError("odd")):
        with pytest.raises(type(error)), concerning("view v"), concerning("table shop.t"):
            raise error
        Output().error(error)
        assert "\n  in:      table shop.t\n" in capsys.readouterr().err + "\n"


def test_an_unknown_error_shows_no_traceback_without_debug(capsys):
    assert Output().error(ZeroDivisionError("by zero\nsecond line")) == ExitCode.CHECK_FAILED
    shown = capsys.readouterr().err
    assert shown.startswith("Error: unexpected ZeroDivisionError: by zero\n")
    assert "second line" not in shown
    assert "--debug" in shown


def test_json_mode_prints_one_document_and_no_lines(capsys):
    output = Output(as_json=True)
    output.line("for people")
    output.result({"path": Path("a/b"), "names": ("x",), "n": None}, "text")
    assert json.loads(capsys.readouterr().out) == {"path": "a/b", "names": ["x"], "n": None}
