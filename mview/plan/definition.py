"""View files: `SELECT …` or `CREATE MATERIALIZED VIEW v WITH (…) AS SELECT …`, and their order."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from mview.clock import DURATION_EXAMPLES, parse_duration
from mview.errors import UserError, several
from mview.files.textfile import read_text
from mview.plan.functions.declared import Function, calls
from mview.plan.text.place import Text, did_you_mean, span
from mview.plan.text.query import Query
from mview.plan.text.syntax import FOLLOWER_PREFIX, SINK_PREFIX, VIEW_NAME, Header, not_too_deep
from mview.relation import RelationId, TableName

Policy = Literal["auto", "incremental_only"]
Mode = Literal["full", "light"]

#: The WITH properties: value and place by name.
Properties = Mapping[str, tuple[str, Token]]

#: Properties of the view itself; the others are its sink's.
_OWN = ("key", "sink", "sinks", "freshness", "policy", "mode", "tags")

#: What a tag may be: a selector has signs around it.
_TAG = re.compile(r"\w[\w.-]*")


@dataclass(frozen=True)
class TableUse:
    """One place where the text names a table: characters [start, end) of the name."""

    name: RelationId
    start: int
    end: int
    alias: str | None


@dataclass(frozen=True)
class ViewDefinition:
    """A view as the user declared it.

    Attributes:
        name: the view's name.
        sql: the SELECT, verbatim; of a definition that was made of another: as Spark reads it.
        file: the file it was read from, for messages.
        offset: characters before `sql` in the file.
        line: line of the first character of `sql` in the file.
        column: column of the first character of `sql` in the file.
        key: declared key columns; () when not declared.
        sink: name of the sink.
        options: properties for the sink.
        freshness_ms: promised freshness in milliseconds, if any.
        comment: the view's comment.
        policy: `incremental_only` makes a full recompute an error.
        tables: every use of a table (or of another view) in `sql`, in text order.
        functions: those the user declared; the text may call them.
        parsed: the query as a tree, where somebody has it already.
        sinks: what follows the view beside its sink: options by name.
        mode: `light`: nothing is kept of it but its tables in `sinks`.
        tags: by which views are selected. They are the file's: none are kept, and other ones make
            it no other view.
        part: number of the part of the view that this is, from 1; 0: the view itself. No file
            declares a part, and none is kept.
    """

    name: str
    sql: str
    file: str
    offset: int = 0
    line: int = 1
    column: int = 1
    key: tuple[str, ...] = ()
    sink: str = "delta"
    options: Mapping[str, str] = field(default_factory=dict)
    freshness_ms: int | None = None
    comment: str | None = None
    policy: Policy = "auto"
    tables: tuple[TableUse, ...] = ()
    functions: tuple[Function, ...] = ()
    parsed: Query | None = field(default=None, compare=False, repr=False)
    sinks: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    mode: Mode = "full"
    tags: tuple[str, ...] = field(default=(), compare=False)
    part: int = field(default=0, compare=False)

    @cached_property
    def relation(self) -> RelationId:
        """What the view or part is called where it is read."""
        return RelationId("view", self.name, part=self.part)

    def with_tree(self, tree: exp.Query, **changes: Any) -> ViewDefinition:
        """The definition with another query, which was made of a copy of its own."""
        query = self.query.changed(tree)
        tables = find_tables(tree, query.text)
        return replace(self, sql=query.sql, tables=tables, parsed=query, **changes)

    @cached_property
    def query(self) -> Query:
        """The query: parsed once, be it from a file or from what a store kept."""
        return self.parsed or Query.of(self.text)

    @property
    def tree(self) -> exp.Query:
        """The query as a tree, which nobody changes."""
        return self.query.tree

    @property
    def bare(self) -> ViewDefinition:
        """The definition without parentheses around the whole query."""
        tree = self.tree
        while isinstance(tree, exp.Subquery) and not any(
            value for name, value in tree.args.items() if name != "this"
        ):
            tree = tree.this
        return self if tree is self.tree else self.with_tree(tree.copy())

    @property
    def text(self) -> Text:
        """What the user wrote with its place, for messages."""
        return (
            self.parsed.text if self.parsed else Text(self.sql, self.file, self.line, self.column)
        )

    @property
    def table_names(self) -> tuple[RelationId, ...]:
        """The distinct tables and views that are read, in text order."""
        return tuple(dict.fromkeys(use.name for use in self.tables))

    @property
    def read_views(self) -> tuple[str, ...]:
        """The distinct views that are read, in text order."""
        return tuple(dict.fromkeys(use.name.view for use in self.tables if use.name.view))

    @property
    def called(self) -> tuple[Function, ...]:
        """The declared functions that the text calls, by name."""
        if not self.functions:
            return ()
        names = {call.name.lower() for call in calls(self.tree)}
        return tuple(sorted((f for f in self.functions if f.name in names), key=lambda f: f.name))


def parse_view(text: str, name: str, file: str = "<sql>") -> ViewDefinition:
    """Read the text of one view.

    Args:
        text: a SELECT or WITH, or CREATE MATERIALIZED VIEW … AS SELECT.
        name: the view's name when the text is a bare SELECT (the file's stem).
        file: where the text comes from, for messages.

    Raises:
        UserError: syntax, a name or a property is wrong; with file, line, column and caret.
    """
    whole = Text(text, file)
    header = Header(whole)
    if all(token.text == ";" for token in header.tokens):
        raise UserError(
            "the view is empty",
            where=f"{file}:1",
            hint="write SELECT … or CREATE MATERIALIZED VIEW …",
        )
    name, comment, properties = _declaration(header, name, file)
    start = header.next().start
    end = header.tokens[-1].end + 1
    if header.tokens[-1].text == ";":
        end = header.tokens[-2].end + 1
    line, column = whole.place(start)
    sql = Text(text[start:end], file, line, column)
    _check_letters(whole, header.tokens)
    query = _query(sql)
    values = {key: value for key, (value, _) in properties.items()}
    key = values.get("key", "").split(",")
    return ViewDefinition(
        name=name,
        sql=sql.sql,
        file=file,
        offset=start,
        line=line,
        column=column,
        key=tuple(part.strip().strip("`") for part in key if part.strip()),
        sink=values.get("sink", "delta"),
        freshness_ms=_freshness(whole, properties),
        comment=comment,
        policy=_choice(whole, properties, "policy", ("auto", "incremental_only")),
        mode=_mode(whole, properties),
        options={
            k.removeprefix(SINK_PREFIX): v
            for k, v in values.items()
            if k not in _OWN and not k.startswith(FOLLOWER_PREFIX)
        },
        sinks=_sinks(whole, properties),
        tags=_tags(whole, properties),
        tables=find_tables(query.tree, sql),
        parsed=query,
    )


def _check_letters(text: Text, tokens: Sequence[Token]) -> None:
    for token in tokens:
        if token.token_type == TokenType.VAR and not token.text.isascii():
            raise text.error(
                "Spark reads names with letters beyond ASCII in backticks only",
                (token.start, token.end + 1),
                hint=f"write `{token.text}`",
            )


def _query(text: Text) -> Query:
    with not_too_deep(text):
        return Query.of(text)


def _declaration(header: Header, name: str, file: str) -> tuple[str, str | None, Properties]:
    """What stands before the SELECT: name, comment and properties; a bare SELECT has `name`."""
    if not header.accept("CREATE"):
        if not VIEW_NAME.fullmatch(name):
            raise UserError(
                f"{name!r} is not a view name",
                where=f"{file}:1",
                allowed="at most 128 letters, digits and _, no digit first",
                hint="rename the file, or write CREATE MATERIALIZED VIEW <name> AS …",
            )
        return name, None, {}
    if header.accept("OR"):
        header.next("REPLACE")
    header.next("MATERIALIZED")
    header.next("VIEW")
    name = header.view_name().text
    comment = header.next().text if header.accept("COMMENT") else None
    properties = header.properties() if header.accept("WITH") else {}
    header.next("AS")
    return name, comment, properties


def _freshness(text: Text, properties: Properties) -> int | None:
    if "freshness" not in properties:
        return None
    value, token = properties["freshness"]
    freshness_ms = parse_duration(value)
    if freshness_ms is None:
        raise text.error(
            f"{value!r} is not a duration",
            (token.start, token.end + 1),
            allowed=DURATION_EXAMPLES,
        )
    return freshness_ms


def _sinks(text: Text, properties: Properties) -> dict[str, dict[str, str]]:
    """The sinks that follow the view, `sinks = 'a, b'`, with what `sinks.a.table = '…'` says."""
    listed = properties["sinks"][0].split(",") if "sinks" in properties else []
    sinks: dict[str, dict[str, str]] = {name.strip(): {} for name in listed if name.strip()}
    for key, (value, token) in properties.items():
        if key.startswith(FOLLOWER_PREFIX):
            name, _, option = key.removeprefix(FOLLOWER_PREFIX).partition(".")
            if name not in sinks or not option:
                raise text.error(
                    f"property {key!r} is of no sink of the view",
                    (token.start, token.end + 1),
                    allowed=", ".join(f"sinks.{sink}.<option>" for sink in sinks) or None,
                    hint=f"list the sink: sinks = '{', '.join([*sinks, name])}'",
                )
            sinks[name][option] = value
    return sinks


def _tags(text: Text, properties: Properties) -> tuple[str, ...]:
    """The words of `tags = 'a, b'`."""
    value, token = properties.get("tags", ("", None))
    tags = tuple(tag.strip() for tag in value.split(",") if tag.strip())
    for tag in tags:
        if not _TAG.fullmatch(tag):
            assert token is not None
            raise text.error(
                f"{tag!r} is not a tag",
                (token.start, token.end + 1),
                allowed="letters, digits, _, - and .; several are separated by commas",
            )
    return tags


def _choice(text: Text, properties: Properties, name: str, words: Sequence[str]) -> Any:
    """A property that has one of some words, the first where nothing is said."""
    value, token = properties.get(name, (words[0], None))
    if value not in words:
        assert token is not None
        raise text.error(
            f"unknown {name} {value!r}",
            (token.start, token.end + 1),
            allowed=", ".join(words),
            hint=did_you_mean(value, words),
        )
    return value


def _mode(text: Text, properties: Properties) -> Mode:
    mode: Mode = _choice(text, properties, "mode", ("full", "light"))
    if mode == "light":
        token = properties["mode"][1]
        for name, (_, value) in properties.items():
            if name not in ("mode", "key", "sinks", "tags") and not name.startswith(
                FOLLOWER_PREFIX
            ):
                raise text.error(
                    f"a light view has no property {name!r}: nothing is kept of it but its tables "
                    "in sinks",
                    (value.start, value.end + 1),
                    allowed="key, tags, sinks, sinks.<name>.<option>",
                )
        if not properties.get("sinks", ("", None))[0].strip(" ,"):
            raise text.error(
                "a light view needs a sink: nothing is kept of it but its tables there",
                (token.start, token.end + 1),
                hint="WITH (mode = 'light', sinks = '…')",
            )
    return mode


def find_tables(tree: exp.Query, text: Text) -> tuple[TableUse, ...]:
    """Every use of a table in a query, in text order; names of CTEs in reach are not tables."""
    uses = []
    for table in tables_of(tree):
        parts = table.parts
        start, end = _place(table)
        if len(parts) > 3 or "." in parts[0].name:
            raise text.error(
                f"{'.'.join(part.name for part in parts)!r} has too many parts",
                (start, end),
                allowed="<connection>.<table>, <connection>.<schema>.<table>, or the name of "
                "another view",
            )
        uses.append(TableUse(name_of(table), start, end, table.alias or None))
    return tuple(sorted(uses, key=lambda use: use.start))


def name_of(table: exp.Table) -> RelationId:
    """The relation that a query names."""
    if not table.db:
        return RelationId.of(table.name)
    schema, connection = (table.db, table.catalog) if table.catalog else ("", table.db)
    return RelationId("table", str(TableName(schema, table.name)), connection)


def table_of(relation: RelationId) -> exp.Table:
    """What a query names a relation by; see `name_of`."""
    if not relation.is_table:
        return exp.Table(this=exp.to_identifier(str(relation), quoted=True))
    schema, name = relation.table_name
    parts = [relation.connection, schema, name] if schema else [relation.connection, name]
    named = [exp.to_identifier(part, quoted=True) for part in reversed(parts)]
    return exp.Table(**dict(zip(("this", "db", "catalog"), named, strict=False)))


def _place(table: exp.Table) -> tuple[int, int]:
    """Characters of a table's name; of one that is not the user's: of what stands around it."""
    places = [part.meta for part in table.parts if "start" in part.meta]
    if not places:
        return span(table)
    return min(place["start"] for place in places), max(place["end"] for place in places) + 1


def tables_of(tree: exp.Expr) -> Iterator[exp.Table]:
    """The tables that a query reads; names of CTEs in reach are none."""
    for table in tree.find_all(exp.Table):
        plain = all(isinstance(part, exp.Identifier) for part in table.parts)
        if plain and not is_cte(table):
            yield table


def is_cte(table: exp.Table) -> bool:
    """Whether the name is that of a CTE which can be seen from here (a CTE sees earlier ones)."""
    if table.db:
        return False
    node: exp.Expr = table
    while node.parent is not None:
        parent = node.parent
        with_ = node if isinstance(node, exp.With) else parent.args.get("with_")
        if isinstance(with_, exp.With) and not isinstance(parent, exp.With):
            names = [cte.alias.lower() for cte in with_.expressions]
            if with_ is node:
                names = []
            if table.name.lower() in names:
                return True
        if isinstance(parent, exp.With):
            seen = (
                parent.expressions
                if parent.args.get("recursive")
                else parent.expressions[: node.index]
            )
            if table.name.lower() in [cte.alias.lower() for cte in seen]:
                return True
        node = parent
    return False


class Unread(NamedTuple):
    """A file that gives no view.

    Attributes:
        definition: the view that it would be, without its query.
        error: what is wrong with it.
    """

    definition: ViewDefinition
    error: UserError


def load_views(paths: Sequence[str | Path]) -> list[ViewDefinition]:
    """Read view files, and the `*.sql` files of folders, in the order they depend on each other.

    Raises:
        UserError: no file, or what is wrong in any of them: all of it at once.
    """
    views, unread = read_views(paths)
    if unread:
        raise several([file.error for file in unread])
    return order_views(views)


def read_views(paths: Sequence[str | Path]) -> tuple[list[ViewDefinition], list[Unread]]:
    """As `load_views`, but the files that are wrong beside the views of the others.

    Raises:
        UserError: there is no file.
    """
    files = dict.fromkeys(file for path in map(Path, paths) for file in _files(path))
    if not files:
        raise UserError(f"no .sql file in {', '.join(map(str, paths))}")
    views: dict[str, ViewDefinition] = {}
    unread = []
    for file in files:
        named = ViewDefinition(file.stem, "", str(file))
        try:
            view = _read(file)
            other = views.setdefault(view.name.lower(), view)
            if other is not view:
                raise same_name(other, view)
        except UserError as error:
            unread.append(Unread(named, error))
    return list(views.values()), unread


def same_name(view: ViewDefinition, other: ViewDefinition) -> UserError:
    """The error of two views that are one to Spark."""
    what = f"views {view.name!r} and {other.name!r} differ in case only: to Spark they are one"
    if view.name == other.name:
        what = f"two views are called {view.name!r}"
    return UserError(what, where=f"{view.file}:1 and {other.file}:1")


def _files(path: Path) -> list[Path]:
    try:
        if path.is_dir():
            return sorted(file for file in path.rglob("*.sql") if not file.is_dir())
        path.stat()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not the name of a file"
        raise UserError(
            f"there is no file or folder {path}: {reason}",
            hint=f"give a .sql file or a folder; a view of it by name: FOLDER --select {path}",
        ) from None
    return [path]


def _read(file: Path) -> ViewDefinition:
    text = read_text(file, "view", UserError, hint="give a .sql file or a folder")
    return parse_view(text, file.stem, str(file))


def order_views(views: Sequence[ViewDefinition]) -> list[ViewDefinition]:
    """Views so that each comes after those it reads; otherwise in the given order.

    Raises:
        UserError: views read each other in a circle.
    """
    named = {view.name: view for view in views}
    done: list[ViewDefinition] = []

    def visit(view: ViewDefinition, path: tuple[str, ...]) -> None:
        if view in done:
            return
        if view.name in path:
            circle = " -> ".join([*path[path.index(view.name) :], view.name])
            raise UserError(f"views read each other in a circle: {circle}", where=view.file)
        for name in view.read_views:
            if name in named:
                visit(named[name], (*path, view.name))
        done.append(view)

    for view in views:
        visit(view, ())
    return done
