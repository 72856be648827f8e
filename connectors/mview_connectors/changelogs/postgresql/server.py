"""What a PostgreSQL server must have and be for its log to be followed: asked, made, or refused.

Two things are made, with names of ours: a *publication*, the list of tables whose changes are sent,
and a *replication slot*, up to whose place the server keeps its log.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn

from mview.clock import SourceMs
from mview.errors import (
    AwayError,
    ConfigError,
    DataLostError,
    UserError,
    ask_all,
    counted,
    several,
)
from mview.relation import TableName
from mview_connectors import silence
from mview_connectors.databases.postgresql import PostgresqlDatabase

#: Seconds for which transactions are waited for that were open when a load began.
_PATIENCE_S = 60.0
_LOOK_S = 0.1

#: How often a publication is altered when others do that, too: one may make it, one add the table.
_RIVALS = 3

#: Seconds for which another connection may hold the slot: an older run's, until the server notices.
_HELD_S = 30.0

SAFE = "what is published stays as it is; nothing after this place was taken"

_SERVER = """
SELECT current_setting('wal_level'), pg_is_in_recovery(),
    (SELECT rolsuper FROM pg_roles WHERE rolname = current_user),
    (SELECT rolreplication FROM pg_roles WHERE rolname = current_user)
        -- Who may replicate on servers that others run.
        OR EXISTS (SELECT FROM pg_roles r WHERE r.rolname IN ('rds_replication')
            AND pg_has_role(current_user, r.oid, 'member')),
    current_user, has_database_privilege(current_database(), 'CREATE'), current_database(),
    (SELECT system_identifier::text FROM pg_control_system())
"""

#: Slots that there may be and that there are, these ones; and the same of those that are read.
_ROOM = """
SELECT current_setting('max_replication_slots')::int, count(*)::int,
    count(*) FILTER (WHERE slot_name = ANY(%s))::int,
    current_setting('max_wal_senders')::int, (SELECT count(*)::int FROM pg_stat_replication),
    count(*) FILTER (WHERE active AND slot_name = ANY(%s))::int
FROM pg_replication_slots
"""

#: Tables by our names of them, their schemas and their names.
_WANTED = """
FROM unnest(%s::text[], %s::text[], %s::text[]) w(name, schema, relation)
JOIN pg_namespace n ON n.nspname = w.schema
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.relation
"""

_TABLES = f"""
SELECT w.name, c.oid::int8, c.relkind::text, c.relpersistence::text,
    EXISTS (SELECT FROM pg_inherits h WHERE h.inhparent = c.oid), pg_has_role(c.relowner, 'USAGE')
{_WANTED}
"""

_PUBLICATION = """
SELECT p.puballtables, p.pubinsert AND p.pubupdate AND p.pubdelete AND p.pubtruncate,
    pg_has_role(p.pubowner, 'USAGE')
