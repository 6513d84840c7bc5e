"""JSON as a tree that can hold what JSON must not: names twice, numbers without end, halves of characters."""

from __future__ import annotations

import json
from typing import Any

from bench.kit.fuzz.draw import Draw
from bench.kit.fuzz.vocabulary import DATATYPES, EXTREMES, NUMBERS, ODD_TEXTS, TENSORS, parameter_name, shape

DEPTH = 100_000


class Raw(str):
    """Text that stands in a body as it is."""

    __slots__ = ()


class Members(list[tuple[str, Any]]):
    """The members of an object, in order; a name may stand twice."""


_RAW = tuple(
    map(
        Raw,
        (
            *("NaN", "Infinity", "-Infinity", "1e400", "-1e400", "1e-400", "-0", "01", "+1", ".5", "0x10", "1.0"),
            *("9" * 400, "-" + "9" * 400, "1" + "0" * 30, "18446744073709551615", "18446744073709551616"),
            *('"\\ud800"', '"\\udc00\\ud800"', '"\\u0000"', '"\\ud83d\\ude00"', '"\\x41"', '"\n"', '"', "'a'"),
            *("undefined", "", ",", "{", "]", "/**/", "tru", '{"a":1,"a":2}', "[" * 60 + "]" * 60, "[" * 900),
        ),
    )
)


def written(value: Any) -> str:
    match value:
        case Raw():
            return value
        case Members():
            return "{" + ",".join(f"{written(name)}:{written(member)}" for name, member in value) + "}"
        case list():
            return "[" + ",".join(map(written, value)) + "]"
        case _:
            return json.dumps(value)


def odd_value(draw: Draw) -> Any:
    match draw.randrange(9):
        case 0:
            return draw.choice((None, True, False, 1.5, -1e308, 5e-324))
        case 1:
            return draw.choice(NUMBERS)
        case 2:
            return draw.choice(EXTREMES)
        case 3:
            return draw.choice(ODD_TEXTS)
        case 4:
            return draw.choice((*DATATYPES, *TENSORS))
        case 5:
            return shape(draw, 1)
        case 6:
            return draw.choice(([], Members(), [[]], [None], [[["cat"]]], Members([("", Members())])))
        case 7:
            return [odd_value(draw) for _ in range(draw.randint(0, 3))]
        case _:
            return draw.choice(_RAW)


def mutate(draw: Draw, tree: Members, times: int) -> None:
    """Change a tree in place, each time somewhere else."""
    for _ in range(times):
        containers = [one for one in _containers(tree) if one]
        if containers:
            _mutate_member(draw, draw.choice(containers))


def _containers(value: Any) -> list[Members | list[Any]]:
    if not isinstance(value, list):
        return []
    members = [member for _, member in value] if isinstance(value, Members) else value
    return [value, *(inner for member in members for inner in _containers(member))]


def _mutate_member(draw: Draw, container: Members | list[Any]) -> None:
    at = draw.randrange(len(container))
    name, value = container[at] if isinstance(container, Members) else (None, container[at])

    def member(value: Any, name: Any = name) -> Any:
        return (name, value) if isinstance(container, Members) else value

    match draw.randrange(7):
        case 0:
            del container[at]
        case 1:
            container.insert(at, member(value))
        case 2:
            container.append(member(odd_value(draw)))
        case 3:
            container[at] = member(draw.choice(([value], Members([("a", value)]), str(value), [value, value])))
        case 4 if isinstance(container, Members):
            container[at] = (draw.choice((*TENSORS, *ODD_TEXTS, "shape", "data", "parameters", "id")), value)
        case 5 if isinstance(container, Members):
            container.append(("parameters", Members([(parameter_name(draw), odd_value(draw))])))
        case _:
            container[at] = member(odd_value(draw))


def deep(draw: Draw, depth: int = DEPTH) -> str:
    """Arrays or objects in each other, closed or not."""
    opened, closed = draw.choice((("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")))
    return opened * depth + "1" + closed * (depth if draw.random() < 0.5 else 0)
