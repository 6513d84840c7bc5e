"""What do the moves of a placement take: a root onto an engine, an hPLM to another server?

A root of BERT-base's size is read and packed as a server does at its start; hPLMs of the default recipe get slots where
they had none, each read for the first time. Files are in the page cache. What a server's drain and start take besides
is measured by `bench.drains`. `MoveCosts` of the planner has what comes out.
"""

from __future__ import annotations

import tempfile
from argparse import Namespace
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

import torch

from backends.adapters.bank import read_artifact, weights_bytes, write_artifact
from backends.engine.stack import StackSettings, UpperStack
from backends.root.geometry import RootGeometry
from backends.root.store import RootFolder
from bench.kit.bare import timed
from bench.kit.entry import Result, bench
from bench.kit.random_root import BERT_BASE_UPPER, random_hplm, random_root
from builder.settings.hplm import LORA_EVERYWHERE


@dataclass(frozen=True)
class Settings:
    geometry: RootGeometry = BERT_BASE_UPPER
    loads: int = 9
    hplms: int = 64
    dtype: str = "bf16"


_QUICK = Settings(loads=3, hplms=16)


@bench("moves")
def moves(options: Namespace) -> Result:
    settings = _QUICK if options.quick else Settings()
    with tempfile.TemporaryDirectory() as folder:
        root = random_root(Path(folder) / "root", settings.geometry, options.seed)
        of_stack = StackSettings(dtype=settings.dtype, num_slots=settings.hplms + 1)
        loads_s = [timed(lambda: UpperStack(root, of_stack)) for _ in range(settings.loads)]
        hplms_s, hplm_bytes = _hplms(root, Path(folder), of_stack, settings, options.seed)
    load_s, hplm_s = median(loads_s), median(hplms_s)
    figures = {
        "root_load_s": load_s,
        "root_load_gb_per_s": root.upper_bytes / load_s / 1e9,
        "hplm_load_ms_p50": 1e3 * hplm_s,
        "hplm_load_ms_max": 1e3 * max(hplms_s),
    }
    rows = [
        {"move": "a root onto an engine", "MB": root.upper_bytes / 1e6, "ms": 1e3 * load_s},
        {"move": "an hPLM to a slot", "MB": hplm_bytes / 1e6, "ms": 1e3 * hplm_s},
    ]
    return Result(asdict(settings), figures, rows)


def _hplms(
    root: RootFolder, folder: Path, of_stack: StackSettings, settings: Settings, seed: int
) -> tuple[list[float], int]:
    """Return what each hPLM takes, and the size of one."""
    generator = torch.Generator().manual_seed(seed)
    artifact = random_hplm(root, generator, LORA_EVERYWHERE)
    paths = [folder / f"hplm-{number}" for number in range(settings.hplms)]
    for number, path in enumerate(paths):
        path.mkdir()
        write_artifact(path, replace(artifact, hplm=f"bench/{number}"))
    stack = UpperStack(root, of_stack)
    taken_s = [timed(partial(_ready, stack, number, path)) for number, path in enumerate(paths, start=1)]
    return taken_s, weights_bytes(paths[0])


def _ready(stack: UpperStack, key: int, path: Path) -> None:
    stack.release(stack.ready(key, lambda: read_artifact(path, stack.fingerprint)))


if __name__ == "__main__":
    moves.main()
