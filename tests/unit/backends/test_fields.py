"""Fields of JSON that others wrote: the right ones are returned, and the error names a wrong one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backends.errors import CorruptFileError, FormatVersionError
from backends.fields import Fields, read_fields
from backends.storage import write_json

GOOD: dict[str, Any] = {
    "name": "mini",
    "size": 7,
    "rate": 0.5,
    "pair": False,
    "labels": ["a", "b"],
    "inner": {"x": 1},
    "rows": [{"x": 2}, {"x": 3}],
    "curve": [[1, 2.5], [3, 4]],
}


def fields(**changes: Any) -> Fields:
    return Fields({**GOOD, **changes}, "manifest.json")


def test_fields_of_the_right_types_are_returned() -> None:
    found = fields()
    assert (found.text("name"), found.text("name", ("mini", "maxi"))) == ("mini", "mini")
    assert (found.whole("size"), found.whole("size", 7, 7)) == (7, 7)
    assert (found.number("rate"), found.number("size"), found.positive("rate")) == (0.5, 7.0, 0.5)
    assert found.flag("pair") is False
    assert found.texts("labels") == ("a", "b")
    assert found.part("inner").whole("x") == 1
    assert [each.whole("x") for each in found.parts("rows")] == [2, 3]
    assert found.numbers("curve", 2) == [(1.0, 2.5), (3.0, 4.0)]
    assert (dict(found.mapping("inner")), found.get("nothing"), "size" in found) == ({"x": 1}, None, True)


@pytest.mark.parametrize("wrong", [None, True, -1, 8, 2**63, 7.0, float("nan"), "7", [7], {}])
def test_what_is_no_whole_number_within_bounds(wrong: Any) -> None:
    with pytest.raises(CorruptFileError, match=": size is"):
        fields(size=wrong).whole("size", 0, 7)


@pytest.mark.parametrize("wrong", [None, True, float("nan"), float("inf"), 10**400, 1e300, -0.1, "1", [1]])
def test_what_is_no_finite_number_within_bounds(wrong: Any) -> None:
    with pytest.raises(CorruptFileError, match=": rate is"):
        fields(rate=wrong).number("rate", 0.0)


@pytest.mark.parametrize(
    ("read", "name", "wrong"),
    [
        (Fields.text, "name", 5),
        (lambda found, name: found.text(name, ("maxi",)), "name", "mini"),
        (Fields.positive, "rate", 0),
        (Fields.flag, "pair", 0),
        (Fields.texts, "labels", "ab"),
        (Fields.texts, "labels", ["a", 1]),
        (Fields.part, "inner", []),
        (Fields.parts, "rows", {}),
        (Fields.parts, "rows", [1]),
        (lambda found, name: found.numbers(name, 2), "curve", [[1, 2], [3]]),
        (lambda found, name: found.numbers(name, 2), "curve", [["1", 2]]),
        (lambda found, name: found.numbers(name, 2), "curve", 7),
    ],
)
def test_a_field_of_another_type_is_damage(read: Callable[[Fields, str], object], name: str, wrong: Any) -> None:
    with pytest.raises(CorruptFileError, match=name):
        read(fields(**{name: wrong}), name)


def test_a_missing_field_and_no_object_at_all() -> None:
    with pytest.raises(CorruptFileError, match="lacks nothing"):
        fields().text("nothing")
    with pytest.raises(CorruptFileError, match="not an object"):
        Fields([1, 2], "manifest.json")


def test_the_error_quotes_a_little_of_what_is_wrong() -> None:
    with pytest.raises(CorruptFileError) as caught:
        fields(size="x" * 10_000).whole("size")
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("version", [0, 3, True, "1", None, 1.0])
def test_another_version_of_the_format(version: Any, tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    write_json(path, {**GOOD, "format_version": version})
    with pytest.raises(FormatVersionError, match="reads up to 2"):
        read_fields(path, 2)
    write_json(path, {**GOOD, "format_version": 2})
    assert read_fields(path, 2).text("name") == "mini"
    write_json(path, GOOD)
    with pytest.raises(CorruptFileError, match="lacks format_version"):
        read_fields(path, 2)
