"""The fidelity of a root to its model: cosines per layer, and whether it finds the same sentences alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from backends.errors import InvalidArgumentError, TrainingDataError
from backends.root.tokenizer import Text
from builder.construct.root.augment import Pairing, Shortening
from builder.construct.root.student import Student
from builder.construct.root.teacher import Teacher
from builder.construct.tasks import metrics
from builder.construct.training.corpus import corpus_texts
from builder.construct.training.rows import PaddedRows

MAX_TEXTS = 400
_TEXTS_PER_BATCH = 16
_LEAST_SENTENCES = 3
_ALL_PAIRS = Pairing(share=1.0, seed=0)
FidelityReport = dict[str, Any]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class FidelityProbe:
    """Compares a student with its teacher on texts that neither was trained on."""

    teacher: Teacher
    student: Student
    shortening: Shortening

    def report(self, texts: Sequence[str]) -> FidelityReport:
        """Mean cosines of the tokens' states, per layer, and what users feel of them.

        `final_cosine` is for texts whose fragments a table holds, `fallback_cosine` for texts of which it lacks as
        many as the shortening says, `pair_cosine` for pairs made of the texts; `similarity_spearman` correlates the
        similarities of any two texts, by the mean of their final states, between root and model.
        """
        states = self._compare(texts, shorten=False)
        *below, final = states.cosines
        names = ["boundary_cosine", *(f"upper_{layer}_cosine" for layer in range(1, len(below)))]
        return {
            **dict(zip(names, below, strict=True)),
            "final_cosine": final,
            "fallback_cosine": self._compare(texts, shorten=True).cosines[-1],
            "pair_cosine": self.final_cosine(_ALL_PAIRS.apply(texts, draw=0)),
            "similarity_spearman": spearman(states.student_sentences, states.teacher_sentences),
            "texts": len(texts),
            "tokens": states.tokens,
        }

    def final_cosine(self, texts: Sequence[Text]) -> float:
        return self._compare(texts, shorten=False).cosines[-1]

    @torch.no_grad()
    def _compare(self, texts: Sequence[Text], shorten: bool) -> _Comparison:
        if not texts:
            raise InvalidArgumentError("fidelity needs at least one text")
        ordered = sorted(texts, key=_num_characters)
        sums: list[Tensor] = []
        sentences: tuple[list[Tensor], list[Tensor]] = ([], [])
        tokens = 0
        for start in range(0, len(ordered), _TEXTS_PER_BATCH):
            rows = self.student.rows(ordered[start : start + _TEXTS_PER_BATCH])
            fragments = self.shortening.apply(rows.fragments, start) if shorten else rows.fragments
            both = (self.student.states(rows, fragments), self.teacher.states(rows))
            pairs = zip(*both, strict=True)
            sums.append(torch.stack([functional.cosine_similarity(*pair, dim=-1).sum() for pair in pairs]))
            for states, pooled in zip(both, sentences, strict=True):
                pooled.append(_mean_pooled(rows, states[-1]))
            tokens += len(fragments)
        cosines = [round(float(value) / tokens, 5) for value in torch.stack(sums).sum(dim=0)]
        ours, theirs = (torch.cat(pooled).double().cpu().numpy() for pooled in sentences)
        return _Comparison(cosines, ours, theirs, tokens)


@dataclass(frozen=True)
class _Comparison:
    cosines: list[float]
    student_sentences: Floats
    teacher_sentences: Floats
    tokens: int


def held_out_report(
    probe: FidelityProbe, files: Sequence[Path], corpus_texts_held_out: Sequence[str]
) -> FidelityReport:
    """The report that a root's manifest carries: on the held-out files if there are any, else on the corpus.

    With files, there is one report of each, and `corpus_cosine` says how much better the root is on its own kind.
    """
    if not files:
        return {**probe.report(corpus_texts_held_out), "measured_on": "held-out texts of the corpus"}
    texts = {str(path): sample_texts(path) for path in files}
    of_each = {path: probe.report(some) for path, some in texts.items()}
    together = [text for some in texts.values() for text in some]
    return {
        **(probe.report(together) if len(files) > 1 else of_each[str(files[0])]),
        "measured_on": "held-out files",
        "files": dict(zip(_told_apart([*map(Path, of_each)]), of_each.values(), strict=True)),
        "corpus_cosine": probe.final_cosine(corpus_texts_held_out),
    }


def _told_apart(files: Sequence[Path]) -> list[str]:
    """Names, with so much of their folders as it takes."""
    longest = max(len(path.parts) for path in files)
    named = ([str(Path(*path.parts[-depth:])) for path in files] for depth in range(1, longest + 1))
    return next(names for names in named if len({*names}) == len(files))


def sample_texts(path: Path) -> list[str]:
    """Take `MAX_TEXTS` texts of a file at most, evenly spread."""
    texts = list(corpus_texts([path]))
    if not texts:
        raise TrainingDataError(f"{path} holds no text")
    return spread(texts, MAX_TEXTS)


def spread(texts: Sequence[str], most: int) -> list[str]:
    return list(texts[:: max(1, -(-len(texts) // most))])


def spearman(ours: Floats, theirs: Floats) -> float | None:
    """The rank correlation of all pairs' cosine similarities, or nothing where there are too few sentences.

    Shape: `[S, H]`, `[S, H]`
    """
    if len(ours) < _LEAST_SENTENCES:
        return None
    return round(metrics.spearman(_pair_similarities(ours), _pair_similarities(theirs)), 5)


def _pair_similarities(sentences: Floats) -> Floats:
    unit = sentences / np.linalg.norm(sentences, axis=1, keepdims=True)
    similarities: Floats = (unit @ unit.T)[np.triu_indices(len(unit), k=1)]
    return similarities


def _num_characters(text: Text) -> int:
    return len(text) if isinstance(text, str) else sum(map(len, text))


def _mean_pooled(rows: PaddedRows, states: Tensor) -> Tensor:
    return rows.pad(states).sum(dim=1) / rows.mask.sum(dim=1, keepdim=True)
