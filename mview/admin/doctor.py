"""`mview doctor`: everything that a run needs, asked one thing after the other; nothing is changed.

A question ends in a tick, or in an error whose hint is the next command. A server that is away is
one error: it is not asked further, and all others are.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from queue import Empty, Queue
from typing import Literal

from mview.admin.status import not_fresh, status
from mview.catalog.definitions import load_definitions, load_lights
from mview.catalog.followers import open_follower
from mview.catalog.places import check_store, check_targets
from mview.catalog.tables import cautions, described, has_own_log, source_tables
from mview.clock import SystemClock
from mview.config import Config
from mview.connector import Changelog, Database, Examined, Look, Offsets, Retaining
from mview.errors import (
    ConfigError,
    MistakesError,
    MviewError,
    RetryableError,
    UserError,
    counted,
    known_error,
)
from mview.follow.light.readers import log_readers
from mview.follower import Probing
from mview.ingest.spec import log_reader, open_changelog, open_database
from mview.java.jars import absent, cache_folder
from mview.java.runtime import check_java, find_java
from mview.plan.definition import Unread, ViewDefinition
from mview.relation import RelationId, by_connection
from mview.schema import TableSchema
from mview.store.history import ManifestLog
from mview.store.identity import no_folder, refusal, store_id
from mview.store.layout import Store
from mview.store.lease import Lease
from mview.store.manifest import Manifest, schemas_of

#: Seconds for an answer: clients try again for ten by themselves.
PATIENCE_S = 20.0

#: Rows that a load reads in a second, at the least: a fifth of what tests/bench measures.
_PACE = 20_000

#: Bytes that must be free: Spark and DuckDB fail in odd ways on a disk that is full.
_ROOM = 1 << 30

#: Rows and bytes of a chunk that no table is larger than: a plan of one asks for the estimate only.
_ALL = 1 << 62

#: Columns of a view that was not built.
_UNKNOWN = TableSchema((), ())


@dataclass(frozen=True)
class Finding:
    """What a question ended in.

    Attributes:
        about: what was asked about.
        state: `wrong` must be mended before a run can be right; `caution` is for people to judge.
        text: what is so.
        next: what mends it, where it is not right.
    """

    about: str
    state: Literal["ok", "caution", "wrong"]
    text: str
    next: str = ""


#: How cautions begin.
_WARNING = "WARNING: "


@dataclass
class _Site:
    """Questions that are asked in turn: what is away is not asked further."""

    name: str
    looks: Callable[[], Sequence[Look]]
    close: Callable[[], None] = lambda: None


@dataclass
class Doctor:
    """Asks of a configuration and views what a run needs.

    Args:
        config: the configuration.
        views: given ones; those of the store are asked about, too.
        unread: files that give no view.
        patience_s: seconds for an answer.
    """

    config: Config
    views: Sequence[ViewDefinition] = ()
    unread: Sequence[Unread] = ()
    patience_s: float = PATIENCE_S
    _schemas: dict[RelationId, TableSchema] = field(default_factory=dict)
    _rows: dict[RelationId, int] = field(default_factory=dict)
    #: All views that are asked about.
    _asking: list[ViewDefinition] = field(default_factory=list)
    #: How far epochs have read, by connection.
    _offsets: Mapping[str, Offsets] = field(default_factory=dict)

    def examine(self) -> list[Finding]:
        """All questions, those of one server after the other, and servers side by side."""
        local = [*self._asked(Look("java", _java)), _jars(), *self._store()]
        views, manifest = self._views_and_manifest(local)
        self._asking = views
        self._offsets = {} if manifest is None else manifest.offsets
        tables = by_connection(source_tables(views))
        local += [
            Finding(name, "wrong", "there is no such connection", f"add it to {self.config.path}")
            for name in tables
            if name not in self.config.connections
        ]
        sites = [self._connection(name, tables.get(name, [])) for name in self.config.connections]
        chains = [*sites, *([site] for site in self._sinks(views, manifest))]
        with ThreadPoolExecutor(max(1, len(chains))) as pool:
            remote = list(pool.map(self._ask_in_turn, chains))
        return [*local, *(finding for chain in remote for finding in chain), *self._warned(views)]

    # --- asking ----------------------------------------------------------------------------------

    def _ask_in_turn(self, sites: Sequence[_Site]) -> list[Finding]:
        told: list[Finding] = []
        for site in sites:
            made: list[Look] = []
            findings: list[Finding] = []
            if stopped := self._ask(Look(site.name, partial(_fill, made, site.looks)), findings):
                told += findings
                continue
            findings.pop()  # that there are questions is none
            for look in made:
                if stopped := self._ask(look, findings):
                    break
            if not stopped:
                site.close()
            told += _told_once(findings)
        return told

    def _asked(self, look: Look) -> list[Finding]:
        findings: list[Finding] = []
        self._ask(look, findings)
        return findings

    def _ask(self, look: Look, findings: list[Finding]) -> bool:
        """Add what a question ends in; returns whether who was asked is away."""
        answers = Queue[str | BaseException]()
        # A thread that gets no answer is left behind: it ends with the process.
        threading.Thread(target=_answer, args=(look.ask, answers), daemon=True).start()
        try:
            answer = answers.get(timeout=self.patience_s)
        except Empty:
            text = f"no answer in {self.patience_s:g} s"
            hint = "check that it runs and can be reached, and ask again"
            findings.append(Finding(look.about, "wrong", text, hint))
            return True
        if isinstance(answer, str):
            text = answer.removeprefix(_WARNING)
            findings.append(Finding(look.about, "ok" if text == answer else "caution", text))
            return False
        error = known_error(answer)
        errors = error.errors if isinstance(error, MistakesError) else [error]
        findings.extend(_wrong(look.about, part) for part in errors)
        return isinstance(error, RetryableError)

    # --- this machine ----------------------------------------------------------------------------

    def _store(self) -> Iterator[Finding]:
        for look in (
            Look("store", self._folder),
            Look("store's disk", self._room),
            Look("store's lease", self._lease),
        ):
            findings = self._asked(look)
            yield from findings
            if look.about == "store" and findings[0].state == "wrong":
                return
        reasons = not_fresh(status(self.config)) if store_id(self.config.store) else []
        for reason in reasons:
            yield Finding("run", "wrong", reason, "mview status; mview run FILE…")

    def _folder(self) -> str:
        check_store(self.config)
        if error := refusal(self.config.store):
            raise error
        there = _existing(self.config.store)
        try:
            with tempfile.TemporaryFile(dir=there):
                pass
        except OSError as refused:
            raise no_folder(self.config.store, refused) from None
        is_new = "" if store_id(self.config.store) else ", made by the first run"
        return f"{self.config.store} can be written{is_new}"

    def _room(self) -> str:
        free = shutil.disk_usage(_existing(self.config.store)).free
        if free < _ROOM:
            raise ConfigError(
                f"{free >> 20} MB are free",
                where=str(self.config.store),
                allowed=f"{_ROOM >> 20} MB or more",
                hint=f"make room on the disk of {self.config.store}, or name another under store:",
            )
        return f"{free >> 30} GB are free"

    def _lease(self) -> str:
        owner = Lease(Store(self.config.store).lease, SystemClock()).holder()
        return "free" if owner is None else f"held by process {owner.pid} on {owner.host}"

    def _views_and_manifest(
        self, findings: list[Finding]
    ) -> tuple[list[ViewDefinition], Manifest | None]:
        """The given views, and those of the store; what cannot be read is noted."""
        findings += [_wrong(f"view {v.definition.name}", v.error) for v in self.unread]
        try:
            store = Store(self.config.store)
            manifest = ManifestLog(store.manifests).latest()
            given = {view.name for view in self.views}
            lights = [kept.definition for n, kept in load_lights(store).items() if n not in given]
            if manifest is None:
                return [*self.views, *lights], None
            self._schemas = schemas_of(manifest.source_tables)
            kept = load_definitions(store, manifest, but=given)
        except MviewError as error:
            findings.append(_wrong("store", error))
            return list(self.views), None
        findings += [_wrong(f"view {name}", error) for name, error in kept.damaged.items()]
        there = (kept.views[name] for name in sorted(kept.views))
        return [*self.views, *there, *lights], manifest

    def _warned(self, views: Sequence[ViewDefinition]) -> list[Finding]:
        there = self.config.connections.keys() & self.config.changes.keys()
        known = [v for v in views if {t.connection for t in source_tables([v])} <= there]
        said = cautions(self.config, known, self._schemas)
        return [Finding("caution", "caution", text.removeprefix(_WARNING)) for text in said]

    # --- connections -----------------------------------------------------------------------------

    def _connection(self, name: str, tables: list[str]) -> list[_Site]:
        """The questions for the database of a connection, and then for its changelog."""
        database = open_database(self.config, name)
        looks = partial(self._database_looks, name, database, tables)
        sites = [_Site(f"connections.{name}", looks, database.close)]
        changelogs: list[Changelog] = []

        def of_the_changelog() -> Sequence[Look]:
            if name not in self.config.changes:
                raise ConfigError(
                    "the connection has no changelog",
                    hint=f"add a section changes.{name} to {self.config.path}",
                )
            readers = log_readers(self.config, name, self._asking, self._offsets)
            looks: dict[str, Look] = {}
            for reader in readers or [log_reader(self.config)]:
                changelogs.append(open_changelog(self.config, name, tables, reader=reader))
                for look in self._changelog_looks(name, changelogs[-1], tables):
                    looks.setdefault(look.about, look)  # the server is asked once for all
            if readers and isinstance(changelogs[0], Retaining):
                room = partial(changelogs[0].room, readers)
                return [*looks.values(), Look(f"changes.{name}: readers", room)]
            return [*looks.values()]

        sites.append(_Site(f"changes.{name}", of_the_changelog, lambda: _close_all(changelogs)))
        return sites

    def _database_looks(self, name: str, database: Database, tables: list[str]) -> Sequence[Look]:
        about = f"connections.{name}"
        looks = [Look(about, partial(self._clock, name, database))]
        for table in (RelationId("table", table, name) for table in tables):
            looks.append(Look(str(table), partial(self._table, database, table)))
        if isinstance(database, Examined):
            own = partial(self._load_ms, name) if has_own_log(self.config, name) else None
            looks += database.looks(tables, own)
        return looks

    def _clock(self, name: str, database: Database) -> str:
        """How far the clocks are apart: known to half of what the question took."""
        database.clock()  # connects, which takes longer than an answer
        before = SystemClock().now()
        theirs, after = database.clock(), SystemClock().now()
        skew, doubt = theirs - (before + after) // 2, (after - before + 1) // 2
        text = f"answers; its clock differs from this machine's by {skew:+d} ms (± {doubt} ms)"
        changes = self.config.changes.get(name)
        if changes is None:
            return text
        if abs(skew) - doubt > changes.delay:
            raise ConfigError(
                f"its clock differs from this machine's by {skew:+d} ms (± {doubt} ms)",
                allowed=f"less than T, which is {changes.delay} ms",
                hint=f"set both clocks by NTP; or set {changes.section}.T above the difference",
            )
        return f"{text}; T is {changes.delay} ms"

    def _table(self, database: Database, table: RelationId) -> str:
        schema = described(self.config, database, table, self._asking)
        self._schemas.setdefault(table, schema)
        self._rows[table] = rows = database.plan(table.name, schema, _ALL, _ALL).rows
        columns, key = counted(len(schema.columns), "column"), ", ".join(schema.key)
        return f"{columns}, key {key}, about {counted(rows, 'row')}"

    def _load_ms(self, connection: str) -> int:
        """About how long the tables of a connection take to load."""
        rows = sum(n for table, n in self._rows.items() if table.connection == connection)
        return rows * 1000 // _PACE

    def _changelog_looks(
        self, name: str, changelog: Changelog, tables: Sequence[str]
    ) -> Sequence[Look]:
        if isinstance(changelog, Examined):
            return changelog.looks(tables, partial(self._load_ms, name))

        def check() -> str:
            changelog.check()
            return "can be followed"

        return [Look(f"changes.{name}", check)]

    # --- sinks -----------------------------------------------------------------------------------

    def _sinks(self, views: Sequence[ViewDefinition], manifest: Manifest | None) -> Iterator[_Site]:
        places = check_targets(self.config, views, manifest)
        for view in views:
            if view.mode != "light":
                error = places.get(view.name)
                yield _Site(view.name, partial(_place_looks, view.name, error))
            state = manifest.views.get(view.name) if manifest else None
            for sink in view.sinks:
                about = f"{view.name}: sink {sink}"
                ask = partial(self._sink, view, sink, state.schema if state else _UNKNOWN)
                yield _Site(about, partial(list, [Look(about, ask)]))

    def _sink(self, view: ViewDefinition, sink: str, schema: TableSchema) -> str:
        store = Store(self.config.store)
        follower, target = open_follower(self.config, store, view, sink, schema)
        with closing(follower):
            if not isinstance(follower, Probing):
                return f"writes {target.table}; it is asked when a run begins"
            follower.probe()
        return f"writes {target.table}, and what that takes is there"


def _told_once(findings: Sequence[Finding]) -> list[Finding]:
    """Findings of a site, where what many of its tables lack alike is told once."""
    about: dict[tuple[Finding, str], list[str]] = {}
    for finding in findings:
        alike = finding if finding.state == "ok" else replace(finding, about="")
        # What was asked of a table, or of the server: a binary log is no second table.
        what = finding.about.partition(": ")[2]
        about.setdefault((alike, what), []).append(finding.about)
    return [
        replace(alike, about=names[0] + (f" and {len(names) - 1:,} more" if names[1:] else ""))
        for (alike, _), names in about.items()
    ]


def _answer(ask: Callable[[], str], answers: Queue[str | BaseException]) -> None:
    try:
        answers.put(ask())
    except Exception as error:
        answers.put(error)


def _fill(made: list[Look], looks: Callable[[], Sequence[Look]]) -> str:
    made.extend(looks())
    return ""


def _place_looks(view: str, error: UserError | None) -> Sequence[Look]:
    def ask() -> str:
        if error is not None:
            raise error
        return "its table has a place of its own"

    return [Look(f"view {view}", ask)]


def _close_all(changelogs: Sequence[Changelog]) -> None:
    for changelog in changelogs:
        changelog.close()


def _java() -> str:
    return f"Java {check_java()}, {find_java()}"


def _jars() -> Finding:
    if missing := absent():
        names, place = ", ".join(jar.file_name for jar in missing), cache_folder()
        hint = f"the first mview run fetches them; without a network put them into {place}"
        return Finding("jars of Spark", "caution", f"not here yet: {names}", hint)
    return Finding("jars of Spark", "ok", f"are in {cache_folder()}")


def _existing(folder: Path) -> Path:
    return next(above for above in (folder, *folder.parents) if above.exists())


def _wrong(about: str, error: MviewError) -> Finding:
    details: Mapping[str, object] = {
        "where": error.where,
        "got": error.got,
        "allowed": error.allowed,
    }
    said = [f"{label} {value}" for label, value in details.items() if value not in (None, "")]
    return Finding(about, "wrong", "; ".join([error.what, *said]), error.hint or "")
