"""What must hold from one manifest to the next; checked on every publish.

Each predicate returns what is broken, or None. They are few and cheap: they find errors of the
engine and writes of a second engine before those become visible.
"""

from __future__ import annotations

from collections.abc import Callable

from mview.errors import CorruptionError
from mview.store.manifest import FIRST_EPOCH, Manifest

Predicate = Callable[[Manifest | None, Manifest], str | None]


def epochs_have_no_gap(old: Manifest | None, new: Manifest) -> str | None:
    """An epoch follows the one before; the first has a fixed number."""
    expected = old.epoch + 1 if old else FIRST_EPOCH
    return None if new.epoch == expected else f"epoch {new.epoch} instead of {expected}"


def tokens_never_go_back(old: Manifest | None, new: Manifest) -> str | None:
    """A runner that was replaced has a smaller token than the runner that replaced it."""
    if old and new.token < old.token:
        return f"token {new.token} after {old.token}"
    return None


def batches_never_go_back(old: Manifest | None, new: Manifest) -> str | None:
    """Generations only grow, and so do the micro-batches within one."""
    if old and (new.generation, new.batch) < (old.generation, old.batch):
        before, after = f"{old.generation}/{old.batch}", f"{new.generation}/{new.batch}"
        return f"generation/batch {after} after {before}"
    return None


def watermark_never_goes_back(old: Manifest | None, new: Manifest) -> str | None:
    """What was read stays read. Only a changelog that is new to the store may be behind."""
    if old is None or old.watermark is None or set(new.offsets) - set(old.offsets):
        return None
    if new.watermark is None or new.watermark < old.watermark:
        return f"watermark {new.watermark} after {old.watermark}"
    return None


def positions_never_go_back(old: Manifest | None, new: Manifest) -> str | None:
    """A change below its partition's position is dropped as sent twice, so it may not sink."""
    # A table that is dropped or loaded anew, which begins a generation, takes its positions along.
    for table, taken in old.positions.items() if old and old.generation == new.generation else ():
        for partition, position in taken.items():
            after = new.positions.get(table, {}).get(partition)
            if after is None or after < position:
                return f"position of {table} in {partition} is {after} after {position}"
    return None


def mirror_versions_never_go_back(old: Manifest | None, new: Manifest) -> str | None:
    """Within a generation Delta versions and the folded epoch only grow: readers cache by them."""
    for name, then in old.tables.items() if old and old.generation == new.generation else ():
        now = new.tables.get(name)
        if now is None and not name.is_table:
            continue  # what a view keeps goes when it is damaged, or not read
        if now is None:
            return f"table {name} is gone"
        for what in ("base_version", "changelog_version", "folded"):
            if getattr(now, what) < getattr(then, what):
                return f"{what} of {name} is {getattr(now, what)} after {getattr(then, what)}"
    return None


def folded_is_published(old: Manifest | None, new: Manifest) -> str | None:
    """A base may hold published epochs only: an epoch that is rolled back must leave no row."""
    last = old.epoch if old else 0
    for name, table in new.tables.items():
        if table.folded > last:
            return f"base of {name} holds epoch {table.folded}, published is {last}"
    return None


def loaded_tables_stay_loaded(old: Manifest | None, new: Manifest) -> str | None:
    """A table is loaded once. Loading it again is a new generation, never a step back."""
    for name, then in old.tables.items() if old and old.generation == new.generation else ():
        now = new.tables.get(name)
        if now is None:
            continue  # of a view: see above
        if then.phase == "loaded" and now.phase == "loading":
            return f"table {name} is loading again"
        if now.phase == "loading" and not set(then.released) <= set(now.released):
            return f"a released chunk of {name} is not released any more"
    return None


def pinned_time_never_goes_back(old: Manifest | None, new: Manifest) -> str | None:
    """`now()` only grows, also where the computer's clock does not."""
    if old and new.pinned_ms < old.pinned_ms:
        return f"pinned time {new.pinned_ms} after {old.pinned_ms}"
    return None


def row_counts_are_possible(old: Manifest | None, new: Manifest) -> str | None:
    """Counts are sums of weights: a negative one means a row was deleted that was never there."""
    counts = [(str(name), table.rows) for name, table in new.tables.items()]
    counts += [(name, view.rows) for name, view in new.views.items()]
    for name, rows in counts:
        if rows < 0:
            return f"{name} has {rows} rows"
    return None


def views_follow_their_tables(old: Manifest | None, new: Manifest) -> str | None:
    """A view is published in or after the epoch it was built in, and its sink never steps back."""
    for name, now in new.views.items():
        if now.built_epoch > new.epoch:
            return f"view {name} was built in epoch {now.built_epoch}"
        then = old.views.get(name) if old else None
        if then is None or then.built_epoch != now.built_epoch:
            continue
        before, after = then.sink.get("version"), now.sink.get("version")
        if isinstance(before, int) and isinstance(after, int) and after < before:
            return f"version of view {name} is {after} after {before}"
    return None


INVARIANTS: tuple[Predicate, ...] = (
    epochs_have_no_gap,
    tokens_never_go_back,
    batches_never_go_back,
    watermark_never_goes_back,
    positions_never_go_back,
    mirror_versions_never_go_back,
    folded_is_published,
    loaded_tables_stay_loaded,
    pinned_time_never_goes_back,
    row_counts_are_possible,
    views_follow_their_tables,
)


def check(old: Manifest | None, new: Manifest) -> None:
    """Hold a manifest against the one before.

    Raises:
        CorruptionError: an invariant is broken; it is named.
    """
    for predicate in INVARIANTS:
        if problem := predicate(old, new):
            raise CorruptionError(
                f"epoch {new.epoch} breaks an invariant: {predicate.__name__}",
                got=problem,
                safe=f"the epoch is not published; epoch {old.epoch if old else 0} stays",
                hint="start again; if it comes back, report it with the newest two manifests",
            )
