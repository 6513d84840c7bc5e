"""What a page of metrics says of requests that wait."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from backends.errors import HplmError
from bench.kit.idle import counted_waiting, wait_until_idle


@dataclass(frozen=True)
class Gone:
    metrics_url: str = "http://127.0.0.1:1/metrics"


PAGE = """# HELP nv_inference_pending_request_count Instantaneous number of pending requests
nv_inference_pending_request_count{model="hplm_lower",version="1"} 12
nv_inference_request_success{model="hplm",version="1"} 400
hplm_waiting_rows{process="hplm_upper_0_0"} 0
hplm_waiting_rows{process="hplm_lower_0_0"} 3
"""


def test_what_waits_is_counted_by_its_gauges() -> None:
    assert counted_waiting(PAGE) == {
        'nv_inference_pending_request_count{model="hplm_lower",version="1"}': 12,
        'hplm_waiting_rows{process="hplm_upper_0_0"}': 0,
        'hplm_waiting_rows{process="hplm_lower_0_0"}': 3,
    }
    assert counted_waiting("nv_gpu_utilization 0.5\n") == {}


def test_a_server_that_is_gone_is_waited_for_in_vain_and_named() -> None:
    with pytest.raises(HplmError, match=r"127\.0\.0\.1:1/metrics does not answer: .*refused"):
        wait_until_idle(Gone(), longest_s=0.1)
