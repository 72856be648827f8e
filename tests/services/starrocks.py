"""A conformance server for StarRocks: transaction Stream Load and the MySQL protocol.

No StarRocks cluster can be run here. This speaks its protocol as the sources of its front end and
back end and its documentation tell it: a leader FE, a follower FE that sends all on to the leader,
a BE that holds what is being loaded, labels and their states, time-outs, and the texts as they are
spelled there. Loads are applied for real, see `starrocks_tables`. Faults are planned per operation.
The vendor's own client is run against it, see test_starrocks_client.py.

`python -m tests.services.starrocks` runs one in a process of its own, for measurements.
"""

from __future__ import annotations

import base64
import os
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

import orjson

from tests.services.mysql_wire import MysqlServer
from tests.services.process import free_port
from tests.services.starrocks_tables import Loaded, Tables

_PASSWORD_VARIABLE = "MVIEW_TEST_STARROCKS_PASSWORD"
#: Who may come in.
USER, PASSWORD = "loader", "starrocks-of-the-tests"

#: Headers that all loads of a transaction must have alike.
_LOADING = (
    "format",
    "strip_outer_array",
    "strict_mode",
    "max_filter_ratio",
    "columns",
    "jsonpaths",
)

#: Bytes of JSON in one transaction, unless `ignore_json_size` is set.
JSON_BYTES = 100 << 20

Answer = dict[str, Any]


@dataclass
class Transaction:
    """What an FE knows of a transaction."""

    id: int
    label: str
    place: tuple[str, str]
    until: float
    state: str = "PREPARE"
    reason: str = ""
    loaded: Loaded = field(default_factory=lambda: Loaded([], [], []))


@dataclass
class Context:
    """What a BE knows of one that is being loaded."""

    transaction: Transaction
    headers: tuple[str | None, ...] | None = None
    objects: list[Any] = field(default_factory=list)
    size: int = 0


class DropError(Exception):
    """The connection is closed without an answer."""


#: before: instead of the operation; after: when it is done. What it gives is answered instead.
Fault = tuple[Literal["before", "after"], Callable[[], Answer]]


def drop() -> Answer:
    """A fault: no answer."""
    raise DropError


def hang(seconds: float) -> Callable[[], Answer]:
    """A fault: no answer for so long, then none."""

    def wait() -> Answer:
        time.sleep(seconds)
        raise DropError

    return wait


def says(status: str, message: str, **more: Any) -> Callable[[], Answer]:
    """A fault: HTTP 200 with this."""
    return lambda: {"Status": status, "Message": message, **more}


def http_error(status: int, text: str) -> Callable[[], Answer]:
    """A fault: an HTTP status and a text that is no JSON."""
    return lambda: {"_http": status, "_text": text}


def sends_to(url: str) -> Callable[[], Answer]:
    """A fault: a redirect."""
    return lambda: {"_http": 307, "_location": url}


