"""The commands beside `run` and `demo`: each computes, and leaves the printing to Output."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mview.cli.completing import files as files_here
from mview.cli.completing import names as names_of
from mview.cli.options import (
    App,
    config_option,
    debug_option,
    default_config,
    env_option,
    json_option,
    select_option,
    views_argument,
)
from mview.errors import ExitCode, FreshnessError, UserError, several

if TYPE_CHECKING:
    from mview.admin.status import StoreStatus
    from mview.admin.verify import VerifyResult
    from mview.cli.checking import Checked, Checker
    from mview.config import Config
    from mview.trial.files import TrialProject
    from mview.trial.trying import TrialOutcome

offline_option = click.option(
    "--offline", is_flag=True, help="Do not connect: take the columns that the store has kept."
)


@click.command()
@views_argument
@config_option
@offline_option
@json_option
@select_option
@click.pass_obj
def check(
    app: App,
    files: tuple[str, ...],
    config_path: str,
    offline: bool,
    selectors: tuple[str, ...],
) -> None:
    """Find what is wrong in views and configuration, without Spark."""
    from mview.cli.render import checked_json, checked_text

    _, views = _check(app, files, config_path, offline, selectors)
    app.output.result([checked_json(view) for view in views], checked_text(views))
    if any(view.error for view in views):
        sys.exit(ExitCode.CHECK_FAILED)


@click.command()
@click.argument("files", nargs=-1, metavar="[FILE|FOLDER…]", shell_complete=files_here)
@config_option
@json_option
@click.pass_obj
def doctor(app: App, files: tuple[str, ...], config_path: str) -> None:
    """Look at all that a run needs: Java, store, databases, changelogs, sinks. Changes nothing.

    For the views of the store, and those that are given. Ends with 1 when something must be mended.
    """
    from mview.admin.doctor import Doctor
    from mview.cli.render import doctor_text
    from mview.plan.definition import read_views

    config = app.config(config_path)
    views, unread = read_views(files) if files else ([], [])
    findings = Doctor(config, views, unread).examine()
    app.output.result(findings, doctor_text(findings), fold=True)
    if any(finding.state == "wrong" for finding in findings):
        sys.exit(ExitCode.CHECK_FAILED)


@click.command()
@views_argument
@config_option
@offline_option
@json_option
@select_option
@click.pass_obj
def explain(
    app: App,
    files: tuple[str, ...],
    config_path: str,
    offline: bool,
    selectors: tuple[str, ...],
) -> None:
    """Print how each view is kept up: its plan as a tree, and the reason of every FULL."""
    from mview.cli.costs import plan_cost
    from mview.cli.render import explained_json, explained_text

    checker, views = _check(app, files, config_path, offline, selectors)
    if wrong := [view.error for view in views if view.error]:
        raise several(wrong)
    plans = [view.plan for view in views if view.plan]
    costs = partial(plan_cost, manifest=checker.manifest)

    text = "\n\n".join(explained_text(plan, costs) for plan in plans)
    app.output.result([explained_json(plan, costs) for plan in plans], text)


@click.command()
@click.argument("files", nargs=-1, metavar="[FILE|FOLDER…]", shell_complete=files_here)
@config_option
@offline_option
@env_option
@json_option
@select_option
@click.pass_obj
def plan(
    app: App,
    files: tuple[str, ...],
    config_path: str,
    offline: bool,
    selectors: tuple[str, ...],
) -> None:
    """Show what `mview run` of these files would do: build, build anew, load. Nothing is done.

    Without files: those that the newest run was given, as they are now. Ends with 6 when a view
    that is there is built anew, with 1 when one is refused.
    """
    from mview.cli.planning import plan_run
    from mview.cli.render import planned_text

    checker, views = _check(app, files, config_path, offline, selectors)
    planned = plan_run(checker.config, views, checker.manifest, checker.schemas)
    app.output.result(planned, planned_text(planned), fold=True)
    if planned.refuses:
        sys.exit(ExitCode.CHECK_FAILED)
    if planned.rebuilds:
        sys.exit(ExitCode.REBUILDS)


@click.command()
@click.argument("named", nargs=-1, metavar="[FILE|FOLDER|VIEW…]", shell_complete=files_here)
@config_option
@offline_option
@json_option
@click.option("--mermaid", is_flag=True, help="Print tables, views and sinks as a Mermaid diagram.")
@click.option("--columns", is_flag=True, help="With --mermaid: the diagram is of columns.")
@click.option(
    "--openlineage", is_flag=True, help="Print a line of JSON per view: OpenLineage's JobEvent."
)
@select_option
@click.pass_obj
def lineage(
    app: App,
    named: tuple[str, ...],
    config_path: str,
    offline: bool,
    mermaid: bool,
    columns: bool,
    openlineage: bool,
    selectors: tuple[str, ...],
) -> None:
    """Show what views read, who reads them, and of which columns each of theirs is made.

    Without files: of the views that the store has, or of those that are named.
    """
    from mview.catalog.selecting import is_name, selected
    from mview.cli.explore import lineage as texts

    if columns and not mermaid:
        raise click.UsageError("--columns is of the diagram: --mermaid --columns")
    forms = {"--json": app.output.as_json, "--mermaid": mermaid, "--openlineage": openlineage}
    if len(asked := [form for form, is_asked in forms.items() if is_asked]) > 1:
        raise click.UsageError(f"{' and '.join(asked)}: ask for one of them")
    files = tuple(name for name in named if _is_file(name))
    selectors += tuple(name for name in named if name not in files)
    if files:
        checker, views = _check(app, files, config_path, offline, selectors)
    else:
        if any(not is_name(selector) for selector in selectors):
            raise click.UsageError(
                "files have tags and what has changed, the store has none: name them"
            )
        checker = _checker(app, config_path, offline)
        views = checker.check_kept()
        kept = [view.definition for view in views]
        meant = {view.name for view in selected(checker.config, kept, selectors)}
        views = [view for view in views if view.definition.name in meant]
    if wrong := [view.error for view in views if view.error]:
        raise several(wrong)
    if openlineage:
        from mview.cli.explore.openlineage import ViewJobs
        from mview.clock import SystemClock

        jobs, now_ms = ViewJobs(checker.config, views, checker.known_schemas), SystemClock().now()
        for name in jobs.names:
            app.output.json_line(jobs.job_event(name, now_ms))
        return
    told, text = texts.lineage_of(views), texts.lineage_text
    if mermaid:
        text = texts.columns_mermaid_text if columns else texts.mermaid_text
    app.output.result(told, text(told), fold=not mermaid)


def _check(
    app: App,
    files: tuple[str, ...],
    config_path: str,
    offline: bool,
    selectors: tuple[str, ...],
) -> tuple[Checker, list[Checked]]:
    from mview.catalog.selecting import selected
    from mview.cli.checking import files_of_run
    from mview.plan.definition import read_views

    checker = _checker(app, config_path, offline)
    views, unread = read_views(files or files_of_run(checker.config))
    chosen = selected(checker.config, views, selectors)
    if views and not chosen:
        app.output.note("none of these views has changed")
    return checker, checker.check(chosen, unread)


def _is_file(name: str) -> bool:
    """Whether what is named is a file or folder of views, be it there or not, and no view."""
    return Path(name).exists() or "/" in name or name.endswith(".sql")


def _checker(app: App, config_path: str, offline: bool) -> Checker:
    from mview.cli.checking import Checker

    return Checker(app.config(config_path, begins=True), offline, app.output.note)


@click.command()
@config_option
@env_option
@json_option
@click.option(
    "--check-freshness",
    is_flag=True,
    help=f"End with {ExitCode.FRESHNESS_MISSED} when a view is older than its freshness, halted or "
    "not built, none is there yet, a sink does not get on, or the run ended by an error.",
)
@click.option(
    "--history",
    "epochs",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Show the strategies of each view in its newest N epochs, and what they took.",
)
@click.pass_obj
def status(app: App, config_path: str, check_freshness: bool, epochs: int) -> None:
    """Show what the store has: tables, views, epoch, lag, and whether it is running."""
    from mview.admin.status import not_fresh
    from mview.admin.status import status as store_status
    from mview.cli.render import status_text

    config = app.config(config_path)
    told = store_status(config, epochs=epochs)
    app.output.result(told, app.output.advised(status_text(told)), fold=True)
    if check_freshness and (reasons := not_fresh(told)):
        raise FreshnessError(
            f"not fresh: {'; '.join(reasons)}",
            where=told.store,
            safe="what was published is right as of its epoch",
            hint=_fresher(told, config),
        )


def _fresher(told: StoreStatus, config: Config) -> str:
    """The command that helps where not all is fresh."""
    if not told.running:
        return f"nobody runs the store: mview run{config.option} FILE…"
    if any(view.degraded for view in told.views):
        return "mview quarantine list"
    return f"mview lag{config.option}, and what the run says, tell what is waited for"


@click.command()
@click.argument(
    "files", nargs=-1, required=True, metavar="FILE|FOLDER…", type=click.Path(path_type=Path)
)
@config_option
@json_option
@click.option("-k", "--only", metavar="TEXT", help="Only tests whose names have TEXT in them.")
@click.option(
    "--random",
    "tests",
    type=click.IntRange(min=1),
    metavar="N",
    help="Run N tests with random rows and changes instead; FILE may be a view, too.",
)
@click.option("--seed", type=int, help="With --random: of the first test; default: today's.")
@click.option(
    "--record",
    "records",
    is_flag=True,
    help="Write what the views show into the file, as expect of tests and steps that have none; "
    "of tests that pass.",
)
@click.pass_obj
def test(
    app: App,
    files: tuple[Path, ...],
    config_path: str,
    only: str | None,
    tests: int | None,
    seed: int | None,
    records: bool,
) -> None:
    """Run tests of views: rows that are given, changes, and what the views must show.

    Without a store, a database or Spark, but for what only Spark can tell. After every step a view
    must also equal its batch query.
    """
    from mview.cli.render import (
        by_chance_json,
        by_chance_text,
        outcome_text,
        outcomes_text,
        recorded_text,
    )
    from mview.trial.cases import find_files, read_tests
    from mview.trial.files import run_by_chance, run_file
    from mview.trial.record import Recorder

    if records and tests is not None:
        raise click.UsageError("--record writes into test files: without --random")
    project = _project(app, config_path)
    if tests is not None:
        result = run_by_chance(project, files, tests, _seed_of_today() if seed is None else seed)
        app.output.result(by_chance_json(result), by_chance_text(result))
        if result.failed:
            sys.exit(ExitCode.CHECK_FAILED)
        return
    if seed is not None:
        raise click.UsageError("--seed is for random tests: with --random")
    outcomes: list[TrialOutcome] = []
    refused: list[UserError] = []
    for file in [read_tests(path) for path in find_files(files)]:
        recorder = Recorder(file) if records else None
        ran = []
        for outcome in run_file(project, file, only, recorder):
            ran.append(outcome)
            app.output.line(outcome_text(outcome))
        if recorder is not None and ran:
            try:
                times = recorder.write()
            except UserError as error:
                refused.append(error)
            else:
                ran = [replace(o, recorded=n) for o, n in zip(ran, times, strict=True)]
                app.output.line(recorded_text(file.path, sum(times)))
        outcomes += ran
    if not outcomes:
        raise UserError(f"no test has {only!r} in its name")
    app.output.result(outcomes, outcomes_text(outcomes))
    if refused:
        raise several(refused, "files were not written")
    if not all(outcome.passed for outcome in outcomes):
        sys.exit(ExitCode.CHECK_FAILED)


def _seed_of_today() -> int:
    return dt.datetime.now(dt.timezone.utc).date().toordinal() * 1_000_000


def _project(app: App, config_path: str) -> TrialProject:
    from mview.trial.files import TrialProject

    if config_path == default_config() and not Path(config_path).exists():
        return TrialProject(None, f"there is no {config_path}")
    return TrialProject(app.config(config_path))


@click.command()
@click.argument("names", nargs=-1, metavar="FILE|FOLDER|TABLE…", shell_complete=files_here)
@config_option
@env_option
@json_option
@click.option(
    "--source",
    is_flag=True,
    help="Compare our copies of the tables with their databases first: those that are named, those "
    "that the views read, or all.",
)
@click.option(
    "--repair",
    is_flag=True,
    help="With --source: have the run read the chunks anew in which rows differ.",
)
@select_option
@click.pass_obj
def verify(
    app: App,
    names: tuple[str, ...],
    config_path: str,
    source: bool,
    repair: bool,
    selectors: tuple[str, ...],
) -> None:
    """Recompute views as a batch over the published epoch, and compare with their sinks.

    With --source it may run beside `mview run`, and should: what has changed since is waited for.
    """
    if source:
        if app.environment:
            raise click.UsageError("--source is for production's tables, which environments share")
        _verify_source(app, names, config_path, repair, selectors)
        return
    if repair:
        raise click.UsageError("--repair is for tables: with --source")
    if not names:
        raise click.UsageError("name files or folders of views; or --source for the tables")
    from mview.catalog.environments import unpublished
    from mview.catalog.selecting import chosen
    from mview.cli.render import verified_text
    from mview.plan.definition import load_views

    config = app.config(config_path)
    views = load_views(names)
    if config.environment:
        views = [unpublished(view) for view in views]
    views = chosen(config, views, selectors)
    from mview.admin.verify import verify as verify_views

    results = verify_views(config, views)
    app.output.result(results, verified_text(results), fold=True)
    if not all(result.is_right for result in results):
        sys.exit(ExitCode.CHECK_FAILED)


def _verify_source(
    app: App,
    names: tuple[str, ...],
    config_path: str,
    repair: bool,
    selectors: tuple[str, ...],
) -> None:
    from mview.admin.against_source import verify_tables
    from mview.catalog.selecting import chosen
    from mview.cli.render import source_text, verified_text
    from mview.cli.results import Verified
    from mview.plan.definition import load_views
    from mview.relation import RelationId

    config = app.config(config_path)
    files = [name for name in names if _is_file(name)]
    if selectors and not files:
        raise click.UsageError("--select is of views: name their files or folders")
    views = chosen(config, load_views(files), selectors) if files else []
    named = [RelationId.of(name) for name in names if name not in files]
    read = [name for view in views for name in view.table_names if name.is_table]
    wanted = list(dict.fromkeys([*named, *read]))
    tables = verify_tables(config, wanted, app.output.note, repair=repair)
    results: Sequence[VerifyResult] = ()
    if views:
        from mview.admin.verify import verify as verify_views

        results = verify_views(config, views)
    texts = [source_text(tables), verified_text(results)]
    app.output.result(Verified(tables, results), "\n".join(filter(None, texts)), fold=True)
    if not (all(table.equal for table in tables) and all(r.is_right for r in results)):
        sys.exit(ExitCode.CHECK_FAILED)


@click.command()
@click.argument("url", metavar="URL")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="Where the files go; default: here.",
)
@click.option("--name", help="Of the connection in SQL; default: the database's name.")
@click.option(
    "--triggers",
    is_flag=True,
    help="SQLite: make triggers that note changes, also where the files are there already.",
)
@json_option
@debug_option
@click.pass_obj
def init(app: App, url: str, folder: Path, name: str | None, triggers: bool) -> None:
    """Look at a database, and write a configuration and a first view for it.

    URL is SQLAlchemy's, without a password: postgresql://user@host/database, mariadb://…,
    sqlite:///file.db. Nothing is changed in the database, but for --triggers.
    """
    from mview.admin.init import init as begin
    from mview.cli.render import begun_text

    begun = begin(url, folder, name, triggers=triggers)
    app.output.result(begun, begun_text(begun), fold=True)
    if not begun.is_readable:
        sys.exit(ExitCode.CHECK_FAILED)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_obj
def completion(app: App, shell: str) -> None:
    """Print what makes the shell complete commands and options.

    For bash, put this into ~/.bashrc: eval "$(mview completion bash)"
    """
    from click.shell_completion import get_completion_class

    from mview.cli.app import main

    made = get_completion_class(shell)
    assert made is not None, "click has these shells"
    app.output.line(made(main, {}, "mview", "_MVIEW_COMPLETE").source())


@click.command()
@click.argument("names", nargs=-1, metavar="[VIEW…]", shell_complete=names_of(views=True))
@config_option
@json_option
@click.pass_obj
def maintain(app: App, names: tuple[str, ...], config_path: str) -> None:
    """Compact the tables of views in their sinks, and remove what no reader needs any more.

    All views, or those that are named. What is read stays as it is. It may run beside `mview run`.
    """
    from mview.admin.mending.maintain import maintain as maintain_views
    from mview.cli.render import maintained_text

    results = []
    for result in maintain_views(app.config(config_path), names):
        results.append(result)
        app.output.line(maintained_text(result))
    if app.output.as_json or not results:
        app.output.result(results, "no view has a sink that follows it")
    if any(result.error for result in results):
        sys.exit(ExitCode.CHECK_FAILED)


@click.command()
@click.argument(
    "names", nargs=-1, metavar="NAME…", shell_complete=names_of(views=True, tables=True)
)
@config_option
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--keep-tables/--drop-tables",
    "keep_tables",
    default=True,
    show_default=True,
    help="What becomes of our copies of tables that no view reads any more.",
)
@env_option
@json_option
@click.pass_obj
def drop(app: App, names: tuple[str, ...], config_path: str, yes: bool, keep_tables: bool) -> None:
    """Remove views with their data. The databases are not touched.

    With --env: views of an environment; without a name the whole of it.
    """
    if not names:
        _drop_environment(app, config_path, yes)
        return
    from mview.admin.drop import drop as drop_views
    from mview.admin.drop import going
    from mview.cli.render import going_text
    from mview.cli.results import Dropped

    config = app.config(config_path)
    what = going(config, names, with_tables=not keep_tables)
    _ask(app, going_text(what), yes)
    left = drop_views(config, names, with_tables=not keep_tables)
    lines = [f"dropped: {', '.join([*what.views, *what.tables])}"]
    lines += [
        f"{name}: its definition was damaged: a table at a path of its own stays"
        for name in left.damaged
    ]
    lines += left.at_servers
    app.output.result(Dropped(what, left.damaged, left.at_servers), "\n".join(lines))


def _ask(app: App, going: str, yes: bool) -> None:
    """Tell what goes, and ask for it unless that was said already."""
    app.output.line(going, fold=True)
    if not yes:
        if app.output.as_json:  # on stderr: what --json prints is read by programs
            app.output.note(going)
        click.confirm("Drop that?", abort=True, err=app.output.as_json)


def _drop_environment(app: App, config_path: str, yes: bool) -> None:
    """Remove an environment entirely."""
    if not (name := app.environment):
        raise click.UsageError("name views or tables; or an environment: --env NAME")
    from mview.admin.drop import Going
    from mview.admin.mending.environments import drop_environment, environment_status
    from mview.cli.render import environment_lines
    from mview.cli.results import Dropped
    from mview.store.environments import production_of
    from mview.store.layout import Store

    store = Store(production_of(Store(app.config(config_path).store, any_format=True)))
    told = environment_status(store, name)
    _ask(app, "\n".join([f"goes:  environment {name}", *environment_lines([told])]), yes)
    drop_environment(store, name)
    what = Going(dict(told.views), {}, {}, [], [])
    app.output.result(Dropped(what, ()), f"dropped: environment {name}")


@click.command()
@click.argument(
    "names", nargs=-1, required=True, metavar="VIEW…", shell_complete=names_of(views=True)
)
@config_option
@json_option
@click.pass_obj
def repair(app: App, names: tuple[str, ...], config_path: str) -> None:
    """Take back what others have written to the tables of views."""
    from mview.admin.mending.repair import repair as repair_views
    from mview.cli.results import Repaired

    built = repair_views(app.config(config_path), names)
    told = [Repaired(name, name in built) for name in names]
    anew = "; the next mview run builds it anew, the others go on"
    lines = [
        f"{view.view}: its table is as mview left it{anew if view.built_anew else ''}"
        for view in told
    ]
    app.output.result(told, "\n".join(lines))


@click.command()
@config_option
@json_option
@click.pass_obj
def migrate(app: App, config_path: str) -> None:
    """Bring a store of an older version of mview to the format of this one.

    Nothing may run on it. Copy its folder first: an older version cannot read it afterwards.
    """
    from mview.admin.migrate import migrate as migrate_store
    from mview.cli.render import migrated_text

    result = migrate_store(app.config(config_path))
    app.output.result(result, migrated_text(result))
