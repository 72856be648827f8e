"""What is at which path, and how long an answer is kept."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import parse_qs, urlsplit

from mview.admin.content import check_views, published
from mview.admin.explore.epochs import PastEpoch, with_took
from mview.admin.explore.took import KeptTook
from mview.admin.status import StoreStatus, not_fresh, status
from mview.cli.output import without_secrets
from mview.cli.render import error_json
from mview.cli.watch.epochs import SHOWN, EpochHistory
from mview.cli.watch.metrics import KIND, metrics_text
from mview.cli.watch.server import Answer
from mview.cli.watch.store import Plans, plans, sample, view_texts
from mview.cli.watch.told import RunHeard, RunTold
from mview.config import Config
from mview.errors import MviewError, RetryableError, UserError, known_error
from mview.store.history import ManifestLog
from mview.store.layout import Store

V = TypeVar("V")

#: Seconds that a value is kept, and how many times as long as it took to make: so, whoever asks
#: for it and how often, a tenth of the time goes into it at most.
_KEPT_S, _KEPT_TIMES = 1.0, 10

#: Seconds that a plan is kept: it changes when a view does, its costs with every epoch.
_PLANS_S = 5.0

#: Seconds that somebody waits for a value that is being made, where there is none that will do.
_PATIENCE_S = 10.0

#: Seconds that an older value will do while a newer one is made: what hangs must not look fresh.
_OVERDUE_S = 5.0

#: Views whose rows are kept.
_SAMPLES = 32

#: Seconds between two looks for new epochs.
_LOOK_S = 1.0

#: The files of the page.
_PAGE = Path(__file__).parent / "page"

_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class BusyError(RetryableError):
    """Somebody else asks for the same, and it takes long."""


class KeptFor(Generic[V]):
    """A value that is made by whoever asks first; others get the older one meanwhile.

    Args:
        make: makes it; what it raises is kept like a value.
        seconds: that it is kept, at least.
    """

    def __init__(self, make: Callable[[], V], seconds: float = _KEPT_S) -> None:
        self._make, self._seconds = make, seconds
        self._lock = threading.Lock()
        self._until = 0.0
        self._value: V | MviewError | None = None

    def get(self) -> V:
        """The value.

        Raises:
            MviewError: it cannot be made.
        """
        now = time.monotonic()
        if self._value is None or now >= self._until:
            # While a newer one is made, one that has just become too old will do, and no other.
            will_do = self._value is not None and now < self._until + _OVERDUE_S
            if self._lock.acquire(timeout=0 if will_do else _PATIENCE_S):
                try:
                    self._renew()
                finally:
                    self._lock.release()
            elif not will_do:
                raise BusyError("this takes long", hint="ask again; is the store's disk slow?")
        value = self._value
        assert value is not None, "it was made"
        if isinstance(value, MviewError):
            raise value
        return value

    def _renew(self) -> None:
        if self._value is not None and time.monotonic() < self._until:
            return  # made while we waited
        began = time.monotonic()
        try:
            self._value = self._make()
        except Exception as error:
            self._value = known_error(error)
        took = time.monotonic() - began
        self._until = time.monotonic() + max(self._seconds, _KEPT_TIMES * took)


@dataclass(frozen=True)
class _Freshness:
    """The status of a store, and why not all is fresh."""

    status: StoreStatus
    reasons: list[str]


class Site:
    """Answers by path. It reads the store, and asks no database.

    Args:
        mask: hides secrets in everything that is sent.
        told: what a run beside this process tells; None: there is none.
    """

    def __init__(
        self, config: Config, mask: Callable[[str], str], told: RunTold | None = None
    ) -> None:
        self._config, self._mask, self._told = config, mask, told
        self._epochs = EpochHistory(ManifestLog(Store(config.store).manifests))
        self._status = KeptFor(self._look)
        self._took = KeptFor(lambda: KeptTook(Store(config.store), SHOWN))
        self._plans = KeptFor(lambda: plans(config), _PLANS_S)
        self._texts = KeptFor(lambda: view_texts(config), _PLANS_S)
        self._samples: dict[str, KeptFor[Any]] = {}
        self._lock = threading.Lock()
        self._files = {
            f"/{'' if file.name == 'index.html' else file.name}": Answer(
                file.read_bytes(), _KINDS[file.suffix]
            )
            for file in _PAGE.iterdir()
            if file.suffix in _KINDS
        }
        self._routes: Mapping[str, Callable[[Mapping[str, str]], Answer]] = {
            "/metrics": self._metrics,
            "/readyz": self._ready,
            "/api/ready": lambda _: self._json(self._reasons()),
            "/api/status": lambda _: self._json(self._status.get().status),
            "/api/lineage": lambda _: self._json(self._sound().lineage),
            "/api/explain": lambda _: self._json(self._sound().explained),
            "/api/views": lambda _: self._json(self._texts.get()),
            "/api/plan": lambda asked: self._json(self._plan(asked)),
            "/api/rows": lambda asked: self._json(self._sample(asked).get()),
            "/api/epochs": lambda _: self._json(self._past()),
            "/api/run": lambda _: self._json(self._run()),
        }

    def follow(self, ended: threading.Event) -> None:
        """Look for new epochs until the end."""
        while not ended.is_set():
            with suppress(OSError):  # the store is away: the status tells why
                self._epochs.follow()
            ended.wait(_LOOK_S)

    def answer(self, path: str) -> Answer:
        """What is at a path with its query."""
        split = urlsplit(path)
        if (file := self._files.get(split.path)) is not None:
            return file
        try:
            if (route := self._routes.get(split.path)) is None:
                raise UserError(
                    "there is nothing at this path",
                    where=split.path,
                    allowed=f"/, /healthz, {', '.join(self._routes)}",
                )
            asked = {name: values[0] for name, values in parse_qs(split.query).items()}
            return route(asked)
        except Exception as error:
            known = known_error(error)
            wrong = isinstance(known, UserError)
            status = HTTPStatus.NOT_FOUND if wrong else HTTPStatus.SERVICE_UNAVAILABLE
            return self._json({"error": error_json(known), "text": known.render()}, status)

    def _json(self, data: Any, status: HTTPStatus = HTTPStatus.OK) -> Answer:
        text = json.dumps(without_secrets(data, self._mask))
        return Answer(text.encode(), "application/json", status)

    def _look(self) -> _Freshness:
        told = status(self._config)
        return _Freshness(told, not_fresh(told))

    def _ready(self, _: Mapping[str, str]) -> Answer:
        try:
            reasons = self._status.get().reasons
        except MviewError as error:
            reasons = [error.render()]
        if not reasons:
            return Answer.text("ready")
        lines = (self._mask(" ".join(reason.split())) for reason in reasons)
        return Answer.text("\n".join(lines), HTTPStatus.SERVICE_UNAVAILABLE)

    def _reasons(self) -> dict[str, Any]:
        reasons = self._status.get().reasons
        return {"ready": not reasons, "reasons": reasons}

    def _metrics(self, _: Mapping[str, str]) -> Answer:
        try:
            look: _Freshness | None = self._status.get()
        except MviewError:
            look = None

        def text(told: RunHeard | None) -> str:
            store = None if look is None else look.status
            ready = look is not None and not look.reasons
            return metrics_text(store, ready, self._epochs, told, self._mask)

        body = text(None) if self._told is None else self._told.read(text)
        return Answer(body.encode(), KIND)

    def _sound(self) -> Plans:
        made = self._plans.get()
        if made.error is not None:
            raise made.error
        return made

    def _plan(self, asked: Mapping[str, str]) -> dict[str, str | None]:
        name = asked.get("view", "")
        text = self._plans.get().texts.get(name)
        if text is None:
            check_views(self._config, published(self._config), [name])
        return {"view": name, "text": text}

    def _sample(self, asked: Mapping[str, str]) -> KeptFor[Any]:
        name = asked.get("view", "")
        check_views(self._config, published(self._config), [name])
        with self._lock:
            if name not in self._samples:
                if len(self._samples) >= _SAMPLES:
                    del self._samples[next(iter(self._samples))]
                self._samples[name] = KeptFor(lambda: sample(self._config, name))
            return self._samples[name]

    def _past(self) -> list[PastEpoch]:
        kept = self._took.get()
        return [with_took(each, kept) for each in self._epochs.points]

    def _run(self) -> Any:
        return None if self._told is None else self._told.read(RunHeard.as_json)
