from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from random_run import random_schedule

from loadtest.scenarios import Burst, Content, Overload, Replay, Steady
from loadtest.schedule import Schedule
from loadtest.texts import FileTexts, WordTexts, segments
from workload.arrivals import PoissonArrivals
from workload.deadlines import UniformDeadlines
from workload.errors import WorkloadError
from workload.lengths import FixedLengths, NormalLengths
from workload.tenants import UniformTenants
from workload.traces import read_trace

HPLMS = ("a/x", "a/y", "b/x")


def content(hplms: tuple[str, ...] = HPLMS, deadlines: UniformDeadlines | None = None) -> Content:
    return Content(hplms, WordTexts(), NormalLengths(20), deadlines)


def test_steady_asks_every_hplm_at_equal_gaps(seed: int) -> None:
    hplms = tuple(f"t{number}/x" for number in range(50))
    schedule = Steady(duration_s=100, every_s=20).schedule(content(hplms), np.random.default_rng(seed))
    assert (np.diff(schedule.times_s) >= 0).all()
    for hplm in range(50):
        own = schedule.times_s[schedule.hplm_of == hplm]
        assert len(own) == 5
        assert 0 <= own[0] < 20
        assert np.diff(own) == pytest.approx(20)


def test_burst_is_the_papers(seed: int) -> None:
    schedule = Burst(UniformTenants).schedule(content(), np.random.default_rng(seed))
    wanted = sorted(0.05 * user + 1.2 * turn for user in range(250) for turn in range(50))
    assert schedule.times_s == pytest.approx(wanted)
    assert len(schedule) == 12_500
    assert schedule.end_s == pytest.approx(249 * 0.05 + 49 * 1.2)


def test_a_burst_of_a_duration_ends_with_it(seed: int) -> None:
    schedule = Burst(UniformTenants, duration_s=3.0).schedule(content(), np.random.default_rng(seed))
    assert schedule.end_s < 3.0
    assert len(schedule) == sum(0.05 * user + 1.2 * turn < 3.0 for user in range(250) for turn in range(50))


def test_deadlines_lie_in_their_range_ends_included(seed: int) -> None:
    load = Overload(PoissonArrivals(500), UniformTenants, 4.0)
    schedule = load.schedule(content(deadlines=UniformDeadlines(5, 8)), np.random.default_rng(seed))
    assert set(np.unique(schedule.deadlines_ms)) == {5, 6, 7, 8}
    assert load.schedule(content(), np.random.default_rng(seed)).deadline_ms(0) is None


