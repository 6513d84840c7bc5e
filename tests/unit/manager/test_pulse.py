"""The pulse of a worker beats on whatever goes wrong with one beat."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from backends.home import Home
from backends.registry.registry import Registry
from builder.manager import pulse
from builder.manager.jobs import Job, JobSpec, Progress
from builder.manager.pulse import JobCancelledError, Pulse
from builder.manager.store import JobStore
from builder.progress import Step


class FaultyStore(JobStore):
    """Fails the first beat with an error that nobody expects."""

    beats = 0
    third_beat = threading.Event()

    def pulse(self, job_id: int, attempt: int, progress: Progress | None) -> Job | None:
        self.beats += 1
        if self.beats == 1:
            raise RuntimeError("a defect")
        result = super().pulse(job_id, attempt, progress)
        if self.beats == 3:  # by then the second has been taken note of
            self.third_beat.set()
        return result


def test_a_pulse_outlives_an_unexpected_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path / "home")
    Registry.open(home, create=True).close()
    store = FaultyStore.open(home)
    monkeypatch.setattr(pulse, "PULSE_S", 0.01)
    job, _ = store.submit(JobSpec(kind="gc", target="gc", request={"kind": "gc"}))
    claimed = store.claim(job.id)
    assert claimed is not None
    store.request_cancel(job.id)
    with Pulse(store, claimed) as beating:
        assert store.third_beat.wait(30)
        with pytest.raises(JobCancelledError):
            beating.report(Step("work", 1, 2))
    store.close()
