"""An auction house in SQLite that goes on, after Nexmark: people, auctions, bids, by a seed.

Nexmark (Tucker, Tufte, Papadimos, Maier: "NEXMark, a Benchmark for Queries over Data Streams",
2002) has a stream of events: of fifty, one is a new person, three are new auctions, and forty-six
bids. Here events go into tables, and two things are added so that rows do not only come: a seller
lowers the reserve of an auction, and a bid is withdrawn. The same seed makes the same events.
"""

from __future__ import annotations

import datetime as dt
import random
import sqlite3
import time
from collections import Counter
from pathlib import Path

TABLES = """
CREATE TABLE person (id INTEGER PRIMARY KEY, name TEXT NOT NULL, city TEXT NOT NULL,
                     joined TIMESTAMP NOT NULL);
CREATE TABLE auction (id INTEGER PRIMARY KEY, item TEXT NOT NULL, category TEXT NOT NULL,
                      seller INTEGER NOT NULL, reserve DECIMAL(12,2) NOT NULL,
                      opened TIMESTAMP NOT NULL);
CREATE TABLE bid (id INTEGER PRIMARY KEY, auction INTEGER NOT NULL, bidder INTEGER NOT NULL,
                  price DECIMAL(12,2) NOT NULL, at TIMESTAMP NOT NULL);
"""

#: Per fifty events; the others are bids.
PEOPLE, AUCTIONS, LOWERED, WITHDRAWN = 1, 3, 1, 2

#: Bids go to the newest auctions, and to a few of these more than to others.
OPEN, HOT = 100, 10

FIRST = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gia", "Hugo", "Ida", "Jon")
LAST = ("Abel", "Brandt", "Cole", "Diaz", "Engel", "Falk", "Grant", "Haas")
CITIES = ("Bern", "Graz", "Kiel", "Lyon", "Oslo", "Porto", "York")
THINGS = {
    "books": "atlas",
    "clocks": "pendulum",
    "coins": "thaler",
    "maps": "chart",
    "radios": "receiver",
    "stamps": "block",
}

#: When the first event happened; each next one comes a second later.
BEGIN = dt.datetime(2026, 1, 1, 9)


class Market:
    """The database, which `play` goes on with.

    Args:
        path: of the file; one that is there is made anew.
        seed: of all that happens.
    """

    def __init__(self, path: str | Path, seed: int = 1) -> None:
        Path(path).unlink(missing_ok=True)
        self.path = Path(path)
        self._random = random.Random(seed)
        self._events = 0
        self._ids: Counter[str] = Counter()
        with self._open() as database:
            database.executescript(TABLES)

    def play(self, events: int, seconds: float = 0) -> dict[str, int]:
        """Let so much happen, fifty events in a transaction.

        Args:
            events: how many.
            seconds: how long that is to take.

        Returns:
            How many rows each table has then.
        """
        with self._open() as database:
            for begin in range(0, events, 50):
                with database:
                    for _ in range(min(50, events - begin)):
                        self._happen(database)
                time.sleep(seconds * 50 / events if seconds else 0)
            return {
                table: database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
                for table in ("person", "auction", "bid")
            }

    def query(self, sql: str) -> list[tuple[object, ...]]:
        """What SQLite itself says."""
        with self._open() as database:
            return database.execute(sql).fetchall()

    def _open(self) -> _Closing:
        return _Closing(self.path, timeout=60)

    def _happen(self, database: sqlite3.Connection) -> None:
        number, self._events = self._events % 50, self._events + 1
        at = (BEGIN + dt.timedelta(seconds=self._events)).isoformat(sep=" ")
        draw = self._random
        if number < PEOPLE or not self._ids["person"]:
            name = f"{draw.choice(FIRST)} {draw.choice(LAST)}"
            row = (self._next("person"), name, draw.choice(CITIES), at)
            database.execute("INSERT INTO person VALUES (?, ?, ?, ?)", row)
        elif number < PEOPLE + AUCTIONS or not self._ids["auction"]:
            category = draw.choice(list(THINGS))
            item = f"{THINGS[category]} {draw.randint(1000, 9999)}"
            seller, reserve = draw.randint(1, self._ids["person"]), _price(draw)
            row = (self._next("auction"), item, category, seller, reserve, at)
            database.execute("INSERT INTO auction VALUES (?, ?, ?, ?, ?, ?)", row)
        elif number < PEOPLE + AUCTIONS + LOWERED:
            which = draw.randint(1, self._ids["auction"])
            lower = "UPDATE auction SET reserve = round(reserve * 0.9, 2) WHERE id = ?"
            database.execute(lower, (which,))
        elif number < PEOPLE + AUCTIONS + LOWERED + WITHDRAWN and self._ids["bid"]:
            which = draw.randint(1, self._ids["bid"])
            database.execute("DELETE FROM bid WHERE id = ?", (which,))
        else:
            newest = self._ids["auction"]
            oldest = max(1, newest - (HOT if draw.random() < 0.5 else OPEN) + 1)
            bidder, price = draw.randint(1, self._ids["person"]), _price(draw)
            row = (self._next("bid"), draw.randint(oldest, newest), bidder, price, at)
            database.execute("INSERT INTO bid VALUES (?, ?, ?, ?, ?)", row)

    def _next(self, table: str) -> int:
        self._ids[table] += 1
        return self._ids[table]


class _Closing(sqlite3.Connection):
    """A connection that is closed at the end of the outermost `with`, and commits in each."""

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self._depth = 0

    def __enter__(self) -> _Closing:
        self._depth += 1
        super().__enter__()
        return self

    def __exit__(self, *raised: object) -> bool:
        self._depth -= 1
        ends = super().__exit__(*raised)  # type: ignore[arg-type]
        if not self._depth:
            self.close()
        return bool(ends)


def _price(draw: random.Random) -> float:
    """Few are dear: as in Nexmark, by a power of ten."""
    return round(10 ** (draw.random() * 3), 2)
