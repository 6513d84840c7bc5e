"""How many points do hPLMs lose in int8, tuned against the layers as they are or as int8 rounds them?

For each task and seed an hPLM is tuned with the settings of `hplm create` against the plain upper layers, as users do,
and another one on the same texts against layers that round as int8 does. Each answers the test texts in fp32 and in
int8, with the engine that serves them. What the tables lack is computed, in the same dtype. With `--trials` each row is
kept in a file as soon as it is measured, and the same command goes on with those that are not. What was tuned against
the plain layers stays in the home, where other benches find it.
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

import torch
from torch import Tensor

from backends.adapters.bank import HplmArtifact
from backends.engine.stack import ReadyHplm, StackSettings, UpperStack
from backends.errors import InvalidArgumentError
from backends.home import Home
from backends.lower.settings import LowerDtype
from backends.registry.registry import Registry
from backends.root.int8_file import read_smoothing
from backends.root.int8_instructions import int8_instructions
from backends.root.store import RootFolder
from backends.root.upper import UpperLayers
from backends.storage import json_checksum, read_json, write_json
from bench.kit.entry import Result, at_least, at_most, bench
from bench.kit.rounded_upper import rounded_upper
from bench.tasks.cut import cut_task
from bench.tasks.data import Caps
from bench.tasks.shared_tuning import SHARED_TRAIN_TEXTS, shared_tuning
from builder.construct.hplm.states import encoded_set
from builder.construct.hplm.tune import EncodedSet, Tuned, Upper, tune
from builder.construct.tasks.metrics import Floats
from builder.construct.tasks.ner import Ner
from builder.construct.tasks.objective import Objective
from builder.construct.tasks.paired import paired_difference
from builder.construct.tasks.task_objectives import objective_of
from builder.construct.training.device import CPU, training_device
from builder.profiling.preparing_int8 import quantise_root
from builder.progress import Report, progress_bars
from builder.requests.domains import GENERAL_DOMAIN
from builder.settings.device import AUTO
from builder.settings.hplm import TuneSettings

_TASKS = ("chemprot", "sciie-relations", "mrpc", "sst2", "ncbi-disease")
_PLAIN, _ROUNDED = "plain", "rounded"
_WAYS = (_PLAIN, _ROUNDED)
"""Ways of tuning: against the plain layers, or against ones that round as int8 does."""
_DTYPES: tuple[LowerDtype, ...] = ("fp32", "int8")
_ROWS_AT_ONCE = 16
_EDITION = 3
"""Version of the kept rows. Raise it when the measurement changes."""


@dataclass(frozen=True)
class Settings:
    train_texts: int = SHARED_TRAIN_TEXTS
    dev_texts: int | None = None
    test_texts: int | None = None
    seeds: tuple[int, ...] = (TuneSettings.seed,)
    epochs: int = TuneSettings.epochs
    ways: tuple[str, ...] = _WAYS


FULL = Settings()
QUICK = Settings(train_texts=96, dev_texts=64, test_texts=128, epochs=1)


@dataclass(frozen=True)
class Answers:
    """Answers to the test texts, in one dtype.

    Args:
        terms: `Objective.terms` of the answers.
        labels: The likeliest label of each answer; a row of words has several.
        outside: The label of words that are of no entity.
    """

    terms: Floats
    labels: Tensor
    outside: int | None = None

    @classmethod
    def of(cls, objective: Objective[Any], outputs: Sequence[Tensor], targets: Sequence[Any]) -> Answers:
        labels = torch.cat([row.argmax(dim=-1) for row in outputs])
        outside = objective.outside if isinstance(objective, Ner) else None
        return cls(objective.terms(outputs, targets), labels, outside)

    def equal_labels(self, others: Answers) -> float:
        """The share of answers whose likeliest label is that of the other ones; of words, those of an entity in either.

        Nearly all other words keep their label whatever happens.
        """
        is_equal = self.labels == others.labels
        if self.outside is not None:
            is_equal = is_equal[(self.labels != self.outside) | (others.labels != self.outside)]
        return float(is_equal.double().mean())


class Engines:
    """Texts through the stacks that serve them, in fp32 and in int8."""

    def __init__(self, root: RootFolder) -> None:
        self._root = root
        self._stacks = {dtype: UpperStack(root, StackSettings(dtype=dtype, num_slots=2)) for dtype in _DTYPES}
        self._keys = itertools.count(1)

    def answers(
        self, tuned: Tuned, objective: Objective[Any], encoded: Mapping[LowerDtype, EncodedSet]
    ) -> dict[str, Answers]:
        """Compute the answers in each dtype, to texts that the lower layers have encoded in it."""
        artifact, key = _artifact(self._root, tuned, objective), next(self._keys)
        found: dict[str, Answers] = {}
        for dtype, stack in self._stacks.items():
            texts = encoded[dtype]
            logits = list(_logits(stack, stack.ready(key, lambda: artifact), texts))
            pairs = zip(logits, texts.targets, strict=True)
            outputs = [row for one, target in pairs for row in objective.rows(one[None], [target])]
            found[dtype] = Answers.of(objective, outputs, texts.targets)
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
    """One root; each task is tuned in each way for each seed."""

    def __init__(
        self,
        home: Home,
        name: str,
        data: Path,
        settings: Settings,
        trials: Path | None = None,
        device: torch.device = CPU,
    ) -> None:
        self._home, self._data, self._settings, self._trials = home, data, settings, trials
        registry = Registry.open(home)
        quantise_root(home, registry, name, [])
        self._domain, self._root = registry.domain(name, GENERAL_DOMAIN), RootFolder(home.root(name))
        self._engines = Engines(self._root)
        self._uppers = {way: Upper(self._layers(way).to(device), self._root.geometry) for way in settings.ways}

    def _layers(self, way: str) -> UpperLayers:
        layers, geometry = self._root.upper(), self._root.geometry
        if way == _PLAIN:
            return layers
        smoothing = read_smoothing(self._root.path, self._root.fingerprint, geometry)
        return rounded_upper(layers, geometry.activation, smoothing or {})

    def of_task(self, name: str, report: Report) -> Iterator[dict[str, Any]]:
        """Yield a row for each seed; those that are kept are not measured again."""
        kept = {seed: self._kept(name, seed) for seed in self._settings.seeds}
        yield from (row for row in kept.values() if row is not None)
        missing = [seed for seed, row in kept.items() if row is None]
        for row in self._measured(name, missing, report) if missing else ():
            if self._trials is not None:
                self._trials.mkdir(parents=True, exist_ok=True)
                write_json(self._path(self._trials, name, row["seed"]), {"row": list(row.items())})
            yield row

    def _kept(self, task: str, seed: int) -> dict[str, Any] | None:
        path = None if self._trials is None else self._path(self._trials, task, seed)
        return dict(read_json(path)["row"]) if path is not None and path.exists() else None

    def _path(self, trials: Path, task: str, seed: int) -> Path:
        """Return a name that stands for settings, root and instructions; data and smoothing are not in it."""
        of_all = {**asdict(replace(self._settings, seeds=())), "instructions": int8_instructions(), "edition": _EDITION}
        return trials / f"{task}-{seed}-{json_checksum({**of_all, 'root': self._root.fingerprint})[:12]}.json"

    def _measured(self, name: str, seeds: Sequence[int], report: Report) -> Iterator[dict[str, Any]]:
        settings = self._settings
        caps = Caps(settings.train_texts, settings.dev_texts, settings.test_texts)
        cut = cut_task(self._data, name, caps, self._home.path / "cache" / "cut")
        data = cut.read()
        objective = objective_of(data)
        if objective.num_outputs == 1:
            raise InvalidArgumentError(f"{name} is a regression, which has no labels to compare")
        train, dev = (
            encoded_set(self._home, self._domain, objective, examples, what, report)
            for what, examples in (("train", data.train), ("dev", data.dev))
        )
        test = {
            dtype: encoded_set(self._home, self._domain, objective, data.test, f"test ({dtype})", report, dtype)
            for dtype in _DTYPES
        }
        for seed in seeds:
            of_seed = replace(TuneSettings.defaults(is_taught=False), seed=seed, epochs=settings.epochs)
            plain = self._uppers[_PLAIN]
            kept = {_PLAIN: shared_tuning(self._home, self._domain, cut.files, of_seed, plain.device)}
            tuned = {
                way: tune(upper, objective, train, dev, of_seed, report, checkpoint=kept.get(way))
                for way, upper in self._uppers.items()
            }
            answers = {way: self._engines.answers(one, objective, test) for way, one in tuned.items()}
            yield _row(name, seed, objective, answers)


def _row(
    task: str, seed: int, objective: Objective[Any], answers: Mapping[str, Mapping[str, Answers]]
) -> dict[str, Any]:
    row: dict[str, Any] = {"task": task, "seed": seed, "metric": objective.main_metric}
    for way, of_way in answers.items():
        exact, quantised = of_way["fp32"], of_way["int8"]
        points = {dtype: 100 * float(objective.score(one.terms.sum(axis=0))) for dtype, one in of_way.items()}
        drop = paired_difference(exact.terms, quantised.terms, objective.score)
        row |= {f"{way}: {dtype}": of_dtype for dtype, of_dtype in points.items()}
        row[f"{way}: lost (95 %)"] = f"{100 * drop.value:.2f} ({100 * drop.low:.2f} to {100 * drop.high:.2f})"
        row[f"{way}: equal labels"] = exact.equal_labels(quantised)
    return row


def figures_of(rows: Sequence[Mapping[str, Any]], ways: Sequence[str]) -> dict[str, float]:
    """Return what users lose, and what they would lose if the layers rounded while hPLMs are tuned.

    Both are compared with what users have in fp32.
    """
    plain = [row[f"{_PLAIN}: fp32"] for row in rows]
    found: dict[str, float] = {"equal_labels_least": min(row[f"{_PLAIN}: equal labels"] for row in rows)}
    for way in ways:
        drops = [exact - row[f"{way}: int8"] for exact, row in zip(plain, rows, strict=True)]
        name = _FIGURES[way]
        found |= {name: mean(drops), f"{name}_worst": max(drops)}
    return found


_FIGURES = {_PLAIN: "quantised_drop_points", _ROUNDED: "rounded_drop_points"}


def add_options(arguments: ArgumentParser) -> None:
    arguments.add_argument(
        "--home", type=Path, default=Path("demo_home"), help="a home with a root, which is prepared for int8 anew"
    )
    arguments.add_argument("--root", default="minilm", help="the root")
    arguments.add_argument("--data", type=Path, required=True, help="a folder with tasks/")
    arguments.add_argument("--tasks", nargs="+", default=list(_TASKS), help="folders of it; no regressions")
    arguments.add_argument("--seeds", nargs="+", type=int, help="of the tunings")
    arguments.add_argument("--trials", type=Path, help="folder that keeps what was measured")
    arguments.add_argument("--device", default=AUTO, help="where hPLMs are tuned: auto, cpu or cuda [auto]")
    arguments.add_argument("--without-rounded", action="store_true", help="tune against the plain layers only")


@bench(
    "int8_quality",
    bars={
        "quantised_drop_points": at_most(0.2),
        "quantised_drop_points_worst": at_most(0.6),
        "equal_labels_least": at_least(0.985),
    },
    add_options=add_options,
)
def int8_quality(options: Namespace) -> Result:
    if int8_instructions() is None:
        raise InvalidArgumentError("this processor multiplies no int8")
    settings = QUICK if options.quick else FULL
    settings = replace(
        settings,
        seeds=tuple(options.seeds or settings.seeds),
        ways=(_PLAIN,) if options.without_rounded else _WAYS,
    )
    rows: list[dict[str, Any]] = []
    device = training_device(options.device)
    measured = Bench(Home(options.home.absolute()), options.root, options.data, settings, options.trials, device)
    for task in options.tasks:
        with progress_bars(task) as report:
            rows += measured.of_task(task, report)
        print(rows[-1], file=sys.stderr)
    return Result(
        {**asdict(settings), "root": options.root, "instructions": int8_instructions()},
        figures_of(rows, settings.ways),
        rows,
    )


if __name__ == "__main__":
    int8_quality.main()
