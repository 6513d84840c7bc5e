"""Locustfiles as Locust's users run them: `locust -f`, headless, with workers and with the web page."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from builder.serving import TritonServer
from served_home import Served
from small_servers import free_port

pytestmark = pytest.mark.server
PROJECT = Path(__file__).parents[3]
LOCUST = str(Path(sys.executable).with_name("locust"))
OWN = PROJECT / "loadtest" / "locustfile.py"
EXAMPLE = PROJECT / "loadtest" / "examples" / "locustfile.py"
LIMIT_S = 120.0
HPLMS = {"acme/topic", "acme/mood", "globex/topic", "initech/mood"}
Rows = dict[tuple[str, str], dict[str, str]]


def own_port() -> tuple[str, ...]:
    """Name a port for the master of a run with workers: another run's master would take these."""
    port = str(free_port())
    return "--master-bind-port", port, "--master-port", port


def locust(
    folder: Path, url: str, *options: str, code: int = 0, file: Path = OWN, **variables: str
) -> tuple[Rows, str]:
    """Locust's statistics by type and name, and what it logged."""
    command = [LOCUST, "-f", str(file), *options, "--headless", "--host", url, "--csv", str(folder / "run")]
    environment = {**os.environ, **variables, "PYTHONFAULTHANDLER": "1"}
    pipes: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=folder, env=environment, **pipes) as process:
        try:
            _, log = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # it says where its threads are
            _, log = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
    assert process.returncode == code, log
    with (folder / "run_stats.csv").open() as file_of_rows:
        rows = {(row["Type"], row["Name"]): row for row in csv.DictReader(file_of_rows)}
    return rows, log


def counts(rows: Rows, column: str = "Request Count") -> dict[tuple[str, str], int]:
    return {key: int(row[column]) for key, row in rows.items() if key[1] != "Aggregated"}


BOTH_PROTOCOLS = pytest.mark.parametrize("protocol", ["grpc", pytest.param("http", marks=pytest.mark.long)])


@BOTH_PROTOCOLS
@pytest.mark.long
def test_overload_has_a_row_per_hplm(served: Served, tmp_path: Path, protocol: str) -> None:
    url = f"{protocol}://{served.grpc_url if protocol == 'grpc' else served.http_url}"
    options = ("OverloadUser", "--users", "8", "--spawn-rate", "8", "--run-time", "10s", "--rate", "4")
    rows, _ = locust(tmp_path, url, *options, "--stop-timeout", "5", "--home", str(served.home.path))
    assert set(counts(rows)) == {(protocol, hplm) for hplm in HPLMS}
    assert sum(counts(rows, "Failure Count").values()) == 0
    assert sum(counts(rows).values()) > 40


def test_rejections_are_no_failures(served: Served, tmp_path: Path) -> None:
    options = ("OverloadUser", "--users", "8", "--spawn-rate", "8", "--run-time", "10s", "--deadlines", "1ms")
    rows, _ = locust(tmp_path, f"grpc://{served.grpc_url}", *options, "--home", str(served.home.path))
    rejected = {name: number for (kind, name), number in counts(rows).items() if kind == "rejected"}
    assert sum(rejected.values()) > 10 and set(rejected) <= HPLMS
    assert sum(counts(rows, "Failure Count").values()) == 0


def test_failures_are_failures(slow_server: TritonServer, tmp_path: Path) -> None:
    source = "from loadtest import HplmUser\nfrom locust import task\n\n\nclass Failing(HplmUser):\n    rate = 5.0\n\n"
    source += "    @task\n    def ask(self):\n        self.client.infer('fail/INTERNAL', 'text', name='a bad one')\n"
    file = tmp_path / "own.py"
    file.write_text(source)
    url = f"grpc://{slow_server.grpc_url}"
    rows, log = locust(tmp_path, url, "--users", "1", "--run-time", "3s", code=1, file=file, PYTHONPATH=str(PROJECT))
    assert rows["grpc", "a bad one"]["Failure Count"] == rows["grpc", "a bad one"]["Request Count"] != "0"
    assert "the INTERNAL that was asked for" in log


