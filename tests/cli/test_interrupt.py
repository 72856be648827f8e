"""Ctrl-C: once drains, twice kills."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from pathlib import Path

import pytest

from mview.cli.interrupt import run_until_interrupted
from tests.patience import end_of


class Draining:
    """A pipeline that runs until it is stopped."""

    def __init__(self, *, started=None, error=None):
        self.stopped = threading.Event()
        self.started = started
        self.error = error
        self.once = None

    def run(self, *, once):
        self.once = once
        if self.started:
            self.started()
        if self.error:
            raise self.error
        if not once:
            assert self.stopped.wait(20)

    def stop(self):
        self.stopped.set()


def interrupt_self():
    os.kill(os.getpid(), signal.SIGINT)


def test_a_bounded_run_that_finishes_was_not_interrupted():
    assert run_until_interrupted(Draining(), once=True, on_drain=pytest.fail) is False


def test_the_first_interrupt_drains_and_says_so():
    said = []
    pipeline = Draining(started=interrupt_self)
    assert run_until_interrupted(pipeline, once=False, on_drain=lambda: said.append(1)) is True
    assert pipeline.stopped.is_set()
    assert said == [1]


def test_a_failure_in_the_pipeline_reaches_the_caller():
    with pytest.raises(ZeroDivisionError):
        run_until_interrupted(Draining(error=ZeroDivisionError()), once=True, on_drain=pytest.fail)


def test_signal_handlers_are_put_back():
    before = signal.getsignal(signal.SIGINT)
    run_until_interrupted(Draining(), once=True, on_drain=pytest.fail)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_second_interrupt_kills_a_run_that_does_not_drain(number):
    script = textwrap.dedent("""
        import threading
        from mview.cli.interrupt import run_until_interrupted

        class Stuck:
            def run(self, *, once):
                print("running", flush=True)
                threading.Event().wait()
            def stop(self):
                threading.Event().wait()

        run_until_interrupted(Stuck(), once=False, on_drain=lambda: print("draining", flush=True))
    """)
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline() == "running\n"
            process.send_signal(number)
            assert process.stdout.readline() == "draining\n"
            assert process.poll() is None
            process.send_signal(number)
            assert end_of(process, 20) == 130
        finally:
            process.kill()


def test_a_pipe_that_nobody_empties_is_no_reason_not_to_drain():
    script = textwrap.dedent("""
        import os, sys, threading
        from mview.cli.interrupt import run_until_interrupted

        told = threading.Event()

        class Draining:
            def run(self, *, once):
                os.set_blocking(1, False)
                try:
                    while os.write(1, bytes(4096)):
                        pass
                except BlockingIOError:
                    os.set_blocking(1, True)
                print("full", file=sys.stderr, flush=True)
                told.wait()
                print("drained", file=sys.stderr, flush=True)
                told.clear()
                told.wait()
            def stop(self):
                told.set()

        run_until_interrupted(Draining(), once=False, on_drain=lambda: print("more", flush=True))
    """)
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr.readline() == "full\n"
            process.send_signal(signal.SIGTERM)
            assert process.stderr.readline() == "drained\n"
            process.send_signal(signal.SIGTERM)
            assert end_of(process, 20) == 130
        finally:
            process.kill()


def test_a_terminal_that_closes_drains_also_when_it_is_told_twice():
    """Nothing can be written to it any more; the first word of it must not end the run."""
    script = textwrap.dedent("""
        import os, threading
        from mview.cli.interrupt import run_until_interrupted

        told, ended = threading.Event(), os.open("ended", os.O_CREAT | os.O_WRONLY)

        class Draining:
            def run(self, *, once):
                print("running", flush=True)
                told.wait()
                print("the last epoch", flush=True)
            def stop(self):
                threading.Timer(1, told.set).start()

        def on_drain():
            print("draining", flush=True)

        stopped = run_until_interrupted(Draining(), once=False, on_drain=on_drain)
        os.write(ended, b"drained" if stopped else b"?")
    """)
    master, slave = pty.openpty()
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [sys.executable, "-c", script],
            stdin=slave, stdout=slave, stderr=slave, cwd=folder, start_new_session=True,
            # Also where the tests themselves run under nohup.
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
        )  # fmt: skip
        try:
            os.close(slave)
            said = b""
            while not said.endswith(b"\n"):
                said += os.read(master, 1000)
            os.close(master)
            process.send_signal(signal.SIGHUP)
            process.send_signal(signal.SIGHUP)
            assert end_of(process, 60) == 0
            assert (Path(folder) / "ended").read_bytes() == b"drained"
        finally:
            process.kill()
            process.wait()


def test_a_run_under_nohup_goes_on(monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        pipeline = Draining(started=lambda: os.kill(os.getpid(), signal.SIGHUP))
        assert run_until_interrupted(pipeline, once=True, on_drain=pytest.fail) is False
    finally:
        signal.signal(signal.SIGHUP, before)
