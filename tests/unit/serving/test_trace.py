"""Spans of several processes become one trace that Chrome reads."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from backends.errors import InvalidArgumentError, NotFoundError
from backends.trace import TRACE_VARIABLE, Lane, Tracer, span, start_tracing, stop_tracing
from builder.serving import ServerConfig, TracedSpan, overlap_line, overlaps, read_spans, traced, write_trace
from waiting import wait_until


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    start_tracing(tmp_path / "trace", "one")
    yield tmp_path / "trace"
    stop_tracing()


def a_span(lane: Lane, start_us: float, duration_us: float) -> TracedSpan:
    return TracedSpan(lane, "x", "p", 1, start_us, duration_us, duration_us, {})


def test_spans_are_written_with_their_lanes_and_arguments(folder: Path) -> None:
    with span(Lane.COMPUTE, "run", rows=3), span(Lane.LOADING, "load"):
        sum(range(10_000))
    stop_tracing()
    run, load = read_spans(folder)
    assert (run.lane, run.name, run.arguments, run.process, run.pid) == (
        "compute",
        "run",
        {"rows": 3},
        "one",
        os.getpid(),
    )
    assert run.start_us <= load.start_us
    assert 0 < load.cpu_us <= run.cpu_us
    assert load.duration_us <= run.duration_us


def test_a_span_is_written_when_its_work_fails(folder: Path) -> None:
    with pytest.raises(ValueError, match="broken"), span(Lane.COMPUTE, "run"):
        raise ValueError("broken")
    stop_tracing()
    assert [found.name for found in read_spans(folder)] == ["run"]


def test_nothing_is_written_when_nobody_traces(tmp_path: Path) -> None:
    start_tracing(None, "one")
    with span(Lane.COMPUTE, "run"):
        pass
    assert span(Lane.COMPUTE, "run") is span(Lane.LOADING, "load", rows=3)


def test_a_line_cut_short_costs_itself_only(folder: Path) -> None:
    with span(Lane.COMPUTE, "run"):
        pass
    stop_tracing()
    (folder / "killed.1.jsonl").write_text('{"cat": "compute", "na')
    assert len(read_spans(folder)) == 1


def test_the_trace_names_processes_and_lanes(tmp_path: Path) -> None:
    spans = [a_span(lane, 10.0 * place, 5.0) for place, lane in enumerate(Lane)]
    write_trace(tmp_path / "trace.json", spans)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    lanes = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert set(lanes.values()) == set(Lane)
    complete = [event for event in events if event["ph"] == "X"]
    assert [lanes[event["tid"]] for event in complete] == [event["cat"] for event in complete] == list(Lane)
    assert all({"ts", "dur", "pid", "tid", "name"} <= event.keys() for event in complete)


def test_overlap_equals_counting_every_microsecond() -> None:
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    for _ in range(50):
        lanes = (Lane.COMPUTE, Lane.RETRIEVAL)
        spans = [a_span(chance.choice(lanes), chance.randint(0, 80), chance.randint(0, 15)) for _ in range(12)]
        ticks = {
            lane: {
                tick
                for one in spans
                if one.lane is lane
                for tick in range(int(one.start_us), int(one.start_us + one.duration_us))
            }
            for lane in lanes
        }
        retrieval = ticks[Lane.RETRIEVAL]
        expected = {Lane.RETRIEVAL: len(retrieval & ticks[Lane.COMPUTE]) / len(retrieval)} if retrieval else {}
        assert overlaps(spans) == pytest.approx(expected), f"seed {seed}"


def test_one_line_says_what_is_hidden() -> None:
    spans = [a_span(Lane.COMPUTE, 0, 10), a_span(Lane.RETRIEVAL, 5, 10), a_span(Lane.LOADING, 1, 2)]
    assert overlap_line(spans) == "hidden behind compute: 50% of retrieval, 100% of adapter loading"
    assert overlap_line([]) == "nothing was traced"


def test_a_server_is_told_where_to_trace_and_the_file_is_written_at_its_end(tmp_path: Path) -> None:
    config, said = ServerConfig(repository=tmp_path, environment={"A": "1"}), list[str]()
    with traced(config, tmp_path / "trace.json", said.append) as started:
        assert started.environment["A"] == "1"
        start_tracing(started.environment[TRACE_VARIABLE], "one")
        with span(Lane.COMPUTE, "run"):
            pass
        stop_tracing()
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert said == [f"{tmp_path / 'trace.json'}: 1 spans; nothing was traced"]
    with traced(config, None, said.append) as started:
        assert started is config


def test_a_trace_that_cannot_be_written_is_refused_before_the_server_starts(tmp_path: Path) -> None:
    config, started = ServerConfig(repository=tmp_path), list[str]()
    with pytest.raises(NotFoundError, match="folder"), traced(config, tmp_path / "no" / "trace.json", started.append):
        started.append("started")
    with pytest.raises(InvalidArgumentError, match="name a file"), traced(config, tmp_path, started.append):
        started.append("started")
    assert not started


def test_a_full_disk_ends_the_trace_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / f"one.{os.getpid()}.jsonl").symlink_to("/dev/full")
    tracer = Tracer(tmp_path, "one")
    with tracer.span(Lane.COMPUTE, "run", {}):
        pass
    wait_until(lambda: bool(caplog.records))
    assert [record.message.startswith("the trace ends here") for record in caplog.records] == [True]
    # Nothing is collected any more: it would pile up.
    assert tracer.span(Lane.COMPUTE, "run", {}) is tracer.span(Lane.COMPUTE, "another", {})
    tracer.close()
    assert len(caplog.records) == 1
