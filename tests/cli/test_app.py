"""The command as a whole: usage, exit codes, configuration errors, and secrets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from mview.cli import main

CONFIG = """
store: data
connections:
  crm: {drivername: postgresql, host: 127.0.0.1, port: 1, username: reader,
        password: "${env:CRM_PW}", database: crm}
changes:
  crm: {source: files, format: unified, path: changes}
"""
SECRET = "s3cret/w@rd"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CRM_PW", SECRET)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/mview.yml").write_text(CONFIG)
    (tmp_path / "v.sql").write_text("SELECT id FROM crm.people")
    return tmp_path


def mview(*arguments):
    result = CliRunner().invoke(main, [str(one) for one in arguments])
    assert "Traceback" not in result.output
    return result


def test_the_version():
    assert mview("--version").output.startswith("mview, version ")


def test_it_runs_as_a_module():
    told = subprocess.run(
        [sys.executable, "-m", "mview", "--version"], capture_output=True, text=True, check=True
    )
    assert told.stdout.startswith("mview, version ")


def test_the_shell_completes_commands():
    made = mview("completion", "bash").output
    assert "_MVIEW_COMPLETE=bash_complete" in made
    environment = {**os.environ, "_MVIEW_COMPLETE": "bash_complete"}
    environment |= {"COMP_WORDS": "mview st", "COMP_CWORD": "1"}
    script = [str(Path(sys.executable).parent / "mview")]
    told = subprocess.run(script, env=environment, capture_output=True, text=True, check=True)
    assert told.stdout == "plain,status\n"


@pytest.mark.parametrize("command", sorted(main.commands))
def test_every_command_has_help(command):
    assert mview(command, "--help").exit_code == 0
    assert f"\n  {command} " in mview("--help").output


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["chek", "v.sql"], "Did you mean 'check'?"),
        (["run", "--onec", "v.sql"], "'--once'"),
        (["run"], "Missing argument 'FILE|FOLDER…'"),
        (["drop", "v", "--yes", "--env", ""], "--env has no name"),
        (["apply", "--prune", "--yes", "--env="], "--env has no name"),
    ],
)
def test_wrong_usage_ends_with_2_and_a_proposal(folder, arguments, meant):
    result = mview(*arguments)
    assert result.exit_code == 2
    assert meant in result.stderr


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("store:", "stor:"), "did you mean 'store'?"),
        (("drivername:", "drivernam:"), "connections.crm"),
        (("username:", "usrname:"), "did you mean 'username'?"),
        (("source: files", "source: kafkaa"), "changes.crm.source"),
        (("changes:\n  crm:", "changes:\n  crn:"), "there is no connection 'crn'"),
        (("source: files", "source: mysql"), "changes.crm.source: this database has no such log"),
        (
            ("source: files", "source: postgresql"),
            "changes.crm: source 'postgresql' has one format",
        ),
        (("${env:CRM_PW}", "plainly-here"), "write ${env:NAME} or ${file:PATH}"),
        (("store: data", "store: [data"), "is not valid YAML"),
        (('"${env:CRM_PW}"', "*plainly-here"), "put a value that begins with * in quotes"),
    ],
)
def test_a_configuration_error_ends_with_2_and_shows_no_value(folder, change, said):
    (folder / "conf/mview.yml").write_text(CONFIG.replace(*change))
    result = mview("check", "v.sql")
    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert "plainly-here" not in result.output


def test_no_configuration_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = mview("status")
    assert result.exit_code == 2
    assert "conf/mview.yml cannot be read" in result.stderr
    assert "--config" in result.stderr
    assert "`mview init URL` makes one" in result.stderr


def test_the_configuration_that_init_writes_is_found(folder):
    (folder / "mview.yml").write_text("stor: x")
    assert "stor" not in mview("status").stderr, "conf/mview.yml comes first"
    (folder / "conf/mview.yml").unlink()
    assert "did you mean 'store'?" in mview("status").stderr


@pytest.mark.parametrize("command", ["check", "explain"])
def test_a_database_that_is_down_is_no_reason_to_show_its_password(folder, command):
    for options in ([], ["--debug"]):
        result = CliRunner().invoke(main, [command, "v.sql", *options])
        assert result.exit_code == 1
        assert "127.0.0.1" in result.stderr
        assert "s3cret" not in result.output


def test_a_missing_secret_is_named(folder, monkeypatch):
    monkeypatch.delenv("CRM_PW")
    result = mview("check", "v.sql")
    assert result.exit_code == 2
    assert "environment variable CRM_PW is not set" in result.stderr


@pytest.mark.parametrize("path", ["nothing.sql", "empty"])
def test_no_view(folder, path):
    (folder / "empty").mkdir()
    result = mview("check", path)
    assert result.exit_code == 1
    assert path in result.stderr
