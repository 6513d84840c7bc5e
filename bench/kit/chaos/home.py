"""The home that is served: marked hPLMs on a synthetic root, and the operator who publishes more of them meanwhile."""

from __future__ import annotations

import random
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from backends.home import Home
from backends.registry.registry import Registry
from backends.registry.snapshot import REFRESH_INTERVAL_S
from bench.kit.chaos.load import Ended, Requested
from bench.kit.marks import mark_all, publish_marked
from bench.kit.synthetic_home import MIDDLE, BaseHome, Family, Words
from bench.kit.timeline import Asked, Timeline

_ROOT = "base"
_LENGTHS = (3, 41)
_ALLOWANCE_S = REFRESH_INTERVAL_S + 1.0
"""How long after its successor's publication a version may answer; machines under faults are slow."""


@dataclass(frozen=True)
class ChaosHome:
    """A home whose every hPLM is marked; `temporary` is empty, for what a server puts into such a folder."""

    home: Home
    hplms: Sequence[str]
    texts: Sequence[str]
    timeline: Timeline
    folder: Path

    @property
    def temporary(self) -> Path:
        return self.folder / "tmp"

    @property
    def orders(self) -> Path:
        """Where loops look for defects."""
        return self.folder / "orders"


@contextmanager
def chaos_home(seed: int, tenants: int, texts: int) -> Iterator[ChaosHome]:
    with tempfile.TemporaryDirectory(prefix="hplm-bench-") as name:
        folder = Path(name)
        words, rng = Words(MIDDLE.vocab_size), np.random.default_rng(seed)
        asked = [words.text(rng, int(length)) for length in rng.integers(*_LENGTHS, size=texts)]
        base = BaseHome(folder / "home", seed)
        base.add_root(_ROOT, MIDDLE, asked)
        hplms = base.add_hplms(Family(_ROOT, "tenant", tenants))
        made = ChaosHome(base.home, hplms, asked, Timeline(), folder)
        made.temporary.mkdir()
        registry = Registry.open(base.home)
        for entry in mark_all(base.home, registry):
            with made.timeline.change(entry.id) as published:
                published.append(entry.version)
        registry.close()
        yield made


class Publisher:
    """Publishes the next version of a random hPLM every few seconds, as long as its block lasts."""

    def __init__(self, made: ChaosHome, every_s: float, seed: int) -> None:
        self._made = made
        self._every_s = every_s
        self._rng = random.Random(f"publisher {seed}")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._publish, name="publisher")
        self.count = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()

    def _publish(self) -> None:
        home = self._made.home
        registry = Registry.open(home)
        while not self._stopping.wait(self._every_s):
            hplm = self._rng.choice(self._made.hplms)
            entry = registry.hplm(hplm)
            with self._made.timeline.change(hplm) as published:
                published.append(publish_marked(home, registry, hplm, entry, entry.domain).version)
            self.count += 1
        registry.close()


def wrong_weights(timeline: Timeline, requests: Iterable[Requested]) -> int:
    """How many answers another version computed than the one that they name, or one that was not live."""
    answered = (one for one in requests if one.ended is Ended.ANSWERED)
    return sum(
        not one.fits or not timeline.was_live(Asked(one.hplm, one.sent_s, one.done_s, one.version), _ALLOWANCE_S)
        for one in answered
    )