FROM pg_publication p WHERE p.pubname = %s
"""

#: The types that the texts of a column of table `c` are made of: what domains stand on, elements of
#: arrays and ranges, and the parts of composite types.
_TYPES = """
WITH RECURSIVE inner_types(name, type) AS (
    SELECT a.attname, a.atttypid FROM pg_attribute a
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        AND a.atttypid >= 16384 -- those that the server comes with are made of none of users
  UNION
    SELECT s.name, x.type FROM inner_types s JOIN pg_type y ON y.oid = s.type,
        LATERAL (SELECT y.typbasetype UNION ALL SELECT y.typelem UNION ALL
            SELECT r.rngsubtype FROM pg_range r WHERE r.rngtypid = y.oid UNION ALL
            SELECT f.atttypid FROM pg_attribute f WHERE f.attrelid = y.typrelid
                AND f.attnum > 0 AND NOT f.attisdropped) x(type)
    WHERE x.type <> 0
) SELECT name, type FROM inner_types
"""

#: Time, end of the log and its timeline, the slot, and of every table what must stay as it was when
#: it was loaded. Columns of newer versions are looked for in the rows as JSON.
_STATE = f"""
SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::int8,
    (pg_current_wal_flush_lsn() - '0/0')::int8,
    -- The name of its file begins with it, in hexadecimal digits.
    ('x' || left(pg_walfile_name(pg_current_wal_flush_lsn()), 8))::bit(32)::int,
    (SELECT jsonb_build_object(
        'confirmed', (s.confirmed_flush_lsn - '0/0')::int8,
        'kept', (pg_current_wal_flush_lsn() - s.restart_lsn)::int8,
        'status', to_jsonb(s) ->> 'wal_status', 'plugin', s.plugin,
        'database', s.database, 'pid', s.active_pid)
     FROM pg_replication_slots s WHERE s.slot_name = %s),
    (SELECT jsonb_object_agg(w.name, jsonb_build_object(
        'relation', c.oid::int8, 'identity', c.relreplident, 'persistence', c.relpersistence,
        'parent', EXISTS (SELECT FROM pg_inherits h WHERE h.inhparent = c.oid),
        -- Labels of enums by their numbers, by column: rows have the number.
        'labels', (SELECT jsonb_object_agg(l.name, l.labels) FROM (
            SELECT t.name, jsonb_object_agg(e.oid::text, e.enumlabel) AS labels
            FROM ({_TYPES}) t JOIN pg_enum e ON e.enumtypid = t.type
            GROUP BY t.name) l),
        -- Parts of composite types, by column: all rows are printed with those of now.
        'parts', (SELECT jsonb_object_agg(p.name, p.parts) FROM (
            SELECT t.name, jsonb_agg(
                jsonb_build_array(t.type::int8, f.attnum, f.atttypid::int8, f.atttypmod)
                ORDER BY t.type, f.attnum) AS parts
            FROM ({_TYPES}) t JOIN pg_type y ON y.oid = t.type
            JOIN pg_attribute f ON f.attrelid = y.typrelid AND f.attnum > 0 AND NOT f.attisdropped
            GROUP BY t.name) p),
        -- What tells rows apart: a constraint keeps its number where its index is made anew.
        'keys', (SELECT jsonb_agg(jsonb_build_array(
                coalesce((SELECT k.oid::int8 FROM pg_constraint k
                    WHERE k.conindid = i.indexrelid AND k.contype IN ('p', 'u')), 0),
                i.indisprimary,
                (SELECT jsonb_agg(a.attname ORDER BY a.attname) FROM pg_attribute a
                 WHERE a.attrelid = i.indrelid
                    AND a.attnum = ANY((i.indkey::int2[])[0:i.indnkeyatts - 1]))))
            FROM pg_index i
            WHERE i.indrelid = c.oid AND i.indisunique AND i.indpred IS NULL
                AND i.indexprs IS NULL AND i.indimmediate AND i.indisvalid),
        -- Another one when all rows were written anew, which is in no log.
        'file', c.relfilenode::int8,
        -- Also another one where it was altered and put back meanwhile.
        'published', (SELECT jsonb_build_array(h.number, p.xmin::text)
            FROM pg_publication p, LATERAL (SELECT coalesce(
                (SELECT r.oid::int8 FROM pg_publication_rel r
                 WHERE r.prpubid = p.oid AND r.prrelid = c.oid
                    AND to_jsonb(r) ->> 'prqual' IS NULL AND to_jsonb(r) ->> 'prattrs' IS NULL),
                CASE WHEN p.puballtables THEN p.oid::int8 END) AS number) h
            WHERE p.pubname = %s AND h.number IS NOT NULL
                AND p.pubinsert AND p.pubupdate AND p.pubdelete AND p.pubtruncate),
        'columns', (SELECT jsonb_object_agg(a.attname,
                -- The last is another one where it was altered and put back meanwhile.
                jsonb_build_array(a.attnum, a.atttypid::int8, a.atttypmod, a.xmin::text))
            FROM pg_attribute a
            -- Those that the log has.
            WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                AND a.attgenerated = '')))
     {_WANTED})
"""

#: Who writes to tables and has not ended: also what is committed and not visible yet.
_WRITERS = """
SELECT l.virtualtransaction, l.pid, a.xact_start::text, a.usename::text, left(a.query, 80)
FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'relation' AND l.granted AND l.relation = ANY(%s::oid[])
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock',
        'AccessExclusiveLock')
    AND l.pid IS DISTINCT FROM pg_backend_pid()
