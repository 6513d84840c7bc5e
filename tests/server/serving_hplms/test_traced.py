"""What a real server has done, lane by lane; and answers that stay apart while adapters come and go."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from backends.home import Home
from backends.registry.registry import Registry
from backends.trace import Lane
from bench.kit.marks import Mark, mark_all
from bench.kit.tiny_home import sample_texts
from builder.export.repository import render_repository
from builder.export.settings import ExportSettings
from builder.serving import ServerConfig, TritonServer, traced
from hplm_client import Classification, HplmClient

pytestmark = [pytest.mark.server, pytest.mark.long]


def test_the_trace_of_a_server_that_swaps_all_the_time(tiny_home: Home, tmp_path: Path) -> None:
    """Two slots for four hPLMs, many clients: every answer is its own hPLM's, and all lanes are in the trace."""
    registry = Registry.open(tiny_home)
    hplms = [entry.id for entry in mark_all(tiny_home, registry)]
    registry.close()
    upper = {"dtype": "fp32", "slots": "3", "threads": "1", "max_rows": "8"}
    render_repository(tiny_home.repository, ExportSettings(upper_parameters=upper))
    config = ServerConfig(repository=tiny_home.repository, environment={"HPLM_HOME": str(tiny_home.path)})
    said: list[str] = []
    chance = random.Random(5)
    asked = [(chance.choice(hplms), sample.text) for sample in sample_texts(200, seed=6)]
    path = tmp_path / "trace.json"
    with (
        traced(config, path, said.append) as started,
        TritonServer(started) as server,
        HplmClient(f"grpc://{server.grpc_url}") as client,
        ThreadPoolExecutor(16) as pool,
    ):
        answers = list(pool.map(lambda one: client.infer(*one), asked))
    for (hplm, _), answer in zip(asked, answers, strict=True):
        assert isinstance(answer, Classification)
        assert answer.hplm == hplm
        assert Mark.of(hplm, answer.version).fits(answer.scores)
    events = json.loads(path.read_text())["traceEvents"]
    complete = [event for event in events if event["ph"] == "X"]
    assert {event["cat"] for event in complete} == set(Lane)
    rows = [event["args"]["rows"] for event in complete if event["name"] == "run"]
    assert sum(rows) == len(asked)
    processes = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert {name.rsplit("_", 2)[0] for name in processes} == {"hplm_lower", "hplm_upper"}
    assert "of adapter loading" in said[0]
