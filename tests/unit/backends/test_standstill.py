"""Standstills of a process of its own, which is stopped and goes on, or whose interpreter is locked."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from backends.ending import EXIT_CODE
from waiting import LIMIT_S

CALLING = """
import ctypes, sys, threading, time
from backends.standstill import Standstill

def call():
    while True:
        with standstill.call():
            time.sleep(0.005)
        time.sleep(0.005)

def lock_interpreter():
    while True:
        ctypes.PyDLL(None).usleep(550_000)
        print("unlocked", flush=True)
        time.sleep(0.2)

others = [threading.Thread(target=time.sleep, args=(1000,), daemon=True) for _ in range(40)]
for thread in others:
    thread.start()
standstill = Standstill(0.4)
print("calling", flush=True)
if sys.argv[1] == "locked":
    threading.Thread(target=lock_interpreter, daemon=True).start()
if sys.argv[1] == "idle":
    time.sleep(1000)
call()
"""


@contextmanager
def calling(how: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", CALLING, how]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "calling\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def stand_still(process: subprocess.Popen[str], duration_s: float) -> None:
    process.send_signal(signal.SIGSTOP)
    time.sleep(duration_s)
    process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("duration_s", [0.5, 1.5])
def test_a_call_that_was_open_in_a_standstill_ends_the_process(duration_s: float) -> None:
    with calling("busily") as process:
        stand_still(process, duration_s)
        _, said = process.communicate(timeout=LIMIT_S)
        assert process.returncode == EXIT_CODE
        assert "a call of Triton was open while this process stood still" in said


def test_a_process_without_calls_goes_on() -> None:
    with calling("idle") as process:
        stand_still(process, 0.6)
        time.sleep(0.5)
        assert process.poll() is None


def test_a_short_standstill_and_a_locked_interpreter_end_nothing() -> None:
    """The process shows signs of life to Triton while its interpreter is locked.

    A machine that stalls makes one attempt a long standstill, a defect each.
    """
    assert any(goes_on_when_locked() for _ in range(3))


def goes_on_when_locked() -> bool:
    with calling("locked") as process:
        assert process.stdout is not None
        if [process.stdout.readline() for _ in range(2)] != ["unlocked\n"] * 2:
            return False
        time.sleep(0.05)
        stand_still(process, 0.2)
        return process.stdout.readline() == "unlocked\n" and process.poll() is None
