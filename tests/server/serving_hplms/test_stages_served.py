"""`hplm export --stages 2` behind the real Triton, in one model or as a model each: the same answers as without."""

from __future__ import annotations

import os
import re
import urllib.request

import pytest

from backends.home import Home
from builder.export.repository import render_repository
from builder.export.settings import ExportSettings
from builder.serving import TritonServer
from hplm_client import Answer, Classification, HplmClient
from served_home import config_of

pytestmark = [pytest.mark.server, pytest.mark.long]
HPLMS = ("acme/topic", "acme/mood", "globex/topic", "initech/mood")
ROWS = [(HPLMS[number % 4], f"my cat {number} is lovely" + " and small" * (number % 7)) for number in range(200)]


def answers_of(home: Home, stages: int, stage_models: bool = False) -> list[Answer]:
    parameters = {"dtype": "fp32", "slots": "8", "threads": "2", "stages": str(stages)}
    settings = ExportSettings(
        lower_instances=1, lower_parameters={"dtype": "fp32"}, upper_parameters=parameters, stage_models=stage_models
    )
    render_repository(home.repository, settings)
    with TritonServer(config_of(home)) as server:
        answers: list[Answer] = []
        for rows_per_request in (1, 7):
            with HplmClient(f"grpc://{server.grpc_url}", rows_per_request=rows_per_request) as client:
                answers += client.infer_many(ROWS)
        metrics = urllib.request.urlopen(server.metrics_url, timeout=10).read().decode()
        infos = [line for line in metrics.splitlines() if line.startswith("hplm_upper_settings_info{")]
        assert len(infos) == (stages if stage_models else 1) and all(f'stages="{stages}"' in line for line in infos)
        assert len(re.findall(r'nv_inference_request_success\{model="hplm_stage_1"', metrics)) == int(stage_models)
    return answers


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two stages want two cores")
def test_a_server_of_stages_answers_as_one_without(tiny_home: Home) -> None:
    """Batches are of other rows each time, so the last bits may differ."""
    whole = answers_of(tiny_home, 1)
    for found in (answers_of(tiny_home, 2), answers_of(tiny_home, 2, stage_models=True)):
        for answer, other in zip(found, whole, strict=True):
            assert isinstance(answer, Classification) and isinstance(other, Classification)
            assert (answer.hplm, answer.label) == (other.hplm, other.label)
            assert answer.score == pytest.approx(other.score, abs=1e-5)
