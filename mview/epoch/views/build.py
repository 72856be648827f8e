"""Views from scratch: the user's text, as one batch query over the mirrors at one epoch.

In process where it is admitted there and the tables are small, else verbatim on Spark. The parts of
a view and its state table are built beside it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import filterfalse
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mview.catalog.analyze import temporary_views
from mview.catalog.definitions import digest_of, save_definition, with_former, with_tried
from mview.catalog.spark_functions import function_errors
from mview.clock import last_tick
from mview.delta.parquet import encode, read_parquet, write_rows
from mview.epoch.engine import Engine, LiveView, tick_of
from mview.epoch.halts import (
    at_its_sink,
    halted,
    halting,
    needs_halted_table,
    reads_halted,
)
from mview.epoch.report import BuildReport
from mview.epoch.views.cost import COSTS, Costs, costs_of, full_rows
from mview.epoch.views.fate import Fate, fates
from mview.epoch.views.in_process import InProcess, read_by
from mview.errors import MviewError, UserError, concerning
from mview.execute.numbered import kept_as, number_first
from mview.failpoints import failpoint
from mview.files.durable import naming
from mview.ivm.plan import ViewPlan
from mview.plan.clocks import is_clock
from mview.plan.definition import ViewDefinition
from mview.plan.render import bind_tables
from mview.relation import RelationId
from mview.schema import Column, TableSchema, quoted
from mview.session.texts import query
from mview.store.frames import mirror_dataframe, read_files
from mview.store.manifest import NEVER, TableState, ViewState

#: Rows per file of a first build: an update rewrites the files it touches.
_FILE_ROWS = 130_000


def unbuilt(engine: Engine) -> list[LiveView]:
    """Views that are to be built now: new or changed ones, and all that read such a view."""
    why = why_unbuilt(engine, engine.views.values())
    return [view for view in engine.views.values() if view.name in why]


def why_unbuilt(engine: Engine, views: Collection[LiveView]) -> dict[str, str]:
    """Why views are to be built now, for people; by name, in DAG order."""
    return {
        name: "new" if fate.becomes == "new" else fate.why
        for name, fate in fates_of(engine, views).items()
        if fate.why
    }


def fates_of(engine: Engine, views: Collection[LiveView]) -> dict[str, Fate]:
    """What becomes of views that are open, by name, in DAG order."""
    beside = {view.name: view.relations for view in views}
    keys = {name: key for view in views for name, key in view.plan.keys.items()}
    definitions = [view.definition for view in views]
    return fates(definitions, beside, engine.store, engine.manifest, keys)


def build_views(
    engine: Engine,
    views: Sequence[LiveView],
    kept: Sequence[ViewDefinition] = (),
    *,
    in_load: bool = False,
    tell: Callable[[BuildReport], None] | None = None,
) -> dict[str, MviewError]:
    """Build views over the published mirrors and publish them together, as one epoch.

    Args:
        views: what is to be built, in DAG order.
        kept: all views that are to be kept: of refused ones the manifest says so.
        in_load: the query of a load goes on afterwards. Then none may have been built before.
        tell: told when the build of a view begins and when it has ended well.

    Returns:
        Why views were not built: a declared key is not unique, the query or the sink fails.
    """
    names = {view.name for view in views}
    others = [view for view in engine.views.values() if view.name not in names]
    pin(engine, engine.views.values(), others)
    build = Build.begin(engine, engine.views, kept)
    for number, view in enumerate(views, 1):
        report = build.report(view, number, len(views))
        if tell is not None:
            tell(report)
        try:
            build.add(engine, view)
            if tell is not None:
                tell(replace(report, done=True))
        except Exception as error:
            build.leave_out(engine, view, halting(error, view.name, engine.store, engine.spark))
    failpoint("after-build")
    # A mirror that begins anew is allowed in a new generation only, and the next query is one; but
    # a load is the query of its own generation to its end.
    query = {} if in_load else {"generation": engine.manifest.generation + 1, "batch": -1}
    manifest = engine.next_manifest(**query, tables=build.tables, views=build.states)
    refused = engine.commit(manifest, build.tokens).halted
    engine.open_relations()
    return {
        name: e for name, e in {**build.failed, **refused}.items() if name not in engine.refused
    }


@dataclass
class Build:
    """What the builds of an epoch come to, so far."""

    epoch: int
    tables: dict[RelationId, TableState]
    states: dict[str, ViewState]
    tokens: dict[str, dict[str, Any]] = field(default_factory=dict)
    failed: dict[str, MviewError] = field(default_factory=dict)

    @classmethod
    def begin(
        cls, engine: Engine, views: Mapping[str, LiveView], kept: Sequence[ViewDefinition]
    ) -> Build:
        """Nothing is built yet.

        Args:
            views: all that are kept from this epoch on; what others have kept goes.
            kept: see `build_views`.
        """
        owned = {relation for view in views.values() for relation in view.relations}
        before = engine.manifest.tables.items()
        build = cls(
            epoch=engine.manifest.epoch + 1,
            tables={name: state for name, state in before if name.is_table or name in owned},
            states=dict(engine.manifest.views),
            failed=dict(engine.refused),
        )
        build.show_refused(engine, kept)
        return build

    def report(self, view: LiveView, number: int, views: int) -> BuildReport:
        """What is told of a build that begins: of how many rows, and how long such ones took."""
        read = [name for name in view.definition.table_names if name in self.tables]
        rows = sum(self.tables[name].rows for name in read)
        state = self.states.get(view.name)
        costs = [] if state is None else [costs_of(state, p.relation) for p in _plans(view)]
        seconds = sum(cost.full_seconds for cost in costs)
        before = costs[-1].full_rows if costs else 0
        expected = seconds * max(1.0, rows / max(1, before)) if seconds else None
        return BuildReport(view.name, number, views, rows, expected)

    def add(self, engine: Engine, view: LiveView) -> None:
        """Build a view; what it adds counts only when all of it is there."""
        if reads := self.failed.keys() & set(view.definition.read_views):
            raise reads_halted(view.name, min(reads))
        for table in filter(self.tables.__contains__, view.definition.table_names):
            if why := self.tables[table].halted:
                raise needs_halted_table(view.name, table, why)
        watch, built = Watch({}), dict(self.tables)
        with concerning(f"view {view.name}"), function_errors():
            with at_its_sink():
                folder = view.sink.staging(self.epoch)
            files = build_rows(engine, view, built, folder, watch)
            state = state_of(view, self.epoch, files, watch)
            failpoint("in-build")
            with at_its_sink():
                token = view.sink.stage_full(self.epoch, files)
        save_definition(engine.store, view.definition)
        self.tables, self.tokens[view.name] = built, token
        self.states[view.name] = with_former(state, self.states.get(view.name))

    def show_refused(self, engine: Engine, kept: Sequence[ViewDefinition]) -> None:
        """Have views that were never built, and are not worked on, stand in the manifest."""
        for definition in kept:
            name = definition.name
            if name in engine.refused and name not in self.states:
                save_definition(engine.store, definition)
                schema, digest = TableSchema((), ()), digest_of(definition)
                state = ViewState(digest, "", schema, sink={}, built_epoch=NEVER)
                self.states[name] = halted(state, engine.refused[name], engine.mask)

    def leave_out(self, engine: Engine, view: LiveView, error: MviewError) -> None:
        """Note that a view is not built: it keeps what was published of it, or is there without."""
        self.failed[view.name] = error
        state = self.states.get(view.name)
        if state is None or state.built_epoch == NEVER:
            save_definition(engine.store, view.definition)
            state = _not_built(view)
        else:
            state = with_tried(state, view.definition)
        self.states[view.name] = halted(state, error, engine.mask)
        # What it kept is of no use without it, and may have been begun anew.
        self.tables = {k: v for k, v in self.tables.items() if k not in view.relations}


def _plans(view: LiveView) -> tuple[ViewPlan, ...]:
    """What is computed for a view: its parts, and itself last."""
    return (*view.plan.parts, view.plan)


def pin(engine: Engine, views: Iterable[LiveView], others: Iterable[LiveView]) -> None:
    """Build at the time that it is, unless a view that is not built now would have to follow.

    Args:
        engine: builds.
        views: all that are kept then.
        others: those that are maintained without being built.
    """
    tick = tick_of(views, engine.config.engine.tick)
    if tick and not tick_of(others, tick):
        engine.pin(last_tick(engine.clock.now(), tick))


@dataclass(frozen=True)
class Watch:
    """Measures what the parts of a build take, by plan: the first guess of what FULL costs.

    Attributes:
        costs: what each took.
        executors: what ran their queries.
    """

    costs: dict[RelationId, Costs]
    executors: set[str] = field(default_factory=set)

    @property
    def executor(self) -> str:
        """What ran the build: `spark` where it ran a part of it."""
        return "local" if self.executors == {"local"} else "spark"

    @contextmanager
    def over(self, plan: ViewPlan, tables: Mapping[RelationId, TableState]) -> Iterator[None]:
        """Measure the block, in which a view or part is computed as a whole."""
        began = time.monotonic()
        yield
        seconds = time.monotonic() - began
        rows = full_rows(plan, tables)
        self.costs[plan.relation] = Costs().after_full(self.executor, rows, seconds)

    def to_json(self) -> dict[str, Any]:
        """What it has measured, as the manifest keeps it."""
        return {str(plan): costs.to_json() for plan, costs in self.costs.items()}


def build_rows(
    engine: Engine,
    view: LiveView,
    tables: dict[RelationId, TableState],
    folder: Path,
    watch: Watch,
) -> list[Path]:
    """Run a view's query and those of its parts and state; all but its own files go to mirrors."""
    for part in view.plan.parts:
        with watch.over(part, tables):
            _build_part(engine, part, tables, folder / "part", watch)
    with watch.over(view.plan, tables):
        plan, asked, at = view.plan, view.plan.full_definition, folder / "build"
        files = _batch(engine, plan, asked, tables, at, view.schema.key, plan.result, watch)
        _build_state(engine, plan, tables, folder / "state", watch)
    _check_key(engine, view, folder / "build")
    if view.is_read:
        kept = files if view.schema.key else _numbered(view.schema, files, folder / "numbered")
        schema = kept_as(view.schema)
        relation = view.definition.relation
        tables[relation] = _as_mirror(engine, relation, schema, kept)
    return files


