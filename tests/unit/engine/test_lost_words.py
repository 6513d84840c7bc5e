"""Rows that lose words at their exit, against a loop over rows and words; in batches that mix tenants."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from adapter_reference import (
    KINDS,
    random_artifact,
    reference_answer,
    reference_logits,
    reference_received,
    reference_states,
)
from backends.adapters.bank import HplmArtifact
from backends.adapters.head import Head
from backends.adapters.pooling import PAIR_POOLING
from backends.engine import slotted_layers, stack
from backends.engine.compute_pool import ComputePool
from backends.engine.exits import NEVER, Early, Exit
from backends.engine.layouts import LAYOUTS, Sharing
from backends.engine.pruning import Bools, Prunable, RowAtExit, kept_tokens
from backends.engine.stack import StackSettings, UpperStack
from backends.root.geometry import RootGeometry
from backends.root.int8_instructions import int8_instructions
from backends.root.store import RootFolder
from backends.root.word_marks import BEGINS_WORD, CONTINUES_WORD, OF_NO_WORD
from bench.kit.layouts import ALL_LAYOUTS
from bench.kit.random_root import random_root
from row_errors import RowErrors

NUM_BATCHES = int(os.environ.get("HPLM_RANDOM_BATCHES", "6"))
GEOMETRY = RootGeometry(100, 32, 128, 4, 1, 4, 64, 2, 1e-12, "gelu")
INT8 = 3e-1 if int8_instructions() == "VNNI" else 6e-1
TOLERANCE = {"fp32": 1e-4, "bf16": 2e-1, "int8": INT8}
"""Shares of a row's largest logit."""
LARGEST = {"bf16": 4e-1, "int8": 2 * INT8}
CLOSE = 1e-3
"""Share of the mean score; a word so near the limit may stay or go."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> RootFolder:
    return random_root(tmp_path_factory.mktemp("pruning") / "root", GEOMETRY, seed=1)


@dataclass(frozen=True)
class Row:
    """A random row; its words are ranges of tokens, those of each segment by themselves."""

    key: int
    hidden: Tensor
    middle: int | None
    words: Sequence[Sequence[range]]
    exit: Exit | None

    @classmethod
    def drawn(cls, chance: random.Random, artifacts: dict[int, HplmArtifact]) -> Row:
        key = chance.choice(sorted(artifacts))
        artifact = artifacts[key]
        is_pair = artifact.pooling == PAIR_POOLING and chance.random() < 0.8
        marks, words = [OF_NO_WORD], list[list[range]]()
        for _ in range(2 if is_pair else 1):
            sizes = [chance.choice([1, 1, 2, 3]) for _ in range(chance.choice([0, 1, 4, 9]))]
            bounds = pairwise(accumulate(sizes, initial=len(marks)))
            words.append([range(start, end) for start, end in bounds])
            marks += [mark for size in sizes for mark in [BEGINS_WORD, *[CONTINUES_WORD] * (size - 1)]]
            marks.append(OF_NO_WORD)
        middle = None if not is_pair else words[0][-1].stop + 1 if words[0] else 2
        hidden = torch.randn(len(marks), GEOMETRY.hidden_size).half()
        return cls(key, hidden, middle, words, cls._exit(chance, artifact, np.array(marks, np.uint8)))

    @staticmethod
    def _exit(chance: random.Random, artifact: HplmArtifact, marks: np.ndarray) -> Exit | None:
        if chance.random() < 0.1:
            return None
        width = artifact.head.hidden_size
        head = Head(torch.randn(len(artifact.labels), width) / 2, torch.randn(len(artifact.labels)))
        prunable = None if chance.random() < 0.3 else Prunable(chance.choice([0.8, 0.98, 1.02, 9.0]), marks)
        leaving = Exit(chance.randint(1, 3), head, 4.0, chance.choice([None, 0.5, 0.7, 2.0]), prunable=prunable)
        return replace(leaving, is_compared=leaving.threshold is not None and chance.random() < 0.2)


@dataclass
class Ran:
    """What a batch came to; `kept` are the tokens of rows that lost words, by their `Prunable`'s identity."""

    early: dict[int, Early]
    logits: list[Tensor]
    kept: dict[int, Bools]


