"""Models whose loops fail on demand: a file named after a loop makes the process that finds it raise an error there.

Usage:
    code = code_with_defects(folder / "code", faults)
    raise_defect(faults, "stage")
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from backends.engine.loop import ANSWER, RUN, STAGE, ServeLoop
from backends.lower.encode_queue import EncodeQueue
from bench.kit.chaos.plan import ENCODE
from bench.kit.model_code import append_to_model
from builder.export.model_names import LOWER, UPPER
from builder.export.repository import installed_code


class DefectError(Exception):
    """Raised in a loop, where the product expects no error."""


def code_with_defects(folder: Path, faults: Path) -> Path:
    """Copy the models' own code into a folder, with loops that look into the folder `faults`."""
    faults.mkdir(parents=True)
    shutil.copytree(installed_code(), folder)
    for model in (UPPER, LOWER):
        append_to_model(
            folder / model,
            f"from bench.kit.chaos.defects import fail_on_demand\n\nfail_on_demand({str(faults)!r}, {model!r})\n",
        )
    return folder


def raise_defect(faults: Path, loop: str) -> None:
    """Order the defect; the loop takes the file away as it fails."""
    (faults / loop).touch()


def fail_on_demand(faults: str, model: str) -> None:
    """Change the loops of the model's process; called by its code."""
    if model == UPPER:
        for loop, name in ((STAGE, "_stage_next"), (RUN, "_run_next"), (ANSWER, "_answer_next")):
            setattr(ServeLoop, name, _failing(getattr(ServeLoop, name), Path(faults) / loop))
    else:
        queue: Any = EncodeQueue
        queue._take_batch = _failing(queue._take_batch, Path(faults) / ENCODE)


def _failing(method: Callable[..., Any], order: Path) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any) -> Any:
        try:
            order.unlink()
        except FileNotFoundError:
            return method(*args)
        raise DefectError(f"a defect was ordered by {order}")

    return call
