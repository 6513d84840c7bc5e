"""The engines of stages that are a process each, in this process: what one passes on is what the next one is asked."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from backends.engine.open_request import Answered
from backends.engine.passed import Passed
from backends.engine.service import HiddenRows, UpperService
from backends.engine.stack import StackSettings
from backends.errors import HplmError
from backends.home import Home
from backends.registry.registry import Registry
from backends.registry.snapshot import RegistrySnapshot
from backends.scheduling.settings import AdmissionSettings, Capacity
from backends.server_folder import FOLDER_VARIABLE
from backends.stage_wire import encode_mates
from backends.wire import Ticket, encode_tickets, fold_rows
from waiting import wait_until

HIDDEN = 64
Responses = queue.Queue[Answered]


class Chain:
    """Stages, one behind the other."""

    def __init__(self, stages: Sequence[UpperService]) -> None:
        self.stages = stages

    @property
    def rows_in_last_stage(self) -> int:
        """Rows that the last stage tells the first one of; held ones are not among them."""
        mates = self.stages[-1]._mates
        assert mates is not None
        return mates._rows.count

    def ask(self, key: int, lengths: Sequence[int] = (5,), level: str = "auto") -> Responses:
        """Ask for rows of an hPLM in one request, which are the same ones each time."""
        rows = [np.random.default_rng(key % 1000).normal(size=(each, HIDDEN)).astype(np.float16) for each in lengths]
        return self.ask_rows(rows, [Ticket(key, each, False, None, level=level) for each in lengths])

    def ask_rows(self, rows: Sequence[np.ndarray], tickets: Sequence[Ticket]) -> Responses:
        responses: Responses = queue.Queue()
        self.submit(0, HiddenRows(fold_rows(rows), encode_tickets(tickets), [b""] * len(rows)), responses)
        return responses

    def submit(self, stage: int, rows: HiddenRows, responses: Responses) -> None:
        def respond(answers: Answered) -> None:
            if isinstance(answers, HplmError) or stage == len(self.stages) - 1:
                responses.put(answers)
                return
            passed = [answer for answer in answers if isinstance(answer, Passed)]
            assert len(passed) == len(answers)
            states, mates = (
                fold_rows([row.states for row in passed]),
                encode_mates([row.mates for row in passed], rows.tickets),
            )
            self.submit(stage + 1, rows._replace(hidden=states, mates=mates), responses)

        self.stages[stage].submit_all([(rows, respond)])


@contextmanager
def running_chain(
    home: Home, folder: Path, monkeypatch: pytest.MonkeyPatch, capacity: Capacity | None = None, num_slots: int = 8
) -> Iterator[Chain]:
    """Run two stages, which tell each other what they do in files of a folder."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(folder))
    limits = capacity or Capacity(max_adapters=num_slots - 1)
    with ExitStack() as ending:
        stages = []
        for stage in (0, 1):
            snapshot = RegistrySnapshot(Registry.open(home))
            settings = StackSettings(dtype="fp32", num_slots=num_slots, stages=2, stage=stage)
            service = UpperService(home, snapshot, settings, limits, AdmissionSettings(predicts=not stage), threads=2)
            ending.callback(snapshot.close)
            ending.callback(_close, service)
            stages.append(service)
        chain = Chain(stages)
        yield chain
        wait_until(lambda: chain.rows_in_last_stage == 0)


def _close(service: UpperService) -> None:
    closing = threading.Thread(target=service.close, daemon=True)
    closing.start()
    closing.join(30)
    assert not closing.is_alive()
