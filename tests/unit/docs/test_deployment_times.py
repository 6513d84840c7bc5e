"""The times of the systemd unit and of the manifest for Kubernetes, against those of `hplm serve`."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from builder.serving import Supervision
from builder.serving.config import READY_TIMEOUT_S

_PROJECT = Path(__file__).parents[3]
_TRITON_S = 30
"""For Triton to end, after the drain."""


def test_systemd_waits_for_a_start_and_a_drain_and_never_gives_up() -> None:
    lines = (_PROJECT / "deploy" / "systemd" / "hplm.service").read_text(encoding="utf-8").splitlines()
    unit = dict(line.split("=", 1) for line in lines if re.match(r"\w+=", line))
    assert "--drain 30s" in unit["ExecStart"]
    assert int(unit["TimeoutStartSec"]) > READY_TIMEOUT_S
    assert int(unit["TimeoutStopSec"]) >= Supervision().drain_s + _TRITON_S
    assert unit["StartLimitIntervalSec"] == "0" and int(unit["RestartSec"]) >= 10
    assert "/var/lib/" + unit["StateDirectory"] == "/var/lib/hplm", "which the documents name for HPLM_LOCAL"


def test_kubernetes_waits_for_a_start_and_a_drain() -> None:
    text = (_PROJECT / "docs" / "how-to" / "deploy.md").read_text(encoding="utf-8")
    (manifest,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    pod = yaml.safe_load(manifest)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] > READY_TIMEOUT_S
    pre_stop_s = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] >= Supervision().drain_s + _TRITON_S + pre_stop_s
