"""The request parameters as Triton hands them over, and the deadline and the level in them."""

from __future__ import annotations

import json

from backends.wire import REQUEST_PARAMETERS, deadline_in_us, parse_parameters
from bench.kit.fuzz.draw import Draw
from bench.kit.fuzz.json_values import any_value, bad_json
from bench.kit.fuzz.target import Target

_GOOD = {"deadline_ms": 200, "tenant_token": f"hplm_{'a1' * 6}_{'b' * 43}", "level": "auto"}


class Parameters(Target):
    """JSON with other types, huge numbers, fields twice, unknown fields."""

    name = "parameters"
    cases = 300_000

    def attempt(self, draw: Draw) -> None:
        deadline_in_us(parse_parameters(bad_parameters(draw)))


def bad_parameters(draw: Draw) -> str:
    """A text that is nearly the request parameters."""
    if draw.happens(0.3):
        return json.dumps({draw.choice(REQUEST_PARAMETERS): any_value(draw)})
    text = bad_json(draw, draw.choice((_GOOD, {"deadline_ms": 50}, {"level": "full"})))
    if draw.happens(0.1) and text.startswith("{"):
        return text[:-1] + f', "deadline_ms": {json.dumps(any_value(draw))}' + "}"
    return text
