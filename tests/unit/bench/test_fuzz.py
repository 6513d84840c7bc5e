"""`bench.fuzz` finds what breaks its rule, and the readers of this release keep it in a sample of cases."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from breaking_targets import Ending, Greedy, Hiding, LongWinded, Raising, Slow

from backends.home import Home
from bench.kit.fuzz import child
from bench.kit.fuzz.draw import Draw
from bench.kit.fuzz.options import Options
from bench.kit.fuzz.process import case_counts, rows_of
from bench.kit.fuzz.rule import Case, Fate, wrong_message
from bench.kit.fuzz.runner import Runner
from bench.kit.fuzz.target import Target
from bench.kit.fuzz.targets import TARGETS
from bench.kit.fuzz.worker import Slice, Stand, Tally, hearing_defects
from seeds import SEED

_BREAKING: dict[str, type[Target]] = {
    target.name: target for target in (Raising, LongWinded, Hiding, Slow, Greedy, Ending)
}
_SAMPLES = 80
_FEWER = {"scheduling": 30, "roots": 25, "registries": 40, "upper": 40, "lower": 40}


def run(targets: dict[str, type[Target]], home: Home, cases: Slice) -> Tally:
    stand = Stand(targets, home)
    try:
        with hearing_defects():
            return stand.run(cases)
    finally:
        stand.close()


@pytest.mark.parametrize("name", TARGETS)
def test_no_reader_breaks_on_a_sample_of_bad_inputs(
    name: str, built_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    tally = run(dict(TARGETS), built_home, Slice(name, SEED, 0, _FEWER.get(name, _SAMPLES)))
    assert [str(one) for one in tally.breaks] == []
    assert tally.fates[Fate.ACCEPTED] > 0 or name == "words"


@pytest.mark.parametrize(
    ("name", "count", "breaks", "words"),
    [
        ("raising", 60, range(5, 40), "KeyError"),
        ("long-winded", 2, [2], "5000 characters"),
        ("hiding", 2, [2], "KeyError"),
        ("slow", 1, [1], "processor time"),
        ("greedy", 3, [1], "MiB"),
    ],
)
def test_what_breaks_the_rule_is_found(
    name: str, count: int, breaks: range | list[int], words: str, tmp_path: Path
) -> None:
    tally = run(_BREAKING, Home(tmp_path), Slice(name, 5, 0, count))
    assert len(tally.breaks) in breaks
    assert all(words in one.why for one in tally.breaks)
    assert len({str(one.case) for one in tally.breaks}) == len(tally.breaks)


def test_the_end_of_a_process_and_a_case_without_end_name_their_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "LONGEST_CASE_S", 1.0)
    done: Counter[str] = Counter()
    runner = Runner(_BREAKING, Home(tmp_path), 2, lambda target, cases: done.update({target: cases}))
    tallies = runner.run({"ending": 12, "raising": 30}, 5)
    assert sorted(str(one.case) for one in tallies["ending"].breaks) == ["ending:5:3", "ending:5:7"]
    assert all("SIGABRT" in one.why and "breaking_targets" in one.why for one in tallies["ending"].breaks)
    assert done == {"ending": 12, "raising": 30}
    assert tallies["ending"].fates == {Fate.ACCEPTED: 10, Fate.BROKEN: 2}


def test_a_case_is_the_same_each_time(tmp_path: Path) -> None:
    case = Case("raising", 5, 4)
    assert [Draw(case).text(["good"]) for _ in range(3)] == [Draw(case).text(["good"])] * 3
    whole = run(_BREAKING, Home(tmp_path), Slice("raising", 5, 0, 30))
    part = run(_BREAKING, Home(tmp_path), Slice("raising", 5, 10, 20))
    assert {one for one in map(str, whole.breaks) if int(one.split()[0].split(":")[2]) >= 10} == set(
        map(str, part.breaks)
    )


@pytest.mark.parametrize(
    ("message", "is_wrong"),
    [
        ("one line", False),
        ("two\nlines", True),
        ("", True),
        ("x" * 4_001, True),
        ("\ud800", True),
        ("é" * 4_000, False),
    ],
)
def test_a_rejection_has_a_message_of_one_short_line(message: str, is_wrong: bool) -> None:
    assert bool(wrong_message(message)) == is_wrong


def test_the_full_size_has_a_million_cases_and_other_sizes_their_shares() -> None:
    full = case_counts(Options(1, is_quick=False))
    assert sum(full.values()) >= 1_000_000
    assert full == {name: target.cases for name, target in TARGETS.items()}
    assert min(full.values()) >= 2_000
    assert case_counts(Options(1, is_quick=False, cases=500, only="tickets")) == {"tickets": 500}
    assert set(case_counts(Options(1, is_quick=True))) == set(TARGETS)


def test_breaks_of_one_reason_are_one_row(tmp_path: Path) -> None:
    tally = run(_BREAKING, Home(tmp_path), Slice("long-winded", 5, 0, 4))
    summary, reason = rows_of({"long-winded": tally})
    assert (summary["cases"], summary["breaks"]) == (4, 4)
    assert (reason["target"], reason["breaks"]) == ("long-winded:5:0", 4)
