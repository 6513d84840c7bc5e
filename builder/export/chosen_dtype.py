"""Whether an export may take int8: what the processor has, and what int8 changes of each root's answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch

from backends.engine.precision import fast_float_dtype, fastest_dtype, missing_for
from backends.errors import FileError, InvalidArgumentError
from backends.home import Home
from backends.registry.registry import Registry
from backends.root.int8_file import Int8Fidelity
from builder.profiling.preparing_int8 import measured_before, quantise_root
from builder.progress import Report

Device = Literal["cpu", "gpu"]
Dtype = Literal["bf16", "fp32", "int8"]
LEAST_COSINE = 0.99
LEAST_EQUAL_LABELS = 0.985


def fastest_dtype_for(
    home: Home, registry: Registry, device: Device, corpus: Sequence[Path], report: Report
) -> tuple[Dtype, str]:
    """Return the fastest dtype that changes no root's answers much, and why it is that one.

    Raises:
        InvalidArgumentError: The corpus that is given has too few texts.
    """
    dtype, reason = fastest_dtype(device)
    if dtype != "int8":
        return dtype, reason + _unread(corpus)
    roots = [root.name for root in registry.roots()]
    if not roots:
        return _slower(), "there is no root yet that int8 could be measured on" + _unread(corpus)
    for name in roots:
        try:
            fidelity, says = _measured(home, registry, name, corpus, report)
        except InvalidArgumentError as error:
            if corpus:
                raise
            return _slower(), f"what int8 changes is not known: {error}"
        except (FileError, OSError) as error:
            if corpus and isinstance(error, OSError):
                raise
            return _slower(), f"what int8 changes is not known of root {name}: {error}"
        reason += f"; {says}"
        if not _keeps_enough(fidelity):
            return _slower(), f"int8 changes too much: {says}"
    return dtype, reason


def prepare_int8(home: Home, registry: Registry, corpus: Sequence[Path], report: Report) -> list[str]:
    """Prepare each root for int8 and say what it changes; a root without texts is served in int8 without smoothing.

    Measured on this machine's processor, also for GPUs.

    Raises:
        InvalidArgumentError: The corpus that is given has too few texts.
    """
    if missing := missing_for("int8", torch.device("cpu")):
        return [f"int8 is not prepared here: {missing}{_unread(corpus)}"]
    roots = registry.roots()
    lines = [] if roots or not corpus else [f"there is no root yet to prepare{_unread(corpus)}"]
    for root in roots:
        try:
            lines.append(_measured(home, registry, root.name, corpus, report)[1])
        except InvalidArgumentError as error:
            if corpus:
                raise
            lines.append(f"int8 less exact than it could be: {error}")
        except (FileError, OSError) as error:
            if corpus and isinstance(error, OSError):
                raise
            lines.append(f"root {root.name} is not prepared for int8: {error}")
    return lines


def _measured(
    home: Home, registry: Registry, name: str, corpus: Sequence[Path], report: Report
) -> tuple[Int8Fidelity, str]:
    """Measure a root, and say it in words; or read what was measured of it as it is now, before its texts were gone."""
    try:
        fidelity = quantise_root(home, registry, name, corpus, report)
    except InvalidArgumentError as error:
        stored = None if corpus else _measured_before(home, registry, name, error)
        if stored is None:
            raise
        return stored, f"{_described(name, stored)}, measured before: {error}"
    return fidelity, _described(name, fidelity)


def _measured_before(home: Home, registry: Registry, name: str, error: InvalidArgumentError) -> Int8Fidelity | None:
    try:
        return measured_before(home, registry, name)
    except FileError as damage:
        raise InvalidArgumentError(f"{error}; {damage}") from damage


def _keeps_enough(fidelity: Int8Fidelity) -> bool:
    """Whether int8 changes a root's answers so little that `auto` may take it; a root may have no labels yet.

    One label may change, however few there are.
    """
    may_change = max(1.0, (1 - LEAST_EQUAL_LABELS) * fidelity.num_compared)
    return fidelity.cosine >= LEAST_COSINE and fidelity.num_changed <= may_change


def _described(name: str, fidelity: Int8Fidelity) -> str:
    count = fidelity.num_compared
    kept = "no labels to compare"
    if count:
        worst = min(fidelity.equal_labels, key=lambda hplm: fidelity.equal_labels[hplm])
        share = 1 - fidelity.num_changed / count
        kept = f"{share:.1%} of {count:,} labels equal, fewest of {worst} ({fidelity.equal_labels[worst]:.1%})"
    unreadable = f"; cannot be read: {', '.join(fidelity.unreadable)}" if fidelity.unreadable else ""
    texts = f"{fidelity.texts} texts"
    if fidelity.known_fragments is not None:
        texts += f" (its table has {fidelity.known_fragments:.0%} of their fragments)"
    return f"root {name} keeps a cosine of {fidelity.cosine:.4f}, {kept}, on {texts}{unreadable}"


def _unread(corpus: Sequence[Path]) -> str:
    return "; --int8-corpus is not read" if corpus else ""


def _slower() -> Dtype:
    return fast_float_dtype(torch.device("cpu"))
