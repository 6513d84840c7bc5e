"""Every number of a report against the most obvious way to come to it, on random runs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from random_run import HPLMS, REASONS, random_folder, random_outcomes, random_schedule

from loadtest import figures
from loadtest.outcome import Kind, Outcome
from loadtest.report import notices
from loadtest.requests import Requests
from loadtest.results import read_results
from loadtest.run_folder import RunFolder


def percentile(values: list[float], percent: float) -> float:
    ordered = sorted(values)
    place = percent / 100 * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def test_summary_is_what_counting_by_hand_gives(tmp_path: Path, seed: int) -> None:
    schedule = random_schedule(seed)
    outcomes = random_outcomes(schedule, seed)
    summary = read_results(random_folder(tmp_path / "run", seed)).summary

    def latency_ms(outcome: Outcome) -> float:
        return 1000 * (outcome.done_s - float(schedule.times_s[outcome.number]))

    answered = [outcome for outcome in outcomes if outcome.kind == Kind.ANSWERED]
    in_time = [one for one in answered if latency_ms(one) <= (schedule.deadline_ms(one.number) or math.inf)]
    assert 0 < len(in_time) < len(answered) < len(outcomes) < len(schedule)
    assert summary["planned"] == len(schedule)
    assert (summary["answered"], summary["in_time"]) == (len(answered), len(in_time))
    assert summary["late"] == len(answered) - len(in_time)
    for name, kind in (("rejected", Kind.REJECTED), ("failed", Kind.FAILED)):
        assert summary[name] == sum(outcome.kind == kind for outcome in outcomes)
    assert summary["unfinished"] == len(schedule) - len(outcomes)
    assert summary["attainment"] == pytest.approx(len(in_time) / len(schedule))
    assert summary["answered_in_time"] == pytest.approx(len(in_time) / len(answered))
    lasted_s = schedule.end_s * len(schedule) / (len(schedule) - 1)
    assert summary["offered_per_s"] == pytest.approx(len(schedule) / lasted_s)
    for name, counted in (("answered_per_s", answered), ("in_time_per_s", in_time)):
        while_it_lasted = [one for one in counted if one.done_s <= lasted_s]
        assert summary[name] == pytest.approx(len(while_it_lasted) / lasted_s)
    assert summary["utility"] == pytest.approx(sum(1 / int(schedule.tokens[one.number]) for one in in_time))

    of_answers = [latency_ms(outcome) for outcome in answered]
    for percent in (50, 90, 95, 99, 99.9):
        # The file keeps microseconds.
        assert summary["latency_ms"][f"p{percent:g}"] == pytest.approx(percentile(of_answers, percent), abs=0.002)
    assert summary["latency_ms"]["mean"] == pytest.approx(sum(of_answers) / len(of_answers), abs=0.002)
    late_ms = [1000 * (one.sent_s - float(schedule.times_s[one.number])) for one in outcomes]
    assert summary["sending"]["lateness_ms"]["p99"] == pytest.approx(percentile(late_ms, 99), abs=0.002)
    for reason, count in summary["reasons"].items():
        assert count == sum(outcome.reason == reason for outcome in outcomes)
    assert figures.errors(summary) == {REASONS[2]: summary["failed"]}
    assert sum(summary["reasons"].values()) == summary["rejected"] + summary["failed"]


def test_levels_are_what_counting_by_hand_gives(tmp_path: Path, seed: int) -> None:
    schedule = random_schedule(seed)
    answered = [one for one in random_outcomes(schedule, seed) if one.kind == Kind.ANSWERED]
    results = read_results(random_folder(tmp_path / "run", seed))
    judged = [one for one in answered if one.right is not None]
    assert {one.number for one in judged} == {
        one.number for one in answered if schedule.hplms[int(schedule.hplm_of[one.number])] == HPLMS[0]
    }
    assert results.summary["judged"] == len(judged) > 0
    assert results.summary["accuracy"] == pytest.approx(sum(bool(one.right) for one in judged) / len(judged))
    laddered = [one for one in answered if one.level]
    assert results.summary["below_full"] == pytest.approx(sum(one.level == "early" for one in laddered) / len(laddered))
    assert results.summary["doubtful"] == sum(one.doubtful for one in answered)
    lines = {line["level"]: line for line in results.summary["by_level"]}
    assert lines.keys() == {"early", "full", "without a ladder"}
    for level in ("early", "full"):
        of_level = [one for one in answered if one.level == level]
        right = [one.right for one in of_level if one.right is not None]
        assert (lines[level]["answers"], lines[level]["judged"]) == (len(of_level), len(right))
        assert lines[level]["accuracy"] == (pytest.approx(sum(right) / len(right)) if right else None)
    curve = figures.over_time(results.requests, results.planned)
    there = ~np.isnan(curve.accuracy)
    edges = np.linspace(0, 2 * curve.middles_s[0] * len(curve.middles_s), len(curve.middles_s) + 1)
    in_bins = np.histogram([schedule.times_s[one.number] for one in judged], edges)[0]
    assert (in_bins > 0).tolist() == there.tolist()
    rights = np.histogram([schedule.times_s[one.number] for one in judged if one.right], edges)[0]
    assert curve.accuracy[there] == pytest.approx(rights[there] / in_bins[there])


@pytest.mark.parametrize("times_s", [[0.0], [0.0] * 50, [0.0, 0.1, 0.2, 0.3], [0.0, 20.0], [0.0, 1.0, 2.0]])
def test_a_server_that_answers_all_at_once_answers_what_is_offered(times_s: list[float]) -> None:
    sent = np.array(times_s)
    names = np.array(["a/b"] * len(sent))
    requests = Requests(
        numbers=np.arange(len(sent)),
        scheduled_s=sent,
        sent_s=sent,
        done_s=sent + 0.1,
        deadline_ms=np.full(len(sent), np.nan),
        tokens=np.full(len(sent), 5),
        hplms=names,
        kinds=np.array([Kind.ANSWERED] * len(sent)),
        reasons=np.array([""] * len(sent)),
        levels=np.array([""] * len(sent)),
        doubtful=np.zeros(len(sent), bool),
        right=np.full(len(sent), np.nan),
    )
    found = figures.summary(requests, figures.Planned(sent, names), 20.0)
    assert found["answered_per_s"] == found["in_time_per_s"] == found["offered_per_s"] > 0


def test_fairness_is_jains_index_of_the_tenants_attainments(tmp_path: Path, seed: int) -> None:
    schedule, results = random_schedule(seed), read_results(random_folder(tmp_path / "run", seed))
    planned: dict[str, int] = {}
    served: dict[str, int] = {}
    for row in range(len(schedule)):
        tenant = schedule.hplms[int(schedule.hplm_of[row])].split("/")[0]
        planned[tenant] = planned.get(tenant, 0) + 1
    for outcome in random_outcomes(schedule, seed):
        late = 1000 * (outcome.done_s - schedule.times_s[outcome.number]) > (schedule.deadline_ms(outcome.number) or 0)
        if outcome.kind == Kind.ANSWERED and not late:
            tenant = schedule.hplms[int(schedule.hplm_of[outcome.number])].split("/")[0]
            served[tenant] = served.get(tenant, 0) + 1
    shares = [served.get(tenant, 0) / count for tenant, count in planned.items()]
    fairness = results.summary["fairness"]
    assert fairness["tenants"] == len(planned)
    assert fairness["jain"] == pytest.approx(sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares)))
    assert (fairness["lowest"], fairness["highest"]) == pytest.approx((min(shares), max(shares)))


def test_most_in_flight_is_what_looking_at_every_moment_gives(tmp_path: Path, seed: int) -> None:
    requests = read_results(random_folder(tmp_path / "run", seed)).requests
    spans = list(zip(requests.sent_s.tolist(), requests.done_s.tolist(), strict=True))
    assert figures.most_in_flight(requests) == max(sum(a <= sent <= b for a, b in spans) for sent, _ in spans)


def test_curves_over_time_lose_no_request(tmp_path: Path, seed: int) -> None:
    results = read_results(random_folder(tmp_path / "run", seed))
    curve = figures.over_time(results.requests, results.planned)
    width_s = float(curve.middles_s[1] - curve.middles_s[0])
    assert (curve.offered_per_s * width_s).sum() == pytest.approx(results.summary["planned"])
    assert (curve.answered_per_s * width_s).sum() == pytest.approx(results.summary["answered"])
    assert (curve.rejected_per_s * width_s).sum() == pytest.approx(results.summary["rejected"])
    in_time = np.nansum(curve.attainment * curve.offered_per_s * width_s)
    assert in_time == pytest.approx(results.summary["in_time"])


def test_without_a_deadline_every_answer_is_in_time(tmp_path: Path, seed: int) -> None:
    schedule = random_schedule(seed, deadlines=None)
    folder = RunFolder.create(tmp_path / "run")
    with folder.writing(schedule) as writer:
        writer.write(random_outcomes(schedule, seed))
    requests = folder.read_requests()
    assert (requests.in_time == requests.answered).all()


def test_sending_too_late_makes_a_run_invalid(tmp_path: Path, seed: int) -> None:
    results = read_results(random_folder(tmp_path / "run", seed))
    p99_ms = results.summary["sending"]["lateness_ms"]["p99"]
    for limit_ms, valid in ((p99_ms * 1.01, True), (p99_ms * 0.99, False)):
        assert figures.summary(results.requests, results.planned, limit_ms)["sending"]["valid"] is valid


def test_requests_that_were_not_sent_make_a_run_invalid(tmp_path: Path, seed: int) -> None:
    results = read_results(random_folder(tmp_path / "run", seed))
    most = len(results.requests) // 2
    for num_unsent in (most, most + 1):
        kinds = results.requests.kinds.astype(object)
        kinds[:num_unsent] = Kind.UNSENT
        summary = figures.summary(replace(results.requests, kinds=kinds.astype(str)), results.planned, math.inf)
        assert summary["sending"]["valid"] is (num_unsent == most)
    (told,) = [line for line in notices(replace(results, summary=summary)) if line.startswith("Not valid")]
    assert f"{most + 1:,} of {len(results.requests):,} requests met their deadlines before they could be sent" in told


def test_shares_of_batches_count_rows() -> None:
    assert figures.batch_shares({"batches": {"1": 10, "4": 30}}) == {1: 10 / 130, 4: 120 / 130}
    assert figures.batch_shares({"batches": None}) is None
