"""`hplm export`: its options in groups, each of which becomes settings or parameters of the rendered models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from backends.errors import HplmError, InvalidArgumentError
from backends.home import Home
from backends.lower.caller_check import Auth
from backends.lower.settings import FillingSettings, LowerDtype, Missing, TextLimits, lower_dtype_beside
from backends.registry.staleness import StalenessSettings
from backends.scheduling.settings import (
    AdmissionSettings,
    Ageing,
    Capacity,
    DasSettings,
    PolicyName,
    PolicySettings,
    ShareSettings,
)
from backends.traffic.settings import TrafficSettings
from builder.export.settings import ExportSettings
from cli.options import DEFAULT_HOME, HomeOption
from cli.session import open_home

if TYPE_CHECKING:
    from backends.registry.registry import Registry

_MAX_SLOTS = 65_536
"""Far more than fit on any device."""
_MAX_STAGES = 64
"""More than any root has upper layers."""
_US_PER_MS = 1000
_NAMED = 5
"""hPLMs in one line, at most."""


@dataclass(frozen=True)
class DeviceOptions:
    dtype: Annotated[
        Literal["auto", "bf16", "fp32", "int8", "fp8"],
        typer.Option(
            help="What layers compute in; fp32 takes the place of bf16 on processors without its instructions. With "
            "int8 the layers' shared products are in 8 bits, on processors with VNNI or AVX2 and on GPUs; all else is "
            "as with bf16. fp8 is the same in 8-bit floats, for GPUs only, where bf16 is faster than both. "
            "auto takes int8 where the processor has it, but no AMX, and nearly all labels stay; else bf16 or fp32."
        ),
    ] = "bf16"
    device: Annotated[Literal["cpu", "gpu"], typer.Option(help="Where the upper layers run.")] = ExportSettings.device
    int8_corpus: Annotated[
        list[Path] | None,
        typer.Option(
            help="With int8 and auto: texts, one per line, to prepare roots with and to measure on; may be repeated. "
            "\\[default: those that each root was made from]"
        ),
    ] = None
    slots: Annotated[
        int, typer.Option(help="Adapters on the device at once: those of the running batch and of the next.")
    ] = 128
    stages: Annotated[
        int,
        typer.Option(
            help="Stages that the upper layers are cut into, each on its share of the cores or on a GPU of its own. "
            "More than one pays where a root does not fit on a device; elsewhere it costs."
        ),
    ] = 1
    stage_models: Annotated[
        bool,
        typer.Option(
            "--stage-models",
            help="With --stages: each stage is a Triton model of its own, hplm_upper, hplm_stage_1 and so on, chained "
            "by the ensemble, where one process has all of them else. Rows are then answered by all layers.",
        ),
    ] = False
    device_memory: Annotated[
        str | None,
        typer.Option(
            help="What weights and slots of all roots may take in one stage, such as 2GB; a root for which too little "
            "is left is not served. \\[default: no limit]"
        ),
    ] = None

    def chosen(self, home: Home, registry: Registry, say: Callable[[str], None]) -> DeviceOptions:
        """Prepare roots for int8 where it may be taken; return the options with a dtype in place of `auto`.

        Raises:
            NotFoundError: A file of texts does not exist, whether it would be read or not.
        """
        if self.dtype == "fp8" and self.device != "gpu":
            raise InvalidArgumentError("--dtype fp8 is for GPUs: add --device gpu, or take int8")
        if self.dtype not in ("auto", "int8"):
            if self.int8_corpus:
                raise InvalidArgumentError(f"--int8-corpus is for --dtype int8 and auto, not {self.dtype}")
            return self
        from builder.construct.training.lines import require_file
        from builder.export.chosen_dtype import fastest_dtype_for, prepare_int8
        from builder.progress import progress_bars

        corpus, chosen = tuple(self.int8_corpus or ()), self
        for path in corpus:
            require_file(path, "corpus")
        with progress_bars("int8") as report:
            if self.dtype == "int8":
                lines = prepare_int8(home, registry, corpus, report)
            else:
                dtype, reason = fastest_dtype_for(home, registry, self.device, corpus, report)
                lines, chosen = [f"dtype {dtype}: {reason}"], replace(self, dtype=dtype)
        for line in lines:
            say(line)
        return chosen

    def parameters(self) -> dict[str, str]:
        if not 1 <= self.slots <= _MAX_SLOTS:
            raise InvalidArgumentError(f"--slots must be 1 to {_MAX_SLOTS}, not {self.slots}")
        if not 1 <= self.stages <= _MAX_STAGES:
            raise InvalidArgumentError(f"--stages must be 1 to {_MAX_STAGES}, not {self.stages}")
        stages = {"stages": str(self.stages)} if self.stages > 1 else {}
        return {"dtype": self.dtype, "slots": str(self.slots + 1), **stages, **self._memory_parameters()}

    def _memory_parameters(self) -> dict[str, str]:
        if self.device_memory is None:
            return {}
        from builder.placement.planner.device_spec import read_size

        size_bytes = read_size(self.device_memory, "--device-memory")
        if not size_bytes:
            raise InvalidArgumentError("--device-memory must be above 0; without it there is no limit")
        return {"device_memory": str(size_bytes)}


@dataclass(frozen=True)
class LowerOptions:
    missing: Annotated[
        Missing,
        typer.Option(
            help="For a fragment that no table holds: it is computed at once and kept (compute), a shorter one answers "
            "until it was computed in the background (learn), or a shorter one answers for good (fallback)."
        ),
    ] = FillingSettings.missing
    overlay_mb: Annotated[
        int, typer.Option(help="Memory for fragments that were computed, of one root in one process.")
    ] = FillingSettings.overlay_mb
    compute_limit: Annotated[
        int,
        typer.Option(
            help="With --missing compute: fragments computed for the requests that hplm_lower takes at once. Shorter "
            "ones answer for the rest, which is computed in the background; such answers say exact: false."
        ),
    ] = FillingSettings.compute_limit
    max_text_bytes: Annotated[
        int, typer.Option(help="A longer text is cut before it is read; its answer says truncated.")
    ] = TextLimits.max_text_bytes
    lower_instances: Annotated[
        int, typer.Option(help="Processes that look texts up; a second one pays where cores are free, not on two.")
    ] = ExportSettings.lower_instances
    lower_threads: Annotated[
        int, typer.Option(help="Threads of each of them; more than one helps only where much is computed.")
    ] = 1
    stale_limit_s: Annotated[
        int,
        typer.Option(
            help="While the registry is away, what was live is served for so long; then all requests are rejected."
        ),
    ] = StalenessSettings.limit_s

    def parameters(self, dtype: LowerDtype) -> dict[str, str]:
        if self.lower_threads < 1:
            raise InvalidArgumentError("--lower-threads must be at least 1")
        filling = FillingSettings(self.missing, self.overlay_mb, self.compute_limit, dtype)
        limits, staleness = TextLimits(self.max_text_bytes), StalenessSettings(self.stale_limit_s)
        others = limits.parameters | staleness.parameters
        return {"threads": str(self.lower_threads), **filling.parameters, **others}


@dataclass(frozen=True)
class BatchOptions:
    max_batch_size: Annotated[int, typer.Option(help="Rows in one request or batch, at most.")] = (
        ExportSettings.max_batch_size
    )
    policy: Annotated[PolicyName, typer.Option(help="Which waiting requests make the next batch.")] = (
        PolicySettings.name
    )
    eta: Annotated[
        float, typer.Option(help="With das and slotted-das: the share of a batch that the shortest requests fill.")
    ] = DasSettings.eta
    q: Annotated[
        float,
        typer.Option(
            help="With das and slotted-das: the rest goes by deadlines to those worth this share of the shortest."
        ),
    ] = DasSettings.q
    patience_ms: Annotated[
        int,
        typer.Option(
            help="A request without a deadline that has waited so long gets a part of the batches; with all but fcfs."
        ),
    ] = Ageing.patience_us // _US_PER_MS
    max_tokens: Annotated[int, typer.Option(help="Tokens in one batch of the upper model, at most.")] = (
        Capacity.max_tokens
    )

    def parameters(self) -> dict[str, str]:
        if self.max_tokens < 1:
            raise InvalidArgumentError("--max-tokens must be at least 1")
        das, ageing = DasSettings(self.eta, self.q), Ageing(_US_PER_MS * self.patience_ms)
        limits = {"max_rows": str(self.max_batch_size), "max_tokens": str(self.max_tokens)}
        return limits | PolicySettings(self.policy, das, ageing).parameters


@dataclass(frozen=True)
class ModeOptions:
    mode: Annotated[
        Literal["engine", "triton"],
        typer.Option(help="Who chooses the batches of the upper model: its engine, or Triton with a plugin of ours."),
    ] = ExportSettings.mode
    plugin: Annotated[
        Path | None, typer.Option(help="Take this built batching plugin of Triton instead of building one.")
    ] = None
    no_plugin: Annotated[
        bool,
        typer.Option(
            "--no-plugin",
            help="Take no batching plugin along, so that the folder also runs on another kind of processor.",
        ),
    ] = False
    queue_delay_us: Annotated[
        int, typer.Option(help="With --mode triton: how long Triton waits for a batch to fill while nothing runs.")
    ] = ExportSettings.queue_delay_us


@dataclass(frozen=True)
class WaitingOptions:
    max_waiting: Annotated[int, typer.Option(help="Rows that wait for the engine, at most.")] = (
        AdmissionSettings.max_waiting
    )
    tenant_quota: Annotated[
        int | None,
        typer.Option(help="Rows of one tenant that wait, at most; hplm quota sets others. \\[default: half of all]"),
    ] = AdmissionSettings.tenant_quota
    burst_ms: Annotated[
        int, typer.Option(help="Device time that a tenant may ask for at once before it stands behind others.")
    ] = round(ShareSettings.burst_us / _US_PER_MS)
    admission: Annotated[
        bool,
        typer.Option("--admission/--no-admission", help="Reject at once a row that is predicted to be late."),
    ] = AdmissionSettings.predicts
    margin_percent: Annotated[
        int, typer.Option(help="By how much longer predictions are taken than they are, at least.")
    ] = AdmissionSettings.margin_percent

    def parameters(self) -> dict[str, str]:
        shares = ShareSettings(burst_us=float(_US_PER_MS * self.burst_ms))
        quota, margin = self.tenant_quota, self.margin_percent
        return AdmissionSettings(self.max_waiting, quota, self.admission, margin, shares).parameters


@dataclass(frozen=True)
class AccessOptions:
    auth: Annotated[
        Auth,
        typer.Option(
            help="Who may ask: everybody who reaches the server (off), or callers with a token of hplm token (tokens)."
        ),
    ] = Auth.OFF

    def parameters(self) -> dict[str, str]:
        return {"auth": self.auth.value}


@dataclass(frozen=True)
class TrafficOptions:
    record_traffic: Annotated[
        bool,
        typer.Option(
            "--record-traffic/--no-record-traffic",
            help="Record who asks what when, never a text, in HOME/traffic; see hplm traffic.",
        ),
    ] = TrafficSettings.record
    traffic_mb: Annotated[int, typer.Option(help="Disk space of what is recorded, at most; the oldest goes first.")] = (
        TrafficSettings.max_mb
    )
    traffic_days: Annotated[int, typer.Option(help="What was recorded longer ago is removed.")] = (
        TrafficSettings.max_days
    )

    def parameters(self) -> dict[str, str]:
        return TrafficSettings(self.record_traffic, self.traffic_mb, self.traffic_days).parameters


def export_settings(
    device: DeviceOptions = DeviceOptions(),
    lower: LowerOptions = LowerOptions(),
    batch: BatchOptions = BatchOptions(),
    mode: ModeOptions = ModeOptions(),
    waiting: WaitingOptions = WaitingOptions(),
    access: AccessOptions = AccessOptions(),
    traffic: TrafficOptions = TrafficOptions(),
) -> ExportSettings:
    """Return what the options come to, all written out; without any, what a plain `hplm export` renders."""
    upper = device.parameters() | batch.parameters()
    return ExportSettings(
        max_batch_size=batch.max_batch_size,
        lower_instances=lower.lower_instances,
        device=device.device,
        mode=mode.mode,
        queue_delay_us=mode.queue_delay_us,
        stage_models=device.stage_models,
        plugin=mode.plugin,
        takes_plugin=not mode.no_plugin,
        lower_parameters=lower.parameters(lower_dtype_beside(device.dtype))
        | access.parameters()
        | traffic.parameters(),
        upper_parameters=upper | waiting.parameters(),
    )


def export(
    home: HomeOption = DEFAULT_HOME,
    *,
    device: DeviceOptions = DeviceOptions(),
    lower: LowerOptions = LowerOptions(),
    batch: BatchOptions = BatchOptions(),
    mode: ModeOptions = ModeOptions(),
    waiting: WaitingOptions = WaitingOptions(),
    access: AccessOptions = AccessOptions(),
    traffic: TrafficOptions = TrafficOptions(),
) -> None:
    """Render the Triton model repository; the same folder runs in NVIDIA's container, on the same kind of processor."""
    from builder.export.in_force import differences, prepared_anew, settings_of, smoothings_of
    from builder.export.repository import render_repository

    opened, registry = open_home(home)
    others = lower, batch, mode, waiting, access, traffic
    # Wrong options are rejected before anything is measured; what `auto` takes is known afterwards only.
    settings = export_settings(device, *others)
    if device.dtype != "auto":
        _require_cuts(device, settings, opened, registry)
    smoothings = smoothings_of(opened, registry)
    settings = export_settings(device.chosen(opened, registry, typer.echo), *others)
    if device.dtype == "auto":
        _require_cuts(device, settings, opened, registry)
    if settings.mode == "triton":
        settings = _with_cost_model(settings, opened, registry)
    before = _settings_before(opened.repository)
    render_repository(opened.repository, settings, say=_complain)
    typer.echo(f"rendered {opened.repository}")
    changes = differences(before, settings_of(opened.repository)) if before else []
    if before and settings.upper_parameters["dtype"] == "int8":
        changes += prepared_anew(smoothings, smoothings_of(opened, registry))
    for line in changes:
        typer.echo(f"  {line}")
    if any(line.startswith("upper dtype") for line in changes):
        _name_certified(registry)
    if before:
        typer.echo("a running server keeps its settings until it is restarted" if changes else "no setting changed")


