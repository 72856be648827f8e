"""A picture of `mview demo` for the README, made from a real run: its lines, each at its time.

`python -m tests.bench.recording` writes `docs/demo.svg`. Pauses are shown six times as fast; a
reader that plays no animations shows all lines.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from html import escape
from pathlib import Path

PICTURE = Path(__file__).parents[2] / "docs" / "demo.svg"
#: So many times as fast as it was.
SPEED = 6
#: Where the part ends that is shown: what follows says how to go on.
LAST = "What next"

_SIZE, _LINE, _MARGIN, _COLUMNS = 12, 17, 14, 134


def recorded() -> list[tuple[float, str]]:
    """The lines of a run, with the seconds after which each came."""
    lines: list[tuple[float, str]] = []
    with tempfile.TemporaryDirectory() as home:
        command = [sys.executable, "-m", "mview", "demo"]
        began = time.monotonic()
        with subprocess.Popen(
            command,
            cwd=home,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                text = line.rstrip().replace(os.path.realpath(home), "~")
                lines.append((time.monotonic() - began, text[:_COLUMNS]))
        if process.returncode:
            raise SystemExit(f"the demo ended with {process.returncode}")
    end = next(number for number, (_, text) in enumerate(lines) if text.startswith(LAST))
    return [(0.0, "$ mview demo"), *lines[:end]]


def picture(lines: list[tuple[float, str]]) -> str:
    """The lines as SVG, one under the other."""
    while lines and not lines[-1][1]:
        lines = lines[:-1]
    width, height = 2 * _MARGIN + 7.25 * _COLUMNS, 2 * _MARGIN + _LINE * len(lines)
    rows = []
    for number, (seconds, text) in enumerate(lines):
        kind = "command" if text.startswith("$ ") else "good" if ": OK," in text else "line"
        rows.append(
            f'<text class="{kind}" x="{_MARGIN}" y="{_MARGIN + _LINE * number + _SIZE}"'
            f' style="animation-delay:{seconds / SPEED:.2f}s">{escape(text)}</text>'
        )
    style = (
        f"text{{font:{_SIZE}px ui-monospace,Menlo,Consolas,monospace;white-space:pre;fill:#d8dee9;"
        "animation:come .1s both}.command{fill:#88c0d0;font-weight:bold}.good{fill:#a3be8c}"
        "@keyframes come{from{opacity:0}to{opacity:1}}"
        "@media(prefers-reduced-motion:reduce){text{animation:none}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}">\n'
        f"<title>mview demo, recorded</title>\n<style>{style}</style>\n"
        f'<rect width="100%" height="100%" rx="8" fill="#242933"/>\n'
        + "\n".join(rows)
        + "\n</svg>\n"
    )


if __name__ == "__main__":
    PICTURE.write_text(picture(recorded()), encoding="utf-8")
