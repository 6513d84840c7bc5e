"""How many points do hPLMs lose in int8, tuned against the layers as they are or as int8 rounds them?

For each task and seed two hPLMs are tuned on the same texts with the settings of `hplm create`: against the plain upper
layers, and against ones that round as int8 does. Both answer the test texts in fp32 and in int8, with the engine that
serves them. What the tables lack is computed.
"""

from __future__ import annotations

import itertools
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

from torch import Tensor

from backends.adapters.bank import HplmArtifact
from backends.engine.stack import ReadyHplm, StackSettings, UpperStack
from backends.errors import InvalidArgumentError
from backends.home import Home
from backends.registry.registry import Registry
from backends.root.quantisation import read_smoothing
from backends.root.quantised import int8_instructions
from backends.root.store import RootFolder
from bench.kit.entry import Result, at_most, bench
from bench.kit.rounded_upper import rounded_upper
from bench.tasks.cut import cut_task
from bench.tasks.data import Caps
from builder.construct.hplm.states import encoded_set
from builder.construct.hplm.tune import EncodedSet, Tuned, Upper, tune
from builder.construct.tasks.metrics import Floats
from builder.construct.tasks.objective import Objective
from builder.construct.tasks.paired import paired_difference
from builder.construct.tasks.task_objectives import objective_of
from builder.profiling.quantising import quantise_root
from builder.progress import Report, progress_bars
from builder.requests.domains import GENERAL_DOMAIN
from builder.settings.hplm import TuneSettings

_TASKS = ("chemprot", "sciie-relations", "mrpc", "sst2", "ncbi-disease")
_PLAIN, _ROUNDED = "plain", "int8"
_DTYPES = ("fp32", "int8")
_ROWS_AT_ONCE = 16


@dataclass(frozen=True)
class Settings:
    train_texts: int = 2_000
    dev_texts: int = 500
    test_texts: int | None = None
    seeds: tuple[int, ...] = (17,)
    epochs: int = TuneSettings.epochs


FULL = Settings()
QUICK = Settings(train_texts=96, dev_texts=64, test_texts=128, epochs=1)


class Engines:
    """Texts through the stacks that serve them, in fp32 and in int8."""

    def __init__(self, root: RootFolder) -> None:
        self._root = root
        self._stacks = {dtype: UpperStack(root, StackSettings(dtype=dtype, num_slots=2)) for dtype in _DTYPES}
        self._keys = itertools.count(1)

    def terms(self, tuned: Tuned, objective: Objective[Any], texts: EncodedSet) -> dict[str, Floats]:
        """`Objective.terms` of the answers in each dtype."""
        artifact, key = _artifact(self._root, tuned, objective), next(self._keys)
        found = {}
        for dtype, stack in self._stacks.items():
            logits = list(_logits(stack, stack.ready(key, lambda: artifact), texts))
            pairs = zip(logits, texts.targets, strict=True)
            outputs = [row for one, target in pairs for row in objective.rows(one[None], [target])]
            found[dtype] = objective.terms(outputs, texts.targets)
        return found


def _artifact(root: RootFolder, tuned: Tuned, objective: Objective[Any]) -> HplmArtifact:
    labels = tuple(str(number) for number in range(objective.num_outputs))
    task = "ner" if objective.about_words else "classification"
    return HplmArtifact(
        hplm="bench/int8",
        root_fingerprint=root.fingerprint,
        task=task,
        labels=labels,
        pooling=tuned.pooling,
        adapters=tuned.adapters,
        head=tuned.head,
        pair=objective.about_pairs,
    )


def _logits(stack: UpperStack, hplm: ReadyHplm, texts: EncodedSet) -> Iterator[Tensor]:
    for start in range(0, len(texts.rows), _ROWS_AT_ONCE):
        numbers = range(start, min(start + _ROWS_AT_ONCE, len(texts.rows)))
        hplms = [hplm] * len(numbers)
        packed = stack.pack([texts.rows[number] for number in numbers], hplms)
        yield from stack.run(packed, hplms, [texts.middles[number] for number in numbers])
    stack.release(hplm)


