"""Which disk is full, where an error does not say it: writers of Parquet and Spark do not."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mview.errors import MviewError, of_the_system


@contextmanager
def disks_told(places: Callable[[], Iterable[Path]]) -> Iterator[None]:
    """Tell what a file system refused with its place.

    Args:
        places: what the block writes to, beside the folder for temporary files.
    """
    try:
        yield
    except MviewError as error:
        if error.where is None and of_the_system(error) is not None:
            error.where = _fullest(places())
            error.args = (error.render(),)
        raise
    except Exception as error:
        if (told := of_the_system(error, _fullest(places()))) is not None:
            raise told from error
        raise


#: With more bytes than that no disk was full: that of a sink was, which only its error names.
_ROOM = 1 << 30


def _fullest(places: Iterable[Path]) -> str | None:
    """The place with the least room, and what it has; one that is read-only has none.

    None: all have room.
    """
    used: dict[Path, int] = {}
    for place in (*places, Path(tempfile.gettempdir())):
        folder = next((above for above in (place, *place.parents) if above.exists()), Path("/"))
        read_only = os.statvfs(folder).f_flag & os.ST_RDONLY
        used[place] = 0 if read_only else shutil.disk_usage(folder).free
    least = min(used, key=lambda place: used[place])
    if used[least] > _ROOM:
        return None
    return f"{least}, where {used[least] // 1024:,} kB are free"
