"""Where everything lies below the store folder; nothing else builds a path in it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mview.errors import UserError

#: Kept as they are in folder names: safe in every file system, URL, glob and Hadoop path.
_SAFE = re.compile(rb"[A-Za-z0-9_.-]")

#: File systems refuse longer names.
_MAX_NAME_BYTES = 200


def folder_name(kind: Literal["table", "view"], name: str) -> str:
    """The folder of a table or view; different names have different folders.

    Raises:
        UserError: the name is empty, too long, or could lead out of the store.
    """
    encoded = "".join(
        chr(byte) if _SAFE.match(bytes([byte])) else f"~{byte:02x}" for byte in name.encode()
    )
    path_like = "/" in name or "\\" in name or name.startswith(".") or not name.isprintable()
    if path_like or not name.strip() or len(encoded) > _MAX_NAME_BYTES:
        raise UserError(
            f"{name!r} cannot be the name of a {kind}",
            allowed="a name, not a path: no '/', no '\\', no leading '.', no control characters, "
            f"at most {_MAX_NAME_BYTES} bytes",
        )
    return encoded


@dataclass(frozen=True)
class Store:
    """The paths of one store folder."""

    root: Path

    @property
    def manifests(self) -> Path:
        """Folder of the manifests, one file per epoch."""
        return self.root / "manifest"

    @property
    def intent(self) -> Path:
        """File of the epoch that is being committed."""
        return self.root / "intent.json"

    @property
    def failure(self) -> Path:
        """File of the error that ended the last run."""
        return self.root / "failure.json"

    @property
    def lease(self) -> Path:
        """Folder of the lease."""
        return self.root / "lease"

    def mirror(self, table: str) -> Path:
        """Folder of a table's mirror: `base` and `changelog` are in it."""
        return self.root / "tables" / folder_name("table", table)

    def view(self, name: str) -> Path:
        """Folder of what a view needs: its state, its definition."""
        return self.root / "views" / folder_name("view", name)

    def view_target(self, name: str) -> Path:
        """Where a view's sink writes when the view names no path."""
        return self.view(name) / "data"

    def checkpoint(self, generation: int) -> Path:
        """Folder of a streaming query's checkpoint."""
        return self.root / "checkpoints" / f"{generation:06d}"

    def plan(self, generation: int, table: str) -> Path:
        """File of a table's chunk plan: it belongs to the checkpoint of one load."""
        return self.checkpoint(generation) / "plans" / f"{folder_name('table', table)}.json"
