"""Runs the cases of all targets in child processes, and goes on with another one where a case has ended its process."""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable, Mapping
from multiprocessing.connection import wait
from pathlib import Path

from backends.home import Home
from bench.kit.fuzz.child import Child, EndedError
from bench.kit.fuzz.rule import Break, Case, Fate
from bench.kit.fuzz.target import Target
from bench.kit.fuzz.worker import Slice, Tally

_SLICE = 2_000
_LOOK_EVERY_S = 0.5


class Runner:
    """Runs cases on some processes.

    Args:
        targets: Readers by name.
        home: Home that they all read.
        processes: Number of processes.
        on_done: Told a target, and how many more of its cases are done.
    """

    def __init__(
        self,
        targets: Mapping[str, type[Target]],
        home: Home,
        processes: int,
        on_done: Callable[[str, int], None] = lambda target, cases: None,
    ) -> None:
        self._targets, self._home, self._processes, self._on_done = targets, home, processes, on_done
        self._todo: deque[Slice] = deque()
        self._children: list[Child] = []

    def run(self, counts: Mapping[str, int], seed: int) -> dict[str, Tally]:
        """Run so many cases of each target."""
        self._todo.extend(
            Slice(name, seed, first, min(_SLICE, count - first))
            for name, count in counts.items()
            for first in range(0, count, _SLICE)
        )
        tallies = {name: Tally() for name in counts}
        with tempfile.TemporaryDirectory(prefix="hplm-fuzz-errors-") as folder:
            try:
                while self._todo or self._children:
                    self._start_missing(Path(folder))
                    readable = wait([child.pipe for child in self._children], _LOOK_EVERY_S)
                    for child in [child for child in self._children if child.pipe in readable]:
                        target = child.slice.target
                        tally = self._tally(child)
                        tallies[target].add(tally)
                        self._on_done(target, tally.cases)
                    for child in self._children:
                        child.end_if_stuck()
            finally:
                while self._children:
                    self._children.pop().close()
        return tallies

    def _start_missing(self, folder: Path) -> None:
        while self._todo and len(self._children) < self._processes:
            with tempfile.NamedTemporaryFile(dir=folder, delete=False) as errors:
                child = Child(self._targets, self._home, Path(errors.name))
            child.begin(self._todo.popleft())
            self._children.append(child)

    def _tally(self, child: Child) -> Tally:
        """Return what a child's slice came to, and give it the next one."""
        try:
            tally = child.tally()
        except EndedError as ended:
            self._leave(child)
            return self._ended(child.slice, ended)
        if self._todo:
            child.begin(self._todo.popleft())
        else:
            self._leave(child)
        return tally

    def _leave(self, child: Child) -> None:
        self._children.remove(child)
        child.close()

    def _ended(self, cases: Slice, ended: EndedError) -> Tally:
        """The tally of the case that has ended its process; what came before it in its slice runs again."""
        number = cases.first if ended.number is None else ended.number
        before = Slice(cases.target, cases.seed, cases.first, number - cases.first)
        after = Slice(cases.target, cases.seed, number + 1, cases.first + cases.count - number - 1)
        if ended.number is not None:
            self._todo.extendleft(rest for rest in (after, before) if rest.count)
        tally = Tally()
        tally.fates[Fate.BROKEN] += 1
        tally.breaks.append(Break(Case(cases.target, cases.seed, number), str(ended)))
        return tally
