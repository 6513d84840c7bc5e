"""The layers that texts may leave after: those that are named, or the default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from backends.errors import InvalidArgumentError
from builder.levels.material import enough_texts
from builder.levels.target import DECLARED, LADDER, Target

MOST_CANDIDATES = 2
"""Each more divides the risk further, and mixed batches split once more where hPLMs have chosen differently."""


def default_exits(num_layers: int) -> tuple[int, ...]:
    """Return the layers to choose from unless others are named: a low one for easy tasks, and one half way up."""
    return tuple(sorted({max(1, num_layers // 6), min(max(2, num_layers // 2), num_layers - 1)}))


def offered_exits(num_layers: int, target: Target, held_out: int) -> tuple[int, ...]:
    """Return the default layers where so many held-out texts are enough to choose one, or else the only one."""
    offered = default_exits(num_layers)
    return offered if enough_texts(target, len(offered)) <= held_out else (only_exit(num_layers),)


def only_exit(num_layers: int) -> int:
    """Return the layer that texts leave after where they are too few to choose one by."""
    return min(max(2, num_layers // 3), num_layers - 1)


def exits_of(root: str, num_layers: int, after: Sequence[int]) -> tuple[int, ...]:
    """Return the layers of which one is to be chosen, the lowest first; none named means the default.

    Raises:
        InvalidArgumentError: No early head can stand there, or there are too many.
    """
    if num_layers == 1:
        raise InvalidArgumentError(f"root {root!r} has one upper layer, so no text can leave before it")
    chosen = sorted(after or default_exits(num_layers))
    if len(chosen) > MOST_CANDIDATES:
        raise InvalidArgumentError(
            f"at most {MOST_CANDIDATES} layers to choose from, not {len(chosen)}: the risk is divided among them"
        )
    if len(set(chosen)) < len(chosen):
        raise InvalidArgumentError(f"layer {chosen[0]} is named twice")
    for each in chosen:
        if not 0 < each < num_layers:
            raise InvalidArgumentError(
                f"root {root!r} has {num_layers} upper layers; an early head can stand after 1 to "
                f"{num_layers - 1} of them, not after {each}"
            )
    return tuple(chosen)


def noted_exits(after: Sequence[int]) -> dict[str, Any]:
    """Return named layers as figures of a version have them."""
    if not after:
        return {}
    return {"after": after[0] if len(after) == 1 else [*after]}


def exits_named_before(figures: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the layers that a version was made with, by its figures; none where none were named."""
    return as_layers((figures.get(DECLARED) or figures.get(LADDER, {})).get("after"))


def as_layers(after: int | Sequence[int] | None) -> tuple[int, ...]:
    """Return layers as requests and figures name them: none, one or several."""
    if after is None:
        return ()
    return (after,) if isinstance(after, int) else tuple(after)
