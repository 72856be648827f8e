"""Some of the views of files: by name, by tag, or because they have changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mview.catalog.definitions import digest_of, is_another, load_lights
from mview.catalog.environments import unpublished
from mview.catalog.functions import declared_functions, with_functions
from mview.config import Config
from mview.errors import UserError
from mview.plan.definition import ViewDefinition
from mview.plan.text.place import did_you_mean
from mview.store.history import ManifestLog
from mview.store.layout import Store

#: What stands before a tag.
_TAG = "tag:"
#: Views that the store does not have, or has otherwise.
_CHANGED = "changed"


def selected(
    config: Config, views: Sequence[ViewDefinition], selectors: Sequence[str]
) -> list[ViewDefinition]:
    """The views that one of the selectors means, in their order.

    A selector is a view's name, `tag:NAME` or `changed`; with `+` before it, the views that these
    read come along, with one behind it those that read them, both through others.

    Args:
        config: has the store, and the functions that views call.
        views: all that there are to choose from.
        selectors: none: all views.

    Raises:
        UserError: a selector means no view that there is; `changed` may.
    """
    if not selectors:
        return list(views)
    by_name = {view.name: view for view in views}
    chosen: set[str] = set()
    for selector in selectors:
        means = selector.removeprefix("+").removesuffix("+")
        names = _meant(config, by_name, means)
        if selector.startswith("+"):
            names |= _along(names, lambda name: by_name[name].read_views, by_name)
        if selector.endswith("+"):
            names |= _along(names, lambda name: _readers(views, name), by_name)
        chosen |= names
    return [view for view in views if view.name in chosen]


def chosen(
    config: Config, views: Sequence[ViewDefinition], selectors: Sequence[str]
) -> list[ViewDefinition]:
    """The selected views, for who does something with them.

    Raises:
        UserError: as `selected`, or none of them has changed.
    """
    meant = selected(config, views, selectors)
    if selectors and not meant:
        raise UserError(
            "none of these views has changed",
            safe="nothing was done",
            hint="the same command without --select takes all of them",
        )
    return meant


def is_name(selector: str) -> bool:
    """Whether a selector is a view's name, perhaps with a `+`: that does without its file."""
    means = selector.removeprefix("+").removesuffix("+")
    return means != _CHANGED and not means.startswith(_TAG)


def _meant(config: Config, views: dict[str, ViewDefinition], means: str) -> set[str]:
    if means == _CHANGED and means not in views:
        return _changed(config, list(views.values()))
    if means.startswith(_TAG):
        tag = means.removeprefix(_TAG)
        names = {name for name, view in views.items() if tag in view.tags}
        if not names:
            tags = sorted({tag for view in views.values() for tag in view.tags})
            raise UserError(
                f"no view has the tag {tag!r}",
                allowed=", ".join(tags) or "none of the views has a tag",
                hint=did_you_mean(tag, tags) or "WITH (tags = 'a, b')",
            )
        return names
    if means not in views:
        raise UserError(
            f"none of the views is called {means!r}",
            allowed="a view's name, tag:NAME or changed; + before it: with what it reads, behind "
            "it: with what reads it",
            hint=did_you_mean(means, views),
        )
    return {means}


def _changed(config: Config, views: Sequence[ViewDefinition]) -> set[str]:
    """The views that the store does not have, or has otherwise."""
    store = Store(config.store)
    manifest = ManifestLog(store.manifests).latest()
    lights = {name: digest_of(kept.definition) for name, kept in load_lights(store).items()}
    if config.environment:
        views = [*map(unpublished, views)]  # as it keeps them
    # With the functions that they call: those count, too.
    whole = with_functions(views, declared_functions(config))
    return {
        view.name
        for view in whole
        if (
            lights.get(view.name) != digest_of(view)
            if view.mode == "light"
            else manifest is None or is_another(view, manifest)
        )
    }


def _readers(views: Sequence[ViewDefinition], name: str) -> list[str]:
    return [view.name for view in views if name in view.read_views]


def _along(
    names: set[str], near: Callable[[str], Sequence[str]], views: dict[str, ViewDefinition]
) -> set[str]:
    """All views that are reached; those of the store that are not given are not."""
    reached, waiting = set(names), list(names)
    while waiting:
        for name in near(waiting.pop()):
            if name in views and name not in reached:
                reached.add(name)
                waiting.append(name)
    return reached
