"""Names in reach at one place of the SQL, and what they are bound to."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlglot import exp

from mview.plan.operators import ir
from mview.plan.operators.ir import Ref, Unsupported
from mview.plan.text.place import Text, did_you_mean, span


@dataclass(frozen=True)
class FromItem:
    """A name in FROM: its alias, the full table name if any, its columns; and more for hints."""

    alias: str
    columns: tuple[tuple[str, Ref], ...]
    table: str | None = None
    unread: tuple[str, ...] = ()

    def answers(self, qualifier: str) -> bool:
        """Whether `qualifier.column` can mean this relation."""
        named = [self.alias, self.table or self.alias]
        return qualifier.lower() in [name.lower() for name in named]


@dataclass(frozen=True)
class Read:
    """What a name reads: a column, or of a struct column a field, and of that one a field."""

    ref: Ref
    fields: tuple[exp.Expr, ...] = ()

    def expression(self) -> exp.Expr:
        """The expression that reads it."""
        read: exp.Expr = ir.column(self.ref)
        for name in self.fields:
            read = exp.Dot(this=read, expression=name.copy())
        return read


@dataclass
class Scope:
    """The relations of one SELECT and the scope around it.

    Attributes:
        text: for messages.
        relations: in the order of FROM.
        merged: USING columns by lower-case name, with what they hide.
        parent: the SELECT around a subquery.
        outer: columns of the parent that were used: the subquery is correlated.
        aliases: of the select list, in its order; each may be used where no column has the name.
        named: how many of these stand before what is being bound; it may use no others.
        values: columns of subqueries by their content, and whether NULL and false are one there.
    """

    text: Text
    relations: list[FromItem] = field(default_factory=list)
    merged: dict[str, Ref] = field(default_factory=dict)
    parent: Scope | None = None
    outer: set[Ref] = field(default_factory=set)
    aliases: dict[str, exp.Expr] = field(default_factory=dict)
    named: int = 0
    values: dict[tuple[exp.Expr, bool], Ref | None] = field(default_factory=dict)

    def resolve(self, column: exp.Column) -> exp.Expr | Read:
        """What a column name means here: a column, or the expression of a select-list alias.

        Raises:
            UserError: no such column, or more than one.
        """
        if (read := self.find(column)) is not None:
            return read
        if (stands_for := self.stands_for(column)) is not None:
            return stands_for
        scope = self.parent
        if scope is not None and (outer := scope.find(column)) is not None:
            self.outer.add(outer.ref)
            return outer
        if scope is not None and scope.parent is not None and scope.parent.find(column):
            raise Unsupported(
                "NESTED_CORRELATION",
                f"{column.sql()} belongs to a query two levels up",
                "join the tables in one subquery",
            )
        raise self._unknown(column)

    def stands_for(self, column: exp.Column) -> exp.Expr | None:
        """The expression of the alias that a name is, or is a field of, where no column has it."""
        name, *fields = column.parts
        known = list(self.aliases)[: self.named]
        if name.name.lower() not in known or self.find(column):
            return None
        meant = self.aliases[name.name.lower()]
        for part in fields:
            meant = exp.Dot(this=exp.paren(meant), expression=part.copy())
        return meant

    def find(self, column: exp.Column) -> Read | None:
        """What a name reads of this SELECT's relations; None when there is no such column."""
        parts = [part.name for part in column.parts]
        if len(parts) == 1 and parts[0].lower() in self.merged:
            return Read(self.merged[parts[0].lower()])
        # `a.b` may be field b of a struct column a, and `x.a.b` that of the column a of x.
        for size in dict.fromkeys((len(parts), 1, min(2, len(parts)))):
            named = ".".join(parts[size - 1 :])
            refs = self._matches(parts[size - 1].lower(), ".".join(parts[: size - 1]))
            if len(refs) > 1:
                owners = ", ".join(f"{alias}.{named}" for alias, _ in refs)
                raise self.text.error(
                    f"column {named!r} is ambiguous", span(column), hint=f"write one of {owners}"
                )
            if refs:
                return Read(refs[0][1], tuple(column.parts[size:]))
        return None

    def _matches(self, name: str, qualifier: str) -> list[tuple[str, Ref]]:
        return [
            (relation.alias, ref)
            for relation in self.relations
            if not qualifier or relation.answers(qualifier)
            for known, ref in relation.columns
            if known.lower() == name
        ]

    def names(self) -> dict[Ref, exp.Expr]:
        """The columns of the relations as a query may name them; those that it cannot are left."""
        aliases = [relation.alias.lower() for relation in self.relations]
        names = [name.lower() for source in self.relations for name, _ in source.columns]
        known: dict[Ref, exp.Expr] = {}
        for relation in self.relations:
            own = [name.lower() for name, _ in relation.columns]
            alone = aliases.count(relation.alias.lower()) == 1
            for name, ref in relation.columns:
                if relation.alias and alone and own.count(name.lower()) == 1:
                    known[ref] = exp.column(name, table=relation.alias, quoted=True)
                elif names.count(name.lower()) == 1 and name.lower() not in self.merged:
                    known[ref] = exp.column(name, quoted=True)
        return known

    def _unknown(self, column: exp.Column) -> Exception:
        qualifier = ".".join(part.name for part in column.parts[:-1])
        aliases = [relation.alias for relation in self.relations]
        if qualifier and not any(relation.answers(qualifier) for relation in self.relations):
            return self.text.error(
                f"unknown table {qualifier!r} of column {column.name!r}",
                span(column),
                hint=did_you_mean(qualifier, aliases),
            )
        known = [
            name
            for relation in self.relations
            if not qualifier or relation.answers(qualifier)
            for name in (*(name for name, _ in relation.columns), *relation.unread)
        ]
        aliases = [] if qualifier else list(self.aliases)
        later = column.name.lower() if column.name.lower() in aliases[self.named :] else None
        if later is not None and column not in self.aliases[later].find_all(exp.Column):
            hint: str | None = "the select list names it later: name it before, or write it out"
        else:
            hint = did_you_mean(column.name, known, only_close=aliases[: self.named])
        at = column.this if isinstance(column.this, exp.Identifier) else column
        return self.text.error(f"unknown column {column.name!r}", span(at), hint=hint)

    def star(self, qualifier: str | None) -> list[tuple[str, Ref]]:
        """The columns of `*` or `qualifier.*`; USING columns come once and first."""
        if qualifier:
            chosen = [source for source in self.relations if source.answers(qualifier)]
            return [column for relation in chosen for column in relation.columns]
        rest = [
            (name, ref)
            for relation in self.relations
            for name, ref in relation.columns
            if name.lower() not in self.merged
        ]
        return [(ref.column, ref) for ref in self.merged.values()] + rest
