"""What has changed in relations of a store since an epoch, read from the tails of their mirrors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pyarrow as pa

from mview.execute.delta import Delta, delta_of
from mview.relation import RelationId
from mview.store.history import ManifestLog
from mview.store.manifest import Manifest
from mview.store.mirror import Mirror


class Since(NamedTuple):
    """What has changed since an epoch.

    Attributes:
        upto: the published epoch up to which this is.
        deltas: what has changed in each relation that has changed.
        is_all: whether nothing else had changed up to the epoch that was asked for.
    """

    upto: Manifest
    deltas: dict[RelationId, Delta]
    is_all: bool


def changes_since(
    after: int, newest: Manifest, log: ManifestLog, mirrors: Mapping[RelationId, Mirror], most: int
) -> Since:
    """What has changed in relations after an epoch, at one cut of all of them.

    Args:
        after: not below what `Mirror.trimmed` says of any of them.
        newest: a published epoch; nothing after it is read.
        log: has the epochs between, as far as they are kept.
        mirrors: of the relations; all are in `newest`.
        most: about so many bytes of each, of one epoch at least.
    """
    parts, ends = dict[RelationId, pa.Table](), set[int]()
    for name, mirror in mirrors.items():
        mirror.changelog.refresh()
        parts[name], end = mirror.changes_until(newest.tables[name], after, most)
        ends.update(() if end is None else (end,))
    upto = newest
    if ends:
        upto = log.up_to(min(ends), after, newest)
        for name, mirror in mirrors.items():
            # By the newest state: files that older ones name are merged and deleted in time.
            parts[name] = mirror.changes(newest.tables[name], after, until=upto.epoch)
    deltas = {name: delta_of(rows, upto.tables[name].schema.key) for name, rows in parts.items()}
    changed = {name: delta for name, delta in deltas.items() if delta.rows.num_rows}
    return Since(upto, changed, not ends)
