"""`mview ui`, and the process that `mview run --listen` starts beside itself."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from socketserver import BaseServer
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

import click

from mview.cli.display.progress import Display, UnreadError
from mview.cli.display.tee import TeeDisplay
from mview.cli.options import App, F, config_option
from mview.cli.output import Output
from mview.cli.watch.access import Access
from mview.epoch.report import Silence

if TYPE_CHECKING:
    from mview.cli.watch.told import RunTold
    from mview.config import Config

#: Where the page is when nothing else is said.
_DEFAULT = "127.0.0.1:8080"

#: Seconds that the process beside a run gets to take the last events, and to end.
_END_S = 2.0

#: How much the process beside a run stands back: the run goes first.
_NICE = 10


@dataclass(frozen=True)
class Listening:
    """The options of who may ask; see `Access.of`."""

    listen: str
    remote: tuple[str, ...]
    token: str

    @property
    def access(self) -> Access:
        """Who may ask.

        Raises:
            ConfigError: not so.
        """
        return Access.of(self.listen, self.remote, self.token)


def listen_options(default: str | None) -> Callable[[F], F]:
    """Add `--listen`, `--remote` and `--token`."""
    options = [
        click.option(
            "--listen",
            default=default,
            show_default=default is not None,
            metavar="ADDRESS:PORT",
            help="Where the page is, with metrics at /metrics."
            + ("" if default else f" Without it there is none. Usual: {_DEFAULT}"),
        ),
        click.option(
            "--remote",
            multiple=True,
            metavar="NAME",
            help="Let other machines ask, which call this one NAME; needs --token.",
        ),
        click.option(
            "--token",
            default="",
            metavar="REFERENCE",
            help="Only who has it may ask: '${env:NAME}' or '${file:PATH}'.",
        ),
    ]

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


@click.command()
@config_option
@listen_options(_DEFAULT)
@click.pass_obj
def ui(app: App, config_path: str, listen: str, remote: tuple[str, ...], token: str) -> None:
    """Show the store as a page, with metrics and health checks. Reads only.

    Until Ctrl-C. A page beside a run, which also shows what the run does: mview run --listen.
    """
    access = Listening(listen, remote, token).access
    config = app.config(config_path)
    with access.bind() as opened:
        app.output.line(f"{access.url(opened)}  (Ctrl-C ends it)")
        _serve(opened, access, config, app.output, None)


def _serve(
    opened: socket.socket, access: Access, config: Config, output: Output, told: RunTold | None
) -> None:
    """Answer until an interrupt; beside a run until it has ended."""
    from mview.cli.watch.server import WatchServer
    from mview.cli.watch.site import Site
    from mview.secrets import Mask

    if access.token:
        output.hide(Mask([access.token]))
    site, ended = Site(config, output.mask, told), threading.Event()
    server = WatchServer(opened, access, site.answer)
    threading.Thread(target=site.follow, args=[ended], daemon=True).start()
    if told is not None:

        def until_the_end() -> None:
            told.follow(sys.stdin)
            server.shutdown()

        threading.Thread(target=until_the_end, daemon=True).start()
    # Who starts it in the background may have set that interrupts are passed over.
    heeds = told is None and signal.getsignal(signal.SIGINT) != signal.SIG_IGN
    with _ending(server) if heeds else nullcontext():
        try:
            server.serve_forever()
        finally:
            ended.set()


@contextmanager
def _ending(server: BaseServer) -> Iterator[None]:
    """Have an interrupt end the serving, wherever it comes.

    Python raises it in the middle of whatever runs, and drops what is raised in a destructor: then
    the server would go on as if nothing had come.
    """
    interrupted = threading.Event()

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        interrupted.set()
        threading.Thread(target=server.shutdown, daemon=True).start()

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if interrupted.is_set():
        raise KeyboardInterrupt


class WatchedDisplay(TeeDisplay):
    """A display, and a page beside the run that is told the same.

    The page is a process of its own: nothing that is asked of it takes memory or time of the run.
    It ends with the run, however that ends: by the end of its input.

    Args:
        display: the run's.
        listening: who may ask.
    """

    def __init__(
        self, display: Display, output: Output, config_path: str, listening: Listening
    ) -> None:
        super().__init__(display, Silence())  # until the page is there
        self._output = output
        access = listening.access
        self._opened = access.bind()
        self._url = access.url(self._opened)
        self._start = {
            "config": config_path,
            "socket": self._opened.fileno(),
            **asdict(listening),
        }

    def __enter__(self) -> WatchedDisplay:
        from mview.cli.watch.told import RunEvents

        with self._opened:
            # A session of its own: Ctrl-C is for the run.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mview.cli.watch.beside"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                text=True,
                encoding="utf-8",
                start_new_session=True,
                pass_fds=[self._opened.fileno()],
                # Nothing is imported from the current folder.
                env={**os.environ, "PYTHONSAFEPATH": "1"},
            )
        pipe = self._process.stdin
        assert pipe is not None, "it was asked for"
        self._listener = self._events = RunEvents(pipe, self._output.mask, self._tell_of_the_end)
        self._events.line(json.dumps(self._start))
        self._display.__enter__()
        self._display.on_message(f"watch it at {self._url}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._display.__exit__(kind, error, trace)
        self._events.close(_END_S)
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _tell_of_the_end(self) -> None:
        with suppress(OSError, UnreadError):
            self._display.on_message("the page has ended; the run goes on without it")


def serve_beside(lines: Any) -> None:
    """Be the page beside a run, until it ends.

    Args:
        lines: the run's pipe: how to begin, then its events.
    """
    from mview.cli.watch.told import RunTold

    begin = json.loads(lines.readline())
    os.nice(_NICE)
    app = App()
    try:
        config = app.config(begin["config"])
        access = Listening(begin["listen"], tuple(begin["remote"]), begin["token"]).access
        with socket.socket(fileno=begin["socket"]) as opened:
            _serve(opened, access, config, app.output, RunTold())
    except Exception as error:
        sys.exit(app.output.error(error))
