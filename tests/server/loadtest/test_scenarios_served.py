"""`hplm loadtest` as an operator types it, against a real Triton with real hPLMs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builder.serving import ServerConfig, TritonServer
from cli import loadtest_run
from served_home import Served
from small_servers import free_port

pytestmark = pytest.mark.server
CONTRACT = Path(__file__).parent.parent / "clients" / "contract"
HPLM = str(Path(sys.executable).with_name("hplm"))
HPLMS = {"acme/topic", "acme/mood", "globex/topic", "initech/mood"}
Load = Callable[..., dict[str, Any]]


def command(served: Served, scenario: str, out: Path, *options: str, protocol: str = "grpc") -> list[str]:
    url = served.grpc_url if protocol == "grpc" else served.http_url
    place = ("--url", f"{protocol}://{url}", "--home", str(served.home.path), "--out", str(out))
    return [HPLM, "loadtest", scenario, *place, "--max-lateness-ms", "5000", *options]


@pytest.fixture
def load(served: Served, run_hplm: Callable[..., str]) -> Load:
    """Plays a load, its master in this process, and returns its summary."""

    def played(scenario: str, out: Path, *options: str, protocol: str = "grpc") -> dict[str, Any]:
        _, *asked = command(served, scenario, out, *options, protocol=protocol)
        return checked(run_hplm(*asked, "--json"), out)

    return played


def checked(text: str, out: Path) -> dict[str, Any]:
    """The summary that a load printed, once everything that it wrote says the same."""
    printed = json.loads(text)
    written = json.loads((out / "summary.json").read_text())
    assert written.pop("run")["state"] == "complete"
    assert written == printed
    assert f"{printed['planned']:,}" in (out / "report.html").read_text()
    assert len((out / "requests.csv").read_text().splitlines()) == printed["planned"] + 1
    assert printed["planned"] == printed["answered"] + printed["rejected"] + printed["failed"] + printed["unsent"]
    assert printed["sending"]["valid"]
    return dict(printed)


def hplms_asked(out: Path) -> set[str]:
    return {line.split(",")[4] for line in (out / "requests.csv").read_text().splitlines()[1:]}


def test_steady_over_http_asks_every_hplm(load: Load, tmp_path: Path) -> None:
    summary = load("steady", tmp_path / "run", "--duration", "2", "--every-s", "0.5", protocol="http")
    assert (summary["planned"], summary["answered"]) == (16, 16)
    assert summary["attainment"] == 1.0
    assert hplms_asked(tmp_path / "run") == HPLMS


@pytest.mark.parametrize(("protocol", "workers"), [("grpc", "2"), pytest.param("http", "1", marks=pytest.mark.long)])
def test_burst(load: Load, tmp_path: Path, protocol: str, workers: str) -> None:
    options = ("--users", "40", "--requests", "3", "--every-s", "0.5", "--spawn-s", "0.02", "--workers", workers)
    summary = load("burst", tmp_path / "run", *options, protocol=protocol)
    assert (summary["planned"], summary["answered"]) == (120, 120)
    batches = json.loads((tmp_path / "run" / "run.json").read_text())["batches"]
    assert sum(int(size) * count for size, count in batches.items()) == 120


def test_overload_is_rejected_and_compared(
    load: Load, run_hplm: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loadtest_run, "_CALIBRATION_S", 1.0)
    # Beside other tests a client comes to many requests too late to send them, which is not what is tested.
    monkeypatch.setattr("loadtest.figures.MOST_UNSENT", 1.0)
    options = (
        "--deadlines",
        "300ms-600ms",
        "--duration",
        "2s",
        "--tenants",
        "zipf:exponent=1.1",
        "--max-lateness",
        "30s",
    )
    load("overload", tmp_path / "calm", "--load", "5/s", *options)
    summary = load("overload", tmp_path / "wild", "--load", "2x", *options)
    assert summary["attainment"] < 1.0
    assert sum(summary["reasons"].values()) == summary["rejected"] + summary["failed"] + summary["unsent"]
    settings = json.loads((tmp_path / "wild" / "run.json").read_text())["settings"]
    assert summary["planned"] == pytest.approx(2 * 2 * settings["measured_capacity_per_s"], rel=0.5)
    both = tmp_path / "both.html"
    run_hplm("loadtest", "compare", tmp_path / "calm", tmp_path / "wild", "--out", both)
    assert "calm and wild" in both.read_text()


def test_trace(load: Load, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    rows = [{"timestamp": 1000 + 50 * (n // 2), "tenant": sorted(HPLMS)[n % 3], "tokens": 5 + n} for n in range(20)]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary = load("trace", tmp_path / "run", "--trace", str(trace), "--speed", "0.5")
    assert (summary["planned"], summary["answered"]) == (20, 20)
    assert summary["duration_s"] == pytest.approx(0.9)
    assert hplms_asked(tmp_path / "run") == set(sorted(HPLMS)[:3])


@pytest.mark.parametrize(
    ("stop", "ends_with"),
    [
        pytest.param(signal.SIGINT, 130, id="ctrl-c"),
        pytest.param(signal.SIGTERM, 143, id="sigterm", marks=pytest.mark.long),
    ],
)
def test_an_interrupted_run_is_reported_as_such(
    served: Served, tmp_path: Path, stop: signal.Signals, ends_with: int
) -> None:
    out = tmp_path / "run"
    running = start_load(served, out)
    running.send_signal(stop)
    _, err = running.communicate(timeout=60)
    assert running.returncode == ends_with
    sending, told = err.strip().splitlines()
    assert sending.startswith("sending ")
    assert told == f"hplm: interrupted; {out / 'report.html'} shows what came back until then"
    content = json.loads((out / "summary.json").read_text())
    assert content["run"]["state"] == "interrupted"
    assert 0 < content["answered"] < content["planned"] + 1 < 20 * 600
    assert "This run was interrupted" in (out / "report.html").read_text()


@pytest.mark.long
def test_a_killed_run_can_still_be_reported(served: Served, tmp_path: Path) -> None:
    out = tmp_path / "run"
    running = start_load(served, out)
    running.kill()
    running.communicate(timeout=60)
    done = subprocess.run([HPLM, "loadtest", "report", str(out)], capture_output=True, text=True, check=True)
    assert "This run was killed" in done.stderr
    assert "This run was killed" in (out / "report.html").read_text()


def start_load(served: Served, out: Path) -> subprocess.Popen[str]:
    """One that would take ten minutes, from when its first answers are there."""
    asked = command(served, "overload", out, "--rate", "20", "--duration", "600")
    running = subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for_outcomes(running, out)
    return running


def wait_for_outcomes(running: subprocess.Popen[str], out: Path) -> None:
    rows = out / "requests.csv"
    give_up_at = time.monotonic() + 90
    while not rows.exists() or rows.read_text().count("\n") < 10:
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < give_up_at
        time.sleep(0.1)


def test_an_hplm_that_the_server_does_not_know_is_named(
    served: Served, run_hplm: Callable[..., str], tmp_path: Path
) -> None:
    _, *asked = command(served, "steady", tmp_path / "run", "--hplm", "acme/topic", "--hplm", "acme/none")
    assert run_hplm(*asked) == f"hplm: the server at grpc://{served.grpc_url} has no hPLM acme/none"
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_a_server_that_dies_fails_the_load(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with TritonServer(ServerConfig(repository=CONTRACT, exit_timeout_s=1)) as dying:
        load = ("overload", "--rate", "20", "--duration", "6", "--hplm", "acme/topics", "--max-lateness-ms", "5000")
        asked = [HPLM, "loadtest", *load, "--url", dying.grpc_url, "--out", str(out)]
        running = subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        wait_for_outcomes(running, out)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 1, err
    assert "requests ended with an error, most often: CONNECTION_" in err
    assert json.loads((out / "summary.json").read_text())["answered"] > 0


@pytest.mark.long
def test_workers_of_other_machines_come_to_a_port(served: Served, tmp_path: Path) -> None:
    port = free_port()
    asked = command(served, "overload", tmp_path / "run", "--rate", "40", "--duration", "2", "--workers", "2")
    master = subprocess.Popen([*asked, "--master", str(port)], stderr=subprocess.PIPE, text=True)
    try:
        come = [HPLM, "loadtest", "worker", f"127.0.0.1:{port}"]
        workers = [subprocess.Popen(come, stderr=subprocess.DEVNULL) for _ in range(2)]
        _, err = master.communicate(timeout=120)
        assert master.returncode == 0, err
        for worker in workers:
            worker.wait(30)
    finally:
        for process in (master, *workers):
            process.kill()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["planned"] == summary["answered"]
