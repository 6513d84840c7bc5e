"""The schemes that `bench.quality` compares, all on one pretrained model and with the same texts.

dedicated: every parameter of the unchanged model learns. hplm: what `hplm create --teacher dedicated` publishes, taught
by a dedicated model of the same seed. untaught: what `hplm create` publishes. shared: only a head on the model's last
states. adapter: adapters in its upper half. plot: the converted root, its upper half learns as a whole.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from backends.adapters.adapter_set import AdapterSet
from backends.adapters.bank import read_artifact
from backends.home import Home
from backends.lower.model import LowerModel
from backends.registry.registry import Registry
from backends.root.geometry import RootGeometry
from backends.root.store import RootFolder
from backends.root.tokenizer import Text
from backends.storage import json_checksum
from bench.tasks.cut import CutTask, cut_task
from bench.tasks.data import Caps
from bench.tasks.outcome import Outcome
from builder.construct.hplm.dedicated import FINE_TUNING, token_set
from builder.construct.hplm.dedicated_teacher import DedicatedTeacher
from builder.construct.hplm.exact_lower import exact_lower
from builder.construct.hplm.hplms import create_hplm
from builder.construct.hplm.padded_pooling import POOL_FUNCTIONS
from builder.construct.hplm.state_rows import EncodedRow, stored_rows
from builder.construct.hplm.states import encoded_set
from builder.construct.hplm.trainable import predict
from builder.construct.hplm.trainer import Trainer, Weights
from builder.construct.hplm.tunable import EncodedSet, TunableHplm, Tuned, new_head, pooled_width, pooling_for, scaled
from builder.construct.hplm.tune import TuneSettings, Upper, tune
from builder.construct.hplm.tune import predict as predict_hplm
from builder.construct.root.conversion import RootParts, convert
from builder.construct.root.source import locate_recorded
from builder.construct.root.teacher import Teacher
from builder.construct.tasks.dataset import TaskData
from builder.construct.tasks.examples import Example, task_text
from builder.construct.tasks.metrics import Floats
from builder.construct.tasks.objective import Objective
from builder.construct.tasks.task_objectives import objective_of
from builder.construct.training.device import CPU, mixed_precision
from builder.construct.training.rows import padded_rows
from builder.progress import Report, Step
from builder.requests.domains import GENERAL_DOMAIN
from builder.requests.hplms import CreateHplm

_TEXTS_PER_BATCH = 256


@dataclass(frozen=True)
class Workspace:
    """Where everything that runs share lies."""

    data: Path
    home: Path
    root: str
    cache: Path
    caps: Caps


@dataclass(frozen=True)
class Trial:
    """One scheme on one task with one seed."""

    task: str
    scheme: str
    settings: TuneSettings

    @property
    def name(self) -> str:
        return f"{self.task} {self.scheme} seed {self.settings.seed}"

    def described(self) -> dict[str, Any]:
        return {"task": self.task, "scheme": self.scheme, "seed": self.settings.seed}


class RootAndModel:
    """A root beside the unchanged model that it was made from."""

    def __init__(self, workspace: Workspace) -> None:
        self._home = Home(workspace.home)
        self.root = RootFolder(self._home.root(workspace.root))
        self.folder = locate_recorded(self.root.manifest, self._home.downloads)
        self.geometry = self.root.geometry
        self.tokenizer = self.root.tokenizer()

    @cached_property
    def model(self) -> RootParts:
        geometry = self.geometry
        return convert(self.folder, geometry.num_lower_layers, geometry.max_tokens, geometry.n)

    @cached_property
    def half(self) -> LowerModel:
        """The converted lower half, with nothing shortened."""
        return exact_lower(self._home, Registry.open(self._home).domain(self.root.manifest.name, GENERAL_DOMAIN))

    @cached_property
    def teacher(self) -> Teacher:
        return Teacher(self.folder, self.model)


class States(Protocol):
    """Hidden rows of some texts, `[L, H]` each."""

    def __call__(self, both: RootAndModel, texts: Sequence[Text], with_words: bool) -> Iterable[EncodedRow]: ...


def _of_model(layer: int) -> States:
    def states(both: RootAndModel, texts: Sequence[Text], with_words: bool) -> Iterable[EncodedRow]:
        tokens = both.tokenizer.encode(texts, [with_words] * len(texts))
        with mixed_precision(CPU):
            hidden = both.teacher.states(padded_rows(tokens, max_tokens=both.geometry.max_tokens))[layer]
        rows = np.split(hidden.to(torch.float16).numpy(), tokens.row_offsets[1:-1])
        return zip(rows, tokens.words, tokens.middles, strict=True)

    return states


def _of_root(both: RootAndModel, texts: Sequence[Text], with_words: bool) -> Iterable[EncodedRow]:
    encoded = both.half.encode(texts, [with_words] * len(texts))
    return zip(encoded.rows, encoded.words, encoded.middles, strict=True)


@dataclass(frozen=True)
class Run:
    """A trial that is under way."""

    trial: Trial
    task: CutTask
    data: TaskData
    objective: Objective[Any]
    report: Report

    @property
    def settings(self) -> TuneSettings:
        return self.trial.settings


class Schemes:
    """What one process needs to run trials; states are read from the cache, or made for all that come later."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._both = RootAndModel(workspace)

    def run(self, trial: Trial, report: Report) -> Outcome:
        workspace = self._workspace
        task = cut_task(workspace.data, trial.task, workspace.caps, workspace.cache / "tasks")
        data = task.read()
        started_s = time.monotonic()
        outcome = _SCHEMES[trial.scheme](self, Run(trial, task, data, objective_of(data), report))
        return replace(outcome, seconds=round(time.monotonic() - started_s, 1))

    def dedicated(self, run: Run) -> Outcome:
        made = self._teacher(run.settings).model(run.data, run.settings, run.report)
        test = token_set(made.tokenizer, made.objective, run.data.test)
        outputs = predict(made.model, made.objective, test, torch.device("cpu"))
        return _outcome(run.objective, made.best.metrics, made.objective.terms(outputs, test.targets), made.best.epoch)

    def shared(self, run: Run) -> Outcome:
        torch.manual_seed(run.settings.seed)
        return self._fitted(run, "final", _HeadOnly(self._both.geometry, run.objective, run.settings))

    def adapter(self, run: Run) -> Outcome:
        upper = Upper(self._both.model.upper, self._both.geometry)
        train, dev, test = self._sets(run, "model")
        tuned = tune(upper, run.objective, train, dev, run.settings, run.report)
        terms = run.objective.terms(predict_hplm(upper, run.objective, tuned, test), test.targets)
        return _outcome(run.objective, tuned.metrics, terms, tuned.epoch)

    def untaught(self, run: Run) -> Outcome:
        return self._created(run)

    def hplm(self, run: Run) -> Outcome:
        return self._created(run, self._teacher(replace(FINE_TUNING, seed=run.settings.seed)))

    def _created(self, run: Run, teacher: DedicatedTeacher | None = None) -> Outcome:
        """Measure what `hplm create` makes live; states are those that a server with `--missing compute` has."""
        home, root = Home(self._workspace.home), self._both.root
        registry = Registry.open(home)
        hplm = f"bench/{run.trial.task}-{run.trial.scheme}-{run.settings.seed}"
        if registry.has_hplm(hplm):  # of an earlier run, or of one that was killed before it kept the outcome
            registry.delete_hplm(hplm)
        files = {"train": run.task.files.train, "dev": run.task.files.dev, "task": run.task.kind}
        where = {"id": hplm, "root": root.manifest.name, "domain": GENERAL_DOMAIN}
        request = CreateHplm.model_validate({**where, **files, "tune": asdict(run.settings)})
        entry = create_hplm(home, registry, request, run.report, teacher)
        artifact = read_artifact(home.path / entry.folder, root.fingerprint)
        tuned = Tuned(artifact.adapters, artifact.head, artifact.pooling, {}, entry.metrics["best_epoch"])
        test = encoded_set(home, entry.domain, run.objective, run.data.test, "test", run.report)
        outputs = predict_hplm(Upper(root.upper(), self._both.geometry), run.objective, tuned, test)
        metric = run.objective.main_metric
        dev = {metric: entry.metrics[f"dev_{metric}"]}
        return _outcome(run.objective, dev, run.objective.terms(outputs, test.targets), tuned.epoch)

    def plot(self, run: Run) -> Outcome:
        torch.manual_seed(run.settings.seed)
        upper = Upper(self._both.root.upper(), self._both.geometry)
        return self._fitted(run, "root", _TunableUpper(upper, run.objective, run.settings))

    def _teacher(self, settings: TuneSettings) -> DedicatedTeacher:
        """The same model for `dedicated` as for `hplm`, which finds it made where the other came first."""
        return DedicatedTeacher(Home(self._workspace.home), self._workspace.root, None, settings)

    def _fitted(self, run: Run, states: str, model: _HeadOnly | _TunableUpper) -> Outcome:
        objective = run.objective
        train, dev, test = self._sets(run, states)

        def outputs(dataset: EncodedSet) -> list[Tensor]:
            return predict(model, objective, dataset, torch.device("cpu"))

        def measure(_: Weights) -> dict[str, float]:
            return objective.metrics(outputs(dev), dev.targets)

        best = Trainer(model, objective, train, measure, run.settings, f"tune {run.trial.scheme}").run(run.report)
        model.load_state_dict(best.weights, strict=False)
        return _outcome(objective, best.metrics, objective.terms(outputs(test), test.targets), best.epoch)

    def _sets(self, run: Run, states: str) -> list[EncodedSet]:
        splits = (("train", run.data.train), ("dev", run.data.dev), ("test", run.data.test))
        return [self._encoded(run, split, examples, states) for split, examples in splits]

    def _encoded(self, run: Run, split: str, examples: Sequence[Example], states: str) -> EncodedSet:
        version = {"root": self._both.root.fingerprint, "texts": [task_text(example) for example in examples]}
        name = f"{run.trial.task}-{split}-{states}-{json_checksum(version)[:12]}"
        rows = stored_rows(
            self._workspace.cache / "states" / name, lambda: self._encode(run, split, examples, _STATES[states])
        )
        return EncodedSet(rows, run.objective.targets(examples, rows.words), rows.lengths, rows.middles)

    @torch.no_grad()
    def _encode(self, run: Run, split: str, examples: Sequence[Example], states: States) -> Iterator[EncodedRow]:
        for start in range(0, len(examples), _TEXTS_PER_BATCH):
            texts = [task_text(example) for example in examples[start : start + _TEXTS_PER_BATCH]]
            yield from states(self._both, texts, run.objective.about_words)
            run.report(Step(f"states of the {split} texts", start + len(texts), len(examples)))