def run(upper: UpperStack, artifacts: dict[int, HplmArtifact], rows: Sequence[Row], patch: pytest.MonkeyPatch) -> Ran:
    ran, lock = Ran({}, [], {}), threading.Lock()

    def on_early(found: Sequence[tuple[int, Early]]) -> None:
        with lock:
            ran.early.update(found)

    def seen(at_exit: Sequence[RowAtExit]) -> list[Bools]:
        kept = kept_tokens(at_exit)
        with lock:
            ran.kept.update((id(each.prunable), mask) for each, mask in zip(at_exit, kept, strict=True))
        return kept

    patch.setattr(stack, "kept_tokens", seen)
    ready = [upper.ready(row.key, lambda key=row.key: artifacts[key]) for row in rows]  # type: ignore[misc]
    packed = upper.pack([row.hidden for row in rows], ready)
    ran.logits = upper.run(packed, ready, [row.middle for row in rows], [row.exit for row in rows], on_early)
    for hplm in ready:
        upper.release(hplm)
    return ran


def require_words(row: Row, alpha: float, scores: list[float], kept: Bools) -> None:
    """Every word is kept, or not, as a loop over words says, where that is not by a hair."""
    of_words = [scores[token] for segment in row.words for word in segment for token in word]
    mean = sum(of_words) / max(1, len(of_words))
    for segment in row.words:
        best = max((max(scores[token] for token in word) for word in segment), default=0.0)
        for word in segment:
            score = max(scores[token] for token in word)
            limit = min(alpha * mean, best * (1 - 1e-9))
            if abs(score - limit) > CLOSE * mean:
                assert bool(kept[word.start]) == (score > limit), (word, score, limit)


def require_whole(row: Row, kept: Bools) -> None:
    """Special tokens stay, words stay or go as a whole, and one of each segment stays."""
    of_words = {token for segment in row.words for word in segment for token in word}
    assert all(kept[token] for token in range(len(kept)) if token not in of_words)
    for segment in row.words:
        assert all(len({bool(kept[token]) for token in word}) == 1 for word in segment)
        assert not segment or any(kept[word.start] for word in segment)


def require_right(
    root: RootFolder, artifacts: dict[int, HplmArtifact], rows: Sequence[Row], ran: Ran, errors: RowErrors, exact: bool
) -> int:
    """Compare a batch with its rows one by one; return how many of them lost words."""
    num_pruned = 0
    for index, row in enumerate(rows):
        artifact, at_exit, early = artifacts[row.key], row.exit, ran.early.get(index)
        if at_exit is None or early is None:
            assert at_exit is None and early is None
            errors.add(ran.logits[index], whole(root, artifact, row))
            continue
        states = reference_states(root, artifact, row.hidden.float(), range(at_exit.after))
        errors.add(early.logits, reference_answer(at_exit.head, artifact.pooling, states, row.middle))
        is_sure = at_exit.threshold is None or early.confidence >= at_exit.threshold
        assert early.leaves == (is_sure and not at_exit.is_compared)
        if early.leaves:
            assert torch.equal(ran.logits[index], early.logits)
        elif is_sure or at_exit.prunable is None:
            assert early.kept is None
            errors.add(ran.logits[index], whole(root, artifact, row))
        else:
            kept = ran.kept[id(at_exit.prunable)]
            assert early.kept == pytest.approx(kept.mean())
            require_whole(row, kept)
            if exact:
                scores = reference_received(root, artifact, row.hidden.float(), at_exit.after - 1)
                require_words(row, at_exit.prunable.alpha, scores, kept)
            rest = range(at_exit.after, GEOMETRY.num_upper_layers)
            last = reference_states(root, artifact, states[torch.from_numpy(kept)], rest)
            middle = None if row.middle is None else int(kept[: row.middle].sum())
            errors.add(ran.logits[index], reference_answer(artifact.head, artifact.pooling, last, middle))
            num_pruned += not kept.all()
    return num_pruned


def whole(root: RootFolder, artifact: HplmArtifact, row: Row) -> Tensor:
    states = reference_states(root, artifact, row.hidden.float(), range(GEOMETRY.num_upper_layers))
    return reference_answer(artifact.head, artifact.pooling, states, row.middle)


def artifacts_of(root: RootFolder, chance: random.Random) -> dict[int, HplmArtifact]:
    """One of each kind, some of them of pairs."""
    found = {key: random_artifact(chance, root, kind) for key, kind in enumerate(KINDS, start=1)}
    for key in chance.sample(sorted(found), 3):
        labels = len(found[key].labels)
        head = Head(torch.randn(labels, 4 * GEOMETRY.hidden_size) / 2, torch.randn(labels))
        found[key] = replace(found[key], head=head, pooling=PAIR_POOLING, pair=True)
    return found


