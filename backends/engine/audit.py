"""The running audit of ladders: are early answers still those of all layers, as often as was certified?

One different text in a hundred that is answered early goes on through the other layers after its answer was sent. Both
answers are compared. Where they differ more often than the ladder's certificate allows, beyond reasonable doubt, the
version answers by all its layers from then on. It notices texts that drift and tables that shorten.

Usage:
    audit = Audit()
    if audit.takes(job, ladder): …                # before the batch runs
    if audit.mark(job): …                         # when the row is answered early
    audit.note(job, ladder, is_same)              # after the batch
    audit.has_failed(job.hplm_key)
    audit.recall(entry)                           # once its ladder is known: what an earlier server found
"""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter, OrderedDict
from dataclasses import dataclass, field

import xxhash

from backends.adapters.ladder import Ladder
from backends.engine.failed_audits import FailedAudits
from backends.engine.job import Job
from backends.registry.entries import HplmEntry
from backends.wire import AUTO

LOGGER = logging.getLogger(__name__)
SHARE = 0.01
_MARGIN = 1.5
"""Times the certified share of different answers: what is certified is a bound for other texts, not a limit."""
_ODDS = (2.0, 4.0, 8.0)
"""Times the allowed share: violations that are looked for."""
_LEAST_EVIDENCE = 100.0
"""A share that is allowed exceeds this once in a hundred rounds, however often one looks."""
_TEXTS_A_ROUND = 1_000
"""After so many texts an audit begins anew, as old texts say nothing of new ones."""
_HASHED_COLUMNS = 4
_HASHES = 1 << 64
_SLOTS = 4096
"""An audit also begins anew once half of them are set, as texts with equal marks are passed over."""
_MOST_ROUNDS = 10_000


def evidence(texts: int, different: int, allowed: float) -> float:
    """Return how much likelier the counts are under violations than under the allowed share.

    It is a mean of likelihood ratios, so that of an allowed share exceeds `x` ever with a probability of at most 1 / x.
    """
    logs = []
    for odds in _ODDS:
        violation = min(odds * allowed, (1 + allowed) / 2)
        same = (texts - different) * math.log((1 - violation) / (1 - allowed))
        logs.append(different * math.log(violation / allowed) + same)
    largest = max(logs)
    return math.exp(min(largest, 700.0)) * sum(math.exp(each - largest) for each in logs) / len(logs)


@dataclass
class _Round:
    """What is known of one version; `seen` marks compared texts by the last bits of their hashes.

    Two texts may share a mark: then the second one is not compared.
    """

    seen: bytearray = field(default_factory=lambda: bytearray(_SLOTS))
    texts: int = 0
    different: int = 0

    def holds(self, text: int) -> bool:
        return bool(self.seen[text % _SLOTS])

    def mark(self, text: int) -> None:
        self.seen[text % _SLOTS] = 1

    @property
    def is_over(self) -> bool:
        return self.texts >= _TEXTS_A_ROUND or self.seen.count(1) >= _SLOTS // 2


class Audit:
    """Compares early answers with full ones, for each hPLM version. Safe among threads.

    Args:
        failures: Those of earlier servers, and where this one's are kept.
        share: Share of different texts that go on.
    """

    def __init__(self, failures: FailedAudits, share: float = SHARE) -> None:
        self._failures = failures
        self._below = share * _HASHES
        self._rounds: OrderedDict[int, _Round] = OrderedDict()
        """By version, the one that was used last at the end."""
        self._failed: set[int] = set()
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def counts(self) -> Counter[str]:
        """Compared answers so far: `same` and `different`."""
        return self._counts.copy()

    @property
    def num_failed(self) -> int:
        """Versions that have come to answer by all their layers because of this."""
        return len(self._failed)

    def has_failed(self, hplm_key: int) -> bool:
        return hplm_key in self._failed

    def recall(self, entry: HplmEntry) -> None:
        """Take over what another server found of a version's ladder, or this one before a restart."""
        if entry.key not in self._failed and entry in self._failures:
            self._failed.add(entry.key)
            LOGGER.warning(
                "hPLM %s version %d answers by all its layers: its ladder has failed the audit before; "
                "'hplm select %s' makes another one",
                entry.id,
                entry.version,
                entry.id,
            )

    def takes(self, job: Job, ladder: Ladder) -> bool:
        """Whether a row goes on if it is answered early; a text is compared once a round.

        Rows whose level the request or the load decided are not: nothing is certified of these.
        """
        if job.level != AUTO or job.settles or self._allowed(ladder) is None or self.has_failed(job.hplm_key):
            return False
        text = _hash_of(job)
        if text >= self._below:
            return False
        with self._lock:
            state = self._rounds.get(job.hplm_key)
            return state is None or not state.holds(text)

    def mark(self, job: Job) -> bool:
        """Mark the text of a row that goes on after its early answer; False if a row beside it has the same text."""
        text = _hash_of(job)
        with self._lock:
            state = self._round(job.hplm_key)
            if state.holds(text):
                return False
            state.mark(text)
            self._end(job.hplm_key, state)
            return True

    def note(self, job: Job, ladder: Ladder, is_same: bool) -> None:
        """Count a comparison; the version fails once its evidence suffices."""
        allowed = self._allowed(ladder)
        if allowed is None:
            return
        with self._lock:
            self._counts["same" if is_same else "different"] += 1
            if self.has_failed(job.hplm_key):  # it ran before that was known
                return
            state = self._round(job.hplm_key)
            state.texts += 1
            state.different += not is_same
            if evidence(state.texts, state.different, allowed) < _LEAST_EVIDENCE:
                self._end(job.hplm_key, state)
                return
            self._failed.add(job.hplm_key)
            del self._rounds[job.hplm_key]
        self._tell(job.entry, state, allowed)

    def _round(self, hplm_key: int) -> _Round:
        """Return a version's round; so many are kept that versions of the past go."""
        state = self._rounds.setdefault(hplm_key, _Round())
        self._rounds.move_to_end(hplm_key)
        if len(self._rounds) > _MOST_ROUNDS:
            self._rounds.popitem(last=False)
        return state

    def _end(self, hplm_key: int, state: _Round) -> None:
        if state.is_over:
            del self._rounds[hplm_key]

    def _tell(self, entry: HplmEntry, state: _Round, allowed: float) -> None:
        LOGGER.warning(
            "hPLM %s version %d answers by all its layers from now on: %d of %d early answers differ from those of all "
            "layers, where at most %.1f %% may; 'hplm select %s' makes another ladder",
            entry.id,
            entry.version,
            state.different,
            state.texts,
            100 * allowed,
            entry.id,
        )
        noting = (entry, state.texts, state.different)
        threading.Thread(target=self._failures.note, args=noting, daemon=True).start()  # a slow disk holds up no batch

    def _allowed(self, ladder: Ladder) -> float | None:
        """Return the share of early answers that may differ; None where a ladder says nothing that could be tested."""
        certified = ladder.certified.get("disagreement")
        allowed = None if certified is None else _MARGIN * float(certified)
        return allowed if allowed is not None and 0 < allowed < 1 else None


def _hash_of(job: Job) -> int:
    """Return the hash of a row's text: a few columns tell texts apart, and whole rows take long to read."""
    return xxhash.xxh3_64_intdigest(job.hidden[:, :_HASHED_COLUMNS].tobytes())
