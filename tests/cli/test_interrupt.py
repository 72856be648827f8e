"""Ctrl-C: once drains, twice kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from mview.cli.interrupt import run_until_interrupted


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
            assert process.wait(20) == 130
        finally:
            process.kill()
