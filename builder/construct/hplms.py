"""`hplm create` and `hplm update`: labelled texts become an hPLM in the bank, live once its tuning is done."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from backends.adapters.bank import HplmArtifact, write_artifact
from backends.errors import ConflictError, InvalidArgumentError, NotFoundError
from backends.home import Home
from backends.lower.half import LowerHalf
from backends.names import check_hplm_id
from backends.registry.entries import DomainEntry, HplmEntry
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from backends.storage import publishing
from builder.construct.examples import Example, label_set, majority_share, read_examples
from builder.construct.tune import EncodedSet, Tuned, TuneSettings, evaluate, load_tuned, tune
from builder.locks import exclusive
from builder.progress import Report, Step

TASKS = ("classification",)
_TEXTS_PER_BATCH = 256


@dataclass(frozen=True)
class HplmRequest:
    """What `hplm create` was asked for; `test` is only measured, never trained on."""

    id: str
    root: str
    domain: str
    train: Path
    dev: Path
    test: Path | None = None
    task: str = "classification"
    tune: TuneSettings = field(default_factory=TuneSettings)

    def __post_init__(self) -> None:
        check_hplm_id(self.id)
        if self.task not in TASKS:
            raise InvalidArgumentError(f"task {self.task!r} is not one of {', '.join(TASKS)}")


def create_hplm(home: Home, registry: Registry, request: HplmRequest, report: Report) -> HplmEntry:
    """Tune and publish the first version of an hPLM."""
    with _building(home, request.id):
        if registry.has_hplm(request.id):
            raise ConflictError(f"hPLM {request.id!r} exists already; 'hplm update' makes a new version of it")
        return _build(home, registry, request, report)


def update_hplm(home: Home, registry: Registry, request: HplmRequest, report: Report) -> HplmEntry:
    """Tune and publish the next version; until that is done the old one serves."""
    with _building(home, request.id):
        if not registry.has_hplm(request.id):
            raise NotFoundError(f"hPLM {request.id!r} does not exist; 'hplm create' makes it")
        return _build(home, registry, request, report)


def _building(home: Home, hplm: str) -> AbstractContextManager[None]:
    """IDs belong to the whole home, so one lock holds for all roots."""
    return exclusive(home.path / "bank" / hplm.replace("/", "--"), f"hPLM {hplm!r}")


def _build(home: Home, registry: Registry, request: HplmRequest, report: Report) -> HplmEntry:
    train, dev = read_examples(request.train), read_examples(request.dev)
    test = read_examples(request.test) if request.test else None
    labels = label_set(train, dev, request.train, request.dev)
    domain = registry.domain(request.root, request.domain)
    root = RootFolder(home.root(request.root))
    target = home.bank(request.root, request.id, registry.next_hplm_version(request.id))
    tuned, metrics = _tune(home, root, domain, labels, train, dev, test, request.tune, report)
    with publishing(target) as folder:
        write_artifact(folder, _artifact(request, root, labels, tuned))
    metrics["size_bytes"] = sum(path.stat().st_size for path in target.iterdir())
    return registry.publish_hplm(request.id, domain, request.task, labels, home.relative(target), metrics)


def _tune(
    home: Home,
    root: RootFolder,
    domain: DomainEntry,
    labels: tuple[str, ...],
    train: list[Example],
    dev: list[Example],
    test: list[Example] | None,
    settings: TuneSettings,
    report: Report,
) -> tuple[Tuned, dict[str, Any]]:
    half = LowerHalf.open(home, domain)
    upper = root.upper()
    train_set, dev_set = (_encode(half, examples, labels, report) for examples in (train, dev))
    tuned = tune(upper, root.geometry, len(labels), train_set, dev_set, settings, report)
    metrics: dict[str, Any] = {**tuned.metrics, "train_texts": len(train), "majority_share": majority_share(dev)}
    if test is not None:
        model = load_tuned(upper, root.geometry, tuned, settings)
        metrics["test_accuracy"] = round(evaluate(model, _encode(half, test, labels, report)), 4)
        metrics["test_majority_share"] = round(majority_share(test), 4)
    return tuned, metrics


def _encode(half: LowerHalf, examples: Sequence[Example], labels: tuple[str, ...], report: Report) -> EncodedSet:
    """Every text through the lower half, once. A label of the test file that nobody trained counts as wrong."""
    rows: list[torch.Tensor] = []
    for start in range(0, len(examples), _TEXTS_PER_BATCH):
        texts = [example.text for example in examples[start : start + _TEXTS_PER_BATCH]]
        rows += [torch.from_numpy(row) for row in half.encode(texts).rows]
        report(Step("look up the texts", len(rows), len(examples)))
    number = {label: index for index, label in enumerate(labels)}
    targets = [number.get(example.label, len(labels)) for example in examples]
    return EncodedSet(rows, torch.tensor(targets))


def _artifact(request: HplmRequest, root: RootFolder, labels: tuple[str, ...], tuned: Tuned) -> HplmArtifact:
    return HplmArtifact(
        hplm=request.id,
        root_fingerprint=root.fingerprint,
        task=request.task,
        labels=labels,
        pooling=request.tune.pooling,
        adapter=tuned.adapter,
        head=tuned.head,
    )
