"""What waits, as running sums by place in the queue: how much lies ahead of a place costs no walk along all that wait.

Places are numbers, such as virtual start times (`fair_share`), deadlines or lengths (`order`). The first few thousand
buckets of them are kept in a ring, all later ones by bucket, until the ring gets there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_NUM_BUCKETS = 4096
_LAST_BUCKET = 1 << 60
_NO_ROW = 0.5
"""Less than this, after so many additions and subtractions, is no row."""


@dataclass(frozen=True, slots=True)
class Load:
    """Sums over rows; `work_us` is what they add to batches that run anyway."""

    rows: float
    tokens: float
    work_us: float

    def __add__(self, other: Load) -> Load:
        return Load(self.rows + other.rows, self.tokens + other.tokens, self.work_us + other.work_us)

    def times(self, factor: float) -> Load:
        return Load(factor * self.rows, factor * self.tokens, factor * self.work_us)


NOTHING = Load(0.0, 0.0, 0.0)


class Backlog:
    """Rows by place. A bucket is named by its number on the whole line of places."""

    def __init__(self, resolution: float) -> None:
        self._resolution = resolution
        self._ring: Floats = np.zeros((3, _NUM_BUCKETS))
        self._later: dict[int, Floats] = {}
        self._spans: dict[int, Floats] = {}
        """Sums of what is later, by spans as long as the ring."""
        self._first = 0
        """No row lies in a bucket before."""
        self._all: Floats = np.zeros(3)
        self._num_rows = 0

    def __len__(self) -> int:
        return self._num_rows

    @property
    def work_us(self) -> float:
        """Of all rows."""
        return float(self._all[2])

    @property
    def first_place(self) -> float | None:
        """Where the first row that waits lies, to a bucket; None where nobody waits."""
        return self._first * self._resolution if self._num_rows else None

    def bucket(self, place: float) -> int:
        """Where a row of this place is counted; those of all places that are too far to tell apart in one."""
        return int(min(place / self._resolution, _LAST_BUCKET))

    def add(self, bucket: int, row: Load) -> None:
        if not self._num_rows:
            self._first = bucket
        elif bucket < self._first:
            self._move_back_to(bucket)
        self._change(bucket, np.array((row.rows, row.tokens, row.work_us)))
        self._num_rows += 1

    def remove(self, bucket: int, row: Load) -> None:
        """A row that was added to this bucket."""
        self._num_rows -= 1
        sums = self._change(bucket, -np.array((row.rows, row.tokens, row.work_us)))
        if sums[0] < _NO_ROW:
            sums[:] = 0.0  # so that no rounding is left
            self._later.pop(bucket, None)
            if not self._num_rows:
                self._all[:] = 0.0
            elif bucket == self._first:
                self._move_to(self._first_with_rows())

    @property
    def all(self) -> Load:
        return Load(*self._all.tolist())

    def up_to(self, place: float) -> Load:
        """All rows in this place's bucket and before; behind the end of the ring, up to a ring's length more."""
        bucket = self.bucket(place)
        if not self._num_rows or bucket < self._first:
            return NOTHING
        if bucket >= self._first + _NUM_BUCKETS:
            last = bucket // _NUM_BUCKETS
            sums = self._ring.sum(axis=1)
            for span, in_span in self._spans.items():
                if span <= last:
                    sums += in_span
            return Load(*sums.tolist())
        begin, end = self._first % _NUM_BUCKETS, bucket % _NUM_BUCKETS + 1
        if begin < end:
            sums = self._ring[:, begin:end].sum(axis=1)
        else:
            sums = self._ring[:, begin:].sum(axis=1) + self._ring[:, :end].sum(axis=1)
        return Load(*sums.tolist())

    def _change(self, bucket: int, by: Floats) -> Floats:
        """What a bucket holds then, to be changed in place."""
        self._all += by
        if bucket < self._first + _NUM_BUCKETS:
            sums = self._ring[:, bucket % _NUM_BUCKETS]
        else:
            sums = self._later.setdefault(bucket, np.zeros(3))
            self._change_span(bucket, by)
        sums += by
        return sums

    def _change_span(self, bucket: int, by: Floats) -> None:
        sums = self._spans.setdefault(bucket // _NUM_BUCKETS, np.zeros(3))
        sums += by
        if sums[0] < _NO_ROW:
            del self._spans[bucket // _NUM_BUCKETS]

    def _first_with_rows(self) -> int:
        begin = self._first % _NUM_BUCKETS
        has_rows = self._ring[0] > _NO_ROW
        after = int(np.argmax(has_rows[begin:]))
        if has_rows[begin + after]:
            return self._first + after
        before = int(np.argmax(has_rows))
        if has_rows[before]:
            return self._first + (_NUM_BUCKETS - begin) + before
        return min(self._later)

    def _move_back_to(self, first: int) -> None:
        """The ring begins earlier, and what it has no room for any more counts as later."""
        old_end = self._first + _NUM_BUCKETS
        for bucket in range(max(first + _NUM_BUCKETS, self._first), old_end):
            sums = self._ring[:, bucket % _NUM_BUCKETS]
            if sums[0] > _NO_ROW:
                self._later[bucket] = sums.copy()
                self._change_span(bucket, sums)
            sums[:] = 0.0
        self._first = first

    def _move_to(self, first: int) -> None:
        """The ring begins later, and takes in what lies within it now."""
        entering = range(self._first + _NUM_BUCKETS, first + _NUM_BUCKETS)
        self._first = first
        candidates = entering if len(entering) < len(self._later) else list(self._later)
        for bucket in candidates:
            if bucket in entering and bucket in self._later:
                sums = self._later.pop(bucket)
                self._ring[:, bucket % _NUM_BUCKETS] = sums
                self._change_span(bucket, -sums)
