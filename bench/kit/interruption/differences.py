"""How far two published folders lie from each other: byte for byte, and number for number where bytes differ."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file

_NAMES_ITS_BUILD = ("name", "hplm", "checksum")


def folder_difference(one: Path, two: Path) -> float:
    names = {path.name for path in one.iterdir()}
    if names != {path.name for path in two.iterdir()}:
        return float("inf")
    return max(_difference(one / name, two / name) for name in sorted(names))


def _difference(one: Path, two: Path) -> float:
    if one.read_bytes() == two.read_bytes():
        return 0.0
    match one.suffix:
        case ".json":
            return 0.0 if _content(one) == _content(two) else float("inf")
        case ".values":
            return _largest(*(np.fromfile(path, np.float16) for path in (one, two)))
        case ".safetensors":
            ours, theirs = load_file(one), load_file(two)
            if ours.keys() != theirs.keys():
                return float("inf")
            return max(_largest(ours[name].double().numpy(), theirs[name].double().numpy()) for name in ours)
        case ".sums":
            return 0.0  # they follow from the file beside them
        case _:
            return float("inf")


def _content(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    content.get("origin", {}).pop("inputs", None)
    return {name: value for name, value in content.items() if name not in _NAMES_ITS_BUILD}


def _largest(one: np.ndarray[Any, Any], two: np.ndarray[Any, Any]) -> float:
    if one.shape != two.shape:
        return float("inf")
    largest = float(np.abs(one.astype(np.float64) - two).max(initial=0))
    return float("inf") if math.isnan(largest) else largest
