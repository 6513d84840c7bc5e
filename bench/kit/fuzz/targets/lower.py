"""Requests of any content to `hplm_lower`, beside a good one that is answered as if it were alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from backends.errors import HplmError
from backends.home import Home
from backends.lower.service import HiddenRequest, LowerService, TextRequest
from backends.lower.settings import FillingSettings, Missing
from backends.registry.snapshot import RegistrySnapshot
from backends.wire import Float16Array
from bench.kit.fuzz.copied_home import copied_home
from bench.kit.fuzz.draw import Draw
from bench.kit.fuzz.rule import HarmedError
from bench.kit.fuzz.target import Target
from bench.kit.fuzz.targets.parameters import bad_parameters

_HPLMS = ("acme/topic", "acme/mood", "globex/topic", "initech/mood")
_TEXTS = ("the cat is near the hammer today", "lovely rain over my drill", "x", "the [MASK] [SEP] of it", "a " * 60)
GOOD = TextRequest([b"acme/topic"], [b"my rabbit was very lovely this morning"], "")


class Lower(Target):
    """Names, texts and parameters of any bytes, of any number."""

    name = "lower"
    cases = 40_000

    def __init__(self, home: Home, scratch: Path) -> None:
        super().__init__(home, scratch)
        self._snapshot = RegistrySnapshot.open(copied_home(home, scratch))
        self._service = LowerService(Home(scratch / "home"), self._snapshot, FillingSettings(Missing.FALLBACK))
        self._service.warm_up()
        self._alone = _hidden(self._service.encode([GOOD])[0])

    def attempt(self, draw: Draw) -> None:
        bad = [bad_request(draw) for _ in range(draw.choice((1, 1, 2)))]
        place = draw.randint(0, len(bad))
        answers = self._service.encode([*bad[:place], GOOD, *bad[place:]])
        if not np.array_equal(_hidden(answers.pop(place)), self._alone):
            raise HarmedError("a good request is encoded otherwise beside a bad one")
        for answer in answers:
            if isinstance(answer, HplmError):
                raise answer

    def close(self) -> None:
        self._service.close()
        self._snapshot.close()


def _hidden(answer: HiddenRequest | HplmError) -> Float16Array:
    if isinstance(answer, HplmError):
        raise HarmedError(f"a good request is rejected: {answer}")
    return answer.hidden


def bad_request(draw: Draw) -> TextRequest:
    rows = draw.choice((0, 1, 1, 1, 2, 3))
    models = [_bytes(draw, _HPLMS, 0.8) for _ in range(rows)]
    texts = [_bytes(draw, _TEXTS, 0.2) for _ in range(rows if draw.happens(0.95) else draw.randrange(4))]
    return TextRequest(models, texts, "" if draw.happens(0.5) else bad_parameters(draw))


def _bytes(draw: Draw, good: tuple[str, ...], share_of_good: float) -> bytes:
    if draw.happens(share_of_good):
        return draw.choice(good).encode()
    if draw.happens(0.3):
        return draw.damaged(draw.choice(good).encode())
    return draw.text(good).encode("utf-8", "surrogatepass")
