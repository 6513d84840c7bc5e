"""Pruned words as the engine serves them: by the ladder, by the level that is asked for, and by the audit."""

from __future__ import annotations

import json
import math
import queue
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from backends.adapters.bank import read_artifact
from backends.adapters.head import Head
from backends.adapters.ladder import EarlyStep, Ladder, Pruning, read_ladder, write_ladder
from backends.engine.audit import Audit
from backends.engine.exits import Early, Exit
from backends.engine.pruning import Prunable
from backends.engine.service import UpperService
from backends.engine.stack import StackSettings, UpperStack
from backends.errors import CorruptFileError, HplmError, InvalidArgumentError
from backends.home import Home
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from backends.root.word_marks import BEGINS_WORD, CONTINUES_WORD, OF_NO_WORD, WordMarks
from backends.scheduling.accounts import Accounts
from backends.storage import read_json, write_json
from backends.wire import AUTO, EARLY, FULL, Ticket, decode_marks, encode_marks, encode_tickets, fold_rows
from builder.construct.hplm.hplms import building_hplm, publish_linked
from served_engine import HIDDEN, Responses, running

PRUNING = Pruning(0.9, 0.7)
FIGURES = {"after": 1, "layers": 2, "answered_early": 0.4, "kept_tokens": 0.6, "pruned_by": "attention"}
THRESHOLD = 0.6


def published(home: Home, pruning: Pruning | None = PRUNING, hplm: str = "acme/topic") -> tuple[HplmEntry, Ladder]:
    """An hPLM whose ladder is made up, and prunes."""
    registry, root = Registry.open(home), RootFolder(home.root("tiny"))
    live = registry.hplm(hplm)
    own = read_artifact(home.path / live.folder, root.fingerprint).head
    torch.manual_seed(3)
    head = Head(torch.randn(own.weight.shape).half().float(), torch.randn(own.bias.shape).half().float())
    ladder = Ladder(EarlyStep(1, head, 2.0, THRESHOLD), 0.5, {"disagreement": 0.1}, None, pruning)
    figures = {"levels": [EARLY, FULL], "ladder": {**FIGURES, **({} if pruning else {"kept_tokens": None})}}
    with building_hplm(home, hplm):
        entry = publish_linked(
            home, registry, live, lambda folder: write_ladder(folder, ladder, root.fingerprint), figures
        )
    return entry, ladder


def rows(count: int, seed: int) -> list[tuple[np.ndarray, WordMarks]]:
    rng = np.random.default_rng(seed)
    found = []
    for length in rng.integers(4, 20, count).tolist():
        marks = rng.choice([BEGINS_WORD, CONTINUES_WORD], length, p=[0.8, 0.2]).astype(np.uint8)
        marks[[0, -1]] = OF_NO_WORD
        found.append((rng.normal(size=(length, HIDDEN)).astype(np.float16), marks))
    return found


def asked(
    service: UpperService, entry: HplmEntry, texts: Sequence[tuple[np.ndarray, WordMarks]], level: str = AUTO
) -> list[dict[str, Any]]:
    """The answers to rows that come at once."""
    pending: list[Responses] = []
    with service._loop._changed:
        for text, marks in texts:
            pending.append(queue.Queue())
            words = encode_marks(marks) if entry.prunes_words and level == AUTO else b""
            ticket = Ticket(entry.key, len(text), False, None, level=level)
            service.submit(fold_rows([text]), encode_tickets([ticket]), [words], pending[-1].put)
    found = [each.get(timeout=30) for each in pending]
    assert all(isinstance(each, list) for each in found), found
    return [json.loads(each[0]) for each in found if isinstance(each, list)]


def alone(
    home: Home, entry: HplmEntry, ladder: Ladder, text: np.ndarray, marks: WordMarks | None
) -> tuple[Early, list[float]]:
    """What the layers say of a row by itself, at the exit and last, with these words to lose or none."""
    root, early = RootFolder(home.root("tiny")), ladder.early
    stack = UpperStack(root, StackSettings(dtype="fp32", num_slots=2))
    ready = [stack.ready(1, lambda: read_artifact(home.path / entry.folder, root.fingerprint))]
    prunable = None if marks is None else Prunable(PRUNING.alpha, marks)
    at_exit = Exit(early.after, early.head, early.temperature, early.threshold, prunable=prunable)
    seen: dict[int, Early] = {}
    (logits,) = stack.run(stack.pack([torch.from_numpy(text)], ready), ready, None, [at_exit], seen.update)
    return seen[0], logits.tolist()


