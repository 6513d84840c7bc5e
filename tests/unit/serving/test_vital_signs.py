"""What the watchdog sees of processes and loops."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from backends import heartbeat
from backends.heartbeat import Heartbeat
from backends.server_folder import FOLDER_VARIABLE
from builder.serving import vital_signs
from builder.serving.vital_signs import Complaint, VitalSigns, process_state
from waiting import LIMIT_S

CHILD = "import subprocess, sys; subprocess.Popen(['sleep', '60']); print('there', flush=True); sys.stdin.read()"


@pytest.fixture
def server() -> Iterator[subprocess.Popen[str]]:
    """A process with a child, that stand for tritonserver and a model's process."""
    command = [sys.executable, "-S", "-c", CHILD]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0)
    assert process.stdout is not None and process.stdout.readline()
    yield process
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def child_of(server: subprocess.Popen[str]) -> int:
    return int(Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text())


def looked(signs: VitalSigns, is_so: Callable[[list[Complaint]], bool]) -> list[Complaint]:
    end = time.monotonic() + LIMIT_S
    while not is_so(found := signs.look()):
        assert time.monotonic() < end, found
        time.sleep(0.01)
    return found


@pytest.mark.parametrize("who", ["tritonserver", "a model"])
def test_a_dead_process_is_seen_at_once(server: subprocess.Popen[str], who: str, tmp_path: Path) -> None:
    signs = VitalSigns(server.pid, tmp_path)
    assert signs.look() == []
    pid = server.pid if who == "tritonserver" else child_of(server)
    os.kill(pid, signal.SIGKILL)
    found = looked(signs, lambda found: bool(found))
    assert found[0] == Complaint(f"{who} (process {pid}) has died (SIGKILL)", fatal=True)


def test_how_a_collected_server_ended_is_for_its_keeper_to_say(
    server: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signs, model = VitalSigns(server.pid, tmp_path), child_of(server)
    os.kill(model, signal.SIGSTOP)
    server.kill()
    server.wait()
    died = Complaint(f"tritonserver (process {server.pid}) has died", fatal=False)
    assert signs.look() == [died], "nor is it the models' fault"
    monkeypatch.setattr(vital_signs, "STOPPED_S", 0.1)
    looked(signs, lambda found: found == [replace(died, fatal=True)])


def test_a_stopped_process_is_replaced_after_a_while(
    server: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vital_signs, "STOPPED_S", 0.1)
    signs, pid = VitalSigns(server.pid, tmp_path), child_of(server)
    os.kill(pid, signal.SIGSTOP)
    assert looked(signs, lambda found: bool(found)) == [Complaint(f"a model (process {pid}) is stopped", fatal=False)]
    os.kill(pid, signal.SIGCONT)
    assert looked(signs, lambda found: not found) == []
    os.kill(pid, signal.SIGSTOP)
    looked(signs, lambda found: bool(found) and found[0].fatal)


def test_a_silent_loop_is_unready_first_and_hangs_later(
    server: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr(vital_signs, "HUNG_S", 10 * LIMIT_S)
    beating, now_us = Heartbeat("hplm_upper_0_0", ("run", "answer")), heartbeat.now_us
    signs = VitalSigns(server.pid, tmp_path)
    assert signs.look() == []
    beating.beat_of("answer")()
    monkeypatch.setattr(vital_signs, "now_us", lambda: now_us() + 1_900_000)
    monkeypatch.setattr(heartbeat, "now_us", lambda: now_us() + 1_900_000)
    beating.beat_of("answer")()
    (found,) = signs.look()
    assert found.text.startswith(f"hplm_upper_0_0 (process {os.getpid()}): no heartbeat of its loop 'run' for ")
    assert not found.fatal, "the watchdog has not looked for so long"
    monkeypatch.setattr(vital_signs, "HUNG_S", 0.3)
    looked(signs, lambda found: found[0].fatal)
    beating.beat_of("run")()
    beating.beat_of("answer")()
    assert signs.look() == []
    beating.close()


def test_requests_that_the_upper_model_has_answered_are_counted(
    server: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    upper, lower = Heartbeat("hplm_upper_0_0", ("run",)), Heartbeat("hplm_lower_0_0", ("encode",))
    signs = VitalSigns(server.pid, tmp_path)
    for model in (upper, lower):
        model.begin_requests(5)
        model.end_requests(3)
    assert (signs.num_answered(), signs.num_open) == (3, 4)
    upper.close()
    lower.close()


def test_a_watchdog_that_was_suspended_gives_everybody_time(
    server: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    beating, now_us, now_s = Heartbeat("hplm_lower_0_0", ("encode",)), heartbeat.now_us, time.monotonic
    signs = VitalSigns(server.pid, tmp_path)
    monkeypatch.setattr(vital_signs, "now_us", lambda: now_us() + 60_000_000)
    monkeypatch.setattr(vital_signs.time, "monotonic", lambda: now_s() + 60)
    (found,) = signs.look()
    assert not found.fatal
    beating.close()


def test_the_state_of_a_process_that_is_gone() -> None:
    assert process_state(os.getpid()) == "R"
    assert process_state(2**22 + 1) is None
