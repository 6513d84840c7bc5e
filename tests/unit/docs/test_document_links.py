"""Links of the documents lead somewhere, every page can be reached, and prose fits into a terminal."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

PROJECT = Path(__file__).parents[3]
DOCS = PROJECT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
MOST_COLUMNS = 120
DOCUMENTS = [PROJECT / "README.md", PROJECT / "CHANGELOG.md", PROJECT / "clients" / "README.md", *PAGES]


def tokens(document: Path) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(document.read_text(encoding="utf-8"))


def links(document: Path) -> Iterator[str]:
    """Yield the targets of all links and pictures, those in HTML too."""
    for block in tokens(document):
        for token in [block, *(block.children or [])]:
            for name in ("href", "src"):
                target = token.attrGet(name)
                if target is not None:
                    yield str(target)
            if token.type.startswith("html"):
                yield from re.findall(r'(?:href|src|srcset)="([^"]+)"', token.content)


@cache
def anchors(document: Path) -> set[str]:
    """Name the headings as GitHub does."""
    found: Counter[str] = Counter()
    names = set()
    blocks = tokens(document)
    for block, inline in pairwise(blocks):
        if block.type == "heading_open":
            text = "".join(child.content for child in inline.children or [])
            name = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            names.add(f"{name}-{found[name]}" if found[name] else name)
            found[name] += 1
    return names


def followed(document: Path) -> Iterator[tuple[str, Path, str]]:
    """Yield the relative links of a document: as written, the file, the anchor."""
    for link in links(document):
        parts = urlsplit(link)
        if not parts.scheme and not parts.netloc:
            file = (document.parent / unquote(parts.path)).resolve() if parts.path else document
            yield link, file, parts.fragment


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(PROJECT)))
def test_relative_links_resolve(document: Path) -> None:
    broken = []
    for link, file, anchor in followed(document):
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            broken.append(link)
    assert broken == []


def test_every_page_is_reachable_from_the_index() -> None:
    reached, waiting = set(), [DOCS / "index.md"]
    while waiting:
        page = waiting.pop()
        if page not in reached:
            reached.add(page)
            waiting += [file for _, file, _ in followed(page) if file.suffix == ".md" and DOCS in file.parents]
    assert [str(page.relative_to(DOCS)) for page in PAGES if page not in reached] == []


def long_lines(page: Path) -> Iterator[int]:
    """Yield the numbers of lines of prose above the limit; code, tables and pictures may be longer."""
    in_code = False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        in_code ^= line.lstrip().startswith("```")
        if len(line) > MOST_COLUMNS and not in_code and not line.startswith(("|", "<")):
            yield number


def is_generated(page: Path) -> bool:
    return DOCS / "results" in page.parents or "<!-- Written by `make" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", [page for page in PAGES if not is_generated(page)], ids=lambda page: page.stem)
def test_lines_are_short(page: Path) -> None:
    assert list(long_lines(page)) == []
