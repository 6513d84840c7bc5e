"""The settings of a rendered repository, as one line and as differences between two exports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from backends.deadline_batcher import FILE_NAME, call_plan_parameters, version_of
from backends.engine.defaults import DTYPE, LAYOUT, NUM_SLOTS
from backends.engine.gpu_capability import LEAST_CAPABILITY, Capability
from backends.errors import CorruptFileError, InvalidArgumentError, shown
from backends.home import Home
from backends.lower.caller_check import Auth
from backends.lower.settings import FillingSettings
from backends.registry.staleness import StalenessSettings
from backends.root.int8_file import smoothing_checksum
from backends.scheduling.settings import AdmissionSettings, Capacity, PolicySettings
from backends.storage import read_errors_are_clear
from backends.traffic.settings import TrafficSettings
from builder.cpu_flags import FAST_BF16, FAST_INT8
from builder.export.config import ModelDescription, from_text, to_text
from builder.export.model_names import LOWER, UPPER, code_model, exported_models
from builder.export.of_run import SettingsOfRun
from builder.export.settings import HOME_PARAMETER
from builder.gpus import best_capability

if TYPE_CHECKING:
    from backends.registry.registry import Registry

_SHOWN = (
    "upper policy",
    "upper mode",
    "upper device",
    "upper dtype",
    "upper layout",
    "upper slots",
    "upper stages",
    "upper stage_models",
    "upper device_memory",
    "upper max_batch_size",
    "upper max_tokens",
    "upper max_waiting",
    "upper tenant_quota",
    "upper admission",
    "upper margin_percent",
    "lower missing",
    "lower compute_limit",
    "lower overlay_mb",
    "lower stale_limit_s",
    "lower processes",
    "lower auth",
    "lower record_traffic",
)
_NOT_CHOSEN = {HOME_PARAMETER, "max_request_rows", *call_plan_parameters()}
"""What the export writes by itself."""
Settings = Mapping[str, str]
FindCapability = Callable[[], Capability | None]


def settings_of(repository: Path) -> dict[str, str]:
    """Read the settings of both models, as `lower missing` or `upper policy`; {} where nothing is rendered.

    Raises:
        CorruptFileError: A configuration is none.
        UnreadableFileError: It cannot be read.
    """
    settings: dict[str, str] = {}
    for name in (LOWER, UPPER):
        path = repository / name / "config.pbtxt"
        if not path.exists():
            return {}
        model, short = _description_at(path), _short(name)
        if model.instances is not None:
            settings[f"{short} device"] = model.instances.kind.lower()
            settings[f"{short} processes"] = str(model.instances.count)
        settings[f"{short} max_batch_size"] = str(model.max_batch_size)
        settings[f"{short} code"] = _digest_of(path.parent / "1" / "model.py")
        settings[f"{short} plugin"] = _plugin_at(path.parent / "1" / FILE_NAME)
        settings |= {f"{short} {key}": value for key, value in model.parameters.items() if key not in _NOT_CHOSEN}
    if (slots := settings.get("upper slots")) is not None:
        if not slots.isdecimal():
            raise CorruptFileError(f"{repository / UPPER / 'config.pbtxt'} has {shown(slots)} slots")
        # One more is rendered: slot 0 stands for no adapter.
        settings["upper slots"] = str(int(slots) - 1)
    if settings.pop("upper stage", None) is not None:
        settings["upper stage_models"] = "true"
    return settings


def _description_at(path: Path) -> ModelDescription:
    try:
        with read_errors_are_clear(path):
            return from_text(path.read_text(encoding="utf-8"))
    except (CorruptFileError, InvalidArgumentError, UnicodeDecodeError) as error:
        raise CorruptFileError(f"{path}: {error}") from error


def _digest_of(path: Path) -> str:
    with read_errors_are_clear(path):
        return blake2b(path.read_bytes(), digest_size=4).hexdigest() if path.is_file() else "none"


def _plugin_at(path: Path) -> str:
    with read_errors_are_clear(path):
        return f"plan {version_of(path) or 'unknown'}" if path.is_file() else "none"


def effective_settings(repository: Path) -> dict[str, str]:
    """Read the settings as a server runs with them: the models' defaults where the repository names none."""
    settings = settings_of(repository)
    return {**_defaults(), **settings} if settings else {}


def _defaults() -> dict[str, str]:
    capacity = Capacity()
    upper = {
        "dtype": DTYPE,
        "layout": LAYOUT,
        "slots": str(NUM_SLOTS - 1),
        "max_rows": str(capacity.max_rows),
        "max_tokens": str(capacity.max_tokens),
        **PolicySettings().parameters,
        **AdmissionSettings().parameters,
    }
    lower = {**FillingSettings().parameters, **StalenessSettings().parameters, "auth": Auth.OFF.value}
    lower |= TrafficSettings().parameters
    return {f"upper {name}": value for name, value in upper.items()} | {
        f"lower {name}": value for name, value in lower.items()
    }


