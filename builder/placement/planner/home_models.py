"""The stacks of a home as models to place: roots' upper layers and students, with their time and memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from backends.adapters.bank import weights_bytes
from backends.adapters.student_adapters import student_weights_bytes
from backends.engine.memory_sizes import layers_bytes, slots_bytes
from backends.engine.precision import fast_float_dtype, precision_of
from backends.errors import shown
from backends.home import Home
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from backends.root.student_set import StudentSet, read_students
from backends.scheduling.cost_model import BatchShape, CostModel
from backends.scheduling.cost_profile import (
    CostProfile,
    ForeignProfileError,
    Measured,
    device_name,
)
from backends.scheduling.cuts import half_layers
from backends.scheduling.settings import Capacity
from backends.stack_key import FULL, STUDENTS
from builder.placement.planner.asked_stacks import Asked
from builder.placement.planner.group import level_name
from builder.placement.planner.model import Model
from builder.placement.planner.root_profiles import root_profile

_ANYWHERE = "fp32"
"""The dtype that every device has."""


@dataclass(frozen=True)
class HomeModels:
    """All roots in the home's order, then the students of those that have some."""

    models: tuple[Model, ...]
    fingerprints: Mapping[str, str]
    dtype: str
    """Of the upper layers, for which times and sizes hold."""

    @property
    def number_of(self) -> Mapping[str, int]:
        """Models by their names."""
        return {model.name: number for number, model in enumerate(self.models)}


@dataclass(frozen=True)
class _Costs:
    """What a row takes by itself, and what full batches take, of rows as they are asked in the mean."""

    alone_us: float
    full_us: float
    rows: int

    @classmethod
    def of(cls, model: CostModel, capacity: Capacity, asked: Asked, deepest: float) -> _Costs:
        """Predict both by the root's profile; `deepest` is the depth of a full batch."""
        tokens = asked.tokens
        rows = max(1, min(capacity.max_rows, capacity.max_adapters, int(capacity.max_tokens / tokens)))
        likely, passed = asked.likely_depth, asked.least_depth * rows
        alone = BatchShape(1, likely * tokens, likely * tokens**2, 1, likely)
        full = BatchShape(rows, passed * tokens, passed * tokens**2, rows, deepest)
        return cls(model.predict_us(alone), model.predict_us(full), rows)


def models_of(
    home: Home,
    registry: Registry,
    asked: Mapping[str, Asked],
    slots: int,
    capacity: Capacity = Capacity(),
    exported_dtype: str | None = None,
) -> HomeModels:
    """Read each root's profile and sizes.

    `asked` says what requests are like, by the model's name. A device keeps `slots` adapters for each model, or fewer
    where fewer hPLMs have some. Without an `exported_dtype` that of the profiles counts.

    Raises:
        HplmError: A root has no profile, or one of another device or dtype than the others' or the export's.
    """
    roots = registry.roots()
    profiles = [root_profile(home, entry) for entry in roots]
    names = [entry.name for entry in roots]
    if exported_dtype is not None:
        _require_dtype(names, profiles, exported_dtype)
    _require_alike(names, profiles)
    hplms: dict[str, list[HplmEntry]] = {entry.name: [] for entry in roots}
    for hplm in registry.hplms():
        hplms[hplm.domain.root].append(hplm)
    parts = [
        _Root(home, entry.name, profile, slots, capacity, hplms[entry.name])
        for entry, profile in zip(roots, profiles, strict=True)
    ]
    folders = [RootFolder(home.path / entry.folder) for entry in roots]
    full = [each.full(folder, asked) for each, folder in zip(parts, folders, strict=True)]
    students = [each.students(folder, asked) for each, folder in zip(parts, folders, strict=True)]
    models = (*full, *(each for each in students if each is not None))
    fingerprints = {entry.name: entry.fingerprint for entry in roots}
    return HomeModels(models, fingerprints, profiles[0].measured.dtype)