def softmax(logits: Sequence[float], temperature: float = 1.0) -> list[float]:
    exponentials = [math.exp((each - max(logits)) / temperature) for each in logits]
    return [each / sum(exponentials) for each in exponentials]


@contextmanager
def charged(patch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The shares of the layers that rows were charged for."""
    found: list[float] = []
    spend = Accounts.spend_depth

    def seen(accounts: Accounts[Any], job: Any, passed: float) -> None:
        found.append(passed)
        spend(accounts, job, passed)

    patch.setattr(Accounts, "spend_depth", seen)
    yield found


def test_rows_that_go_on_lose_words_where_their_ladder_says_so(
    tiny_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their tenant is charged for the tokens that they keep."""
    seed = random.randrange(1 << 32)
    entry, ladder = published(tiny_home)
    texts, changed, passed = rows(40, seed), 0, list[float]()
    with running(tiny_home) as service, charged(monkeypatch) as spent:
        answers = asked(service, entry, texts)
    for (text, marks), answer in zip(texts, answers, strict=True):
        early, logits = alone(tiny_home, entry, ladder, text, marks)
        if abs(early.confidence - THRESHOLD) < 1e-3:
            continue
        temperature = ladder.early.temperature if early.leaves else PRUNING.temperature
        assert answer["level"] == (EARLY if early.leaves else FULL), f"seed {seed}"
        assert list(answer["scores"].values()) == pytest.approx(softmax(logits), abs=1e-3), f"seed {seed}"
        assert answer["confidence"] == pytest.approx(max(softmax(logits, temperature)), abs=1e-3), f"seed {seed}"
        passed.append(0.5 if early.leaves else 0.5 + 0.5 * (early.kept or 0))
        changed += not early.leaves and logits != pytest.approx(alone(tiny_home, entry, ladder, text, None)[1])
    assert changed > 3, f"seed {seed}"
    assert all(any(each == pytest.approx(one) for one in spent) for each in passed), f"seed {seed}"


@pytest.mark.parametrize("level", [FULL, EARLY])
def test_who_asks_for_a_level_loses_no_words(tiny_home: Home, level: str) -> None:
    entry, ladder = published(tiny_home)
    ladder = replace(ladder, early=replace(ladder.early, threshold=2.0 if level == FULL else 0.0))
    texts = rows(10, seed=1)
    with running(tiny_home) as service:
        answers = asked(service, entry, texts, level)
    for (text, _), answer in zip(texts, answers, strict=True):
        _, logits = alone(tiny_home, entry, ladder, text, None)
        assert list(answer["scores"].values()) == pytest.approx(softmax(logits), abs=1e-3)
        assert answer["level"] == level


def test_what_fails_its_audit_keeps_its_words(tiny_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, ladder = published(tiny_home)
    texts = rows(10, seed=2)
    monkeypatch.setattr(Audit, "has_failed", lambda *_: True)
    with running(tiny_home) as service:
        answers = asked(service, entry, texts)
    by_all_layers = replace(ladder, early=replace(ladder.early, threshold=2.0))
    for (text, _), answer in zip(texts, answers, strict=True):
        _, logits = alone(tiny_home, entry, by_all_layers, text, None)
        assert list(answer["scores"].values()) == pytest.approx(softmax(logits), abs=1e-3)


def test_what_is_compared_keeps_its_words(tiny_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """The certificate is of early and full answers; rows that are unsure lose theirs all the same."""
    entry, _ = published(tiny_home)
    texts = rows(30, seed=4)
    monkeypatch.setattr(Audit, "takes", lambda *_: True)
    seen: list[Early] = []
    run = UpperStack.run

    def watched(stack: UpperStack, packed: Any, hplms: Any, middles: Any, exits: Any, on_early: Any) -> Any:
        return run(
            stack, packed, hplms, middles, exits, lambda found: (seen.extend(e for _, e in found), on_early(found))
        )

    monkeypatch.setattr(UpperStack, "run", watched)
    with running(tiny_home) as service:
        asked(service, entry, texts)
    assert len(seen) == len(texts) and not any(early.leaves for early in seen)
    assert {early.kept is None for early in seen} == {True, False}
    assert all((early.kept is None) == (early.confidence >= THRESHOLD) for early in seen)


def test_other_ladders_and_rows_without_marks_are_errors_of_their_own(tiny_home: Home) -> None:
    entry, _ = published(tiny_home)
    text, marks = rows(1, seed=5)[0]
    with running(tiny_home) as service:
        for words in (b"", encode_marks(marks)[:-1], bytes([7] * len(text))):
            pending: Responses = queue.Queue()
            ticket = Ticket(entry.key, len(text), False, None)
            service.submit(fold_rows([text]), encode_tickets([ticket]), [words], pending.put)
            answered = pending.get(timeout=30)
            assert isinstance(answered, HplmError) and "WORDS has" in str(answered)
        assert asked(service, entry, [(text, marks)])


def test_marks_travel(tiny_home: Home) -> None:
    _, marks = rows(1, seed=6)[0]
    assert np.array_equal(decode_marks(encode_marks(marks), len(marks)), marks)
    assert len(decode_marks(b"", 0)) == 0
    for row, count in ((b"\0\1", 3), (b"\0\3", 2), (b"\0\xff", 2)):
        with pytest.raises(InvalidArgumentError, match="WORDS"):
            decode_marks(row, count)


@pytest.mark.parametrize("pruning", [PRUNING, None])
def test_pruning_is_read_as_it_was_written_and_old_files_still_open(tiny_home: Home, pruning: Pruning | None) -> None:
    entry, _ = published(tiny_home, pruning)
    folder = tiny_home.path / entry.folder
    read = read_ladder(folder, RootFolder(tiny_home.root("tiny")).fingerprint)
    assert read is not None and read.pruning == pruning
    stored = read_json(folder / "levels.json")
    assert stored["format_version"] == (5 if pruning else 1)
    assert ("alpha" in stored["ladder"][0]) == (pruning is not None) == entry.prunes_words


def test_words_of_an_earlier_release_s_score_all_stay(tiny_home: Home, caplog: pytest.LogCaptureFixture) -> None:
    entry, ladder = published(tiny_home)
    path = tiny_home.path / entry.folder / "levels.json"
    write_json(path, {**read_json(path), "format_version": 4})
    read = read_ladder(path.parent, RootFolder(tiny_home.root("tiny")).fingerprint)
    assert read is not None and read.pruning is None and read.early.threshold == ladder.early.threshold
    assert "texts keep all until it is selected" in caplog.text
    old = replace(entry, metrics={**entry.metrics, "ladder": {**FIGURES, "pruned_by": None}})
    assert not old.prunes_words and old.kept_tokens(AUTO) == 1.0 and old.likely_depth(AUTO) == pytest.approx(0.8)


DAMAGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "no share": ({"alpha": 0.0}, {}),
    "below 0": ({"alpha": -0.4}, {}),
    "no number": ({"alpha": math.nan}, {}),
    "a word": ({"alpha": "some"}, {}),
    "of one step only": ({"alpha": None}, {}),
    "cold": ({}, {"pruned_temperature": 0.0}),
    "without a temperature": ({}, {"pruned_temperature": None}),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_pruning_costs_the_ladder_only(tiny_home: Home, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    entry, _ = published(tiny_home)
    path = tiny_home.path / entry.folder / "levels.json"
    manifest = read_json(path)
    manifest.pop("checksum", None)
    steps = [
        {name: value for name, value in {**step, **changes}.items() if value is not None}
        for step, changes in zip(manifest["ladder"], DAMAGES[damage], strict=True)
    ]
    write_json(path, {**manifest, "ladder": steps})
    with running(tiny_home) as service:
        assert all("level" not in answer for answer in asked(service, entry, rows(4, seed=7)))
    assert "acme/topic is answered in full" in caplog.text


@pytest.mark.parametrize("task", ["ner", "regression"])
def test_only_texts_with_labels_lose_words(tiny_home: Home, task: str) -> None:
    entry, ladder = published(tiny_home)
    root = RootFolder(tiny_home.root("tiny"))
    artifact = read_artifact(tiny_home.path / entry.folder, root.fingerprint)
    pooling, head = artifact.pooling, artifact.head
    if task == "ner":
        pooling = "none"
    else:
        head = Head(head.weight[:1], head.bias[:1])
        ladder = replace(ladder, early=replace(ladder.early, scale=1.0))
    other = replace(artifact, task=task, pooling=pooling, head=head)
    with pytest.raises(CorruptFileError, match=f"leaves out words, which a {task} needs"):
        other.with_ladder(ladder, root.geometry.num_upper_layers)
    assert not replace(entry, task=task).prunes_words, "whatever the registry says of it"
    assert replace(entry, task=task).kept_tokens(AUTO) == 1.0
