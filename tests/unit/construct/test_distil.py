"""Distillation: what learns and what does not, what it compares, and that an interruption changes nothing."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from backends.errors import HplmError, InvalidArgumentError
from backends.home import Home
from backends.plot.header import Store, stores_of
from backends.registry.registry import Registry
from backends.root.store import RootFolder, write_root
from backends.root.tokenizer import RootTokenizer
from bench.kit.tiny_home import MAX_TOKENS, ignore, sample_texts, write_corpus
from builder.construct.root.augment import Shortening
from builder.construct.root.conversion import RootParts, convert
from builder.construct.root.distil import Distiller, score_losses
from builder.construct.root.distilled import export_distilled
from builder.construct.root.roots import add_root
from builder.construct.root.student import Student
from builder.construct.root.teacher import Teacher
from builder.construct.training.checkpoint import Checkpoint
from builder.construct.training.rows import PaddedRows
from builder.progress import Step
from builder.requests.roots import AddRoot
from builder.settings.domain import Pace, PlotSettings
from builder.settings.root import DistilSettings
from short_requests import new_root

SHORT = DistilSettings(steps=6, tokens_per_batch=512, warmup_steps=2, checkpoint_every=4, noise_share=0.0)
EVERYTHING = replace(
    SHORT, train_upper=True, embedding_learning_rate=1e-4, attention_weight=0.5, final_weight=2.0, seed=3
)


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [text.text for text in sample_texts(300, seed=2)]


class Lesson:
    """One student of the tiny model, and what it needs to learn."""

    def __init__(self, model: Path, n: int = 3) -> None:
        self.parts = convert(model, 2, MAX_TOKENS, n)
        self.teacher = Teacher(model, self.parts)
        self.tokenizer = RootTokenizer(model / "tokenizer.json", MAX_TOKENS)
        self.student = Student(self.parts, self.tokenizer)

    def learn(self, texts: list[str], settings: DistilSettings, folder: Path) -> list[Step]:
        steps: list[Step] = []
        distiller = Distiller(self.teacher, self.student, self.tokenizer, settings)
        seconds = distiller.run(texts, lambda: 0.5, Checkpoint(folder / "checkpoint", "inputs"), steps.append)
        assert seconds > 0
        return steps


def changed(before: RootParts, after: RootParts) -> set[str]:
    names = set()
    for (name, ours), theirs in zip(
        nn.ModuleDict(after.modules()).named_parameters(),
        nn.ModuleDict(before.modules()).parameters(),
        strict=True,
    ):
        if not torch.equal(ours, theirs):
            names.add("word_embeddings" if "word_embeddings" in name else name.split(".")[0])
    return names


@pytest.mark.parametrize(
    ("settings", "learnt"),
    [
        (SHORT, {"lower", "aggregation"}),
        (replace(SHORT, train_upper=True), {"lower", "aggregation", "upper"}),
        (replace(SHORT, embedding_learning_rate=1e-3), {"lower", "aggregation", "word_embeddings"}),
        (EVERYTHING, {"lower", "aggregation", "upper", "word_embeddings"}),
    ],
    ids=["default", "upper", "embeddings", "everything"],
)
def test_what_learns(
    tiny_bert: Path, tmp_path: Path, texts: list[str], settings: DistilSettings, learnt: set[str]
) -> None:
    lesson = Lesson(tiny_bert)
    steps = lesson.learn(texts, settings, tmp_path)
    before = convert(tiny_bert, 2, MAX_TOKENS)
    assert changed(before, lesson.parts) == learnt == settings.trained_parts
    assert [step.done for step in steps] == list(range(1, 7))
    assert all("loss" in step.note for step in steps)
    words, old_words = lesson.parts.lower.word_embeddings.weight, before.lower.word_embeddings.weight
    seen = lesson.tokenizer.encode(texts).token_ids
    unseen = torch.ones(len(words), dtype=torch.bool)
    unseen[torch.from_numpy(seen)] = False
    assert unseen.any()
    assert torch.equal(words[unseen], old_words[unseen])


def test_the_upper_layers_have_a_rate_of_their_own(tiny_bert: Path, tmp_path: Path, texts: list[str]) -> None:
    """Adam's first step moves every weight by about the rate, so the rate can be read off it."""
    settings = replace(SHORT, steps=1, warmup_steps=0, weight_decay=0.0, learning_rate=1e-3, train_upper=True)
    for rate in (1e-5, 1e-4):
        (tmp_path / "checkpoint").unlink(missing_ok=True)
        lesson = Lesson(tiny_bert)
        before = convert(tiny_bert, 2, MAX_TOKENS)
        lesson.learn(texts, replace(settings, upper_learning_rate=rate), tmp_path)
        for part, peak in (("lower", 1e-3), ("upper", rate)):
            ours, theirs = (parts.modules()[part].layers[0].ffn_in.weight for parts in (lesson.parts, before))
            assert float((ours - theirs).detach().abs().median()) == pytest.approx(0.05 * peak, rel=0.1)


