"""The words of `hplm loadtest` as what they mean: which scenario, whose requests, what is in them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backends.errors import InvalidArgumentError
from cli.session import open_home

if TYPE_CHECKING:
    from loadtest.scenarios import Content, Scenario
    from workload.arrivals import Arrivals
    from workload.lengths import Lengths
    from workload.tenants import Tenants


@dataclass(frozen=True)
class Shape:
    """The options that say what a load looks like, as they were typed; None for those that were not."""

    duration: float | None
    rate: float | None
    load: float | None
    capacity: float | None
    arrivals: str | None
    tenants: str | None
    every_s: float | None
    users: int | None
    spawn_s: float | None
    requests: int | None
    trace: Path | None
    speed: float | None
    rate_scale: float | None


_OF_SCENARIO = {
    "steady": {"every_s"},
    "burst": {"tenants", "every_s", "users", "spawn_s", "requests"},
    "overload": {"arrivals", "tenants", "rate", "load", "capacity"},
    "trace": {"trace", "tenants", "speed", "rate_scale"},
}


_USUAL = {"tenants": "uniform", "arrivals": "poisson", "speed": 1.0, "rate_scale": 1.0}
"""What holds where nothing was typed."""


def usual(scenario: str) -> dict[str, Any]:
    return {name: value for name, value in _USUAL.items() if name in _OF_SCENARIO[scenario]}


def check_shape(scenario: str, shape: Shape, timeout_s: float | None, max_lateness_ms: float) -> None:
    for name in sorted(set[str]().union(*_OF_SCENARIO.values()) - _OF_SCENARIO[scenario]):
        if getattr(shape, name) is not None:
            *others, last = (owner for owner, names in _OF_SCENARIO.items() if name in names)
            owners = " and ".join([", ".join(others), last] if others else [last])
            raise InvalidArgumentError(f"--{name.replace('_', '-')} belongs to {owners}, not to {scenario}")
    for name, value in (("duration", shape.duration), ("timeout-s", timeout_s), ("max-lateness-ms", max_lateness_ms)):
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise InvalidArgumentError(f"--{name} must be above 0 and finite, not {value:g}")
    if shape.rate is not None and shape.load is not None:
        raise InvalidArgumentError("--rate and --load both say how much; give one of them")
    if scenario == "overload" and shape.rate is None and shape.load is None:
        raise InvalidArgumentError("overload needs --rate (requests per second) or --load (times the capacity)")
    if shape.capacity is not None and shape.load is None:
        raise InvalidArgumentError("--capacity goes with --load")
    if scenario == "trace" and shape.trace is None:
        raise InvalidArgumentError("trace needs --trace FILE")


def scenario_of(name: str, shape: Shape, capacity: float) -> Scenario:
    from loadtest import scenarios
    from workload.traces import read_trace

    def given(*fields: str) -> dict[str, Any]:
        """What was typed of these; the scenario knows what else they are."""
        return {field: value for field in fields if (value := getattr(shape, field)) is not None}

    lasting: dict[str, Any] = {} if shape.duration is None else {"duration_s": shape.duration}
    pick = _tenants_of(shape.tenants or str(_USUAL["tenants"]))
    match name:
        case "steady":
            return scenarios.Steady(**given("every_s"), **lasting)
        case "burst":
            return scenarios.Burst(pick, **given("every_s", "users", "spawn_s", "requests"), **lasting)
        case "overload":
            rate = shape.rate if shape.rate is not None else (shape.load or 0.0) * capacity
            return scenarios.Overload(_arrivals_of(shape.arrivals or str(_USUAL["arrivals"]), rate), pick, **lasting)
        case _:
            return scenarios.Replay(read_trace(shape.trace or Path()), pick, **given("speed", "rate_scale"), **lasting)


def _arrivals_of(spec: str, rate: float) -> Arrivals:
    from workload import arrivals

    name, *numbers = _parsed(spec, "arrivals")
    match name, numbers:
        case "deterministic", []:
            return arrivals.DeterministicArrivals(rate)
        case "poisson", []:
            return arrivals.PoissonArrivals(rate)
        case "gamma", [cv]:
            return arrivals.GammaArrivals(rate, cv)
        case "bursts", [ratio, stay_s]:
            return arrivals.MarkovModulatedArrivals.bursts(rate, ratio, stay_s)
    raise InvalidArgumentError(f"--arrivals is deterministic, poisson, gamma:CV or bursts:RATIO:STAY_S, not {spec!r}")


def _tenants_of(spec: str) -> Callable[[int], Tenants]:
    from workload.tenants import UniformTenants, ZipfTenants

    match _parsed(spec, "tenants"):
        case ["uniform"]:
            return UniformTenants
        case ["zipf", exponent]:
            ZipfTenants(1, exponent)
            return partial(ZipfTenants, exponent=exponent)
    raise InvalidArgumentError(f"--tenants is uniform or zipf:EXPONENT, not {spec!r}")


def _lengths_of(spec: str) -> Lengths:
    from workload.lengths import FixedLengths, NormalLengths

    match _parsed(spec, "lengths"):
        case ["normal", deviation]:
            return NormalLengths(deviation)
        case ["fixed", tokens]:
            return FixedLengths(int(tokens))
    raise InvalidArgumentError(f"--lengths is normal:DEVIATION or fixed:TOKENS, not {spec!r}")


def _parsed(spec: str, option: str) -> list[Any]:
    name, *numbers = spec.split(":")
    try:
        return [name, *map(_finite, numbers)]
    except ValueError as error:
        raise InvalidArgumentError(f"--{option} {spec!r}: what follows a colon must be a number") from error


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(number)
    return value


def content_of(
    named: list[str] | None, home: Path, texts: Path | None, lengths: str | None, deadline_ms: str | None
) -> Content:
    from loadtest.scenarios import Content
    from loadtest.texts import FileTexts, Texts, WordTexts
    from workload.lengths import EmpiricalLengths, NormalLengths

    hplms = named or [entry.id for entry in open_home(home)[1].hplms()]
    if not hplms:
        raise InvalidArgumentError(f"{home} has no hPLM; 'hplm create' makes one")
    asked: Texts = WordTexts()
    drawn: Lengths = NormalLengths(20)
    if texts is not None:
        asked = FileTexts.read(texts)
        drawn = EmpiricalLengths(asked.lengths, longest=int(asked.lengths.max()))
    if lengths is not None:
        drawn = _lengths_of(lengths)
    return Content(tuple(dict.fromkeys(hplms)), asked, drawn, _deadline_of(deadline_ms))


def _deadline_of(spec: str | None) -> tuple[int, int] | None:
    if spec is None:
        return None
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", spec)
    if found is None:
        raise InvalidArgumentError(f"--deadline-ms is a whole number, or two with a dash between, not {spec!r}")
    return int(found[1]), int(found[2] or found[1])
