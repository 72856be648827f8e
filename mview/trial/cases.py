"""Test files: tables, rows, changes and what views must show, in YAML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mview.errors import UserError, several
from mview.files.textfile import read_text
from mview.files.yamlfile import Document, Mistake, misfit, parse_yaml, shown
from mview.plan.text.place import did_you_mean
from mview.relation import RelationId
from mview.schema import Column, TableSchema, parse_type

#: A row as the file has it: values by column.
Given = dict[str, Any]
#: Rows by table, or by view.
Listed = dict[str, list[Given]]

_Name = Annotated[str, Field(min_length=1)]
_NOT_NULL = " not null"
#: How the names of test files end.
TEST_FILES = (".yml", ".yaml")


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class TrialStep(_Form):
    """Changes that come together, and what views show afterwards.

    Attributes:
        insert: new rows.
        update: the key of a row and the columns that change.
        delete: keys of rows.
        at: from here on the time of `now()`.
        expect: all rows of views, in any order, of as many columns as are named.
    """

    insert: Listed = {}
    update: Listed = {}
    delete: Listed = {}
    at: str | None = None
    expect: Listed = {}


class TrialCase(_Form):
    """One test: rows that are there, and steps.

    Attributes:
        name: what it shows.
        given: rows by table; a table that is not named is empty.
        at: the time of `now()`.
        expect: what views show of the given rows.
        steps: what changes.
    """

    name: _Name
    given: Listed = {}
    at: str | None = None
    expect: Listed = {}
    steps: list[TrialStep] = []


class _Table(_Form):
    columns: dict[str, str] = Field(min_length=1)
    key: list[str] = Field(min_length=1)


class _TestForm(_Form):
    views: list[_Name] = Field(min_length=1)
    tables: dict[str, _Table] = {}
    tests: list[TrialCase] = Field(min_length=1)


@dataclass(frozen=True)
class TestFile:
    """A test file that was read.

    Attributes:
        path: the file.
        views: files and folders of views.
        tables: tables that it declares; all others are as their database has them.
        cases: the tests.
        document: line and column of everything in it.
        text: as it stands there.
    """

    __test__ = False  # pytest would take it for a test

    path: Path
    views: tuple[Path, ...]
    tables: Mapping[RelationId, TableSchema]
    cases: Sequence[TrialCase]
    document: Document
    text: str

    def where(self, *place: str | int) -> str:
        """Where something of it stands, as `file:line:column`."""
        line, column = self.document.place(place)
        return f"{self.path}:{line}:{column}"


def find_files(paths: Sequence[Path]) -> list[Path]:
    """The test files among files and folders.

    Raises:
        UserError: there is none, or a file is not there.
    """
    files: list[Path] = []
    for path in paths:
        if not path.exists():
            raise UserError(
                f"there is no file or folder {path}",
                hint="give test files (.yml), or a folder of them",
            )
        files += sorted(_test_files(path)) if path.is_dir() else [path]
    if not files:
        raise UserError(
            f"no test file in {', '.join(map(str, paths))}",
            hint="a test file ends with .yml or .yaml and has views: and tests:",
        )
    return list(dict.fromkeys(files))


def _test_files(folder: Path) -> Iterator[Path]:
    for file in folder.rglob("*.y*ml"):
        if file.suffix in TEST_FILES and file.is_file():
            yield file


def read_tests(path: Path) -> TestFile:
    """Read a test file.

    Raises:
        UserError: all that is wrong in it, each with its line.
    """
    text = read_text(path, "test file", UserError, hint="give a .yml file or a folder")
    document = parse_yaml(text)
    mistakes = list(document.mistakes)
    form, tables = None, {}
    if not mistakes:
        try:
            form = _TestForm.model_validate(document.value)
        except ValidationError as error:
            mistakes += [_mistake(document, detail) for detail in error.errors(include_url=False)]
    if form is not None:
        for name, table in form.tables.items():
            try:
                tables[RelationId.of(name)] = _schema(table)
            except UserError as error:
                at = document.place(("tables", name))
                mistakes.append(Mistake(f"tables.{shown(name)}: {error.what}", *at, error.allowed))
    if mistakes or form is None:
        raise several(
            [
                UserError(
                    mistake.what, where=f"{path}:{mistake.line}:{mistake.column}", hint=mistake.hint
                )
                for mistake in sorted(mistakes, key=lambda mistake: (mistake.line, mistake.column))
            ]
        )
    views = tuple(path.parent / view for view in form.views)
    return TestFile(path, views, tables, form.tests, document, text)


def _schema(table: _Table) -> TableSchema:
    columns = []
    for name, kind in table.columns.items():
        bare = kind.strip()
        needed = bare.lower().endswith(_NOT_NULL)
        bare = bare[: -len(_NOT_NULL)] if needed else bare
        columns.append(Column(name, parse_type(bare), not (needed or name in table.key)))
    return TableSchema(tuple(columns), tuple(table.key))


def _form_at(loc: Sequence[str | int]) -> type[_Form]:
    """What may stand at a place of a test file."""
    if loc[0] == "tables":
        return _Table
    return TrialStep if "steps" in loc else TrialCase


def _mistake(document: Document, detail: Any) -> Mistake:
    loc = tuple(part for part in detail["loc"] if part != "[key]")
    message = misfit(detail)
    place = ".".join(shown(part) for part in loc)
    hint = "views:, tables: and tests: stand in a test file" if len(loc) <= 1 else None
    if detail["type"] == "extra_forbidden" and loc[:-1]:
        hint = did_you_mean(str(loc[-1]), _form_at(loc[:-1]).model_fields)
    return Mistake(f"{place}: {message}" if place else message, *document.place(loc), hint)
