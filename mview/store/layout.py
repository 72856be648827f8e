"""Where everything lies below the store folder; nothing else builds a path in it."""

from __future__ import annotations

import hashlib
import re
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mview.errors import CorruptionError, UserError
from mview.relation import RelationId
from mview.store.identity import check_format, store_id

#: Kept as they are in folder names: safe in every file system, URL, glob and Hadoop path.
_SAFE = re.compile(rb"[A-Za-z0-9_.-]")

#: File systems refuse longer names.
_MAX_NAME_BYTES = 150

#: Hexadecimal digits that tell names apart.
_DIGEST = 16


def folder_name(kind: Literal["table", "view"], name: str) -> str:
    """The folder of a table or view; different names have different folders.

    Also where file systems fold case; names that are long as bytes keep their beginning.

    Raises:
        UserError: the name is empty, or could lead out of the store.
    """
    encoded = "".join(
        chr(byte) if _SAFE.match(bytes([byte])) else f"~{byte:02x}" for byte in name.encode()
    )
    path_like = "/" in name or "\\" in name or name.startswith(".") or not name.isprintable()
    if path_like or not name.strip():
        raise UserError(
            f"{name!r} cannot be the name of a {kind}",
            allowed="a name, not a path: no '/', no '\\', no leading '.', no control characters",
        )
    if name == name.lower() and len(encoded) <= _MAX_NAME_BYTES:
        return encoded
    # Two tildes: no encoded name has them.
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST]
    return f"{encoded[:_MAX_NAME_BYTES]}~~{digest}"


@dataclass(frozen=True)
class Store:
    """The paths of one store folder.

    Attributes:
        root: the folder.
        any_format: whether it may be of another format than this version writes.

    Raises:
        ConfigError: it is of another format.
    """

    root: Path
    any_format: bool = False

    def __post_init__(self) -> None:
        # Here, as whoever reads or writes anything of a store asks for its paths first. A mark
        # that is damaged is told by who needs what it says.
        if not self.any_format:
            with suppress(CorruptionError):
                check_format(self.root)

    @property
    def id(self) -> str:
        """What tables and folders outside carry to be ours; empty: there is no store yet."""
        return store_id(self.root)

    @property
    def manifests(self) -> Path:
        """Folder of the manifests, one file per epoch."""
        return self.root / "manifest"

    @property
    def intents(self) -> Path:
        """Folder of the epochs that are being committed, one file per epoch."""
        return self.root / "intent"

    @property
    def failures(self) -> Path:
        """Folder of the errors that ended runs, one file per runner."""
        return self.root / "failure"

    @property
    def away(self) -> Path:
        """Folder of the connections that runners cannot read right now, one file per runner."""
        return self.root / "away"

    @property
    def asked(self) -> Path:
        """The views that the newest run was asked for."""
        return self.root / "asked.json"

    @property
    def analyses(self) -> Path:
        """What Spark has said of the views' columns, so that it need not be asked again."""
        return self.root / "analyses.json"

    @property
    def rereads(self) -> Path:
        """Folder of the requests to read chunks of loaded tables anew."""
        return self.root / "rereads"

    @property
    def applies(self) -> Path:
        """Folder of what runs are asked for while they go on."""
        return self.root / "applies"

    @property
    def paused(self) -> Path:
        """Folder of the tables whose loads are paused, a file each."""
        return self.root / "paused"

    @property
    def quarantine(self) -> Path:
        """Folder of changes that were put aside, one folder per table."""
        return self.root / "quarantine"

    def quarantined(self, table: RelationId) -> Path:
        """Folder of a table's changes that were put aside."""
        return self.quarantine / folder_name("table", str(table))

    @property
    def left_readers(self) -> Path:
        """Folder of who reads databases' logs no more, and is to be ended there, a file each."""
        return self.root / "left_readers"

    @property
    def mends(self) -> Path:
        """Folder of what is asked for of changes that were put aside."""
        return self.root / "mends"

    @property
    def lease(self) -> Path:
        """Folder of the lease."""
        return self.root / "lease"

    @property
    def mirrors(self) -> Path:
        """Folder of the mirrors of source tables, one folder per table."""
        return self.root / "tables"

    @property
    def beside_views(self) -> Path:
        """Folder of the mirrors of what views keep, one folder per relation."""
        return self.root / "beside"

    @property
    def views(self) -> Path:
        """Folder of the views, one folder per view."""
        return self.root / "views"

    @property
    def building(self) -> Path:
        """Folder of what is built beside the epochs, a folder each: no manifest names any of it."""
        return self.root / "building"

    def build(self, token: int, epoch: int) -> Path:
        """Folder of what a runner builds beside the epochs, begun at an epoch."""
        return self.building / f"{token:06d}-{epoch:012d}"

    @property
    def environments(self) -> Path:
        """Folder of the environments, a store each."""
        return self.root / "environments"

    def environment(self, name: str) -> Path:
        """Folder of an environment: a store of its own."""
        return self.environments / folder_name("view", name)

    @property
    def given(self) -> Path:
        """Folder of an environment's views as they were given, a file each."""
        return self.root / "given"

    def given_view(self, name: str) -> Path:
        """File of an environment's view as it was given."""
        return self.given / f"{folder_name('view', name)}.json"

    @property
    def trash(self) -> Path:
        """Folder of what is being deleted."""
        return self.root / "trash"

    def mirror(self, relation: RelationId) -> Path:
        """Folder of a relation's mirror: `base` and `changelog` are in it."""
        parent = self.mirrors if relation.is_table else self.beside_views
        return parent / folder_name("table", str(relation))

    def view(self, name: str) -> Path:
        """Folder of what a view needs: its state, its definition."""
        return self.views / folder_name("view", name)

    def view_target(self, name: str) -> Path:
        """Where a view's sink writes when the view names no path."""
        return self.view(name) / "data"

    @property
    def lights(self) -> Path:
        """Folder of the views in light mode, one folder per view."""
        return self.root / "light"

    def light(self, name: str) -> Path:
        """Folder of a view in light mode: its definition, and how far its sinks are."""
        return self.lights / folder_name("view", name)

    def follower(self, view: str, sink: str, *, light: bool = False) -> Path:
        """Folder of a sink that follows a view: how far it is."""
        folder = self.light(view) if light else self.view(view)
        return folder / "sinks" / folder_name("view", sink)

    @property
    def checkpoints(self) -> Path:
        """Folder of the streaming queries' folders."""
        return self.root / "checkpoints"

    def comparison(self, view: str) -> Path:
        """Folder for the result of a query that is compared with what a view holds."""
        return self.root / "comparisons" / f"{folder_name('view', view)}-{uuid.uuid4().hex}"

    def checkpoint(self, generation: int, token: int) -> Path:
        """Folder of a streaming query: its checkpoint, its spec, its chunk plans.

        It has the runner's token in its name, and its successor renames it: Spark, which knows
        nothing of tokens, writes nothing into the folder of another runner.
        """
        return self.checkpoints / f"{generation:06d}-{token:06d}"

    def checkpoints_of(self, generation: int, token: int) -> list[Path]:
        """The folders of a query under runners with a smaller token, the newest last."""
        folders = {
            int(f.name.partition("-")[2]): f for f in self.checkpoints.glob(f"{generation:06d}-*")
        }
        return [folders[older] for older in sorted(folders) if older < token]

    def plan(self, generation: int, token: int, table: RelationId) -> Path:
        """File of a table's chunk plan: it belongs to the checkpoint of one load."""
        folder = self.checkpoint(generation, token) / "plans"
        return folder / f"{folder_name('table', str(table))}.json"
