"""A process is told from all others, also from a later one of its number."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from backends.process_id import ProcessId


def test_a_process_is_known_to_have_ended_on_its_own_machine_only() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        child = ProcessId.of(process.pid)
        assert not child.is_known_to_have_ended and child.machine == ProcessId.own().machine
        process.kill()
    assert child.is_known_to_have_ended
    assert not replace(child, machine="another").is_known_to_have_ended
    with pytest.raises(ProcessLookupError):
        ProcessId.of(process.pid)


def test_a_later_process_of_the_same_number_is_another() -> None:
    own = ProcessId.own()
    assert not own.is_known_to_have_ended
    assert replace(own, start_ticks=own.start_ticks - 1).is_known_to_have_ended
