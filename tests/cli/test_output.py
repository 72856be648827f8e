"""The Output class: text or JSON, one error block, and never a secret."""

from __future__ import annotations

import ast
import errno
import json
import re
import sys
import threading
from pathlib import Path

import pytest

import mview.cli
from mview.cli.output import Output
from mview.config import secret_values
from mview.config.file import load_config
from mview.errors import ConfigError, DataLostError, ExitCode, concerning
from mview.secrets import Mask

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
      sasl.password: ${env:KAFKA_PW}
      sasl.oauthbearer.token.endpoint.url: https://login.example
      sasl.jaas: user=${env:JAAS_USER};pw
sinks:
  delta: {storage_options: {key: "${env:NOT_SET}", secret: plain/secret}}
"""


@pytest.fixture
def config(tmp_path, monkeypatch):
    (tmp_path / "pw").write_text("from a file\n")
    (tmp_path / "mview.yml").write_text(CONFIG % (tmp_path / "pw"))
    monkeypatch.setenv("CRM_PW", 'p@ss"word')
    monkeypatch.setenv("JAAS_USER", "jaas-value")
    monkeypatch.setenv("KAFKA_PW", "kafka-value")
    monkeypatch.delenv("NOT_SET", raising=False)
    return load_config(tmp_path / "mview.yml")


def test_secrets_are_found_wherever_a_configuration_may_hold_them(config):
    assert secret_values(config) >= {'p@ss"word', "from a file", "plain/secret", "jaas-value"}
    assert "kafka-value" in secret_values(config)


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


def test_a_password_in_a_url_is_hidden_whoever_it_belongs_to(capsys):
    Output().hide(mask := Mask([]))
    told = "no answer of s3://key:other-secret@host/x?a=b:c, nor of http://db:5432/mail@home"
    hidden = "no answer of s3://key:******@host/x?a=b:c, nor of http://db:5432/mail@home"
    assert mask(told) == hidden


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
        "  code:    MV5000\n"
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


@pytest.mark.parametrize("secret", ["a", "1", "ab", "e-3"])
def test_a_short_secret_hides_no_letters_of_words(capsys, secret):
    output = Output()
    output.hide(Mask({secret}))
    text = "a table of 1,321 rows, made at 10:12; abc e-33"
    output.line(text)
    assert capsys.readouterr().out == f"{text}\n"
    for told in (f"password={secret}", f"'{secret}'", f"//user:{secret}@host", f"pw: {secret}"):
        output.line(told)
        assert "******" in capsys.readouterr().out


def test_numbers_in_json_are_not_starred_out(capsys):
    output = Output(as_json=True)
    output.hide(Mask({"1234"}))
    output.result({"rows": 912345, "path": "/x/1234", "1234": None}, "")
    found = json.loads(capsys.readouterr().out)
    assert found == {"rows": 912345, "path": "/x/******", "******": None}


def test_every_long_line_of_a_secret_is_one(capsys):
    output = Output()
    output.hide(Mask({"-----BEGIN KEY-----\nMIIEvQIBADANBg\nxyz\n"}))
    output.line("cannot read MIIEvQIBADANBg")
    assert capsys.readouterr().out == "cannot read ******\n"


def test_control_characters_of_values_do_not_reach_the_terminal(capsys):
    output = Output()
    output.line("a\x1b[2Jb\x9bc\u202ed\rError: forged")
    output.note("a\x1b]0;title\x07")
    said = "".join(capsys.readouterr())
    assert not set(said) & set("\x1b\x9b\u202e\r\x07")


class GoneTerminal:
    """Standard output whose terminal has been closed."""

    def write(self, text):
        raise OSError(errno.EIO, "Input/output error")

    def flush(self):
        """Nothing is kept."""


def test_a_terminal_that_is_gone_is_no_error_of_a_run(monkeypatch):
    monkeypatch.setattr(sys, "stdout", GoneTerminal())
    Output().line("epoch 7")


@pytest.mark.parametrize(
    "secret", ["hunter2\nsecond", "qx7z\r\nv99w77\n", "\n lead42", "a1b2\tc3d4"]
)
def test_a_secret_of_several_lines_is_masked_where_a_margin_is_put_into_it(secret):
    block = ConfigError("cannot connect", got=f"password={secret}, user=u").render()
    for text in (block, f"{secret!r}", secret, json.dumps(secret)):
        shown = Mask([secret])(text)
        assert not [word for word in secret.split() if word in shown], shown


@pytest.mark.parametrize("error", [OSError(28, "full"), UnicodeEncodeError("ascii", "é", 0, 1, "")])
def test_what_cannot_be_written_beside_is_raised_by_what_comes_next(monkeypatch, error):
    output, tried = Output(), threading.Event()

    def fail(text, err):
        tried.set()
        raise error

    monkeypatch.setattr("mview.cli.output.click.echo", fail)

    def say(end):
        with output.beside():
            output.line("is lost")
            assert tried.wait(20)
            end()

    with pytest.raises(type(error)):
        say(lambda: None)
    with pytest.raises(ZeroDivisionError):  # what ends a run counts
        say(lambda: 1 / 0)


#: What commands count.
_NOUNS = "changes chunks columns epochs errors files lines rows tables tests transactions views"


def _counts_by_hand(code: str) -> list[str]:
    """The f-strings of a module that have a number and a noun without `counted`."""
    noun = re.compile(rf" ({_NOUNS.replace(' ', '|')})\b(?!/)")
    return [
        ast.unparse(text)
        for text in ast.walk(ast.parse(code))
        if isinstance(text, ast.JoinedStr)
        for value, after in zip(text.values, text.values[1:], strict=False)
        if isinstance(value, ast.FormattedValue)
        and isinstance(after, ast.Constant)
        and noun.match(after.value)
        and "/s" not in after.value
    ]


def test_commands_count_in_one_way():
    """One row is `1 row`: all of them write numbers of things by `counted`."""
    assert _counts_by_hand('f"{n:,} rows changed"') == ["f'{n:,} rows changed'"]
    found = {
        file.name: by_hand
        for file in Path(mview.cli.__file__).parent.rglob("*.py")
        if (by_hand := _counts_by_hand(file.read_text(encoding="utf-8")))
    }
    assert found == {}
