"""Test files run: their views read, their tables' columns asked for, Spark started if need be."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from mview.catalog.functions import declared_functions, folder_of, with_functions
from mview.catalog.tables import describe_tables, source_tables
from mview.config import Config
from mview.errors import ConfigError, RetryableError, UserError
from mview.execute.program import Evaluator
from mview.plan.definition import ViewDefinition, load_views
from mview.relation import RelationId
from mview.schema import TableSchema
from mview.store.history import ManifestLog
from mview.store.layout import Store
from mview.store.manifest import schemas_of
from mview.trial.cases import TEST_FILES, TestFile, TrialCase, read_tests
from mview.trial.chance import Chance, smaller
from mview.trial.record import Recorder
from mview.trial.trying import Trial, TrialOutcome
from mview.trial.world import TrialEngine


@dataclass(frozen=True)
class TrialProject:
    """What tests need beside their files.

    Attributes:
        config: tells the columns of tables that a file does not declare, the functions of views,
            and how Spark starts. None: there is none, and nothing of it may be needed.
        missing: why there is none.
    """

    config: Config | None
    missing: str = ""

    def needed(self, what: str, hint: str) -> Config:
        """The configuration.

        Raises:
            ConfigError: there is none; says what it was needed for.
        """
        if self.config is None:
            raise ConfigError(
                f"{what} needs a configuration: {self.missing}",
                hint=hint,
            )
        return self.config

    def views(self, paths: Sequence[Path]) -> list[ViewDefinition]:
        """The views of files and folders, with the declared functions."""
        return self.with_functions(load_views(paths))

    def with_functions(self, views: Sequence[ViewDefinition]) -> list[ViewDefinition]:
        """The views, with the declared functions."""
        if self.config is None:
            return list(views)
        return with_functions(views, declared_functions(self.config))

    def schemas(
        self, views: Sequence[ViewDefinition], declared: Mapping[RelationId, TableSchema]
    ) -> dict[RelationId, TableSchema]:
        """The columns of all tables of the views: declared, else of their databases or the store.

        Raises:
            UserError: nobody knows a table.
            RetryableError: a database cannot be reached, and the store has no such table.
        """
        read = set(source_tables(views))
        schemas = {name: schema for name, schema in declared.items() if name in read}
        if left := sorted(read - set(schemas)):
            config = self.needed(
                f"table {left[0]}",
                "declare its columns under tables: in the test file, or give --config",
            )
            last = ManifestLog(Store(config.store).manifests).latest()
            kept = schemas_of(last.tables if last else {})
            try:
                described = describe_tables(config, views, {**kept, **schemas})
            except RetryableError:
                if not set(left) <= set(kept):
                    raise
                described = {name: kept[name] for name in left}
            schemas |= {name: described[name] for name in left}
        return schemas


@contextmanager
def engine(project: TrialProject, views: Sequence[ViewDefinition]) -> Iterator[TrialEngine]:
    """What runs the queries of views, with a Spark that is started if one of them needs it."""
    with tempfile.TemporaryDirectory(prefix="mview-test-") as folder:
        stops: list[Callable[[], None]] = []

        def start(reason: str) -> Evaluator:
            # Here: most tests need none of it.
            from mview.catalog.spark_functions import register_functions
            from mview.execute.spark.executor import SparkExecutor
            from mview.session.lazy import Spark
            from mview.session.spark import spark_session

            config = project.needed(f"Spark, which a view needs ({reason}),", "give --config")
            # Logs of Spark go where nothing is kept: a test makes no store.
            spark = spark_session(config.model_copy(update={"store": Path(folder)}))
            stops.append(spark.stop)
            register_functions(spark, views, folder_of(config))
            return SparkExecutor(Spark.of(spark), {})

        with closing(TrialEngine(start)) as made:
            try:
                yield made
            finally:
                for stop in stops:
                    stop()


def run_file(
    project: TrialProject,
    file: TestFile,
    chosen: str | None = None,
    recorder: Recorder | None = None,
) -> Iterator[TrialOutcome]:
    """Run the tests of a file, one after the other.

    Args:
        chosen: only tests whose names have this in them.
        recorder: remembers what views show in tests that pass.

    Raises:
        UserError: a view or table of the file cannot be read or planned.
    """
    views = project.views(file.views)
    if light := [view.name for view in views if view.mode == "light"]:
        raise UserError(f"view {light[0]} is light: mview keeps nothing of it that could be tested")
    schemas = project.schemas(views, file.tables)
    with engine(project, views) as runs:
        trial = Trial(file.path, file.where, file.cases, views, schemas, runs)
        for number, case in enumerate(file.cases):
            if chosen is None or chosen in case.name:
                outcome = trial.run(number, None if recorder is None else recorder.see)
                if recorder is not None:
                    recorder.end(number, outcome.passed)
                yield outcome


@dataclass(frozen=True)
class ByChance:
    """What random tests gave.

    Attributes:
        tests: how many were run.
        seed: of the first of them.
        failed: the first that failed, as small as it could be made. None: all passed.
        outcome: how that one went.
    """

    tests: int
    seed: int
    failed: TrialCase | None = None
    outcome: TrialOutcome | None = None


def run_by_chance(project: TrialProject, paths: Sequence[Path], tests: int, seed: int) -> ByChance:
    """Run random tests of views, up to the first that fails.

    Args:
        paths: files and folders of views, and test files: their views, over the tables that they
            declare.
        tests: how many.
        seed: of the first; the others have the next numbers.

    Raises:
        UserError: there is no view that could be tested.
    """
    files = [read_tests(path) for path in paths if path.suffix in TEST_FILES]
    named = [path for path in paths if path.suffix not in TEST_FILES]
    named += [view for file in files for view in file.views]
    views = [view for view in project.views(named) if view.mode == "full"]
    if not views:
        raise UserError("no view to test: those of mode 'light' have no state")
    schemas = project.schemas(views, {n: s for file in files for n, s in file.tables.items()})
    chance = Chance(schemas, views)
    with engine(project, views) as runs:

        def outcome(case: TrialCase) -> TrialOutcome:
            return Trial(Path("random"), lambda *_: "", [case], views, schemas, runs).run(0)

        def smallest(case: TrialCase, first: TrialOutcome) -> TrialCase:
            return smaller(case, lambda each: _alike(outcome(each), first))

        for number in range(tests):
            case = chance.case(seed + number)
            first = outcome(case)
            if first.failures:
                small = smallest(case, first)
                return ByChance(number + 1, seed, small, outcome(small))
    return ByChance(tests, seed)


def _alike(outcome: TrialOutcome, first: TrialOutcome) -> bool:
    """Whether a smaller test fails in the way of the first one."""
    same = outcome.is_wrong == first.is_wrong
    return bool(outcome.failures) and same and outcome.failures[0] == first.failures[0]
