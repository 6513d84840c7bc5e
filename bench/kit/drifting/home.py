"""A home of several small roots for paced servers, and the problem that the planner reads from it."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from backends.engine.settings import EngineSettings
from backends.home import Home
from backends.model_settings import ModelSettings
from backends.registry.registry import Registry
from backends.root.geometry import RootGeometry
from backends.root.store import RootFolder
from backends.scheduling.cost_model import CostModel
from backends.scheduling.cost_profile import CostProfile, write_profile
from backends.scheduling.settings import Capacity
from bench.kit.placing.drift import ROOTS_PER_DEVICE, DriftSettings
from bench.kit.placing.loads import devices
from bench.kit.synthetic_home import SMALL, BaseHome, Family, Words, base_home
from builder.placement.planner.asked_stacks import Asked
from builder.placement.planner.asked_traffic import Recorded, read_asked
from builder.placement.planner.group import Device
from builder.placement.planner.home_models import models_of
from builder.placement.planner.planner import Fleet
from builder.placement.planner.problem import NO_STAGES
from builder.placement.planner.recorded import recorded_fleet
from builder.placement.planner.traffic import Traffic
from loadtest.schedule import Row

UPPER = {"dtype": "fp32", "threads": "1", "max_rows": "1"}
_CAPACITY = Capacity(max_rows=1)
"""A device takes one row at a time."""
_GEOMETRY = replace(
    SMALL, hidden_size=64, intermediate_size=128, num_heads=2, num_lower_layers=1, num_upper_layers=1, max_tokens=64
)
_TOKENS, _TEXTS, _HPLMS, _DISTINCT = 20, 64, 20, 4
_COLUMNS = ("time_s", "hplm", "tokens", "deadline_ms")


@dataclass(frozen=True)
class DriftHome:
    """Roots that are alike, with hPLMs of a tenant each, and devices that hold two of them.

    Attributes:
        hplms: Of each root.
        pace: What a batch takes, as the roots' profiles say and the paced servers keep to.
    """

    home: Home
    hplms: Sequence[Sequence[str]]
    texts: Sequence[str]
    pace: CostModel
    devices: tuple[Device, ...]

    @property
    def roots(self) -> list[str]:
        return [f"r{number}" for number in range(len(self.hplms))]

    def rows(self, traffic: Traffic, rng: np.random.Generator) -> list[Row]:
        """Let hPLMs drawn uniformly of each request's root ask at its time, with its deadline."""
        patience_ms = (traffic.deadlines_us - traffic.arrived_us) // 1_000
        columns = [traffic.arrived_us.tolist(), traffic.models.tolist(), patience_ms.tolist()]
        return [
            Row(at_us / 1e6, str(rng.choice(self.hplms[root])), str(rng.choice(self.texts)), int(ms))
            for at_us, root, ms in zip(*columns, strict=True)
        ]

    def fleet(self, trace: Path, seed: int) -> Fleet:
        """Read a trace as `hplm place --no-stages` does."""
        with closing(Registry.open(self.home)) as registry:
            return recorded_fleet(
                self.home,
                registry,
                read_asked(registry, Recorded(trace)),
                self.devices,
                seed,
                stage_counts=NO_STAGES,
                capacity=_CAPACITY,
            )


def write_rows(rows: Sequence[Row], path: Path) -> Path:
    """Write rows as a trace; the times of one count from its first request."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(_COLUMNS)
        writer.writerows((f"{row.at_s:.6f}", row.hplm, _TOKENS, row.deadline_ms) for row in rows)
    return path


@contextmanager
def drift_home(settings: DriftSettings, seed: int, geometry: RootGeometry = _GEOMETRY) -> Iterator[DriftHome]:
    rng, words = np.random.default_rng(seed), Words(geometry.vocab_size)
    texts = [words.text(rng, _TOKENS) for _ in range(_TEXTS)]
    pace = CostModel(0.0, float(settings.alone_us), 0.0, 0.0, 0.0)
    with base_home(seed) as base:
        hplms = [_add(base, f"r{number}", geometry, texts, pace) for number in range(settings.num_roots)]
        memory_bytes = round(ROOTS_PER_DEVICE * _root_bytes(base.home))
        where = devices(settings.num_devices, memory_bytes, settings.num_devices)
        yield DriftHome(base.home, hplms, texts, pace, where)


def _add(base: BaseHome, name: str, geometry: RootGeometry, texts: Sequence[str], pace: CostModel) -> list[str]:
    """Add a root with its hPLMs, and a profile that says what the paced device takes."""
    base.add_root(name, geometry, texts)
    measured = EngineSettings.from_model(ModelSettings(base.home, UPPER), "cpu").measured(
        RootFolder(base.home.root(name))
    )
    write_profile(base.home.profile(name), CostProfile(pace, measured, str(torch.__version__), 1, 0.0))
    return base.add_hplms(Family(name, f"{name}-tenant", _HPLMS, distinct=_DISTINCT))


def _root_bytes(home: Home) -> int:
    with closing(Registry.open(home)) as registry:
        asked = {entry.name: Asked(_TOKENS) for entry in registry.roots()}
        found = models_of(home, registry, asked, Recorded.slots)
    return max(model.size_bytes for model in found.models)
