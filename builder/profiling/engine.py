"""A root's engine without a server: its stack, with the adapters and heads of its own hPLMs, runs batches on demand."""

from __future__ import annotations

import time
from dataclasses import replace
from statistics import median

import torch

from backends.adapters.bank import HplmArtifact, read_artifact
from backends.adapters.ladder import EarlyStep, Ladder
from backends.engine.audit import Audit
from backends.engine.defaults import LAYOUT
from backends.engine.encoder_stack import EncoderStack
from backends.engine.exits import NEVER
from backends.engine.failed_audits import FailedAudits
from backends.engine.job import Answer, Job
from backends.engine.stack import StackSettings, UpperStack
from backends.engine.stack_protocol import Outcome
from backends.errors import HplmError, NotFoundError
from backends.home import Home
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from backends.scheduling.cost_model import BatchShape
from backends.scheduling.estimator import Sample
from backends.stack_key import FULL, StackKey
from backends.wire import EARLY
from builder.profiling.shapes import PlannedBatch

_MAX_KINDS = 64
"""Different hPLMs whose weights are read; slots beyond are filled with theirs again, under other keys."""


class ProfiledEngine:
    """Runs what the serve loop runs on the threads and the device that it is given.

    Every hPLM has an early head in place of its own ladder; rows leave there where that is planned, and the layout then
    computes less.

    Args:
        home: Where the root and its hPLMs lie.
        registry: Of the live hPLMs.
        root: Which one.
        settings: Where and how the stack computes.
        seed: Of the rows' numbers.
    """

    def __init__(self, home: Home, registry: Registry, root: str, settings: StackSettings, seed: int) -> None:
        folder = RootFolder(home.root(root))
        self.stack = UpperStack(folder, settings)
        self.max_length = folder.geometry.max_tokens
        self.fingerprint = folder.fingerprint
        live = [entry for entry in registry.hplms() if entry.domain.root == root][:_MAX_KINDS]
        if not live:
            raise NotFoundError(f"root {root!r} has no hPLM yet, and a batch cannot run without any; make one first")
        self._may_leave = self.stack.num_layers > 1 and settings.layout == LAYOUT
        artifacts = [read_artifact(home.path / entry.folder, folder.fingerprint) for entry in live]
        self._kinds = list(zip(live, [self._laddered(artifact) for artifact in artifacts], strict=True))
        audit = Audit(FailedAudits(home, settings.dtype), share=0.0)
        self._serving = EncoderStack(StackKey(root), self.stack, self._artifact, audit)
        self._generator = torch.Generator().manual_seed(seed)

    def run(self, planned: PlannedBatch) -> Sample:
        """Staged and run once; only the running is timed, as in the loop, which stages beside it."""
        rows = enumerate(zip(planned.lengths, planned.leaves, strict=True))
        jobs = [self._job(length, index % planned.adapters, leaves) for index, (length, leaves) in rows]
        for job in jobs:
            job.lease = self._serving.lease(job)
        batch = self._serving.pack(jobs)
        started_s = time.perf_counter()
        self._serving.run(batch, _drop)
        elapsed_s = time.perf_counter() - started_s
        for job in jobs:
            job.release_lease()
        passed = [1.0 if job.passed is None else job.passed for job in jobs]
        return Sample(BatchShape.of(jobs, passed), 1e6 * elapsed_s)

    def layers_us(self, planned: PlannedBatch, repeats: int) -> tuple[int, ...]:
        """Return the median time of a batch in each layer by itself."""
        jobs = [self._job(length, index % planned.adapters, False) for index, length in enumerate(planned.lengths)]
        for job in jobs:
            job.lease = self._serving.lease(job)
        rows = self._serving.pack(jobs).rows
        batches = [] if rows is None else rows.micro_batches
        layers = range(self.stack.num_layers)
        taken_s: list[list[float]] = [[] for _ in layers]
        for _ in range(repeats + 1):
            states = [batch.hidden for batch in batches]
            for layer in layers:
                started_s = time.perf_counter()
                columns = zip(batches, states, strict=True)
                states = [self.stack.pass_layers(batch, hidden, range(layer, layer + 1)) for batch, hidden in columns]
                if self.stack.device.type == "cuda":
                    torch.cuda.synchronize(self.stack.device)
                taken_s[layer].append(time.perf_counter() - started_s)
        for job in jobs:
            job.release_lease()
        return tuple(round(1e6 * median(of_layer[1:])) for of_layer in taken_s)

    def _laddered(self, artifact: HplmArtifact) -> HplmArtifact:
        after = max(1, self.stack.num_layers // 3)
        return replace(artifact, ladder=Ladder(EarlyStep(after, artifact.head, 1.0, NEVER), full_temperature=1.0))

    def _job(self, length: int, number: int, leaves: bool) -> Job:
        entry, _ = self._kinds[number % len(self._kinds)]
        hidden = torch.randn(length, self.stack.hidden_size, generator=self._generator).half().numpy()
        level = EARLY if leaves and self._may_leave else FULL
        return Job(replace(entry, key=number + 1), hidden, False, None, _discard, level=level)

    def _artifact(self, entry: HplmEntry) -> HplmArtifact:
        return self._kinds[(entry.key - 1) % len(self._kinds)][1]


def _discard(_: Answer | HplmError) -> None:
    """A profile measures times, not answers."""


def _drop(_: Job, __: Outcome) -> None:
    """Only the time counts."""
