"""`mview apply`: a run that goes on takes added, edited and removed views.

Between two epochs, and in steps that a start has, too: whoever is killed at any of them leaves what
a start makes right, and the request, which the next run takes up. A request counts as a whole: it
is refused before anything is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Thread

from mview.catalog.definitions import all_definitions, digest_of, mend_definitions
from mview.catalog.environments import keep_given, unpublished, with_those_read
from mview.catalog.followers import check_followers
from mview.catalog.functions import declared_functions, with_functions
from mview.catalog.places import check_targets
from mview.catalog.sinks import forget_views
from mview.connector import TableHalt
from mview.epoch.engine import Engine
from mview.epoch.recover import forget_folders
from mview.epoch.views.build import fates_of
from mview.epoch.views.fate import Fate
from mview.epoch.views.opening import OpenedViews, open_views, wrong_texts
from mview.errors import (
    FencedError,
    MviewError,
    RetryableError,
    UserError,
    counted,
    known_error,
    several,
)
from mview.failpoints import failpoint
from mview.follow.followers import HAND_OVER_S, Followers
from mview.follow.light.view import LightView
from mview.ingest.spec import check_unedited
from mview.plan.definition import ViewDefinition
from mview.relation import RelationId
from mview.run.begin import Refused, begin_anew
from mview.run.feed import Feed
from mview.run.tables import are_others, go_on, loaded_schemas, with_column_told
from mview.schema import TableSchema
from mview.session.jvm import check_jvm
from mview.session.lazy import Spark
from mview.store.manifest import Manifest
from mview.store.requests.applies import ApplyAnswer, ApplyLog, ApplyRequest
from mview.store.requests.asked import keep_asked

#: Seconds that are waited for what goes on beside when a run ends.
_END_S = 10.0


@dataclass(frozen=True)
class KeptViews:
    """What a run keeps.

    Attributes:
        definitions: of all views, in DAG order; `Engine.views` are these.
        schemas: of every source table that is followed.
        followers: the sinks that follow the views.
    """

    definitions: Sequence[ViewDefinition]
    schemas: Mapping[RelationId, TableSchema]
    followers: Followers


@dataclass(frozen=True)
class _Wanted:
    """What a request comes to; nothing was changed yet.

    Attributes:
        definitions: of all views that are kept then, in DAG order.
        schemas: of the tables that are followed then.
        refused: views that cannot be worked on.
        opened: the views.
        remove: views that go.
        anew: tables that are loaded anew for it, and why.
    """

    definitions: Sequence[ViewDefinition]
    schemas: Mapping[RelationId, TableSchema]
    refused: Mapping[str, MviewError]
    opened: OpenedViews
    remove: frozenset[str]
    anew: Mapping[RelationId, str]


@dataclass(frozen=True)
class _Begun:
    """A request that is worked on: the views it names, what becomes of all, and those that go."""

    names: Sequence[str]
    fates: Mapping[str, Fate]
    removed: frozenset[str]


class Applying:
    """Takes up the requests to a run. One thread calls, and no epoch runs meanwhile.

    Args:
        engine: with its views open.
        kept: what the run began with.
        follow: makes what follows views; it is not started.
        lights: views in light mode, which stay as they are.
        refused: views that cannot be worked on in this run, whatever their text is, and why.
        files: what the views of the run were read from.
        say: tells people.
        feed: brings the tables and their changes.
        once: the run takes what is there: it does not go on while a request is looked at.
    """

    def __init__(
        self,
        engine: Engine,
        kept: KeptViews,
        follow: Callable[[Sequence[ViewDefinition]], Followers],
        lights: Sequence[LightView],
        refused: Mapping[str, MviewError],
        files: Sequence[str],
        say: Callable[[str], None],
        feed: Feed,
        once: bool = False,
    ) -> None:
        self.kept, self._feed = kept, feed
        self._engine, self._follow, self._lights = engine, follow, lights
        self._refused, self._files, self._say = refused, files, say
        self._log = ApplyLog(engine.store.applies)
        self._taken: dict[Path, _Begun] = {}
        self._once = once
        #: Tables whose load their source has refused to begin in this run, and why.
        self._refusing: dict[RelationId, UserError] = {}
        self._ahead: tuple[Path, Thread] | None = None

    @property
    def is_asked(self) -> bool:
        """Whether there is a request that can be taken up."""
        file = self._next()
        if file is None or self._once:
            return file is not None
        if self._ahead is None or (self._ahead[0] != file and not self._ahead[1].is_alive()):
            self._ahead = file, Thread(target=self._look_ahead, args=(file,), daemon=True)
            self._ahead[1].start()
        if self._ahead[0] != file or self._ahead[1].is_alive():
            return False
        try:
            # To take it up ends the query, and the next one reads the file anew. Only now: this is
            # asked before every epoch.
            check_unedited(self._engine.config)
        except MviewError as error:
            self._refuse(file, error)
            return False
        return True

    def _look_ahead(self, file: Path) -> None:
        """Ask Spark beside the epochs what it will be asked for, which may have to start first.

        What it says is kept, and looked at between two epochs: whatever fails here fails there.
        """
        with suppress(Exception):
            self._wanted(self._read(file)[0], self._engine.spark.beside(), lambda text: None)

    def _read(self, file: Path) -> tuple[ApplyRequest, list[ViewDefinition]]:
        """A request, and what an environment is given by it: it keeps that without sinks."""
        request, config = self._log.read(file), self._engine.config
        if not config.environment:
            return request, []
        kept = {view.name: view for view in self.kept.definitions}
        given = with_those_read(config, request.views, kept)
        return replace(request, views=tuple(map(unpublished, given))), given

    def close(self) -> None:
        """Wait for what goes on beside; a database that it asks may be silent."""
        if self._ahead is not None:
            self._ahead[1].join(_END_S)

    def _next(self) -> Path | None:
        return next((file for file in self._log.files() if file not in self._taken), None)

    def take(self) -> None:
        """Take up the oldest request, or refuse it; `kept` and the engine's views are then so.

        Raises:
            MviewError: what ends the run; the request stays for the next one.
        """
        file = self._next()
        if file is None:
            return
        try:
            request, given = self._read(file)
            wanted = self._wanted(request, self._engine.spark, self._say)
            failpoint("apply-taken")
            # What is loaded anew the run begins: it is to be gone before.
            while not wanted.anew and (refused := self._begin(wanted)) is not None:
                if _tables_of(request) & set(refused.tables):
                    raise refused.error
                self._note_refusing(refused)
                wanted = self._wanted(request, self._engine.spark, self._say)
        except MviewError as error:
            self._engine.lease.check()
            check_jvm()
            if file.exists():
                self._refuse(file, error)
            return
        failpoint("apply-begun")
        for table in _tables_of(request):
            self._refusing.pop(table, None)
        if given:
            keep_given(self._engine.store, given)
        names = [view.name for view in request.views]
        self._say(f"taking up: {', '.join([*names, *(f'-{name}' for name in wanted.remove)])}")
        load = tuple(sorted({*map(str, wanted.anew), *self._loading()}))
        self._log.note(file, ApplyAnswer("taken", load=load))
        self._change(wanted, names)
        told = fates_of(self._engine, self._engine.views.values())
        self._taken[file] = _Begun(names, told, wanted.remove)

    def _begin(self, wanted: _Wanted) -> Refused | None:
        return self._feed.begin(self._engine, wanted.schemas, self._say)

    def _note_refusing(self, refused: Refused) -> None:
        self._refusing |= dict.fromkeys(refused.tables, refused.error)

    def _loading(self) -> tuple[str, ...]:
        tables = self._engine.manifest.source_tables.items()
        return tuple(
            str(name) for name, state in tables if state.phase == "loading" and not state.halted
        )

    def leave_out(self, refused: Refused) -> None:
        """Have the views wait that read tables which a source does not let be loaded.

        They are asked for again by the next run, or for a request that reads them.

        Raises:
            MviewError: no view is left.
        """
        engine = self._engine
        self._note_refusing(refused)
        halted = {name for name, s in engine.manifest.source_tables.items() if s.halted}
        wanted = self._wanted(ApplyRequest((), ()), engine.spark, self._say, halted)
        if not wanted.opened.views:
            raise refused.error
        self._change(wanted, ())

    def renew(self, halts: Mapping[RelationId, TableHalt]) -> None:
        """Have tables that have halted be loaded anew where that mends it; the others stay halted.

        It does where the table itself is another one than was loaded. Views that cannot be built
        over it, as a column is gone, stay halted, and all others are built anew.

        Args:
            halts: of tables, since this was called last.

        Raises:
            MviewError: no view is left.
        """
        engine, nothing = self._engine, ApplyRequest((), ())
        every = {name for name, s in engine.manifest.source_tables.items() if s.halted}
        altered = {name for name, halt in halts.items() if halt.altered}
        try:
            loaded = loaded_schemas(engine.manifest)
            altered |= are_others(engine.config, halts.keys() - altered, loaded)
            wanted = self._wanted(nothing, engine.spark, self._say, every - altered)
            # For views that are refused no table is loaded anew.
            sound = [view.definition for view in wanted.opened.views.values()]
            needed = {table for view in sound for table in view.table_names}
            if not wanted.anew.keys() <= needed:
                wanted = self._wanted(
                    nothing,
                    engine.spark,
                    self._say,
                    every - (altered & needed),
                    wanted.opened.refused,
                )
        except MviewError as error:
            engine.lease.check()
            check_jvm()
            # What cannot be asked now is asked by the next run; what needs no asking goes on.
            self._say(f"{_listed(halts)} cannot be loaded anew now: {error.what}")
            wanted = self._wanted(nothing, engine.spark, self._say, every)
        if not wanted.opened.views:
            raise next(iter(wanted.opened.refused.values()))
        self._change(wanted, ())

    def live(self, *, all_built: bool = True) -> None:
        """Answer the requests that were taken up: what can be built is built.

        Args:
            all_built: False: some views wait for tables that are being loaded.
        """
        for file, taken in [*self._taken.items()]:
            if not all_built and not self._is_built(taken):
                continue
            manifest, done = self._engine.manifest, dict.fromkeys(sorted(taken.removed), "gone")
            kept = {view.name for view in self.kept.definitions}
            for name, fate in taken.fates.items():
                if name not in kept:
                    done[name] = "removed by a later request"
                elif name in taken.names or fate.why:
                    done[name] = _told(name, fate, manifest)
            states = manifest.views.items()
            halted = {name: s.halted for name, s in states if s.stale and name in done}
            answer = ApplyAnswer("done", done, self._loading(), halted, epoch=manifest.epoch)
            self._log.note(file, answer)
            failpoint("apply-answered")
            self._log.done(file)
            del self._taken[file]

    def _is_built(self, taken: _Begun) -> bool:
        """Whether all views of a request are there by the texts that it has."""
        states = self._engine.manifest.views
        wanted = {v.name: digest_of(v) for v in self.kept.definitions if v.name in taken.names}
        built = {n: s.definition for n, s in states.items() if n in wanted and not s.stale}
        return built == wanted

    def failed(self, error: BaseException) -> None:
        """Answer what each next run would end by, too; what may pass is left to the next one."""
        passes = isinstance(error, FencedError | RetryableError | OSError)
        if passes or not isinstance(error, Exception):
            return
        text = str(known_error(error).render())
        for file in self._taken:
            self._log.note(file, ApplyAnswer("failed", error=self._engine.mask(text)))
            self._log.done(file)

    def _refuse(self, file: Path, error: MviewError) -> None:
        text = self._engine.mask(str(error.render()))
        self._say(f"a request was refused, all goes on as it was: {error.what}")
        self._log.note(file, ApplyAnswer("refused", error=text, epoch=self._engine.manifest.epoch))
        self._log.done(file)

    # --- what is asked for -----------------------------------------------------------------------

    def _wanted(
        self,
        request: ApplyRequest,
        spark: Spark,
        say: Callable[[str], None],
        left: Collection[RelationId] = (),
        known: Mapping[str, MviewError] | None = None,
    ) -> _Wanted:
        """What a request comes to, as a start of the run would say it.

        Args:
            request: what is asked for.
            spark: analyzes SQL.
            say: is told of what people should know.
            left: halted tables that are left as they are.
            known: views of which it is known that they are refused, and why.

        Raises:
            MviewError: why it is refused.
        """
        engine, names = self._engine, {view.name for view in request.views}
        config, store = engine.config, engine.store
        remove = frozenset(request.remove) - names
        full = self._full(request.views, remove)
        others = [v for v in self.kept.definitions if v.name not in names | remove]
        for view in (*others, *full):
            if read := remove & set(view.read_views):
                raise UserError(
                    f"view {view.name} reads {min(read)}, which is to go",
                    safe="nothing was changed",
                    hint="change or remove it, too",
                )
        states = engine.manifest.views.items()
        manifest = replace(engine.manifest, views={n: s for n, s in states if n not in remove})
        kept = all_definitions(store, manifest, [*others, *full])
        definitions = with_functions(kept.views, declared_functions(config))
        given = [view for view in definitions if view.name in names]
        wrong = check_targets(config, definitions, manifest) | check_followers(config, given)
        if wrong:
            raise several([*wrong.values()], "views are refused")
        asked = _tables_of(request)
        refusing = {name: why for name, why in self._refusing.items() if name not in asked}
        schemas, anew, waiting = self._feed.tables_of(definitions, manifest, left, refusing)
        sound = [view for view in definitions if view.name not in waiting]
        declared = [*sound, *(light.definition for light in self._lights)]
        self._feed.check(declared, schemas, go_on(manifest, anew))
        for caution in self._feed.cautions(given, schemas):
            say(caution)
        refused = {**self._refused, **kept.damaged, **waiting, **(known or {})}
        opened = open_views(config, spark, definitions, schemas, engine.lease, refused)
        before = loaded_schemas(manifest)
        told = with_column_told(definitions, opened.refused, manifest, before, schemas)
        opened = opened._replace(refused=told)
        # Without a request all views are those of the run: they wait for what they need.
        is_asked = bool(request.views or request.remove)
        if is_asked and (texts := wrong_texts(definitions, opened.refused, manifest)):
            raise several(texts, "views are refused")
        columns = {name: view.schema for name, view in opened.views.items()}
        if bad := [opened.refused[view.name] for view in given if view.name in opened.refused]:
            raise bad[0]
        if wrong := check_followers(config, given, columns):
            raise several([*wrong.values()], "views are refused")
        return _Wanted(definitions, schemas, opened.refused, opened, remove, anew)

    def _full(
        self, given: Sequence[ViewDefinition], remove: Collection[str]
    ) -> list[ViewDefinition]:
        """The given views that are not light.

        Raises:
            UserError: a light one is to be added, changed or removed.
        """
        lights = {light.name: light.definition for light in self._lights}
        full = []
        for view in given:
            light = lights.get(view.name)
            if light is not None and view.mode == "light":
                if (digest_of(view), view.sinks) == (digest_of(light), light.sinks):
                    continue
            elif light is None and view.mode == "full":
                full.append(view)
                continue
            raise _is_light(view.name)
        for name in remove:
            if name in lights:
                raise _is_light(name)
        return full

    # --- doing it --------------------------------------------------------------------------------

    def _change(self, wanted: _Wanted, names: Collection[str]) -> None:
        """Have the engine keep what is wanted; what is to be built, the run builds.

        Args:
            names: of the views that were given.
        """
        engine, opened = self._engine, wanted.opened
        former = self.kept.followers
        former.close(HAND_OVER_S)
        given = [view for view in wanted.definitions if view.name in names]
        mend_definitions(engine.store, engine.manifest, given)
        if wanted.anew:
            left = forget_views(engine.config, engine.manifest, engine.lease)
            begin_anew(engine, wanted.anew, left.folders, self._say)
        if wanted.remove:
            self._remove(wanted.remove)
        if wanted.anew or wanted.remove:
            # What these sinks have opened may be gone with the folders of views that are not built.
            opened = open_views(
                engine.config,
                engine.spark,
                wanted.definitions,
                wanted.schemas,
                engine.lease,
                wanted.refused,
            )
        keep_asked(engine.store, [view.name for view in wanted.definitions], self._files)
        engine.views, engine.refused = opened
        followers = self._follow(wanted.definitions)
        self.kept = KeptViews(wanted.definitions, wanted.schemas, followers)
        engine.followers = followers
        followers.start(engine.manifest, former)

    def _remove(self, names: frozenset[str]) -> None:
        """Remove views with their data; tables stay, as another view may read them."""
        engine = self._engine
        if names & engine.manifest.views.keys():
            views, tables = engine.manifest.views.items(), engine.manifest.tables.items()
            manifest = engine.next_manifest(
                views={name: state for name, state in views if name not in names},
                tables={
                    relation: state for relation, state in tables if relation.view not in names
                },
            )
            engine.commit(manifest, {})
            engine.open_relations()
        # Only now: what a manifest names must be there. What a crash leaves goes with the next run.
        failpoint("apply-removed")
        left = forget_views(engine.config, engine.manifest, engine.lease)
        forget_folders(engine.store, engine.manifest, engine.lease, left.folders)
        for error in left.errors:
            self._say(str(error.render()))


def _tables_of(request: ApplyRequest) -> set[RelationId]:
    """The tables that the views of a request read themselves."""
    return {table for view in request.views for table in view.table_names}


def _listed(names: Collection[RelationId]) -> str:
    return ", ".join(sorted(map(str, names)))


def _is_light(name: str) -> UserError:
    return UserError(
        f"view {name} is light, or was: a run takes such views up at its start only",
        safe="nothing was changed",
        hint="stop the run; `mview drop` the view if it goes or changes its mode, and run again",
    )


def _told(name: str, fate: Fate, manifest: Manifest) -> str:
    """What became of a view, for people."""
    state = manifest.views.get(name)
    if state is None or not state.built_epoch:
        return "not built yet" if state is None or not state.stale else "not built: halted"
    if state.stale:
        return "not built: halted"
    if not fate.why:
        return f"goes on as it was, {counted(state.rows, 'row')}"
    how = "built" if fate.becomes == "new" else f"built anew ({fate.why})"
    return f"{how}, {counted(state.rows, 'row')}, {state.strategy}"


def refuse_requests(log: ApplyLog) -> None:
    """Refuse what a run cannot take up that has views in light mode alone."""
    for file in log.files():
        why = UserError(
            "the run has views in light mode alone: it takes views up at its start only",
            safe="nothing was changed",
            hint="stop the run, and run it again with all files",
        )
        log.note(file, ApplyAnswer("refused", error=str(why.render())))
        log.done(file)
