"""What does it gain that retrieval, adapter loading and computing run side by side?

The paper's ablations, each a server of its own on one home, asked by turns. Without pipelined retrieval the lower half
and the computing take turns; without pipelined swapping a batch's adapters are loaded and its rows packed only once the
batch before has been answered; synchronised is both. `retrieval_cost` is what is gained when retrieval is switched off
altogether and hidden rows come from memory. Far more tenants than slots are asked, so that adapters are swapped all the
time.
"""

from __future__ import annotations

import shutil
from argparse import Namespace
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np

from backends.home import Home
from bench.kit.entry import QUICK_LOADS_S, Result, at_most, bench
from bench.kit.model_code import append_to_model
from bench.kit.remembered import INSTALLED
from bench.kit.saturation import draw, saturate
from bench.kit.served import Serving, all_served
from bench.kit.synthetic_home import BERT_BASE, TenantHome, tenant_home
from bench.kit.turns import Ablation, code_with_turns
from builder.export.repository import installed_code

PIPELINED, REMEMBERED = "pipelined", "retrieval switched off"


@dataclass(frozen=True)
class Settings:
    geometry: str
    rows: int
    tenants: int
    length: int = 128
    repeats: int = 5
    batch: int = 64
    slots: int = 128
    texts: int = 128
    dtype: str = "bf16"


FULL = Settings("BERT-base, 6 of 12 x 768 above PLOT", rows=448, tenants=2_000)
QUICK = Settings("BERT-base, 6 of 12 x 768 above PLOT", rows=192, tenants=500, repeats=3)


def servings(home: Home, settings: Settings) -> dict[str, Serving]:
    upper = {"dtype": settings.dtype, "slots": str(settings.slots + 1)}
    turns, code = home.path / "turns", home.path / "code-with-turns"
    retrieval = code_with_turns(code / "retrieval", Ablation(turns, turns))
    swapping = code_with_turns(code / "swapping", Ablation(stages_ahead=False))
    both = code_with_turns(code / "both", Ablation(turns, turns, stages_ahead=False))
    return {
        PIPELINED: Serving("pipelined", upper=upper),
        "without pipelined retrieval": Serving("no-retrieval", upper=upper, code=retrieval),
        "without pipelined swapping": Serving("no-swapping", upper=upper, code=swapping),
        "synchronised": Serving("synchronised", upper=upper, code=both),
        REMEMBERED: Serving("remembered", upper=upper, code=_remembering_code(home.path / "code")),
    }


def _remembering_code(folder: Path) -> Path:
    """The models' own code; the lower half's with a memory for hidden rows."""
    shutil.copytree(installed_code(), folder)
    append_to_model(folder / "hplm_lower", INSTALLED)
    return folder


def measure(base: TenantHome, settings: Settings, seed: int) -> dict[str, list[float]]:
    rng, texts = np.random.default_rng(seed), base.texts[settings.length]
    taken: dict[str, list[float]] = defaultdict(list)
    with all_served(base.home, servings(base.home, settings)) as servers:
        for repeat in range(settings.repeats + 1):
            rows = draw(base.hplms, texts, settings.rows, rng)
            for name, server in servers.items():
                rows_per_s = saturate(server.grpc_url, rows, 2 * settings.batch).rows_per_s(settings.batch)
                if repeat:  # the first finds nothing in memory
                    taken[name].append(rows_per_s)
    return taken


def shares(taken: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return shares of the pipelined throughput in the same repeat."""
    return {
        name: median(one / all_of_it for one, all_of_it in zip(found, taken[PIPELINED], strict=True))
        for name, found in taken.items()
    }


def figures(of_pipelined: Mapping[str, float]) -> dict[str, float]:
    ablations = {name: share for name, share in of_pipelined.items() if name not in (PIPELINED, REMEMBERED)}
    return {
        "retrieval_cost": of_pipelined[REMEMBERED] - 1,
        **{f"{name.replace(' ', '_')}_over_pipelined": share for name, share in ablations.items()},
    }


@bench(
    "pipeline",
    quick_s=QUICK_LOADS_S,
    bars={"retrieval_cost": at_most(0.05)},
)
def pipeline(options: Namespace) -> Result:
    settings = QUICK if options.quick else FULL
    with tenant_home(BERT_BASE, settings.tenants, [settings.length], options.seed, settings.texts) as home:
        taken = measure(home, settings, options.seed)
    of_pipelined = shares(taken)
    rows = [
        {"setting": name, "rows per s": median(rates), "of pipelined": of_pipelined[name]}
        for name, rates in taken.items()
    ]
    return Result(asdict(settings), figures(of_pipelined), rows)


if __name__ == "__main__":
    pipeline.main()
