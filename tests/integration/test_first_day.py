"""docs/postgresql.md and docs/mysql.md, step by step, as somebody would who has just a server."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import mview
from mview.admin.content import published
from mview.config.file import load_config
from mview.plan.definition import load_views
from mview.secrets import reveal
from tests.integration.running import PATIENCE, Running
from tests.services.process import wait_until

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


@pytest.mark.service
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "kind"), [("postgresql", "postgresql"), ("mysql", "mariadb")])
def test_the_page_as_it_stands(request, spark, tmp_path, name, kind):
    page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    tables, view, changes = blocks(page, "sql")
    (settings,) = blocks(page, "yaml")
    server = request.getfixturevalue(kind)
    with server.new_database() as database:
        there = server.settings(database)
        (tmp_path / "secret").write_text(reveal(there["password"], "tests"))
        body = yaml.safe_load(settings)
        # Another server, by the same names; the rest is the page's.
        body["connections"]["crm"] |= there | {"password": f"${{file:{tmp_path / 'secret'}}}"}
        (tmp_path / "mview.yml").write_text(yaml.safe_dump(body))
        (tmp_path / "revenue.sql").write_text(view)
        server.execute(tables, database)
        config = load_config(tmp_path / "mview.yml")

        def shown():
            frame = mview.connect(config.path)["revenue"].df()
            return sorted(
                (str(name), int(orders), str(revenue))
                for name, orders, revenue in frame[["name", "orders", "revenue"]].to_numpy()
            )

        def expected():
            rows = server.execute(
                "SELECT c.name, count(*), sum(o.total) FROM customers c"
                " JOIN orders o ON o.customer_id = c.id GROUP BY c.name",
                database,
            )
            return sorted((str(name), int(orders), str(total)) for name, orders, total in rows)

        with Running(config, load_views([tmp_path / "revenue.sql"])) as run:
            # Nothing changes meanwhile: rows count when the server's clock says so, by batches.
            wait_until(lambda: published(config).views, "the view", 4 * PATIENCE, run.check)
            before = shown()
            assert before == expected()
            server.execute(changes, database)
            assert expected() != before
            wait_until(lambda: shown() == expected(), "the changes", PATIENCE, run.check)
