"""Whose a folder is: a store has an id, made with it, and what it writes elsewhere carries the id.

Nothing is written into, or deleted from, a folder without the mark. A copy of a store has its id,
too; what lies elsewhere stays with the one that was copied, as long as that is there.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from pathlib import Path

from mview.errors import ConfigError, CorruptionError
from mview.files.durable import put
from mview.files.marks import content_of, put_mark, read_mark, without_mark

#: The file that makes a folder a store.
STORE_MARK = "mview-store.json"

#: Nobody but the owner: tables may be secret, and whoever writes here decides what is published.
_PRIVATE = 0o700


def store_id(root: Path) -> str:
    """The id of the store in a folder; empty: there is none."""
    mark = read_mark(root / STORE_MARK, "id")
    return "" if mark is None else mark["id"]


def copied_from(root: Path) -> Path | None:
    """Where the store still is that this one is a copy of; None: this is no copy.

    A store that was moved is where its mark says no more.
    """
    mark = read_mark(root / STORE_MARK, "id", "home")
    if mark is None:
        return None
    home = Path(mark["home"])
    with suppress(OSError, CorruptionError):
        if store_id(home) == mark["id"] and not home.samefile(root):
            return home
    return None


def claim_store(root: Path) -> str:
    """Make a folder a store unless it is one; returns its id. One that was moved is at home here.

    Raises:
        ConfigError: something else is in the folder; nothing was written.
    """
    if not store_id(root):
        if why := refusal(root):
            raise why
        root.mkdir(parents=True, exist_ok=True)
        put_mark(root / STORE_MARK, {"id": uuid.uuid4().hex, "home": str(root.resolve())})
    mark = read_mark(root / STORE_MARK, "id", "home") or {}
    if mark.get("home") != str(root.resolve()) and copied_from(root) is None:
        put(root / STORE_MARK, content_of({**mark, "home": str(root.resolve())}))
    root.chmod(_PRIVATE)
    return store_id(root)


def refusal(root: Path) -> ConfigError | None:
    """Why a folder can neither be nor become a store; None: it can."""
    if store_id(root) or not (others := without_mark(root, STORE_MARK)):
        return None
    return ConfigError(
        "the store names a folder that is not empty and not a store of mview",
        where=str(root),
        got=", ".join(others[:5]),
        allowed="a store, an empty folder, or one that does not exist",
        safe="nothing was written there, and nothing deleted",
        hint="give `store:` another folder in the configuration; or, if this is a store that has "
        f"lost it, restore its {STORE_MARK} from a copy",
    )
