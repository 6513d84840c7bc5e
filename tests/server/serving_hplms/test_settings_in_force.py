"""The settings in force: in the line at the start, in Triton's configuration, in metrics; what an export changed."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from backends.deadline_batcher import PLAN_VERSION
from backends.home import Home

pytestmark = pytest.mark.server
HPLM = str(Path(sys.executable).with_name("hplm"))


@pytest.fixture
def export(run_hplm: Callable[..., str], tiny_home: Home) -> Callable[..., list[str]]:
    """The lines that an export prints."""
    return lambda *options: run_hplm("export", "--home", tiny_home.path, *options).splitlines()


@pytest.mark.long
def test_a_policy_of_one_run_is_told_everywhere(tiny_home: Home, export: Callable[..., list[str]]) -> None:
    assert len(export()) == 1
    before = (tiny_home.repository / "hplm_upper" / "config.pbtxt").read_text()
    with (tiny_home.repository / "hplm_upper" / "1" / "model.py").open("a") as code:
        code.write("# of another release\n")
    command = [HPLM, "serve", "--home", str(tiny_home.path), "--policy", "das"]
    ports = ("--http", "0", "--grpc", "0", "--metrics", "0")
    server = subprocess.Popen([*command, *ports], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        ready = next(line for line in server.stdout if line.startswith("ready:")).split()
        http, metrics = ready[2], ready[4]
        config = json.load(urllib.request.urlopen(f"{http}/v2/models/hplm_upper/config", timeout=10))
        assert config["parameters"]["policy"] == {"string_value": "das"}
        lines = urllib.request.urlopen(metrics, timeout=10).read().decode().splitlines()
        (info,) = (line for line in lines if line.startswith("hplm_upper_settings_info{"))
        assert 'policy="das"' in info and info.endswith(" 1")
        assert any(line.startswith("hplm_lower_settings_info{") and 'missing="' in line for line in lines)
    finally:
        server.send_signal(signal.SIGTERM)
        _, err = server.communicate(timeout=60)
    assert f"{tiny_home.repository} differs from the installed release" in err
    (line,) = (line for line in err.splitlines() if line.startswith("settings: "))
    assert "policy das (of this run), mode engine" in line and "slots 128" in line
    assert [line for line in err.splitlines() if re.match(r"[EW]\d{4} .*(CUDA|pinned)", line)] == []
    assert (tiny_home.repository / "hplm_upper" / "config.pbtxt").read_text() == before


def test_an_export_says_what_changed(tiny_home: Home, export: Callable[..., list[str]]) -> None:
    export()
    assert export()[1:] == ["no setting changed"]
    lines = export("--policy", "das", "--slots", "64")
    assert sorted(lines[1:3]) == ["  upper policy: fcfs → das", "  upper slots: 128 → 64"]
    assert lines[-1] == "a running server keeps its settings until it is restarted"
    lines = export("--policy", "das", "--slots", "64", "--no-plugin")
    assert lines[1:-1] == [
        "  lower max_batch_size: 1024 → 64",
        f"  lower plugin: plan {PLAN_VERSION} → none",
        f"  upper plugin: plan {PLAN_VERSION} → none",
    ]
    with (tiny_home.repository / "hplm_lower" / "1" / "model.py").open("a") as code:
        code.write("# of another release\n")
    lines = export("--policy", "das", "--slots", "64", "--no-plugin")
    assert len(lines) == 3 and lines[1].startswith("  lower code: ")
    (tiny_home.repository / "hplm_lower" / "config.pbtxt").write_bytes(b"\xff")
    assert export("--policy", "das")[1:] == []