def test_a_trace_says_when_whose_and_how_long(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("time_s,tenant,tokens\n10,b/x,5\n10,someone,7\n10.5,other,9\n12,b/x,30\n")
    replay = Replay(read_trace(path), UniformTenants, speed=2.0)
    schedule = replay.schedule(content(), np.random.default_rng(seed))
    assert schedule.times_s.tolist() == [0.0, 0.0, 0.25, 1.0]
    assert [schedule.hplms[place] for place in schedule.hplm_of] == ["b/x", "a/y", "b/x", "b/x"]
    assert schedule.tokens.tolist() == [5, 7, 9, 30]


def test_a_trace_says_until_when_unless_deadlines_are_given(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("time_s,hplm,deadline_ms\n0,b/x,250\n1,a/y,\n2,b/x,0.2\n")
    replay = Replay(read_trace(path), UniformTenants)
    schedule = replay.schedule(content(), np.random.default_rng(seed))
    assert [schedule.deadline_ms(row) for row in range(3)] == [250, None, 1]
    given = replay.schedule(content(deadlines=UniformDeadlines(7, 7)), np.random.default_rng(seed))
    assert [given.deadline_ms(row) for row in range(3)] == [7, 7, 7]


def test_hplms_of_a_trace_are_asked_for_its_levels_unless_one_is_given(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("time_s,hplm,level\n0,b/x,early\n1,a/y,\n2,someone,full\n3,b/x,full\n")
    replay = Replay(read_trace(path), UniformTenants)
    whole = replay.schedule(content(), np.random.default_rng(seed))
    schedule = Schedule.from_bytes(whole.to_bytes())
    assert [schedule.request(row, None).level for row in range(4)] == ["early", None, None, "full"]
    assert [schedule.share(1, 2).level(row) for row in range(2)] == [None, "full"]
    given = replay.schedule(replace(content(), level="auto"), np.random.default_rng(seed))
    assert [given.level(row) for row in range(4)] == ["auto"] * 4


@pytest.mark.parametrize("rate_scale", [0.5, 1.0, 2.5])
def test_a_scaled_trace_tears_nobody_from_his_requests(tmp_path: Path, seed: int, rate_scale: float) -> None:
    """Requests of one tenant are short and come in the first ten seconds, the other's are long and come later."""
    path = tmp_path / "trace.csv"
    rows = [f"{at_s / 10},{'b/x,5' if at_s < 100 else 'a/y,90'}" for at_s in range(200)]
    path.write_text("time_s,tenant,tokens\n" + "\n".join(rows) + "\n")
    replay = Replay(read_trace(path), UniformTenants, rate_scale=rate_scale)
    schedule = replay.schedule(content(), np.random.default_rng(seed))
    assert len(schedule) == pytest.approx(200 * rate_scale, rel=0.3)
    asked = [schedule.hplms[place] for place in schedule.hplm_of]
    expected = [("b/x", 5) if at_s < 10 else ("a/y", 90) for at_s in schedule.times_s.tolist()]
    assert list(zip(asked, schedule.tokens.tolist(), strict=True)) == expected


def test_the_same_seed_draws_the_same_load(seed: int) -> None:
    load = Overload(PoissonArrivals(100), UniformTenants, 5.0)
    first, second = (load.schedule(content(), np.random.default_rng(seed)) for _ in range(2))
    assert first.to_bytes() == second.to_bytes()


@pytest.mark.parametrize("shares", [1, 2, 3, 7])
def test_shares_make_up_the_whole_and_survive_the_way(seed: int, shares: int) -> None:
    whole = random_schedule(seed)
    parts = [Schedule.from_bytes(whole.share(index, shares).to_bytes()) for index in range(shares)]
    assert sorted(number for part in parts for number in part.numbers.tolist()) == list(range(len(whole)))
    for part in parts:
        for row, number in enumerate(part.numbers.tolist()):
            assert part.times_s[row] == whole.times_s[number]
            assert part.deadline_ms(row) == whole.deadline_ms(number)
            assert part.texts[int(part.text_of[row])] == whole.texts[int(whole.text_of[number])]
            assert part.hplms[int(part.hplm_of[row])] == whole.hplms[int(whole.hplm_of[number])]


def test_words_make_texts_of_the_wanted_length(seed: int) -> None:
    drawn = WordTexts().of_lengths(np.array([1, 3, 20, 100, 20]), np.random.default_rng(seed))
    assert drawn.tokens.tolist() == [3, 3, 20, 100, 20]  # a text has at least one word
    for tokens, place in zip(drawn.tokens, drawn.text_of, strict=True):
        assert len(drawn.texts[place].split()) == tokens - 2


def test_a_files_lines_nearest_to_a_length_are_taken(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("one\n\none two three\na b c\none two three four five six seven\n")
    wanted = np.array([1, 3, 5, 6, 7, 8, 50])
    drawn = FileTexts.read(path).of_lengths(wanted, np.random.default_rng(seed))
    for tokens, place, own in zip(wanted, drawn.text_of, drawn.tokens, strict=True):
        assert len(drawn.texts[place].split()) + 2 == own
        assert abs(own - tokens) == min(abs(length - tokens) for length in (3, 5, 9))


def test_a_files_lines_are_counted_once(seed: int) -> None:
    texts = FileTexts(("one", "one two three"))
    lengths = texts.lengths
    texts.of_lengths(np.array([3]), np.random.default_rng(seed))
    assert texts.lengths is lengths


def test_segments_of_a_text_for_a_pair() -> None:
    assert segments("is it new\tno") == ("is it new", "no")
    assert segments("one two three") == ("one two", "three")
    assert segments("one") == ("one", "one")


def test_loads_that_cannot_be_are_rejected(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for wrong in (
        lambda: Steady(duration_s=0),
        lambda: Burst(UniformTenants, users=0),
        lambda: Overload(PoissonArrivals(1), UniformTenants, float("nan")),
        lambda: content(()),
        lambda: Overload(PoissonArrivals(1e-6), UniformTenants, 0.001).schedule(content(), rng),
        lambda: FileTexts.read(tmp_path / "none.txt"),
    ):
        with pytest.raises(WorkloadError):
            wrong()


def test_lengths_and_hplms_reach_every_row(seed: int) -> None:
    drawn = Content(HPLMS, WordTexts(), FixedLengths(12))
    schedule = Overload(PoissonArrivals(300), UniformTenants, 3.0).schedule(drawn, np.random.default_rng(seed))
    assert set(schedule.tokens.tolist()) == {12}
    assert set(schedule.hplm_of.tolist()) == {0, 1, 2}
