"""The whole model fine-tuned: it runs as the library runs it, learns every task, and is measured as it is kept."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import BertModel

from backends.root.tokenizer import RootTokenizer
from bench.kit.tiny_home import MAX_TOKENS, ignore, sample_texts, write_tiny_bert
from builder.construct.hplm.dedicated import Dedicated, DedicatedModel, token_set
from builder.construct.hplm.padded_pooling import POOL_FUNCTIONS
from builder.construct.root.conversion import convert
from builder.construct.root.student import Student
from builder.construct.root.teacher import Teacher
from builder.construct.tasks.dataset import TaskData
from builder.construct.tasks.examples import Example, LabelledText, TaggedSentence
from builder.construct.tasks.task_objectives import objective_of
from builder.settings.hplm import TuneSettings

SETTINGS = TuneSettings(epochs=4, rows_per_batch=16, learning_rate=2e-3, head_learning_rate=1e-2, patience=4)


@pytest.fixture
def tokenizer(tiny_bert: Path) -> RootTokenizer:
    return RootTokenizer(tiny_bert / "tokenizer.json", MAX_TOKENS)


def classification(count: int, seed: int) -> list[LabelledText]:
    return [LabelledText(text.text, text.mood) for text in sample_texts(count, seed)]


def fine_tuned(
    tiny_bert: Path, tokenizer: RootTokenizer, data: TaskData, settings: TuneSettings = SETTINGS
) -> Dedicated:
    geometry = convert(tiny_bert, 2, MAX_TOKENS).geometry
    return Dedicated.fine_tune(
        tiny_bert, geometry, tokenizer, objective_of(data), data.train, data.dev, settings, ignore
    )


@torch.no_grad()
def answers(dedicated: Dedicated, examples: Sequence[Example]) -> list[Tensor]:
    return [dedicated.model.answer(states) for states in dedicated.read(examples)]


def test_it_computes_what_the_library_computes(tiny_bert: Path, tokenizer: RootTokenizer) -> None:
    texts = classification(9, 4)
    objective = objective_of(TaskData("classification", ("glad", "sad"), texts, texts))
    geometry = convert(tiny_bert, 2, MAX_TOKENS).geometry
    model = DedicatedModel(tiny_bert, geometry, 2, "mean", (0.0, 1.0)).eval()
    plain = BertModel.from_pretrained(tiny_bert).eval()
    rows = token_set(tokenizer, objective, texts)
    with torch.no_grad():
        logits = model(*rows.padded(np.arange(9), torch.device("cpu")))
        for place, text in enumerate(texts):
            ids = torch.from_numpy(tokenizer.encode([text.text]).token_ids)[None]
            states = plain(ids).last_hidden_state
            expected = model.head(POOL_FUNCTIONS["mean"](states, torch.ones_like(ids, dtype=torch.bool)))[0]
            torch.testing.assert_close(logits[place], expected, rtol=1e-4, atol=1e-5)


def test_rows_as_long_as_the_model_has_positions(tmp_path: Path) -> None:
    """Rows are padded to lengths that recur, but to none that the model does not know."""
    most = 27
    folder = write_tiny_bert(tmp_path, max_tokens=most)
    tokenizer, geometry = RootTokenizer(folder / "tokenizer.json", most), convert(folder, 2, most).geometry
    texts = [LabelledText(text.text + " and so on" * 20, text.mood) for text in sample_texts(4, 1)]
    objective = objective_of(TaskData("classification", ("glad", "sad"), texts, texts))
    rows = token_set(tokenizer, objective, texts)
    assert max(rows.lengths) == most
    with torch.no_grad():
        model = DedicatedModel(folder, geometry, 2, "mean", (0.0, 1.0)).eval()
        assert model(*rows.padded(np.arange(4), torch.device("cpu"))).isfinite().all()
        parts = convert(folder, 2, most)
        states = Teacher(folder, parts).states(Student(parts, tokenizer).rows([text.text for text in texts]))
    assert len(states[0]) == sum(rows.lengths)


def test_texts_are_learnt(tiny_bert: Path, tokenizer: RootTokenizer) -> None:
    data = TaskData("classification", ("glad", "sad"), classification(160, 1), classification(60, 2))
    dedicated = fine_tuned(tiny_bert, tokenizer, data)
    assert dedicated.best.metrics["accuracy"] > 0.85
    assert dedicated.evaluate(data.dev) == dedicated.best.metrics
    assert [tuple(row.shape) for row in answers(dedicated, data.dev)] == [(1, 2)] * 60


def test_numbers_are_learnt_on_their_own_scale(tiny_bert: Path, tokenizer: RootTokenizer) -> None:
    def valued(count: int, seed: int) -> list[LabelledText]:
        return [LabelledText(text.text, 70.0 if text.mood == "glad" else 30.0) for text in sample_texts(count, seed)]

    data = TaskData("regression", (), valued(160, 1), valued(60, 2))
    dedicated = fine_tuned(tiny_bert, tokenizer, data)
    assert dedicated.best.metrics["pearson"] > 0.7
    assert 20 < float(torch.cat(answers(dedicated, data.dev)).mean()) < 80


def test_entities_are_learnt(tiny_bert: Path, tokenizer: RootTokenizer) -> None:
    animals = {"cat", "dog", "horse", "sheep", "goat", "mouse", "rabbit"}

    def tagged(count: int, seed: int) -> list[TaggedSentence]:
        sentences = [tuple(text.text.split()) for text in sample_texts(count, seed)]
        return [
            TaggedSentence(words, tuple("B-X" if word in animals else "O" for word in words)) for words in sentences
        ]

    data = TaskData("ner", ("O", "B-X", "I-X"), tagged(160, 1), tagged(60, 2))
    dedicated = fine_tuned(tiny_bert, tokenizer, data, replace(SETTINGS, epochs=10, patience=10))
    assert dedicated.best.metrics["f1"] > 0.8
    assert [len(row) for row in answers(dedicated, data.dev)] == [len(sentence.words) for sentence in data.dev]
