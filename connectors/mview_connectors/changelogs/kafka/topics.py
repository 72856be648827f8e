"""Which topics hold a table's changes: by a pattern for all tables, or named table by table.

`{table}` stands for a table's name, `{schema}` for that of its schema. A pattern for tables has a
part for each: `sales.*` are all of the schema sales, and `*` all of the connection's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from mview.config import ChangesSettings
from mview.errors import ConfigError
from mview.relation import TableName

#: What a topic's name cannot have.
_FOREIGN = re.compile(r"[^A-Za-z0-9._-]")


class TableTopics:
    """The topics of some tables; `*` in a name stands for any letters.

    Args:
        settings: the connection's `changes` section.
        tables: names of the tables.

    Raises:
        ConfigError: a table has no topic in the settings.
    """

    def __init__(self, settings: ChangesSettings, tables: Sequence[str]) -> None:
        self._names = {table: _topics(settings, table) for table in tables}
        self._connection = settings.connection
        #: All names and patterns, each once.
        self.names = list(dict.fromkeys(name for names in self._names.values() for name in names))
        self.has_patterns = any("*" in name for name in self.names)

    def among(self, known: Iterable[str]) -> list[str]:
        """The topics that are named in full, and those known ones that a pattern stands for."""
        plain = [name for name in self.names if "*" not in name]
        more = [topic for topic in known if topic not in plain and self.has(topic)]
        return [*plain, *more]

    def has(self, topic: str) -> bool:
        """Whether a topic is one of these."""
        return any(_stands_for(name, topic) for name in self.names)

    def is_of(self, topic: str, table: str) -> bool:
        """Whether a topic may have changes of a table."""
        return any(_stands_for(name, topic) for name in self._names.get(table, ()))

    def tables(self, topic: str) -> list[str]:
        """The tables of which a topic may have changes, as commands name them."""
        return [f"{self._connection}.{table}" for table in self._names if self.is_of(topic, table)]

    def absent(self, known: Iterable[str]) -> list[str]:
        """Names and patterns that no known topic has."""
        topics = list(known)
        return [name for name in self.names if not any(_stands_for(name, t) for t in topics)]


def _topics(settings: ChangesSettings, table: str) -> list[str]:
    """A table's topics, as Debezium names them: Kafka knows few letters, all others become `_`.

    Tables may so share one; their messages name the table.
    """
    whole = TableName.of(table)
    named, pattern = next(
        ((n, name) for name, n in settings.topics.items() if _is_of(TableName.of(name), whole)),
        (settings.topic, "*.*"),
    )
    if named is None:
        raise ConfigError(
            f"no topic is configured for table {table!r}",
            where=f"{settings.section}.topics",
            got=", ".join(settings.topics),
            hint="name its topic under 'topics'; or set 'topic' for all tables without one",
        )
    names = [named] if isinstance(named, str) else named
    schema = whole.schema or settings.own_schema
    for name in names:
        if "{schema}" in name:
            if schema is None:
                what, hint = "this database has no schemas", "take {schema} away"
                raise _unclear(settings, table, name, what, hint)
        elif whole.schema and "{table}" in name and "*" in TableName.of(pattern).schema:
            # Else a table of the same name in another schema would have the topic, too.
            what = "no {schema} in it, and tables of several schemas have it"
            raise _unclear(settings, table, name, what, "write {schema}.{table}")
    return [
        name.replace("{table}", _safe(whole.table)).replace("{schema}", _safe(schema or ""))
        for name in names
    ]


def _unclear(settings: ChangesSettings, table: str, name: str, what: str, hint: str) -> ConfigError:
    return ConfigError(
        f"the topic of table {table} is not clear: {what}",
        where=settings.section,
        got=name,
        hint=hint,
    )


def _safe(name: str) -> str:
    # Java counts a letter beyond the first 65,536 as two.
    return _FOREIGN.sub(lambda letter: "_" * (1 + (letter[0] > "\uffff")), name)


def _is_of(pattern: TableName, table: TableName) -> bool:
    return _stands_for(pattern.schema, table.schema) and _stands_for(pattern.table, table.table)


def _stands_for(pattern: str, name: str) -> bool:
    parts = map(re.escape, pattern.split("*"))
    return re.fullmatch(".*".join(parts), name, re.DOTALL) is not None
