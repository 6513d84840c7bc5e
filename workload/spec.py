"""The one language in which users describe loads, for `hplm simulate` and `hplm loadtest`.

    arrivals    poisson · even · gamma:cv=2 · bursts:ratio=9,stay=2s · trace:FILE
    load        200/s requests per second · 1.5x times what the server can do
    lengths     normal:deviation=20,mean=20 · fixed:tokens=20 · trace
    tenants     uniform:count=1000 · zipf:count=1000,exponent=1 · trace
    deadlines   200ms · 100ms-400ms · 5x-20x times a full batch · trace
    duration    500ms · 30s · 5m · 1h

Names of parameters may be left out (`bursts:9:2s`), and parameters that have a default too. Accepted besides, from
earlier versions: `deterministic` is even, `mmpp` is bursts, numbers without units are seconds, milliseconds for
deadlines, and for a load what the command says.

Everything here raises WorkloadError with one line for the user.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from workload.arrivals import (
    Arrivals,
    DeterministicArrivals,
    GammaArrivals,
    MarkovModulatedArrivals,
    PoissonArrivals,
)
from workload.deadlines import UniformDeadlines
from workload.errors import WorkloadError
from workload.forms import Forms, Parameter, Values, quoted, read_duration_s, read_measure, read_number
from workload.lengths import FixedLengths, Lengths, NormalLengths
from workload.tenants import Tenants, UniformTenants, ZipfTenants

TRACE = "trace"
_DEFAULT_TENANTS = 1000
_ARRIVALS = Forms(
    "arrivals",
    {
        "poisson": (),
        "even": (),
        "gamma": (Parameter("cv", 2.0, read_number),),
        "bursts": (Parameter("ratio", 9.0, read_number), Parameter("stay", 2.0, read_duration_s)),
    },
    {"deterministic": "even", "mmpp": "bursts"},
    (f"{TRACE}:FILE",),
)
_LENGTHS = Forms(
    "lengths",
    {
        "normal": (Parameter("deviation", None, read_number), Parameter("mean", 20.0, read_number)),
        "fixed": (Parameter("tokens", None, read_number),),
    },
    {},
    (TRACE,),
)
_COUNT = Parameter("count", _DEFAULT_TENANTS, read_number)
_EXPONENT = Parameter("exponent", 1.0, read_number)
_TENANTS = Forms("tenants", {"uniform": (_COUNT,), "zipf": (_COUNT, _EXPONENT)}, {}, (TRACE,))
_TENANTS_OF_KNOWN_COUNT = Forms("tenants", {"uniform": (), "zipf": (_EXPONENT,)}, {}, (TRACE,))


@dataclass(frozen=True)
class ArrivalSpec:
    """The arrivals of requests, at a rate that is known later; of a trace only the file."""

    kind: str
    values: Values
    trace: Path | None = None

    def at_rate(self, rate_per_s: float) -> Arrivals:
        match self.kind:
            case "poisson":
                return PoissonArrivals(rate_per_s)
            case "even":
                return DeterministicArrivals(rate_per_s)
            case "gamma":
                return GammaArrivals(rate_per_s, self.values["cv"])
            case "bursts":
                return MarkovModulatedArrivals.bursts(rate_per_s, self.values["ratio"], self.values["stay"])
        raise WorkloadError("a trace has its own times; it is replayed, not drawn at a rate")


def parse_arrivals(text: str, defaults: Values | None = None) -> ArrivalSpec:
    """Read arrivals; `defaults` are for parameters that the text leaves out."""
    kind, _, path = text.partition(":")
    if kind == TRACE and path:
        return ArrivalSpec(TRACE, {}, Path(path))
    kind, values = _ARRIVALS.read(text, defaults or {})
    spec = ArrivalSpec(kind, values)
    spec.at_rate(1.0)  # checks the parameters
    return spec


@dataclass(frozen=True)
class LoadSpec:
    """The amount of a load: requests per second, or a multiple of what the server can do."""

    value: float
    unit: Literal["/s", "x"]

    @property
    def is_relative(self) -> bool:
        return self.unit == "x"

    def rate_per_s(self, capacity_per_s: float) -> float:
        return self.value * capacity_per_s if self.is_relative else self.value


def parse_load(text: str, bare_unit: Literal["/s", "x"], option: str = "load") -> LoadSpec:
    """Read `200/s` or `1.5x`; a number without a unit is in `bare_unit`."""
    value, unit = read_measure(text, {"/s": 1.0, "x": 1.0}, option, "number such as 200/s or 1.5x")
    return LoadSpec(value, "/s" if (unit or bare_unit) == "/s" else "x")


def parse_lengths(text: str) -> Lengths | None:
    """Read lengths; None for those of a trace."""
    if text == TRACE:
        return None
    kind, values = _LENGTHS.read(text, {})
    if kind == "normal":
        return NormalLengths(values["deviation"], values["mean"])
    return FixedLengths(int(values["tokens"]))


@dataclass(frozen=True)
class TenantSpec:
    """The tenants of requests, among a number that may be known later."""

    kind: str
    values: Values

    @property
    def count(self) -> int:
        return int(self.values["count"])

    def among(self, count: int) -> Tenants:
        if self.kind == "uniform":
            return UniformTenants(count)
        return ZipfTenants(count, self.values["exponent"])


def parse_tenants(text: str, count_is_known: bool) -> TenantSpec | None:
    """Read tenants; None for those of a trace.

    If the count is known (the hPLMs of a load test), a form has no count and `zipf:1.1` is the exponent; otherwise
    `zipf:1000` is the count.
    """
    if text == TRACE:
        return None
    forms = _TENANTS_OF_KNOWN_COUNT if count_is_known else _TENANTS
    kind, values = forms.read(text, {})
    spec = TenantSpec(kind, values)
    spec.among(1 if count_is_known else spec.count)  # checks the parameters
    return spec


@dataclass(frozen=True)
class DeadlineSpec:
    """The shortest and the longest deadline, in milliseconds or in times of a full batch."""

    bounds: tuple[float, float]
    units: tuple[str, str]

    def after(self, full_batch_ms: float | None) -> UniformDeadlines:
        """The deadlines, given what a full batch takes.

        Raises:
            WorkloadError: They are in times of a full batch, and it is not known what that takes; or too long.
        """
        if full_batch_ms is None and "x" in self.units:
            raise WorkloadError("deadlines in times of a full batch (5x-20x) are for simulations; give milliseconds")
        factors = [full_batch_ms or 0.0 if unit == "x" else 1.0 for unit in self.units]
        shortest_ms, longest_ms = (
            max(1, round(bound * factor)) for bound, factor in zip(self.bounds, factors, strict=True)
        )
        return UniformDeadlines(shortest_ms, longest_ms)


def parse_deadlines(text: str) -> DeadlineSpec | None:
    """Read `200ms`, `100-400` (milliseconds) or `5x-20x`; a unit at the end holds for both. None for a trace's own."""
    if text == TRACE:
        return None
    first, dash, second = text.partition("-")
    if not first:
        raise WorkloadError(f"deadlines must be above 0, not {quoted(text)}")
    bounds = [_deadline(part) for part in ((first, second) if dash else (first, first))]
    last_unit = bounds[1][1]
    units = [unit or last_unit for _, unit in bounds]
    in_ms = [value * _MILLISECONDS[unit] for (value, _), unit in zip(bounds, units, strict=True)]
    return DeadlineSpec((in_ms[0], in_ms[1]), (units[0], units[1]))


_MILLISECONDS: Mapping[str, float] = {"": 1.0, "x": 1.0, "us": 1e-3, "ms": 1.0, "s": 1e3, "m": 6e4, "h": 3.6e6}
"""Milliseconds of each unit; a multiple of a full batch stays one."""


def _deadline(text: str) -> tuple[float, str]:
    return read_measure(text, _MILLISECONDS, "deadlines")
