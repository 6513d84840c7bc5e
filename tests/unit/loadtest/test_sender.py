"""The load generator against servers that are functions: when requests leave, with which deadlines, how they end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from hplm_client import Classification, Request, ServerError, UnavailableError
from loadtest.capacity import measure_capacity
from loadtest.errors import RunError
from loadtest.in_process import Played, play
from loadtest.outcome import Kind
from loadtest.schedule import Row, Schedule
from loadtest.sender import Ask, OpenAsk, Sender, Target
from waiting import LIMIT_S

NOWHERE = Target("nowhere:1")
ANSWER = Classification(
    hplm="a/b", version=4, task="classification", label="x", score=1.0, scores={"x": 1.0}, truncated=False, exact=True
)


class Server:
    """Answers after a time that the text names in milliseconds; text `reject` and `fail` do what they say.

    Nothing is answered before `least` requests are under way.
    """

    def __init__(self, least: int = 0) -> None:
        self._least = least
        self._has_least = asyncio.Event()
        self.requests: list[Request] = []
        self.under_way = 0
        self.most_under_way = 0

    @asynccontextmanager
    async def open_ask(self, target: Target) -> AsyncIterator[Ask]:
        yield self.answer

    async def answer(self, request: Request) -> Classification:
        self.requests.append(request)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            if request.text == "reject":
                raise UnavailableError("the queue holds 17 rows")
            if request.text == "fail":
                raise ServerError("broken")
            if self.under_way >= self._least:
                self._has_least.set()
            await asyncio.wait_for(self._has_least.wait(), LIMIT_S)
            await asyncio.sleep(int(request.text) / 1000)
            return ANSWER
        finally:
            self.under_way -= 1


def played(schedule: Schedule, server: Server, in_flight: int | None = None, duration_s: float | None = None) -> Played:
    return play(NOWHERE, schedule, in_flight, duration_s, server.open_ask)


def test_a_schedule_of_rows_is_ordered_by_time() -> None:
    rows = [Row(0.3, "a/b", "x y", 50), Row(0.1, "c/d", "z"), Row(0.1, "a/b", "x y", tokens=9)]
    schedule = Schedule.of(rows)
    assert schedule.times_s.tolist() == [0.1, 0.1, 0.3]
    assert schedule.request(0, None) == Request("c/d", "z")
    assert schedule.request(2, 40) == Request("a/b", "x y", deadline_ms=40)
    assert schedule.tokens.tolist() == [3, 9, 4]
    assert [schedule.deadline_ms(row) for row in range(3)] == [None, None, 50]
    assert Schedule.from_bytes(schedule.to_bytes()).request(2, 40) == schedule.request(2, 40)


def test_open_loop_waits_for_no_answer() -> None:
    server = Server(least=200)
    rows = [Row(number / 1000, "a/b", "200") for number in range(200)]
    done = played(Schedule.of(rows), server)
    assert server.most_under_way == 200
    assert done.requests.answered.all()
    assert (done.requests.lag_s >= 0).all()
    assert (done.requests.latency_s >= 0.2).all()
    assert done.effort.wall_s > 0.39
    assert 0 < done.client_cores < 2


def test_a_closed_loop_keeps_so_many_under_way_and_sends_each_row_once() -> None:
    server = Server()
    rows = [Row(2 * LIMIT_S, f"a/b{number}", "2", 60_000) for number in range(60)]
    done = played(Schedule.of(rows), server, in_flight=7)
    assert server.most_under_way == 7
    assert sorted(request.hplm for request in server.requests) == sorted(f"a/b{number}" for number in range(60))
    assert {request.deadline_ms for request in server.requests} == {60_000}, "a deadline counts from sending"
    assert done.requests.numbers.tolist() == list(range(60))
    assert (done.requests.lag_s == 0).all()
    assert done.attainment == 1.0
    assert done.requests.done_s.max() < LIMIT_S, "planned times are ignored"
    assert done.rows_per_s(edge_rows=7) > 0
    done.require_all_answered()


def test_a_closed_loop_may_repeat_its_rows_for_a_time() -> None:
    server = Server()
    done = played(Schedule.of([Row(0.0, "a/b", "1"), Row(0.0, "a/c", "1")]), server, in_flight=3, duration_s=0.2)
    assert len(done.requests) == len(server.requests) > 2
    assert set(done.requests.numbers.tolist()) == {0, 1}
    assert 0.2 <= done.effort.wall_s < LIMIT_S


def test_several_loads_may_have_one_beginning() -> None:
    earlier = time.monotonic() - 100.0
    done = play(NOWHERE, Schedule.of([Row(0.0, "a/b", "1")]), 1, open_ask=Server().open_ask, starts_at=earlier)
    assert 100.0 < done.requests.sent_s[0] < done.requests.done_s[0] < 130.0
    assert done.requests.latency_s[0] < 30.0
    assert done.effort.wall_s < 30.0


def test_a_request_carries_what_is_left_of_its_planned_deadline() -> None:
    """The second row is due while the loop stands still, as on a busy machine."""
    server = Server()

    class Stalling(Server):
        async def answer(self, request: Request) -> Classification:
            if request.text == "0":
                time.sleep(0.1)
            return await super().answer(request)

    server = Stalling()
    soon, later = Row(0.0, "a/b", "0", 30_000), Row(0.01, "a/b", "5", 30_000)
    rows = [soon, later, Row(0.02, "a/b", "5", 60), Row(0.03, "a/b", "5")]
    done = played(Schedule.of(rows), server)
    assert [request.text for request in server.requests] == ["0", "5", "5"], "the third has nothing left"
    lag_ms = 1000 * done.requests.lag_s
    assert 89 < lag_ms[1] < 29_900
    left_ms = server.requests[1].deadline_ms
    assert left_ms is not None and 0 <= 30_000 - lag_ms[1] - left_ms < 1.001
    assert server.requests[2].deadline_ms is None
    assert done.requests.kinds.tolist() == [Kind.ANSWERED, Kind.ANSWERED, Kind.UNSENT, Kind.ANSWERED]
    assert done.unsent == 1
    assert done.attainment == 0.75
    assert done.reasons == {"UNSENT: the deadline passed before the request was sent": 1}


def test_an_answer_after_the_planned_deadline_is_not_on_time() -> None:
    done = played(Schedule.of([Row(0.0, "a/b", "600", 300), Row(0.0, "a/b", "1", 60_000)]), Server())
    assert done.requests.answered.all()
    assert done.requests.in_time.tolist() == [False, True]
    assert done.attainment == 0.5


def test_outcomes_say_why_there_is_no_answer() -> None:
    rows = [Row(number / 1000, "a/b", text) for number, text in enumerate(["1", "reject", "fail", "reject"])]
    done = played(Schedule.of(rows), Server())
    assert done.requests.kinds.tolist() == [Kind.ANSWERED, Kind.REJECTED, Kind.FAILED, Kind.REJECTED]
    assert done.reasons == {"UNAVAILABLE: the queue holds … rows": 2, "INTERNAL: broken": 1}
    with pytest.raises(RunError, match="3 of 4 requests were not answered, most often: UNAVAILABLE: the queue"):
        done.require_all_answered()


def test_an_overtaken_answer_is_told_from_a_rejection() -> None:
    @asynccontextmanager
    async def open_ask(target: Target) -> AsyncIterator[Ask]:
        async def ask(request: Request) -> None:
            raise UnavailableError("the deadline passed 3 ms before the answer was here")

        yield ask

    assert play(NOWHERE, Schedule.of([Row(0.0, "a/b", "x", 9_000)]), open_ask=open_ask).overtaken == 1


def test_a_caller_pauses_after_a_rejection() -> None:
    server = Server()
    played(Schedule.of([Row(0.0, "a/b", "reject")]), server, in_flight=2, duration_s=0.2)
    assert len(server.requests) <= 2 * (0.2 / 0.02 + 1)


def test_a_share_keeps_the_numbers_of_the_whole_load() -> None:
    schedule = Schedule.of([Row(0.0, "a/b", "1") for _ in range(9)]).share(1, 2)
    numbers: list[int] = []

    async def run() -> None:
        async with Server().open_ask(NOWHERE) as ask:
            await Sender(schedule, lambda outcome: numbers.append(outcome.number)).play(ask)

    asyncio.run(run())
    assert sorted(numbers) == [1, 3, 5, 7]


def test_settings_that_contradict_each_other_are_rejected() -> None:
    schedule = Schedule.of([Row(0.0, "a/b", "1")])
    with pytest.raises(ValueError, match="in_flight must be 1 or more"):
        Sender(schedule, print, in_flight=0)
    with pytest.raises(ValueError, match="duration_s goes with in_flight"):
        Sender(schedule, print, duration_s=1.0)


def capacity_with(monkeypatch: pytest.MonkeyPatch, open_ask: OpenAsk, *texts: str) -> float:
    monkeypatch.setattr("loadtest.in_process.open_sdk", open_ask)
    monkeypatch.setattr("loadtest.capacity.play", lambda *of: play(*of, open_ask=open_ask))
    return measure_capacity(NOWHERE, Schedule.of([Row(0.0, "a/b", text, 1) for text in texts]), 0.4)


def test_the_capacity_is_the_rate_of_answers_of_a_full_server(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    found = (capacity_with(monkeypatch, server.open_ask, "200") for _ in range(3))
    assert any(rows_per_s == pytest.approx(128 / 0.2, rel=0.5) for rows_per_s in found), "nor on a machine that stalls"
    assert {request.deadline_ms for request in server.requests} == {None}


@pytest.mark.parametrize(("text", "message"), [("reject", "answered nothing"), ("fail", "INTERNAL: broken")])
def test_a_capacity_that_cannot_be_measured_is_one_line(
    monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    with pytest.raises(RunError, match=message):
        capacity_with(monkeypatch, Server().open_ask, text)
