from __future__ import annotations

import os
import subprocess
import sys

import pytest

from demo.harvest import Harvest
from demo.prose import words
from demo.tasks import DemoTask
from demo.texts import DOMAIN_BYTES, GENERAL_BYTES, PASSAGE_WORDS, SHARED_TEXTS, corpora, general_corpus

pytestmark = pytest.mark.long  # the texts of the pinned packages, which few commits can change


def size_bytes(lines: list[str]) -> int:
    return sum(len(line.encode()) + 1 for line in lines)


def padded(text: str) -> str:
    return f" {' '.join(words(text))} "


@pytest.fixture(scope="module")
def domain_corpora(installed_harvest: Harvest, installed_tasks: list[DemoTask]) -> dict[str, list[str]]:
    return corpora(installed_harvest, installed_tasks)


@pytest.fixture(scope="module")
def mixed_corpus(installed_harvest: Harvest, installed_tasks: list[DemoTask]) -> list[str]:
    return general_corpus(installed_harvest, installed_tasks)


@pytest.fixture(params=["domain_corpora", "mixed_corpus"])
def corpora_of_a_kind(request: pytest.FixtureRequest, installed_harvest: Harvest) -> list[list[str]]:
    made = request.getfixturevalue(request.param)
    return list(made.values()) if isinstance(made, dict) else [made]


def test_domain_corpora_have_their_sizes(domain_corpora: dict[str, list[str]]) -> None:
    for lines in domain_corpora.values():
        assert 1_000_000 < size_bytes(lines) < 1.3 * DOMAIN_BYTES


def test_the_mixed_corpus_has_its_size(mixed_corpus: list[str]) -> None:
    assert 5_000_000 < size_bytes(mixed_corpus) <= GENERAL_BYTES


def test_every_line_is_one_short_clean_text(corpora_of_a_kind: list[list[str]]) -> None:
    for line in (line for lines in corpora_of_a_kind for line in lines):
        assert line == " ".join(line.split())
        assert len(line.split()) <= PASSAGE_WORDS


def test_corpora_hold_the_training_texts(domain_corpora: dict[str, list[str]], installed_tasks: list[DemoTask]) -> None:
    for task in installed_tasks:
        lines = set(domain_corpora[task.domain])
        assert sum(example.text in lines for example in task.train) > 0.85 * len(task.train)


def test_no_corpus_holds_a_test_text(corpora_of_a_kind: list[list[str]], installed_tasks: list[DemoTask]) -> None:
    held_out = [padded(example.text) for task in installed_tasks for example in task.test[::10]]
    for lines in corpora_of_a_kind:
        everything = "\n".join(map(padded, lines))
        assert [text for text in held_out if text in everything] == []


def test_shared_texts_are_new(domain_corpora: dict[str, list[str]], installed_tasks: list[DemoTask]) -> None:
    known = {line for lines in domain_corpora.values() for line in lines}
    known |= {example.text for task in installed_tasks for example in task.train}
    assert not known.intersection(SHARED_TEXTS)


DIGEST = """
from hashlib import sha256
from demo.harvest import installed_sources
from demo.tasks import demo_tasks
from demo.texts import corpora, general_corpus, harvest

found = harvest([source for source in installed_sources() if source.package in ("stdlib", "psutil")], workers=1)
tasks = demo_tasks(found)
made = [tasks, [task.splits for task in tasks], corpora(found, tasks), general_corpus(found, tasks)]
print(len(tasks), found.digest(), sha256(repr(made).encode()).hexdigest())
"""


def test_a_second_harvest_with_other_hashes_gives_the_same_corpora_and_tasks() -> None:
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", DIGEST],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for seed in ("1", "2")
    ]
    first, second = (run.communicate(timeout=120)[0] for run in runs)
    assert first == second
    assert int(first.split()[0]) >= 4
