"""What README and docs show is what there is: commands, exit codes, properties, examples, links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mview_connectors.formats.unified import UnifiedFormat

from mview.cli import main
from mview.config.file import load_config
from mview.connector import Message
from mview.errors import ExitCode, UserError
from mview.plan import definition
from tests.relations import rel

ROOT = Path(__file__).parents[2]
PAGES = [
    Path("README.md"),
    Path("CONTRIBUTING.md"),
    *(page.relative_to(ROOT) for page in sorted(ROOT.glob("docs/**/*.md"))),
]
LINKS = [
    (page, link)
    for page in PAGES
    for link in sorted(set(re.findall(r"\]\(([^)h][^)]*)\)", (ROOT / page).read_text("utf-8"))))
]


def examples(language, page="README.md"):
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def anchors(page):
    """The names that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def first_column(page, heading):
    """The first cells of the table that begins with this line."""
    text = (ROOT / page).read_text(encoding="utf-8")
    rows = text.split(heading + "\n", 1)[1].split("\n\n", 1)[0].splitlines()[1:]
    return [row.split("|")[1].strip() for row in rows]


def test_the_first_page_is_short():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    (query,) = examples("sql")
    assert definition.parse_view(query, "revenue").table_names == (
        rel("crm.customers"),
        rel("crm.orders"),
    )


def test_the_commands():
    shown = [
        cell.strip("`").split()[1]
        for cell in first_column("docs/commands.md", "| command | what it does |")
    ]
    assert sorted(shown) == sorted(main.commands)


def test_the_exit_codes():
    assert [
        int(cell) for cell in first_column("docs/commands.md", "| exit code | meaning |")
    ] == sorted(ExitCode)


def test_the_properties_of_a_view():
    shown = [
        cell.strip("`")
        for cell in first_column("docs/views.md", "| property | meaning | default |")
    ]
    with pytest.raises(UserError) as refused:
        definition.parse_view("CREATE MATERIALIZED VIEW v WITH (nope='') AS SELECT 1 AS a", "v")
    assert sorted(shown) == sorted(refused.value.allowed.split(", "))


def test_the_views():
    bare, declared = examples("sql", "docs/views.md")
    read = definition.parse_view(bare, "totals").table_names
    assert read == (rel("shop.orders"), rel("shop.order_lines"))
    declared = declared.replace("SELECT …", "SELECT 1 AS order_id")
    assert definition.parse_view(declared, "x").name == "order_revenue"


def test_the_configuration(tmp_path):
    (text,) = examples("yaml", "docs/configuration.md")
    (functions,) = examples("yaml", "docs/views.md")
    (tmp_path / "mview.yml").write_text(text + functions)
    config = load_config(tmp_path / "mview.yml")
    assert config.changes["shop"].delay == 10_000
    assert config.functions["vat"].kind == "python"


def test_the_lines_of_the_unified_format():
    (text,) = examples("json", "docs/formats/unified.md")
    kinds = [
        event.kind
        for number, line in enumerate(text.splitlines())
        for event in UnifiedFormat({}).decode(Message("log", number, None, line.encode()))
    ]
    assert kinds == ["c", "u", "d", "heartbeat"]


@pytest.mark.parametrize(("page", "link"), LINKS, ids=str)
def test_the_links(page, link):
    name, _, anchor = link.partition("#")
    target = (ROOT / page).parent / name if name else ROOT / page
    assert target.exists(), link
    assert not anchor or anchor in anchors(target), link


def test_the_files_they_name():
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for name in re.findall(r"`((?:mview|connectors|conf|tests|docs)/[\w./]+)`", text):
            assert (ROOT / name).exists(), (page, name)
