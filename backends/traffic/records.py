"""One request's record: columns of fixed width; and the hPLM that it names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from backends.scheduling.rejection import Rejection

ACCEPTED, FAILED = "accepted", "failed"
OUTCOMES = (ACCEPTED, FAILED, *(reason.value for reason in Rejection))
"""What became of a request in `hplm_lower`: the engine got it, a file failed it, or why it was rejected."""

RECORD = np.dtype(
    [
        ("arrived_us", "<i8"),
        ("hplm", "<u4"),
        ("rows", "<u4"),
        ("tokens", "<u4"),
        ("deadline_us", "<i8"),
        ("outcome", "u1"),
        ("level", "u1"),
        ("is_first", "u1"),
        ("unused", "u1"),
    ]
)
"""A request to one hPLM; a request to several has a record of each, and of these only the first `is_first`.

    arrived_us      since 1970
    hplm            its number in the file
    tokens          of all rows; of a request that was rejected the least that they can be
    deadline_us     after its arrival, also where it is the hPLM's default; 0 for none
    outcome, level  their numbers in the file's head
"""

Records = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class RecordedHplm:
    id: str
    root: str
    domain: str

    @property
    def tenant(self) -> str:
        return self.id.partition("/")[0]

    @property
    def family(self) -> str:
        return f"{self.root}/{self.domain}"
