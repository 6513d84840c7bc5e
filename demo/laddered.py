"""The demo's hPLM with a ladder: texts that leave early and texts that go on, alone and in a burst with deadlines."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from backends.home import Home
from backends.registry.registry import Registry
from backends.stack_key import FULL
from backends.wire import AUTO, EARLY
from builder.levels.material import LabelledFiles
from builder.levels.profile import Profile
from builder.levels.selecting import Selecting, Selection, select_ladder
from builder.levels.served_stack import served_stack
from builder.levels.target import Target
from builder.lifecycle.rollback import rollback_hplm
from builder.progress import progress_bars
from demo.showing import shortened, timed
from demo.tasks import DemoTask, Example, write_task
from hplm_client import ClientError, HplmClient
from loadtest.in_process import play
from loadtest.requests import Requests
from loadtest.schedule import Row, Schedule
from loadtest.sender import Target as Server

MAX_DROP = 2.0
"""The test texts of a task are too few to certify one point."""
BURST_TEXTS = 600
_DEADLINE_PART = 0.8
"""Of the time that all layers take for the burst."""
_SHORTEST_DEADLINE_MS = 20
_WAIT_S = 30.0


@dataclass(frozen=True)
class Laddered:
    """One hPLM of the demo, and where a server answers for it."""

    home: Home
    registry: Registry
    task: DemoTask
    grpc_url: str
    console: Console

    def show(self) -> None:
        """Select a ladder, show what it does, and go back to the version without it."""
        before = self.registry.hplm(self.task.id).version
        found = self._select(write_task(self.task, self.home.path / "texts"))
        if found.ladder is None:
            self._say(f"{found.reason}")
            return
        try:
            self._wait_for(found.entry.version)
            self.two_texts()
            self.loads()
        finally:
            rollback_hplm(self.home, self.registry, self.task.id)
        self._say(
            f"{self.task.id} is at version {before} again, without the ladder; "
            f"'hplm rollback {self.task.id} --to {found.entry.version}' brings it back"
        )

    def two_texts(self) -> None:
        """Ask the text that the early head is surest of and the one that it doubts most, each also of all layers."""
        columns = ("text", "early head", "level", "answer", "confidence", "ms", "all layers", "ms")
        table = Table(*columns, title="A text that leaves early, and one that goes on")
        with HplmClient(f"grpc://{self.grpc_url}") as client:
            rows = [(self.task.id, example.text) for example in self.task.dev]
            early = [each.confidence or 0.0 for each in client.infer_many(rows, level=EARLY)]
            for index in (int(np.argmax(early)), int(np.argmin(early))):
                text = self.task.dev[index].text
                answer, took_ms = timed(client, self.task.id, text)
                of_all, of_all_ms = timed(client, self.task.id, text, level=FULL)
                told = (f"{early[index]:.3f} sure", answer.level, answer.label, f"{answer.confidence:.3f}")
                table.add_row(shortened(text), *told, f"{took_ms:.1f}", of_all.label, f"{of_all_ms:.1f}")
        self.console.print(table)

    def loads(self) -> None:
        """Ask texts one by one, then a burst that has less time than all layers take for it."""
        quiet, burst = self.task.dev, list(islice(cycle(self.task.dev), BURST_TEXTS))
        alone = {level: self._played(quiet, level, in_flight=1) for level in (FULL, AUTO)}
        full_s = self._played(burst, FULL).done_s.max()
        deadline_ms = max(_SHORTEST_DEADLINE_MS, round(1000 * _DEADLINE_PART * full_s))
        table = Table(
            *("texts", "asked for", "sure early", "all layers", "doubtful", "not answered", "right", "mean ms"),
            title="The same hPLM by its ladder, and by all layers alone",
        )
        for level, requests in alone.items():
            table.add_row(f"{len(quiet)}, one by one", level, *_told(requests))
        for level in (FULL, AUTO):
            requests = self._played(burst, level, deadline_ms)
            table.add_row(f"{len(burst)} at once, {deadline_ms} ms", level, *_told(requests))
        self.console.print(table)

    def _select(self, files: dict[str, Path]) -> Selection:
        """Let the test texts certify: neither has the hPLM learned from them, nor have they chosen its best epoch."""
        command = f"hplm select {self.task.id} --train … --held-out … --max-drop {MAX_DROP:g}"
        self._say(f"\nA ladder for {self.task.id}: '{command}'")
        texts = LabelledFiles(files["train"], files["test"])
        selecting = Selecting(self.task.id, texts, Target.of(max_drop=MAX_DROP))
        with progress_bars(f"ladder {self.task.id}", self.console) as report:
            found = select_ladder(self.home, self.registry, selecting, served_stack(self.home), report)
        self.console.print(_candidates(found.profile))
        return found

    def _wait_for(self, version: int) -> None:
        ends = time.monotonic() + _WAIT_S
        with HplmClient(f"grpc://{self.grpc_url}") as client:
            while client.infer(self.task.id, self.task.dev[0].text).version != version:
                if time.monotonic() > ends:
                    raise ClientError(f"the server does not serve version {version}", self.task.id)
                time.sleep(0.02)

    def _played(
        self, examples: Sequence[Example], level: str, deadline_ms: int | None = None, in_flight: int | None = None
    ) -> Requests:
        schedule = Schedule.of(Row(0.0, self.task.id, example.text, deadline_ms) for example in examples)
        label_of = {example.text: example.label for example in examples}
        labelled = replace(schedule, levels=(level,), labels=tuple(label_of[text] for text in schedule.texts))
        return play(Server(self.grpc_url), labelled, in_flight).requests

    def _say(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False)


def _candidates(profile: Profile) -> Table:
    table = Table("chosen", "layers", "answered early", "points lost", "at most", "KiB", title=f"{profile.target}")
    for row, each in zip(profile.rows, profile.candidates, strict=True):
        lost = "–" if each.lost is None else f"{100 * each.lost:.2f}"
        bound, kib = f"{100 * each.bound:.2f}", f"{each.memory_bytes / 1024:.1f}"
        layers = f"{each.after} of {profile.layers}" + ("" if each.alpha is None else ", then fewer words")
        table.add_row("yes" if row["chosen"] else "", layers, f"{each.answered_early:.0%}", lost, bound, kib)
    return table


def _told(requests: Requests) -> list[str]:
    """Return the shares of all requests by how they were answered; of the answers the share that is right."""
    is_early = np.equal(requests.levels, EARLY)
    shares = (
        is_early & ~requests.doubtful,
        requests.answered & ~is_early,
        requests.doubtful,
        ~requests.answered,
    )
    right = float(np.nanmean(requests.right)) if requests.judged.any() else float("nan")
    mean_ms = 1000 * float(requests.latency_s[requests.answered].mean()) if requests.answered.any() else float("nan")
    return [*(f"{share.mean():.0%}" for share in shares), f"{right:.1%}", f"{mean_ms:.1f}"]
