"""Maintenance of the sinks that follow views: compaction, and what no reader needs any more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mview.admin.content import check_views, published
from mview.catalog.definitions import load_definition
from mview.catalog.followers import check_original, open_follower
from mview.config import Config, secret_values
from mview.errors import FencedError, UserError, known_error
from mview.follow.cursor import CursorLog
from mview.follower import Facts
from mview.plan.definition import ViewDefinition
from mview.secrets import Mask
from mview.store.layout import Store
from mview.store.lease import Lease
from mview.store.manifest import Manifest


@dataclass(frozen=True)
class SinkMaintained:
    """What was done to the table of a view in a sink.

    Attributes:
        view: the view.
        sink: the sink's name in the configuration.
        done: numbers by what they count; empty: nothing was to be done.
        error: why it was not maintained, or not to the end; empty: it was.
    """

    view: str
    sink: str
    done: Facts = field(default_factory=dict)
    error: str = ""


def maintain(config: Config, names: Sequence[str]) -> Iterator[SinkMaintained]:
    """Maintain the tables of views in their sinks, one after another; beside a run, or without.

    Nothing that is read changes, and no lease is taken: each sink is written under the token of the
    newest runner, and steps of that one come first.

    Args:
        names: the views; none: all.

    Raises:
        UserError: no such view, or nothing was published.
    """
    store, manifest = Store(config.store), published(config)
    check_views(config, manifest, names)
    for name in names or manifest.views:
        definition = load_definition(store, manifest, name)
        for sink in definition.sinks:
            try:
                done = _maintained(config, store, manifest, definition, sink)
                yield SinkMaintained(name, sink, done)
            except Exception as error:
                known = known_error(error)
                told = Mask(secret_values(config))(str(known.render()))
                yield SinkMaintained(name, sink, error=told)


def _maintained(
    config: Config, store: Store, manifest: Manifest, definition: ViewDefinition, sink: str
) -> Facts:
    view = definition.name
    if CursorLog(store.follower(view, sink)).latest().epoch is None:
        raise UserError(f"sink {sink} of view {view} is not filled yet")
    check_original(store, view, sink)
    lease = Lease(store.lease)
    while True:
        token = max(manifest.token, lease.newest()) if lease.folder.is_dir() else manifest.token
        schema = manifest.views[view].schema
        follower, _ = open_follower(config, store, definition, sink, schema, token)
        try:
            return follower.maintain(thorough=True)
        except FencedError:
            if not lease.folder.is_dir() or lease.newest() <= token:
                raise
            # A runner has begun meanwhile: again, under its token.
        finally:
            follower.close()
