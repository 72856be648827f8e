"""What `check` and `explain` know of views without Spark: places of errors, plans, strategies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import NoReturn

import pyarrow as pa

from mview.catalog.definitions import (
    KeptLight,
    digest_of,
    load_definition,
    load_definitions,
    load_lights,
)
from mview.catalog.environments import (
    production,
    shared_tables,
    unpublished,
    with_those_read,
)
from mview.catalog.followers import check_followers
from mview.catalog.functions import declared_functions, with_functions
from mview.catalog.places import check_store, check_targets
from mview.catalog.sinks import open_sink
from mview.catalog.tables import (
    cautions,
    check_changelogs,
    describe_tables,
    lacking,
    left_out,
    source_tables,
)
from mview.config import Config
from mview.connector import Cautious, Retaining
from mview.errors import ConfigError, RetryableError, UserError
from mview.follow.light.readers import log_readers
from mview.ingest.spec import open_changelog
from mview.ivm.compile import compile_view
from mview.ivm.plan import ViewPlan
from mview.plan.definition import Unread, ViewDefinition, order_views
from mview.relation import RelationId, by_connection
from mview.schema import Column, TableSchema
from mview.store.history import ManifestLog
from mview.store.layout import Store
from mview.store.manifest import Manifest, schemas_of
from mview.store.requests.asked import asked_files

#: Views that a note names.
_TOLD = 5


def files_of_run(config: Config) -> tuple[str, ...]:
    """The files and folders that the newest run of the store was given.

    Raises:
        UserError: nobody knows them.
    """
    if not (files := asked_files(Store(config.store))):
        raise UserError(
            "nobody knows which files a run was given",
            where=str(config.store),
            safe="nothing was changed",
            hint="name them: the same command with FILE…",
        )
    return files


@dataclass(frozen=True)
class Checked:
    """A view that was looked at.

    Attributes:
        definition: the view.
        plan: its plan, when it is sound.
        error: what is wrong with it. Neither plan nor error: it reads a view whose columns only
            Spark can tell.
    """

    definition: ViewDefinition
    plan: ViewPlan | None = None
    error: UserError | None = None


@dataclass
class Checker:
    """Checks views against the databases, or against the schemas a store has kept.

    Args:
        offline: do not connect to anything.
        note: told when a database cannot be reached and the store's schema is taken instead, and of
            connections that are not safe.
    """

    config: Config
    offline: bool
    note: Callable[[str], None]
    schemas: dict[RelationId, TableSchema] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_store(self.config)
        self._store = Store(self.config.store)
        self.manifest = ManifestLog(self._store.manifests).latest()
        self._kept = schemas_of(self.manifest.tables if self.manifest else {})
        #: Of an environment's: what production has.
        self._production: Manifest | None = None
        if self.config.environment:
            # It shares what production has loaded: no database is asked for it.
            self.offline, (_, self._production) = True, production(self.config)
        #: The views for which `schemas` has columns.
        self._described: list[ViewDefinition] = []
        #: Views that others read, and those of them whose types are not known.
        self._read: set[str] = set()
        self._guessed: set[str] = set()
        #: Those that have the columns in `schemas` by the query that they have now.
        self._exact: set[str] = set()

    def check(
        self, given: Sequence[ViewDefinition], unread: Sequence[Unread] = ()
    ) -> list[Checked]:
        """Check the given views, and the views of the store that they read.

        Args:
            given: views.
            unread: what gives no view; those that read it are wrong, too.

        Raises:
            ConfigError: the configuration does not fit, whatever the views say.
            RetryableError: a database or changelog cannot be reached, and no schema is kept.
        """
        if self.config.environment:
            there = {} if self.manifest is None else self.manifest.views
            given = [unpublished(view) for view in with_those_read(self.config, given, there)]
        checks = {
            view.definition.name: Checked(view.definition, error=view.error) for view in unread
        }
        names = {*checks, *(definition.name for definition in given)}
        functions = declared_functions(self.config)
        definitions = with_functions(self._with_those_they_read(given), functions)
        self._read = {name for definition in definitions for name in definition.read_views}
        for definition in definitions:
            checks[definition.name] = self._check(definition, checks)
        self._tell_of_guesses(definitions, checks)
        sound = [checked.definition for checked in checks.values() if checked.plan]
        if not self.offline:
            for caution in cautions(self.config, sound, self.schemas):
                self.note(caution)
            check_changelogs(self.config, sound, self.schemas)
            self._check_room(sound)
        kept = self._all_with(given)
        places = check_targets(self.config, kept, self.manifest)
        lights = [light.definition for light in load_lights(self._store).values()]
        others = [view for view in lights if view.name not in names]
        columns = {name: self.schemas[RelationId("view", name)] for name in self._exact}
        probe = not self.offline
        places |= check_followers(self.config, [*others, *kept], columns, probe=probe)
        return [
            replace(checked, error=checked.error or places.get(name))
            for name, checked in checks.items()
            if name in names
        ]

    def _tell_of_guesses(
        self, definitions: Sequence[ViewDefinition], checks: Mapping[str, Checked]
    ) -> None:
        """Note which plans go by types that only Spark tells: with them sums may be kept better."""
        read: dict[str, None] = {}
        unsure = []
        for definition in definitions:
            guessed = [name for name in definition.read_views if name in self._guessed]
            if guessed and checks[definition.name].plan:
                unsure.append(definition.name)
                read |= dict.fromkeys(guessed)
        if unsure:
            self.note(
                f"note: plans may change, as views that they read are not built yet "
                f"({_some(list(read))}): {_some(unsure)}"
            )

    def _check_room(self, views: Sequence[ViewDefinition]) -> None:
        """Make sure that logs have room for those who are yet to begin to read them."""
        kept = {} if self.manifest is None else self.manifest.offsets
        for connection in by_connection(source_tables(views)):
            readers = log_readers(self.config, connection, views, kept)
            if None in readers.values():
                with closing(open_changelog(self.config, connection, [])) as changelog:
                    if isinstance(changelog, Retaining):
                        changelog.room(readers)

    @property
    def known_schemas(self) -> dict[RelationId, TableSchema]:
        """The columns of tables and views, but for views of which only Spark knows the types."""
        return {
            name: schema
            for name, schema in self.schemas.items()
            if name.is_table or name.name not in self._guessed
        }

    def check_kept(self) -> list[Checked]:
        """Check the views of the store; those in light mode come last.

        Raises:
            UserError: it has none.
        """
        kept, lights = self._all_with([]), load_lights(self._store).values()
        if not kept and not lights:
            raise UserError(
                "the store has no views yet",
                where=str(self.config.store),
                hint="mview run FILE… builds some; `mview lineage FILE…` needs none in the store",
            )
        return [*self.check(order_views(kept)), *map(self._kept_light, lights)]

    def _kept_light(self, light: KeptLight) -> Checked:
        """A view in light mode by the columns that its table had when it came."""
        schemas = dict.fromkeys(light.definition.table_names, light.source)
        try:
            plan = compile_view(light.definition, schemas)
        except UserError as error:
            return Checked(light.definition, error=error)
        for table, schema in schemas.items():
            self.schemas.setdefault(table, schema)
        return Checked(light.definition, plan)

    def _all_with(self, given: Sequence[ViewDefinition]) -> list[ViewDefinition]:
        """The views that a run would keep: those of the store, and the given ones, which count."""
        if self.manifest is None:
            return list(given)
        names = {view.name for view in given}
        kept = load_definitions(self._store, self.manifest, but=names).views
        return [*(kept[name] for name in sorted(kept)), *given]

    def _with_those_they_read(self, given: Sequence[ViewDefinition]) -> list[ViewDefinition]:
        views = {definition.name: definition for definition in given}
        waiting = list(given)
        while waiting:
            for name in waiting.pop().read_views:
                if name not in views and self.manifest and name in self.manifest.views:
                    views[name] = load_definition(self._store, self.manifest, name)
                    waiting.append(views[name])
        return order_views(list(views.values()))

    def _check(self, definition: ViewDefinition, earlier: Mapping[str, Checked]) -> Checked:
        wrong = [name for name in definition.read_views if name in earlier and earlier[name].error]
        if wrong:
            return Checked(definition, error=UserError(f"it reads view {wrong[0]!r}, see there"))
        views = [name for name in definition.read_views if name in earlier]
        light = [name for name in views if earlier[name].definition.mode == "light"]
        if light:
            what = f"it reads view {light[0]!r}, which is light: nothing is kept of it to be read"
            return Checked(definition, error=UserError(what, where=definition.file))
        if any(RelationId("view", name) not in self.schemas for name in views):
            return Checked(definition)
        try:
            self.schemas |= self._describe(definition)
            plan = compile_view(definition, self.schemas)
            if definition.mode == "light":
                # Here: it brings DuckDB in, and other views need none.
                from mview.follow.light.view import open_light

                open_light(definition, self.schemas)
                return Checked(definition, plan)
        except ConfigError:
            raise
        except UserError as error:
            return Checked(definition, error=left_out(self.config, definition, error))
        output = self._output_schema(definition, plan)
        if output:
            self.schemas[definition.relation] = output
        return Checked(definition, plan, self._sink_error(definition, output))

    def _sink_error(
        self, definition: ViewDefinition, output: TableSchema | None
    ) -> UserError | None:
        """What is wrong with the view's sink or its options."""
        given = definition.options or self.config.table_options(definition.sink)
        if definition.sink == ViewDefinition.sink and not given:
            return None  # nothing can be wrong, and the sink takes time to import
        schema = output or TableSchema((), ())
        try:
            sink = open_sink(self.config, self._store, definition, schema, "check")
        except UserError as error:
            return UserError(**{**error.parts, "where": definition.file})
        if isinstance(sink, Cautious) and (caution := sink.caution()):
            self.note(caution)
        return None

    def _describe(self, definition: ViewDefinition) -> dict[RelationId, TableSchema]:
        names = source_tables([definition])
        if self._production is not None:
            return schemas_of(shared_tables(self.config, [definition], self._production))
        missing = [name for name in names if name not in self._kept]
        kept = {name: self._kept[name] for name in names if name in self._kept}
        missing += lacking(self.config, [definition], kept)
        if self.offline:
            if missing:
                once = "" if definition.mode == "light" else ", or run the view once"
                raise ConfigError(
                    f"the columns of {missing[0]} are not in the store",
                    where=str(self.config.store),
                    hint=f"check without --offline{once}",
                )
            return {name: self._kept[name] for name in names}
        short = lacking(self.config, [definition], self.schemas)
        known = {name: schema for name, schema in self.schemas.items() if name not in short}
        views = [*self._described, definition]
        try:
            schemas = describe_tables(self.config, views, known)
            self._described = views
            return schemas
        except RetryableError as error:
            if missing:
                raise
            self.note(f"note: {error.what}; its columns are taken from the store")
            return {name: self._kept[name] for name in names}

    def _output_schema(self, definition: ViewDefinition, plan: ViewPlan) -> TableSchema | None:
        """What who reads this view sees: as published, as its query over no rows, or names.

        Types that only Spark can tell are left open, and those that nobody asks for.
        """
        name = definition.name
        published = self.manifest.views.get(name) if self.manifest else None
        is_as_published = published and plan.columns in ((), published.schema.names)
        if published and is_as_published and published.definition == digest_of(definition):
            self._exact.add(name)
            return published.schema
        is_read = name in self._read and not is_as_published
        if is_read or definition.sinks:
            exact = self._over_no_rows(definition, plan)
            if exact is not None:
                self._exact.add(name)
                return exact
        if published and is_as_published:
            return published.schema
        self._guessed.add(name)
        columns = tuple(Column(name, pa.string()) for name in plan.columns)
        return TableSchema(columns, plan.key) if columns else None

    def _over_no_rows(self, definition: ViewDefinition, plan: ViewPlan) -> TableSchema | None:
        """The columns of a view that runs in process; None: only Spark can tell.

        Args:
            definition: the view as it was written: that of `plan` may read parts.
            plan: its plan.
        """
        # Here: it brings DuckDB in.
        from mview.trial.world import TrialEngine, TrialWorld

        def no_spark(reason: str) -> NoReturn:
            raise UserError(reason)

        if self._guessed & set(definition.read_views):
            return None
        tables = {name: self.schemas[name] for name in definition.table_names}
        try:
            world = TrialWorld(tables, [definition], TrialEngine(no_spark), 0)
        except UserError:
            return None
        return TableSchema(world.schema(definition.relation).columns, plan.key)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _TOLD:,} more" if len(names) > _TOLD else ""
    return ", ".join(names[:_TOLD]) + more
