"""One stage of a root's upper layers, where each stage is a process: it passes rows on, and the last one answers them.

Rows pass all layers: an early answer would have to come through the stages behind it, as every answer does.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from backends.adapters.ladder import Ladder
from backends.clock import now_us
from backends.engine.audit import Audit
from backends.engine.cut_stack import CutUpperStack
from backends.engine.encoder_stack import EncoderBatch, EncoderStack, HplmLease, Load
from backends.engine.heads import HeadRow
from backends.engine.job import Job
from backends.engine.next_stage import NextStage
from backends.engine.passed import Passed
from backends.engine.pipeline import Pipeline
from backends.engine.slotted_layers import on_cpu
from backends.engine.stack import ReadyHplm, StackSettings
from backends.engine.stack_protocol import Emit
from backends.errors import HplmError
from backends.heartbeat import Beat
from backends.root.store import RootFolder
from backends.stack_key import StackKey
from backends.stage_wire import Mates


class PartUpperStack(CutUpperStack):
    """The layers of one stage; all but the last give states in place of logits.

    Args:
        root: Root of the layers.
        settings: Precision and limits.
        pipeline: This stage alone.
        spans: The layers of each stage.
        stage: Which one this is.
    """

    def __init__(
        self, root: RootFolder, settings: StackSettings, pipeline: Pipeline, spans: Sequence[range], stage: int
    ) -> None:
        self.span = spans[stage]
        self._is_last = stage == len(spans) - 1
        super().__init__(root, settings, pipeline, [self.span])

    @property
    def beat(self) -> Beat:
        """What tells that the run loop is alive."""
        return self._pipeline.beat

    def _results(self, states: Tensor, heads: Sequence[HeadRow]) -> list[Tensor]:
        if self._is_last:
            return super()._results(states, heads)
        return on_cpu([states[row.start : row.end].float() for row in heads])

    def _own_ladder(self, ladder: Ladder | None) -> Ladder | None:
        return super()._own_ladder(ladder) if self._is_last else None


class PartStack(EncoderStack):
    """Emits `Passed` for each job, where there is a next stage; else `Done`."""

    def __init__(
        self, key: StackKey, upper: PartUpperStack, load: Load, audit: Audit, next_stage: NextStage | None
    ) -> None:
        super().__init__(key, upper, load, audit)
        self._span = upper.span
        self._next_stage = next_stage
        self._beat = upper.beat

    def lease(self, job: Job) -> HplmLease:
        behind = 0 if job.mates is None else job.mates.layers
        if behind != self._span.start:
            raise HplmError(
                f"the stages of root {self.key.root!r} are cut in different places: its profile, or what they held, "
                "changed while they loaded it; restart the server"
            )
        return super().lease(job)

    def _exit_of(self, job: Job, hplm: ReadyHplm) -> None:
        return None

    def run(self, batch: EncoderBatch, emit: Emit) -> None:
        if self._next_stage is None:
            super().run(batch, emit)
            return
        states = self._logits(batch, [None] * len(batch.jobs), lambda _: None)
        now = now_us()
        wanted = sum(job.is_wanted() and not job.is_late(now) for job in batch.jobs)
        number = self._next_stage.wait_for_room(wanted, self._beat)
        mates = Mates(number, wanted, self._span.stop)
        for job, rows in zip(batch.jobs, states, strict=True):
            emit(job, Passed(rows.numpy(), mates))
