"""What a MySQL or MariaDB server must have and be for its binary log to be followed."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import cached_property, partial
from typing import Any, NamedTuple, NoReturn

from mview.clock import SourceMs
from mview.errors import AwayError, ConfigError, DataLostError, UserError, ask_all
from mview.relation import TableName
from mview_connectors import silence
from mview_connectors.changelogs.mysql.events import (
    file_number,
    gtid_text,
    gtids_of,
    newest_of,
    passed,
    rotated_to,
)
from mview_connectors.changelogs.mysql.layouts import PRIMARY, Facts
from mview_connectors.databases.mysql import DeniedError, MysqlDatabase, is_denied
from mview_connectors.formats.ownlog.binlog import CHARSETS
from mview_connectors.pool import driver_text

#: Seconds for which transactions are waited for that were open when a load began.
_PATIENCE_S = 60.0
#: Between two looks at them.
_LOOK_S = 0.2

#: Seconds without a word after which the server counts as gone, and between two of its words.
_SILENCE_S, _ALIVE_S = 30, 0.5

SAFE = "what is published stays as it is; nothing after this place was taken"

#: COM_BINLOG_DUMP: the place, how, who, the file. How: to end where the log ends.
_DUMP = 0x12
_dump = struct.Struct("<IHI").pack
_AT_ONCE = 1
_FORMAT, _HEADER = 15, 19
_FIRST = 4

#: Bytes at the end of an event, where it has a checksum.
_CHECKSUM = 4

#: Error of a log that cannot be sent as it was asked for.
_NOT_SENT = 1236

#: Settings of MariaDB by which a replica leaves out, or renames, what it is sent.
_FILTERS = (
    *("replicate_do_db", "replicate_do_table", "replicate_wild_do_table", "replicate_rewrite_db"),
    *("replicate_ignore_db", "replicate_ignore_table", "replicate_wild_ignore_table"),
)

_FACTS = """
SELECT TABLE_NAME, COLUMN_NAME, COLUMN_TYPE, CHARACTER_SET_NAME, IS_NULLABLE = 'YES', EXTRA
FROM information_schema.COLUMNS
WHERE TABLE_SCHEMA = %s ORDER BY TABLE_NAME, ORDINAL_POSITION
"""

#: Parts of unique indexes; a text of which a part counts has a length.
_UNIQUE = """
SELECT TABLE_NAME, INDEX_NAME, COLUMN_NAME, SUB_PART FROM information_schema.STATISTICS
WHERE TABLE_SCHEMA = %s AND NON_UNIQUE = 0 ORDER BY TABLE_NAME, INDEX_NAME, SEQ_IN_INDEX
"""

_VERSIONED = """
SELECT {number} FROM information_schema.TABLES
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND TABLE_TYPE = 'SYSTEM VERSIONED'
"""

#: Who has written and not ended: also what is in the log and not visible yet, or prepared.
_WRITERS = """
SELECT t.trx_id, t.trx_mysql_thread_id, CAST(t.trx_started AS CHAR), LEFT(t.trx_query, 80)
FROM information_schema.INNODB_TRX t WHERE t.trx_rows_modified > 0
"""

#: Settings by which changes are not, or not wholly, in the log as rows: what each must be.
_SETTINGS = {
    "binlog_format": "ROW",
    "binlog_row_image": "FULL",
    "log_bin_compress": "OFF",
    "binlog_transaction_compression": "OFF",
    "binlog_row_value_options": "",
}

#: Of them, those whose default leaves out changes at some versions: who begins a log sets them.
_TOLD_WITH_LOG = ("binlog_format", "binlog_row_image")


class MysqlState(NamedTuple):
    """The server at a moment: its clock, the end of its log, and the columns of the tables.

    Attributes:
        server: what tells it from others, as far as it has such a thing.
        clock: its clock, in milliseconds, before the end was asked for.
        end: the end of its log, as one number; see `events`.
        log: the log's name: that of its files without their numbers.
        tables: by name, the columns in order; see `Facts` of `layouts`.
        keys: by name, the columns of each unique index, by its name.
    """

    server: str
    clock: SourceMs
    end: int
    log: str
    tables: dict[str, list[list[Any]]]
    keys: dict[str, dict[str, list[str]]]


class MysqlServer(MysqlDatabase):
    """The server whose binary log is followed."""

    # --- asking ----------------------------------------------------------------------------------

    @property
    def server(self) -> str:
        """Its address, for messages."""
        return self._server()

    @property
    def section(self) -> str:
        """The connection's place in the configuration, for messages."""
        return f"connections.{self._settings.name}"

    @cached_property
    def variables(self) -> dict[str, str]:
        """Its settings, as they were when it was asked first."""
        return {name.lower(): value for name, value in self.query("SHOW GLOBAL VARIABLES")}

    @property
    def folds(self) -> bool:
        """Whether names of tables differ by their letters' case only for people."""
        return self.variables["lower_case_table_names"] != "0"

    @property
    def _identity_sql(self) -> str:
        return (
            f"SELECT @@GLOBAL.{'server_uuid' if 'server_uuid' in self.variables else 'server_id'}"
        )

    def _identity(self) -> str:
        return str(self.query(self._identity_sql)[0][0])

    def another(self, identity: str) -> AwayError:
        """The error of another server that has begun to answer at the address."""
        return AwayError(
            f"another server than before answers at {self.server}",
            where=self.section,
            got=f"its identifier is {identity}",
            safe="nothing is lost; nothing of it was taken yet",
            hint="run the same command again: it asks this server for what comes next",
        )

    def gtids_at(self, log: str, place: int) -> str:
        """The newest transactions before a place of MariaDB's log; empty: it has no such names.

        Of each domain and server one; that which is the newest of its domain stands last.
        """
        if not self._is_mariadb:
            return ""
        where = self.file(log, place), place & 0xFFFFFFFF
        ((text,),) = self.query("SELECT BINLOG_GTID_POS(%s, %s)", where)
        newest = gtids_of(str(text or ""))
        numbers = {gtid.domain: gtid.number for gtid in newest}
        ((had,),) = self.query("SELECT @@GLOBAL.gtid_binlog_state")
        before = [g for g in gtids_of(str(had or "")) if g.number <= numbers.get(g.domain, -1)]
        return gtid_text(passed(before, newest))

    def differs(self, gtids: str) -> str:
        """Why this server's log may be another one up to these transactions; empty: it is the same.

        Args:
            gtids: the newest that were read of another server; see `gtids_at`.
        """
        if not self._is_mariadb or not gtids:
            return "no GTID of MariaDB says where it has what was read"
        if self.variables.get("gtid_strict_mode", "OFF").upper() != "ON":
            return "its gtid_strict_mode is OFF: transactions may have another order in its log"
        if filters := [name for name in _FILTERS if self.variables.get(name)]:
            return f"it leaves out what it is sent: {filters[0]} = {self.variables[filters[0]]}"
        ((text,),) = self.query("SELECT @@GLOBAL.gtid_binlog_state")
        read = {(gtid.domain, gtid.server): gtid for gtid in gtids_of(gtids)}
        newest, had = newest_of(gtids_of(gtids)), gtids_of(str(text or ""))
        numbers = {(gtid.domain, gtid.server): gtid.number for gtid in had}
        for gtid in newest.values():
            if numbers.get((gtid.domain, gtid.server), -1) < gtid.number:
                return f"transaction {gtid}, which was read, is not in its log"
        for gtid in had:
            last, ours = newest.get(gtid.domain), read.get((gtid.domain, gtid.server))
            if last is None or gtid.server == last.server or gtid.number > last.number:
                continue  # it comes after what was read, and is sent
            if ours is None or ours.number < gtid.number:
                return f"its log has transaction {gtid}, which the server before did not have"
        return ""

    def state(self, tables: Sequence[str]) -> MysqlState:
        """Everything that may have changed.

        Raises:
            ConfigError: a right is missing, or there is no log.
        """
        self._refuse_tidb()
        server = self._identity()
        clock = self.clock()
        file, place, *_ = self._log_end()
        columns: dict[str, list[list[Any]]] = {}
        keys: dict[str, dict[str, list[str]]] = {}
        wanted = {self._named(table): table for table in tables}
        for schema in dict.fromkeys(named.schema for named in wanted):
            for name, column, kind, charset, nullable, extra in self.query(_FACTS, (schema,)):
                if (table := wanted.get(TableName(schema, name))) is not None:
                    facts = Facts(column, kind, charset, bool(nullable), extra)
                    columns.setdefault(table, []).append([*facts])
            for name, index, column, length in self.query(_UNIQUE, (schema,)):
                if (table := wanted.get(TableName(schema, name))) is not None:
                    whole = length is None or index == PRIMARY
                    keys.setdefault(table, {}).setdefault(index, []).append(column if whole else "")
        end = (file_number(file) << 32) + int(place)
        if (now := self._identity()) != server:
            raise self.another(now)
        return MysqlState(server, clock, end, file.rpartition(".")[0], columns, keys)

    def key(self, table: str, indexes: Mapping[str, Sequence[str]]) -> list[Any] | None:
        """The index that tells a table's rows apart, and its columns; None: the key is declared.

        Args:
            table: its name.
            indexes: the columns of its unique indexes, by their names.
        """
        key = set(self._key(table))
        ours = [[name, [*columns]] for name, columns in indexes.items() if {*columns} == key]
        return min(ours, key=lambda index: (index[0] != PRIMARY, index), default=None)

    def _log_end(self) -> tuple[Any, ...]:
        end = self._log_status()
        return end[0] if end else self._refuse_no_log()

    def _log_status(self) -> list[tuple[Any, ...]]:
        is_new = "mariadb" not in self._version.lower() and self._numbers >= (8, 4)
        sql = "SHOW BINARY LOG STATUS" if is_new else "SHOW MASTER STATUS"
        return self._allowed(sql, "BINLOG MONITOR" if self._is_mariadb else "REPLICATION CLIENT")

    def _refuse_no_log(self) -> NoReturn:
        # Whoever starts it anew writes all settings down in one go.
        settings = " and ".join(
            f"{name} = {_SETTINGS[name] or repr('')}"
            for name in _SETTINGS
            if name in _TOLD_WITH_LOG or not self._is_set(name)
        )
        self._refuse_server(
            "it writes no binary log",
            f"start it with log_bin and server_id, and with {settings}, in its configuration",
        )

    @property
    def _version(self) -> str:
        return self.variables["version"]

    @property
    def _is_mariadb(self) -> bool:
        return "mariadb" in self._version.lower()

    @property
    def _numbers(self) -> tuple[int, ...]:
        return tuple(int(part) for part in self._version.split("-")[0].split(".")[:2])

    def _allowed(self, sql: str, right: str) -> list[tuple[Any, ...]]:
        try:
            return self.query(sql)
        except DeniedError:
            self._refuse_right(right)

    def _refuse_right(self, right: str) -> NoReturn:
        user = self.query("SELECT CURRENT_USER()")[0][0]
        name, _, host = user.rpartition("@")
        self._refuse_server(
            f"user {user} has not the right {right}", f"GRANT {right} ON *.* TO '{name}'@'{host}'"
        )

    def databases_of(self, tables: Iterable[str]) -> Mapping[str, tuple[str, str]]:
        """By our names of tables, their databases and their names there."""
        return {table: self._named(table) for table in tables}

    def check_server(self, tables: Sequence[str]) -> None:
        """Refuse a server that sends no log, or not all of it, or not to this user.

        All of it at once: one restart is enough, and rights may take another administrator.

        Args:
            tables: that are read.

        Raises:
            UserError: with what to set or to grant.
        """
        self._refuse_tidb()
        ask_all(
            [
                self._check_log,
                partial(self._check_filters, tables),
                *(partial(self._check_setting, name) for name in _SETTINGS if self._has_log),
                self._check_primary,
                self._writers,
                self._check_replication,
            ]
        )

    def _refuse_tidb(self) -> None:
        if "tidb" in self._version.lower():
            raise ConfigError(
                f"{self.server} is TiDB, which writes no binary log",
                where=self.section,
                safe="nothing was changed at the source",
                hint="let TiCDC send its changes to Kafka, and set source: kafka and format: ticdc "
                "(docs/formats/ticdc.md); `mview init tidb://…` writes such a file",
            )

    def _check_log(self) -> None:
        """By a setting that everybody may see: who has no right yet is told it with the rights."""
        if not self._has_log:
            self._refuse_no_log()

    @property
    def _has_log(self) -> bool:
        return self.variables["log_bin"].upper() == "ON"

    def _is_set(self, name: str) -> bool:
        """Whether one of `_SETTINGS` is as it must be, or the server knows no such thing."""
        return self.variables.get(name, _SETTINGS[name]).upper() == _SETTINGS[name]

    def _check_setting(self, name: str) -> None:
        if not self._is_set(name):
            self._refuse_server(
                f"{name} = {self.variables[name]}",
                f"SET GLOBAL {name} = '{_SETTINGS[name]}', and the same in its configuration; "
                "clients that are connected keep the old setting until they connect anew",
            )

    def _check_filters(self, tables: Sequence[str]) -> None:
        if not (end := self._log_status()):
            return  # see `_check_log`
        _, _, only, without, *_ = end[0]
        listed = [name.strip() for name in only.split(",") if name.strip()]
        left = [name.strip() for name in without.split(",")]
        for database in dict.fromkeys(self._named(table).schema for table in tables):
            if (listed and database not in listed) or database in left:
                self._refuse_server(
                    f"binlog_do_db = {only or '(none)'}, binlog_ignore_db = {without or '(none)'}",
                    f"let it write the log of {database}: change them in its configuration and "
                    "restart it",
                )

    def _check_primary(self) -> None:
        right = "REPLICA MONITOR" if self._is_mariadb else "REPLICATION CLIENT"
        is_old = not self._is_mariadb and self._numbers < (8, 4)
        word = "SLAVE" if is_old or self._is_mariadb else "REPLICA"
        is_replica = self._allowed(f"SHOW {word} STATUS", right)
        passes_on = self.variables.get("log_slave_updates") or self.variables.get(
            "log_replica_updates", "ON"
        )
        if is_replica and passes_on.upper() not in ("ON", "1"):
            self._refuse_server(
                "it is a replica that does not write down what it is sent",
                "name the primary, or set log_slave_updates = ON (log_replica_updates) and restart",
            )

    def _check_replication(self) -> None:
        """Refuse a user who may not be sent the log, also where nobody knows where that ends."""
        from pymysql.err import MySQLError

        try:
            state = self.state(())
        except UserError:  # which says so itself
            state = None
        if state is not None:
            self.birth(state)
            return
        # No server has a file of this name: who may be sent the log is told so.
        nowhere = self.open_replication(self._identity(), "none", _FIRST, 0, _AT_ONCE)
        with closing(nowhere) as connection:
            try:
                next(events_of(connection), None)
            except MySQLError as error:
                if is_denied(error):
                    self._refuse_right("REPLICATION SLAVE")

    def _refuse_server(self, got: str, hint: str) -> NoReturn:
        raise ConfigError(
            f"{'MariaDB' if self._is_mariadb else 'MySQL'} at {self.server} cannot send its log of "
            "changes",
            where=self.section,
            got=got,
            safe="nothing was changed at the source",
            hint=hint,
        )

    def check_tables(
        self, tables: Sequence[str], is_used: Callable[[str, str], bool] = lambda *_: True
    ) -> None:
        """Refuse tables whose changes the log has not all.

        Args:
            tables: their names.
            is_used: whether a column of a table is read.

        Raises:
            UserError: with what to do, for all of them.
        """
        columns = self.state(tables).tables
        asked = " UNION ALL ".join(_VERSIONED.format(number=n) for n in range(len(tables)))
        names = [part for name in tables for part in self._named(name)]
        versioned = {int(number) for (number,) in self.query(asked, names)} if tables else set()
        ask_all(
            partial(
                self._refuse_table,
                name,
                [column for column in columns.get(name, ()) if is_used(name, str(column[0]))],
                number in versioned,
            )
            for number, name in enumerate(tables)
        )

    def _refuse_table(self, name: str, columns: Sequence[Sequence[Any]], versioned: bool) -> None:
        what = hint = ""
        relation = self.relation(name)
        self.check_cascades(name)
        if versioned:
            what = "is system-versioned: its log has the rows that are history, too"
            hint = f"ALTER TABLE {relation} DROP SYSTEM VERSIONING"
        for column, kind, charset, *_ in columns:
            if charset is not None and charset not in CHARSETS:
                what = f"has column {column!r} in the character set {charset}"
                hint = f"ALTER TABLE {relation} CONVERT TO CHARACTER SET utf8mb4"
            elif "compressed" in str(kind).lower().partition("/*")[2]:
                what = f"has column {column!r} that is compressed"
                hint = f"ALTER TABLE {relation} MODIFY the column without COMPRESSED"
        if what:
            raise UserError(
                f"table {self.place(name)} {what}",
                safe="nothing was changed at the source",
                hint=hint.replace("%%", "%"),
            )

    def _writers(self) -> list[tuple[Any, ...]]:
        return self._allowed(_WRITERS, "PROCESS")

    def wait_for_writers(self) -> None:
        """Wait until every transaction has ended that has written something up to now.

        The log has it before others can see it: what one has written may stand before the place at
        which a load begins, and be in no chunk that is read before it is visible.

        Raises:
            AwayError: one stays open.
        """
        # The server gathers them anew only when nobody has asked for a tenth of a second.
        time.sleep(_LOOK_S)
        first = {row[0] for row in self._writers()}
        until = time.monotonic() + _PATIENCE_S
        while left := [row for row in self._writers() if row[0] in first]:
            if time.monotonic() > until:
                _, thread, since, query = left[0]
                raise AwayError(
                    f"transactions stay open at {self.server}: no load can begin",
                    where=self.section,
                    got=f"connection {thread} has written since {since}: {query or 'idle now'}",
                    safe="nothing is lost; no table was read",
                    hint="end them (SELECT trx_mysql_thread_id, trx_started, trx_query FROM "
                    "information_schema.INNODB_TRX; XA RECOVER), then run the same command again",
                )
            time.sleep(_LOOK_S)

    # --- following -------------------------------------------------------------------------------

    @property
    def _patience_s(self) -> float:
        return min(super()._patience_s, silence.QUESTION_S)

    def file(self, log: str, end: int) -> str:
        """The name of the file of a place."""
        return f"{log}.{end >> 32:06d}"

    def _replication(
        self, identity: str, file: str, place: int, number: int, how: int, after: str
    ) -> Any:
        url = self._url()
        dialect = self._connected().dialect
        arguments, options = dialect.create_connect_args(url)
        connection: Any = self._connect(*arguments, **{**options, **self._options()})
        try:
            self._prepare(connection)
            silence.wait_mysql(connection, _SILENCE_S)
            alive = int(_ALIVE_S * 1_000_000_000)
            with connection.cursor() as cursor:
                for who in ("master", "source"):
                    cursor.execute(f"SET @{who}_binlog_checksum = @@GLOBAL.binlog_checksum")
                    cursor.execute(f"SET @{who}_heartbeat_period = {alive}")
                cursor.execute("SET @mariadb_slave_capability = 4")
                cursor.execute(self._identity_sql)
                if (now := str(cursor.fetchone()[0])) != identity:
                    raise self.another(now)
                if after:
                    cursor.execute("SET @slave_connect_state = %s", (after,))
                    cursor.execute("SET @slave_gtid_strict_mode = 1")
            connection._execute_command(_DUMP, _dump(place, how, number) + file.encode())
        except BaseException:
            connection.close()
            raise
        return connection

    def open_replication(
        self,
        identity: str,
        file: str,
        place: int,
        number: int,
        how: int = 0,
        after: str = "",
    ) -> Any:
        """A connection by which the log comes, from a place on.

        Args:
            identity: which server it must be.
            file: the name of its file.
            place: the byte in it.
            number: of this reader, among the server's replicas.
            how: flags.
            after: the newest transaction of each domain that was read; not empty: the place is
                where the server has these.

        Raises:
            AwayError: the server does not answer, or another one does.
            ConfigError: the user may not.
        """
        try:
            return self._replication(identity, file, place, number, how, after)
        except self._driver_errors() as error:
            self._fail(error, "connecting")

    def open_after(self, identity: str, gtids: str, number: int) -> tuple[Any, str]:
        """A connection by which the log comes after these transactions, and the file that it is in.

        Raises:
            DataLostError: the server has not all that came after them.
        """
        from pymysql.err import MySQLError

        after = gtid_text(newest_of(gtids_of(gtids)).values())
        connection = self.open_replication(identity, "", _FIRST, number, after=after)
        try:
            event = next(events_of(connection))  # made up by the server, to say where it begins
        except MySQLError as error:
            connection._force_close()
            if error.args[:1] == (_NOT_SENT,):
                raise lost(self.server, f"after {after}", driver_text(error)) from error
            self._fail(error, "reading its log")
        if self.variables["binlog_checksum"].upper() != "NONE":
            event = event[:-_CHECKSUM]
        return connection, rotated_to(event)[0]

    def birth(self, state: MysqlState) -> int:
        """When the file was begun in which the log ends, in seconds: others have other times."""
        from pymysql.err import MySQLError

        file = self.file(state.log, state.end)
        with closing(self.open_replication(state.server, file, _FIRST, 0, _AT_ONCE)) as connection:
            try:
                for event in events_of(connection):
                    if event[4] == _FORMAT:
                        return int.from_bytes(event[:4], "little")
            except MySQLError as error:
                if is_denied(error):
                    self._refuse_right("REPLICATION SLAVE")
                self._fail(error, "reading its log")
        raise lost(self.server, file, "it has no beginning")


def events_of(connection: Any) -> Iterator[bytes]:
    """The events that a connection is sent, until the server ends."""
    while True:
        packet = connection._read_packet()
        data = packet.get_all_data()
        if packet.is_eof_packet():
            return
        yield data[1:]


def lost(server: str, place: str, got: str) -> DataLostError:
    """The error of changes that the server does not have any more."""
    return DataLostError(
        f"changes of {server} are gone before they were read",
        where=f"binary log {place}",
        got=got,
        safe=SAFE,
        hint="`mview drop` the tables of this connection and run again: they are loaded anew; let "
        "the server keep its log for longer (binlog_expire_logs_seconds)",
    )