def slow_scores(layer: nn.Module, states: Tensor, num_heads: int) -> Tensor:
    """One text's scores, head by head and token by token. `[T, H]` → `[heads, T, T]`."""
    query, key, _ = layer.get_submodule("query_key_value")(states).chunk(3, dim=-1)
    width = states.shape[1] // num_heads
    scores = torch.empty(num_heads, len(states), len(states))
    for head in range(num_heads):
        own = slice(head * width, (head + 1) * width)
        for i in range(len(states)):
            for j in range(len(states)):
                scores[head, i, j] = torch.dot(query[i, own], key[j, own]) / math.sqrt(width)
    return scores


def test_score_losses_against_a_loop(tiny_bert: Path) -> None:
    lesson, other = Lesson(tiny_bert), convert(tiny_bert, 2, MAX_TOKENS)
    with torch.no_grad():
        other.upper.layers[0].query_key_value.weight.mul_(1.1)
    rows = lesson.student.rows(["cat", "the dog is near my house", "a b c"])
    ours, theirs = (torch.randn(int(rows.mask.sum()), lesson.parts.geometry.hidden_size) for _ in range(2))
    layers = list(zip(lesson.parts.upper.layers, other.upper.layers, strict=True))
    losses = score_losses(layers, [(ours, theirs), (theirs, ours), (ours, ours)], rows, num_heads=4)
    assert len(losses) == 2
    for loss, (our_layer, their_layer), (mine, yours) in zip(
        losses, layers, [(ours, theirs), (theirs, ours)], strict=True
    ):
        lengths = rows.mask.sum(dim=1).tolist()
        student = [slow_scores(our_layer, part, 4).flatten() for part in mine.split(lengths)]
        teacher = [slow_scores(their_layer, part, 4).flatten() for part in yours.split(lengths)]
        difference = torch.cat(student) - torch.cat(teacher)
        expected = difference.square().mean() / torch.cat(teacher).var()
        torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_fragments_are_shortened_as_tables_shorten_them(n: int) -> None:
    shares = {Store.TRI: 0.3, Store.BI: 0.2, Store.UNI: 0.1}
    whole = torch.randint(1, 100, (20_000, n))
    shortening = Shortening(n, shares, seed=7)
    shortened = shortening.apply(whole, draw=5)
    assert torch.equal(shortened, shortening.apply(whole, draw=5))
    assert not torch.equal(shortened, shortening.apply(whole, draw=6))
    kinds = {}
    for store in stores_of(n):
        cut = torch.zeros_like(whole)
        cut[:, store.slots(n)] = whole[:, store.slots(n)]
        kinds[store] = (shortened == cut).all(dim=1)
    assert torch.stack(list(kinds.values())).sum(dim=0).eq(1).all()
    fallbacks = stores_of(n)[1:]
    for store in fallbacks:
        assert float(kinds[store].float().mean()) == pytest.approx(shares[store], abs=0.02)


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": 0},
        {"checkpoint_every": 0},
        {"learning_rate": 0.0},
        {"train_upper": True, "upper_learning_rate": 0.0},
        {"embedding_learning_rate": -1e-4},
        {"attention_weight": -1.0},
        {"final_weight": 0.0},
        {"bigram_share": -0.1},
        {"trigram_share": 0.5, "bigram_share": 0.4, "unigram_share": 0.2},
        {"pair_share": 1.1},
        {"pair_share": float("nan")},
        {"noise_share": 0.6},
        {"noise_share": float("nan")},
    ],
)
def test_impossible_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        replace(SHORT, **wrong)


class Recorder(Student):
    """Keeps the shapes of the fragments that it is asked about."""

    widths: set[int]

    def states(self, rows: PaddedRows, fragments: Tensor) -> list[Tensor]:
        self.widths.add(fragments.shape[1])
        return super().states(rows, fragments)


@pytest.mark.parametrize("n", [2, 5])
def test_other_fragments_are_learnt_too(tiny_bert: Path, tmp_path: Path, texts: list[str], n: int) -> None:
    lesson = Lesson(tiny_bert, n)
    lesson.student = Recorder(lesson.parts, lesson.tokenizer)
    lesson.student.widths = set()
    steps = lesson.learn(texts, replace(SHORT, steps=16, learning_rate=3e-3), tmp_path)
    assert lesson.student.widths == {n}
    first, last = (float(step.note.split()[1].rstrip(",")) for step in (steps[0], steps[-1]))
    assert last < 0.9 * first