@dataclass(frozen=True)
class _Root:
    """What the models of one root are made of."""

    home: Home
    name: str
    profile: CostProfile
    slots: int
    capacity: Capacity
    hplms: Sequence[HplmEntry]

    def full(self, folder: RootFolder, asked: Mapping[str, Asked]) -> Model:
        """Return its upper layers, all of which some row of a full batch passes, though others leave early."""
        costs = _Costs.of(self.profile.model, self.capacity, asked[self.name], deepest=1.0)
        return self._model(FULL, folder.geometry.num_upper_layers, costs, folder.upper_bytes, self.hplms, weights_bytes)

    def students(self, folder: RootFolder, asked: Mapping[str, Asked]) -> Model | None:
        """Return its students, if any hPLM answers by them; they cost a share of what the upper layers do."""
        found = read_students(folder)
        own = [] if found is None else [entry for entry in self.hplms if _goes_with(entry, found)]
        if found is None or not own:
            return None
        means = asked.get(level_name(self.name, STUDENTS))
        if means is None:
            means = Asked(asked[self.name].tokens, found.shape.count * found.depth, found.depth)
        costs = _Costs.of(self.profile.model, self.capacity, means, means.least_depth)
        layers = found.shape.count * found.shape.layers
        return self._model(STUDENTS, layers, costs, found.served_bytes, own, student_weights_bytes)

    def _model(
        self,
        level: str,
        layers: int,
        costs: _Costs,
        stored_bytes: int,
        hplms: Sequence[HplmEntry],
        slot_bytes_of: Callable[[Path], int],
    ) -> Model:
        weights = layers_bytes(stored_bytes, self.profile.measured.dtype)
        folders = [self.home.path / entry.folder for entry in hplms]
        adapters = slots_bytes(folders, self.slots, _states(self.profile.measured), slot_bytes_of)
        return Model(
            self.name,
            half_layers(_even(round(costs.alone_us), layers)),
            half_layers(_even(weights + adapters, layers)),
            costs.rows,
            round(costs.full_us),
            level,
        )


def _states(measured: Measured) -> torch.dtype:
    """Return the data type of states and adapters; of int8 on another machine's processor it is taken to be bf16."""
    cpu = torch.device("cpu")
    lacks_bf16 = measured.device == device_name(cpu) and fast_float_dtype(cpu) == "fp32"
    return torch.float32 if measured.dtype == "fp32" or lacks_bf16 else torch.bfloat16


def _goes_with(entry: HplmEntry, students: StudentSet) -> bool:
    return entry.students is not None and entry.students.edition == students.fingerprint


def _require_dtype(roots: Sequence[str], profiles: Sequence[CostProfile], exported: str) -> None:
    """Reject profiles of another dtype than a server of the export computes in on the profiles' device."""
    for root, profile in zip(roots, profiles, strict=True):
        served = _served_dtypes(exported, profile.measured.device)
        if profile.measured.dtype not in served:
            raise ForeignProfileError(
                f"the cost model of root {shown(root)} was measured in {profile.measured.dtype}, and the export serves "
                f"in {served[0]}; 'hplm profile --root {root} --dtype {served[0]}' makes one"
            )


def _served_dtypes(exported: str, name: str) -> tuple[str, ...]:
    """Return what a device computes in for an export: its dtype, or fp32 where the device lacks that.

    Of another machine's device it is not known which, so either will do.
    """
    cpu, gpu = torch.device("cpu"), torch.device("cuda:0")
    if name == device_name(cpu):
        return (precision_of(exported, cpu).dtype,)
    if torch.cuda.is_available() and name == device_name(gpu):
        return (precision_of(exported, gpu).dtype,)
    return exported, _ANYWHERE


def _require_alike(roots: Sequence[str], profiles: Sequence[CostProfile]) -> None:
    """Reject profiles of different hardware or dtypes: their times cannot be compared."""
    first = profiles[0].measured
    for root, profile in zip(roots, profiles, strict=True):
        found = profile.measured
        if found.device != first.device:
            raise ForeignProfileError(
                f"the cost model of root {shown(root)} was measured on {shown(found.device)}, that of "
                f"{shown(roots[0])} on {shown(first.device)}; 'hplm profile' them on one device"
            )
        if found.dtype != first.dtype:
            raise ForeignProfileError(
                f"the cost model of root {shown(root)} was measured in {found.dtype}, that of {shown(roots[0])} in "
                f"{first.dtype}; 'hplm profile --root {root} --dtype {first.dtype}' makes one"
            )


def _even(whole: int, count: int) -> list[int]:
    """Cut a whole in parts that add up to it and differ by 1 at most."""
    return [whole * (number + 1) // count - whole * number // count for number in range(count)]
