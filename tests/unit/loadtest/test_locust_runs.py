"""Locust runs against small servers: the exit codes of those from which nothing came back, and what survives them."""

from __future__ import annotations

import csv
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from small_servers import free_port, small_server
from waiting import LIMIT_S, wait_until

PROJECT = Path(__file__).parents[3]
LOCUST = str(Path(sys.executable).with_name("locust"))
SCENARIOS = PROJECT / "loadtest" / "locustfile.py"
RUN_TIME = "12s"
"""Locust's clock starts before its imports, which take a busy machine several seconds."""
PAGE_KEEPS_S = 3.0
"""For as long as this, and less, Locust's page answers what it answered before."""
ONE_OF_ONES_OWN = """
from locust import task
from loadtest import HplmUser


class Asker(HplmUser):
    def planned(self):
        yield {due_s}

    @task
    def ask(self):
        self.client.infer("acme/x", "text")
"""
TWO_WORKERS = ("--processes", "2")
WITH_AND_WITHOUT_WORKERS = pytest.mark.parametrize(
    "workers", [(), pytest.param(TWO_WORKERS, marks=pytest.mark.long)], ids=["alone", "workers"]
)


def started(folder: Path, file: Path, *options: str, **variables: str) -> subprocess.Popen[str]:
    own = os.pathsep.join([str(PROJECT), str(PROJECT / "clients"), os.environ.get("PYTHONPATH", "")])
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = {**os.environ, **variables, "PYTHONPATH": own}
    port = str(free_port())  # another run's master would take these workers
    ports = ("--master-bind-port", port, "--master-port", port)
    return subprocess.Popen([LOCUST, "-f", str(file), *ports, *options], cwd=folder, env=environment, **pipes)


def locust(folder: Path, file: Path, url: str, *options: str, **variables: str) -> tuple[int, str]:
    """The exit code of a headless run, and what it logged."""
    with started(folder, file, "--headless", "--host", url, *options, **variables) as process:
        try:
            _, log = process.communicate(timeout=4 * LIMIT_S)
        finally:
            process.kill()
    assert "Traceback" not in log, log
    return process.returncode, log


def of_ones_own(folder: Path, due_s: float) -> Path:
    """A locustfile whose users make one request, so long after they began."""
    (folder / "own.py").write_text(ONE_OF_ONES_OWN.format(due_s=due_s))
    return folder / "own.py"


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that accepts connections and never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("protocol", ["grpc", pytest.param("http", marks=pytest.mark.long)])
def test_a_run_that_ends_before_it_is_prepared_is_no_good_run(silent: str, tmp_path: Path, protocol: str) -> None:
    options = ("OverloadUser", "--users", "1", "--hplms", "acme/x", "--run-time", "2s")
    code, log = locust(tmp_path, SCENARIOS, f"{protocol}://{silent}", *options)
    assert code == 2
    assert "the run ended before it was prepared" in log


@pytest.mark.long
def test_a_run_whose_workers_are_never_prepared_is_no_good_run(silent: str, tmp_path: Path) -> None:
    options = ("OverloadUser", "--users", "2", "--hplms", "acme/x", "--run-time", "3s", *TWO_WORKERS)
    code, log = locust(tmp_path, SCENARIOS, f"grpc://{silent}", *options)
    assert code == 1
    assert "no request was answered or failed before the run ended" in log


def test_a_worker_that_cannot_begin_ends_the_run(tmp_path: Path) -> None:
    url = f"grpc://127.0.0.1:{free_port()}"
    options = ("OverloadUser", "--users", "2", "--hplms", "acme/x", "--run-time", "10m", *TWO_WORKERS)
    code, log = locust(tmp_path, SCENARIOS, url, *options)
    assert code == 2
    assert "preparation: worker " in log and "cannot connect" in log, "the master says it, too"