@pytest.mark.parametrize("least_to_narrow", [0.0, 1.0])
@pytest.mark.parametrize("sharing", [Sharing(), Sharing(3, 1, 40)])
@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_rows_that_lose_words_equal_a_loop_over_rows(
    root: RootFolder, dtype: str, sharing: Sharing, least_to_narrow: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside rows that keep all, leave, are compared, or have no exit; computed at once and in shares."""
    monkeypatch.setattr(slotted_layers, "LEAST_TO_NARROW", least_to_narrow)
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    torch.manual_seed(seed)
    settings = StackSettings(dtype=dtype, num_slots=len(KINDS) + 1)
    pool = ComputePool(3, torch.device("cpu"))
    upper = UpperStack(root, settings, pool, layout_of=lambda _: LAYOUTS["ragged"](sharing))
    artifacts, num_pruned = artifacts_of(root, chance), 0
    errors = RowErrors(seed, TOLERANCE[dtype], LARGEST.get(dtype))
    for _ in range(NUM_BATCHES):
        rows = [Row.drawn(chance, artifacts) for _ in range(chance.randint(1, 24))]
        ran = run(upper, artifacts, rows, monkeypatch)
        num_pruned += require_right(root, artifacts, rows, ran, errors, exact=dtype == "fp32")
    errors.require()
    assert num_pruned > NUM_BATCHES, f"seed {seed}"


@pytest.mark.parametrize("layout", ALL_LAYOUTS)
def test_rows_between_padding_keep_their_words(root: RootFolder, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(5)
    torch.manual_seed(5)
    settings = StackSettings(dtype="fp32", num_slots=len(KINDS) + 1)
    upper = UpperStack(root, settings, layout_of=ALL_LAYOUTS[layout])
    artifacts, errors = artifacts_of(root, chance), RowErrors(5, TOLERANCE["fp32"])
    rows = [Row.drawn(chance, artifacts) for _ in range(24)]
    ran = run(upper, artifacts, rows, monkeypatch)
    for index, row in enumerate(rows):
        early = ran.early.get(index)
        if early is None or not early.leaves:
            if early is not None and early.kept is not None:
                assert layout == "ragged"
            else:
                errors.add(ran.logits[index], whole(root, artifacts[row.key], row))
    errors.require()
    assert bool(ran.kept) == (layout == "ragged")


def test_a_row_of_nan_spoils_no_other(root: RootFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(7)
    artifact = replace(random_artifact(random.Random(7), root, "lora"), pooling="mean")
    upper = UpperStack(root, StackSettings(dtype="fp32", num_slots=2))
    head = Head(torch.randn(len(artifact.labels), GEOMETRY.hidden_size), torch.zeros(len(artifact.labels)))
    marks = np.array([OF_NO_WORD, *[BEGINS_WORD] * 10, OF_NO_WORD], np.uint8)
    words = [[range(token, token + 1) for token in range(1, 11)]]
    healthy = torch.randn(12, GEOMETRY.hidden_size).half()
    spoilt = torch.full_like(healthy, torch.nan)
    rows = [
        Row(1, hidden, None, words, Exit(2, head, 1.0, NEVER, prunable=Prunable(1.0, marks)))
        for hidden in (spoilt, healthy, spoilt)
    ]
    ran = run(upper, {1: artifact}, rows, monkeypatch)
    alone = run(upper, {1: artifact}, rows[1:2], monkeypatch)
    torch.testing.assert_close(ran.logits[1], alone.logits[0])
    assert torch.isnan(ran.logits[0]).all() and torch.isnan(ran.logits[2]).all()
    assert 0 < (ran.early[1].kept or 0) < 1


def test_where_nothing_is_below_the_limit_nothing_changes(root: RootFolder) -> None:
    torch.manual_seed(8)
    artifact = random_artifact(random.Random(8), root, "all")
    upper = UpperStack(root, StackSettings(dtype="fp32", num_slots=2))
    hidden = torch.randn(9, GEOMETRY.hidden_size).half()
    ready = [upper.ready(1, lambda: artifact)]
    head = Head(torch.randn(len(artifact.labels), GEOMETRY.hidden_size), torch.zeros(len(artifact.labels)))
    prunable = Prunable(1e-9, np.full(9, BEGINS_WORD, np.uint8))
    early: dict[int, Early] = {}
    leaving = Exit(1, head, 1.0, NEVER, prunable=prunable)
    (found,) = upper.run(upper.pack([hidden], ready), ready, None, [leaving], early.update)
    torch.testing.assert_close(found, reference_logits(root, artifact, hidden.float()), rtol=1e-4, atol=1e-4)
    assert early[0].kept == 1.0
