"""The worked example in docs/notebook: run from its first cell, and written with what it shows.

`python -m tests.notebook.example` runs and writes it.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

DOCS = Path(__file__).parents[2] / "docs" / "notebook"
BOOK = DOCS / "auctions.ipynb"
LINEAGE = DOCS / "auctions.svg"

#: Of a cell whose output is the same in every run.
SAME = "same"
#: Of a cell that is to fail.
FAILS = "raises-exception"

#: What stands in the example for the folder in which it was run.
HOME = "/home/you/auctions"


def run(book: Any, folder: Path) -> None:
    """Run a notebook in a folder; its outputs are those of this run.

    Raises:
        CellExecutionError: a cell fails that is not to.
    """
    shutil.copy(DOCS / "nexmark.py", folder)
    for cell in book.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    NotebookClient(
        book, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    ).execute()
    for cell in book.cells:
        cell.metadata.pop("execution", None)
    book.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }


def without_places(book: Any, folder: Path) -> str:
    """The notebook as text, without what only this machine has."""
    text = nbformat.writes(book)
    text = text.replace(str(folder), HOME)
    # With the words beside them: pictures are letters, too.
    text = re.sub(r"process \d+ on [\w.-]+", "process 4711 on laptop", text)
    return re.sub(r"process \d+ runs", "process 4711 runs", text)


def results(cell: Any) -> list[str]:
    """What a cell shows as text, and its SVG pictures."""
    shown = []
    for output in cell.outputs:
        if output.output_type == "stream":
            shown.append(output.text)
        elif "data" in output:
            data = output.data
            shown.append(data.get("image/svg+xml") or data.get("text/plain", ""))
    return shown


def main() -> None:
    """Run and write it."""
    book = nbformat.read(BOOK, as_version=4)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        run(book, folder)
        BOOK.write_text(without_places(book, folder) + "\n", encoding="utf-8")
    pictures = [
        output.data["image/svg+xml"]
        for cell in book.cells
        for output in cell.get("outputs", ())
        if "image/svg+xml" in output.get("data", ())
    ]
    LINEAGE.write_text(pictures[0], encoding="utf-8")


if __name__ == "__main__":
    main()
