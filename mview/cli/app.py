"""The `mview` command: its commands, and the one place where errors become exit codes."""

from __future__ import annotations

import sys
from typing import Any

import click

from mview.cli.advice import as_called
from mview.cli.apply import apply
from mview.cli.commands import (
    check,
    completion,
    doctor,
    drop,
    explain,
    init,
    lineage,
    maintain,
    migrate,
    plan,
    repair,
    status,
    test,
    verify,
)
from mview.cli.demo.command import demo
from mview.cli.explore.bundle import support_bundle
from mview.cli.explore.past import history, lag
from mview.cli.explore.preview import preview
from mview.cli.explore.why import why
from mview.cli.mending.loads import backfill, pause, resume
from mview.cli.mending.promote import promote
from mview.cli.mending.quarantine import quarantine
from mview.cli.mending.rollback import rollback
from mview.cli.options import App, debug_option
from mview.cli.run import run
from mview.cli.watch.command import ui
from mview.errors import ExitCode
from mview.files.modes import private_files


class Commands(click.Group):
    """A group whose commands may raise MviewError: it prints the block and sets the exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command inside the error boundary."""
        app = ctx.ensure_object(App)
        app.output.advised = lambda text: as_called(text, self.commands, app.options, app.about)
        try:
            with private_files():
                return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            app.output.note("interrupted")
            sys.exit(ExitCode.INTERRUPTED)
        except BrokenPipeError:
            # The reader of a pipe (head, less) went away: not an error of ours.
            sys.stderr.close()
            sys.exit(ExitCode.OK)
        except Exception as error:
            sys.exit(app.output.error(error))


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="mview-engine", prog_name="mview")
@debug_option
def main() -> None:
    """Keep SQL views over databases and their changelogs right and fresh.

    Try it: mview demo
    """


for _command in (
    init,
    doctor,
    check,
    explain,
    preview,
    test,
    plan,
    lineage,
    run,
    apply,
    promote,
    rollback,
    status,
    lag,
    history,
    why,
    pause,
    resume,
    backfill,
    quarantine,
    ui,
    verify,
    maintain,
    repair,
    migrate,
    drop,
    support_bundle,
    demo,
    completion,
):
    main.add_command(_command)
