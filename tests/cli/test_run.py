"""`mview run` with a pipeline that only plays: lines, exit codes, Ctrl-C, secrets."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from mview import errors
from mview.cli import main
from mview.epoch.report import EpochReport, LoadReport, ViewChange
from tests.patience import end_of

CONFIG = """
connections:
  shop: {drivername: sqlite, database: shop.db}
  crm: {drivername: postgresql, password: "${env:CRM_PW}"}
"""
SECRET = "s3cret-word"


class Play:
    """A pipeline that does what a test wants; see `mview.run.pipeline.Pipeline`."""

    made = None

    def __init__(self, config, views, *, listener=None, files=()):
        type(self).made = self
        self.views, self.listener, self.files = views, listener, files
        self.once = None
        self.stopped = threading.Event()

    def run(self, *, once):
        self.once = once
        self.play()

    def play(self):
        """Nothing to do."""

    def stop(self):
        self.stopped.set()


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run views with a kind of Play; returns click's result."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CRM_PW", SECRET)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/mview.yml").write_text(CONFIG)
    (tmp_path / "v.sql").write_text("SELECT order_id FROM shop.orders")

    def run(play, *arguments):
        module = SimpleNamespace(Pipeline=play)
        monkeypatch.setitem(sys.modules, "mview.run.pipeline", module)
        return CliRunner().invoke(main, ["run", "v.sql", *arguments])

    return run


def test_few_lines_and_many_are_not_asked_for_at_once(run):
    result = run(Play, "--quiet", "--verbose")
    assert result.exit_code == errors.ExitCode.USAGE, result.output
    assert "--quiet and --verbose: ask for one of them" in result.output


def test_a_bounded_run_shows_plain_lines_and_ends_with_0(run):
    class Loads(Play):
        def play(self):
            self.listener.on_load(LoadReport("shop.orders", 0, 0, 60, False))
            self.listener.on_load(LoadReport("shop.orders", 60, 60, 60, True))
            self.listener.on_message("live")
            changed = ViewChange(60, 2, 1, 61, "LINEAR", "spark")
            self.listener.on_epoch(EpochReport(3, 90, 840, {"shop.orders": 3}, {"v": changed}))

    result = run(Loads, "--once")
    assert result.exit_code == 0, result.output
    assert Loads.made.once is True
    assert [view.name for view in Loads.made.views] == ["v"]
    assert Loads.made.files == [str(Path("v.sql").resolve())], "for `mview apply`"
    lines = [line.split("  ", 1)[1] for line in result.stdout.splitlines()]
    assert lines[0] == "shop.orders: loading, 0 of about 60 rows; 0 read"
    assert lines[1].startswith("shop.orders: loaded, 60 rows")
    assert lines[2:4] == ["live", "v: epoch 3, lag 0.8 s, +60 ~2 -1, 61 rows"]
    assert re.fullmatch(r"ran for 00:00:0\d: epoch 3, 3 changes, largest lag 0.8 s", lines[4])
    assert len(lines) == 5
    assert "\x1b" not in result.stdout


def test_ctrl_c_drains_and_ends_with_130(run):
    class Runs(Play):
        def play(self):
            os.kill(os.getpid(), signal.SIGINT)
            assert self.stopped.wait(20)

    result = run(Runs)
    assert result.exit_code == 130
    assert Runs.made.once is False
    assert "finishing the running epoch; Ctrl-C again ends at once" in result.stdout


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.UserError, 1),
        (errors.RetryableError, 1),
        (errors.DecodeError, 1),
        (errors.ConfigError, 2),
        (errors.DataLostError, 3),
        (errors.CorruptionError, 3),
        (errors.AlreadyRunningError, 4),
        (errors.FencedError, 4),
    ],
)
def test_every_kind_of_error_has_its_exit_code_and_shows_no_secret(run, kind, code):
    class Fails(Play):
        def play(self):
            text = f"password={SECRET}"
            raise kind(text, where=text, got=text, allowed=text, safe=text, hint=text)

    for options in ([], ["--debug"]):
        result = run(Fails, *options)
        assert result.exit_code == code
        assert SECRET not in result.output
        assert "password=******" in result.stderr
        assert ("Traceback" in result.stderr) is bool(options)


def test_an_unexpected_error_is_one_block_without_secrets(run):
    class Fails(Play):
        def play(self):
            raise RuntimeError(f"cannot log in with {SECRET}")

    result = run(Fails)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: unexpected RuntimeError: cannot log in with ******")
    assert "Traceback" not in result.stderr


def test_messages_of_the_pipeline_show_no_secret(run):
    class Talks(Play):
        def play(self):
            self.listener.on_message(f"connecting with {SECRET}")

    assert run(Talks).stdout.splitlines()[0].endswith("  connecting with ******")


@pytest.mark.parametrize("display", ["--quiet", "--log-format=text", "--log-format=json"])
def test_what_a_run_advises_is_about_its_own_project(run, tmp_path, display):
    (tmp_path / "conf/mview.yml").rename(tmp_path / "my conf.yml")
    error = errors.UserError("a value does not fit", hint="`mview apply` builds it anew")

    class Halts(Play):
        def play(self):
            self.listener.on_halt("v", error)
            self.listener.on_message("again: mview backfill shop.orders")

    output = run(Halts, "--config", "my conf.yml", display).output
    assert "`mview apply --config 'my conf.yml'` builds it anew" in output
    again = "again: mview backfill --config 'my conf.yml' shop.orders"
    assert (again in output) is (display != "--quiet")
    assert error.hint == "`mview apply` builds it anew", "the store keeps what it was"


def test_a_wrong_view_is_told_before_spark_is_touched(run, tmp_path):
    (tmp_path / "v.sql").write_text("SELECT FROM WHERE")

    class Never(Play):
        made = None

    result = run(Never)
    assert result.exit_code == 1
    assert "v.sql:1:" in result.stderr
    assert Never.made is None


TALKS = """
import os, signal, sys, threading, time, types

