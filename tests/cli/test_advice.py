"""Commands that are advised are about the project and the environment that a command was about."""

from __future__ import annotations

import pytest

from mview.cli.advice import as_called
from mview.cli.app import main

PROJECT, DEV = "--config 'my conf.yml'", "--env dev"


@pytest.mark.parametrize(
    ("said", "called"),
    [
        ("`mview drop v`, then run", f"`mview drop {PROJECT} {DEV} v`, then run"),
        ("mview apply", f"mview apply {PROJECT} {DEV}"),
        # Not of an environment.
        ("mview quarantine list", f"mview quarantine {PROJECT} list"),
        ("mview completion bash", "mview completion bash"),
        # What says whose views it means.
        ("mview drop --env dev v", f"mview drop {PROJECT} --env dev v"),
        (
            "have production load it with a view that reads it: `mview run FILE…`",
            f"have production load it with a view that reads it: `mview run {PROJECT} FILE…`",
        ),
        ("mview drop crm.production", f"mview drop {PROJECT} {DEV} crm.production"),
        # Each line by itself.
        (
            "mview run --env dev sql\nmview plan",
            f"mview run {PROJECT} --env dev sql\nmview plan {PROJECT} {DEV}",
        ),
        # No commands.
        ("mview runs on this store", "mview runs on this store"),
        ("/data/mview run", "/data/mview run"),
    ],
)
def test_advice_is_about_what_the_command_was_about(said: str, called: str) -> None:
    assert as_called(said, main.commands, PROJECT, DEV) == called


def test_advice_of_the_usual_project_is_said_as_it_is() -> None:
    assert as_called("`mview drop v`", main.commands, "", "") == "`mview drop v`"