def _numbered(schema: TableSchema, files: Sequence[Path], folder: Path) -> list[Path]:
    """The files with a number for each of their rows, which have no key."""
    folder.mkdir()
    begin, numbered = 0, []
    for file in files:
        rows = read_parquet(file, schema.arrow)
        numbered.append(folder / file.name)
        write_rows(numbered[-1], number_first(rows, begin))
        begin += rows.num_rows
    return numbered


def state_of(view: LiveView, epoch: int, files: Sequence[Path], watch: Watch) -> ViewState:
    """The state of a view that was built."""
    rows = sum(pq.read_metadata(file).num_rows for file in files)
    return ViewState(
        definition=digest_of(view.definition),
        strategy=view.plan.strategy,
        schema=view.schema,
        sink={},
        built_epoch=epoch,
        rows=rows,
        inserted=rows,
        facts={"epoch": epoch, "executor": watch.executor, COSTS: watch.to_json()},
    )


def _not_built(view: LiveView) -> ViewState:
    """The state of a view that was never built."""
    digest, strategy = digest_of(view.definition), view.plan.strategy
    return ViewState(digest, strategy, view.schema, sink={}, built_epoch=NEVER)


@contextmanager
def frames(
    engine: Engine, definition: ViewDefinition, tables: Mapping[RelationId, TableState]
) -> Iterator[dict[RelationId, str]]:
    """The relations of a query as temporary Spark views; yields their names."""
    frames = {}
    for name in filterfalse(is_clock, definition.table_names):
        state = tables[name]
        mirror = engine.mirror(name, state.schema)
        frames[name] = mirror_dataframe(engine.spark.session(), mirror, state)
    with temporary_views(engine.spark.session(), frames) as names:
        yield names


