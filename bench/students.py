"""How much faster is a student, a stack of few or narrow layers, than all upper layers, and than a whole model?

Bare and with random weights: what students would be worth on this processor, before any is trained. BERT-base; each
row is another hPLM's with the adapters that `hplm create` makes, and in lean students with LoRA of rank 4. Students run
as in servers; a narrow one begins with a product from the root's width to its own. The teacher is a model of twelve
layers without adapters, which one tenant has for itself. All take turns in one run.

- `ratio_reached_full_width` is the time of six layers over that of two, as a share of the arithmetic ratio of 3;
  `ratio_reached_narrow` likewise for two layers of half the width, where it is 12 less the product in front.
- `side_by_side_over_serial` is of two students and one row: in turn with all threads, over each on a thread of its own.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from torch import Tensor

from backends.adapters.recipe import AdapterRecipe
from backends.root.student_shape import StudentShape
from bench.kit.bare import (
    BareEngine,
    WaitingRows,
    bare_engine,
    engine_device,
    fast_dtypes,
    interleaved,
    median_ratio,
    multiply_adds,
)
from bench.kit.bare_students import BareStudent, StudentRows
from bench.kit.entry import Result, at_least, bench
from bench.kit.random_root import BERT_BASE_UPPER, HEAD_ONLY
from builder.settings.hplm import LORA_EVERYWHERE

_FULL, _TEACHER = "6 x 768", "teacher, 12 x 768"
_TWO, _HALF = "2 x 768", "2 x 384"
_ALONE, _BESIDE = "with all threads", "with a thread"
_LEAN = replace(LORA_EVERYWHERE, rank=4)
_BATCHES = ((64, 128), (64, 20), (1, 128), (1, 20))


@dataclass(frozen=True)
class Shape:
    """A student to time."""

    layers: int
    width: int
    recipe: AdapterRecipe = LORA_EVERYWHERE

    @property
    def of_one(self) -> StudentShape:
        return StudentShape(1, self.layers, self.width)


_STACKS = {
    _TEACHER: (replace(BERT_BASE_UPPER, num_upper_layers=12), HEAD_ONLY),
    _FULL: (BERT_BASE_UPPER, LORA_EVERYWHERE),
}
_STUDENTS = {
    _TWO: Shape(2, 768),
    "1 x 768": Shape(1, 768),
    _HALF: Shape(2, 384),
    "2 x 384, lean": Shape(2, 384, _LEAN),
    "2 x 256, lean": Shape(2, 256, _LEAN),
}


@dataclass(frozen=True)
class Settings:
    repeats: int
    batches: Sequence[tuple[int, int]] = _BATCHES
    timing: str = "all in turn, the median of the ratios within each turn"


FULL = Settings(repeats=5)
QUICK = Settings(repeats=3, batches=((16, 20), (1, 20)))


@contextmanager
def _engines(rows: int, seed: int) -> Iterator[dict[str, BareEngine]]:
    with ExitStack() as opened:
        yield {
            name: opened.enter_context(bare_engine(geometry, rows, seed, recipe))
            for name, (geometry, recipe) in _STACKS.items()
        }


def _stack_of(engine: BareEngine, name: str, dtype: str, rows: Sequence[Tensor]) -> WaitingRows:
    return engine.waiting(engine.stack(dtype), rows, 1 if name == _TEACHER else len(rows))


def _side_by_side(students: Sequence[StudentRows], pool: ThreadPoolExecutor) -> Callable[[], None]:
    def run() -> None:
        for each in [pool.submit(student.run) for student in students]:
            each.result()

    return run


def _in_turn(students: Sequence[StudentRows]) -> Callable[[], None]:
    def run() -> None:
        for student in students:
            student.run()

    return run


def measure(settings: Settings, seed: int) -> list[dict[str, Any]]:
    """One row for each dtype and batch."""
    found = []
    most_rows = max(rows for rows, _ in settings.batches)
    with _engines(most_rows, seed) as engines, ThreadPoolExecutor(2) as pool:
        root = engines[_FULL].root
        made = {
            name: BareStudent(root, shape.layers, shape.width, shape.recipe, most_rows, seed)
            for name, shape in _STUDENTS.items()
        }
        for dtype in fast_dtypes(engine_device()):
            for rows, length in settings.batches:
                hidden = engines[_FULL].rows([length] * rows)
                stacks = {name: _stack_of(engine, name, dtype, hidden) for name, engine in engines.items()}
                students = {name: each.waiting(dtype, hidden) for name, each in made.items()}
                ways: dict[str, Callable[[], object]] = {name: each.run for name, each in stacks.items()}
                ways |= {name: each.run for name, each in students.items()}
                if rows == 1:
                    for name, threads in ((_ALONE, None), (_BESIDE, 1)):
                        for number in range(2):
                            students[f"{name} {number}"] = made[_TWO].waiting(dtype, hidden, threads)
                    ways["two in turn"] = _in_turn([students[f"{_ALONE} {number}"] for number in range(2)])
                    ways["two side by side"] = _side_by_side([students[f"{_BESIDE} {each}"] for each in range(2)], pool)
                seconds = interleaved(ways, settings.repeats)
                row: dict[str, Any] = {"dtype": dtype, "rows": rows, "tokens": length}
                row |= {f"{name} ms": 1000 * median(times) for name, times in seconds.items()}
                for name in _STUDENTS:
                    row[f"6 x 768 over {name}"] = median_ratio(seconds[_FULL], seconds[name])
                    row[f"teacher over {name}"] = median_ratio(seconds[_TEACHER], seconds[name])
                if rows == 1:
                    row["in turn over side by side"] = median_ratio(seconds["two in turn"], seconds["two side by side"])
                found.append(row)
                for each in students.values():
                    each.close()
    return found


def _arithmetic(name: str, rows: int, length: int) -> float:
    """Multiply-adds of all upper layers over those of a student, adapters aside."""
    lengths, shape, root = [length] * rows, _STUDENTS[name].of_one, BERT_BASE_UPPER
    into = sum(lengths) * root.hidden_size * shape.width if shape.is_narrow(root.hidden_size) else 0
    return multiply_adds(root, lengths, 0) / (multiply_adds(shape.geometry(root), lengths, 0) + into)


def figures_of(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the figures, of the largest batch of the first dtype unless a suffix says otherwise."""
    found: dict[str, float] = {}
    first, (num_rows, length) = rows[0]["dtype"], (rows[0]["rows"], rows[0]["tokens"])
    for row in rows:
        at_once = (row["rows"], row["tokens"]) == (num_rows, length)
        suffix = "" if row["dtype"] == first else f"_{row['dtype']}"
        if at_once:
            for figure, name in (("ratio_reached_full_width", _TWO), ("ratio_reached_narrow", _HALF)):
                found[figure + suffix] = row[f"6 x 768 over {name}"] / _arithmetic(name, num_rows, length)
            found["teacher_over_m1_full_width" + suffix] = row[f"teacher over {_TWO}"]
            found["teacher_over_m1_half_width" + suffix] = row[f"teacher over {_HALF}"]
        elif row["rows"] == 1 and "in turn over side by side" in row:
            found[f"side_by_side_over_serial_{row['tokens']}{suffix}"] = row["in turn over side by side"]
    return found


@bench(
    "students",
    bars={
        "ratio_reached_full_width": at_least(0.8),
        "ratio_reached_narrow": at_least(0.5),
        "teacher_over_m1_full_width": at_least(5),
        "teacher_over_m1_half_width": at_least(12),
    },
)
def students(options: Namespace) -> Result:
    settings = QUICK if options.quick else FULL
    rows = measure(settings, options.seed)
    return Result(asdict(settings), figures_of(rows), rows)


if __name__ == "__main__":
    students.main()
