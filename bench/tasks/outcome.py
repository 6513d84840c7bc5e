"""The outcome of one trial of `bench.quality`, as a file keeps it."""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from builder.construct.tasks.metrics import Floats


@dataclass(frozen=True, eq=False)
class Outcome:
    """The main metric on the dev and test files, in points of 100.

    Shape: terms: `[N, K]`, what the metric adds up of each test text (`Objective.terms`)
    """

    metric: str
    dev: float
    test: float
    epoch: int
    terms: Floats
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        packed = base64.b85encode(zlib.compress(self.terms.astype("<f4").tobytes(), 9)).decode()
        named = {name: value for name, value in vars(self).items() if name != "terms"}
        return {**named, "texts": len(self.terms), "terms": packed}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Outcome:
        named = {name: value for name, value in content.items() if name not in ("texts", "terms")}
        flat = np.frombuffer(zlib.decompress(base64.b85decode(content["terms"])), "<f4")
        return cls(**named, terms=flat.astype(np.float64).reshape(content["texts"], -1))
