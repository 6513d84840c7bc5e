"""`bench.chaos`: its plan replays, its figures count what they say, and its defects strike where they are ordered."""

from __future__ import annotations

import math
import time
from collections import Counter
from pathlib import Path

import pytest

from bench.chaos import QUICK
from bench.kit.chaos.defects import DefectError, _failing, raise_defect
from bench.kit.chaos.faults import Struck
from bench.kit.chaos.home import wrong_weights
from bench.kit.chaos.load import Ended, Requested, ended_by, fits
from bench.kit.chaos.plan import BY_NAME, ENCODE, KINDS, Fault, Way, draw_plan
from bench.kit.chaos.readiness import Canary, Sample
from bench.kit.chaos.verdicts import Recovery, lies_s, recovery_figures, request_figures
from bench.kit.marks import Mark
from bench.kit.timeline import Timeline
from builder.export.model_names import LOWER
from hplm_client import Classification, NotReadyError, RequestTimeoutError, ServerError, UnavailableError

LIMITS = QUICK.pauses_s


def fault(name: str = "kill-upper") -> Fault:
    return Fault(BY_NAME[name], 4.0, 0, "")


def sample(at_s: float, ready: bool, canary: Canary, took_s: float = 0.05) -> Sample:
    return Sample(at_s, ready, "" if ready else "a stub has died", canary, at_s + took_s)


def good(at_s: float) -> Sample:
    return sample(at_s, True, Canary.ANSWERED)


def lie(at_s: float, took_s: float = 0.05) -> Sample:
    return sample(at_s, True, Canary.FAILED, took_s)


def honest(at_s: float) -> Sample:
    return sample(at_s, False, Canary.FAILED)


def requested(ended: Ended, version: int | None = None, fits_mark: bool = True) -> Requested:
    return Requested("grpc", "tenant0/task", None, 1.0, 2.0, ended, "", version, fits_mark)


def test_a_seed_gives_one_plan_and_another_seed_another() -> None:
    assert draw_plan(1, 40, LIMITS) == draw_plan(1, 40, LIMITS)
    assert draw_plan(1, 40, LIMITS) != draw_plan(2, 40, LIMITS)


@pytest.mark.parametrize("count", [3, 8, 13, 40])
def test_kinds_come_equally_often(count: int) -> None:
    plan = draw_plan(7, count, LIMITS)
    times = Counter(one.kind for one in plan)
    assert len(plan) == count
    assert max(times.values()) - min(times[kind] for kind in KINDS) <= 1
    assert all(LIMITS[0] <= one.pause_s <= LIMITS[1] for one in plan)


def test_defects_name_a_loop_of_their_model_and_other_faults_none() -> None:
    for one in draw_plan(7, 80, LIMITS):
        assert bool(one.loop) == (one.kind.way is Way.DEFECT)
        assert (one.loop == ENCODE) == (one.kind == BY_NAME["defect-lower"])


def test_only_the_wanted_kinds_are_drawn() -> None:
    plan = draw_plan(7, 5, LIMITS, [BY_NAME["stop-lower"]])
    assert {(one.kind.way, one.kind.target) for one in plan} == {(Way.STOP, LOWER)}


def test_a_lie_lasts_from_the_fault_to_the_first_503() -> None:
    # The canary of 9.9 was under way when the fault struck at 10.
    samples = [good(9.8), lie(9.9, took_s=1.0), lie(10.0), lie(10.4), good(10.5), lie(10.8), honest(11.3), honest(11.4)]
    assert lies_s(samples, [10.0]) == [pytest.approx(1.3)]


def test_a_fault_begins_a_lie_of_its_own() -> None:
    # A slow machine failed the canary of 9.8 before anything struck.
    samples = [lie(9.8), good(9.9), lie(10.0, took_s=2.0), lie(10.3), honest(10.5)]
    assert lies_s(samples, [10.1]) == [pytest.approx(0.1), pytest.approx(0.4)]


def test_lies_far_apart_are_two_and_a_503_is_none() -> None:
    samples = [lie(1.0), good(1.1), honest(1.2), lie(5.0), lie(5.1), good(5.2), honest(5.3)]
    assert lies_s(samples) == [pytest.approx(0.1), pytest.approx(0.2)]
    assert lies_s([good(1.0), honest(1.1), sample(1.2, True, Canary.REJECTED)]) == []


