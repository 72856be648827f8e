"""Maintenance of the sinks that follow views: compaction, and what no reader needs any more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mview.admin.content import check_views, published
from mview.admin.lights import opened
from mview.catalog.definitions import load_definition, load_lights
from mview.catalog.followers import check_original, open_follower
from mview.config import Config, secret_values
from mview.errors import FencedError, UserError, known_error
from mview.follow.cursor import CursorLog
from mview.follower import Facts
from mview.plan.definition import ViewDefinition
from mview.plan.text.place import did_you_mean
from mview.schema import TableSchema
from mview.secrets import Mask
from mview.store.history import ManifestLog
from mview.store.layout import Store
from mview.store.lease import Lease


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


@dataclass(frozen=True)
class _OfView:
    """A view of the store.

    Attributes:
        definition: the view.
        schema: its columns.
        token: of the runner that has brought what is there; 0: a light view's, whose runner is the
            newest.
        light: whether it is in light mode.
    """

    definition: ViewDefinition
    schema: TableSchema
    token: int
    light: bool


def maintain(config: Config, names: Sequence[str]) -> Iterator[SinkMaintained]:
    """Maintain the tables of views in their sinks, one after another; beside a run, or without.

    Nothing that is read changes, and no lease is taken: each sink is written under the token of the
    newest runner, and steps of that one come first.

    Args:
        names: the views; none: all.

    Raises:
        UserError: no such view, or nothing was published.
    """
    store = Store(config.store)
    lights = load_lights(store)
    others = [name for name in names if name not in lights]
    manifest = ManifestLog(store.manifests).latest()
    if lights and others and manifest is None:
        hint = did_you_mean(others[0], lights)
        raise UserError(f"there is no view {others[0]!r}", hint=hint)
    if others or not (manifest or lights):
        manifest = published(config)
        check_views(config, manifest, others)
    for name in names or [*(manifest.views if manifest else ()), *lights]:
        if name in lights:
            kept = _OfView(lights[name].definition, opened(lights[name]).schema, 0, light=True)
        else:
            assert manifest is not None
            definition = load_definition(store, manifest, name)
            kept = _OfView(definition, manifest.views[name].schema, manifest.token, light=False)
        for sink in kept.definition.sinks:
            try:
                yield SinkMaintained(name, sink, _maintained(config, store, kept, sink))
            except Exception as error:
                known = known_error(error)
                told = Mask(secret_values(config))(str(known.render()))
                yield SinkMaintained(name, sink, error=told)


def _maintained(config: Config, store: Store, kept: _OfView, sink: str) -> Facts:
    view = kept.definition.name
    if CursorLog(store.follower(view, sink, light=kept.light)).latest().epoch is None:
        raise UserError(f"sink {sink} of view {view} is not filled yet")
    check_original(store, view, sink)
    lease = Lease(store.lease)
    while True:
        token = max(kept.token, lease.newest()) if lease.folder.is_dir() else kept.token
        follower, _ = open_follower(config, store, kept.definition, sink, kept.schema, token)
        try:
            return follower.maintain(thorough=True)
        except FencedError:
            if not lease.folder.is_dir() or lease.newest() <= token:
                raise
            # A runner has begun meanwhile: again, under its token.
        finally:
            follower.close()
