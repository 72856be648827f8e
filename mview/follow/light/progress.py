"""How far the sinks of a light view are: small files in the store, of the last few steps."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from mview.connector import Offsets
from mview.errors import CorruptionError
from mview.files.durable import put
from mview.files.fence import UNFENCED, Fence
from mview.files.jsonfile import checked, read_checked
from mview.files.records import record
from mview.follow.light.seen import SUFFIX, Seen, files_of
from mview.ingest.load_plan import LoadPlan

#: Steps whose places in the log are kept: a target that a backup set further back is filled anew.
KEPT = 3


@dataclass(frozen=True)
class LightLoad:
    """A load of the table, frozen before its first chunk is read.

    Attributes:
        definition: digest of the view that it is for.
        plan: its chunks, and where its log begins.
    """

    definition: str
    plan: LoadPlan


@dataclass(frozen=True)
class LightProgress:
    """What a target has when it stands at a step.

    Attributes:
        load: the step with which the load began.
        runner: the token of who began it.
        offsets: up to where the log was read.
        watermark: of the log, source milliseconds; -1 unknown.
        positions: by partition, the highest position that was taken.
        newest: beside each position, the newest source time.
        chunks: those before this number are there.
        high_ms: the source's clock after the last chunk was read.
        seen: by number of a chunk that is not there yet, the keys that changes have touched; and
            names of files with more of them, see `SeenKeys`.
        rows: rows and keys that were brought.
        loaded: the target is the view at a cut of its table.
    """

    load: int
    runner: int
    offsets: Offsets
    watermark: int
    positions: dict[str, str] = field(default_factory=dict)
    newest: dict[str, int] = field(default_factory=dict)
    chunks: int = 0
    high_ms: int = 0
    seen: Seen = field(default_factory=dict)
    rows: int = 0
    loaded: bool = False


class ProgressLog:
    """The progress of one sink of a light view, and the plan of its load.

    A file per step and runner. Of a step counts that of the highest token: its runner has found
    that no older one brought the step, and keeps them from it.

    Args:
        folder: the sink's.
        fence: the runner's right to write; of who only reads, none.
    """

    def __init__(self, folder: Path, fence: Fence = UNFENCED) -> None:
        self.folder, self._fence = folder / "light", fence

    @property
    def spec(self) -> Path:
        """The file by which this runner reads the log."""
        return self.folder / f"{self._fence.token:012d}.spec"

    def steps(self) -> dict[int, LightProgress]:
        """What is kept, by step, ascending."""
        steps = {}
        for step, _, file in self._files("json"):
            try:
                steps[step] = _read(file, LightProgress)
            except CorruptionError:
                if file.exists():  # else a runner has removed it meanwhile
                    raise
        return steps

    def write(self, step: int, progress: LightProgress) -> None:
        """Note what a target has at a step, before it can stand there."""
        token = self._fence.token
        self._fence.check()
        put(self.folder / _name(step, token, "json"), checked(asdict(progress)))
        files = self._files("json")
        oldest = max(progress.load, sorted({number for number, _, _ in files})[-KEPT:][0])
        old = [file for number, _, file in files if number < oldest]
        old += [file for number, _, file in self._files("load") if number < progress.load]
        old += [file for file in self.folder.glob("*.spec") if int(file.stem) < token]
        for file in old:
            file.unlink(missing_ok=True)
        if there := [*self.folder.glob(f"*{SUFFIX}")]:
            named = {name for kept in self.steps().values() for name in files_of(kept.seen)}
            for file in there:
                if file.name not in named:
                    file.unlink(missing_ok=True)

    def load(self, at: LightProgress) -> LightLoad:
        """The load that a progress is of."""
        loaded: LightLoad = _read(self.folder / _name(at.load, at.runner, "load"), LightLoad)
        return loaded

    def begin(self, step: int, load: LightLoad) -> int:
        """Note a load, before its first step; returns the token by which it is found again."""
        self.folder.mkdir(parents=True, exist_ok=True)
        token = self._fence.token
        self._fence.check()
        plan = {**asdict(load.plan), "chunks": load.plan.chunks.to_json()}
        content = {"definition": load.definition, "plan": plan}
        put(self.folder / _name(step, token, "load"), checked(content))
        return token

    def _files(self, kind: str) -> list[tuple[int, int, Path]]:
        """Step, token and file, ascending."""
        files = sorted(self.folder.glob(f"*.{kind}"))
        return [(int(file.stem[:20]), int(file.stem[21:]), file) for file in files]


def _name(step: int, token: int, kind: str) -> str:
    return f"{step:020d}-{token:012d}.{kind}"


def _read(file: Path, kind: type[Any]) -> Any:
    return read_checked(
        file,
        partial(record, kind),
        "the progress of a light view cannot be read",
        "remove its folder: the table in the sink is filled anew",
    )