def test_a_recovery_begins_with_a_503_and_ends_with_an_answer_beside_a_200() -> None:
    # Of two lower stubs the one that lives answers until the watchdog has noticed.
    samples = [good(9.9), good(10.1), honest(10.5), lie(14.0), sample(14.1, False, Canary.ANSWERED), good(14.2)]
    one = Recovery.of(Struck(fault(), 10.0, restart_cpu_s=6.0), samples)
    assert (one.unready_s, one.whole_s) == (pytest.approx(0.5), pytest.approx(4.25))
    assert one.why == "a stub has died"
    requests = [requested(Ended.FAILED)._replace(done_s=done_s) for done_s in (9.9, 10.1, 14.2, 14.4)]
    row = one.row(0.0, requests, 0.5)
    assert (row["kind"], row["what"], row["failed meanwhile"]) == ("kill-upper", "hplm_upper", 2)
    assert recovery_figures([one])["restart_cpu_s_p50"] == row["processor s"] == 6.0


def test_faults_without_an_end_are_counted_and_hangs_have_their_own_figure() -> None:
    def recovery(name: str, whole_s: float | None) -> Recovery:
        return Recovery(Struck(fault(name), 0.0), None if whole_s is None else 0.5, whole_s, "")

    figures = recovery_figures(
        [
            recovery("kill-upper", 3.0),
            recovery("defect-lower", 5.0),
            recovery("stop-upper", 9.0),
            recovery("kill-lower", None),
        ]
    )
    assert (figures["faults"], figures["not_healed"]) == (4, 1)
    assert figures["recovery_s_p50"] == pytest.approx(4)
    assert figures["hang_recovery_s_max"] == 9


def test_a_request_without_an_outcome_is_lost_whether_it_is_told_or_not() -> None:
    told = [requested(Ended.ANSWERED), requested(Ended.REJECTED), requested(Ended.FAILED), requested(Ended.LOST)]
    figures = request_figures(6, told)
    assert figures["lost_requests"] == 3
    assert figures["requests"] == 3 + figures["answered"] + figures["rejected"] + figures["failed"]


def test_errors_are_rejections_only_where_a_model_says_why() -> None:
    assert ended_by(UnavailableError("full", reason="queue_full")) is Ended.REJECTED
    assert ended_by(UnavailableError("the server is stopping")) is Ended.FAILED
    assert ended_by(NotReadyError("starting", reason="starting")) is Ended.FAILED
    assert ended_by(ServerError("a defect")) is Ended.FAILED
    assert ended_by(RequestTimeoutError("none within 60 s")) is Ended.LOST


def test_answers_of_other_weights_and_of_other_versions_are_wrong() -> None:
    timeline = Timeline()
    with timeline.change("tenant0/task") as published:
        published.append(2)
    now_s = time.monotonic()
    right = requested(Ended.ANSWERED, version=2)._replace(sent_s=now_s, done_s=now_s)
    assert wrong_weights(timeline, [right, requested(Ended.FAILED)]) == 0
    assert wrong_weights(timeline, [right._replace(fits=False), right._replace(version=3)]) == 2


def test_an_answer_bears_the_mark_of_its_hplm_and_version() -> None:
    hplm = "tenant0/task"
    mark = Mark.of(hplm, 2)
    first = math.exp(mark.in_adapters + mark.in_head)
    scores = {"label 0": first / (first + 1), "label 1": 1 / (first + 1)}

    def answer(version: int) -> Classification:
        return Classification(hplm, version, "classification", False, True, "label 0", scores["label 0"], scores)

    assert fits(hplm, answer(2))
    assert not fits(hplm, answer(3))
    assert not fits("tenant1/task", answer(2))


def test_a_defect_strikes_once_where_it_is_ordered(tmp_path: Path) -> None:
    called = []
    loop = _failing(lambda number: called.append(number), tmp_path / "stage")
    loop(1)
    raise_defect(tmp_path, "stage")
    with pytest.raises(DefectError):
        loop(2)
    loop(3)
    assert called == [1, 3]
