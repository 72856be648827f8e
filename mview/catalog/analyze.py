"""What Spark says of a view: its columns and types. The user's text is the definition.

Spark says the same of the same text as long as nothing else has changed that it goes by, so what it
has said is kept in the store: a view that is unchanged is opened without it.
"""

from __future__ import annotations

import hashlib
import os
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyspark
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type
from pyspark.sql.types import StructField, StructType

from mview.config import Config
from mview.errors import CorruptionError, UserError
from mview.files.durable import put
from mview.files.jsonfile import checked, read_checked
from mview.files.records import fields, plain
from mview.ivm.facts.result_types import no_such_type
from mview.java import jars
from mview.plan.definition import ViewDefinition
from mview.plan.render import bind_tables
from mview.relation import RelationId
from mview.schema import Column, TableSchema, quoted, type_name
from mview.secrets import reveal
from mview.session.lazy import Spark
from mview.session.spark_errors import first_words


class SparkRefusesError(UserError):
    """Spark does not take a view's text, which `mview check` cannot always tell."""


_NUMBERS = count(1)


def relation_names(tables: Iterable[RelationId]) -> dict[RelationId, str]:
    """New names for tables and views in the SQL of one query.

    Spark takes names that differ in case only for one, and knows one name of a temporary view in
    the whole session, where several queries may run at a time.
    """
    return {name: f"__relation_{next(_NUMBERS)}" for name in tables}


@contextmanager
def temporary_views(
    spark: SparkSession, frames: Mapping[RelationId, DataFrame]
) -> Iterator[dict[RelationId, str]]:
    """Tables as temporary views of one query; yields their names there."""
    names = relation_names(frames)
    try:
        for name, frame in frames.items():
            frame.createOrReplaceTempView(names[name])
        yield names
    finally:
        for made in names.values():
            spark.catalog.dropTempView(made)


def analyze(
    spark: SparkSession, definition: ViewDefinition, schemas: Mapping[RelationId, TableSchema]
) -> TableSchema:
    """The view's columns as Spark analyzes the user's text; the key is left empty.

    Raises:
        SparkRefusesError: Spark does not take the text.
        UserError: two columns have one name, or a type has no equal.
    """
    frames = {name: spark.createDataFrame([], schemas[name].ddl) for name in definition.table_names}
    try:
        with temporary_views(spark, frames) as names:
            frame = spark.sql(bind_tables(definition, names))
            struct = frame.schema
            if definition.called:
                # Where functions may not stand, Spark says only when it optimizes.
                frame._jdf.queryExecution().optimizedPlan()
    except (PySparkException, Py4JJavaError) as error:
        raise SparkRefusesError(
            f"Spark refuses view {definition.name}: {first_words(error)}", where=definition.file
        ) from None
    return _schema(definition, struct)


def _schema(definition: ViewDefinition, struct: StructType) -> TableSchema:
    columns = tuple(_column(definition, field) for field in struct.fields)
    try:
        return TableSchema(columns, ())
    except UserError as error:
        raise UserError(
            f"view {definition.name}: {error.what}",
            where=definition.file,
            hint="give every column of the SELECT a name of its own with AS",
        ) from None


def _column(definition: ViewDefinition, field: StructField) -> Column:
    try:
        arrow = _plain(to_arrow_type(field.dataType, timezone="UTC"))
        type_name(arrow)
    except (UserError, PySparkException):
        raise no_such_type(definition, field.name, field.dataType.simpleString()) from None
    return Column(field.name, arrow, field.nullable)


# --- kept ----------------------------------------------------------------------------------------

#: Variables of the environment by which Spark or its Java may get settings.
_HEEDED = (
    "SPARK_ANSI_SQL_MODE", "SPARK_TESTING", "SPARK_SUBMIT_OPTS", "SPARK_JAVA_OPTS",
    "PYSPARK_SUBMIT_ARGS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS",
)  # fmt: skip


