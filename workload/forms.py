"""The grammar of the workload language: KIND, KIND:name=value,name=value, numbers with units.

- `gamma:cv=2`: a kind and a parameter by its name
- `bursts:9:2s`: parameters without names, in the order of the kind's parameters
- `50ms`, `2s`, `5m`, `1h`: times; a number without a unit is in the unit that the caller names
- `1.5x`: a multiple of what the caller names
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from workload.errors import WorkloadError

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_MEASURE = re.compile(r"([^a-z/]*(?:e[+-]?\d+)?)([a-z/]*)")
_LONGEST_SHOWN = 60

Values = Mapping[str, float]


@dataclass(frozen=True)
class Parameter:
    """A number of a form; without a `default` it must be given."""

    name: str
    default: float | None
    read: Callable[[str, str], float]


@dataclass(frozen=True)
class Forms:
    """The kinds that one option knows, and other spellings of them.

    Args:
        option: Its name in messages.
        kinds: The parameters of each kind.
        aliases: Other spellings of kinds.
        more: What the option knows besides, for messages.
    """

    option: str
    kinds: Mapping[str, Sequence[Parameter]]
    aliases: Mapping[str, str]
    more: Sequence[str] = ()

    def read(self, text: str, defaults: Values) -> tuple[str, dict[str, float]]:
        """Read the kind and all its parameters; `defaults` go before those of the forms.

        Raises:
            WorkloadError: Unknown kind or parameter, or a value that is no number.
        """
        word, _, rest = text.partition(":")
        kind = self.aliases.get(word, word)
        if kind not in self.kinds:
            known = ", ".join([*map(self._usage, self.kinds), *self.more])
            raise WorkloadError(f"{self.option} {quoted(text)} is not one of {known}")
        parameters = self.kinds[kind]
        given = self._given(text, parameters, [part for part in re.split("[:,]", rest) if part])
        values = {one.name: given.get(one.name, defaults.get(one.name, one.default)) for one in parameters}
        for name, value in values.items():
            if value is None:
                raise WorkloadError(f"{self.option} {quoted(text)} needs {name}: {self._usage(kind)}")
        return kind, {name: value for name, value in values.items() if value is not None}

    def _given(self, text: str, parameters: Sequence[Parameter], parts: Sequence[str]) -> dict[str, float]:
        named = {one.name: one for one in parameters}
        unnamed = iter(parameters)
        values: dict[str, float] = {}
        for part in parts:
            name, equals, value = part.rpartition("=")
            parameter = named.get(name) if equals else next(unnamed, None)
            if parameter is None or parameter.name in values:
                known = f"{text.partition(':')[0]} has {', '.join(named) or 'no parameters'}"
                raise WorkloadError(f"{self.option} {quoted(text)}: {quoted(part)} is not understood; {known}")
            values[parameter.name] = parameter.read(value, f"{self.option} {quoted(text)}")
        return values

    def _usage(self, kind: str) -> str:
        names = ",".join(f"{one.name}={one.name.upper()}" for one in self.kinds[kind])
        return f"{kind}:{names}" if names else kind


def read_number(text: str, context: str, wanted: str = "number") -> float:
    """Read a finite number; `wanted` stands in the message if there is none."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise WorkloadError(f"{context}: {quoted(text)} is no {wanted}")
    return value


def read_measure(text: str, units: Mapping[str, float], context: str, wanted: str = "number") -> tuple[float, str]:
    """Read a number and its unit, which is "" if there is none.

    Raises:
        WorkloadError: It is no number above 0, or has another unit.
    """
    match = _MEASURE.fullmatch(text.strip())
    number, unit = (match[1], match[2]) if match else (text, "")
    if unit and unit not in units:
        number, unit = text, ""
    value = read_number(number, context, wanted)
    if value <= 0:
        raise WorkloadError(f"{context} must be above 0, not {quoted(text)}")
    return value, unit


def read_duration_s(text: str, context: str, bare_unit: str = "s") -> float:
    """Read `500ms`, `30s`, `5m`, `1h`, or a number in the bare unit, as seconds."""
    value, unit = read_measure(text, _SECONDS, context, "time such as 500ms, 30s, 5m or 1h")
    return value * _SECONDS[unit or bare_unit]


def quoted(text: str) -> str:
    """Quote what the user wrote, cut to the length of a message."""
    return repr(text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…")
