"""Counts of a corpus's fragments: the file beside a domain's table that the next update adds to.

A file of the same form counts the requests for fragments that servers had to learn.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open

from backends.errors import CorruptFileError, FormatVersionError
from backends.plot.arrays import Keys
from backends.plot.keys import WIDE_KEY
from backends.storage import write_tensors

Counts = npt.NDArray[np.int64]
COUNTS_NAME = "counts.safetensors"
LEARNED_NAME = "learned.safetensors"
COUNTS_FORMAT_VERSION = 1


@dataclass(frozen=True)
class FragmentCounts:
    """Distinct fragments, most frequent first; equals in the order of their keys, so a recount is identical.

    Of the rarest only sums may be known: `more_fragments` of them occur `more_occurrences` times in all.

    Shape:
        keys, counts: `[F]`.
    """

    keys: Keys
    counts: Counts
    more_fragments: int = 0
    more_occurrences: int = 0

    @property
    def num_fragments(self) -> int:
        return len(self.keys) + self.more_fragments

    @property
    def num_occurrences(self) -> int:
        return int(self.counts.sum()) + self.more_occurrences

    def top(self, theta: float, max_fragments: int | None = None) -> FragmentCounts:
        """The `theta` share of the distinct fragments that occur most, and no more than `max_fragments`."""
        kept = int(np.ceil(theta * self.num_fragments))
        kept = kept if max_fragments is None else min(kept, max_fragments)
        return FragmentCounts(self.keys[:kept], self.counts[:kept])

    def without(self, known: npt.NDArray[np.bool_]) -> FragmentCounts:
        return FragmentCounts(self.keys[~known], self.counts[~known], self.more_fragments, self.more_occurrences)

    def shortened(self, max_fragments: int) -> FragmentCounts:
        """The same counts with only the sums of what comes after the `max_fragments` most frequent."""
        rest = self.counts[max_fragments:]
        return FragmentCounts(
            self.keys[:max_fragments],
            self.counts[:max_fragments],
            self.more_fragments + len(rest),
            self.more_occurrences + int(rest.sum()),
        )

    def write(self, folder: Path, name: str = COUNTS_NAME) -> None:
        tensors = {"keys": torch.from_numpy(self._words()), "counts": torch.from_numpy(self.counts)}
        about = {
            "format_version": COUNTS_FORMAT_VERSION,
            "more_fragments": self.more_fragments,
            "more_occurrences": self.more_occurrences,
        }
        # One entry, because the library writes several in any order, and equal counts are to give equal files.
        write_tensors(folder / name, tensors, {"about": json.dumps(about)})

    def _words(self) -> Counts:
        """The keys as rows of signed words, which is what the file's format knows."""
        return np.ascontiguousarray(self.keys).view(np.int64).reshape(len(self.keys), self.keys.dtype.itemsize // 8)

    @classmethod
    def read(cls, folder: Path, name: str = COUNTS_NAME) -> FragmentCounts:
        path = folder / name
        try:
            with safe_open(path, framework="np") as file:
                about = json.loads(file.metadata()["about"])
                if about["format_version"] > COUNTS_FORMAT_VERSION:
                    raise FormatVersionError(f"{path} was written by a newer release, so upgrade hplm")
                words, counts = file.get_tensor("keys"), file.get_tensor("counts")
                keys = words.view(WIDE_KEY if words.shape[1] > 1 else np.uint64).reshape(-1)
                return cls(keys, counts, about["more_fragments"], about["more_occurrences"])
        except FileNotFoundError as error:
            raise CorruptFileError(f"{path} is missing") from error
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise CorruptFileError(f"{path} is not a readable file of counts: {error}") from error
