"""Commands that are advised, with the options without which they would be about another project."""

from __future__ import annotations

import re
from collections.abc import Mapping

import click

#: What says whose views the commands of a line are about.
_TOLD = re.compile(r"--env |\b(have|begin) production\b")


def as_called(text: str, commands: Mapping[str, click.Command], project: str, about: str) -> str:
    """A text of ours whose commands are about what the command was about that says it.

    Args:
        text: what is said.
        commands: all that there are, by name.
        project: what names the configuration, `--config FILE`; empty: none need name it.
        about: what names the environment, `--env NAME`; empty: it is production. A line that says
            itself whose views it means, an environment's or production's, is left as it is.
    """

    def of_line(line: str) -> str:
        whose = "" if _TOLD.search(line) else about

        def called(advised: re.Match[str]) -> str:
            told = {parameter.name for parameter in commands[advised[1]].params}
            options = [project] if "config_path" in told else []
            options += [whose] if "env" in told else []
            return " ".join([advised[0], *filter(None, options)])

        return re.sub(advice, called, line)

    if not project and not about:
        return text
    advice = rf"(?<![\w/.-])mview ({'|'.join(map(re.escape, commands))})(?![\w-])"
    return "\n".join(map(of_line, text.split("\n")))
