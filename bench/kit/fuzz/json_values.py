"""Bad JSON values made of good ones: other types, huge numbers, fields that are missing, doubled or swapped."""

from __future__ import annotations

import copy
import json
from typing import Any

from bench.kit.fuzz.draw import Draw

_DEEP = 3_000
_MOST_NESTED = 200
"""Python itself writes no deeper values."""
_ODD_NUMBERS = (
    *("[" * _DEEP + "]" * _DEEP, '{"a":' * _DEEP + "1" + "}" * _DEEP),
    "1e999",
    "-1e999",
    "NaN",
    "Infinity",
    "-Infinity",
    "1" * 5_000,
    "-0",
    "1E400",
    "0.1e-500",
)
_ODD_PIECES = ("{", "[", "]", "}", ",", ":", '"', "\\", "\\ud800", "\\u0000", "nul", "//", "\ufeff", "\0")


def any_value(draw: Draw, depth: int = 0) -> Any:
    """A JSON value of any type."""
    match draw.randrange(10 if depth < 3 else 7):
        case 0:
            return None
        case 1:
            return draw.happens(0.5)
        case 2 | 3:
            return draw.integer()
        case 4:
            return draw.decimal()
        case 5 | 6:
            return draw.text()
        case 7:
            return [any_value(draw, depth + 1) for _ in range(draw.randrange(4))]
        case 8:
            return {draw.text(): any_value(draw, depth + 1) for _ in range(draw.randrange(4))}
    return _nested(draw.choice((5, 50, _MOST_NESTED)), draw.happens(0.5))


def _nested(depth: int, is_list: bool) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value] if is_list else {"a": value}
    return value


def bad_value(draw: Draw, good: Any) -> Any:
    """A copy of a JSON value that has one to three changes somewhere inside."""
    if draw.happens(0.02):
        return any_value(draw)
    root: list[Any] = [copy.deepcopy(good)]
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        _change(draw, *_somewhere(draw, root))
    return root[0]


def _somewhere(draw: Draw, root: list[Any]) -> tuple[Any, Any]:
    """A container, and a key or an index in it; the deeper ones as likely as the upper."""
    holder: Any = root
    key: Any = 0
    while isinstance(holder[key], dict | list) and holder[key] and draw.happens(0.8):
        holder = holder[key]
        key = draw.choice(list(holder)) if isinstance(holder, dict) else draw.randrange(len(holder))
    return holder, key


def _change(draw: Draw, holder: Any, key: Any) -> None:
    value = holder[key]
    match draw.randrange(8):
        case 0 | 1:
            holder[key] = any_value(draw)
        case 2 | 3:
            holder[key] = _alike(draw, value)
        case 4 if isinstance(holder, dict) or len(holder) > 1:
            del holder[key]
        case 5 if isinstance(holder, dict):
            holder[draw.text([name for name in holder if isinstance(name, str)])] = (
                holder.pop(key) if draw.happens(0.5) else value
            )
        case 5 | 6 if isinstance(holder, list):
            holder.insert(draw.randint(0, len(holder)), copy.deepcopy(draw.choice(holder)))
        case _ if isinstance(holder, dict | list) and len(holder) > 1:
            other = draw.choice(list(holder)) if isinstance(holder, dict) else draw.randrange(len(holder))
            holder[key], holder[other] = holder[other], value
        case _:
            holder[key] = any_value(draw)


def _alike(draw: Draw, value: Any) -> Any:
    """A value of the same type, or of nearly the same."""
    match value:
        case bool():
            return draw.choice((not value, int(value), str(value), None))
        case int():
            return draw.choice(
                (draw.integer(), value + 1, value - 1, -value, float(value % 2**60), (value % 2**60) / 3, [value])
            )
        case float():
            return draw.choice((draw.decimal(), -value, int(value) if abs(value) < 1e300 else 0, str(value)))
        case str():
            return draw.choice((draw.text([value]), draw.text([value]), [value], list(value[:50])))
        case list():
            return draw.choice(
                (value * 2, value[:-1], value[::-1], dict(enumerate(value)), value[0] if value else None)
            )
        case dict():
            return draw.choice((list(value), list(value.items()), {}, {**value, draw.text(): any_value(draw)}))
    return any_value(draw)


def bad_json(draw: Draw, good: Any) -> str:
    """The text of a bad value, sometimes no JSON at all; a number may be one that Python's writer does not make."""
    match draw.randrange(8):
        case 0:
            return draw.edited(json.dumps(good))
        case 1:
            text, at = json.dumps(good), 0
            for _ in range(draw.randint(1, 3)):
                at = draw.randint(0, len(text))
                text = text[:at] + draw.choice(_ODD_PIECES) + text[at + draw.randrange(3) :]
            return text
        case 2:
            return _with_odd_number(draw, json.dumps(good))
        case 3 if draw.happens(0.2):
            return draw.choice(("[" * _DEEP + "]" * _DEEP, '{"a":' * 100_000, "", "null", "[]", "{}", '"' * 3))
    return json.dumps(bad_value(draw, good), ensure_ascii=draw.happens(0.5))


def _with_odd_number(draw: Draw, text: str) -> str:
    digits = [at for at, character in enumerate(text) if character.isdigit()]
    if not digits:
        return draw.choice(_ODD_NUMBERS)
    at = draw.choice(digits)
    return text[:at] + draw.choice(_ODD_NUMBERS) + text[at + 1 :]


def encoded(draw: Draw, text: str) -> bytes:
    """A text's bytes, now and then in another encoding than UTF-8, or damaged."""
    match draw.randrange(24):
        case 0:
            return text.encode("utf-16", "surrogatepass")
        case 1:
            return text.encode("latin-1", "replace")
        case 2:
            return b"\xef\xbb\xbf" + text.encode("utf-8", "surrogatepass")
        case 3 | 4:
            return draw.damaged(text.encode("utf-8", "surrogatepass"))
        case 5:
            return text.encode("utf-8", "surrogatepass")
    return text.encode("utf-8", "replace")
