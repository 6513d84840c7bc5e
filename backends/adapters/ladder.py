"""Ladders: at which steps a version's rows may be answered; `levels.json` and `exits.safetensors` beside its weights.

A row climbs the upper layers. After some of them an early head answers it; where that is sure enough, the row leaves
there. A version without these files has one step, `full`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from backends.adapters.head import Head
from backends.adapters.mapped import load_mapped
from backends.errors import CorruptFileError, FingerprintMismatchError, InvalidArgumentError
from backends.fields import Fields, read_fields
from backends.stack_key import FULL
from backends.storage import check_file, file_checksum, write_json, write_tensors
from backends.wire import EARLY

LOGGER = logging.getLogger(__name__)
LADDER_FORMAT_VERSION = 5
"""2 is of regressions, which releases that read 1 would take for labels; 3 is of ensembles and 5 of pruned words, which
those that read less would leave out; all others are written as 1. 4 was of words pruned by another score."""
_OF_LABELS, _OF_NUMBERS, _OF_ENSEMBLES, _OF_ANOTHER_SCORE = 1, 2, 3, 4
_MANIFEST = "levels.json"
_HEADS = "exits.safetensors"
LADDER_FILES = (_MANIFEST, _HEADS)
_STORED_DTYPE = torch.float16
_SUM_PRECISION = 1e-6


@dataclass(frozen=True)
class EarlyStep:
    """The step of an early head.

    Attributes:
        after: Number of upper layers that a row has passed by then.
        head: Pooled as the version's own.
        temperature: Makes the confidences true by which rows leave.
        threshold: Least confidence of a row that leaves.
        scale: The standard deviation of a regression's full answers, which its early ones are judged by; the head
            answers with the value and the logarithm of its likely error's variance in this unit. None of labels.
        reported_temperature: Makes the confidences true that answers report. It is fitted by more texts: those that
            certify a threshold have no part in `temperature`. None of a regression, which reports none, and of ladders
            of earlier releases, whose answers report the confidences by which rows leave.
    """

    after: int
    head: Head
    temperature: float
    threshold: float
    scale: float | None = None
    reported_temperature: float | None = None

    @property
    def stored_head(self) -> Head:
        """The head in the precision of its file; that of a regression holds the scale of its values."""
        return self.head.to(_STORED_DTYPE if self.scale is None else torch.float32)

    @property
    def served_head(self) -> Head:
        """The stored head as it is computed with."""
        return self.stored_head.to(torch.float32)


@dataclass(frozen=True)
class Ensemble:
    """How the answer of a row that passes all layers is mixed with its early one.

    Attributes:
        full_weight: Of the full answer's probabilities, between 0 and 1; those of the early one have the rest.
        temperature: Makes the confidence of the mixture true.
    """

    full_weight: float
    temperature: float


@dataclass(frozen=True)
class Pruning:
    """Which words a row that goes on loses on its way.

    Attributes:
        alpha: A word stays if a token of it receives more than so many times the attention that the row's words do in
            the mean.
        temperature: Makes the confidence of answers true that all layers give without those words.
    """

    alpha: float
    temperature: float


@dataclass(frozen=True)
class Ladder:
    """The early step of a version, and the temperature of its full one.

    Attributes:
        early: Where rows may leave.
        full_temperature: Of the answers of rows that pass all layers.
        ensemble: Of a classification: what rows are answered by that were not sure enough early; None where full
            answers stand alone, as those to requests for `full` always do.
        certified: What was promised and measured when it was made. The audit compares early answers by its
            `disagreement`; the other figures are for people.
        pruning: Of a classification: the words that rows lose that were not sure enough early; None where they keep
            all, as rows of requests for `full` always do.
    """

    early: EarlyStep
    full_temperature: float
    certified: Mapping[str, Any] = field(default_factory=dict)
    ensemble: Ensemble | None = None
    pruning: Pruning | None = None

    @property
    def levels(self) -> tuple[str, ...]:
        return EARLY, FULL

    @property
    def format_version(self) -> int:
        """The oldest format that says all of it, so that releases before this one read what they can serve."""
        if self.pruning is not None:
            return LADDER_FORMAT_VERSION
        if self.ensemble is not None:
            return _OF_ENSEMBLES
        return _OF_LABELS if self.early.scale is None else _OF_NUMBERS


def write_ladder(folder: Path, ladder: Ladder, root_fingerprint: str) -> None:
    """Write a ladder beside a version's weights, into a staging folder."""
    early, mixed, pruned = ladder.early, ladder.ensemble, ladder.pruning
    reported = early.reported_temperature
    heads = folder / _HEADS
    write_tensors(heads, {f"{EARLY}.{name}": each for name, each in early.stored_head.named().items()})
    write_json(
        folder / _MANIFEST,
        {
            "format_version": ladder.format_version,
            "root_fingerprint": root_fingerprint,
            "ladder": [
                {
                    "level": EARLY,
                    "after": early.after,
                    "temperature": early.temperature,
                    "threshold": early.threshold,
                    **({} if early.scale is None else {"scale": early.scale}),
                    **({} if reported is None else {"reported_temperature": reported}),
                    **({} if mixed is None else {"weight": 1 - mixed.full_weight}),
                    **({} if pruned is None else {"alpha": pruned.alpha}),
                },
                {
                    "level": FULL,
                    "temperature": ladder.full_temperature,
                    **({} if mixed is None else {"weight": mixed.full_weight, "mixed_temperature": mixed.temperature}),
                    **({} if pruned is None else {"pruned_temperature": pruned.temperature}),
                },
            ],
            "certified": dict(ladder.certified),
            "size_bytes": heads.stat().st_size,
            "heads_checksum": file_checksum(heads),
        },
    )


