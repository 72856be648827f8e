"""What an epoch puts into quarantine, and what it takes out of it: a table's changes go on.

A change in quarantine is of an older state of its rows than what came later: so a newer change of
the key wins, and the epoch that nets it notes that. Taken again, it counts where none did.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mview.changelog import OP, from_ipc
from mview.connector import Format, Message, TableHalt
from mview.epoch.engine import Engine
from mview.errors import CorruptionError, DecodeError, counted, typed
from mview.ingest.batches import Batch
from mview.ingest.decode.split import OneMessage, decode_again
from mview.ingest.mending.reject import (
    QuarantineRoom,
    Reject,
    message_bytes,
    message_form,
    message_of,
)
from mview.ingest.spec import TableSpec, latest_time, open_format
from mview.merge.net import EVERY_PARTITION, Netted, moved_key, net_changes
from mview.relation import RelationId
from mview.rows.match import row_codes
from mview.schema import TableSchema
from mview.store.manifest import TableState
from mview.store.quarantine import (
    Idle,
    MendLog,
    MendRequest,
    Overtaken,
    Quarantine,
    Quarantined,
    kept_keys,
    size_of,
)


@dataclass(frozen=True)
class Aside:
    """What of a table is in quarantine after an epoch.

    Attributes:
        before: what was.
        changes: what is.
        messages: of those that the epoch has put aside, in their order.
        said: what has happened, for people.
    """

    before: tuple[Quarantined, ...]
    changes: tuple[Quarantined, ...]
    messages: tuple[dict[str, Any], ...] = ()
    said: tuple[str, ...] = ()


class Quarantines:
    """The quarantines of an engine's tables, in one epoch.

    Args:
        engine: the engine.
        batch: what came.
    """

    def __init__(self, engine: Engine, batch: Batch) -> None:
        self._engine, self._batch = engine, batch
        self._rejects: dict[RelationId, list[Reject]] = defaultdict(list)
        for reject in batch.rejects:
            self._rejects[reject.table].append(reject)
        self._mends: dict[RelationId, list[MendRequest]] = defaultdict(list)
        for request in batch.mends:
            self._mends[request.table].append(request)
        self._formats: dict[str, Format] = {}
        #: The message of which a change was taken again last, and where it is kept.
        self._last: tuple[tuple[RelationId, str, int], OneMessage] | None = None
        self._now_ms = int(engine.clock.now())
        #: By table, what is in quarantine after the epoch.
        self.asides: dict[RelationId, Aside] = {}

    @property
    def tables(self) -> list[RelationId]:
        """The tables with something new."""
        known = self._engine.manifest.tables
        return [name for name in {**self._rejects, **self._mends} if name in known]

    def taken(self, name: RelationId, netted: Netted) -> Netted:
        """Net changes with what is taken out of the quarantine; notes what is in it then.

        Raises:
            DecodeError: more changes are to be put aside than may be, or it is not known any more
                what was put aside: which rows are wrong, nobody can tell then.
        """
        state = self._engine.manifest.tables[name]
        rejects = self._rejects.get(name, [])
        if state.quarantine is None and not rejects:
            return netted
        schema, batches = state.schema, self._batch.changes.get(name, ())
        before = self._before(name, state)
        new, messages = self._new(name, rejects, before)
        netted = _raised(netted, rejects)
        kept = overtaken([*before, *new], batches, schema, self._now_ms)
        known = self._engine.manifest.positions.get(name, {})
        if any(_is_sent_again(batch, known) for batch in batches):
            # Its row is not read anew at that time; and nobody knows whether it is that one.
            now_ms = self._now_ms
            kept = [c if c.keys else replace(c, needed_ms=now_ms) for c in kept]
        partitions = {*self._engine.manifest.newest.get(name, {}), *netted.newest}
        kept, applied, said = self._mended(name, kept, schema, partitions)
        if applied:
            netted = with_retried(netted, applied, schema)
        if new:
            many = counted(len(new), "change")
            last = replace(new[-1].why, got="").text
            said = [f"{name}: {many} put into quarantine, mview quarantine list: {last}", *said]
        self.asides[name] = Aside(before, tuple(kept), tuple(messages), tuple(said))
        if new:
            self._check_room(name)
        return netted

    def without_orphans(self, name: RelationId, netted: Netted, old_rows: pa.Table) -> Netted:
        """Net changes without those that build on a row which a change in quarantine would make.

        They have cells that were not sent, and there is no row to take them from.
        """
        if (aside := self.asides.get(name)) is None or not aside.changes:
            return netted
        schema, changes = self._engine.manifest.tables[name].schema, list(aside.changes)
        unsent = _unsent(netted.upserts)
        ours, there = row_codes([_keys(netted.upserts, schema), _keys(old_rows, schema)])
        lost = _flags(unsent) & ~np.isin(ours, there)
        if not lost.any():
            return netted
        orphans = _keys(netted.upserts.filter(pa.array(lost)), schema)
        covered = np.zeros(orphans.num_rows, np.bool_)
        for number, change in enumerate(changes):
            if (rows := change.rows) is None:
                continue
            mine, theirs = row_codes([_keys(rows, schema), orphans])
            hit = np.isin(mine, theirs)
            covered |= np.isin(theirs, mine)
            if hit.any():
                marks: list[Overtaken] = [
                    "partly" if is_hit else mark
                    for is_hit, mark in zip(hit, change.overtaken, strict=True)
                ]
                changes[number] = replace(change, overtaken=tuple(marks), needed_ms=self._now_ms)
        gone = lost.copy()
        gone[lost] = covered
        self.asides[name] = replace(aside, changes=tuple(changes))
        return replace(netted, upserts=netted.upserts.filter(pa.array(~gone)))

    def written(self, name: RelationId, state: TableState) -> TableState:
        """A table with its quarantine as it is after the epoch: durable, named by no manifest."""
        aside, engine = self.asides.get(name), self._engine
        if aside is None or (aside.changes == aside.before and not aside.messages):
            return state
        epoch, token = engine.manifest.epoch + 1, engine.lease.token
        files = engine.quarantine(name)
        if aside.messages:
            files.put_messages(epoch, token, aside.messages)
        return replace(state, quarantine=files.write(epoch, token, aside.changes))

    def said(self) -> dict[RelationId, tuple[str, ...]]:
        """Of tables whose quarantine is another one then, what has happened, for people."""
        asides = self.asides.items()
        return {n: a.said for n, a in asides if a.said or a.changes != a.before}

    def _before(self, name: RelationId, state: TableState) -> tuple[Quarantined, ...]:
        try:
            return tuple(self._engine.quarantine(name).read(state.quarantine))
        except CorruptionError as error:
            raise DecodeError(
                error.what,
                where=error.where,
                got=error.got,
                hint=f"run again: {name} is loaded anew, with all rows as they are",
            ) from error

    def _new(
        self,
        name: RelationId,
        rejects: Sequence[Reject],
        before: Sequence[Quarantined],
    ) -> tuple[list[Quarantined], list[dict[str, Any]]]:
        """What the epoch puts aside, without what was sent again, and the messages."""
        manifest, token = self._engine.manifest, self._engine.lease.token
        known, epoch = manifest.positions.get(name, {}), manifest.epoch + 1
        floor = known.get(EVERY_PARTITION, "")
        file = Quarantine.messages_name(epoch, token)
        has = {(c.position, c.keys) for c in before if c.position}
        new: list[Quarantined] = []
        messages: dict[Message, int] = {}
        for reject in sorted(rejects, key=_place):
            partition, keys = reject.message.partition, kept_keys(reject.keys)
            if reject.position:
                is_old = reject.position < known.get(partition, "") or reject.position <= floor
                if is_old or (reject.position, keys) in has:
                    continue
                has.add((reject.position, keys))
            not_yet: list[Overtaken] = ["no"] * (from_ipc(reject.keys).num_rows if keys else 1)
            new.append(
                Quarantined(
                    id=f"{epoch}.{len(new) + 1}",
                    epoch=epoch,
                    at_ms=self._now_ms,
                    needed_ms=self._now_ms,
                    partition=partition,
                    offset=reject.message.offset,
                    event=reject.event,
                    position=reject.position,
                    keys=keys,
                    overtaken=tuple(not_yet),
                    why=self._masked(reject.why),
                    bytes=message_bytes(reject.message),
                    messages=file,
                    number=messages.setdefault(reject.message, len(messages)),
                )
            )
        return new, [message_form(message) for message in messages]

    def _mended(
        self,
        name: RelationId,
        changes: Sequence[Quarantined],
        schema: TableSchema,
        partitions: Collection[str],
    ) -> tuple[list[Quarantined], list[pa.Table], list[str]]:
        """What is left in quarantine, the changes that are taken out of it, and what to say."""
        left = {change.id: change for change in changes}
        files = self._engine.quarantine(name)
        applied: list[pa.Table] = []
        said = []
        for request in self._mends.get(name, []):
            if request.action == "reread":
                gone = [c.id for c in left.values() if c.needed_ms < request.before_ms]
            else:
                gone = [id_ for id_ in request.ids if id_ in left]
            idle: dict[str, Idle] = {id_: "gone" for id_ in request.ids if id_ not in left}
            if request.action != "retry":
                for id_ in gone:
                    del left[id_]
                what = "discarded" if request.action == "discard" else "read anew from the database"
                many = counted(len(gone), "change")
                said += [f"{name}: {many} in quarantine {what}"] if gone else []
                _note_idle(request, idle)
                continue
            taken: dict[str, Quarantined] = {}
            near = _of_the_same_rows([*left.values()], schema)
            for id_ in sorted(gone, key=lambda gone_id: _order(left[gone_id])):
                change = left.pop(id_)
                rest = [left[other] for other in near[id_] if other in left]
                told = self._retried(name, rest, change, schema, files)
                if not isinstance(told, TableHalt) and {*partitions} - {change.partition}:
                    told = _ordered(name, change, told)
                if isinstance(told, TableHalt):
                    why = self._masked(told)
                    left[id_] = replace(change, why=why, tried_ms=self._now_ms)
                    said.append(f"{name}: change {id_} stays in quarantine: {told.what}")
                    continue
                # What is older and still there has been overtaken, as by any change; and what is
                # newer is needed again, though its row may have been read anew meanwhile.
                for other in overtaken(rest, told, schema, self._now_ms) if told else ():
                    needed_ms = other.needed_ms if other.keys else self._now_ms
                    left[other.id] = replace(other, needed_ms=needed_ms)
                applied += told
                # What was taken just before of the same rows is older.
                older = [taken[other] for other in near[id_] if other in taken]
                older = [other for other in older if _replaces(change, told, other, schema)]
                older += [change] if change.is_overtaken else []
                idle |= {other.id: "overtaken" for other in older}
                taken[id_] = change
            for id_ in taken:
                end = ", without effect: newer changes have overtaken it" if id_ in idle else ""
                said.append(f"{name}: change {id_} is taken out of quarantine{end}")
            _note_idle(request, idle)
        return [left[change.id] for change in changes if change.id in left], applied, said

    def _retried(
        self,
        name: RelationId,
        others: Sequence[Quarantined],
        change: Quarantined,
        schema: TableSchema,
        files: Quarantine,
    ) -> list[pa.Table] | TableHalt:
        """The rows of a change that count, or why it still cannot be taken; beside others of it."""
        if change.is_overtaken:
            return []
        if change.needs_reread:
            return replace(change.why, hint=f"mview backfill {typed(name)}")
        try:
            decoded = self._decoded(name, change, files)
        except CorruptionError as error:
            return TableHalt.of(error)
        assert change.event is not None, "its rows are known"
        spec = TableSpec(name, schema, Path(), "", None, rereads=True)  # as it was put aside
        latest = latest_time(self._engine.config, name.connection)
        told = decode_again(decoded, change.event, spec, latest)
        if isinstance(told, TableHalt):
            return told
        rows = [_without_overtaken(part, change, schema) for part in told]
        is_first = not any(_order(other) < _order(change) for other in others)
        if not is_first and any(_has_unsent(part) for part in rows):
            return replace(
                change.why,
                what="an older change of the same key is in quarantine, and this one builds on it",
                hint=f"mview quarantine retry {typed(name)}",
            )
        return rows

    def _decoded(self, name: RelationId, change: Quarantined, files: Quarantine) -> OneMessage:
        """The message of a change; those of one message come one after another."""
        place = name, change.messages, change.number
        if self._last is None or self._last[0] != place:
            message = message_of(files.message(change))
            self._last = place, OneMessage(self._format(name.connection), message)
        return self._last[1]

    def _format(self, connection: str) -> Format:
        if connection not in self._formats:
            self._formats[connection] = open_format(self._engine.config, connection)
        return self._formats[connection]

    def _masked(self, why: TableHalt) -> TableHalt:
        mask = self._engine.mask
        what, where, got, hint = (str(mask(t)) for t in (why.what, why.where, why.got, why.hint))
        return replace(why, what=what, where=where, got=got, hint=hint)

    def _check_room(self, name: RelationId) -> None:
        """Raise where a connection has more in quarantine than may be."""
        settings = self._engine.config.changes[name.connection]
        changes = size = 0
        for table, state in self._engine.manifest.source_tables.items():
            if table.connection != name.connection:
                continue
            if (aside := self.asides.get(table)) is not None:
                changes += len(aside.changes)
                size += size_of(aside.changes)
            elif state.quarantine is not None:
                changes += state.quarantine.changes
                size += state.quarantine.bytes
        room = QuarantineRoom(settings.quarantine_changes, settings.quarantine_bytes)
        if not room.is_enough(changes, size):
            raise room.full(name, self.asides.pop(name).changes[-1].why, changes, size)


def _note_idle(request: MendRequest, idle: Mapping[str, Idle]) -> None:
    if idle and request.file is not None:
        MendLog(request.file.parent).note_idle(request.file, idle)


def overtaken(
    changes: Sequence[Quarantined], batches: Sequence[pa.Table], schema: TableSchema, now_ms: int
) -> list[Quarantined]:
    """Changes in quarantine, where newer ones of the same rows have come.

    Args:
        changes: what is in quarantine, and what is put there with the same batches.
        batches: changes of the table (`changelog.batch_schema`).
        schema: the table's.
        now_ms: wall time.
    """
    after = list(changes)
    for batch in batches if changes else ():
        after = _overtaken(after, batch, schema, now_ms)
    return after


def _overtaken(
    changes: Sequence[Quarantined], batch: pa.Table, schema: TableSchema, now_ms: int
) -> list[Quarantined]:
    open_ = [change for change in changes if not change.is_overtaken]
    ours, theirs = row_codes([_rows_of(open_, schema), _keys(batch, schema)])
    is_truncate = _flags(pc.equal(batch[OP], "truncate"))
    near = np.flatnonzero(np.isin(theirs, ours) | is_truncate)
    unsent = _has_unsent(batch)
    if not near.size and not unsent:
        return list(changes)
    columns = [OP, "__position", "__partition", "__offset", "__unchanged"]
    truncates: list[Mapping[str, Any]] = []
    told: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for row, cells in zip(
        near, batch.select(columns).take(pa.array(near)).to_pylist(), strict=True
    ):
        (truncates if cells[OP] == "truncate" else told[theirs[row]]).append(cells)
    codes, after = iter(ours), []
    for change in changes:
        if change.is_overtaken:
            after.append(change)
            continue
        rows = [None] * len(change.overtaken) if change.rows is None else codes
        # Of a key that is unknown: it may be any whose cells were left out.
        is_needed = change.rows is None and unsent
        marks: list[Overtaken] = []
        for mark, code in zip(change.overtaken, rows, strict=False):
            of_it = [*truncates, *(told.get(code, ()) if code is not None else ())]
            marks.append(max([mark, *(_mark(change, cells) for cells in of_it)], key=_MARKS.index))
            # The row is not read anew at the time of any change of it.
            is_needed = is_needed or (bool(of_it) and marks[-1] != "wholly")
        needed_ms = now_ms if is_needed else change.needed_ms
        after.append(replace(change, overtaken=tuple(marks), needed_ms=needed_ms))
    return after


#: The later, the more.
_MARKS: Sequence[Overtaken] = ("no", "partly", "wholly")


def _mark(change: Quarantined, cells: Mapping[str, Any]) -> Overtaken:
    """What a change of the same row makes of one in quarantine."""
    if cells["__position"] and change.position:
        is_newer: bool | None = cells["__position"] > change.position
    elif cells["__partition"] == change.partition:
        is_newer = cells["__offset"] > change.offset
    else:
        is_newer = None
    if is_newer is None:
        return "partly"  # nobody knows which is newer
    if not is_newer:
        return "no"
    return "partly" if cells["__unchanged"] else "wholly"


def _replaces(
    change: Quarantined, told: Sequence[pa.Table], older: Quarantined, schema: TableSchema
) -> bool:
    """Whether a change that is taken leaves nothing of an older one that was taken before it.

    Args:
        told: its rows.
    """
    is_newer = (change.position and older.position) or change.partition == older.partition
    if not told or not is_newer or older.rows is None or any(map(_has_unsent, told)):
        return False
    rows = pa.concat_tables([_keys(part, schema) for part in told])
    mine, theirs = row_codes([_keys(older.rows, schema), rows])
    marks = zip(older.overtaken, np.isin(mine, theirs), strict=True)
    return all(mark == "wholly" or is_told for mark, is_told in marks)


def with_retried(netted: Netted, applied: Sequence[pa.Table], schema: TableSchema) -> Netted:
    """Net changes, and beside them those that are taken out of quarantine: older than all."""
    rows = net_changes(applied, schema, {}, {})
    if netted.truncated:
        return netted
    touched = pa.concat_tables([_keys(part, schema) for part in (netted.upserts, netted.deleted)])
    come, gone, known = row_codes(
        [_keys(rows.upserts, schema), _keys(rows.deleted, schema), touched]
    )
    return replace(
        netted,
        upserts=pa.concat_tables(
            [netted.upserts, rows.upserts.filter(pa.array(~np.isin(come, known)))]
        ),
        deleted=pa.concat_tables(
            [netted.deleted, rows.deleted.filter(pa.array(~np.isin(gone, known)))]
        ),
    )


def _loose(schema: TableSchema) -> pa.Schema:
    return pa.schema([pa.field(f.name, f.type) for f in schema.key_arrow])


def _rows_of(changes: Sequence[Quarantined], schema: TableSchema) -> pa.Table:
    """The keys of the rows of changes, one after another."""
    rows = [change.rows for change in changes if change.rows is not None]
    return _keys(pa.concat_tables([schema.key_arrow.empty_table(), *rows]), schema)


def _keys(rows: pa.Table, schema: TableSchema) -> pa.Table:
    return rows.select(list(schema.key)).cast(_loose(schema))


def _flags(values: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    flags: npt.NDArray[np.bool_] = values.to_numpy().astype(np.bool_)
    return flags


def _ordered(
    name: RelationId, change: Quarantined, told: list[pa.Table]
) -> list[pa.Table] | TableHalt:
    """What a change tells, where other partitions have changes, too: not that a key is another.

    One that can be read halts its table: older changes of that row may come from there.
    """
    if not any(moved_key(part) for part in told):
        return told
    hint = f"mview backfill {typed(name)}"
    what = (
        "a change of a key cannot be ordered against changes of other partitions: "
        f"{hint} reads the table anew"
    )
    return replace(change.why, what=what, hint=hint)


def _without_overtaken(part: pa.Table, change: Quarantined, schema: TableSchema) -> pa.Table:
    """The rows of a change for whose keys nothing newer came."""
    assert change.rows is not None, "its rows are known"
    is_gone = pa.array([mark == "wholly" for mark in change.overtaken])
    gone, ours = row_codes([_keys(change.rows.filter(is_gone), schema), _keys(part, schema)])
    return part.filter(pa.array(~np.isin(ours, gone)))


def _has_unsent(part: pa.Table) -> bool:
    return bool(pc.any(_unsent(part)).as_py())


def _unsent(part: pa.Table) -> pa.ChunkedArray:
    """Which rows leave cells out."""
    return pc.greater(pc.fill_null(pc.list_value_length(part["__unchanged"]), 0), 0)


def _of_the_same_rows(changes: Sequence[Quarantined], schema: TableSchema) -> dict[str, list[str]]:
    """By id, the changes of the same rows as a change, or that may be; the change itself, too."""
    (codes,) = row_codes([_rows_of(changes, schema)])
    unknown = [change.id for change in changes if change.rows is None]
    rows, owners, mine = iter(codes), defaultdict(list), defaultdict(list)
    for change in changes:
        for _ in range(0 if change.rows is None else len(change.rows)):
            code = next(rows)
            owners[code].append(change.id)
            mine[change.id].append(code)
    return {
        change.id: [
            *dict.fromkeys(id_ for code in mine[change.id] for id_ in owners[code]),
            *unknown,
        ]
        for change in changes
    }


def _is_sent_again(batch: pa.Table, known: Mapping[str, str]) -> bool:
    """Whether there is a change that may have been taken before."""
    for partition, mark in known.items():
        old = pc.and_(
            pc.equal(batch["__partition"], partition), pc.less_equal(batch["__position"], mark)
        )
        if pc.any(pc.and_(old, pc.not_equal(batch["__position"], ""))).as_py():
            return True
    return False


def _raised(netted: Netted, rejects: Sequence[Reject]) -> Netted:
    """How far a table's changes are read, those that are put aside among them."""
    marks, times = dict(netted.high_water), dict(netted.newest)
    for reject in rejects:
        if reject.position:
            partition = reject.message.partition
            marks[partition] = max(marks.get(partition, ""), reject.position)
            if reject.source_ms is not None:
                times[partition] = max(times.get(partition, 0), reject.source_ms)
    return replace(netted, high_water=marks, newest=times)


def _place(reject: Reject) -> tuple[str, str, int, int]:
    message = reject.message
    return reject.position, message.partition, message.offset, reject.event or 0


def _order(change: Quarantined) -> tuple[str, int, str, int]:
    return change.position, change.epoch, change.partition, change.offset


def sweep(engine: Engine, names: Collection[RelationId]) -> None:
    """Delete what is of no published quarantine of these tables; between epochs.

    What the epoch before names stays until the next one.
    """
    if engine.unswept is None:
        engine.unswept = {
            name
            for name, state in engine.manifest.source_tables.items()
            if state.quarantine is None and engine.store.quarantined(name).is_dir()
        }
    names = {*names, *engine.unswept}
    if not names:
        return
    engine.unswept = set()
    before = engine.manifests.before(engine.manifest.epoch)
    for name in names:
        now, then = (
            None
            if manifest is None or (table := manifest.tables.get(name)) is None
            else table.quarantine
            for manifest in (engine.manifest, before)
        )
        if then is not None and then != now:
            engine.unswept.add(name)
        engine.quarantine(name).sweep(now, then, engine.lease.check)