def _batch(
    engine: Engine,
    plan: ViewPlan,
    definition: ViewDefinition,
    tables: Mapping[RelationId, TableState],
    folder: Path,
    key: Sequence[str],
    result: pa.Schema | None,
    watch: Watch,
) -> list[Path]:
    """Run a query into Parquet files, by key.

    In process where an epoch would run it there, too: then Spark has nothing to compile, and its
    heap nothing to hold.
    """
    rows = _rows_per_file(engine, definition, tables)
    here = None if result is None else InProcess.of(engine, plan, definition, tables, result)
    if (
        here is not None
        and here.is_small
        and (built := here.rows_within(engine.memory.whole)) is not None
    ):
        watch.executors.add("local")
        return _write_here(built, folder, key, rows)
    watch.executors.add("spark")
    with frames(engine, definition, tables) as names:
        sql = bind_tables(definition, names, engine.pinned_ms)
        return _write(query(engine.spark.session(), sql), folder, key, rows)


def _rows_per_file(
    engine: Engine, definition: ViewDefinition, tables: Mapping[RelationId, TableState]
) -> int:
    """So many rows that they are no larger than a file should be, if they have all columns."""
    read = read_by(engine, definition, tables)
    width = sum(mirror.nbytes(state) // max(1, state.rows) for mirror, state in read)
    return max(1, min(_FILE_ROWS, engine.memory.file // max(1, width)))


def _build_part(
    engine: Engine,
    part: ViewPlan,
    tables: dict[RelationId, TableState],
    folder: Path,
    watch: Watch,
) -> None:
    """Add a part's rows and its state table to the tables."""
    asked = part.definition
    files = _batch(engine, part, asked, tables, folder, part.key, part.result, watch)
    tables[part.relation] = _as_mirror(engine, part.relation, part.output, files)
    shutil.rmtree(folder)
    _build_state(engine, part, tables, folder, watch)


def _write(frame: DataFrame, folder: Path, key: Sequence[str], rows: int) -> list[Path]:
    """Write Parquet files in key order, so that a later change touches few of them.

    Each of Spark's partitions has an order of its own. One order over all of them would touch fewer
    files, but a build took 1.5 times as long as a plain batch then, not 1.2 times.
    """
    # Delta readers expect micros; Spark's default is the deprecated INT96.
    frame.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    if key:
        frame = frame.sortWithinPartitions(*(F.col(quoted(name)) for name in key))
    writer = frame.write.mode("overwrite").option("maxRecordsPerFile", rows)
    writer.parquet(str(folder))
    return sorted(folder.glob("*.parquet"))


def _write_here(rows: pa.Table, folder: Path, key: Sequence[str], per_file: int) -> list[Path]:
    """The same of rows that are in process, in one order over all files."""
    folder.mkdir(parents=True, exist_ok=True)
    if key:
        rows = rows.sort_by([(name, "ascending") for name in key])
    files = []
    for begin in range(0, rows.num_rows, per_file):
        files.append(folder / f"part-{begin // per_file:05d}.parquet")
        with naming(files[-1]):
            encode(rows.slice(begin, per_file), files[-1])
    return files


def _check_key(engine: Engine, view: LiveView, folder: Path) -> None:
    """Refuse a declared key that two rows have, unless it is known that none can have."""
    declared = bool(view.definition.key) and not view.plan.has_proven_key
    if not declared or not list(folder.glob("*.parquet")):
        return
    frame = read_files(engine.spark.session(), [str(folder)])
    key = [F.col(quoted(name)) for name in view.definition.key]
    double = frame.groupBy(*key).count().where("count > 1").limit(3).collect()
    if double:
        raise UserError(
            f"the key ({', '.join(view.definition.key)}) of view {view.name} is not unique",
            where=view.definition.file,
            got="; ".join(str(row.asDict()) for row in double),
            safe="the view was not built; other views are untouched",
            hint="declare a key that is unique, or none",
        )


def _as_mirror(
    engine: Engine, relation: RelationId, schema: TableSchema, files: Sequence[Path]
) -> TableState:
    """A mirror with the rows of Parquet files, which are copied."""
    if (kept := engine.relations.pop(relation, None)) is not None:
        kept.close()
    mirror = engine.mirror(relation, schema)
    state = mirror.create()
    epoch, taken, count = engine.manifest.epoch + 1, [], 0
    for file in files:
        if rows := pq.read_metadata(file).num_rows:
            taken.append(mirror.new_file(epoch))
            shutil.copy2(file, taken[-1])
            count += rows
    version = mirror.take(epoch, taken)
    return replace(state, base_version=version, rows=count, phase="loaded")


def _build_state(
    engine: Engine,
    plan: ViewPlan,
    tables: dict[RelationId, TableState],
    folder: Path,
    watch: Watch,
) -> None:
    """Add the state table of a view or part, if it has one."""
    relation, definition = plan.state, plan.state_definition
    if relation is None or definition is None:
        return
    assert plan.state_result is not None
    result = plan.state_result
    files = _batch(engine, plan, definition, tables, folder, plan.state_key, result, watch)
    columns = tuple(Column(field.name, field.type) for field in plan.state_result)
    tables[relation] = _as_mirror(engine, relation, TableSchema(columns, plan.state_key), files)
    shutil.rmtree(folder)