"""


class Slot(NamedTuple):
    """The slot: up to where the server need not send any more, and bytes of the log it keeps."""

    confirmed: int
    kept: int
    status: str
    plugin: str
    database: str
    pid: int | None


class ServerState(NamedTuple):
    """The server at a moment: its clock, its log's end and timeline, the slot, tables by name."""

    clock: SourceMs
    end: int
    timeline: int
    slot: Slot | None
    tables: Mapping[str, Any]


class PostgresqlServer(PostgresqlDatabase):
    """The server whose log is followed."""

    # --- asking ----------------------------------------------------------------------------------

    @property
    def server(self) -> str:
        """Its address, for messages."""
        return self._server()

    @property
    def section(self) -> str:
        """The connection's place in the configuration, for messages."""
        return f"connections.{self._settings.name}"

    def database(self) -> str:
        """The name of the database, as the server has it."""
        return str(self.query("SELECT current_database()")[0][0])

    def name_of(self, schema: str, table: str) -> str:
        """What we call a table of the log."""
        return str(TableName("" if schema == self._namespace else schema, table))

    def in_the_log(self, table: str) -> TableName:
        """What the log calls a table: its schema and its name."""
        return self._named(table)

    def _wanted(self, tables: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
        """The parameters of _WANTED."""
        named = [self._named(table) for table in tables]
        return list(tables), [name.schema for name in named], [name.table for name in named]

    def state(self, slot: str, publication: str, tables: Sequence[str]) -> ServerState:
        """Everything that may have changed, in one question."""
        ((clock, end, timeline, held, known),) = self.query(
            _STATE, (slot, publication, *self._wanted(tables))
        )
        held = None if held is None else Slot(**held)
        return ServerState(SourceMs(clock), end, timeline, held, known or {})

    def key(self, table: str, keys: Sequence[Sequence[Any]]) -> Sequence[Any] | None:
        """The facts of what tells a table's rows apart, of all its keys; None: it is declared."""
        key = sorted(self._key(table))
        ours = [facts for facts in keys if sorted(facts[2]) == key]
        return min(ours, key=lambda facts: (not facts[1], facts[0] == 0, facts[0]), default=None)

    def identity(self) -> str:
        """What tells a server from others: copies of its files have the same."""
        return str(self.query(_SERVER)[0][-1])

    def check_server(self) -> None:
        """Refuse a server that sends no log, or not to this user.

        All of it at once: one restart is enough, and rights may take another administrator.

        Raises:
            UserError: with what to set or to grant.
        """
        level, standby, superuser, replicates, user, *_ = self.query(_SERVER)[0]
        if standby:
            raise self._server_fault(
                "the server is a standby", "name the primary: a standby's own log is not read"
            )
        faults = []
        if level != "logical":
            faults.append(
                self._server_fault(
                    f"wal_level is {level}",
                    "ALTER SYSTEM SET wal_level = 'logical'; then restart the server (on managed "
                    "servers it is a parameter: rds.logical_replication = 1, "
                    "cloudsql.logical_decoding = on)",
                )
            )
        if not (superuser or replicates):
            faults.append(
                self._server_fault(
                    f"user {user} may not replicate",
                    f"ALTER ROLE {self.quote(user)} REPLICATION (on RDS: GRANT rds_replication TO "
                    f"{self.quote(user)})",
                )
            )
        if faults:
            raise several(faults)

    def room(self, slots: Sequence[str]) -> str:
        """Whether these slots can be there, and be read at the same time; how many there are.

        Others may use connections for replication for some minutes (a base backup): where all slots
        are there that is a caution.

        Raises:
            UserError: with what to raise or to drop, so that those that are missing can be made.
        """
        ((most, used, there, senders, sending, active),) = self.query(
            _ROOM, (list(slots), list(slots))
        )
        missing, idle = len(slots) - there, len(slots) - active
        faults = []
        if used + missing > most:
            faults.append(
                self._server_fault(
                    f"{used} of {most} replication slots are in use, and {missing} more needed",
                    f"set max_replication_slots to {used + missing} or more and restart the "
                    "server, or drop one that nobody needs: SELECT slot_name, active FROM "
                    "pg_replication_slots",
                )
            )
        lacks_senders = sending + idle > senders
        lack = (
            f"{sending} of {senders} connections for replication are in use, and {idle} more needed"
        )
        if lacks_senders and missing:
            faults.append(
                self._server_fault(
                    lack,
                    f"set max_wal_senders to {sending + idle} or more and restart the server",
                )
            )
        if faults:
            raise several(faults)
        if lacks_senders:
            return f"WARNING: {lack}: end some, or set max_wal_senders to {sending + idle} or more"
        made = f", {missing} of them made by the first run" if missing else ""
        return f"{counted(len(slots), 'slot')}{made}; {used} of {most} are in use"

    def _server_fault(self, got: str, hint: str) -> ConfigError:
        return ConfigError(
            f"PostgreSQL at {self.server} cannot send its log of changes",
            where=self.section,
            got=got,
            safe="nothing was changed at the source",
            hint=hint,
        )

    def check_tables(self, tables: Sequence[str]) -> None:
        """Refuse tables of which no log has all changes.

        Raises:
            UserError: with what to do, for all of them.
        """
        rows = {row[0]: row for row in self.query(_TABLES, self._wanted(tables))}
        there = [name for name in tables if name in rows]
        ask_all(partial(self._refuse_table, name, *rows[name][2:5]) for name in there)

    def check_publication(self, publication: str, tables: Sequence[str]) -> list[str]:
        """Refuse a publication that lacks something that we may not add.

        Returns:
            The tables that are not published yet.

        Raises:
            ConfigError: with what to do.
        """
        rows = {row[0]: row for row in self.query(_TABLES, self._wanted(tables))}
        state = self.state("", publication, tables)
        left = [name for name in tables if name in rows and not state.tables[name]["published"]]
        there = self.query(_PUBLICATION, (publication,))
        listed = ", ".join(self._regclass(name) for name in left or tables)
        if there and not there[0][1]:
            self._refuse_publication(
                publication,
                "it leaves out some of insert, update, delete, truncate",
                f"ALTER PUBLICATION {publication} SET (publish = 'insert, update, delete, "
                "truncate')",
            )
        owned = all(rows[name][5] for name in left)
        if left and there and not (there[0][2] and owned):
            self._refuse_publication(
                publication,
                f"it has no, or only a part of, {', '.join(left)}",
                f"as the owner of the tables: ALTER PUBLICATION {publication} ADD TABLE {listed} "
                "(without WHERE and list of columns)",
            )
        *_, may_create, database, _ = self.query(_SERVER)[0]
        if left and not there and not (owned and may_create):
            self._refuse_publication(
                publication,
                "it does not exist, and this user may not make it: that takes the ownership of "
                f"the tables, and CREATE on database {database}",
                f"as the owner of the tables: CREATE PUBLICATION {publication} FOR TABLE {listed}",
            )
        return left

    def _refuse_table(self, name: str, kind: str, persistence: str, parent: bool) -> None:
        place, relation = self.place(name), self._regclass(name)
        what = hint = ""
        if kind == "p":
            what = "is partitioned: what is detached, dropped or truncated as a partition is not "
            what += "in the log"
            hint = "read its partitions, one by one"
        elif parent:
            what = "has tables that inherit from it: their rows are read with it, and their "
            what += "changes are others in the log"
            hint = "read its children, or write SELECT … FROM ONLY into a table of its own"
        elif persistence != "p":
            what = "is unlogged or temporary: the log has no changes of it"
            hint = f"ALTER TABLE {relation} SET LOGGED"
        else:
            what, hint = self.identity_fault(name)
        if what:
            raise UserError(
                f"table {place} {what}", safe="nothing was changed at the source", hint=hint
            )

    def _refuse_publication(self, name: str, got: str, hint: str) -> NoReturn:
        raise ConfigError(
            f"publication {name} does not send all changes",
            where=self.section,
            got=got,
            safe="nothing was changed at the source",
            hint=hint,
        )

    # --- making ----------------------------------------------------------------------------------

    def publish(self, publication: str, tables: Sequence[str]) -> None:
        """Add tables to the publication, which is made if it is not there.

        Another reader of the store may do the same at this moment: then it is looked again.
        """
        from psycopg import errors

        for tries_left in reversed(range(_RIVALS)):
            if not (left := self.check_publication(publication, tables)):
                return
            listed = ", ".join(self.relation(name) for name in left).replace("%%", "%")
            there = self.query(_PUBLICATION, (publication,))
            verb = "ALTER" if there else "CREATE"
            sql = f"{verb} PUBLICATION {publication} {'ADD' if there else 'FOR'} TABLE {listed}"
            with self._connection("making a publication") as connection:
                driver: Any = connection.driver_connection
                try:
                    driver.execute(sql)
                    return
                except (errors.DuplicateObject, errors.UniqueViolation):
                    if not tries_left:
                        raise

    def make_slot(self, slot: str) -> None:
        """Make the slot: it begins where every transaction of now has ended.

        Raises:
            AwayError: transactions stay open.
        """
        import psycopg

        limit = int(_PATIENCE_S * 1000)
        with self._connection("making a replication slot") as connection:
            driver: Any = connection.driver_connection
            driver.execute(f"SET statement_timeout TO {limit}")
            self._wait(driver, 2 * _PATIENCE_S)
            try:
                driver.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
            except psycopg.errors.QueryCanceled:
                self._open_transactions("a replication slot begins when all that write have ended")
            driver.execute("SET statement_timeout TO 0")

    def drop_slot(self, slot: str) -> None:
        """Drop the slot: the server keeps no log for it any more.

        Raises:
            AwayError: another connection holds it.
        """
        self._wait_until_free(slot)
        self.query(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            " WHERE slot_name = %s",
            (slot,),
        )

    def _wait_until_free(self, slot: str) -> None:
        until = time.monotonic() + _HELD_S
        sql = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s"
        while (held := self.query(sql, (slot,))) and held[0][0] is not None:
            if time.monotonic() > until:
                raise AwayError(
                    f"replication slot {slot} is used by another connection",
                    where=self.section,
                    got=f"process {held[0][0]} of the server {self.server}",
                    safe="nothing was read",
                    hint="end the other reader: each run needs a slot of its own (options: slot); "
                    "then run the same command again",
                )
            time.sleep(_LOOK_S)

    def wait_for_writers(self, tables: Sequence[str]) -> None:
        """Wait until every transaction has ended that has written to these tables up to now.

        What such a one wrote may be missing in the log (the table was not published then), and is
        in no chunk that is read before it is visible.

        Raises:
            AwayError: one stays open.
        """
        numbers = [row[1] for row in self.query(_TABLES, self._wanted(tables))]
        first = {row[0] for row in self.query(_WRITERS, (numbers,))}
        until = time.monotonic() + _PATIENCE_S
        while left := [row for row in self.query(_WRITERS, (numbers,)) if row[0] in first]:
            if time.monotonic() > until:
                _, pid, since, user, query = left[0]
                self._open_transactions(
                    f"process {pid} of {user} has written to them since {since}: {query}"
                )
            time.sleep(_LOOK_S)

    def _open_transactions(self, got: str) -> NoReturn:
        raise AwayError(
            f"transactions stay open at PostgreSQL {self.server}: no load can begin",
            where=self.section,
            got=got,
            safe="nothing is lost; no table was read",
            hint="end them (SELECT pid, xact_start, state, query FROM pg_stat_activity WHERE "
            "backend_xid IS NOT NULL; SELECT gid FROM pg_prepared_xacts), then run the same "
            "command again",
        )

    # --- following -------------------------------------------------------------------------------

    @property
    def _patience_s(self) -> float:
        return min(super()._patience_s, silence.QUESTION_S)

    def replication(self) -> Any:
        """A connection for the log; the texts of values are the same as in a snapshot."""
        url = self._url()
        arguments, options = self._connected().dialect.create_connect_args(url)
        connection = self._connect(
            *arguments, **{**options, **self._options(), "replication": "database"}
        )
        self._prepare(connection)
        return connection

    def open_replication(self, slot: str) -> Any:
        """The same, when nobody else holds the slot.

        Raises:
            AwayError: the server does not answer, or the slot is held.
        """
        self._wait_until_free(slot)
        try:
            return self.replication()
        except self._driver_errors() as error:
            self._fail(error, "connecting")


def lost(server: str, slot: str, got: str) -> DataLostError:
    """The error of changes that the server does not have any more."""
    return DataLostError(
        f"changes of PostgreSQL {server} are gone before they were read",
        where=f"replication slot {slot}",
        got=got,
        safe=SAFE,
        hint="`mview drop` the tables of this connection and run again: they are loaded anew, by a "
        "new slot",
    )