@WITH_AND_WITHOUT_WORKERS
def test_a_run_that_gets_no_answer_is_no_good_run(silent: str, tmp_path: Path, workers: tuple[str, ...]) -> None:
    file = of_ones_own(tmp_path, due_s=0.1)
    code, log = locust(tmp_path, file, f"grpc://{silent}", "--users", "2", "-r", "2", "--run-time", RUN_TIME, *workers)
    assert code == 1
    assert "no request was answered or failed before the run ended (2 were made)" in log


@WITH_AND_WITHOUT_WORKERS
def test_a_run_in_which_nothing_was_due_is_well(silent: str, tmp_path: Path, workers: tuple[str, ...]) -> None:
    file = of_ones_own(tmp_path, due_s=3600.0)
    code, log = locust(tmp_path, file, f"grpc://{silent}", "--users", "2", "-r", "2", "--run-time", RUN_TIME, *workers)
    assert code == 0
    assert "no request was made before the run ended: none was due" in log


@pytest.mark.long
def test_the_clients_variables_do_not_hold_for_the_preparation(tmp_path: Path) -> None:
    with small_server("http") as server:
        options = ("OverloadUser", "--users", "1", "--hplms", "acme/x", "--rate", "20", "--run-time", RUN_TIME)
        code, log = locust(tmp_path, SCENARIOS, server.url, *options, HPLM_TIMEOUT="0.1ms", HPLM_DEADLINE="1ms")
    assert code == 0, log


@pytest.mark.long
def test_the_steady_users_of_all_workers_ask_every_hplm(tmp_path: Path) -> None:
    hplms = [f"acme/{number}" for number in range(6)]
    with small_server("http") as server:
        options = ("SteadyUser", "--users", "6", "-r", "6", "--hplms", ",".join(hplms), "--every", "500ms")
        more = ("--run-time", RUN_TIME, *TWO_WORKERS, "--csv", "run")
        code, log = locust(tmp_path, SCENARIOS, server.url, *options, *more)
    assert code == 0, log
    with (tmp_path / "run_stats.csv").open() as file:
        assert {row["Name"] for row in csv.DictReader(file)} == {*hplms, "Aggregated"}


@WITH_AND_WITHOUT_WORKERS
def test_the_web_page_survives_a_test_that_cannot_be_played(tmp_path: Path, workers: tuple[str, ...]) -> None:
    page = f"http://127.0.0.1:{free_port()}"
    web = ("--web-host", "127.0.0.1", "--web-port", page.rpartition(":")[2])
    form = {"user_count": 2, "spawn_rate": 0.1, "hplms": "acme/x", "rate": "20"}
    with small_server("http") as server, started(tmp_path, SCENARIOS, "OverloadUser", *web, *workers) as running:
        try:
            wait_until(lambda: is_idle(page, bool(workers)))
            asked(page, "/swarm", {**form, "host": f"http://127.0.0.1:{free_port()}"})
            wait_until(lambda: "cannot connect" in str(asked(page, "/exceptions")))
            time.sleep(PAGE_KEEPS_S)
            wait_until(lambda: is_idle(page, bool(workers)))
            asked(page, "/swarm", {**form, "host": server.url})
            wait_until(lambda: rows(page).get("acme/x", 0) > 10)
        finally:
            running.terminate()
            try:
                _, log = running.communicate(timeout=LIMIT_S)
            finally:
                running.kill()
    assert running.returncode == 0, log


def is_idle(page: str, has_workers: bool) -> bool:
    report = asked(page, "/stats/requests")
    states = [worker["state"] for worker in report.get("workers", ())]
    return report.get("state") in ("ready", "stopped") and states == ["ready"] * (2 if has_workers else 0)


def rows(page: str) -> dict[str, int]:
    return {row["name"]: row["num_requests"] for row in asked(page, "/stats/requests").get("stats", ())}


def asked(page: str, path: str, form: dict[str, Any] | None = None) -> Any:
    """What the page says; nothing until it is there."""
    data = None if form is None else urllib.parse.urlencode(form).encode()
    try:
        with urllib.request.urlopen(f"{page}{path}", data, timeout=LIMIT_S) as reply:
            return json.load(reply)
    except (ConnectionError, urllib.error.URLError):
        return {}
