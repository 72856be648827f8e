"""What DuckDB may do: nothing but compute over what it is given, within its share of memory."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mview.errors import DataError
from mview.execute import queries as under_test
from mview.execute.local.evaluate import LocalEvaluator
from mview.execute.queries import Queries, closed_database, limit_memory, run_here
from mview.execute.refusal import EvaluationError
from mview.execute.scan import scan_files

ROWS = pa.table({"a": [1, 2]})


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "COPY (SELECT 1) TO 'stolen.csv'",
        "ATTACH 'other.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "SET autoinstall_known_extensions = true",
        "SET lock_configuration = false",
        "SET memory_limit = '1TB'",
        "SET temp_directory = '/tmp/elsewhere'",
    ],
)
def test_no_query_gets_out(sql: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(duckdb.Error):
        closed_database().execute(sql)
    assert not list(tmp_path.iterdir())


def test_tables_in_memory_and_files_are_read(tmp_path: Path) -> None:
    queries = Queries()
    found = queries.run("SELECT a + 1 AS b FROM t", {"t": ROWS})
    assert found.column("b").to_pylist() == [2, 3]
    queries.close()
    file = tmp_path / "it's" / "a.parquet"
    file.parent.mkdir()
    pq.write_table(ROWS, file)
    keys = pa.table({"a": [2]})
    assert scan_files([str(file)], ROWS.schema, keys, False).column("a").to_pylist() == [2]


LIMIT = 64 << 20


@pytest.fixture
def limited() -> Iterator[None]:
    limit_memory(LIMIT)
    yield
    limit_memory(under_test._UNSAID)


def texts(rows: int, size: int) -> pa.Table:
    """Large rows."""
    draw = random.Random(1)
    column = [draw.randbytes(size // 2).hex() for _ in range(rows)]
    return pa.table({"id": [float(number) for number in range(rows)], "s": column})


@pytest.mark.usefixtures("limited")
def test_one_limit_holds_for_all_queries() -> None:
    told = "SELECT current_setting('memory_limit') AS m, current_setting('threads') AS n"
    assert run_here(told, {}).to_pylist() == [{"m": "64.0 MiB", "n": 1}]
    first, second = Queries(), Queries()
    assert first.run(told, {}) == second.run(told, {})
    assert first._database is second._database
    first.close()
    assert second.run(told, {}).num_rows == 1
    second.close()


@pytest.mark.usefixtures("limited")
def test_what_does_not_fit_is_spilled_where_only_its_user_looks() -> None:
    spilled = under_test._spill().path
    assert spilled.stat().st_mode & 0o777 == 0o700
    new, old = texts(90_000, 1000), texts(90_000, 1000).slice(10)
    assert new.nbytes > LIMIT
    both = "(SELECT 1 AS n, * FROM new UNION ALL SELECT -1, * FROM old)"
    sql = f"SELECT id, s, sum(n) AS n FROM {both} GROUP BY id, s HAVING sum(n) <> 0"
    assert run_here(sql, {"new": new, "old": old})["n"].to_pylist() == [1] * 10
    # As DuckDB tells: it has written what it could not hold, and removed it.
    assert not list(spilled.glob("*.tmp"))


@pytest.mark.usefixtures("limited")
def test_rows_that_no_query_can_hold_are_told() -> None:
    large = texts(2, LIMIT // 2)
    with pytest.raises(DataError, match=r"too large for engine\.memory") as caught:
        run_here("SELECT id, s, count(*) FROM rows GROUP BY id, s", {"rows": large})
    assert caught.value.hint == "set a larger engine.memory and run the same command again"
    # A view's own query: Spark runs it instead.
    evaluator = LocalEvaluator()
    with pytest.raises(EvaluationError):
        evaluator.run("select s, count(*) as n from t group by s", {"t": large}, None)
    assert evaluator.run("select count(*) as n from t", {"t": large}, None).to_pylist() == [
        {"n": 2}
    ]
    evaluator.close()
