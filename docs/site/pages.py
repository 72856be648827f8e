"""A hook of mkdocs: pages of the repository that are not in docs, and links from page to page.

All pages are written to be read as files of the repository, too: their links are paths from file to
file. Here each is made one from page to page.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]

#: What is a page of the site, or is downloaded from it, by its path in the repository.
TAKEN_IN = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "tests/bench/README.md": "benches.md",
    "conf/mview.yml": "conf/mview.yml",
}

#: The end of a link or picture of Markdown, but for one with a scheme.
_LINK = re.compile(r"\]\((?![a-z]+:)([^)#\s]*)((?:#[^)\s]*)?)\)")

#: Code has neither links nor lists.
_FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_QUOTED = re.compile(r"(`[^`\n]+`)")

#: A list that follows a line of text: GitHub reads it as one, mkdocs does not.
_TIGHT_LIST = re.compile(r"(^(?![-*] |\d+\. |\s|$|[|#>]).*\n)(?=(?:[-*]|\d+\.) )", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Take in what stands elsewhere."""
    for path, uri in TAKEN_IN.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Make links between files links between pages."""
    uri = page.file.src_uri
    path = next((path for path, taken in TAKEN_IN.items() if taken == uri), f"docs/{uri}")
    parts = _FENCED.split(markdown)
    parts[::2] = [_TIGHT_LIST.sub(r"\1\n", _linked(path, uri, text)) for text in parts[::2]]
    return "".join(parts)


def _linked(path: str, uri: str, text: str) -> str:
    parts = _QUOTED.split(text)
    parts[::2] = [
        _LINK.sub(lambda match: f"]({_link(path, uri, match[1])}{match[2]})", part)
        for part in parts[::2]
    ]
    return "".join(parts)


def _link(path: str, uri: str, link: str) -> str:
    """A link of a file of the repository, as one of the page that it is."""
    if not link:
        return ""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
    page = TAKEN_IN.get(target, target.removeprefix("docs/"))
    return posixpath.relpath(page, posixpath.dirname(uri) or ".")
