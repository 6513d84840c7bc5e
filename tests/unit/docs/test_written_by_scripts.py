"""Pictures and the index of the results are what their scripts make of the committed results."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[3]
PICTURES = PROJECT / "docs" / "pictures"
RESULTS = PROJECT / "docs" / "results"
README = (PROJECT / "README.md").read_text(encoding="utf-8")
MOST_LINES, MOST_WORDS = 150, 1_300
_SVG = "{http://www.w3.org/2000/svg}"


def written(script: Path, folder: Path) -> None:
    subprocess.run([sys.executable, str(script), str(folder)], check=True)


def test_the_pictures_are_current(tmp_path: Path) -> None:
    written(PICTURES / "generate.py", tmp_path)
    made = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.glob("*.svg")}
    assert made == {path.name: path.read_text(encoding="utf-8") for path in PICTURES.glob("*.svg")}, (
        "run: make pictures"
    )


def test_the_index_of_the_results_is_current(tmp_path: Path) -> None:
    written(RESULTS / "generate.py", tmp_path)
    assert (tmp_path / "index.md").read_text() == (RESULTS / "index.md").read_text(), "run: make results"


def test_the_index_has_every_run() -> None:
    index = (RESULTS / "index.md").read_text(encoding="utf-8")
    every = (path.relative_to(RESULTS).with_suffix("") for path in RESULTS.rglob("*.json"))
    runs = [path for path in every if "quality_trials" not in path.parts]  # which one run is made of
    assert [str(run) for run in runs if f"({run}.md)" not in index] == []


@pytest.mark.parametrize("picture", sorted(PICTURES.glob("*.svg")), ids=lambda path: path.stem)
def test_a_picture_says_what_it_shows_and_stays_inside(picture: Path) -> None:
    root = ElementTree.parse(picture).getroot()
    width, height = (float(root.attrib[name]) for name in ("width", "height"))
    assert root.findtext(f"{_SVG}title") and root.findtext(f"{_SVG}desc")
    for text in root.iter(f"{_SVG}text"):
        x, length = float(text.attrib["x"]), 0.62 * float(text.attrib["font-size"]) * len(text.text or "")
        left = x - {"start": 0.0, "middle": 0.5, "end": 1.0}[text.attrib["text-anchor"]] * length
        assert left >= 0 and left + length <= width and 0 < float(text.attrib["y"]) < height, text.text


def test_the_charts_show_the_committed_runs() -> None:
    content = (PICTURES / "peers.svg").read_text(encoding="utf-8")
    for row in json.loads((RESULTS / "no_amx" / "peers.json").read_text())["rows"]:
        if (row["tenants"], row["lengths"]) == (16, "real") and row["way"] in ("ours, through Triton", "OpenVINO int8"):
            assert f">{row['rows per s']:.3g}</text>" in content
    content = (PICTURES / "tenants.svg").read_text(encoding="utf-8")
    for row in json.loads((RESULTS / "throughput.json").read_text())["rows"]:
        if row["scheme"] in ("hplm", "dedicated", "dedicated_cold"):
            assert f">{row['rows per s']:.0f}</text>" in content


def test_the_readme_fits_on_a_few_screens() -> None:
    assert len(README.splitlines()) <= MOST_LINES
    assert len(README.split()) <= MOST_WORDS


def test_the_readmes_figures_stand_in_the_index() -> None:
    """Each of the five rows has a figure that a row of the index has for the same page."""
    rows = re.findall(r"\| \*\*(.+?)\*\* \| \[\w+\]\(docs/results/([\w/]+\.md)\) \|", README)
    assert len(rows) == 5
    index = (RESULTS / "index.md").read_text(encoding="utf-8")
    for shown, page in rows:
        assert re.search(rf"\| {re.escape(shown)}(?: points)? \| .*\({page}\) \|", index), (shown, page)
