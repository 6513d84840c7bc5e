"""Ladders: at which steps a version's rows may be answered; `levels.json` and `exits.safetensors` beside its weights.

A row climbs the upper layers. After some of them an early head answers it; where that is sure enough, the row leaves
there. A version without these files has one step, `full`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from backends.adapters.head import Head
from backends.adapters.mapped import load_mapped
from backends.errors import CorruptFileError, FingerprintMismatchError, FormatVersionError
from backends.stack_key import FULL
from backends.storage import check_file, file_checksum, read_json, write_json, write_tensors
from backends.wire import EARLY

LADDER_FORMAT_VERSION = 2
"""2 is of regressions, which releases that read 1 would take for labels; all others are written as 1."""
_OF_LABELS = 1
_MANIFEST = "levels.json"
_HEADS = "exits.safetensors"
LADDER_FILES = (_MANIFEST, _HEADS)
_STORED_DTYPE = torch.float16


@dataclass(frozen=True)
class EarlyStep:
    """The step of an early head.

    Attributes:
        after: Number of upper layers that a row has passed by then.
        head: Pooled as the version's own.
        temperature: Makes confidences true.
        threshold: Least confidence of a row that leaves.
        scale: The standard deviation of a regression's full answers, which its early ones are judged by; the head
            answers with the value and the logarithm of its likely error's variance in this unit. None of labels.
    """

    after: int
    head: Head
    temperature: float
    threshold: float
    scale: float | None = None

    @property
    def stored_head(self) -> Head:
        """The head in the precision of its file; that of a regression holds the scale of its values."""
        return self.head.to(_STORED_DTYPE if self.scale is None else torch.float32)


@dataclass(frozen=True)
class Ladder:
    """The early step of a version, and the temperature of its full one.

    Attributes:
        early: Where rows may leave.
        full_temperature: Of the answers of rows that pass all layers.
        certified: What was promised and measured when it was made. The audit compares early answers by its
            `disagreement`; the other figures are for people.
    """

    early: EarlyStep
    full_temperature: float
    certified: Mapping[str, Any] = field(default_factory=dict)

    @property
    def levels(self) -> tuple[str, ...]:
        return EARLY, FULL


def write_ladder(folder: Path, ladder: Ladder, root_fingerprint: str) -> None:
    """Write a ladder beside a version's weights, into a staging folder."""
    early = ladder.early
    heads = folder / _HEADS
    write_tensors(heads, {f"{EARLY}.{name}": each for name, each in early.stored_head.named().items()})
    write_json(
        folder / _MANIFEST,
        {
            "format_version": _OF_LABELS if early.scale is None else LADDER_FORMAT_VERSION,
            "root_fingerprint": root_fingerprint,
            "ladder": [
                {
                    "level": EARLY,
                    "after": early.after,
                    "temperature": early.temperature,
                    "threshold": early.threshold,
                    **({} if early.scale is None else {"scale": early.scale}),
                },
                {"level": FULL, "temperature": ladder.full_temperature},
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
    manifest = read_json(path)
    version = manifest.get("format_version")
    if not isinstance(version, int) or version > LADDER_FORMAT_VERSION:
        raise FormatVersionError(f"{path} is of format {version}; this release reads up to {LADDER_FORMAT_VERSION}")
    if manifest.get("root_fingerprint") != root_fingerprint:
        raise FingerprintMismatchError(f"{path} is of root {manifest.get('root_fingerprint')}, not {root_fingerprint}")
    try:
        check_file(heads, manifest["size_bytes"], manifest["heads_checksum"])
        tensors = load_mapped(heads)
        if not all(tensor.isfinite().all() for tensor in tensors.values()):
            raise ValueError(f"{heads.name} holds what is not a number")
        early, full = manifest["ladder"]
        step = EarlyStep(
            int(early["after"]),
            Head(tensors[f"{EARLY}.weight"], tensors[f"{EARLY}.bias"]),
            _positive(early["temperature"]),
            float(early["threshold"]),
            _positive(early["scale"]) if "scale" in early else None,
        )
        return Ladder(step, _positive(full["temperature"]), _certified(manifest["certified"]))
    except (KeyError, TypeError, ValueError, OverflowError, SafetensorError) as error:
        raise CorruptFileError(f"{path} holds no ladder: {error}") from error


def _certified(figures: Any) -> Mapping[str, Any]:
    """Return what a manifest says was certified, once the figure that is computed with is a number."""
    if not isinstance(figures, Mapping):
        raise ValueError(f"what was certified is {figures!r}")
    disagreement = figures.get("disagreement")
    if disagreement is not None and not math.isfinite(float(disagreement)):
        raise ValueError(f"the certified disagreement is {disagreement}")
    return figures


def _positive(number: Any) -> float:
    value = float(number)
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"a temperature or scale is {value}")
    return value
