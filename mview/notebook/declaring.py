"""A view written in a cell: checked, explained, previewed, and taken up by the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from mview.admin.apply import apply_views
from mview.cli.checking import Checked, Checker
from mview.cli.costs import plan_cost
from mview.cli.planning import plan_run
from mview.cli.render import applied_text, explained_text, planned_text
from mview.clock import SystemClock
from mview.config import Config, secret_values
from mview.errors import MviewError, RetryableError, UserError, counted, several, without_secrets_in
from mview.files.durable import put
from mview.plan.definition import ViewDefinition, load_views, order_views, parse_view
from mview.secrets import Mask
from mview.store.history import ManifestLog
from mview.store.layout import Store
from mview.store.lease import Lease
from mview.store.requests.asked import asked_files
from mview.trial.preview import Preview, preview

if TYPE_CHECKING:
    import pandas as pd

#: Rows of a preview that are shown, and rows of each table that are read for it.
_SHOWN, _SAMPLE = 10, 100_000

#: What this process has written into view files: a cell that is changed may replace what it wrote.
_written: dict[Path, bytes] = {}


@dataclass(frozen=True)
class Declared:
    """What was found out of a view in a cell, and done with it.

    Attributes:
        view: its name.
        plan: how it is kept, as `mview explain` prints it.
        planned: what a run does for it, as `mview plan` prints it.
        preview: what its query gives of the databases; None: it cannot be told.
        no_preview: why.
        done: what was done.
    """

    view: str
    plan: str
    planned: str
    preview: Preview | None
    no_preview: str
    done: str

    def __repr__(self) -> str:
        shown = self.rows.to_string(index=False)
        return "\n".join(filter(None, [self.plan, "", self._told(), shown, "", self.done]))

    @property
    def rows(self) -> pd.DataFrame:
        """The first rows of the preview."""
        import pandas as pd

        if self.preview is None:
            return pd.DataFrame()
        return pd.DataFrame(
            self.preview.rows, columns=[name for name, _ in self.preview.columns], dtype=object
        )

    def _repr_html_(self) -> str:
        shown = self.rows.to_html(index=False, max_cols=50) if self.preview else ""
        plan = f"{self.plan}\n\n{self.planned}"
        return (
            f"<details><summary>{escape(self.view)}: how it is kept</summary>"
            f"<pre>{escape(plan)}</pre></details><p>{escape(self._told())}</p>{shown}"
            f"<p>{escape(self.done)}</p>"
        )

    def _told(self) -> str:
        if self.preview is None:
            return f"no preview: {self.no_preview}"
        sampled = [
            f"the first {counted(table.rows, 'row')} of {table.table}"
            for table in self.preview.tables
            if table.sampled
        ]
        over = (
            f"{', '.join(sampled)}: sums are too small, joins may lack rows"
            if sampled
            else ("all rows of the databases")
        )
        return f"preview over {over}; {counted(self.preview.count, 'row')}"


def declare(
    config: Config,
    name: str,
    text: str,
    *,
    folder: Path | None,
    replace: bool,
    dry: bool,
    say: Callable[[str], None],
) -> Declared:
    """Check a view, and have it kept from now on.

    It is written as `<name>.sql` into the folder of views. A run that goes on takes it up at once;
    else the next one does.

    Args:
        config: of the store.
        name: the view's name.
        text: the SELECT, or CREATE MATERIALIZED VIEW.
        folder: of views; None: that of the newest run, else `views` here.
        replace: a file that is there and that this process has not written is replaced.
        dry: nothing is written.
        say: is told of remarks.

    Raises:
        UserError: the view is wrong, or refused by the run; nothing was changed.
        RetryableError: a database cannot be reached, or the run has ended meanwhile.
    """
    with _masked(config):
        file = ((folder or _folder(config)) / f"{name}.sql").resolve()
        definition = parse_view(text, name, str(file))
        if definition.name != name:
            raise UserError(
                f"the cell says view {definition.name!r}, its first line {name!r}",
                hint=f"%%mview {definition.name}",
            )
        beside = _not_in_the_store(config, definition, file.parent)
        checker, checked = _check(config, definition, beside, say)
        planned = plan_run(config, checked, checker.manifest, checker.schemas)
        plan = next(view.plan for view in checked if view.definition.name == name)
        costs = partial(plan_cost, manifest=checker.manifest)
        explained = "only Spark can tell" if plan is None else explained_text(plan, costs)
        try:
            shown = preview(config, text, [v.file for v in beside], _SAMPLE, _SHOWN, say)
            why = ""
        except (UserError, RetryableError) as error:  # that is no reason to refuse the view
            shown, why = None, error.what
        done = "not written: --dry"
        if not dry:
            done = _create(config, definition, text, file, replace, say)
        return Declared(name, explained, planned_text(planned), shown, why, done)


@contextmanager
def _masked(config: Config) -> Iterator[None]:
    """Take secrets out of what databases and their libraries say."""
    try:
        yield
    except MviewError as error:
        raise without_secrets_in(error, Mask(secret_values(config))) from None


def _folder(config: Config) -> Path:
    folders = [Path(name) for name in asked_files(Store(config.store)) if Path(name).is_dir()]
    return folders[0] if folders else Path("views")


def _not_in_the_store(
    config: Config, definition: ViewDefinition, folder: Path
) -> list[ViewDefinition]:
    """Views that are read and that no run has built yet, from the files beside."""
    manifest = ManifestLog(Store(config.store).manifests).latest()
    known = set() if manifest is None else set(manifest.views)
    views: dict[str, ViewDefinition] = {}
    waiting = [definition]
    while waiting:
        for name in waiting.pop().read_views:
            file = folder / f"{name}.sql"
            if name not in known and name not in views and file.exists():
                read = load_views([file])
                views |= {view.name: view for view in read}
                waiting += read
    return order_views([*views.values()])


def _check(
    config: Config,
    definition: ViewDefinition,
    beside: Sequence[ViewDefinition],
    say: Callable[[str], None],
) -> tuple[Checker, list[Checked]]:
    """Check a view with those of the files that it reads.

    Raises:
        UserError: one of them is wrong.
    """
    mask = Mask(secret_values(config))
    checker = Checker(config, False, lambda note: say(mask(note)))
    views = checker.check([*beside, definition])
    if wrong := [view.error for view in views if view.error is not None]:
        raise several(wrong)
    return checker, views


def _create(
    config: Config,
    definition: ViewDefinition,
    text: str,
    file: Path,
    replace: bool,
    say: Callable[[str], None],
) -> str:
    """Write the file, and have the run take it; the file is as it was where it does not."""
    content = f"{text.rstrip()}\n".encode()
    before = file.read_bytes() if file.exists() else None
    if before not in (None, content, _written.get(file)) and not replace:
        raise UserError(
            "there is another view file of this name, and no cell of this session wrote it",
            where=str(file),
            safe="nothing was changed",
            hint=f"%%mview {definition.name} --replace, or another name",
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    put(file, content)
    if Lease(Store(config.store).lease, SystemClock()).holder() is None:
        _written[file] = content
        return f"written to {file}; nobody runs the store: p.run({str(file.parent)!r})"
    try:
        answer = apply_views(config, [definition], [], say)
    except RetryableError:
        _written[file] = content
        raise  # the next run takes up what is in the file
    if answer.state == "refused":
        if before is None:
            file.unlink(missing_ok=True)
        else:
            put(file, before)
        raise UserError(
            f"the run refuses view {definition.name}: {answer.error}",
            safe="nothing was changed; the run goes on as it was",
        )
    _written[file] = content
    return f"written to {file}\n{applied_text(answer)}"
