"""`hplm export --stages 2` behind the real Triton: the same answers as without."""

from __future__ import annotations

import os
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


def answers_of(home: Home, stages: int) -> list[Answer]:
    parameters = {"dtype": "fp32", "slots": "8", "threads": "2", "stages": str(stages)}
    settings = ExportSettings(lower_instances=1, lower_parameters={"dtype": "fp32"}, upper_parameters=parameters)
    render_repository(home.repository, settings)
    with TritonServer(config_of(home)) as server:
        with HplmClient(f"grpc://{server.grpc_url}", rows_per_request=1) as client:
            answers = client.infer_many(ROWS)
        metrics = urllib.request.urlopen(server.metrics_url, timeout=10).read().decode()
        assert f'stages="{stages}"' in metrics
    return answers


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two stages want two cores")
def test_a_server_of_stages_answers_as_one_without(tiny_home: Home) -> None:
    """Batches are of other rows each time, so the last bits may differ."""
    whole = answers_of(tiny_home, 1)
    for answer, other in zip(answers_of(tiny_home, 2), whole, strict=True):
        assert isinstance(answer, Classification) and isinstance(other, Classification)
        assert (answer.hplm, answer.label) == (other.hplm, other.label)
        assert answer.score == pytest.approx(other.score, abs=1e-5)
