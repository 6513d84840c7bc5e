"""A home with `hplm manager` beside it, as an operator starts it, and a client as an application has one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from backends.home import Home
from backends.registry.registry import Registry

HPLM = str(Path(sys.executable).with_name("hplm"))
_PATIENCE_S = 120.0
# Long enough to be interrupted, and then not worth waiting for.
LONG = {"epochs": 4000, "patience": 4000}
SHORT = {"epochs": 2, "learning_rate": 1e-2}
# On a busy machine, niced jobs would take longer than anybody waits.
NORMAL_PRIORITY = ("--niceness", "0")
ENDS = ("done", "failed", "cancelled")
Json = dict[str, Any]


@dataclass(frozen=True)
class Managed:
    """A running manager and what one does with it."""

    home: Home
    process: subprocess.Popen[str]
    http: httpx.Client

    def upload(self, kind: str, path: Path) -> str:
        answer = self.http.put("/v1/uploads", params={"kind": kind, "name": path.name}, content=path.read_bytes())
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def submit(self, **request: Any) -> int:
        answer = self.http.post("/v1/jobs", json=request)
        assert answer.status_code == 202, answer.text
        return int(answer.json()["id"])

    def tune(self, files: tuple[Path, Path], **request: Any) -> int:
        train, dev = (self.upload("task", path) for path in files)
        return self.submit(**{"kind": "hplm.create", "id": "new/one", "train": train, "dev": dev, **request})

    def live_version(self, hplm: str) -> int | None:
        with contextlib.closing(Registry.open(self.home)) as registry:
            return registry.hplm(hplm).version if registry.has_hplm(hplm) else None

    def job(self, job_id: int) -> Json:
        found: Json = self.http.get(f"/v1/jobs/{job_id}").json()
        return found

    def wait(self, job_id: int, is_there: Callable[[Json], bool]) -> Json:
        """The job once it has come that far."""
        deadline = time.monotonic() + _PATIENCE_S
        while not is_there(job := self.job(job_id)):
            is_over = job["state"] in ENDS
            assert not is_over and time.monotonic() < deadline, f"{job}\n{self.log(job_id)}"
            time.sleep(0.1)
        return job

    def end(self, job_id: int) -> Json:
        return self.wait(job_id, lambda job: job["state"] in ENDS)

    def at_work(self, job_id: int, attempt: int = 1, phase: str = "tune adapters and head") -> Json:
        """The job in the middle of a phase."""
        return self.wait(
            job_id, lambda job: job["attempt"] == attempt and (job["progress"] or {}).get("phase") == phase
        )

    def log(self, job_id: int) -> str:
        return self.http.get(f"/v1/jobs/{job_id}/log").text

    def kill(self) -> None:
        """Kill -9."""
        self.process.kill()
        self.process.wait()


def worker_of(job: Json) -> psutil.Process:
    return psutil.Process(int(job["worker"].rpartition(":")[2]))


@contextmanager
def managing(home: Home, *options: str) -> Iterator[Managed]:
    command = [HPLM, "manager", "--home", str(home.path), "--port", "0", *NORMAL_PRIORITY, *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert ready.startswith("ready: "), process.communicate()[1]
        with httpx.Client(base_url=ready.split()[1], timeout=60) as http:
            yield Managed(home, process, http)
    finally:
        was_killed = process.poll() is not None
        process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=60)
        finally:
            process.kill()
            if not was_killed:
                _kill_workers(home)


def _kill_workers(home: Home) -> None:
    for found in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess):
            if _works_for(found, home):
                found.kill()


def _works_for(process: psutil.Process, home: Home) -> bool:
    try:
        command = process.cmdline()
    except psutil.Error:
        return False
    return "builder.manager.worker" in command and str(home.path) in command
