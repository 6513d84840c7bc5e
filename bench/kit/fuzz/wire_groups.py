"""Groups of wire cases that are sent at once, with neighbours among them, and who was harmed by which case."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from backends.errors import InvalidArgumentError
from bench.kit.fuzz.draw import Draw
from bench.kit.fuzz.exchange import End, Exchange, Fate, Outcome
from bench.kit.fuzz.grpc_messages import (
    fields_case,
    lengths_case,
    lower_case,
    protobuf_case,
    relay_case,
    upper_case,
)
from bench.kit.fuzz.http_bodies import binary_case, deep_case, generate_case, json_case, parameters_case
from bench.kit.fuzz.neighbours import Neighbour
from bench.kit.fuzz.raw_frames import announced_case, chunks_case, http2_case, http_garbage_case, slow_case
from bench.kit.fuzz.rule import Case
from bench.kit.fuzz.vocabulary import Vocabulary
from bench.kit.fuzz.wire_case import MakeCase, WireCase

KINDS: Mapping[str, tuple[MakeCase, float]] = {
    "http-json": (json_case, 24),
    "http-parameters": (parameters_case, 6),
    "http-generate": (generate_case, 8),
    "http-binary": (binary_case, 12),
    "grpc-lengths": (lengths_case, 14),
    "grpc-fields": (fields_case, 12),
    "grpc-bits": (protobuf_case, 10),
    "grpc-lower": (lower_case, 4),
    "grpc-upper": (upper_case, 4),
    "grpc-relay": (relay_case, 2),
    "http-garbage": (http_garbage_case, 2),
    "http2-frames": (http2_case, 2),
    "http-slow": (slow_case, 0.3),
    "announced": (announced_case, 0.1),
    "http-deep": (deep_case, 0.1),
    "http-chunks": (chunks_case, 0.05),
}
"""What makes a kind's cases, and its share of all."""
GROUP = 64
_NEIGHBOURS_OF_GROUP = 8
_REPEATS = 8
_DEFECT = b"the server failed on this request"
_EXAMPLES = 20


@dataclass(frozen=True)
class Harm:
    """A neighbour that did not get its answer; `cases` are those beside which it was asked, as few as are known."""

    cases: Sequence[Case]
    what: str


@dataclass
class Played:
    """What became of cases, by kind and fate; cases to which the server answered that it has failed itself."""

    fates: Counter[tuple[str, Fate]] = field(default_factory=Counter)
    neighbours: int = 0
    harmed: int = 0
    harms: list[Harm] = field(default_factory=list)
    """Examples."""
    defects: list[tuple[Case, str]] = field(default_factory=list)
    silent: list[Case] = field(default_factory=list)

    @property
    def cases(self) -> int:
        return self.fates.total()

    def add(self, other: Played) -> None:
        self.fates += other.fates
        self.neighbours += other.neighbours
        self.harmed += other.harmed
        self.harms += other.harms
        self.defects += other.defects
        self.silent += other.silent


def names_of(seed: int, group: int, only: str | None = None) -> list[Case]:
    """Name the cases of a group, of one kind or of all kinds in their shares."""
    rng = random.Random(f"{seed}:{group}")
    kinds = [only] * GROUP if only else rng.choices(list(KINDS), [share for _, share in KINDS.values()], k=GROUP)
    return [Case(kind, seed, group * GROUP + at) for at, kind in enumerate(kinds)]


class Groups:
    """Sends cases over one client's connections."""

    def __init__(self, exchange: Exchange, vocabulary: Vocabulary, neighbours: Sequence[Neighbour], seed: int) -> None:
        self._exchange = exchange
        self._vocabulary = vocabulary
        self._neighbours = neighbours
        self._rng = random.Random(seed)

    def play(self, names: Sequence[Case]) -> Played:
        """Send cases at once; where neighbours are harmed, find the case that harms them, if it does so alone."""
        played = self._play(names)
        if played.harmed and len(names) > 1 and self._exchange.is_heard():
            alone = ((name, self._play([name] * _REPEATS)) for name in names)
            culprit = next(((name, of_one) for name, of_one in alone if of_one.harmed), None)
            if culprit is not None:
                played.harms = [Harm([culprit[0]], culprit[1].harms[0].what)]
        return played

    def _play(self, names: Sequence[Case]) -> Played:
        played = Played()
        chosen = self._rng.choices(self._neighbours, k=_NEIGHBOURS_OF_GROUP)
        every = max(1, len(names) // len(chosen))
        waiting: list[tuple[Case, End]] = []
        asked: list[tuple[Neighbour, End]] = []
        for at, name in enumerate(names):
            waiting.append((name, self._exchange.send(self._case(name))))
            if at % every == 0 and len(asked) < len(chosen):
                neighbour = chosen[len(asked)]
                asked.append((neighbour, self._exchange.send(neighbour.case)))
        asked += [(neighbour, self._exchange.send(neighbour.case)) for neighbour in chosen[len(asked) :]]
        for neighbour, end in asked:
            played.neighbours += 1
            if (what := neighbour.harm(end())) is not None:
                played.harmed += 1
                played.harms = played.harms or [Harm(names, what)]
        for name, end in waiting:
            _note(played, name, end())
        return played

    def _case(self, name: Case) -> WireCase:
        if name.target not in KINDS:
            raise InvalidArgumentError(f"there is no kind {name.target!r} of wire cases; there are {', '.join(KINDS)}")
        make, _ = KINDS[name.target]
        return make(Draw(name), self._vocabulary)


def _note(played: Played, name: Case, outcome: Outcome) -> None:
    played.fates[name.target, outcome.fate] += 1
    if _DEFECT in outcome.content and len(played.defects) < _EXAMPLES:
        played.defects.append((name, outcome.content.decode(errors="replace")[:300]))
    if outcome.fate is Fate.SILENT:
        played.silent.append(name)
