"""The tasks of `bench.served`: tables and hPLMs in a home that is kept, and accuracies without a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from backends.adapters.bank import read_artifact
from backends.home import Home
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from backends.wire import Float16Array
from bench.tasks.theta_cases import Case, CaseData
from builder.construct.domain.domains import create_domain
from builder.construct.hplm.exact_lower import exact_lower
from builder.construct.hplm.hplms import create_hplm
from builder.construct.hplm.tunable import EncodedSet, Tuned
from builder.construct.hplm.tune import Upper, evaluate
from builder.construct.root.roots import add_root
from builder.construct.tasks.dataset import TaskData, TaskFiles, read_task
from builder.construct.tasks.task_objectives import objective_of
from builder.progress import Report
from builder.requests.domains import CreateDomain
from builder.requests.hplms import CreateHplm
from builder.settings.domain import PlotSettings
from demo.root import DISTILLED, ROOT, root_request

_TEXTS_PER_BATCH = 256


@dataclass(frozen=True)
class ServedTask:
    """A task and its hPLM."""

    entry: HplmEntry
    data: TaskData


def built_tasks(
    home: Home, data: CaseData, cases: Sequence[Case], epochs: int, plot: PlotSettings, report: Report
) -> list[ServedTask]:
    """Make what the home does not have yet: the demo's root, a domain and an hPLM of each case.

    The lower layers are the root's: pretraining them further would take longer than all the rest.
    """
    registry = Registry.open(home, create=True)
    if not registry.roots():
        add_root(home, registry, root_request(data.general, DISTILLED, plot), report)
    return [_built(home, registry, case, epochs, report) for case in cases]


def _built(home: Home, registry: Registry, case: Case, epochs: int, report: Report) -> ServedTask:
    hplm = f"{case.domain}/{case.task}"
    if not registry.has_domain(ROOT, case.domain):
        create_domain(
            home, registry, CreateDomain(name=case.domain, root=ROOT, corpus=[case.corpus], mlm_steps=0), report
        )
    if not registry.has_hplm(hplm):
        request = CreateHplm(
            id=hplm,
            root=ROOT,
            domain=case.domain,
            train=case.train,
            dev=case.dev,
            test=case.test,
            tune={"epochs": epochs},
        )
        create_hplm(home, registry, request, report)
    return ServedTask(registry.hplm(hplm), read_task(TaskFiles(case.train, case.dev, case.test)))


def exact_accuracy(home: Home, task: ServedTask) -> float:
    """The accuracy on the test texts, in points, with every whole fragment and all layers in fp32."""
    root = RootFolder(home.root(task.entry.domain.root))
    lower_model = exact_lower(home, task.entry.domain, "fp32")
    texts = [example.text for example in task.data.test]
    rows: list[Float16Array] = []
    for start in range(0, len(texts), _TEXTS_PER_BATCH):
        rows += lower_model.encode(texts[start : start + _TEXTS_PER_BATCH]).rows
    artifact = read_artifact(home.path / task.entry.folder, root.fingerprint)
    objective = objective_of(task.data)
    nothing = [None] * len(rows)
    lengths = np.array([len(row) for row in rows])
    encoded = EncodedSet(
        [torch.from_numpy(row) for row in rows], objective.targets(task.data.test, nothing), lengths, nothing
    )
    tuned = Tuned(artifact.adapters, artifact.head, artifact.pooling, {}, 0)
    return 100 * evaluate(Upper(root.upper(), root.geometry), objective, tuned, encoded)["accuracy"]
