"""What Spark has said of a text is said again without it, and nothing else is believed."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from mview.catalog import analyze as analyses
from mview.catalog.analyze import Analyst
from mview.config import Config
from mview.epoch.views.opening import analyzer
from mview.errors import UserError, known_error
from mview.files.jsonfile import checked
from mview.ivm.compile import compile_view
from mview.plan.definition import ViewDefinition, parse_view
from mview.schema import Column, TableSchema
from mview.session.lazy import Spark
from tests.conftest import small_config
from tests.ivm.ordinary import SCHEMAS, texts
from tests.ivm.world import table_schema
from tests.relations import keyed

ORDERS = table_schema("id bigint, cust bigint, total decimal(12,2)", "id")
SQL = "select id, cust + 1 as next, array(total) as totals from shop.orders"
SAID = TableSchema(
    (
        Column("id", pa.int64(), False),
        Column("next", pa.int64()),
        Column("totals", pa.list_(pa.decimal128(12, 2)), False),
    ),
    (),
)
#: Elements that are never NULL are another type to Spark, which no name tells.
NEVER_NULL = pa.list_(pa.field("element", pa.decimal128(12, 2), False))


def no_spark() -> Any:
    raise AssertionError("Spark is asked")


class Asked:
    """Counts what Spark is asked, and answers with `SAID`, as it tells it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = 0
        monkeypatch.setattr(analyses, "analyze", self)

    def __call__(self, *_: object) -> TableSchema:
        self.times += 1
        *others, totals = SAID.columns
        return TableSchema((*others, replace(totals, type=NEVER_NULL)), ())


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(monkeypatch)


class Kept:
    """Analyses of a store, run after run."""

    def __init__(self, folder: Path) -> None:
        self.file, self.config = folder / "analyses.json", small_config(folder)

    def ask(
        self,
        sql: str = SQL,
        schema: TableSchema = ORDERS,
        config: Config | None = None,
        view: ViewDefinition | None = None,
    ) -> TableSchema:
        """What a run is told."""
        analyst = Analyst(Spark(object), self.file, config or self.config)  # type: ignore[arg-type]
        view = view or parse_view(sql, "v")
        answer = analyst.columns(view, keyed({"shop.orders": schema}))
        analyst.keep()
        return answer


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


def test_the_same_is_asked_once(kept: Kept, asked: Asked) -> None:
    for _ in range(3):
        assert kept.ask() == SAID
    assert asked.times == 1
    # The name of a view is nothing that Spark sees.
    assert kept.ask(view=parse_view(SQL, "other")) == SAID
    assert asked.times == 1


def test_what_its_answer_goes_by_is_asked_anew(
    kept: Kept, asked: Asked, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def one_more(**how: Any) -> None:
        before = asked.times
        kept.ask(**how)
        assert asked.times == before + 1
        kept.ask(**how)
        assert asked.times == before + 1

    one_more()
    one_more(sql=SQL.replace("+ 1", "+ 2"))
    wider = table_schema("id bigint, cust bigint, total decimal(14,2)", "id")
    one_more(schema=wider)
    spark = {"master": "local[2]", "conf": {"spark.sql.optimizer.excludedRules": "none"}}
    one_more(config=small_config(tmp_path, spark=spark))
    monkeypatch.setenv("SPARK_ANSI_SQL_MODE", "false")
    one_more()
    (tmp_path / "conf").mkdir()
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "conf"))
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.sql.ansi.enabled false\n")
    one_more()
    monkeypatch.setattr(analyses.pyspark, "__version__", "99.0")
    one_more()


def test_what_is_damaged_is_not_believed(kept: Kept, asked: Asked) -> None:
    kept.ask()
    good = kept.file.read_bytes()
    body = orjson.loads(good.partition(b"\n")[2])
    (key,) = body["columns"]
    others = [
        b"",
        good[:-20],
        good.replace(b"columns", b"columnz"),
        b"0" * 64 + good[64:],
        checked({"columns": [1]}),
        checked({"columns": {key: "no base 64"}}),
        checked({"columns": {key: "AAAA"}}),
        checked({"columns": {hashlib.sha256().hexdigest(): body["columns"][key]}}),
    ]
    for number, other in enumerate(others):
        kept.file.write_bytes(other)
        assert kept.ask() == SAID
        assert asked.times == number + 2
        assert kept.file.read_bytes() == good


def test_a_folder_in_the_place_of_the_file_is_told(kept: Kept, asked: Asked) -> None:
    kept.file.mkdir()
    with pytest.raises(IsADirectoryError) as refused:
        kept.ask()
    told = known_error(refused.value)
    assert (told.what, told.where) == ("a folder is in the place of a file", str(kept.file))
    assert told.hint == "move it away; then run the same command again"


def test_what_is_not_asked_any_more_goes(kept: Kept, asked: Asked) -> None:
    kept.ask()
    size = kept.file.stat().st_size
    kept.ask(SQL.replace("+ 1", "+ 2"))
    assert kept.file.stat().st_size == size


def test_what_is_refused_is_not_kept(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> TableSchema:
        raise UserError("no such function")

    monkeypatch.setattr(analyses, "analyze", refuse)
    for _ in range(2):
        with pytest.raises(UserError):
            kept.ask()
    assert not kept.file.exists()


def test_a_session_of_somebody_else_is_asked_each_time(tmp_path: Path, asked: Asked) -> None:
    for number in range(2):
        analyst = Analyst(Spark.of(object()))  # type: ignore[arg-type]
        assert analyst.columns(parse_view(SQL, "v"), keyed({"shop.orders": ORDERS})) == SAID
        analyst.keep()
        assert asked.times == number + 1


@pytest.mark.spark
def test_plans_are_the_same_without_spark(spark: SparkSession, tmp_path: Path) -> None:
    """Of ordinary texts: what is kept of them makes the plans that Spark makes."""
    schemas, config, file = keyed(SCHEMAS), small_config(tmp_path), tmp_path / "analyses.json"
    asking = Analyst(Spark.of(spark), file, config)
    views = [parse_view(sql, f"v{number}") for number, sql in enumerate(texts()[::9])]
    plans = [compile_view(view, schemas, analyzer(asking)) for view in views]
    said = [asking.columns(view, schemas) for view in views]
    asking.keep()
    knowing = Analyst(Spark(no_spark), file, config)
    for view, plan, columns in zip(views, plans, said, strict=True):
        assert compile_view(view, schemas, analyzer(knowing)) == plan
        assert knowing.columns(view, schemas) == columns
