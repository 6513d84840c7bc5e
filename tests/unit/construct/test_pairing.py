"""Texts that a root learns pairs from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from backends.root.tokenizer import RootTokenizer
from bench.kit.tiny_home import MAX_TOKENS, sample_texts
from builder.construct.root.augment import Pairing
from builder.construct.root.conversion import convert
from builder.construct.root.distil import Distiller
from builder.construct.root.student import Student
from builder.construct.root.teacher import Teacher
from builder.construct.training.checkpoint import Checkpoint
from builder.settings.root import DistilSettings

TEXTS = [text.text for text in sample_texts(400, seed=5)]


def test_pairs_are_of_the_texts_own_words_and_length() -> None:
    halves = repeated = 0
    for text, pair in zip(TEXTS, Pairing(1.0, seed=3).apply(TEXTS, draw=1), strict=True):
        words = text.split()
        if len(words) < 2:
            assert pair == text
            continue
        first, second = (half.split() for half in pair)
        assert first == words[: len(words) // 2]
        assert abs(len(first) + len(second) - len(words)) <= 1
        assert set(second) <= set(words)
        halves += second == words[len(words) // 2 :]
        repeated += sum(ours == theirs for ours, theirs in zip(first, second, strict=False)) > len(first) / 2
    assert 0.35 * len(TEXTS) < halves < 0.65 * len(TEXTS)
    assert repeated > 0.25 * len(TEXTS)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_share_of_pairs(share: float) -> None:
    texts = [text for text in TEXTS if " " in text]
    pairs = [not isinstance(text, str) for text in Pairing(share, seed=3).apply(texts, draw=1)]
    assert np.mean(pairs) == pytest.approx(share, abs=0.08)


def test_a_draw_repeats_and_another_differs() -> None:
    pairing = Pairing(0.5, seed=3)
    assert pairing.apply(TEXTS, draw=1) == pairing.apply(TEXTS, draw=1) != pairing.apply(TEXTS, draw=2)
    assert pairing.apply(TEXTS, draw=1) != Pairing(0.5, seed=4).apply(TEXTS, draw=1)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_only_pairs_teach_what_the_second_half_is(tiny_bert: Path, tmp_path: Path, share: float) -> None:
    parts = convert(tiny_bert, 2, MAX_TOKENS)
    tokenizer = RootTokenizer(tiny_bert / "tokenizer.json", MAX_TOKENS)
    settings = DistilSettings(steps=6, tokens_per_batch=256, warmup_steps=0, pair_share=share)
    distiller = Distiller(Teacher(tiny_bert, parts), Student(parts, tokenizer), tokenizer, settings)
    distiller.run(TEXTS, lambda: 0.5, Checkpoint(tmp_path / "checkpoint", "inputs"), lambda _: None)
    first, second = parts.aggregation.type_embeddings.weight.detach()
    assert first.abs().max() > 0
    assert bool(torch.any(second != 0)) is (share > 0)
