"""`make quickstart` as a newcomer meets it: interrupted, run again, asked with what it says to type, and stopped."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from backends.home import REGISTRY_VARIABLE, Home
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from builder.construct.hplm.hplms import publish_artifact
from demo import quickstart
from demo.prebuilt import Prebuilt
from demo.quickstart import EXAMPLES
from demo.recipes import RECIPES
from demo.root import SOURCE
from served_home import lines_without_stalls
from source_tree import PROJECT

pytestmark = pytest.mark.server
Rejected = tuple[Any, str, str]


def is_installed(source: str) -> bool:
    name, _, version = source.removeprefix("pip:").partition("==")
    try:
        return metadata.version(name) == version
    except metadata.PackageNotFoundError:
        return False


@contextmanager
def started(home: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "demo.quickstart", "--home", str(home), "--port", "0"]
    process = subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def read_until(stream: Iterator[str], part: str) -> list[str]:
    lines = []
    for line in stream:
        lines.append(line)
        if part in line:
            return lines
    raise AssertionError(f"{part!r} is not in {''.join(lines)}")


def answer_to(command: str) -> dict[str, object]:
    """Ask as the screen says: `curl … URL -d JSON`."""
    done = subprocess.run(shlex.split(command), capture_output=True, text=True, check=True)
    content = json.loads(done.stdout)
    answer: dict[str, object] = json.loads(content["RESULT"])
    return answer


def interrupted_at_the_third() -> Callable[..., HplmEntry]:
    numbers = count(1)

    def publish(*arguments: Any, **named: Any) -> HplmEntry:
        if next(numbers) == 3:
            raise KeyboardInterrupt
        return publish_artifact(*arguments, **named)

    return publish


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.skipif(not is_installed(SOURCE), reason=f"'make' installs {SOURCE}")
def test_interrupted_run_again_asked_and_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(quickstart, "publish_artifact", interrupted_at_the_third())
        quickstart.QuickstartHome(Home(home), Prebuilt.read(), Console(quiet=True)).assemble()
    assert len(Registry.open(Home(home)).hplms()) == 2
    with started(home) as process:
        assert process.stdout is not None
        lines = read_until(process.stdout, "Ctrl-C stops the server")
        commands = [line for line in lines if line.strip().startswith("curl")]
        answers = [answer_to(command) for command in commands]
        assert {a["hplm"]: a["label"] for a in answers} == {hplm: label for hplm, (_, label) in EXAMPLES.items()}
        assert any(line.startswith(f"{len(RECIPES)} models of 3 tenants answer") for line in lines)
        (exported,) = (line for line in lines if line.strip().startswith("export HPLM_URL=grpc://127.0.0.1:"))
        (asked,) = (line for line in lines if "hplm infer" in line)
        said = [exported, asked.replace(".venv/bin/hplm", str(Path(sys.executable).with_name("hplm")))]
        done = subprocess.run(["bash", "-ec", "".join(said)], capture_output=True, text=True, check=True)
        assert EXAMPLES["acme/area"][1] in done.stdout
        assert "PORT=" in lines[-1]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert out.strip().endswith("stopped")
    log, settings, callers, draining, drained = lines_without_stalls(err)  # Triton's own lines stay in the file
    assert log == f"starting Triton; its log is {home / 'run' / 'server.log'}"
    assert "policy fcfs" in settings and "slots 128" in settings
    assert callers.startswith("auth off: ")
    assert "watchdog: draining by a signal" in draining and "watchdog: drained" in drained
    assert {entry.id for entry in Registry.open(Home(home)).hplms()} == {recipe.id for recipe in RECIPES}


@pytest.fixture
def rejected(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[Path, int], Rejected]:
    """Starts quickstart in this process, which must end before there is a server."""

    def start(home: Path, port: int) -> Rejected:
        monkeypatch.setattr(sys, "argv", ["quickstart", "--home", str(home), "--port", str(port)])
        with pytest.raises(SystemExit) as stop:
            quickstart.main()
        return (stop.value.code, *capsys.readouterr())

    return start


def test_a_port_in_use_is_told_before_anything_is_made(
    rejected: Callable[[Path, int], Rejected], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, out, err = rejected(tmp_path / "home", taken.getsockname()[1])
    assert code == 4
    assert err.startswith("quickstart: port")
    assert f"is in use by process {os.getpid()} (" in err and "; 'make quickstart PORT=9000' takes 9000 to 9003" in err
    assert out == ""
    assert not (tmp_path / "home").exists()


def test_a_registry_of_other_homes_is_left_alone(
    rejected: Callable[[Path, int], Rejected], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(REGISTRY_VARIABLE, f"sqlite:///{tmp_path}/others.db")
    code, _, err = rejected(tmp_path / "home", 0)
    assert code == 2
    assert err == f"quickstart: {REGISTRY_VARIABLE} is set, but this home has a registry of its own; unset it\n"
    assert list(tmp_path.iterdir()) == []
