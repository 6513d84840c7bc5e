"""Clients that go on asking a server while something else happens to it."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence

from bench.kit.timeline import Asked
from hplm_client import Classification, ClientError, HplmClient

TEXTS = [f"a {word} text about {number} things" for number in range(50) for word in ("good", "poor", "cat", "saw")]


class Askable:
    """The hPLMs that may be asked for now."""

    def __init__(self, hplms: Sequence[str]) -> None:
        self._from_s = dict.fromkeys(hplms, 0.0)
        self._lock = threading.Lock()

    def add(self, hplm: str, after_s: float) -> None:
        with self._lock:
            self._from_s[hplm] = time.monotonic() + after_s

    def remove(self, hplm: str) -> None:
        with self._lock:
            del self._from_s[hplm]

    def choose(self, rng: random.Random) -> str:
        with self._lock:
            now_s = time.monotonic()
            return rng.choice([hplm for hplm, from_s in self._from_s.items() if from_s <= now_s])


class Load:
    """Clients that ask until told to stop, each after `pause_s` again; `ended_early` of them had stopped before."""

    def __init__(
        self, url: str, askable: Askable, texts: Sequence[str], clients: int, seed: int, pause_s: float = 0.0
    ) -> None:
        self._client = HplmClient(url)
        self._askable = askable
        self._texts = texts
        self._pause_s = pause_s
        self._stopping = threading.Event()
        self._asked: list[Asked] = []
        self.ended_early = 0
        self._threads = [threading.Thread(target=self._ask, args=(seed + number,)) for number in range(clients)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended_early = sum(not thread.is_alive() for thread in self._threads)
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        self._client.close()

    def take(self) -> list[Asked]:
        """What was asked since the last call."""
        taken, self._asked = self._asked, []
        return taken

    def _ask(self, seed: int) -> None:
        rng = random.Random(seed)
        while not self._stopping.wait(self._pause_s):
            hplm, text = self._askable.choose(rng), rng.choice(self._texts)
            sent_s = time.monotonic()
            try:
                answer = self._client.infer(hplm, text)
            except ClientError as error:
                self._asked.append(Asked(hplm, sent_s, time.monotonic(), None, error))
            else:
                scores = answer.scores if isinstance(answer, Classification) else None
                self._asked.append(Asked(hplm, sent_s, time.monotonic(), answer.version, scores=scores))
