"""The texts that a version was made with, as files of hashes beside its weights: enough to find them in other files.

bank/<root>/<tenant>--<name>@<version>/trained_on.hashes     XXH3-128 of what follows, then sorted 64-bit hashes
bank/<root>/<tenant>--<name>@<version>/chosen_by.hashes      the same of the dev texts

A version that goes on from one whose texts are unknown, as of an import, has `trained_on.partial.hashes` and
`chosen_by.partial.hashes` in their place.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import xxhash

from backends.storage import write_file
from builder.construct.tasks.examples import Example, normalised

LOGGER = logging.getLogger(__name__)
_TRAINED_ON, _CHOSEN_BY = "trained_on", "chosen_by"
STUDENTS_CHOSEN_BY = "students_chosen_by"
"""Name of the file for the texts by which the epoch and the best number of a version's students were chosen."""
_DIGEST_BYTES = 16
_SEGMENT_SEPARATOR = "\t"
Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class TrainedTexts:
    """Texts by their hashes, whatever their case, blanks and Unicode form.

    Shape: hashes [T], sorted and distinct

    Attributes:
        are_all: Whether these are all; of what was imported, or made by an older release, nobody knows.
    """

    hashes: Hashes
    are_all: bool = True

    @classmethod
    def of(cls, examples: Sequence[Example]) -> Self:
        return cls(np.unique(hashes_of(examples)))

    @classmethod
    def read(cls, folder: Path, name: str = _TRAINED_ON) -> Self:
        """Read those of a version; none where an older release wrote it, it was imported, or the file is damaged."""
        are_all = _file(folder, name).exists()
        hashes = _read(_file(folder, name, are_all))
        return cls(np.empty(0, np.uint64), are_all=False) if hashes is None else cls(hashes, are_all)

    def write(self, folder: Path, name: str = _TRAINED_ON) -> None:
        body = self.hashes.astype("<u8").tobytes()
        write_file(_file(folder, name, self.are_all), xxhash.xxh3_128_digest(body) + body)

    def joined(self, others: TrainedTexts) -> TrainedTexts:
        return TrainedTexts(np.union1d(self.hashes, others.hashes), self.are_all and others.are_all)

    def num_among(self, examples: Sequence[Example]) -> int:
        """Count the examples whose text is among these."""
        return int(self.are_among(examples).sum())

    def are_among(self, examples: Sequence[Example]) -> npt.NDArray[np.bool_]:
        """Tell of each example whether its text is among these."""
        return np.isin(hashes_of(examples), self.hashes)


@dataclass(frozen=True)
class MadeWith:
    """All texts that a version was made with.

    Attributes:
        trained: Those that it, or a version that it went on from, has learned from.
        chose: Those that its epoch was chosen by, and its trial of a search; none of a version of an older release.
    """

    trained: TrainedTexts
    chose: TrainedTexts

    @classmethod
    def read(cls, folder: Path) -> Self:
        return cls(TrainedTexts.read(folder), TrainedTexts.read(folder, _CHOSEN_BY))

    def write(self, folder: Path) -> None:
        self.trained.write(folder)
        self.chose.write(folder, _CHOSEN_BY)

    def joined(self, others: MadeWith) -> MadeWith:
        return MadeWith(self.trained.joined(others.trained), self.chose.joined(others.chose))


_UNKNOWN_TEXTS = TrainedTexts(np.empty(0, np.uint64), are_all=False)
UNKNOWN = MadeWith(_UNKNOWN_TEXTS, _UNKNOWN_TEXTS)
"""Of a version that was made elsewhere."""


def hashes_of(examples: Sequence[Example]) -> Hashes:
    """Return the hash of each example's text."""
    texts = (_SEGMENT_SEPARATOR.join(normalised(example)) for example in examples)
    return np.fromiter(
        (xxhash.xxh3_64_intdigest(text.encode(errors="surrogatepass")) for text in texts), np.uint64, len(examples)
    )


def _file(folder: Path, name: str, are_all: bool = True) -> Path:
    return folder / f"{name}{'' if are_all else '.partial'}.hashes"


def _read(path: Path) -> Hashes | None:
    """Return none where there is no file, or a damaged one."""
    content = path.read_bytes() if path.exists() else b""
    digest, body = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    if xxhash.xxh3_128_digest(body) == digest:
        return np.frombuffer(body, "<u8").astype(np.uint64)
    if content:
        LOGGER.warning("%s is damaged, so it is unknown which texts that version was made with", path)
    return None
