"""The texts of a selection: those that an early head learns from, and those that certify it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np

from backends.errors import InvalidArgumentError, TrainingDataError
from backends.registry.entries import HplmEntry
from builder.construct.tasks.conll import OUTSIDE
from builder.construct.tasks.dataset import REGRESSION, read_examples
from builder.construct.tasks.examples import Example, LabelledText, TaggedSentence, normalised
from builder.construct.tasks.trained_texts import TrainedTexts
from builder.construct.tasks.unlabelled import draw_unlabelled
from builder.levels.target import Target

ONE_IN_FITS = 5
"""One held-out text of this many fits temperatures; the others certify."""
_LEAST_FITTING = 20
_LEAST_LEARNING = 20
"""Of texts that an early head for numbers learns from, a part of which chooses its penalty."""
_MOST_UNLABELLED = 40_000
_SEED = 29
_MOST_OFFERED_POINTS = 20
"""No target is offered that loses more."""


@dataclass(frozen=True)
class LabelledFiles:
    """Labelled texts to learn from, and others that neither the hPLM nor the head has learned from."""

    train: Path
    held_out: Path


@dataclass(frozen=True)
class UnlabelledFile:
    """Plain texts, a line each: one half is learned from, the other certifies that answers stay the same."""

    path: Path


@dataclass(frozen=True)
class HplmTask:
    """What an hPLM reads, and which labels it answers with."""

    id: str
    task: str
    labels: tuple[str, ...]
    pair: bool

    @classmethod
    def of(cls, entry: HplmEntry) -> Self:
        return cls(entry.id, entry.task, entry.labels, entry.pair)


@dataclass(frozen=True)
class Material:
    """Texts of both kinds.

    Attributes:
        num_dropped: Held-out texts that were left out because something has learned from them.
        has_labels: False where the labels of the examples say nothing.
    """

    train: Sequence[Example]
    held_out: Sequence[Example]
    num_dropped: int
    has_labels: bool


def material_of(
    files: LabelledFiles | UnlabelledFile,
    live: HplmTask,
    trained_on: TrainedTexts,
    target: Target,
    num_candidates: int = 1,
) -> Material:
    """Read the texts for a version, which may still have to be made, and for so many ladders to choose from.

    Raises:
        InvalidArgumentError: The target needs labels, or is none of numbers.
        TrainingDataError: The files do not fit the hPLM, or hold too few texts.
    """
    if live.task == REGRESSION and target.loss == "target-accuracy":
        raise InvalidArgumentError(
            f"hPLM {live.id!r} answers with numbers, which have no accuracy: --max-drop in hundredths of their "
            "standard deviation, or --agreement"
        )
    if isinstance(files, UnlabelledFile):
        return _unlabelled(files.path, live, trained_on, target, num_candidates)
    return _labelled(files, live, trained_on, target, num_candidates)


def _labelled(
    files: LabelledFiles, live: HplmTask, trained_on: TrainedTexts, target: Target, num_candidates: int
) -> Material:
    train, held_out = (read_examples(path, live.task) for path in (files.train, files.held_out))
    if live.task == REGRESSION and len(train) < _LEAST_LEARNING:
        raise TrainingDataError(
            f"{files.train} holds {len(train)} texts; to learn from takes at least {_LEAST_LEARNING}"
        )
    for path, examples in ((files.train, train), (files.held_out, held_out)):
        if (examples[0].text_pair is not None) != live.pair:
            kinds = {True: "pairs of texts", False: "single texts"}
            raise TrainingDataError(
                f"{path} holds {kinds[not live.pair]}, but hPLM {live.id!r} reads {kinds[live.pair]}"
            )
        if live.task != REGRESSION:
            _require_known_labels(path, examples, live)
    strict, num_known = _unknown_to(trained_on.joined(TrainedTexts.of(train)), held_out)
    _require_enough(files.held_out, len(strict), num_known, target, num_candidates)
    if live.task != REGRESSION:
        _require_classes(files.train, train, live)
        _require_classes(files.held_out, strict, live)
    return Material(train, strict, num_known, has_labels=True)


def _require_known_labels(path: Path, examples: Sequence[Example], live: HplmTask) -> None:
    if unknown := sorted(_labels(examples) - set(live.labels)):
        raise TrainingDataError(f"{path} has label {unknown[0]!r}, which hPLM {live.id!r} does not know")


def _require_classes(path: Path, examples: Sequence[Example], live: HplmTask) -> None:
    """Check that there are several: texts of one class teach and certify nothing about the others."""
    labels = _labels(examples)
    if len(labels) == 1:
        raise TrainingDataError(f"{path} holds one class only ({labels.pop()!r}) of those of hPLM {live.id!r}")


def _unlabelled(path: Path, live: HplmTask, trained_on: TrainedTexts, target: Target, num_candidates: int) -> Material:
    require_plain_texts(path, target)
    drawn = draw_unlabelled(path, _like_those_of(live), trained_on, _MOST_UNLABELLED)
    examples, num_known = drawn.examples, drawn.num_known
    order = np.random.default_rng(_SEED).permutation(len(examples)).tolist()
    learn, certify = order[: len(order) // 2], order[len(order) // 2 :]
    _require_enough(path, len(certify), num_known, target, num_candidates, learning=len(learn))
    return Material([examples[at] for at in learn], [examples[at] for at in certify], num_known, has_labels=False)


def require_plain_texts(path: Path, target: Target) -> None:
    """Check what does not depend on an hPLM."""
    if target.loss != "agreement":
        raise InvalidArgumentError(f"{target.shown} needs labels; texts without labels certify --agreement")
    if not path.is_file():
        raise TrainingDataError(f"{path} is no file")


def _like_those_of(live: HplmTask) -> Example:
    if live.task == "ner":
        return TaggedSentence(("word",), (OUTSIDE,))
    label = 0.0 if live.task == REGRESSION else live.labels[0]
    return LabelledText("text", label, "text" if live.pair else None)


def _unknown_to(trained_on: TrainedTexts, examples: Sequence[Example]) -> tuple[list[Example], int]:
    """Return the texts that were not trained on, each once, and the number of those that were."""
    known = trained_on.are_among(examples)
    unknown = (each for each, is_known in zip(examples, known, strict=True) if not is_known)
    # A text that stands there twice proves no more than once.
    return list({normalised(each): each for each in unknown}.values()), int(known.sum())


def enough_texts(target: Target, num_candidates: int) -> int:
    """Return how many held-out texts a selection takes, so that enough certify and enough fit."""
    rows = target.tested(num_candidates=num_candidates).least_rows(target.tolerance)
    return max(-(-rows * ONE_IN_FITS // (ONE_IN_FITS - 1)), _LEAST_FITTING * ONE_IN_FITS)


def _require_enough(
    path: Path,
    held_out: int,
    num_known: int,
    target: Target,
    num_candidates: int,
    learning: int | None = None,
) -> None:
    """Check the number of held-out texts; of a file that is learned from too, twice as many are needed."""
    needed = enough_texts(target, num_candidates)
    if held_out >= needed:
        return
    dropped = f", besides {num_known} that were trained on" if num_known else ""
    holds, needed = (held_out, needed) if learning is None else (held_out + learning, 2 * needed)
    raise TrainingDataError(
        f"{path} holds {holds} different texts{dropped}; to certify {target.promise} takes at least {needed}"
        f"{_instead(target, held_out, num_candidates)}"
    )


def _instead(target: Target, held_out: int, num_candidates: int) -> str:
    """Name the target that a number of texts could certify at best, in whole points."""
    looser = (replace(target, tolerance=points / 100) for points in range(1, _MOST_OFFERED_POINTS + 1))
    could = next((each for each in looser if enough_texts(each, num_candidates) <= held_out), None)
    return "" if could is None else f"; these could certify {could.shown} at best"


def _labels(examples: Iterable[Example]) -> set[str]:
    return {
        label for each in examples for label in (each.tags if isinstance(each, TaggedSentence) else (str(each.label),))
    }
