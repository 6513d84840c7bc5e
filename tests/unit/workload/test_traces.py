"""The shapes of published traces, and what becomes of broken ones."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from workload.errors import WorkloadError
from workload.traces import read_trace, stream_trace


def written(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_our_own_csv(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path / "t.csv", "time_s,tokens,tenant", "5,20,a", "5,3,b", "6.5,9,a"))
    assert trace.times_s.tolist() == [0.0, 0.0, 1.5]
    assert trace.tokens is not None and trace.tokens.tolist() == [20, 3, 9]
    assert trace.tenants is not None and trace.tenants.tolist() == [0, 1, 0]
    assert trace.tenant_names == ("a", "b")
    assert (len(trace), trace.duration_s) == (3, 1.5)


def test_times_alone(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path / "t.csv", "time_s", "0", "2"))
    assert trace.times_s.tolist() == [0.0, 2.0]
    assert trace.tokens is None and trace.tenants is None and trace.tenant_names == ()


def test_recorded_traffic(tmp_path: Path) -> None:
    lines = ("time_s,hplm,tokens,deadline_ms", "0,acme/a,7,250", "0.5,globex/b,9,", "2,acme/a,5,0.5")
    trace = read_trace(written(tmp_path / "t.csv", *lines))
    assert trace.tenant_names == ("acme/a", "globex/b")
    assert trace.deadlines_ms is not None
    assert trace.deadlines_ms.tolist() == pytest.approx([250, math.nan, 0.5], nan_ok=True)
    without = read_trace(written(tmp_path / "u.csv", "time_s,deadline_ms", "0,", "1,"))
    assert without.deadlines_ms is None
    as_json = read_trace(written(tmp_path / "t.jsonl", '{"time_s": 0, "deadline_ms": 9}', '{"time_s": 1}'))
    assert as_json.deadlines_ms is not None
    assert as_json.deadlines_ms.tolist() == pytest.approx([9, math.nan], nan_ok=True)


def test_a_first_line_of_jsonl_without_a_deadline(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path / "t.jsonl", '{"time_s": 0}', '{"time_s": 1, "deadline_ms": 9}'))
    assert trace.deadlines_ms is not None
    assert trace.deadlines_ms.tolist() == pytest.approx([math.nan, 9], nan_ok=True)


def test_levels(tmp_path: Path) -> None:
    lines = ("time_s,hplm,level", "0,a,", "1,a,students-2", "2,b,full", "3,a,students-2")
    trace = read_trace(written(tmp_path / "t.csv", *lines))
    assert trace.level_names == ("", "students-2", "full")
    assert trace.levels is not None and trace.levels.tolist() == [0, 1, 2, 1]
    without = read_trace(written(tmp_path / "u.csv", "time_s,level", "0,", "1,"))
    assert without.levels is None and without.level_names == ()
    with pytest.raises(WorkloadError, match="line 1: the level is 7, not a name"):
        read_trace(written(tmp_path / "t.jsonl", '{"time_s": 0, "level": 7}'))


def test_azure(tmp_path: Path) -> None:
    lines = ("2023-11-16 18:17:03.9799600,4808,10", "2023-11-16 18:17:04.0319600,3180,8")
    trace = read_trace(written(tmp_path / "azure.csv", "TIMESTAMP,ContextTokens,GeneratedTokens", *lines))
    assert trace.times_s == pytest.approx([0.0, 0.052], abs=1e-6)
    assert trace.tokens is not None and trace.tokens.tolist() == [4808, 3180]


def test_alibaba(tmp_path: Path) -> None:
    lines = ("2024-11-15 16:57:50,G7,M0,0,32.0", "2024-11-15 18:16:14,G1,M1,0,43.0", "2024-11-15 18:16:14,G7,M1,0,1.0")
    trace = read_trace(written(tmp_path / "a.csv", "time,group,base_model,num_lora,exec_seconds", *lines))
    assert trace.times_s.tolist() == [0.0, 4704.0, 4704.0]
    assert trace.tenants is not None and trace.tenants.tolist() == [0, 1, 0]
    assert trace.tenant_names == ("G7", "G1")


def test_mooncake(tmp_path: Path) -> None:
    lines = ('{"timestamp": 100, "input_length": 12, "hash_ids": [0]}', "", '{"timestamp": 3100, "input_length": 4}')
    trace = read_trace(written(tmp_path / "m.jsonl", *lines))
    assert trace.times_s.tolist() == [0.0, 3.0]
    assert trace.tokens is not None and trace.tokens.tolist() == [12, 4]


def test_a_trace_is_streamed(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", "time_s", "0", "1", "broken")
    asked = stream_trace(path)
    assert [next(asked).time_s, next(asked).time_s] == [0.0, 1.0]  # the third line is not read yet
    with pytest.raises(WorkloadError, match="line 4"):
        next(asked)


def test_a_csv_of_a_spreadsheet_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("time_s,tokens\n0,5\n2,6\n", encoding="utf-8-sig")
    assert read_trace(path).times_s.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        (["time_s", "3", "5", "4.5"], "line 4: 1.5 s after the first request.*2 s after; sort the trace"),
        (["time_s", "abc"], "line 2: 'abc' is no number"),
        (["time_s", "nan"], "line 2: 'nan' is no number"),
        (["time", "yesterday"], "line 2: 'yesterday' is no date"),
        (["time_s,tokens", "0"], "line 2: a number is missing"),
        (["time_s,tokens", "0,0"], "line 2: a request has 1 token or more, and 1,048,576 at most, not 0"),
        (["time_s,tokens", "0,5", "1,1.1e30"], "line 3: a request has 1 token or more, and 1,048,576 at most"),
        (["time_s,deadline_ms", "0,0"], "line 2: a deadline is above 0 and 86400000 ms away at most, not 0"),
        (["time_s,deadline_ms", "0,9e9"], "line 2: a deadline is above 0 and 86400000 ms away at most, not 9e"),
        (["time_s,deadline_ms", "0,soon"], "line 2: 'soon' is no number"),
        (["time_s,tenant", "0,"], "line 2: the tenant is missing"),
        (["when", "0"], "line 1: no column says when; one of time_s"),
        (["when"], "line 1: no column says when; one of time_s"),
        (["time_s,tokens,time_s", "0,5,1"], "more than one column is called 'time_s'"),
        (["time_s"], "no requests"),
        ([""], "no requests"),
    ],
)
def test_broken_csv_is_named_in_one_line(tmp_path: Path, lines: list[str], complaint: str) -> None:
    with pytest.raises(WorkloadError, match=complaint) as caught:
        read_trace(written(tmp_path / "t.csv", *lines))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        (['{"timestamp": 1'], "line 1: not JSON"),
        (["[" * 100_000], "line 1: not JSON"),
        (["[1]"], "line 1: not an object"),
        (['{"timestamp": 1}', "{}"], "line 2: no 'timestamp'"),
        (['{"time_s": 1, "tokens": 3}', '{"time_s": 2}'], "line 2: no 'tokens'"),
        (['{"time_s": 1}', '{"time_s": 2, "tokens": 3}'], "line 2: 'tokens' is not in the first line"),
        (['{"time_s": 1}', '{"time_s": 2, "hplm": "acme/a"}'], "line 2: 'hplm' is not in the first line"),
    ],
)
def test_broken_jsonl_is_named_in_one_line(tmp_path: Path, lines: list[str], complaint: str) -> None:
    with pytest.raises(WorkloadError, match=complaint):
        read_trace(written(tmp_path / "t.jsonl", *lines))


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="No such file"):
        read_trace(tmp_path / "missing.csv")
    (tmp_path / "binary.csv").write_bytes(b"time_s\n\xff\xfe\n")
    with pytest.raises(WorkloadError, match="not UTF-8"):
        read_trace(tmp_path / "binary.csv")