def exported_capacity(repository: Path) -> Capacity:
    """Read what a batch of the upper half may hold; the default where nothing is rendered.

    Raises:
        CorruptFileError: The configuration says no numbers.
    """
    settings = effective_settings(repository)
    if not settings:
        return Capacity()
    limits = [settings[f"upper {name}"] for name in ("max_rows", "max_tokens", "slots")]
    if not all(limit.isdecimal() for limit in limits):
        raise CorruptFileError(f"{repository / UPPER / 'config.pbtxt'} has {shown(limits)} rows, tokens and slots")
    return Capacity(*map(int, limits))


def exported_dtype(repository: Path) -> str | None:
    """Read what the upper half is to compute in; None where nothing is rendered."""
    return effective_settings(repository).get("upper dtype")


def changes_of_run(
    repository: Path, of_run: SettingsOfRun, flags: frozenset[str], find_capability: FindCapability = best_capability
) -> dict[str, str]:
    """Return the settings that one run has otherwise than the repository, as `upper policy`.

    Args:
        repository: As an export has rendered it.
        of_run: What is given for this run.
        flags: Of the processor.
        find_capability: Finds that of the machine's best GPU, where it matters.
    """
    settings = effective_settings(repository)
    changes = of_run.parameters
    for model in (_short(LOWER), _short(UPPER)):
        if exported := settings.get(f"{model} dtype"):
            is_on_cpu = settings.get(f"{model} device", "cpu") == "cpu"
            in_force = _dtype_on_cpu(exported, flags) if is_on_cpu else _dtype_on_gpu(exported, find_capability)
            changes |= {} if in_force == exported else {f"{model} dtype": in_force}
    return changes


def _dtype_on_cpu(exported: str, flags: frozenset[str]) -> str:
    """Return what a model computes in where the processor lacks instructions for what is exported."""
    if exported == "fp8" or (exported == "int8" and not flags.intersection(FAST_INT8)):
        exported = "bf16"
    return "fp32" if exported == "bf16" and not flags & FAST_BF16 else exported


def _dtype_on_gpu(exported: str, find_capability: FindCapability) -> str:
    """Return what a model computes in where no GPU of the machine has what is exported.

    Where the driver does not say it, or only one of several GPUs lacks it, the model finds out and logs when it loads.
    """
    if exported not in LEAST_CAPABILITY or (found := find_capability()) is None:
        return exported
    return next((dtype for dtype in (exported, "bf16") if found >= LEAST_CAPABILITY[dtype]), "fp32")


def configurations_of_run(repository: Path, changes: Mapping[str, str]) -> dict[str, str]:
    """Return the configurations of the models with changes, so that Triton reports what is in force."""
    found: dict[str, str] = {}
    for name in exported_models(repository):
        short = _short(code_model(name))
        of_model = {key.partition(" ")[2]: value for key, value in changes.items() if key.startswith(short)}
        if of_model:
            model = _description_at(repository / name / "config.pbtxt")
            found[name] = to_text(replace(model, parameters={**model.parameters, **of_model}))
    return found


def _short(model: str) -> str:
    return model.removeprefix("hplm_")


def in_one_line(settings: Settings, changes: Mapping[str, str] | None = None) -> str:
    """Write settings in a line; changes of a run are marked as such."""
    settings = {**settings, **{name: f"{value} (of this run)" for name, value in (changes or {}).items()}}
    return ", ".join(f"{name.partition(' ')[2]} {settings[name]}" for name in _SHOWN if name in settings)


def smoothings_of(home: Home, registry: Registry) -> dict[str, str | None]:
    """Return what roots are prepared for int8 with, which servers read when they start."""
    return {root.name: smoothing_checksum(home.root(root.name)) for root in registry.roots()}


def prepared_anew(before: Mapping[str, str | None], now: Mapping[str, str | None]) -> list[str]:
    """List the roots that are prepared for int8 otherwise than before."""
    return [
        f"root {name} is prepared anew for int8" for name, smoothing in now.items() if before.get(name) != smoothing
    ]


def differences(before: Settings, after: Settings) -> list[str]:
    """List the changed settings as `upper policy: fcfs → das`."""
    names = {*before, *after}
    return [
        f"{name}: {before.get(name, 'not set')} → {after.get(name, 'not set')}"
        for name in sorted(names)
        if before.get(name) != after.get(name)
    ]
