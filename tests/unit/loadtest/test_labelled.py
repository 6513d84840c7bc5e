"""Texts with right labels: how they are read, whose rows get them, and what becomes of the labels."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hplm_client import Classification, Request
from loadtest.in_process import play
from loadtest.labelled import LabelledTexts, parse_labelled
from loadtest.scenarios import Content
from loadtest.schedule import Schedule
from loadtest.sender import Ask, Target
from loadtest.texts import WordTexts
from workload.errors import WorkloadError
from workload.lengths import NormalLengths

HPLMS = ("acme/topic", "acme/mood", "acme/pair")
ROWS = {
    "acme/topic": [{"text": f"text\t{number}", "label": f"label {number % 2}"} for number in range(7)],
    "acme/pair": [{"text": "one two", "text_pair": "three", "label": "yes"}],
}


@pytest.fixture
def labelled(tmp_path: Path) -> LabelledTexts:
    options = []
    for hplm, rows in ROWS.items():
        path = tmp_path / f"{hplm.replace('/', '-')}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows) + "\n")
        options.append(f"{hplm}={path}")
    return LabelledTexts.read(parse_labelled(options))


def scheduled(labelled: LabelledTexts, count: int = 300) -> Schedule:
    rng = np.random.default_rng(3)
    content = Content(HPLMS, WordTexts(), NormalLengths(20), None, frozenset({"acme/pair"}), labelled, "early")
    return content.schedule(np.arange(count) * 1e-4, rng.integers(3, size=count), rng)


def test_each_hplm_gets_its_own_texts_each_as_often(labelled: LabelledTexts) -> None:
    schedule = Schedule.from_bytes(scheduled(labelled).to_bytes()).share(0, 1)
    texts: Counter[str] = Counter()
    for row in range(len(schedule)):
        request, label = schedule.request(row, None), schedule.label(row)
        assert request.level == "early"
        match request.hplm:
            case "acme/topic":
                assert label == f"label {int(request.text.rpartition(' ')[2]) % 2}"
                texts[request.text] += 1
                assert schedule.tokens[row] == 4
            case "acme/pair":
                assert (request.text, request.text_pair, label) == ("one two", "three", "yes")
            case _:
                assert label is None
    assert len(texts) == 7 and max(texts.values()) - min(texts.values()) <= 1


def test_answers_are_judged_by_the_labels(labelled: LabelledTexts) -> None:
    asked: list[Request] = []

    @asynccontextmanager
    async def open_ask(target: Target) -> AsyncIterator[Ask]:
        async def ask(request: Request) -> Classification:
            asked.append(request)
            fields = {"hplm": request.hplm, "version": 1, "task": "classification", "truncated": False, "exact": True}
            answer = Classification(label="label 1", score=1.0, scores={}, **fields)
            object.__setattr__(answer, "level", "early")
            object.__setattr__(answer, "doubtful", request.text.endswith("3"))
            return answer

        yield ask

    schedule = scheduled(labelled)
    requests = play(Target("nowhere:1"), schedule, open_ask=open_ask).requests
    for row in range(len(schedule)):
        label = schedule.label(row)
        assert requests.right[row] == (label == "label 1") if label else np.isnan(requests.right[row])
    assert set(requests.levels.tolist()) == {"early"} == {request.level for request in asked}
    assert requests.doubtful.sum() == sum(request.text.endswith("3") for request in asked) > 0


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[1]", "not {"),
        ('{"text": "a"}', "not {"),
        ('{"text": " ", "label": "x"}', "not {"),
        ('{"text": "a", "label": 1.5}', "not {"),
        ('{"text": "a", "text_pair": 1, "label": "x"}', "'text_pair'"),
        ("", "no texts"),
    ],
)
def test_a_wrong_file_is_named_with_its_line(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(WorkloadError, match=message):
        LabelledTexts.read({"acme/topic": path})


def test_wrong_options() -> None:
    for text in ("a.jsonl", "=a.jsonl", "acme/topic="):
        with pytest.raises(WorkloadError, match="is not of the form ID=FILE"):
            parse_labelled([text])
    with pytest.raises(WorkloadError, match="two files"):
        parse_labelled(["acme/topic=a", "acme/topic=b"])
    with pytest.raises(WorkloadError, match="No such file"):
        LabelledTexts.read({"acme/topic": Path("nowhere.jsonl")})


def test_texts_of_an_hplm_that_is_not_asked(labelled: LabelledTexts) -> None:
    content = Content(HPLMS, WordTexts(), NormalLengths(20), labelled=labelled)
    with pytest.raises(WorkloadError, match="acme/topic is not among the hPLMs"):
        replace(content, hplms=("acme/mood", "acme/pair"))
