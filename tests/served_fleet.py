"""`hplm fleet serve` on the tiny home: two real servers behind the real gateway, and callers who ask without pause."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from backends.home import Home
from builder.export.repository import render_repository
from builder.export.settings import ExportSettings
from hplm_client import HplmClient

HPLM = str(Path(sys.executable).with_name("hplm"))
FREE_PORTS = ("--http", "0", "--grpc", "0", "--health-port", "0", "--first-port", "0")
HPLMS = ("acme/topic", "globex/topic", "initech/mood")
PATIENCE_S = 90.0


@dataclass
class Fleet:
    home: Home
    process: subprocess.Popen[str]
    urls: tuple[str, str]

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [HPLM, "fleet", *arguments, "--home", str(self.home.path)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)

    def servers(self) -> list[dict]:
        return json.loads(self.command("status", "--json").stdout)["servers"]

    def drain(self, name: str, *options: str) -> None:
        """Drain a server as soon as the other one is ready, which a busy machine may delay."""
        end = time.monotonic() + PATIENCE_S
        while (done := self.command("drain", name, *options)).returncode != 0:
            assert done.returncode == 4 and time.monotonic() < end, f"{done.stderr}{self.said()}"
            time.sleep(0.5)

    def wait_until_restarted(self, name: str) -> None:
        end = time.monotonic() + PATIENCE_S
        while not any(each["server"] == name and each["restarts"] and each["in_gateway"] for each in self.servers()):
            assert time.monotonic() < end, self.said()
            time.sleep(0.2)

    def said(self) -> str:
        return (self.home.path / "stderr").read_text()


class Asked(NamedTuple):
    """One request; times are of the monotonic clock."""

    sent_s: float
    ended_s: float
    outcome: str

    @property
    def took_s(self) -> float:
        return self.ended_s - self.sent_s


@dataclass
class Load:
    """Callers of both protocols, who ask without pause and never repeat a request themselves."""

    urls: tuple[str, str]
    hplms: Sequence[str] = HPLMS
    asked: list[Asked] = field(default_factory=list)
    _stopping: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Load:
        self._threads = [
            threading.Thread(target=self._ask, args=(url, hplm)) for url in self.urls for hplm in self.hplms
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    @property
    def outcomes(self) -> Counter[str]:
        return Counter(each.outcome for each in list(self.asked))

    def _ask(self, url: str, hplm: str) -> None:
        with HplmClient(url, retries=0) as client:
            while not self._stopping.wait(0.02):
                sent_s = time.monotonic()
                try:
                    answer = client.infer(hplm, "my cat is lovely")
                    outcome = "answered" if answer.hplm == hplm else f"{answer.hplm} answered for {hplm}"
                except Exception as error:
                    outcome = f"{type(error).__name__}: {error}"
                self.asked.append(Asked(sent_s, time.monotonic(), outcome))


@contextlib.contextmanager
def fleet_of_two(home: Home, before: Sequence[str] = ()) -> Iterator[Fleet]:
    """Serve a home; the words `before` stand before the command."""
    command = [*before, HPLM, "fleet", "serve", "--home", str(home.path), "--servers", "2", *FREE_PORTS]
    with (home.path / "stderr").open("w") as err:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err, text=True)
    try:
        assert process.stdout is not None
        ready = next((line for line in process.stdout if line.startswith("ready:")), None)
        assert ready is not None, (home.path / "stderr").read_text()
        grpc_url, http_url, *_ = re.findall(r"(?:grpc|http)://[\d.:]+", ready)
        yield Fleet(home, process, (grpc_url, http_url))
    finally:
        process.kill()
        process.communicate()


def export(home: Home, **more: str) -> None:
    parameters = {"dtype": "fp32", "slots": "4", "threads": "1", **more}
    settings = ExportSettings(lower_instances=1, lower_parameters={"dtype": "fp32"}, upper_parameters=parameters)
    render_repository(home.repository, settings)
