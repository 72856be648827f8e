"""A changelog that PostgreSQL sends itself: its log, decoded by `pgoutput`, through a slot.

Offsets are `{"wal": [end, commit, number], "slot": name, "server": id, "timeline": number,
"table/<name>": facts}`; see `ownlog`, which has all that is not PostgreSQL's. A store of before has
no timeline until it has read on.

The server keeps its log from the slot's place on. That place is moved only up to what an epoch has
published: who asks for the changes after one batch has published the one before it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from mview.config import ChangesSettings, ConnectionSettings
from mview.connector import Format, LogReader, Look, Offsets
from mview.connector.halts import altered, lost_key
from mview.errors import ConfigError, MviewError, ask_all
from mview_connectors.changelogs.ownlog.changelog import TABLE, OwnLog, text_of
from mview_connectors.changelogs.ownlog.runs import Place
from mview_connectors.changelogs.ownlog.stream import away
from mview_connectors.changelogs.postgresql.server import PostgresqlServer, ServerState, lost
from mview_connectors.changelogs.postgresql.stream import WalStream
from mview_connectors.formats.ownlog.blocks import relation_of, under_name
from mview_connectors.formats.ownlog.pgoutput import PgRelation

#: What names may have: they stand in statements as they are.
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")

_OPTIONS = ("slot", "publication", "max_slot_wal")
_UNITS = {"MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}


class PostgresqlChangelog(OwnLog):
    """Follows the log of a PostgreSQL server; see the module.

    Args:
        settings: the connection's `changes` section.
        database: where the tables are.
        tables: their names.
        reader: who reads: each has a place of its own.
    """

    log: ClassVar[str] = "wal"

    def __init__(
        self,
        settings: ChangesSettings,
        database: ConnectionSettings,
        tables: Sequence[str],
        reader: LogReader,
    ) -> None:
        super().__init__(settings, tables, _OPTIONS)
        self._reader = reader
        self._server = PostgresqlServer(database)
        self._slot = self._slot_of(reader)
        #: One for all readers of a store: it has tables, and keeps nothing.
        own = self._slot_of(replace(reader, light=""))
        self._publication = self._name("publication", own)
        self._most_kept = self._size(settings.options.get("max_slot_wal"))
        #: Which of the logs of this server and its copies is read; none before the first look.
        self._timeline: int | None = None
        #: By what changes in the log were written, of each table.
        self._written: dict[str, set[PgRelation]] = {}
        #: The file and the columns of tables, where they are others than in the offsets.
        self._looked: dict[str, dict[str, Any]] = {}

    @classmethod
    def of_database(
        cls,
        settings: ChangesSettings,
        database: ConnectionSettings,
        format: Format,
        tables: Sequence[str],
        reader: LogReader,
    ) -> PostgresqlChangelog:
        """See `mview.ingest.spec.open_changelog`."""
        return cls(settings, database, tables, reader)

    def __reduce__(self) -> tuple[Any, ...]:
        parts = self._settings, self._server._settings, self._tables, self._reader
        return type(self), parts

    # --- OwnLog ---------------------------------------------------------------------------------

    def check(self) -> None:
        """Refuse what cannot be followed, with all that is missing; makes nothing."""
        ask_all(
            [
                self._server.check_server,
                partial(self._server.check_tables, self._tables),
                partial(self._server.check_publication, self._publication, self._tables),
            ]
        )

    def looks(self, tables: Sequence[str], load_ms: Callable[[], int] | None) -> Sequence[Look]:
        """The server, each table, the publication, and the slot."""
        slot, publication, server = self._slot, self._publication, self._server

        def may_send() -> str:
            server.check_server()
            return "wal_level is logical, and this user may replicate"

        def followed(table: str) -> str:
            server.check_tables([table])
            return "the log has all its changes"

        def published() -> str:
            left = server.check_publication(publication, tables)
            if not tables:
                return f"{publication} has no table to have: no view reads one yet"
            return f"{publication} {'will have' if left else 'has'} all tables"

        def kept() -> str:
            state = self._state(slot)
            if state.slot is None:
                return "is made by the first run"
            if state.slot.status == "lost":
                raise lost(server.server, slot, "it was behind by more than max_slot_wal_keep_size")
            most = self._most_kept
            limit = "" if most is None else f"; it is dropped at {most >> 20} MB"
            return f"the server keeps {state.slot.kept >> 20} MB of its log for it{limit}"

        section = self._settings.section
        return [
            Look(f"{section}: server", may_send),
            *(Look(f"{server.place(t)}: log", partial(followed, t), t) for t in tables),
            Look(f"{section}: publication", published),
            Look(f"{section}: slot {slot}", kept),
        ]

    def begin(self, known: Offsets | None = None) -> Offsets:
        """The log's end now; publication and slot are made where they are missing."""
        slot = self._slot if known is None else text_of(known, "slot")
        new = self._new(known)
        self._server.check_tables(new)
        self._server.check_publication(self._publication, new)
        state = self._state(slot)
        self._server.check_server()
        self._server.publish(self._publication, new)
        if state.slot is not None and state.slot.status == "lost" and known is None:
            self._server.drop_slot(slot)
            state = state._replace(slot=None)
        if state.slot is None:
            if known is not None:
                raise lost(self._server.server, slot, "the slot was dropped")
            self._server.room([slot])
            self._server.make_slot(slot)
        state = self._state(slot)
        self._check_slot(state, slot)
        self._server.wait_for_writers(self._tables)
        facts = {
            f"{TABLE}{name}": {
                **{what: fact for what, fact in facts.items() if what != "keys"},
                "key": self._server.key(name, facts["keys"] or []),
            }
            for name, facts in state.tables.items()
            if name in new
        }
        place = list(Place(state.end))
        server = {"server": self._server.identity(), "timeline": state.timeline}
        return {self.log: place, "slot": slot, **server, **facts}

    def _disconnect(self) -> None:
        self._server.close()

    def _end(self) -> int:
        return self._state(self._slot).end

    def _opened(self, start: Offsets) -> WalStream:
        slot, place = text_of(start, "slot"), self._place(start)
        self._check(start)
        self._check_followed(start, lambda name: self._server.check_tables([name]))
        connection = self._server.open_replication(slot)
        names = f"proto_version '1', publication_names '{self._publication}'"
        high, low = divmod(place.end, 1 << 32)
        command = f"START_REPLICATION SLOT {slot} LOGICAL {high:X}/{low:X} ({names})"

        def ended(text: str) -> MviewError:
            if "requested WAL segment" in text or "can no longer get changes" in text:
                return lost(self._server.server, slot, text)
            return away("PostgreSQL", self._server.server, f"replication slot {slot}", text)

        try:
            return WalStream(connection, place, command, partial(self._as_read, start), ended)
        except BaseException:
            connection.close()
            raise

    def _as_read(self, start: Offsets, message: bytes) -> bytes | None:
        """See `Wanted`: a table is known by its number, whatever it was called at that moment."""
        number, schema, name = relation_of(message)
        for table in self._tables:
            facts = start.get(f"{TABLE}{table}")
            if facts is not None and facts["relation"] == number:
                self._written.setdefault(table, set()).add(PgRelation.of(message)[0])
                return under_name(message, *self._server.in_the_log(table))
            if facts is None and self._server.name_of(schema, name) == table:
                return message
        return None

    # --- what must be as it was ------------------------------------------------------------------

    def _state(self, slot: str) -> ServerState:
        return self._server.state(slot, self._publication, self._tables)

    def _check(self, start: Offsets) -> ServerState:
        """Raise unless server, slot and tables are those that were read so far."""
        slot = text_of(start, "slot")
        state = self._state(slot)
        if (then := start.get("timeline", state.timeline)) != state.timeline:
            # One that was promoted may lack the end of what was read, and have other changes there.
            got = f"a standby was promoted: its log is of timeline {state.timeline}, not {then}"
            raise lost(self._server.server, slot, got)
        self._timeline = state.timeline
        if self._stream is None:
            if (server := self._server.identity()) != text_of(start, "server"):
                raise lost(
                    self._server.server, slot, f"it is another server: its identifier is {server}"
                )
            if state.slot is not None and state.slot.confirmed > self._place(start).end:
                got = "the slot was made anew, or moved on by another reader"
                raise lost(self._server.server, slot, got)
            if state.end < (end := self._place(start).end):
                # From a place that is to come it would send nothing that comes before that.
                got = f"its log ends at byte {state.end}, and was read up to {end}: it is an older "
                raise lost(self._server.server, slot, f"{got}copy of the server")
        self._check_slot(state, slot)
        for name in self._tables:
            if (facts := start.get(f"{TABLE}{name}")) is not None:
                self._check_table(name, facts, state.tables.get(name))
        return state

    def _check_slot(self, state: ServerState, slot: str) -> None:
        held, server = state.slot, self._server.server
        if held is None:
            raise lost(server, slot, "the slot was dropped")
        if held.status == "lost":
            raise lost(server, slot, "it was behind by more than max_slot_wal_keep_size")
        if held.plugin != "pgoutput" or held.database != self._server.database():
            raise ConfigError(
                f"replication slot {slot} is not ours",
                where=f"{self._settings.section}.options.slot",
                got=f"plug-in {held.plugin}, database {held.database}",
                hint="name another one: it is made by the first run",
            )
        if self._most_kept is not None and held.kept > self._most_kept:
            self._end_stream()
            self._server.drop_slot(slot)
            raise lost(
                server,
                slot,
                f"the server keeps {held.kept >> 20} MB of its log for it, more than max_slot_wal "
                f"({self._most_kept >> 20} MB): the slot was dropped, so that its disk does not "
                "fill",
            )

    def _check_table(
        self, name: str, then: Mapping[str, Any], now: Mapping[str, Any] | None
    ) -> None:
        what = ""
        if now is None:
            what = "was dropped or renamed"
        elif now["relation"] != then["relation"]:
            what = "was dropped and made anew"
        elif now["published"] != then["published"]:
            what = f"was taken out of publication {self._publication}, or that was altered"
        elif now["parent"]:
            what = "has got a table that inherits from it: its rows come in another's name"
        elif now["persistence"] != "p":
            what = "is unlogged: changes of it are in no log"
        elif now["identity"] == "n":
            what = "does not send its key any more (REPLICA IDENTITY NOTHING)"
        else:
            used = [column for column in then["columns"] if self._is_used(name, column)]
            gone = [c for c in used if now["columns"].get(c, [])[:3] != then["columns"][c][:3]]
            if gone:
                there = gone[0] in now["columns"]
                what = f"has column {gone[0]!r} {'with another type' if there else 'no more'}"
            # A store of before knows neither labels nor parts, nor the file, nor the key.
            for column in used:
                before = (then.get("labels") or {}).get(column, {})
                after = (now["labels"] or {}).get(column, {})
                if not what and (lost_ones := before.items() - after.items()):
                    what = f"has column {column!r} with label {min(lost_ones)[1]!r} renamed"
                parts = [(facts.get("parts") or {}).get(column) for facts in (then, now)]
                if not what and "parts" in then and parts[0] != parts[1]:
                    what = f"has column {column!r} with other parts, as its type was altered,"
            if not what:
                what = self._written_anew(name, then, now)
            used = [c for c in used if now["columns"].get(c) != then["columns"][c]]
            key = then.get("key")
            if not what and key is not None and key not in (now["keys"] or []):
                what = lost_key(key[2])
            for written in self._written.get(name, set()).copy():
                columns = written.columns
                if not what and not has_place(columns, then["columns"], now["columns"], used):
                    what = f"had other columns ({', '.join(columns)}) when rows of it were changed"
                if not what and key is not None and is_by_another_key(written, key):
                    what = f"had the key ({', '.join(written.key)}) when rows of it were changed"
        if what:
            self._halts[name] = altered(self._server.place(name), self._server.server, what)

    def _written_anew(self, name: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
        """What is told of a table whose values may be others, which is in no log; else "".

        `ALTER COLUMN … TYPE … USING` alters the column and writes all rows anew, at once. What does
        only one of both leaves the values alone: it is noted, in offsets, so that the other one may
        come later.
        """
        first = {"file": then.get("file", now["file"]), "columns": then["columns"]}
        before = then.get("looked", first)
        columns = {c: now["columns"].get(c) for c in before["columns"]}
        anew = set(before.get("anew", ()))
        if before["file"] != now["file"]:
            anew |= {c for c, facts in before["columns"].items() if columns[c] != facts}
        if used := sorted(c for c in anew if self._is_used(name, c)):
            return f"has had column {used[0]!r} altered, and its rows written anew,"
        looked: dict[str, Any] = {"file": now["file"], "columns": columns}
        if anew:  # of a column that is not used yet it is told once it is
            looked["anew"] = sorted(anew)
        if looked != before:
            self._looked[name] = looked
        return ""

    def _offsets(self, start: Offsets, end: Place) -> Offsets:
        offsets = super()._offsets(start, end) | {"timeline": self._timeline}
        for name, looked in self._looked.items():
            facts = offsets.get(f"{TABLE}{name}")
            if facts is not None:
                offsets[f"{TABLE}{name}"] = {**facts, "looked": looked}
        return offsets

    # --- readers ---------------------------------------------------------------------------------

    def _slot_of(self, reader: LogReader) -> str:
        connection = re.sub("[^a-z0-9_]", "_", self._settings.connection.lower())[:40]
        number = replace(reader, light="").number
        own = self._name("slot", f"mview_{connection}_{number:08x}")
        # 63 letters are the most; the beginning says whose it is.
        return f"{own[:54]}_{reader.number:08x}" if reader.light else own

    def room(self, readers: Mapping[LogReader, Offsets | None]) -> str:
        """See `Retaining`: each takes a slot, and while it reads a connection for replication."""
        return self._server.room(
            [
                self._slot_of(reader) if known is None else text_of(known, "slot")
                for reader, known in readers.items()
            ]
        )

    def leave(self, known: Offsets | None) -> None:
        """See `Retaining`: what is read by now may be a slot of another name, by older settings.

        A slot that was named for the store since, and that it has never read by, may be another's.
        """
        slots = [] if known is None else [text_of(known, "slot")]
        if self._reader.light or "slot" not in self._settings.options:
            slots.append(self._slot)
        for slot in dict.fromkeys(slots):
            self._server.drop_slot(slot)

    # --- settings --------------------------------------------------------------------------------

    def _name(self, option: str, default: str) -> str:
        name = self._settings.options.get(option, default)
        if not _NAME.fullmatch(name):
            self._refuse(option, name, "a-z, 0-9 and _, at most 63, without a digit in front")
        return name

    def _size(self, text: str | None) -> int | None:
        if text is None:
            return None
        number, _, unit = text.strip().partition(" ")
        if not number.isdecimal() or unit.strip() not in _UNITS:
            self._refuse("max_slot_wal", text, "a number with MB, GB or TB, such as 10 GB")
        return int(number) * _UNITS[unit.strip()]


def is_by_another_key(written: PgRelation, key: Sequence[Any]) -> bool:
    """Whether a change was written when the log said not of each row which one it was by our key.

    That is so where the table had another primary key, or none, or was told by another index
    (REPLICA IDENTITY USING INDEX): an UPDATE that leaves that one alone says nothing of the row
    before. With REPLICA IDENTITY FULL the log has whole rows.

    Args:
        written: what the log says of the table.
        key: the facts of the key that it was loaded by: number, whether it is primary, columns.
    """
    if written.identity == "f":
        return False
    if key[1] and written.identity == "d":
        return set(written.key) != set(key[2])
    return not set(key[2]) <= set(written.key)


def has_place(
    written: Sequence[str],
    then: Mapping[str, Sequence[Any]],
    now: Mapping[str, Sequence[Any]],
    asked: Sequence[str],
) -> bool:
    """Whether columns that were altered since had their names when a change was written.

    The log names the columns of that moment, in the order of their numbers, without these: columns
    that exchanged their names, and have them again by now, would be taken for each other. A column
    that was dropped never comes back under its number. So all that are there then and now were
    there in between, and a column before which none was dropped stands where it stood. Of another
    it cannot be known.

    Args:
        written: the columns of the log.
        then: of each column when the table was loaded its number, first of all.
        now: the same, as they are now.
        asked: names of columns that have the same number then and now.
    """
    order = sorted(then, key=lambda name: then[name][0])
    numbers = {facts[0] for facts in now.values()}
    for name in asked:
        place = order.index(name)
        if any(then[before][0] not in numbers for before in order[:place]):
            return False
        if name not in written[place : place + 1]:
            return False
    return True
