"""An operator at work beside a running server: publishes, rolls back, deletes, and collects garbage."""

from __future__ import annotations

import random
import threading
from collections import Counter
from types import TracebackType
from typing import Self

from backends.errors import HplmError
from backends.home import Home
from backends.registry.registry import Registry
from bench.kit.marks import Mark, publish_marked
from builder.lifecycle.garbage import GarbageSettings, collect_garbage
from builder.lifecycle.rollback import rollback_hplm
from hplm_client import Answer, Classification

_KINDS = ("update", "create", "rollback", "delete")
_WEIGHTS = (6, 2, 1, 2)
_JOIN_S = 60.0
PASSING = tuple(f"passing/task{number}" for number in range(16))
"""hPLMs that are created and deleted; all others stay."""


def is_marked_right(answer: Answer) -> bool:
    """Whether an answer was computed by the version that it carries; first versions of hPLMs that stay have no mark."""
    if not isinstance(answer, Classification):
        return False
    is_unmarked = answer.version == 1 and answer.hplm not in PASSING
    return is_unmarked or Mark.of(answer.hplm, answer.version).fits(answer.scores)


class Publisher:
    """One change each `every_s`, garbage collected after `garbage_every` changes, on a thread until the block ends.

    Every hPLM is a marked copy of one that was there at the beginning.
    """

    def __init__(self, home: Home, every_s: float, garbage_every: int, grace_s: float, seed: int) -> None:
        self._home, self._every_s, self._garbage_every = home, every_s, garbage_every
        self._garbage = GarbageSettings(grace_s=grace_s)
        self._rng = random.Random(seed)
        self._stopping = threading.Event()
        self._error: HplmError | None = None
        self._thread = threading.Thread(target=self._work, name="publisher", daemon=True)
        self._done = Counter[str]()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join(_JOIN_S)

    def done(self) -> Counter[str]:
        """How often each kind of change was made.

        Raises:
            HplmError: A change failed.
        """
        if self._error is not None:
            raise self._error
        return self._done.copy()

    def _work(self) -> None:
        registry = Registry.open(self._home)
        try:
            while not self._stopping.wait(self._every_s):
                self._change(registry)
                if self._done.total() % self._garbage_every == 0:
                    collect_garbage(self._home, registry, self._garbage)
                    self._done["collection"] += 1
        except HplmError as error:
            self._error = error
        finally:
            registry.close()

    def _change(self, registry: Registry) -> None:
        entries = {entry.id: entry for entry in registry.hplms()}
        passing = [hplm for hplm in PASSING if hplm in entries]
        absent = [hplm for hplm in PASSING if hplm not in entries]
        (kind,) = self._rng.choices(_KINDS, _WEIGHTS)
        chosen = self._rng.choice(list(entries.values()))
        if (kind == "create" and not absent) or (kind == "delete" and not passing):
            kind = "update"
        if kind == "rollback" and all(of.entry.version >= chosen.version for of in registry.hplm_versions(chosen.id)):
            kind = "update"
        match kind:
            case "create":
                publish_marked(self._home, registry, self._rng.choice(absent), chosen, chosen.domain)
            case "delete":
                registry.delete_hplm(self._rng.choice(passing))
            case "rollback":
                rollback_hplm(self._home, registry, chosen.id)
            case _:
                publish_marked(self._home, registry, chosen.id, chosen, chosen.domain)
        self._done[kind] += 1
