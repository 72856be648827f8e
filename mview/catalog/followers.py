"""The sinks that follow views: declared in `sinks:`, chosen by views, opened by their type."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from typing import NamedTuple, cast

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from mview.config import Config
from mview.connector import load
from mview.errors import ConfigError, RetryableError, UserError, several
from mview.files.yamlfile import misfit, shown
from mview.follower import (
    Follower,
    FollowerFactory,
    FollowerSettings,
    FollowerTarget,
    Probing,
    check_mode,
)
from mview.plan.definition import ViewDefinition
from mview.plan.text.place import did_you_mean
from mview.schema import TableSchema
from mview.store.identity import copied_from
from mview.store.layout import Store


class OpenedFollower(NamedTuple):
    """A follower and what it was made with."""

    follower: Follower
    target: FollowerTarget


def open_follower(
    config: Config,
    store: Store,
    definition: ViewDefinition,
    sink: str,
    schema: TableSchema,
    fence: int = 0,
) -> OpenedFollower:
    """The follower of a view for one of its sinks; connects to nothing.

    Raises:
        UserError: the sink is not declared, an option is wrong, or it cannot take the view.
    """
    where = definition.file or f"view {definition.name}"
    section = config.sinks.get(sink)
    if section is None or "type" not in section:
        known = [name for name, section in config.sinks.items() if "type" in section]
        raise ConfigError(
            f"view {definition.name}: there is no sink {sink!r} to follow it"
            + ("" if section is None else ", as its section has no type"),
            where=where,
            allowed=", ".join(known) or "sinks: in the configuration has none with a type",
            hint=did_you_mean(sink, known)
            or f"declare it: sinks: {sink}: with its type, in the configuration",
        )
    factory = cast(FollowerFactory, load("followers", str(section["type"])))
    try:
        # What the view says is laid over the section.
        settings = factory.settings(**{**section, **definition.sinks[sink]})
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        raise several([_mistake(config, sink, factory, detail) for detail in details]) from None
    target = FollowerTarget(
        view=definition.name,
        sink=sink,
        schema=schema,
        settings=settings,
        owner=f"{store.id}/{definition.name}/{sink}",
        fence=fence,
        comment=definition.comment,
    )
    follower = factory(target)
    check_mode(target, follower.capabilities)
    if definition.mode == "light" and not (
        follower.capabilities.by_key and settings.mode == "upsert"
    ):
        raise ConfigError(
            f"sink {sink} cannot follow view {definition.name} in light mode: its rows are changed "
            "by what was there before, which a light view does not know",
            where=where,
            got=f"type {section['type']}, mode {settings.mode}",
            allowed="SQL databases and ClickHouse, mode upsert",
            hint="leave out mode = 'light'",
        )
    if schema.columns:
        follower.check()
    return OpenedFollower(follower, target)


def check_original(store: Store, view: str, sink: str) -> None:
    """Refuse to write, from a copy of a store, to the sinks of the one that was copied.

    Both have one id and the same tokens, so a target cannot tell them apart. Whoever writes to a
    sink asks.

    Raises:
        UserError: where the original is.
    """
    if (original := copied_from(store.root)) is not None:
        raise UserError(
            f"sink {sink} of view {view} belongs to the store that this one is a copy of",
            where=str(store.root),
            got=f"store {original}, which is still there",
            safe="nothing was written there; the views of this store go on",
            hint="run that store, or remove it and run this one again; to have both, give this "
            "configuration a `store:` of its own, which loads the tables anew, and another table "
            "or place for the sink",
        )


def _mistake(
    config: Config, sink: str, factory: FollowerFactory, detail: ErrorDetails
) -> ConfigError:
    """What is wrong with an option of a sink."""
    place = ".".join(shown(part) for part in (sink, *detail["loc"]))
    hint = None
    if detail["type"] == "extra_forbidden":
        hint = did_you_mean(str(detail["loc"][-1]), factory.settings.model_fields)
    # What is wrong with several options together has no place among them.
    return ConfigError(f"sinks.{place}: {misfit(detail)}", where=str(config.path), hint=hint)


def bounds_of(config: Config, definition: ViewDefinition, sink: str) -> FollowerSettings:
    """What may wait for a sink, and how long it is waited for, as it is written down.

    Where that is wrong, as it is by itself.
    """
    options = {**config.sinks.get(sink, {}), **definition.sinks[sink]}
    names = ("spool_bytes", "spool_age", "patience")
    bounds = {name: options[name] for name in names if name in options}
    with suppress(ValidationError):
        return FollowerSettings(type="", **bounds)
    return FollowerSettings(type="")


def table_in_sink(config: Config, definition: ViewDefinition, sink: str) -> str:
    """The name of the table that follows a view in one of its sinks."""
    options = {**config.sinks.get(sink, {}), **definition.sinks[sink]}
    return str(options.get("table", definition.name))


def follower_cautions(config: Config, definitions: Iterable[ViewDefinition]) -> list[str]:
    """Warnings of the sinks that follow views; of those that are wrong `check_followers` tells."""
    store, said = Store(config.store), dict[str, None]()
    for definition in definitions:
        for sink in definition.sinks:
            with suppress(UserError):
                schema = TableSchema((), ())
                text = open_follower(config, store, definition, sink, schema).follower.caution()
                if text is not None:
                    said[text] = None
    return list(said)


def check_followers(
    config: Config,
    definitions: Iterable[ViewDefinition],
    schemas: Mapping[str, TableSchema] | None = None,
    *,
    probe: bool = False,
) -> dict[str, UserError]:
    """What is wrong with the sinks of views, by view.

    Args:
        schemas: of views whose columns are known; of others only options are looked at.
        probe: ask the targets, too, where there is something to ask; those that are away are not.
    """
    store, wrong = Store(config.store), {}
    tables: dict[tuple[str, str], str] = {}
    for definition in definitions:
        for sink in definition.sinks:
            try:
                schema = (schemas or {}).get(definition.name) or TableSchema((), ())
                follower, target = open_follower(config, store, definition, sink, schema)
                if probe and isinstance(follower, Probing):
                    with closing(follower), suppress(RetryableError):
                        follower.probe()
            except UserError as error:
                wrong[definition.name] = error
                continue
            other = tables.setdefault((sink, target.table), definition.name)
            if other != definition.name:
                wrong[definition.name] = ConfigError(
                    f"views {other} and {definition.name} would write one table of sink {sink}",
                    where=definition.file,
                    got=target.table,
                    hint=f"WITH (sinks.{sink}.table = '…')",
                )
    return wrong
