"""A cost model as `hplm profile` stores it, with all that it holds for: `profiles/<root>/cost_model.json`."""

from __future__ import annotations

import logging
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backends.errors import FileError
from backends.fields import Fields, read_fields
from backends.scheduling.cost_model import CostModel
from backends.storage import write_json

if TYPE_CHECKING:
    import torch

LOGGER = logging.getLogger(__name__)
FORMAT_VERSION = 1
_FILE = "cost_model.json"


class ForeignProfileError(FileError):
    """A cost model was measured on another device, or in another way, than it is to predict."""

    complaint = "measured elsewhere"


@dataclass(frozen=True)
class Measured:
    """What a cost model holds for, and for nothing else."""

    root_fingerprint: str
    device: str
    dtype: str
    layout: str
    threads: int


@dataclass(frozen=True)
class CostProfile:
    """A fitted model; the error is the mean of the absolute ones of held-out batches, in percent.

    `layers_us` is what one batch takes in each upper layer; nothing in profiles of earlier releases.
    """

    model: CostModel
    measured: Measured
    torch_version: str
    num_samples: int
    error_percent: float
    layers_us: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"format_version": FORMAT_VERSION, **asdict(self)}

    @classmethod
    def read(cls, stored: Fields) -> CostProfile:
        measured = stored.part("measured")
        return cls(
            CostModel.read(stored.part("model")),
            Measured(
                measured.text("root_fingerprint"),
                measured.text("device"),
                measured.text("dtype"),
                measured.text("layout"),
                measured.whole("threads"),
            ),
            stored.text("torch_version"),
            stored.whole("num_samples"),
            stored.number("error_percent"),
            stored.wholes("layers_us") if "layers_us" in stored else (),
        )


def write_profile(folder: Path, profile: CostProfile) -> Path:
    """`folder` is the root's own; an old file is replaced in one step."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / _FILE
    write_json(path, profile.to_json())
    return path


def has_profile(folder: Path) -> bool:
    return (folder / _FILE).exists()


def read_profile(folder: Path) -> CostProfile:
    return CostProfile.read(read_fields(folder / _FILE, FORMAT_VERSION))


def layer_times(folder: Path, fingerprint: str, num_layers: int) -> Sequence[int]:
    """Return what a batch takes in each layer of a root, in any unit; the same for all where nothing was measured."""
    alike = [1] * num_layers
    if not has_profile(folder):
        return alike
    try:
        profile = read_profile(folder)
    except FileError as error:
        LOGGER.warning("all layers count alike, because %s", error)
        return alike
    is_of_root = profile.measured.root_fingerprint == fingerprint and len(profile.layers_us) == num_layers
    return profile.layers_us if is_of_root and any(profile.layers_us) else alike


def profile_for(folder: Path, wanted: Measured) -> CostProfile:
    """The root's profile, if it holds for what is `wanted`; of a GPU, whatever the number of threads."""
    profile = read_profile(folder)
    compared = asdict(wanted)
    if wanted.device != cpu_name():
        del compared["threads"]
    for name, value in compared.items():
        found = getattr(profile.measured, name)
        if found != value:
            what = name.replace("_", " ")
            raise ForeignProfileError(f"{folder / _FILE} was measured with {what} {found!r}, not {value!r}")
    return profile


def device_name(device: torch.device) -> str:
    """The name of the hardware behind a device."""
    if device.type != "cuda":
        return cpu_name()
    import torch  # takes seconds to import, and who reads profiles needs none of it

    return torch.cuda.get_device_name(device)


def cpu_name() -> str:
    """The name of this machine's processor."""
    return _model_name() or platform.processor() or platform.machine()


def _model_name() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
