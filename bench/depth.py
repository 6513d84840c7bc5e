"""What is saved where rows leave after two of six layers, bare: of the ideal, and against beginning again?

Every row is another hPLM's, with the adapters that `hplm create` makes by default. Which rows leave is imposed. All
ways take turns in one run.

- `exit_efficiency_60` is the time that is saved where 60 % leave, as a share of the ideal: of the layers that these
  rows do not pass.
- `no_exit_overhead` is the time with an early head for every row where none leaves, against none with one.
- `pruning_efficiency` is the time that is saved where all rows go on, each without the words that `alpha` leaves out,
  as a share of the ideal: of the layers that their tokens do not pass. Choosing the words is part of the time.
- `continue_over_recompute_70` compares going on with beginning again: the 30 % of rows that stay are laid out anew and
  pass all six layers, as they would in a second model.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import mean, median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from backends.adapters.head import Head
from backends.engine.exits import Early, Exit
from backends.engine.pruning import Prunable
from backends.engine.stack import ReadyHplm, UpperStack
from backends.root.word_marks import BEGINS_WORD, CONTINUES_WORD, OF_NO_WORD, WordMarks
from bench.kit.bare import ROWS, bare_engine, engine_device, fast_dtypes, interleaved
from bench.kit.entry import Result, at_least, at_most, bench
from bench.kit.random_root import BERT_BASE_UPPER
from builder.settings.hplm import LORA_EVERYWHERE

_LABELS = 3
_SURE, _NEVER = None, 2.0
_LENGTHS = {128: "", 20: "_short"}
_RECOMPUTED = 70
_CONTINUING = 0.25


@dataclass(frozen=True)
class Settings:
    repeats: int
    after: int = 2
    layers: int = BERT_BASE_UPPER.num_upper_layers
    rows: int = ROWS
    leaving_percent: tuple[int, ...] = (60, 70, 80)
    alpha: float = 1.0
    timing: str = "all ways in turn, the median of the ratios within each turn"


FULL = Settings(repeats=5)
QUICK = Settings(repeats=2, rows=16)


class Batches:
    """The same rows, with an exit for each."""

    def __init__(self, stack: UpperStack, rows: Sequence[Tensor], hplms: Sequence[ReadyHplm], after: int) -> None:
        self._stack, self._rows, self._hplms = stack, rows, hplms
        size = rows[0].shape[1]
        head = Head(torch.randn(_LABELS, size) / size**0.5, torch.zeros(_LABELS)).map(stack.own)
        self._leaves, self._stays = (Exit(after, head, 1.0, threshold) for threshold in (_SURE, _NEVER))
        rng = np.random.default_rng(3)
        self._marks = [_marks(len(row), rng) for row in rows]
        self.kept = 1.0
        """Share of their tokens that rows kept which lost words last."""
        self._order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(3)).tolist()

    def plain(self) -> None:
        self._run(range(len(self._rows)), None)

    def leaving(self, percent: int) -> None:
        gone = self._gone(percent)
        exits = [self._leaves if row in gone else self._stays for row in range(len(self._rows))]
        self._run(range(len(self._rows)), exits)

    def pruned(self, alpha: float) -> None:
        """No row leaves, and each loses words there."""
        exits = [replace(self._stays, prunable=Prunable(alpha, marks)) for marks in self._marks]
        self.kept = mean(early.kept or 0.0 for early in self._run(range(len(self._rows)), exits).values())

    def recomputing(self, percent: int) -> None:
        """All rows leave early, and those that would have gone on begin again."""
        self.leaving(100)
        gone = self._gone(percent)
        self._run([row for row in range(len(self._rows)) if row not in gone], None)

    def _gone(self, percent: int) -> set[int]:
        return set(self._order[: round(percent / 100 * len(self._rows))])

    def _run(self, rows: Sequence[int], exits: Sequence[Exit] | None) -> dict[int, Early]:
        hplms, early = [self._hplms[row] for row in rows], dict[int, Early]()
        packed = self._stack.pack([self._rows[row] for row in rows], hplms)
        self._stack.run(packed, hplms, None, exits, early.update)
        return early


def _marks(length: int, rng: np.random.Generator) -> WordMarks:
    """Where words begin of which one in four has a second token or more."""
    marks = np.where(rng.random(length) < _CONTINUING, CONTINUES_WORD, BEGINS_WORD).astype(np.uint8)
    marks[[0, -1]] = OF_NO_WORD
    return marks


def measure(settings: Settings, seed: int) -> list[dict[str, Any]]:
    """One row for each dtype and length."""
    found = []
    with bare_engine(BERT_BASE_UPPER, settings.rows, seed, LORA_EVERYWHERE) as engine:
        for dtype in fast_dtypes(engine_device()):
            stack = engine.stack(dtype)
            for length in _LENGTHS:
                waiting = engine.waiting(stack, engine.rows([length] * settings.rows), settings.rows)
                batches = Batches(stack, waiting.rows, waiting.hplms, settings.after)
                ways: dict[str, Callable[[], object]] = {"full": batches.plain, "none": partial(batches.leaving, 0)}
                ways |= {f"{percent} %": partial(batches.leaving, percent) for percent in settings.leaving_percent}
                ways["pruned"] = partial(batches.pruned, settings.alpha)
                ways["anew"] = partial(batches.recomputing, _RECOMPUTED)
                seconds = interleaved(ways, settings.repeats)
                ideal = 1 - settings.after / settings.layers
                row: dict[str, Any] = {"dtype": dtype, "tokens": length}
                row |= {f"{way} ms": 1000 * median(times) for way, times in seconds.items()}
                for percent in settings.leaving_percent:
                    saved = [1 - b / a for a, b in zip(seconds["full"], seconds[f"{percent} %"], strict=True)]
                    row[f"efficiency {percent}"] = median(saved) / (ideal * percent / 100)
                saved = [1 - b / a for a, b in zip(seconds["none"], seconds["pruned"], strict=True)]
                row |= {"kept": batches.kept, "efficiency pruned": median(saved) / (ideal * (1 - batches.kept))}
                row["overhead"] = _ratio(seconds["none"], seconds["full"])
                row["anew over going on"] = _ratio(seconds["anew"], seconds[f"{_RECOMPUTED} %"])
                found.append(row)
                for hplm in waiting.hplms:
                    stack.release(hplm)
    return found


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return median(a / b for a, b in zip(ours, theirs, strict=True))


def figures_of(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for row in rows:
        suffix = _LENGTHS[row["tokens"]] + ("_int8" if row["dtype"] == "int8" else "")
        found |= {f"exit_efficiency_{percent}{suffix}": row[f"efficiency {percent}"] for percent in (60, 80)}
        found[f"kept_tokens{suffix}"] = row["kept"]
        found[f"pruning_efficiency{suffix}"] = row["efficiency pruned"]
        found[f"no_exit_overhead{suffix}"] = row["overhead"]
        found[f"continue_over_recompute_{_RECOMPUTED}{suffix}"] = row["anew over going on"]
    return found


@bench(
    "depth",
    bars={
        "exit_efficiency_60": at_least(0.85),
        "exit_efficiency_80_short": at_least(0.75),
        "no_exit_overhead": at_most(1.03),
        "continue_over_recompute_70": at_least(1.1),
    },
)
def depth(options: Namespace) -> Result:
    settings = QUICK if options.quick else FULL
    rows = measure(settings, options.seed)
    return Result(asdict(settings), figures_of(rows), rows)


if __name__ == "__main__":
    depth.main()
