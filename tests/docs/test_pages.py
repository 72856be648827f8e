"""The pages that are made of the code are what the code is: `python -m tests.docs` writes them."""

from __future__ import annotations

import pytest

from tests.docs.pages import PAGES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_page_is_what_the_code_is(page) -> None:
    assert page.read_text(encoding="utf-8") == PAGES[page](), "write it: python -m tests.docs"