def read_ladder(folder: Path, root_fingerprint: str) -> Ladder | None:
    """Read a version's ladder, if it has one.

    Raises:
        FileError: The files are damaged, of another root, or of a newer format.
    """
    path, heads = folder / _MANIFEST, folder / _HEADS
    if not path.exists():
        return None
    manifest = read_fields(path, LADDER_FORMAT_VERSION)
    if (of_root := manifest.text("root_fingerprint")) != root_fingerprint:
        raise FingerprintMismatchError(f"{path} is of root {of_root}, not {root_fingerprint}")
    check_file(heads, manifest.whole("size_bytes"), manifest.text("heads_checksum"))
    try:
        head = _early_head(load_mapped(heads))
    except (KeyError, InvalidArgumentError) as error:
        raise CorruptFileError(f"{heads} holds no head: {error}") from error
    steps = manifest.parts("ladder")
    if len(steps) != 2:
        raise CorruptFileError(f"{path} has {len(steps)} steps, not 2")
    early, full = steps
    step = EarlyStep(
        early.whole("after", 1),
        head,
        early.positive("temperature"),
        early.number("threshold"),
        early.positive("scale") if "scale" in early else None,
        early.positive("reported_temperature") if "reported_temperature" in early else None,
    )
    certified = _certified(manifest.part("certified"))
    pruning = _pruning(early, full)
    if pruning is not None and manifest.whole("format_version") == _OF_ANOTHER_SCORE:
        LOGGER.warning(
            "%s leaves out words by a score of an earlier release; texts keep all until it is selected again", path
        )
        pruning = None
    return Ladder(step, full.positive("temperature"), certified, _ensemble(early, full), pruning)


def _ensemble(early: Fields, full: Fields) -> Ensemble | None:
    """Read the weight of each step, if they have some."""
    if "weight" not in early and "weight" not in full:
        return None
    weights = early.positive("weight"), full.positive("weight")
    if not math.isclose(sum(weights), 1, abs_tol=_SUM_PRECISION):
        raise CorruptFileError(f"{full.where} has weights that add up to {sum(weights):g}, not 1")
    return Ensemble(weights[1], full.positive("mixed_temperature"))


def _pruning(early: Fields, full: Fields) -> Pruning | None:
    """Read which words rows lose, if they lose any."""
    if "alpha" not in early and "pruned_temperature" not in full:
        return None
    return Pruning(early.positive("alpha"), full.positive("pruned_temperature"))


def _early_head(tensors: Mapping[str, Tensor]) -> Head:
    head = Head(tensors[f"{EARLY}.weight"], tensors[f"{EARLY}.bias"])
    head.require_finite("the early head")
    return head


def _certified(figures: Fields) -> Mapping[str, Any]:
    """Return what a manifest says was certified, once the figure that is computed with is a number."""
    certified = {name: figures.value(name) for name in figures.names()}
    if certified.get("disagreement") is not None:
        figures.number("disagreement")
    return certified
