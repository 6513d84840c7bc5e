"""The profile of a selection: stored, read, and drawn."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backends.errors import CorruptFileError, FormatVersionError
from backends.storage import read_json, write_json
from builder.levels.profile import CandidateProfile, CurvePoint, Profile, read_profile, write_profile
from builder.levels.profile_picture import draw_profile

_SVG = "{http://www.w3.org/2000/svg}"
CURVE = [CurvePoint(1 - 0.01 * step, 0.1 * step, 0.001 * step**1.5, 0.001 * step**1.5 + 0.004) for step in range(10)]
FIRST = CandidateProfile(1, 0.97, 0.3, 0.0052, 0.0092, 11.2, 208.0, 12_288, CURVE)
SECOND = replace(FIRST, after=2, answered_early=0.4, lost=0.008, full_batch_ms=190.0)
ALL = CandidateProfile(6, None, 0.0, 0.0, 0.0, 17.9, 290.0, 0)
PRUNED = replace(SECOND, alpha=0.4, kept_tokens=0.71, full_batch_ms=170.0)
PROFILE = Profile("acme/area", "a drop of at most 1 points", 0.01, 2, 6, [FIRST, SECOND, ALL])


def test_a_profile_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_profile(tmp_path) is None
    write_profile(tmp_path, PROFILE)
    assert read_profile(tmp_path) == PROFILE


def test_the_table_says_which_one_serves() -> None:
    assert [row["chosen"] for row in PROFILE.rows] == [False, True, False]
    assert [row["chosen"] for row in replace(PROFILE, chosen=None).rows] == [False, False, True]
    assert PROFILE.rows[1]["full_batch_ms"] == 190.0 and "curve" not in PROFILE.rows[0]


def test_a_candidate_that_prunes_is_told_from_the_one_that_does_not(tmp_path: Path) -> None:
    profile = replace(PROFILE, candidates=[FIRST, SECOND, PRUNED, ALL], alpha=0.4)
    write_profile(tmp_path, profile)
    assert read_profile(tmp_path) == profile and read_json(tmp_path / "candidates.json")["format_version"] == 3
    assert [row["chosen"] for row in profile.rows] == [False, False, True, False]
    assert [row["kept_tokens"] for row in profile.rows] == [None, None, 0.71, None]
    assert "alpha" not in PROFILE.rows[0]
    assert "after 2, then 71 % of tokens: 40 % early" in draw_profile(profile)
    assert "of tokens" not in draw_profile(replace(profile, alpha=None))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"format_version": 99}, FormatVersionError),
        ({"format_version": None}, FormatVersionError),
        ({"candidates": [{"after": 1}]}, CorruptFileError),
        ({"candidates": 7}, CorruptFileError),
        ({"tolerance": "much"}, CorruptFileError),
        (None, CorruptFileError),
    ],
)
def test_a_damaged_profile(tmp_path: Path, changes: dict[str, Any] | None, error: type[Exception]) -> None:
    write_profile(tmp_path, PROFILE)
    path = tmp_path / "candidates.json"
    if changes is None:
        path.write_text("{")
    else:
        content = read_json(path)
        content.pop("checksum", None)
        write_json(path, {**content, **changes})
    with pytest.raises(error):
        read_profile(tmp_path)


@pytest.mark.parametrize(
    "profile",
    [
        PROFILE,
        replace(PROFILE, candidates=[replace(FIRST, threshold=None, lost=None), ALL], chosen=None),
        replace(PROFILE, candidates=[replace(FIRST, curve=[], alone_ms=None, full_batch_ms=None), ALL], chosen=1),
        replace(PROFILE, candidates=[FIRST, PRUNED, ALL], alpha=0.4),
        replace(PROFILE, id=f"{'a' * 60}/{'b' * 60}", target=PROFILE.target + " in the mean of the fleet"),
    ],
)
def test_the_picture_says_what_it_shows_and_stays_inside(profile: Profile) -> None:
    root = ElementTree.fromstring(draw_profile(profile))
    width, height = (float(root.attrib[name]) for name in ("width", "height"))
    assert root.findtext(f"{_SVG}title") == f"Levels of {profile.id}" and root.findtext(f"{_SVG}desc")
    for text in root.iter(f"{_SVG}text"):
        x, length = float(text.attrib["x"]), 0.62 * float(text.attrib["font-size"]) * len(text.text or "")
        left = x - {"start": 0.0, "middle": 0.5, "end": 1.0}[text.attrib["text-anchor"]] * length
        assert left >= 0 and left + length <= width and 0 < float(text.attrib["y"]) < height, text.text
    for line in root.iter(f"{_SVG}polyline"):
        for point in line.attrib["points"].split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= width and 0 <= y <= height


def test_the_curves_end_where_far_more_is_lost_than_may_be() -> None:
    content = draw_profile(PROFILE)
    assert content.count("stroke-dasharray") == 2
    assert "after 2: 40 % early, 0.8 % lost, at most 0.92 %, 190 ms a full batch" in content
