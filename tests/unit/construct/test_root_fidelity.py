"""The fidelity report: against loops over texts, and measured where it was asked for."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from backends.errors import FingerprintMismatchError, InvalidArgumentError, TrainingDataError
from backends.home import Home
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from backends.root.tokenizer import RootTokenizer
from bench.kit.tiny_home import MAX_TOKENS, held_out_of, ignore, write_corpus, write_tiny_bert
from bench.kit.tiny_home import sample_texts as tiny_texts
from builder.construct.root.augment import Shortening
from builder.construct.root.conversion import convert
from builder.construct.root.fidelity import MAX_TEXTS, FidelityProbe, sample_texts, spearman
from builder.construct.root.roots import add_root, check_root
from builder.construct.root.student import Student
from builder.construct.root.teacher import Teacher
from builder.settings.domain import PlotSettings
from builder.settings.root import DistilSettings
from short_requests import changed, new_root


@pytest.mark.parametrize("n", [2, 3, 5])
def test_cosines_equal_a_loop_over_texts(tiny_bert: Path, n: int) -> None:
    parts = convert(tiny_bert, 2, MAX_TOKENS, n)
    student = Student(parts, RootTokenizer(tiny_bert / "tokenizer.json", MAX_TOKENS))
    teacher = Teacher(tiny_bert, parts)
    texts = [text.text for text in tiny_texts(41, seed=6)]
    report = FidelityProbe(teacher, student, Shortening.of(DistilSettings(), n)).report(texts)
    layers: list[list[float]] = [[], [], []]
    pooled: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for text in texts:
        rows = student.rows([text])
        both = student.states(rows, rows.fragments), teacher.states(rows)
        for layer, (ours, theirs) in enumerate(zip(*both, strict=True)):
            layers[layer] += functional.cosine_similarity(ours, theirs, dim=-1).tolist()
        for states, sentences in zip(both, pooled, strict=True):
            sentences.append(states[-1].mean(dim=0).detach().numpy())
    for name, cosines in zip(("boundary_cosine", "upper_1_cosine", "final_cosine"), layers, strict=True):
        assert report[name] == pytest.approx(np.mean(cosines), abs=2e-5)
    assert report["tokens"] == len(layers[0])
    assert report["texts"] == 41
    assert report["similarity_spearman"] == pytest.approx(slow_spearman(*pooled), abs=1e-3)
    assert report["fallback_cosine"] < 1


def slow_spearman(ours: list[np.ndarray], theirs: list[np.ndarray]) -> float:
    columns = []
    for sentences in (ours, theirs):
        similarities = [
            float(a @ b / math.sqrt(float(a @ a) * float(b @ b)))
            for i, a in enumerate(sentences)
            for b in sentences[i + 1 :]
        ]
        ordered = sorted(similarities)
        columns.append([ordered.index(value) + (ordered.count(value) - 1) / 2 for value in similarities])
    return float(np.corrcoef(columns)[0, 1])


def test_spearman_knows_order_and_its_opposite(rng_seed: int = 3) -> None:
    chance = np.random.default_rng(rng_seed)
    sentences = chance.standard_normal((30, 8))
    repeated = np.concatenate([sentences, sentences[:5]])  # equal similarities share a rank
    assert spearman(repeated, 3 * repeated) == 1.0
    other = chance.standard_normal((35, 8))
    assert abs(spearman(repeated, other) or 0.0) < 0.3
    assert spearman(repeated, other) == pytest.approx(slow_spearman(list(repeated), list(other)), abs=1e-4)
    assert spearman(sentences[:2], sentences[:2]) is None


@pytest.fixture
def foreign(tmp_path: Path) -> list[Path]:
    """Two files of texts that no corpus here has."""
    chance = random.Random(5)
    files = []
    for subject in ("law", "music"):
        words = [chance.choice("cat dog rain hammer snow the a of".split()) for _ in range(3000)]
        lines = [f"{subject} " + " ".join(words[start : start + 6]) for start in range(0, 3000, 6)]
        files.append(tmp_path / subject / "texts.txt")
        files[-1].parent.mkdir()
        files[-1].write_text("\n".join(lines))
    return files


def test_held_out_files_and_a_check_of_them(tmp_path: Path, tiny_bert: Path, foreign: list[Path]) -> None:
    corpus = write_corpus(tmp_path / "corpus.txt", 400, seed=1)
    lines = corpus.read_text().splitlines()
    law = foreign[0].read_text()
    foreign[0].write_text(law + "\n" + "\n".join(lines[1:101]))
    settings = DistilSettings(steps=4, tokens_per_batch=512)
    plot = PlotSettings(max_fragments=50, max_bigrams=50)
    request = new_root("r", str(tiny_bert), 2, (corpus,), MAX_TOKENS, held_out=foreign, distil=settings, plot=plot)
    home = Home(tmp_path / "home")
    add_root(home, Registry.open(home, create=True), request, ignore)
    manifest = RootFolder(home.root("r")).manifest
    assert manifest.fidelity["measured_on"] == "held-out files"
    assert set(manifest.fidelity["files"]) == {"law/texts.txt", "music/texts.txt"}
    total = sum(report["texts"] for report in manifest.fidelity["files"].values())
    assert manifest.fidelity["texts"] == total <= 2 * MAX_TEXTS
    assert 0 < manifest.fidelity["corpus_cosine"] <= 1
    # What is held out is not learnt from: the corpus' own lines, and those that stand in a file.
    reserved = held_out_of(lines) | set(lines[1:101])
    assert manifest.origin["distillation"]["texts"] == sum(line not in reserved for line in lines)
    assert manifest.origin["distillation"]["seconds"] >= 0
    checked = check_root(home, "r", [foreign[1]])[str(foreign[1])]
    of_build = manifest.fidelity["files"]["music/texts.txt"]
    for name in ("boundary_cosine", "final_cosine", "similarity_spearman"):
        assert checked[name] == pytest.approx(of_build[name], abs=2e-3)
    stranger = write_tiny_bert(tmp_path / "stranger", seed=8)
    with pytest.raises(FingerprintMismatchError, match="'r' was made from"):
        check_root(home, "r", foreign, source=str(stranger))


def test_without_files_the_corpus_is_measured_on(built_home: Home) -> None:
    fidelity = RootFolder(built_home.root("tiny")).manifest.fidelity
    assert fidelity["measured_on"] == "held-out texts of the corpus"
    assert 0 < fidelity["final_cosine"] <= 1
    assert "files" not in fidelity


def test_samples_are_spread_over_a_file(tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(f"text {number}" for number in range(5 * MAX_TEXTS + 3)))
    texts = sample_texts(path)
    assert len(texts) <= MAX_TEXTS
    assert int(texts[-1].split()[1]) > 4.9 * MAX_TEXTS
    path.write_text("\n\n")
    with pytest.raises(TrainingDataError, match=r"texts\.txt holds no text"):
        sample_texts(path)


def test_a_corpus_of_one_text_repeated(tmp_path: Path, tiny_bert: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("the same cat\n" * 400)
    request = new_root("r", str(tiny_bert), 2, (corpus,), MAX_TOKENS)
    home = Home(tmp_path / "home")
    with pytest.raises(InvalidArgumentError, match="repeats itself"):
        add_root(home, Registry.open(home, create=True), request, ignore)
    corpus.write_text("".join(f"cat number {number}\n" for number in range(100)))
    with pytest.raises(InvalidArgumentError, match="100 texts; distillation needs at least 200"):
        add_root(home, Registry.open(home), changed(request, name="q"), ignore)
    assert torch.is_grad_enabled()
