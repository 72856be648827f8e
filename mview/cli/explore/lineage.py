"""What views are made of, and what is made of them: `mview lineage`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mview.cli.checking import Checked
from mview.errors import one_line
from mview.ivm.made_of import made_of


@dataclass(frozen=True)
class ViewLineage:
    """What a view is made of.

    Attributes:
        view: its name.
        file: where it is declared.
        reads: tables, as `<connection>.<table>`, and views.
        read_by: views among those that were asked for.
        sinks: the names of all its sinks.
        columns: by name, the columns that it is made of, as `<table or view>.<column>`; none: a
            constant or a count. None: only Spark knows.
    """

    view: str
    file: str
    reads: tuple[str, ...]
    read_by: tuple[str, ...]
    sinks: tuple[str, ...]
    columns: Mapping[str, tuple[str, ...]] | None


def lineage_of(checked: Sequence[Checked]) -> list[ViewLineage]:
    """The lineage of views that were checked and are sound, in DAG order."""
    readers: dict[str, list[str]] = {}
    for view in checked:
        for name in view.definition.read_views:
            readers.setdefault(name, []).append(view.definition.name)
    return [_lineage(view, readers.get(view.definition.name, ())) for view in checked]


def _lineage(view: Checked, readers: Sequence[str]) -> ViewLineage:
    definition = view.definition
    made = made_of(view.plan) if view.plan else None
    return ViewLineage(
        definition.name,
        definition.file,
        tuple(sorted({str(table) for table in definition.table_names})),
        tuple(sorted(set(readers))),
        (*([definition.sink] if definition.mode == "full" else []), *definition.sinks),
        None if made is None else {name: tuple(map(str, sorted(of))) for name, of in made.items()},
    )


def lineage_text(views: Sequence[ViewLineage]) -> str:
    """A block per view."""
    return "\n\n".join("\n".join(map(one_line, _lines(view))) for view in views)


def _lines(view: ViewLineage) -> list[str]:
    lines = [f"{view.view}  ({view.file})", f"  reads    {_listed(view.reads)}"]
    if view.read_by:
        lines.append(f"  read by  {_listed(view.read_by)}")
    lines.append(f"  sinks    {_listed(view.sinks)}")
    if view.columns is None:
        return [*lines, "  columns  only Spark can tell"]
    width = max(map(len, view.columns), default=0)
    columns = [f"    {name:{width}}  {_listed(of)}" for name, of in view.columns.items()]
    return [*lines, "  columns", *columns]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "-"


def mermaid_text(views: Sequence[ViewLineage]) -> str:
    """Tables, views and sinks as a Mermaid diagram, left to right."""
    tables, numbers = _numbered(views)
    lines = [f"  {numbers[name]}[({_quoted(name)})]" for name in tables]
    for view in views:
        here = numbers[view.view]
        lines.append(f"  {here}[{_quoted(view.view)}]")
        lines += [f"  {numbers[name]} --> {here}" for name in view.reads]
        for number, sink in enumerate(view.sinks):
            lines.append(f"  {here} --> {here}s{number}[/{_quoted(sink)}/]")
    return "\n".join(["graph LR", *lines])


def columns_mermaid_text(views: Sequence[ViewLineage]) -> str:
    """Columns as a Mermaid diagram: a box per table and view, with those that are made or used.

    A box without columns is drawn where none is known, or none is used.
    """
    tables, numbers = _numbered(views)
    shown = {view.view: [*(view.columns or ())] for view in views}
    made_of = [_apart(text, view.reads) for view in views for text in _all_sources(view)]
    for table in tables:
        shown[table] = sorted({column for name, column in made_of if name == table})
    ids = {
        (name, column): f"{numbers[name]}c{number}"
        for name, columns in shown.items()
        for number, column in enumerate(columns)
    }
    lines = [line for name in tables for line in _box(name, shown[name], numbers, ids, "[({})]")]
    for view in views:
        lines += _box(view.view, shown[view.view], numbers, ids, "[{}]")
        if view.columns is None:
            lines += [f"  {numbers[name]} --> {numbers[view.view]}" for name in view.reads]
        for column, sources in (view.columns or {}).items():
            for name, source in (_apart(text, view.reads) for text in sources):
                begin = ids.get((name, source), numbers[name])
                lines.append(f"  {begin} --> {ids[view.view, column]}")
    return "\n".join(["graph LR", *lines])


def _numbered(views: Sequence[ViewLineage]) -> tuple[list[str], dict[str, str]]:
    """The tables that views read, and what the diagram calls these and the views."""
    known = {view.view for view in views}
    tables = sorted({name for view in views for name in view.reads} - known)
    return tables, {name: f"r{number}" for number, name in enumerate([*tables, *sorted(known)])}


def _all_sources(view: ViewLineage) -> Iterable[str]:
    return (text for of in (view.columns or {}).values() for text in of)


def _apart(text: str, reads: Iterable[str]) -> tuple[str, str]:
    """`<table or view>.<column>` in two: both may have dots."""
    name = max((name for name in reads if text.startswith(f"{name}.")), key=len)
    return name, text[len(name) + 1 :]


def _box(
    name: str,
    columns: Sequence[str],
    numbers: Mapping[str, str],
    ids: Mapping[tuple[str, str], str],
    alone: str,
) -> list[str]:
    """Its columns within its name; a table or view of which none is drawn is a node."""
    if not columns:
        return [f"  {numbers[name]}{alone.format(_quoted(name))}"]
    nodes = [f"    {ids[name, column]}[{_quoted(column)}]" for column in columns]
    return [f"  subgraph {numbers[name]}[{_quoted(name)}]", *nodes, "  end"]


def _quoted(name: str) -> str:
    text = one_line(name).replace("#", "#35;").replace('"', "#quot;")
    return f'"{text}"'
