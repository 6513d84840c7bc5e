"""The page: whole by itself, well-formed, and with the run's own numbers in it."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from random_run import REASONS, random_folder

from loadtest.pictures import BLUE, RED
from loadtest.report import comparison, notices, run_report
from loadtest.results import Results, read_results

_VOID = {"meta", "br", "link", "img", "input", "hr"}
_REFERRING = {"src", "href", "xlink:href", "action", "data", "poster", "srcset"}


class Page(HTMLParser):
    """Checks that tags nest, and collects what the page refers to and says."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.references: list[str] = []
        self.ids: list[str] = []
        self.cells: list[str] = []
        self.scripts: list[dict[str, str | None]] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name in _REFERRING:
                self.references.append(value or "")
            if name == "id":
                self.ids.append(value or "")
        if tag == "script":
            self.scripts.append(dict(attrs))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "b"):
            self.cells.append(data)


def check_self_contained(html: str) -> Page:
    page = Page(html)
    assert all(reference.startswith("#") for reference in page.references)
    assert "@import" not in html
    assert re.findall(r"url\((?!#)", html) == []
    assert [script["type"] for script in page.scripts] == ["application/json"]
    assert len(set(page.ids)) == len(page.ids)
    assert {reference[1:] for reference in page.references} <= set(page.ids)
    return page


def embedded(html: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)
    assert found is not None
    return json.loads(found[1])


@pytest.fixture
def results(tmp_path: Path, seed: int) -> Results:
    return read_results(random_folder(tmp_path / "run", seed))


def test_the_page_holds_the_runs_numbers_and_fetches_nothing(results: Results) -> None:
    html = run_report(results)
    page, summary = check_self_contained(html), results.summary
    data = embedded(html)
    for name in ("planned", "answered", "attainment", "latency_ms", "fairness", "reasons", "sending"):
        assert data[name] == summary[name]
    for shown in (f"{summary['planned']:,}", f"{summary['attainment']:.1%}", f"{summary['fairness']['jain']:,.3f}"):
        assert shown in page.cells
    assert set(REASONS) <= set(page.cells)  # escaped in the page: one of them has < and &
    assert notices(results)[-1] == f"{summary['failed']:,} requests ended with an error, most often: {REASONS[2]}"


def test_every_picture_has_a_title_and_axes_with_units(results: Results) -> None:
    html = run_report(results)
    drawings = re.findall(r"<svg.*?</svg>", html, re.S)
    assert len(drawings) == 8
    for drawing in drawings:
        ElementTree.fromstring(drawing)
    text = " ".join(re.findall(r"<text[^>]*>([^<]*)</text>", html))
    for words in (
        "Latency of answers",
        "from scheduled time to answer (ms, log scale)",
        "requests per second",
        "time since the start (s)",
        "share of tenants, worst first",
        "Rejected and failed, by reason",
        "rows that Triton handed over at once",
        "behind schedule (ms, log scale)",
    ):
        assert words in text


def test_a_comparison_shows_both_runs_and_their_ratio(tmp_path: Path, seed: int) -> None:
    first, second = (read_results(random_folder(tmp_path / str(n), seed + n)) for n in range(2))
    html = comparison(first, second, ("calm", "<wild>"))
    page = check_self_contained(html)
    assert [run["name"] for run in embedded(html)["runs"]] == ["calm", "<wild>"]
    for mean in (first.summary["latency_ms"]["mean"], second.summary["latency_ms"]["mean"]):
        assert f"{mean:.2f} ms" in page.cells or f"{mean:,.0f} ms" in page.cells
    ratio = second.summary["latency_ms"]["mean"] / first.summary["latency_ms"]["mean"]
    assert f"{ratio:.3f}" in page.cells
    assert BLUE.lower() in html
    assert RED.lower() in html


def test_a_generator_that_fell_behind_is_told_before_the_numbers(tmp_path: Path, seed: int) -> None:
    html = run_report(read_results(random_folder(tmp_path / "run", seed, lateness_limit_ms=0.01)))
    assert html.index("the load generator fell behind") < html.index("Latency of answers")
