"""The profile of a selection: what each candidate loses and takes; `candidates.json` beside the ladder.

Only people read it, as `hplm select --show` prints and draws it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from backends.fields import Fields, read_fields
from backends.storage import write_json

FORMAT_VERSION = 3
"""2 has candidates with ensembles and 3 such with pruned words, which releases that read less would not tell apart; all
others are written as 1."""
_PLAIN, _WITH_ENSEMBLES = 1, 2
_FILE = "candidates.json"


class CurvePoint(NamedTuple):
    """What one threshold would mean on the texts that certify.

    Attributes:
        threshold: Least confidence of a row that leaves.
        answered_early: Share of the rows that leave.
        lost: Share of the rows that are lost, in parts of a regression; where a drop is tested on balance, less those
            that are put right.
        bound: The least tolerance that this proves to be kept.
    """

    threshold: float
    answered_early: float
    lost: float
    bound: float


@dataclass(frozen=True)
class CandidateProfile:
    """One ladder that could be taken; the last one is to answer by all layers.

    Attributes:
        after: Layers that a row passes which leaves early; of the last one all.
        threshold: That was certified; None where none was.
        answered_early: Share of rows that leave.
        lost: Share of the certifying rows that is lost, as in a curve; None where no threshold was certified.
        bound: The least tolerance that is proven to be kept, or that could be.
        alone_ms: What a row by itself is predicted to take in the upper layers; None without a cost model.
        full_batch_ms: What a full batch is predicted to take.
        memory_bytes: What the head takes in the server.
        curve: What other thresholds would mean, the strictest first.
        full_weight: Of the full answers to rows that go on, which are mixed with early ones; None where they are not.
        alpha: Which words rows lose that go on; None where they keep all.
        kept_tokens: Share of their tokens that these keep; None too where no threshold was certified.
    """

    after: int
    threshold: float | None
    answered_early: float
    lost: float | None
    bound: float
    alone_ms: float | None
    full_batch_ms: float | None
    memory_bytes: int
    curve: Sequence[CurvePoint] = field(default_factory=list)
    full_weight: float | None = None
    alpha: float | None = None
    kept_tokens: float | None = None

    @property
    def row(self) -> dict[str, Any]:
        """The candidate as a line of a table."""
        return {name: value for name, value in asdict(self).items() if name != "curve"}


@dataclass(frozen=True)
class StudentsProfile:
    """What so many students lose where they answer every row.

    Attributes:
        students: Their number.
        keeps: Whether they, and all larger numbers, are proven to keep the target.
        lost: Share of the held-out rows that is lost, as in a curve.
        bound: The least tolerance that is proven to be kept.
        alone_ms: What a row by itself is predicted to take in them; None without a cost model.
        full_batch_ms: What a full batch is predicted to take.
    """

    students: int
    keeps: bool
    lost: float
    bound: float
    alone_ms: float | None
    full_batch_ms: float | None


@dataclass(frozen=True)
class Profile:
    """All candidates of one selection.

    Attributes:
        id: The hPLM.
        target: In words.
        tolerance: The share that may be lost.
        chosen: The layer of the candidate that is served; None where nothing was certified.
        layers: Of the root's upper half.
        candidates: The lowest layer first, all layers last.
        full_weight: That of the candidate that is served.
        alpha: The same.
        students: By their number; none where the version has no students.
    """

    id: str
    target: str
    tolerance: float
    chosen: int | None
    layers: int
    candidates: Sequence[CandidateProfile]
    full_weight: float | None = None
    alpha: float | None = None
    students: Sequence[StudentsProfile] = field(default_factory=list)

    @property
    def has_ensembles(self) -> bool:
        return any(each.full_weight is not None for each in self.candidates)

    @property
    def has_pruning(self) -> bool:
        return any(each.alpha is not None for each in self.candidates)

    @property
    def rows(self) -> list[dict[str, Any]]:
        left_out = set() if self.has_ensembles else {"full_weight"}
        left_out |= set() if self.has_pruning else {"alpha", "kept_tokens"}
        return [
            {"chosen": self.is_chosen(each)} | {name: value for name, value in each.row.items() if name not in left_out}
            for each in self.candidates
        ]

    def is_chosen(self, candidate: CandidateProfile) -> bool:
        served = self.chosen or self.layers, self.full_weight, self.alpha
        return (candidate.after, candidate.full_weight, candidate.alpha) == served


def write_profile(folder: Path, profile: Profile) -> None:
    version = _WITH_ENSEMBLES if profile.has_ensembles else _PLAIN
    write_json(
        folder / _FILE, {"format_version": FORMAT_VERSION if profile.has_pruning else version, **asdict(profile)}
    )


def read_profile(folder: Path) -> Profile | None:
    """Read the profile beside a version's ladder; ladders of earlier releases have none.

    Raises:
        FileError: The file is damaged, or of a newer format.
    """
    path = folder / _FILE
    if not path.exists():
        return None
    stored = read_fields(path, FORMAT_VERSION)
    return Profile(
        id=stored.text("id"),
        target=stored.text("target"),
        tolerance=stored.number("tolerance"),
        chosen=None if stored.value("chosen") is None else stored.whole("chosen"),
        layers=stored.whole("layers"),
        candidates=[_candidate(each) for each in stored.parts("candidates")],
        full_weight=_number(stored, "full_weight"),
        alpha=_number(stored, "alpha"),
        students=[_students(each) for each in stored.parts("students")] if "students" in stored else [],
    )


def _students(stored: Fields) -> StudentsProfile:
    return StudentsProfile(
        students=stored.whole("students"),
        keeps=stored.flag("keeps"),
        lost=stored.number("lost"),
        bound=stored.number("bound"),
        alone_ms=_number(stored, "alone_ms"),
        full_batch_ms=_number(stored, "full_batch_ms"),
    )


def _number(stored: Fields, name: str) -> float | None:
    """Return a number where there is one; profiles of earlier releases lack some."""
    return None if stored.get(name) is None else stored.number(name)


def _candidate(stored: Fields) -> CandidateProfile:
    return CandidateProfile(
        after=stored.whole("after"),
        threshold=_number(stored, "threshold"),
        answered_early=stored.number("answered_early"),
        lost=_number(stored, "lost"),
        bound=stored.number("bound"),
        alone_ms=_number(stored, "alone_ms"),
        full_batch_ms=_number(stored, "full_batch_ms"),
        memory_bytes=stored.whole("memory_bytes"),
        curve=[CurvePoint(*point) for point in stored.numbers("curve", len(CurvePoint._fields))],
        full_weight=_number(stored, "full_weight"),
        alpha=_number(stored, "alpha"),
        kept_tokens=_number(stored, "kept_tokens"),
    )