class Pipeline:
    def __init__(self, config, views, *, listener, files):
        self.listener, self.stopped = listener, threading.Event()

    def run(self, *, once):
        self.listener.on_message("begins")
        sys.stdin.readline()
        if INTERRUPTED:
            os.kill(os.getpid(), signal.SIGINT)
            while self.listener._display._output._needs_readers:
                time.sleep(0.01)
        self.listener.on_message("goes on")

    def stop(self):
        self.stopped.set()

sys.modules["mview.run.pipeline"] = types.SimpleNamespace(Pipeline=Pipeline)
from mview.cli import main
main(["run", "v.sql"])
"""


@pytest.mark.parametrize(("interrupted", "code"), [(False, 1), (True, 130)])
def test_a_run_that_nobody_reads_ends_by_an_error_unless_it_is_interrupted(
    run, tmp_path, interrupted, code
):
    """Under Ctrl-C the reader is gone as well: `mview run | tee log`."""
    script = TALKS.replace("INTERRUPTED", str(interrupted))
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=tmp_path, stdin=pipe, stdout=pipe, stderr=pipe
    ) as process:
        assert process.stdout.readline().endswith(b"begins\n")
        process.stdout.close()
        process.stdin.write(b"go\n")
        process.stdin.close()
        said = process.stderr.read().decode()
        assert end_of(process, 30) == code, said
    assert ("nobody reads any more what the run says" in said) is not interrupted
    assert "Traceback" not in said


SPEAKS = """
import os, sys, threading, types

class Pipeline:
    def __init__(self, config, views, *, listener, files):
        self.listener, self.stopped = listener, threading.Event()

    def run(self, *, once):
        for number in range(30_000):
            self.listener.on_message(f"said {number}")
        os.write(2, b"all said\\n")
        if not once:
            self.stopped.wait()

    def stop(self):
        self.stopped.set()

sys.modules["mview.run.pipeline"] = types.SimpleNamespace(Pipeline=Pipeline)
from mview.cli import main
main(["run", "v.sql", *sys.argv[1:]])
"""


def _speaking(folder, *options):
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", SPEAKS, *options], cwd=folder, stdout=pipe, stderr=pipe
    )


def test_a_run_goes_on_though_nobody_reads_what_it_says(run, tmp_path):
    """As in `mview run | less`. What is read later has gaps that are told."""
    with _speaking(tmp_path, "--once") as process:
        assert process.stderr.readline() == b"all said\n"
        said = process.stdout.read().decode()
        notes = process.stderr.read().decode()
        assert end_of(process, 30) == 0, notes
    numbers = [int(number) for number in re.findall(r"said (\d+)\n", said)]
    assert numbers == sorted(set(numbers))
    gaps = re.findall(r"^([\d,]+) lines? left out here, as nobody read them$", notes, re.M)
    left_out = sum(int(number.replace(",", "")) for number in gaps)
    assert left_out
    said_in_all = 30_001  # and what the run has done
    assert len(said.splitlines()) + left_out == said_in_all


def test_an_interrupt_ends_a_run_that_nobody_reads(run, tmp_path):
    with _speaking(tmp_path) as process:
        assert process.stderr.readline() == b"all said\n"
        process.send_signal(signal.SIGTERM)
        assert end_of(process, 20) == 130
        assert process.stderr.read() == b""
