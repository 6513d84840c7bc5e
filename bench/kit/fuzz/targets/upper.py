"""Tensors of any content to `hplm_upper`, beside a good request that is answered as if it were alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from backends.engine.service import HiddenRows, UpperService
from backends.engine.stack import StackSettings
from backends.errors import HplmError
from backends.home import Home
from backends.registry.registry import Registry
from backends.registry.snapshot import RegistrySnapshot
from backends.scheduling.settings import AdmissionSettings, Capacity
from backends.wire import LEVELS, Ticket, encode_tickets, encode_words, fold_rows
from bench.kit.fuzz.arrays import bad_array
from bench.kit.fuzz.draw import Draw
from bench.kit.fuzz.rule import HarmedError
from bench.kit.fuzz.target import Target
from bench.kit.fuzz.targets.words import words_of

_TOKENS, _WORDS_TOKENS = 9, 7
_NEAR = 2e-3
_LIFE_US = 2**62


class Upper(Target):
    """HIDDEN, TICKET and WORDS of other shapes, types, lengths and values, with good tickets among them."""

    name = "upper"
    cases = 20_000

    def __init__(self, home: Home, scratch: Path) -> None:
        super().__init__(home, scratch)
        self._snapshot = RegistrySnapshot(Registry.open(home))
        self._keys = [entry.key for entry in self._snapshot.live()]
        self._hidden = self._snapshot_hidden()
        settings = StackSettings(dtype="fp32", num_slots=6)
        capacity = Capacity(max_rows=16, max_adapters=5)
        admission = AdmissionSettings(predicts=False)
        self._service = UpperService(home, self._snapshot, settings, capacity, admission, threads=1)
        self._good = np.random.default_rng(5).normal(size=(_TOKENS, self._hidden)).astype(np.float16)
        self._alone = self._answered(self._run([])[0])

    def attempt(self, draw: Draw) -> None:
        bad = [self._bad_request(draw) for _ in range(draw.choice((1, 1, 2)))]
        good, *answers = self._run(bad)
        if not _is_near(self._answered(good), self._alone):
            raise HarmedError("a good request is answered otherwise beside a bad one")
        for answer in answers:
            if isinstance(answer, HplmError):
                raise answer

    def close(self) -> None:
        self._service.close()
        self._snapshot.close()

    def _snapshot_hidden(self) -> int:
        from backends.root.store import RootFolder

        return RootFolder(self.home.root(self._snapshot.live()[0].domain.root)).geometry.hidden_size

    def _run(self, bad: list[HiddenRows]) -> list[Any]:
        good = HiddenRows(self._good[None], encode_tickets([Ticket(self._keys[0], _TOKENS, False, None)]), [b""])
        return self._service.run([good, *bad])

    def _answered(self, answer: Any) -> dict[str, Any]:
        if isinstance(answer, HplmError):
            raise HarmedError(f"a good request is rejected: {answer}")
        found: dict[str, Any] = json.loads(answer[0])
        return found

    def _bad_request(self, draw: Draw) -> HiddenRows:
        lengths = [draw.choice((_WORDS_TOKENS, draw.randint(1, 32))) for _ in range(draw.choice((1, 1, 2, 3)))]
        rows = [np.random.default_rng(7).normal(size=(length, self._hidden)).astype(np.float16) for length in lengths]
        hidden: Any = fold_rows(rows)
        tickets: Any = encode_tickets([self._ticket(draw, length) for length in lengths])
        words = [_words(draw) for _ in lengths]
        if draw.happens(0.6):
            hidden = bad_array(draw, hidden)
        if draw.happens(0.25):
            tickets = bad_array(draw, tickets)
        if draw.happens(0.1):
            words = draw.choice((words[:-1], [*words, b""], []))
        return HiddenRows(hidden, tickets, words)

    def _ticket(self, draw: Draw, length: int) -> Ticket:
        """A ticket that `hplm_lower` has sealed, so what it says is nearly true."""
        key = draw.choice(self._keys) if draw.happens(0.95) else draw.randint(0, 2**62)
        middle = draw.randint(1, length) if draw.happens(0.2) else None
        deadline_us = draw.choice((None, None, draw.randint(0, _LIFE_US)))
        level = draw.choice(LEVELS) if draw.happens(0.2) else "auto"
        return Ticket(key, length, draw.happens(0.1), deadline_us, middle, draw.happens(0.9), level=level)


def _words(draw: Draw) -> bytes:
    if draw.happens(0.5):
        return b""
    good = encode_words(words_of("the cat saw a hammer"))
    return good if draw.happens(0.5) else draw.damaged(good)


def _is_near(found: Any, expected: Any) -> bool:
    """Rows of other requests in a batch change the last digits."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(_is_near(found[key], expected[key]) for key in expected)
    return abs(found - expected) < _NEAR if isinstance(expected, float) else bool(found == expected)
