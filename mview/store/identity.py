"""Whose a folder is, and of which format: a store has an id, made with it, and what it writes
elsewhere carries the id.

Nothing is written into, or deleted from, a folder without the mark. A copy of a store has its id,
too; what lies elsewhere stays with the one that was copied, as long as that is there.
"""

from __future__ import annotations

import errno
import uuid
from contextlib import suppress
from pathlib import Path

from mview.errors import ConfigError, CorruptionError, MviewError, of_the_system
from mview.files.durable import put
from mview.files.marks import content_of, put_mark, read_mark, without_mark

#: The file that makes a folder a store.
STORE_MARK = "mview-store.json"

#: The format of what is in a store: of every file, and of what their names say. Who changes any
#: of it so that what is there cannot be read as it was written, adds one here and a step to
#: `mview.store.migrations`.
FORMAT = 2
#: Of the stores whose mark says none.
_FIRST = "1"

#: Nobody but the owner: tables may be secret, and whoever writes here decides what is published.
_PRIVATE = 0o700


def store_id(root: Path) -> str:
    """The id of the store in a folder; empty: there is none."""
    mark = read_mark(root / STORE_MARK, "id")
    return "" if mark is None else mark["id"]


def format_of(root: Path) -> int | None:
    """The format of the store in a folder; None: there is no store.

    Raises:
        CorruptionError: its mark cannot be read.
    """
    mark = read_mark(root / STORE_MARK, format=_FIRST)
    if mark is None:
        return None
    if not mark["format"].isdecimal():
        raise CorruptionError(
            "the mark of the store names no format",
            where=str(root / STORE_MARK),
            got=mark["format"],
            safe="nothing was changed",
            hint="restore the file from a copy",
        )
    return int(mark["format"])


def check_format(root: Path) -> None:
    """Refuse a store that this version cannot read as it was written; writes nothing.

    Raises:
        ConfigError: the store is of another format.
        CorruptionError: its mark cannot be read.
    """
    kept = format_of(root)
    if kept is not None and kept < FORMAT:
        raise ConfigError(
            "the store is of an older version of mview",
            where=str(root),
            got=f"format {kept}",
            allowed=f"format {FORMAT}",
            safe="nothing was changed",
            hint="stop what runs on it, copy the folder, and bring it up: mview migrate",
        )
    if kept is not None and kept > FORMAT:
        raise ConfigError(
            "the store is of a newer version of mview",
            where=str(root),
            got=f"format {kept}",
            allowed=f"format {FORMAT}",
            safe="nothing was changed",
            hint="install that version again; or go back to the copy from before its migration",
        )


def put_format(root: Path, number: int) -> None:
    """Say of which format a store is from now on."""
    mark = read_mark(root / STORE_MARK, "id", "home", named="")
    assert mark is not None, "there is a store"
    put(root / STORE_MARK, content_of({**mark, "format": str(number)}))


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


def named_by(root: Path) -> Path:
    """The path by which databases know who reads their logs for a store: where it was made.

    A store that was moved has the same places there as before. A copy has others: it is known by
    its own path while the store that was copied is there.
    """
    mark = read_mark(root / STORE_MARK, "id", "home", named="")
    if mark is None or copied_from(root) is not None:
        return root
    if mark["named"]:
        return Path(mark["named"])
    # Of an older version, which noted no name: by the path that it had.
    return root if mark["home"] == str(root.resolve()) else Path(mark["home"])


def claim_store(root: Path) -> str:
    """Make a folder a store unless it is one; returns its id. One that was moved is at home here.

    Raises:
        ConfigError: something else is in the folder; nothing was written.
        MviewError: the folder cannot be made.
    """
    if not store_id(root):
        if why := refusal(root):
            raise why
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise no_folder(root, error) from error
        mark = {"id": uuid.uuid4().hex, "home": str(root.resolve()), "format": str(FORMAT)}
        put_mark(root / STORE_MARK, {**mark, "named": str(root)})
    mark = read_mark(root / STORE_MARK, "id", "home", format=_FIRST, named="") or {}
    if mark.get("home") != str(root.resolve()) and copied_from(root) is None:
        moved = {**mark, "home": str(root.resolve()), "named": str(named_by(root))}
        put(root / STORE_MARK, content_of(moved))
    root.chmod(_PRIVATE)
    return store_id(root)


def no_folder(root: Path, error: OSError) -> MviewError:
    """Why a folder cannot become a store where the file system refuses to make or fill it."""
    # Where a file stands in the way, it is the setting that is wrong.
    told = None if error.errno == errno.ENOTDIR else of_the_system(error, str(root))
    return told or ConfigError(
        "the folder of the store cannot be made",
        where=str(root),
        got=str(error),
        safe="nothing was written",
        hint="give `store:` a folder in the configuration that can be made and written",
    )


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
