"""The bench's layers with word pruning, against a loop over rows; the words of a row; the figures."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from backends.adapters.bank import HplmArtifact
from backends.adapters.head import Head
from backends.adapters.pooling import PAIR_POOLING, POOLED_STATES
from backends.engine.exits import Exit
from backends.engine.stack import StackSettings
from backends.root.encoder import padded_attention
from backends.root.geometry import RootGeometry
from backends.root.store import RootFolder
from bench.kit.pruning_stack import NO_WORD, Int64, PrunableRow, PrunedRow, Pruning, PruningStack
from bench.kit.random_root import LORA_EVERYWHERE, random_hplm, random_root, random_rows
from bench.pruning import figures_of

GEOMETRY = RootGeometry(100, 32, 64, 4, 1, 3, 64, 2, 1e-12, "gelu")
AFTER, THRESHOLD = 2, 0.9
LENGTHS = (3, 9, 9, 17, 33, 40, 61, 24)
ATTENTION, HEAD = Pruning("attention", 0.9), Pruning("head", 0.5)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> RootFolder:
    return random_root(tmp_path_factory.mktemp("pruning") / "root", GEOMETRY, seed=1)


class Case:
    """Rows of three hPLMs, every third one a text alone or a pair; words have two tokens."""

    def __init__(self, root: RootFolder, pooling: str = "mean", threshold: float = THRESHOLD) -> None:
        generator = torch.Generator().manual_seed(7)
        self.root, self.pooling = root, pooling
        self.stack = PruningStack(root, StackSettings(dtype="fp32", num_slots=4))
        width = POOLED_STATES[pooling] * GEOMETRY.hidden_size
        self.artifacts = [self._artifact(root, generator, width) for _ in range(3)]
        self.hidden = random_rows(LENGTHS, GEOMETRY.hidden_size, generator)
        head = Head(torch.randn(3, width, generator=generator), torch.zeros(3))
        self.exit = Exit(AFTER, head, 1.0, threshold)
        hplms = [self.stack.ready(key, partial(self.artifacts.__getitem__, key)) for key in range(3)]
        self.rows = [
            PrunableRow(hplms[row % 3], self.exit, self._middle(length), self._words(length))
            for row, length in enumerate(LENGTHS)
        ]

    def _artifact(self, root: RootFolder, generator: torch.Generator, width: int) -> HplmArtifact:
        made = random_hplm(root, generator, LORA_EVERYWHERE)
        head = Head(torch.randn(3, width, generator=generator), torch.zeros(3))
        return HplmArtifact(
            made.hplm, made.root_fingerprint, made.task, made.labels, self.pooling, made.adapters, head, pair=True
        )

    def _middle(self, length: int) -> int | None:
        return length // 2 if self.pooling == PAIR_POOLING and length > 4 else None

    @staticmethod
    def _words(length: int) -> Int64:
        return np.concatenate([[NO_WORD], np.arange(length - 2) // 2, [NO_WORD]])

    def plain(self) -> list[Tensor]:
        hplms = [row.hplm for row in self.rows]
        packed = self.stack.pack(self.hidden, hplms)
        return self.stack.run(packed, hplms, [row.middle for row in self.rows], [self.exit] * len(hplms))

    def pruned(self, pruning: Pruning) -> list[PrunedRow]:
        return self.stack.run_pruned(self.stack.pack(self.hidden, [row.hplm for row in self.rows]), self.rows, pruning)

    def climbed(self, row: int, kept: Tensor | None = None) -> Tensor:
        """The states of a row after all layers, of which some tokens pass the last one only."""
        adapters = self.artifacts[row % 3].adapters.to(torch.float32)
        states = self.hidden[row][None].float()
        for span in (range(AFTER), range(AFTER, 3)):
            attend = padded_attention(GEOMETRY.num_heads, torch.ones(1, states.shape[1], dtype=torch.bool))
            states = self.root.upper()(states, attend, adapters, span)
            if span.start == 0 and kept is not None:
                states = states[:, kept]
        return states[0]

    def early_states(self, row: int) -> Tensor:
        adapters = self.artifacts[row % 3].adapters.to(torch.float32)
        attend = padded_attention(GEOMETRY.num_heads, torch.ones(1, LENGTHS[row], dtype=torch.bool))
        return self.root.upper()(self.hidden[row][None].float(), attend, adapters, range(AFTER))[0]


@torch.no_grad()
def received(case: Case, row: int) -> Tensor:
    """The attention that tokens receive in the layer before the exit."""
    found: list[Tensor] = []

    def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        split = (1, LENGTHS[row], GEOMETRY.num_heads, -1)
        heads = [each.view(split).transpose(1, 2) for each in (query, key, value)]
        weights = (heads[0] @ heads[1].transpose(-1, -2) / heads[0].shape[-1] ** 0.5).softmax(dim=-1)
        if layer == AFTER - 1:
            found.append(weights.sum(dim=(0, 1, 2)))
        return (weights @ heads[2]).transpose(1, 2).reshape(query.shape)

    adapters = case.artifacts[row % 3].adapters.to(torch.float32)
    case.root.upper()(case.hidden[row][None].float(), attend, adapters, range(AFTER))
    return found[0]


def pulls(case: Case, row: int) -> Tensor:
    states = case.early_states(row)
    best, second = case.exit.head.logits(states.mean(dim=0)).topk(2).indices
    weights = case.exit.head.weight[best] - case.exit.head.weight[second]
    return ((states - states.mean(dim=0)) @ weights).abs()


def kept_of(scores: Tensor, words: Int64, alpha: float) -> Tensor:
    texts = torch.from_numpy(words != NO_WORD)
    marked = texts & (scores > alpha * scores[texts].mean())
    return ~texts | torch.isin(torch.from_numpy(words), torch.from_numpy(words)[marked])


@pytest.mark.parametrize("pruning", [ATTENTION, HEAD])
@torch.no_grad()
def test_rows_that_go_on_are_those_of_a_loop_without_their_pruned_words(root: RootFolder, pruning: Pruning) -> None:
    case, num_going_on = Case(root), 0
    for row, found in enumerate(case.pruned(pruning)):
        if found.kept_tokens is None:
            continue
        scores = received(case, row) if pruning.score == "attention" else pulls(case, row)
        kept = kept_of(scores, case.rows[row].words, pruning.alpha)
        expected = case.artifacts[row % 3].head.logits(case.climbed(row, kept).mean(dim=0))
        torch.testing.assert_close(found.logits, expected, rtol=1e-4, atol=1e-4)
        assert found.kept_tokens == int(kept.sum())
        num_going_on += 1
    assert num_going_on >= 3


@pytest.mark.parametrize("pooling", ["mean", PAIR_POOLING])
@pytest.mark.parametrize("score", ["attention", "head"])
def test_nothing_is_pruned_below_any_score(root: RootFolder, pooling: str, score: str) -> None:
    case = Case(root, pooling)
    found = case.pruned(Pruning(score, -1.0))  # type: ignore[arg-type]
    for plain, pruned in zip(case.plain(), found, strict=True):
        torch.testing.assert_close(pruned.logits, plain, rtol=1e-4, atol=1e-4)
    assert {row.kept_tokens for row in found} <= {*LENGTHS, None}


@pytest.mark.parametrize("pruning", [Pruning("attention", 100.0), Pruning("head", 100.0)])
def test_special_tokens_and_a_word_of_each_segment_stay(root: RootFolder, pruning: Pruning) -> None:
    case = Case(root, PAIR_POOLING, threshold=2.0)
    for row, found in zip(case.rows, case.pruned(pruning), strict=True):
        segments = 1 if row.middle is None else 2
        assert 2 + segments <= (found.kept_tokens or 0) <= 2 + 2 * segments


def test_figures_count_only_what_loses_little() -> None:
    def pruned(score: str, lost: float, saved: float) -> dict[str, object]:
        return {"measure": score, "points lost": lost, "least saved": saved, "after": 2, "layers": 3}

    def ensemble(weight: float, lost: float) -> dict[str, object]:
        return {"measure": "ensemble", "weight": weight, "points lost": lost, "after": 2, "layers": 3}

    rows = [
        pruned("attention", 0.1, 0.02),
        pruned("attention", 0.3, 0.1),
        pruned("head", 0.3, 0.1),
        pruned("head", 0.0, -0.1),
    ]
    rows += [ensemble(weight, -weight) for weight in (0.9, 0.75, 0.5)]
    figures = figures_of(rows, most_points=0.2)
    assert figures["saved_attention"] == 0.02
    assert figures["saved_head"] == 0.0
    assert figures["ensemble_points_75"] == 0.75
