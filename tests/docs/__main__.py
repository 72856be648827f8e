"""Write the pages of docs that are made of the code: `python -m tests.docs`."""

from __future__ import annotations

from tests.docs.pages import PAGES

for page, text in PAGES.items():
    page.write_text(text(), encoding="utf-8")