class StarrocksServer:
    """A cluster of a leader FE, a follower FE and a BE.

    Attributes:
        documented: whether texts are those of the documentation, or those of newer sources.
        aborts_live_labels: whether `begin` on a label that is being loaded aborts it, as older
            servers do, or is refused.
        publishes: whether what is committed becomes visible.
        log: operations that were asked for, with their labels.
    """

    def __init__(self, ports: tuple[int, ...] = (), tls: ssl.SSLContext | None = None) -> None:
        self._scheme = "http" if tls is None else "https"
        self.documented = False
        self.aborts_live_labels = False
        self.publishes = True
        self.log: list[tuple[str, str]] = []
        self.tables = Tables()
        self._lock = threading.RLock()
        self._transactions: dict[tuple[str, str], Transaction] = {}
        self._ids = count(9001)
        self._contexts: dict[str, Context] = {}
        self._faults: list[tuple[str, Fault]] = []
        self._now = 0.0
        self._names = count(1)
        os.environ[_PASSWORD_VARIABLE] = PASSWORD
        self.leader, self.follower, self.backend, self.query_port = ports or tuple(
            free_port() for _ in range(4)
        )
        kinds = ((self.leader, "leader"), (self.follower, "follower"), (self.backend, "backend"))
        self._servers: list[Any] = [_Http(port, self, kind, tls) for port, kind in kinds]
        self._servers.append(MysqlServer(self.query_port, USER, PASSWORD, self.tables.session, tls))
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        """The follower FE: everything is sent on at least once."""
        return f"{self._scheme}://127.0.0.1:{self.follower}"

    def settings(self, database: str) -> dict[str, Any]:
        """Keyword arguments of StarrocksSettings."""
        return {
            "type": "starrocks",
            "url": self.url,
            "query_port": self.query_port,
            "user": USER,
            "password": f"${{env:{_PASSWORD_VARIABLE}}}",
            "database": database,
            "timeout": "20s",
        }

    @property
    def credentials(self) -> tuple[str, str]:
        """User and password."""
        return USER, PASSWORD

    def stop(self) -> None:
        """End it."""
        for server in self._servers:
            server.shutdown()
            server.server_close()
        self.tables.close()

    @contextmanager
    def new_database(self) -> Iterator[str]:
        """The name of a fresh database."""
        name = f"shop{next(self._names)}"
        self.tables.create_database(name)
        yield name

    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows of a statement, as a reader who is not the connector has them: texts."""
        result = self.tables.execute(sql)
        return [] if result is None else [tuple(row) for row in result.rows]

    # --- what tests do to it ---------------------------------------------------------------------

    def fault(
        self, operation: str, when: Literal["before", "after"], act: Callable[[], Answer]
    ) -> None:
        """Plan a fault for the next such operation: begin, load, …, state, redirect."""
        self._faults.append((operation, (when, act)))

    @property
    def faults(self) -> list[str]:
        """Operations whose faults were not hit yet."""
        return [operation for operation, _ in self._faults]

    def restart_backend(self) -> None:
        """The BE forgets what is being loaded; what is prepared stays."""
        self._contexts.clear()

    def forget_labels(self) -> None:
        """As after `label_keep_max_second`: labels of what is decided are not known any more."""
        with self._lock:
            for place, transaction in list(self._transactions.items()):
                if transaction.state in ("VISIBLE", "ABORTED"):
                    del self._transactions[place]

    def advance(self, seconds: float) -> None:
        """Let time go by."""
        self._now += seconds

    def publish(self) -> None:
        """Show what was committed, from now on at once."""
        with self._lock:
            self.publishes = True
            for transaction in self._transactions.values():
                self._publish(transaction)

    def state(self, database: str, label: str) -> str:
        """What a label is."""
        return self._label_state(database, label)[0]

    def labels(self, state: str) -> list[str]:
        """The labels in a state."""
        return [t.label for t in self._transactions.values() if t.state == state]

    # --- transactions ----------------------------------------------------------------------------

    def _clock(self) -> float:
        return time.monotonic() + self._now

    def _known(self, database: str, label: str) -> Transaction | None:
        transaction = self._transactions.get((database, label))
        if (
            transaction is not None
            and transaction.state in ("PREPARE", "PREPARED")
            and self._clock() > transaction.until
        ):
            self._abort(transaction, "timeout by txn manager")
        return transaction

    def _abort(self, transaction: Transaction, reason: str) -> None:
        transaction.state, transaction.reason = "ABORTED", reason
        self._contexts.pop(transaction.label, None)

    def _publish(self, transaction: Transaction) -> None:
        if transaction.state == "COMMITTED" and self.publishes:
            self.tables.apply(transaction.place, transaction.loaded)
            transaction.state = "VISIBLE"

    def _label_state(self, database: str, label: str) -> tuple[str, str]:
        with self._lock:
            transaction = self._known(database, label)
            if transaction is None:
                return "UNKNOWN", ""
            return transaction.state, transaction.reason

    def _commit(self, transaction: Transaction) -> Answer:
        transaction.state = "COMMITTED"
        self._publish(transaction)
        answer = _ok(transaction)
        if transaction.state != "VISIBLE":
            answer = {**answer, "Status": "FAILED", "Message": "publish timeout"}
        return answer

    def at_frontend(self, operation: str, headers: Any) -> Answer | None:
        """What an FE answers by itself; None: it sends the client on to the BE."""
        database, label = headers.get("db", ""), headers.get("label", "")
        if not database:
            return _failed("No database selected.")
        if not label:
            return _failed("Empty label.")
        if database not in self.tables.databases:
            return _failed(f"Database[{database}] does not exist.")
        if operation not in ("begin", "load", "prepare", "commit", "rollback"):
            return _failed(f"Unknown transaction operation: {operation}")
        if operation in ("begin", "load"):
            return None
        transaction = self._known(database, label)
        if transaction is None:
            return _failed(f"No transaction found with db[{database}] and label[{label}]")
        state, known = transaction.state, f"transaction {transaction.id}, label is {label}"
        if operation == "prepare" or state == "PREPARE":
            return None
        if operation == "commit":
            if state == "PREPARED":
                return self._commit(transaction)
            if state == "ABORTED":
                return _failed(f"Can not commit ABORTED {known}")
            said = f"Transaction {transaction.id} has already committed, label is {label}"
            # The documentation spells it so.
            return _ok(transaction, "Transaction already commited" if self.documented else said)
        if state == "PREPARED":
            self._abort(transaction, "User Aborted")
            return _ok(transaction)
        if state == "ABORTED":
            said = f"Transaction {transaction.id} has already aborted, label is {label}"
            return _ok(transaction, said)
        return _failed(f"Can not abort {state} {known}")

    def at_backend(self, operation: str, headers: Any, content: bytes) -> Answer:
        """What the BE answers."""
        label = headers.get("label", "")
        if operation == "begin":
            return self._begin(headers)
        context = self._contexts.get(label)
        if context is not None:
            self._known(headers.get("db", ""), label)  # it may have come to its end
            context = self._contexts.get(label)
        if context is None:
            if self.documented:
                said = "TXN_NOT_EXISTS" if operation == "load" else "Transcation Not Exist"
                return {"Status": "FAILED", "Label": label, "Message": said}
            said = f"Transaction with label {label} not exists"
            return {"Status": "TXN_NOT_EXISTS", "Message": said}
        transaction = context.transaction
        if transaction.place[0] != headers.get("db"):
            return _said("INVALID_ARGUMENT", "request db and transaction db not match")
        if operation == "load":
            return self._load(context, headers, content)
        if operation == "rollback":
            self._abort(transaction, "transaction is aborted by user.")
            return _ok(transaction)
        return self._prepare(context, operation, headers)

    def _begin(self, headers: Any) -> Answer:
        database, label = headers["db"], headers["label"]
        place = (database, headers.get("table", ""))
        known = self._known(database, label)
        if known is not None and known.state == "PREPARE" and self.aborts_live_labels:
            self._abort(known, "begin on a live label")
        elif known is not None and known.state != "ABORTED":
            running = "RUNNING" if known.state.startswith("PREPARE") else "FINISHED"
            return {
                "Status": "LABEL_ALREADY_EXISTS",
                "ExistingJobStatus": running,
                "Message": f"Label [{label}] has already been used.",
            }
        if place not in self.tables.tables:
            return _said("ANALYSIS_ERROR", f"unknown table, table={place[1]}")
        seconds = float(headers.get("timeout", 600))
        transaction = Transaction(next(self._ids), label, place, self._clock() + seconds)
        self._transactions[database, label] = transaction
        self._contexts[label] = Context(transaction)
        return {**_ok(transaction), "BeginTxnTimeMs": 0}

    def _load(self, context: Context, headers: Any, content: bytes) -> Answer:
        transaction = context.transaction
        if transaction.place[1] != headers.get("table"):
            said = f"Request table {headers.get('table')} not equal transaction table"
            return _said("INVALID_ARGUMENT", f"{said} {transaction.place[1]}")
        told = tuple(headers.get(name) for name in _LOADING)
        if context.headers not in (None, told):
            self._abort(transaction, "load request not equal last.")
            return _said("INTERNAL_ERROR", "load request not equal last.")
        context.headers = told
        context.size += len(content)
        if headers.get("format") != "json":
            return _said("INTERNAL_ERROR", "only JSON is known here")
        if context.size > JSON_BYTES and headers.get("ignore_json_size") != "true":
            said = "exceed the max size of json type data. Set ignore_json_size to skip the check"
            self._abort(transaction, said)
            return _said("INTERNAL_ERROR", said)
        try:
            parsed = orjson.loads(content)
        except orjson.JSONDecodeError as error:
            self._abort(transaction, str(error))
            return _said("DATA_QUALITY_ERROR", f"Failed to parse json: {error}")
        is_stripped = headers.get("strip_outer_array") == "true"
        context.objects += parsed if is_stripped and isinstance(parsed, list) else [parsed]
        return {**_ok(transaction), "LoadBytes": len(content)}

    def _prepare(self, context: Context, operation: str, headers: Any) -> Answer:
        transaction = context.transaction
        if context.headers is None:
            said = f"transaction {transaction.label} hasn't send any data yet"
            self._abort(transaction, said)
            return _said("INTERNAL_ERROR", said)
        _, _, strict, ratio, *_ = context.headers
        if transaction.place not in self.tables.tables:
            self._abort(transaction, "table is dropped")
            return _said("ANALYSIS_ERROR", "table is dropped")
        loaded = self.tables.converted(
            transaction.place, context.objects, is_strict=strict == "true"
        )
        total = len(context.objects)
        if len(loaded.filtered) > total * float(ratio or 0):
            said = f"too many filtered rows: {loaded.filtered[0]}"
            self._abort(transaction, said)
            return {**_said("INTERNAL_ERROR", said), "ErrorURL": "http://be/api/_load_error_log"}
        transaction.loaded = loaded
        del self._contexts[transaction.label]
        counts = {
            "NumberTotalRows": total,
            "NumberLoadedRows": len(loaded.rows),
            "NumberFilteredRows": len(loaded.filtered),
            "NumberUnselectedRows": 0,
            "LoadBytes": context.size,
        }
        if operation == "commit":
            return {**self._commit(transaction), **counts}
        transaction.state = "PREPARED"
        transaction.until = self._clock() + float(headers.get("prepared_timeout", 86400))
        return {**_ok(transaction), **counts}

    # --- HTTP ------------------------------------------------------------------------------------

    def answer(
        self, kind: str, method: str, path: str, headers: Any, read: Callable[[], bytes]
    ) -> Answer:
        """What a server of a kind answers; `read` takes the content, which allows the client to
        send it.
        """
        if headers.get("Authorization") != _basic(*self.credentials):
            said = f"Access denied for user '{USER}' (using password: YES)"
            return {"_http": 401, "status": "FAILED", "msg": said}
        parts = urlsplit(path)
        words = parts.path.strip("/").split("/")
        if kind == "follower":
            return {"_http": 307, "_location": f"{self._scheme}://127.0.0.1:{self.leader}{path}"}
        if words[-1] == "get_load_state":
            (label,) = parse_qs(parts.query)["label"]
            return self._faulty("state", label, lambda: self._told(words[1], label))
        if words[:2] != ["api", "transaction"] or len(words) != 3:
            return {"_http": 404, "_text": "Not Found"}
        operation, label = words[2], headers.get("label", "")
        allowed = ("PUT",) if operation == "load" else ("POST", "PUT")
        if method not in allowed:
            return {"_http": 405, "_text": "method is not allowed"}
        if kind == "leader":
            return self._at_leader(operation, label, headers, path)
        content = read()
        return self._faulty(operation, label, lambda: self.at_backend(operation, headers, content))

    def _at_leader(self, operation: str, label: str, headers: Any, path: str) -> Answer:
        own = self._planned("redirect", "before")
        if own is not None:
            return own()
        with self._lock:
            # Faults of an operation are hit where it is done: here, if not at the BE.
            known = self._known(headers.get("db", ""), label)
            is_here = operation in ("commit", "rollback") and (
                known is None or known.state != "PREPARE"
            )
        if is_here:
            done = self._faulty(operation, label, lambda: self.at_frontend(operation, headers))
        else:
            with self._lock:
                done = self.at_frontend(operation, headers)
        if done is not None:
            return done
        return {"_http": 307, "_location": f"{self._scheme}://127.0.0.1:{self.backend}{path}"}

    def _told(self, database: str, label: str) -> Answer:
        if database not in self.tables.databases:
            return {"status": "FAILED", "msg": f"unknown database, database={database}"}
        state, reason = self._label_state(database, label)
        return {"state": state, "reason": reason, "status": "OK", "msg": "Success"}

    def _planned(self, operation: str, when: str) -> Callable[[], Answer] | None:
        with self._lock:
            for number, (name, (at, act)) in enumerate(self._faults):
                if name == operation and at == when:
                    del self._faults[number]
                    return act
        return None

    def _faulty(self, operation: str, label: str, act: Callable[[], Any]) -> Any:
        instead = self._planned(operation, "before")
        if instead is not None:
            return instead()
        after = self._planned(operation, "after")
        with self._lock:
            self.log.append((operation, label))
            done = act()
        return done if after is None else after()


def _basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def _ok(transaction: Transaction, message: str = "") -> Answer:
    return {
        "Status": "OK",
        "Message": message,
        "Label": transaction.label,
        "TxnId": transaction.id,
    }


def _said(status: str, message: str) -> Answer:
    return {"Status": status, "Message": message}


def _failed(message: str) -> Answer:
    return _said("FAILED", f"class com.starrocks.common.StarRocksException: {message}")


class _Http(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(
        self, port: int, cluster: StarrocksServer, kind: str, tls: ssl.SSLContext | None
    ) -> None:
        self.cluster, self.kind = cluster, kind
        super().__init__(("127.0.0.1", port), _Handler)
        if tls is not None:
            self.socket = tls.wrap_socket(
                self.socket, server_side=True, do_handshake_on_connect=False
            )

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Http

    def handle_expect_100(self) -> bool:
        """The client is told to go on only by who wants the content."""
        return True

    def do_GET(self) -> None:
        self._handle()

    def do_POST(self) -> None:
        self._handle()

    def do_PUT(self) -> None:
        self._handle()

    def _handle(self) -> None:
        self._was_read = False
        try:
            answer = dict(
                self.server.cluster.answer(
                    self.server.kind, self.command, self.path, self.headers, self._content
                )
            )
        except DropError:
            self.close_connection = True
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
            return
        status, location = answer.pop("_http", 200), answer.pop("_location", None)
        text = answer.pop("_text", None)
        content = orjson.dumps(answer) if text is None else text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        if location is not None:
            self.send_header("Location", location)
        if not self._was_read and int(self.headers.get("Content-Length") or 0):
            self.close_connection = True
        if "chunked" in self.headers.get("Transfer-Encoding", "") and not self._was_read:
            self.close_connection = True
        self.end_headers()
        self.wfile.write(content)

    def _content(self) -> bytes:
        self._was_read = True
        if self.headers.get("Expect", "").lower() == "100-continue":
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.wfile.flush()
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


def main() -> None:
    """Run one until the standard input ends."""
    server = StarrocksServer(ports=tuple(map(int, sys.argv[1:5])))
    server.tables.create_database("shop")
    print("ready", flush=True)
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    main()
