"""The page for tenants and its picture, as the scripts make them of a run of `bench.levels`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[3] / "docs"
MACHINE = {"cores": 2, "cpu": "some processor", "instructions": "avx2"}
SETTINGS = {"max_drop": 1.0, "certainty": 0.9, "load": 0.8, "root": "gte", "tenants": 64, "rounds": 5}
FIGURES = {
    "right_2x_over_full": 1.8,
    "answered_early_mean": 0.64,
    "drop_points_mean": -0.05,
    "lone_latency_ratio": 0.71,
    "p99_ratio_lone": 1.003,
    "latency_ratio_at_0_8": 0.4,
    "rows_per_s_ratio": 1.42,
}


def row(task: str, **changes: Any) -> dict[str, Any]:
    chosen = {"task": task, "select s": 20.0, "after": 2, "layers": 6, "threshold": 0.913, "answered early": 0.64}
    cost = {"drop promised": 0.873, "drop": -0.05, "drop error": 0.21, "full": 91.2, "ladder": 91.25}
    alone = {"alone ms, full": 20.0, "alone ms, auto": 14.0}
    return {**chosen, **cost, **alone, "loaded ms, full": 50.0, "loaded ms, auto": 15.0, **changes}


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """The scripts, with a run of `bench.levels` among the results."""
    for room in ("results", "pictures"):
        shutil.copytree(DOCS / room, tmp_path / room, ignore=shutil.ignore_patterns("quality_trials", "__pycache__"))
    rows = [row("sst2"), row("new-task", **{"answered early": 0.5}), {"task": "mrpc", "no ladder": "too few; sorry"}]
    report = {"bench": "levels", "figures": FIGURES, "settings": SETTINGS, "machine": MACHINE, "rows": rows}
    (tmp_path / "results" / "levels.json").write_text(json.dumps(report))
    return tmp_path


def written(docs: Path, room: str, name: str) -> str:
    subprocess.run([sys.executable, str(docs / room / "generate.py")], check=True)
    return (docs / room / name).read_text(encoding="utf-8")


def test_the_page_says_what_was_chosen_promised_and_measured(docs: Path) -> None:
    page = written(docs, "results", "what-you-get.md")
    assert "| whether a film review is positive (sst2) | 2 of 6 layers | 91.3 % | 64 % | 91.2 | 91.2 | 0.87 |" in page
    assert "-0.05 ± 0.21" in page and "10 %\n  of all ladders may lose more" in page
    assert "| new-task | 20 | 14 | 30 % less | 50 | 15 | 70 % less |" in page
    assert "| texts a second on the same machine | 42 % more |" in page
    assert "| the slowest of a hundred such texts | the same |" in page
    assert "| whether two sentences say the same (mrpc) | too few |" in page
    assert "Tasks whose answers are numbers" in page
    assert "(what-you-get.md)" in (docs / "results" / "index.md").read_text(encoding="utf-8")


def test_the_picture_has_both_bars_of_each_ladder(docs: Path) -> None:
    picture = written(docs, "pictures", "ladders.svg")
    texts = [each.text for each in ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")]
    assert texts.count("14") == texts.count("20") == texts.count("15") == texts.count("50") == 2
    assert "64 % answered early" in texts and "mrpc" not in texts
