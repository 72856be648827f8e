"""`mview demo`: the whole way once, on a small shop that keeps changing."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mview.cli.display.progress import duration_text
from mview.cli.options import App, debug_option
from mview.errors import ConfigError, ExitCode, counted

if TYPE_CHECKING:
    from mview.cli.demo.conductor import Conductor
    from mview.config import Config
    from mview.plan.definition import ViewDefinition

#: A folder with this file in it was made by the demo and may be made anew.
_MARK = ".mview-demo"
_NEXT = """
What next (the demo's database stays):

  cd {folder}{path}
  mview status                                     what the store has
  mview explain sql/shop/order_revenue.sql         how the view is kept up
  mview run sql/shop --once                        two more views, one of them on a view
  cat sql/shop/*.sql conf/mview.yml changes/*      what all this was made of
  python -c 'import mview; print(mview.connect()["order_revenue"].df())'"""

#: Rows of the table that are shown.
_SHOWN = 8


@click.command()
@click.option(
    "--path",
    "folder",
    default="demo",
    show_default=True,
    metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the demo is set up; an earlier demo there is replaced.",
)
@debug_option
@click.pass_obj
def demo(app: App, folder: Path) -> None:
    """See it work: a database that keeps changing, and a view of it that stays right.

    Needs nothing but Java 17. Takes about a minute.
    """
    from mview.admin.verify import verify
    from mview.cli.render import verified_text
    from mview.plan.definition import load_views

    say = app.output.line
    say("Making a shop in SQLite …")
    set_up(folder)
    say(f"{folder / 'shop.db'}: customers, orders, order lines. From now on a process changes it.")

    view, settings = folder / "sql/shop/order_revenue.sql", folder / "conf/mview.yml"
    config, views = app.config(str(settings)), load_views([view])
    say(f"\n$ mview run {view} --config {settings}")
    conductor = _run(app, config, views, folder)
    _show_table(app, config)
    _show_freshness(app, conductor)

    say(f"\n$ mview verify {view} --config {settings}")
    results = verify(config, views)
    say(verified_text(results))
    if not all(result.equal for result in results):
        sys.exit(ExitCode.CHECK_FAILED)
    say(_NEXT.format(folder=folder, path=_path_hint()))


def set_up(folder: Path) -> None:
    """Make the demo's folder: database, folder of changes, configuration, views.

    Raises:
        ConfigError: the folder has something else in it.
    """
    from mview.cli.demo import shop

    if folder.exists() and any(folder.iterdir()):
        if not (folder / _MARK).exists():
            raise ConfigError(
                "the folder for the demo is not empty, and not an earlier demo",
                where=str(folder),
                safe="nothing was changed",
                hint="give another one with --path",
            )
        shutil.rmtree(folder)
    (folder / "changes").mkdir(parents=True)
    (folder / _MARK).touch()
    files = _files()
    shutil.copytree(files / "sql" / "shop", folder / "sql" / "shop")
    (folder / "conf").mkdir()
    shutil.copyfile(files / "conf" / "demo.yml", folder / "conf" / "mview.yml")
    shop.create(folder / "shop.db")


def _files() -> Path:
    """Where sql/ and conf/ are: in the wheel beside this module, in a checkout at its top."""
    packed = Path(__file__).parent / "files"
    return packed if packed.is_dir() else Path(__file__).parents[3]


def _path_hint() -> str:
    """What makes the commands of this environment known to the shell, when they are not."""
    ours = Path(sys.executable).parent
    command = shutil.which("mview")
    if command and Path(command).parent == ours:
        return ""
    return f'\n  export PATH="{ours}:$PATH"'


def _run(app: App, config: Config, views: Sequence[ViewDefinition], folder: Path) -> Conductor:
    """Run the views while the writer writes; ends by itself when every change is published."""
    from mview.cli.demo.conductor import Conductor, ShopWriter
    from mview.cli.display.progress import display_for
    from mview.cli.run import drive
    from mview.run.pipeline import Pipeline

    display = display_for(app.output)
    with ShopWriter(folder) as writer:
        conductor = Conductor(display, writer)
        pipeline = Pipeline(config, views, listener=conductor)
        beside = threading.Thread(target=conductor.conduct, args=[pipeline], daemon=True)
        beside.start()
        try:
            interrupted = drive(pipeline, display, app.output, once=False)
        finally:
            conductor.over()
            beside.join()
    if conductor.failure:
        raise conductor.failure
    if interrupted:
        sys.exit(ExitCode.INTERRUPTED)
    return conductor


def _show_table(app: App, config: Config) -> None:
    from mview.admin.content import StoredView

    view = StoredView(config, "order_revenue")
    rows = view.arrow().to_pandas().sort_values("order_id", ascending=False)
    many = counted(len(rows), "row")
    app.output.line(f"\nThe Delta table {view.path}, epoch {view.epoch}: {many}")
    app.output.line(rows.head(_SHOWN).to_string(index=False))


def _show_freshness(app: App, conductor: Conductor) -> None:
    written, lags = conductor.written, sorted(conductor.lags)
    app.output.line(
        f"\nThe writer made {counted(written['changes'], 'change')} in "
        f"{counted(written['transactions'], 'transaction')}, "
        "while the tables were loaded and after."
    )
    if lags:
        app.output.line(
            "Age of the newest change when its epoch was published, "
            f"over {counted(len(lags), 'epoch')}: "
            f"median {duration_text(lags[len(lags) // 2])}, "
            f"95% below {duration_text(lags[len(lags) * 95 // 100])}, "
            f"worst {duration_text(lags[-1])}"
        )