class _HeadOnly(nn.Module):
    """A linear head over states that nothing changes."""

    def __init__(self, geometry: RootGeometry, objective: Objective[Any], settings: TuneSettings) -> None:
        super().__init__()
        pooling = pooling_for(objective, settings)
        self.head = nn.Linear(pooled_width(pooling, geometry.hidden_size), objective.num_outputs)
        self._pool = POOL_FUNCTIONS[pooling]
        self._offset, self._factor = objective.scale

    def forward(self, rows: Tensor, halves: Tensor) -> Tensor:
        return self.answer(self.read(rows, halves))

    def read(self, rows: Tensor, halves: Tensor) -> Tensor:
        return self._pool(rows, halves).float()

    def answer(self, states: Tensor) -> Tensor:
        raw: Tensor = self.head(states)
        return raw * self._factor + self._offset

    def trained(self) -> dict[str, nn.Parameter]:
        return dict(self.named_parameters())


class _TunableUpper(TunableHplm):
    """Without adapters, but with layers that learn themselves."""

    def __init__(self, upper: Upper, objective: Objective[Any], settings: TuneSettings) -> None:
        pooling = pooling_for(objective, settings)
        width = pooled_width(pooling, upper.geometry.hidden_size)
        head = scaled(new_head(objective.num_outputs, width), *objective.scale)
        super().__init__(upper.layers, upper.geometry, AdapterSet(), head, pooling, objective.scale, settings.dropout)
        self._upper.requires_grad_(True)


def _outcome(objective: Objective[Any], dev: Mapping[str, float], terms: Floats, epoch: int) -> Outcome:
    metric, test = objective.main_metric, float(objective.score(terms.sum(axis=0)))
    return Outcome(metric, round(100 * dev[metric], 3), round(100 * test, 3), epoch, terms)


_STATES: Mapping[str, States] = MappingProxyType({"model": _of_model(0), "final": _of_model(-1), "root": _of_root})
_SCHEMES = MappingProxyType(
    {
        "dedicated": Schemes.dedicated,
        "shared": Schemes.shared,
        "adapter": Schemes.adapter,
        "plot": Schemes.plot,
        "untaught": Schemes.untaught,
        "hplm": Schemes.hplm,
    }
)
SCHEMES = tuple(_SCHEMES)
