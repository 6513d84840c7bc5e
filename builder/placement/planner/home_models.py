"""The roots of a home as models to place: what their upper layers take, in time and in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from backends.engine.memory_sizes import layers_bytes, slots_bytes
from backends.errors import InvalidArgumentError, NotFoundError, shown
from backends.home import Home
from backends.registry.entries import RootEntry
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from backends.scheduling.cost_model import BatchShape, CostModel
from backends.scheduling.cost_profile import CostProfile, ForeignProfileError, has_profile, read_profile
from backends.scheduling.cuts import half_layers
from backends.scheduling.settings import Capacity
from builder.placement.planner.model import Model


@dataclass(frozen=True)
class RootModels:
    """Models in the order of the home's roots, and where requests for each hPLM go."""

    models: tuple[Model, ...]
    fingerprints: Mapping[str, str]
    number_of: Mapping[str, int]
    """By hPLM, and by root."""


@dataclass(frozen=True)
class _Costs:
    """What rows of a mean length take by themselves, and in full batches."""

    alone_us: float
    full_us: float
    rows: int

    @classmethod
    def of(cls, model: CostModel, capacity: Capacity, tokens: float) -> _Costs:
        rows = max(1, min(capacity.max_rows, capacity.max_adapters, int(capacity.max_tokens / tokens)))
        alone = BatchShape(1, tokens, tokens**2, 1)
        full = BatchShape(rows, rows * tokens, rows * tokens**2, rows)
        return cls(model.predict_us(alone), model.predict_us(full), rows)


def models_of(
    home: Home, registry: Registry, tokens: Mapping[str, float], slots: int, capacity: Capacity | None = None
) -> RootModels:
    """Read each root's profile and sizes.

    `tokens` are the mean lengths of the roots' texts. A device keeps `slots` adapters of each root, or fewer where a
    root has fewer hPLMs.

    Raises:
        HplmError: There is no root, or one without a profile, or with one of another device than the others'.
    """
    roots = registry.roots()
    if not roots:
        raise NotFoundError("this home has no root yet; 'hplm root add' makes one")
    profiles = [_profile(home, entry) for entry in roots]
    _require_one_device([entry.name for entry in roots], profiles)
    folders_of: dict[str, list[str]] = {entry.name: [] for entry in roots}
    number_of = {entry.name: number for number, entry in enumerate(roots)}
    for hplm in registry.hplms():
        folders_of[hplm.domain.root].append(hplm.folder)
        number_of[hplm.id] = number_of[hplm.domain.root]
    models = []
    for entry, profile in zip(roots, profiles, strict=True):
        folder = RootFolder(home.path / entry.folder)
        size_bytes = layers_bytes(folder, profile.measured.dtype) + slots_bytes(home, folders_of[entry.name], slots)
        costs = _Costs.of(profile.model, capacity or Capacity(), tokens[entry.name])
        models.append(_model(entry.name, folder.geometry.num_upper_layers, costs, size_bytes))
    return RootModels(tuple(models), {entry.name: entry.fingerprint for entry in roots}, number_of)


def _profile(home: Home, entry: RootEntry) -> CostProfile:
    root = entry.name
    if not has_profile(home.profile(root)):
        raise InvalidArgumentError(f"root {shown(root)} has no cost model yet; 'hplm profile --root {root}' makes one")
    profile = read_profile(home.profile(root))
    if profile.measured.root_fingerprint != entry.fingerprint:
        raise ForeignProfileError(
            f"the cost model of root {shown(root)} was measured with other weights; 'hplm profile --root {root}' makes "
            "one for these"
        )
    if not any(profile.model.to_json().values()):
        raise InvalidArgumentError(
            f"by the cost model of root {shown(root)} a batch takes no time; 'hplm profile --root {root}' measures it"
        )
    return profile


def _require_one_device(roots: Sequence[str], profiles: Sequence[CostProfile]) -> None:
    """Reject profiles of different hardware: their times cannot be compared."""
    first = profiles[0].measured.device
    for root, profile in zip(roots, profiles, strict=True):
        if profile.measured.device != first:
            raise ForeignProfileError(
                f"the cost model of root {shown(root)} was measured on {shown(profile.measured.device)}, that of "
                f"{shown(roots[0])} on {shown(first)}; 'hplm profile' them on one device"
            )


def _model(root: str, layers: int, costs: _Costs, size_bytes: int) -> Model:
    return Model(
        root,
        half_layers(_even(round(costs.alone_us), layers)),
        half_layers(_even(size_bytes, layers)),
        min(1.0, costs.full_us / costs.rows / costs.alone_us),
        round(costs.full_us),
    )


def _even(whole: int, count: int) -> list[int]:
    """Cut a whole in parts that add up to it and differ by 1 at most."""
    return [whole * (number + 1) // count - whole * number // count for number in range(count)]