def request_for(model: Path, corpus: Path, settings: DistilSettings | None, **more: Any) -> AddRoot:
    plot = PlotSettings(max_fragments=50, max_bigrams=50)
    return new_root("r", str(model), 2, (corpus,), MAX_TOKENS, distil=settings, plot=plot, **more)


def built(home: Home, request: AddRoot) -> RootFolder:
    add_root(home, Registry.open(home, create=True), request, ignore)
    return RootFolder(home.root(request.name))


KILLED = """
import os, signal, sys
sys.path[:0] = sys.argv[4:]
from pathlib import Path
import torch
torch.set_num_threads(1)
from backends.home import Home
from backends.registry.registry import Registry
from builder.construct.root.roots import add_root
from test_distil import EVERYTHING, request_for
def report(step):
    if step.phase.startswith("distil") and step.done == 5:
        os.kill(os.getpid(), signal.SIGKILL)
home = Home(Path(sys.argv[1]))
request = request_for(Path(sys.argv[2]), Path(sys.argv[3]), EVERYTHING)
add_root(home, Registry.open(home, create=True), request, report)
"""


@pytest.mark.long
def test_a_killed_distillation_ends_with_the_same_weights(tiny_bert: Path, tmp_path: Path) -> None:
    """Killed between two checkpoints, with everything learning: afterwards every bit is as if it had not been."""
    corpus = write_corpus(tmp_path / "corpus.txt", 400, seed=1)
    killed, whole = Home(tmp_path / "killed"), Home(tmp_path / "whole")
    here = Path(__file__).parent
    command = [sys.executable, "-c", KILLED, str(killed.path), str(tiny_bert), str(corpus)]
    process = subprocess.run([*command, str(here), str(here.parents[1])], check=False)
    assert process.returncode == -signal.SIGKILL
    request = request_for(tiny_bert, corpus, EVERYTHING)
    first, second = built(killed, request), built(whole, request)
    for name in ("lower", "aggregation", "upper"):
        ours, theirs = ((root.path / f"{name}.safetensors").read_bytes() for root in (first, second))
        assert ours == theirs
    assert first.manifest.fidelity == second.manifest.fidelity


@pytest.mark.long
def test_a_warm_start_goes_on_with_all_that_was_learnt(tiny_bert: Path, tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus.txt", 400, seed=1)
    first = built(Home(tmp_path / "first"), request_for(tiny_bert, corpus, replace(EVERYTHING, steps=24)))
    assert first.manifest.origin["trained_parts"] == ["aggregation", "lower", "upper", "word_embeddings"]
    distilled = tmp_path / "distilled.safetensors"
    export_distilled(first, distilled)
    taken = built(Home(tmp_path / "taken"), request_for(tiny_bert, corpus, None, distilled=distilled))
    assert taken.fingerprint == first.fingerprint
    assert taken.manifest.fidelity == first.manifest.fidelity
    more = replace(SHORT, steps=8, learning_rate=3e-4)
    warm, cold = (
        built(Home(tmp_path / name), request_for(tiny_bert, corpus, more, distilled=start))
        for name, start in (("warm", distilled), ("cold", None))
    )
    cosines = {root.path: root.manifest.fidelity["final_cosine"] for root in (first, warm, cold)}
    assert cosines[warm.path] > cosines[cold.path]
    assert cosines[warm.path] > cosines[first.path] - 0.005
    # The words learnt in the first run only, and are carried on.
    assert warm.manifest.origin["trained_parts"] == first.manifest.origin["trained_parts"]
    assert torch.equal(warm.lower().word_embeddings.weight, first.lower().word_embeddings.weight)


def test_divergence_ends_it(tiny_bert: Path, tmp_path: Path, texts: list[str]) -> None:
    with pytest.raises(HplmError, match=r"diverged at step \d; try a lower learning rate"):
        Lesson(tiny_bert).learn(texts, replace(SHORT, learning_rate=1e20, warmup_steps=0), tmp_path)


@pytest.mark.parametrize("value", [math.nan, 1e6])  # more than half precision can say
def test_weights_that_are_no_numbers_are_not_written(tiny_bert: Path, tmp_path: Path, value: float) -> None:
    parts = convert(tiny_bert, 2, MAX_TOKENS)
    with torch.no_grad():
        next(parts.upper.parameters()).view(-1)[3] = value
    with pytest.raises(HplmError, match="'upper' are not finite"):
        write_root(tmp_path, "r", parts.geometry, tiny_bert / "tokenizer.json", dict(parts.modules()), {}, {})


def test_seeds_that_are_none() -> None:
    for seed in (-1, 1 << 64):
        for make in (DistilSettings, lambda seed: Pace(steps=1, learning_rate=1.0, seed=seed)):
            with pytest.raises(InvalidArgumentError, match="the seed must be"):
                make(seed=seed)
