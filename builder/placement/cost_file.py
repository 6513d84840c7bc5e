"""The cost model of a simulation: one that `hplm profile` stored, or a JSON file of its numbers."""

from __future__ import annotations

import json
from pathlib import Path

from backends.errors import CorruptFileError, InvalidArgumentError
from backends.fields import Fields
from backends.home import Home
from backends.scheduling.cost_model import CostModel
from backends.scheduling.cost_profile import CostProfile, has_profile, read_profile
from backends.storage import read_json


def cost_model_of(home: Home, root: str) -> CostModel:
    """Read the root's own profile, whatever machine it was measured on."""
    folder = home.profile(root)
    if not has_profile(folder):
        raise InvalidArgumentError(
            f"root {root!r} has no cost model yet; 'hplm profile' makes one, or name a file with --cost-model"
        )
    return read_profile(folder).model


def read_cost_model(path: Path) -> CostModel:
    """Read a stored profile, of any machine, or a JSON object of the model's numbers alone."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(f"{path} is not a cost model: {error}") from error
    where = f"{path} is not a cost model; it"
    if isinstance(content, dict) and "model" in content:
        return CostProfile.read(Fields(read_json(path), where)).model
    return CostModel.read(Fields(content, where))