class Bench:
    """One root; each task is tuned twice for each seed."""

    def __init__(self, home: Home, name: str, data: Path, settings: Settings) -> None:
        self._home, self._data, self._settings = home, data, settings
        registry = Registry.open(home)
        quantise_root(home, registry, name, [])
        self._domain, self._root = registry.domain(name, GENERAL_DOMAIN), RootFolder(home.root(name))
        self._engines = Engines(self._root)
        geometry, smoothing = (
            self._root.geometry,
            read_smoothing(self._root.path, self._root.fingerprint, self._root.geometry),
        )
        rounded = rounded_upper(self._root.upper(), geometry.activation, smoothing or {})
        self._uppers = {_PLAIN: Upper(self._root.upper(), geometry), _ROUNDED: Upper(rounded, geometry)}

    def of_task(self, name: str, report: Report) -> Iterator[dict[str, Any]]:
        settings = self._settings
        caps = Caps(settings.train_texts, settings.dev_texts, settings.test_texts)
        data = cut_task(self._data, name, caps, self._home.path / "cache" / "cut").read()
        objective = objective_of(data)
        train, dev, test = (
            encoded_set(self._home, self._domain, objective, examples, what, report)
            for what, examples in (("train", data.train), ("dev", data.dev), ("test", data.test))
        )
        for seed in settings.seeds:
            of_seed = replace(TuneSettings.defaults(is_taught=False), seed=seed, epochs=settings.epochs)
            tuned = {way: tune(upper, objective, train, dev, of_seed, report) for way, upper in self._uppers.items()}
            terms = {way: self._engines.terms(one, objective, test) for way, one in tuned.items()}
            yield _row(name, seed, objective, terms)


def _row(task: str, seed: int, objective: Objective[Any], terms: Mapping[str, Mapping[str, Floats]]) -> dict[str, Any]:
    def points(way: str, dtype: str) -> float:
        return 100 * float(objective.score(terms[way][dtype].sum(axis=0)))

    plain = terms[_PLAIN]
    drops = {way: paired_difference(plain["fp32"], of_way["int8"], objective.score) for way, of_way in terms.items()}
    described = {
        f"drop, tuned {way}": f"{100 * drop.value:.2f} ({100 * drop.low:.2f} to {100 * drop.high:.2f})"
        for way, drop in drops.items()
    }
    return {
        "task": task,
        "seed": seed,
        "metric": objective.main_metric,
        "plain in fp32": points(_PLAIN, "fp32"),
        "plain in int8": points(_PLAIN, "int8"),
        "int8 in int8": points(_ROUNDED, "int8"),
        "int8 in fp32": points(_ROUNDED, "fp32"),
        **described,
    }


def figures_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, column in (("quantised_drop_points", "int8 in int8"), ("untuned_drop_points", "plain in int8")):
        drops = [row["plain in fp32"] - row[column] for row in rows]
        found |= {name: mean(drops), f"{name}_worst": max(drops)}
    return found


def add_options(arguments: ArgumentParser) -> None:
    arguments.add_argument("--home", type=Path, default=Path("demo_home"), help="a home with a root")
    arguments.add_argument("--root", default="minilm", help="the root")
    arguments.add_argument("--data", type=Path, required=True, help="a folder with tasks/")
    arguments.add_argument("--tasks", nargs="+", default=list(_TASKS), help="folders of it; no regressions")
    arguments.add_argument("--seeds", nargs="+", type=int, help="of the tunings")


@bench(
    "int8_quality",
    bars={"quantised_drop_points": at_most(0.2), "quantised_drop_points_worst": at_most(0.6)},
    add_options=add_options,
)
def int8_quality(options: Namespace) -> Result:
    if int8_instructions() is None:
        raise InvalidArgumentError("this processor multiplies no int8")
    settings = QUICK if options.quick else FULL
    settings = replace(settings, seeds=tuple(options.seeds or settings.seeds))
    rows: list[dict[str, Any]] = []
    measured = Bench(Home(options.home.absolute()), options.root, options.data, settings)
    for task in options.tasks:
        with progress_bars(task) as report:
            rows += measured.of_task(task, report)
        print(rows[-1], file=sys.stderr)
    return Result(
        {**asdict(settings), "root": options.root, "instructions": int8_instructions()}, figures_of(rows), rows
    )


if __name__ == "__main__":
    int8_quality.main()