def _require_cuts(device: DeviceOptions, settings: ExportSettings, home: Home, registry: Registry) -> None:
    if device.stages > 1 or device.device_memory is not None:
        from builder.export.stages import require_cuts

        require_cuts(home, registry, settings, _complain)


def _name_certified(registry: Registry) -> None:
    """Name the hPLMs whose early answers were certified in the dtype that goes."""
    from backends.wire import EARLY

    early = [entry.id for entry in registry.hplms() if EARLY in entry.levels]
    if early:
        more = f" and {len(early) - _NAMED} more" if len(early) > _NAMED else ""
        named = ", ".join(early[:_NAMED])
        _complain(f"certified in another dtype, so select them again ('hplm select ID'): {named}{more}")


def _settings_before(repository: Path) -> dict[str, str]:
    """Read what is about to be replaced; where that is damaged, say so, and go on."""
    from builder.export.in_force import settings_of

    try:
        return settings_of(repository)
    except HplmError as error:
        _complain(f"replacing a damaged repository: {error}")
        return {}


def _with_cost_model(settings: ExportSettings, home: Home, registry: Registry) -> ExportSettings:
    from builder.export.cost_model import dearest_cost_model

    roots = sorted({entry.domain.root for entry in registry.hplms()})
    return replace(settings, cost_model=dearest_cost_model(home, roots, settings, _complain))


def _complain(line: str) -> None:
    typer.echo(line, err=True)