class Analyst:
    """Says which columns and types texts have: from what was kept, else by Spark, and keeps it.

    An answer is kept under the digest of all that it was made of: the text, the columns that it
    reads, the functions that it calls, Spark's settings and version. One that Spark refuses is
    asked again each time. What is damaged or of other things is not believed: Spark says it anew.

    Args:
        spark: asked for what is not known.
        kept: the file; None: nothing is kept, as Spark's settings are not only the configuration's.
        config: has Spark's settings.
    """

    def __init__(
        self, spark: Spark, kept: Path | None = None, config: Config | None = None
    ) -> None:
        self._spark, self._file = spark, kept
        self._basis = [] if config is None or kept is None else _basis(config)
        self._kept = {} if kept is None else _read(kept)
        self._used: dict[str, str] = {}

    def columns(
        self, definition: ViewDefinition, schemas: Mapping[RelationId, TableSchema]
    ) -> TableSchema:
        """The columns of a view's text, see `analyze`."""
        names = {name: f"__relation_{number}" for number, name in enumerate(definition.table_names)}
        asked = {
            "sql": bind_tables(definition, names),
            "reads": [[names[name], schemas[name].ddl] for name in names],
            "called": plain(definition.called),
        }
        said = self._answer(
            asked, lambda: analyze(self._spark.session(), definition, schemas).arrow
        )
        columns = (Column(field.name, field.type, field.nullable) for field in said)
        return TableSchema(tuple(columns), ())

    def types(self, sql: str, reads: Mapping[str, pa.Schema]) -> list[pa.DataType]:
        """The types of the columns of a text of ours.

        Args:
            reads: columns of what it reads, by the name that it has in the text.
        """
        ddls = {
            name: ", ".join(f"{quoted(field.name)} {type_name(field.type)}" for field in schema)
            for name, schema in reads.items()
        }
        asked = {"types": sql, "reads": ddls}
        said = self._answer(asked, lambda: _types(self._spark.session(), sql, ddls))
        return list(said.types)

    def keep(self) -> None:
        """Write what was asked for since the beginning, where that is not what the file has."""
        if self._file is not None and self._used != self._kept:
            put(self._file, checked({"columns": self._used}))
            self._kept = dict(self._used)

    def _answer(self, asked: Mapping[str, Any], ask: Callable[[], pa.Schema]) -> pa.Schema:
        said = self._said(asked, ask)
        return pa.schema([field.with_type(_plain(field.type)) for field in said])

    def _said(self, asked: Mapping[str, Any], ask: Callable[[], pa.Schema]) -> pa.Schema:
        if self._file is None:
            return ask()
        key = hashlib.sha256(orjson.dumps([self._basis, asked])).hexdigest()
        known = _schema_of(self._kept.get(key) or self._used.get(key))
        if known is None:
            known = ask()
        self._used[key] = b64encode(known.serialize().to_pybytes()).decode()
        return known


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type as it is named: of lists Spark also says whether their elements can be NULL."""
    return pa.list_(_plain(kind.value_type)) if pa.types.is_list(kind) else kind


def _schema_of(text: str | None) -> pa.Schema | None:
    """The columns in Arrow's own form, which tells all of a type; None: there are none."""
    if text is None:
        return None
    try:
        return pa.ipc.read_schema(pa.py_buffer(b64decode(text, validate=True)))
    except (ValueError, pa.ArrowException, OSError):
        return None


def _types(spark: SparkSession, sql: str, ddls: Mapping[str, str]) -> pa.Schema:
    for name, ddl in ddls.items():
        spark.createDataFrame([], ddl).createOrReplaceTempView(name)
    try:
        struct = spark.sql(sql).schema
    finally:
        for name in ddls:
            spark.catalog.dropTempView(name)
    return to_arrow_schema(struct, timezone="UTC")


def _read(file: Path) -> dict[str, str]:
    if not file.exists():
        return {}
    try:
        return dict(
            read_checked(
                file,
                lambda data: fields(data, {"columns": dict[str, str]})["columns"],
                "the kept columns of views cannot be read",
                "the next run asks Spark for them",
            )
        )
    except CorruptionError:
        return {}


def _basis(config: Config) -> list[Any]:
    """What Spark's answers go by beside the text and what it reads.

    Its whole configuration is in it: any setting may matter, and who changes one waits once.
    """
    conf = {key: reveal(text, f"spark.conf.{key}") for key, text in config.spark.conf.items()}
    heeded = [os.environ.get(name) for name in _HEEDED]
    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    defaults = Path(os.environ.get("SPARK_CONF_DIR") or home / "conf") / "spark-defaults.conf"
    return [
        version("mview-engine"),
        pyspark.__version__,
        pa.__version__,
        jars.LOCK.read_text(),
        conf,
        heeded,
        defaults.read_text() if defaults.is_file() else "",
    ]
