"""The views in light mode of a run: those of the store, and those that are given."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mview.catalog.definitions import KeptLight, digest_of, kept_otherwise, load_lights, save_light
from mview.catalog.followers import check_followers
from mview.catalog.tables import describe_tables
from mview.config import Config
from mview.errors import UserError, several
from mview.files.fence import Fence
from mview.follow.light.readers import end_other_readers
from mview.follow.light.view import LightView, open_light
from mview.plan.definition import ViewDefinition
from mview.store.layout import Store
from mview.store.manifest import Manifest


def lights_of(
    config: Config, store: Store, given: Sequence[ViewDefinition], manifest: Manifest
) -> list[LightView]:
    """The views in light mode, opened; nothing is written.

    Args:
        config: the configuration.
        store: the store.
        given: views of any mode, which count before those of the store.
        manifest: the newest one.

    Raises:
        UserError: what is wrong with them, all of it.
    """
    kept = load_lights(store)
    if others := kept_otherwise(store, given, manifest):
        raise several([*others.values()], "views are refused")
    wanted = {name: light.definition for name, light in kept.items()}
    wanted |= {view.name: view for view in given if view.mode == "light"}
    lights, wrong = [], []
    for name, definition in wanted.items():
        known = {}
        if name in kept and digest_of(kept[name].definition) == digest_of(definition):
            known = dict.fromkeys(definition.table_names, kept[name].source)
        try:
            lights.append(open_light(definition, describe_tables(config, [definition], known)))
        except UserError as error:
            wrong.append(error)
    schemas = {light.name: light.schema for light in lights}
    definitions = [*(v for v in given if v.mode == "full"), *(light.definition for light in lights)]
    wrong += check_followers(config, definitions, schemas).values()
    if wrong:
        raise several(wrong, "views are refused")
    return lights


def keep(
    config: Config,
    store: Store,
    lights: Sequence[LightView],
    manifest: Manifest,
    fence: Fence,
    say: Callable[[str], None],
) -> None:
    """Have the store know them: a restart needs no files.

    The readers of sinks that are theirs no more end; one that cannot be ended now does with the
    next start.

    Args:
        config: the configuration.
        store: the store.
        lights: all views in light mode.
        manifest: the newest one.
        fence: the runner's right to write.
        say: is told of what stays.
    """
    fence.check()
    definitions = {light.name: light.definition for light in lights}
    for text in end_other_readers(config, store, definitions, manifest.offsets, fence):
        say(text)
    kept = load_lights(store)
    for light in lights:
        now = KeptLight(light.definition, light.source)
        if kept.get(light.name) != now:
            save_light(store, now)
