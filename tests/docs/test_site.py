"""Pages that are read as files are read as a site, too; `make docs` builds it, strictly."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest

SITE = Path(__file__).parents[2] / "docs" / "site" / "pages.py"


@pytest.fixture(scope="module")
def hook():
    spec = importlib.util.spec_from_file_location("site_pages", SITE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def page(hook, uri: str, text: str) -> str:
    return hook.on_page_markdown(text, SimpleNamespace(file=SimpleNamespace(src_uri=uri)))


@pytest.mark.parametrize(
    ("uri", "written", "linked"),
    [
        ("index.md", "[a](docs/views.md#time)", "[a](views.md#time)"),
        ("index.md", "![a](docs/demo.svg)", "![a](demo.svg)"),
        ("index.md", "[a](CONTRIBUTING.md)", "[a](contributing.md)"),
        ("views.md", "[a](../README.md)", "[a](index.md)"),
        ("views.md", "[a](sinks/delta.md) [b](#x)", "[a](sinks/delta.md) [b](#x)"),
        ("sinks/delta.md", "[a](../sinks.md)", "[a](../sinks.md)"),
        (
            "sinks/delta.md",
            "[a](../../tests/bench/README.md#sinks)",
            "[a](../benches.md#sinks)",
        ),
        ("benches.md", "![a](../../docs/growth.svg)", "![a](growth.svg)"),
        ("views.md", "[a](https://example.org/a.md)", "[a](https://example.org/a.md)"),
        ("views.md", "`[a](../README.md)`", "`[a](../README.md)`"),
        ("views.md", "```\n[a](../README.md)\n```", "```\n[a](../README.md)\n```"),
    ],
)
def test_links_go_from_page_to_page(hook, uri, written, linked) -> None:
    assert page(hook, uri, written) == linked


def test_a_list_after_a_line_is_one(hook) -> None:
    assert page(hook, "a.md", "Two:\n- a\n  more\n- b\n") == "Two:\n\n- a\n  more\n- b\n"
    assert page(hook, "a.md", "Two:\n\n- a\n- b\n") == "Two:\n\n- a\n- b\n"
    assert page(hook, "a.md", "```\nx:\n- a\n```\n") == "```\nx:\n- a\n```\n"


def test_what_is_taken_in_is_there(hook) -> None:
    for path in hook.TAKEN_IN:
        assert (hook.ROOT / path).is_file(), path