def test_all_scenarios_with_workers(served: Served, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("time_s,tenant\n" + "".join(f"{0.1 * n},acme/mood\n" for n in range(20)))
    options = ("--users", "9", "--spawn-rate", "9", "--run-time", "6s", "--processes", "2", "--every", "1s")
    more = ("--trace", str(trace), "--requests", "3", "--home", str(served.home.path))
    rows, log = locust(tmp_path, f"grpc://{served.grpc_url}", *options, *more, *own_port())
    spawned = json.loads(re.findall(r"All users spawned: (\{.*?\})", log)[-1])
    assert set(spawned) == {"SteadyUser", "BurstUser", "OverloadUser", "TraceUser"}
    assert counts(rows)["grpc", "acme/mood"] >= 15
    assert sum(counts(rows, "Failure Count").values()) == 0


@pytest.mark.long
@pytest.mark.serial
@BOTH_PROTOCOLS
def test_slow_answers_hold_up_no_other_request(slow_server: TritonServer, tmp_path: Path, protocol: str) -> None:
    """Some three hundred requests wait at any time, far beyond gevent's ten threads."""
    url = f"{protocol}://{slow_server.grpc_url if protocol == 'grpc' else slow_server.http_url}"
    options = ("OverloadUser", "--users", "20", "--spawn-rate", "20", "--run-time", "10s", "--rate", "10")
    rows, _ = locust(tmp_path, url, *options, "--hplms", "slow/3000,acme/topics", "--stop-timeout", "5")
    slow, quick = rows[protocol, "slow/3000"], rows[protocol, "acme/topics"]
    assert float(slow["Min Response Time"]) >= 2990
    assert float(quick["95%"]) < 1500
    # Ten threads would get some forty slow answers; how many more there are depends on how long imports took.
    assert int(slow["Request Count"]) > 100 and int(quick["Request Count"]) > 100


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--hplms", "acme/none"), "has no hPLM acme/none"),
        pytest.param(
            ("--hplms", "acme/topic", "--arrivals", "weekly"),
            "arrivals 'weekly' is not one of",
            marks=pytest.mark.long,
        ),
        (("--home", "/nowhere"), "name them with --hplms"),
    ],
)
def test_a_wrong_option_ends_the_test(served: Served, tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    _, log = locust(
        tmp_path, f"grpc://{served.grpc_url}", "OverloadUser", "--users", "1", "--run-time", "10m", *options, code=2
    )
    assert message in log and "Traceback" not in log


@pytest.mark.parametrize(
    ("options", "message"),
    [(("--trace", "none.csv"), "none.csv"), ((), "TraceUser needs a --trace"), (("--requests", "0"), "1 or more")],
)
def test_a_trace_that_cannot_be_played_ends_the_test(
    served: Served, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    url, about = f"grpc://{served.grpc_url}", ("--users", "1", "--run-time", "10m", "--hplms", "acme/topic")
    _, log = locust(tmp_path, url, "TraceUser", *about, *options, code=2)
    assert message in log and "Traceback" not in log


def test_the_port_of_http_is_told(served: Served, tmp_path: Path) -> None:
    options = ("OverloadUser", "--users", "1", "--run-time", "10m", "--hplms", "acme/topic")
    _, log = locust(tmp_path, f"grpc://{served.http_url}", *options, code=2)
    assert "speaks HTTP, not gRPC" in log and "Traceback" not in log


def test_the_example_runs(served: Served, tmp_path: Path) -> None:
    options = ("--users", "5", "--spawn-rate", "5", "--run-time", "8s")
    hplms = {"SHOP_HPLM": "acme/topic", "SHOP_OTHER_HPLM": "acme/mood"}
    rows, _ = locust(tmp_path, f"grpc://{served.grpc_url}", *options, file=EXAMPLE, PYTHONPATH=str(PROJECT), **hplms)
    asked = counts(rows)  # answered, or rejected where the machine has other work
    assert asked["grpc", "acme/topic"] + asked.get(("rejected", "acme/topic"), 0) > 10
    assert asked.get(("grpc", "second look"), 0) + asked.get(("rejected", "second look"), 0) > 0
    assert sum(counts(rows, "Failure Count").values()) == 0


def test_the_web_page_starts_a_load(served: Served, tmp_path: Path) -> None:
    page = f"http://127.0.0.1:{free_port()}"
    command = [LOCUST, "-f", str(OWN), "OverloadUser", "--web-host", "127.0.0.1", "--web-port", page.rpartition(":")[2]]
    running = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: b"hplms" in fetch(page))
        form = {
            "user_count": 4,
            "spawn_rate": 4,
            "host": f"http://{served.http_url}",
            "hplms": "acme/mood",
            "rate": "5",
        }
        assert json.loads(fetch(f"{page}/swarm", form))["success"]
        wait_until(lambda: http_rows(page).get("acme/mood", 0) > 10)
        assert set(http_rows(page)) == {"acme/mood"}
    finally:
        running.terminate()
        running.wait(30)


def http_rows(page: str) -> dict[str, int]:
    rows: list[dict[str, Any]] = json.loads(fetch(f"{page}/stats/requests"))["stats"]
    return {row["name"]: row["num_requests"] - row["num_failures"] for row in rows if row["name"] != "Aggregated"}


def fetch(url: str, form: dict[str, Any] | None = None) -> bytes:
    data = None if form is None else urllib.parse.urlencode(form).encode()
    try:
        with urllib.request.urlopen(url, data, timeout=30) as reply:
            return bytes(reply.read())
    except ConnectionError:
        return b""
    except urllib.error.URLError:
        return b""


def wait_until(holds: Any) -> None:
    give_up_at = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < give_up_at
        time.sleep(0.2)
